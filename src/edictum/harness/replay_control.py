"""ReplayControl: do not run the same call twice when that is pointless, and never twice at once.

``begin`` is one atomic step with three answers: the call is new, the same call is in flight, or it
is done. Only calls of *cacheable* tools are recognised; a model may repeat any other. The key of a
call consists of the tool, the validated arguments, the principal and, for reads, the versions of
the resources that the tool uses. Every write raises the versions of what it writes, so earlier
reads become stale. A write has no versions in its key, because it raises them itself; its result
holds for as long as the versions are as it left them.

Only a success counts as done. Failures, timeouts and denials can be tried again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Mapping
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from edictum.core._records import replace
from edictum.core.values import canonical, dumps, identity
from edictum.execution.forks import protect
from edictum.harness.tool_spec import ANY_RESOURCE, ToolSpec
from edictum.outcomes import (
    ToolArtifactReference,
    ToolDenied,
    ToolExecutionResult,
    ToolOutcome,
    outcome_from_dict,
    outcome_to_dict,
)

MAX_HISTORY = 10_000
DUPLICATE_TEXT = "The same call has already succeeded in this turn; its result still holds."
# "seen": reported to have been made, without success. "ended": ``finish`` said so, which is final.
Status: TypeAlias = Literal["seen", "running", "done", "ended"]


class New:
    """A call that has not been made: run it, then ``finish`` it. Its result is kept here."""

    __slots__ = ("approvals", "expires", "key", "outcome", "status", "versions", "waiting")

    key: Hashable
    status: Status
    outcome: ToolOutcome | None  # once it is done
    expires: float | None  # once it is done
    versions: str | None  # of the resources of a write, as it left them
    approvals: Mapping[str, Any] | None  # what people approved, if they were asked
    waiting: Future[ToolOutcome | None] | None  # made when the first waiter comes

    def __init__(self, key: Hashable, status: Status) -> None:
        self.key, self.status, self.waiting = key, status, None


@dataclass(frozen=True, slots=True)
class InFlight:
    """The same call is running. ``outcome`` is a future of its outcome, with None if that cannot be
    shared.
    """

    key: Hashable
    outcome: Future[ToolOutcome | None]
    first: New | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Done:
    """The same call has succeeded. ``outcome`` is None when it is not known."""

    key: Hashable
    outcome: ToolOutcome | None
    first: New | None = field(default=None, compare=False, repr=False)


Begun: TypeAlias = New | InFlight | Done


def mark_as_replay(outcome: ToolOutcome, spec: ToolSpec) -> ToolOutcome:
    """Return a copy for a second call, marked as replayed, in ``output`` for the model as well."""
    if isinstance(outcome, ToolDenied):
        return outcome
    outcome = replace(copy_result(outcome), turn=replace(outcome.turn, replayed=True))
    if not isinstance(outcome, ToolExecutionResult) or "replayed" in outcome.output:
        return outcome  # it has a key of this name itself
    output = {**outcome.output, "replayed": True}
    fits = len(dumps(output)) <= spec.max_output_chars
    return replace(outcome, output=output) if fits else outcome


def copy_result(outcome: Any) -> Any:
    """Return a result that shares nothing with the first one, which its receiver may change."""
    if type(outcome) is not ToolExecutionResult:
        return outcome
    try:
        output, value = deepcopy((outcome.output, outcome.value))  # together: they may be one
    except Exception:  # an object that cannot be copied
        return outcome
    return replace(outcome, output=output, value=value)


class ReplayControl:
    """The calls of one turn. Safe for parallel calls."""

    def __init__(self, *, max_history: int = MAX_HISTORY) -> None:
        self._max_history = max_history
        self._lock = threading.Lock()
        protect(self)
        self._slots: dict[Hashable, New] = {}
        self._versions: dict[str, int] = {}
        self._writes = 0
        self._principal: tuple[Any, str] = (None, "")  # the last one, and its canonical text

    # --- The documented verbs ---------------------------------------------------------------------

    def should_skip(
        self, tool_name: str, arguments: Any, spec: ToolSpec | None
    ) -> tuple[bool, str]:
        """Return whether ``begin`` would refuse this call as a duplicate now, and why."""
        if spec is None or not spec.is_cacheable:
            return False, ""
        key = self._make_key(tool_name, arguments, spec)
        resources = _list_written_resources(spec, arguments)
        with self._lock:
            slot = self._slots.get(key)
            skip = slot is not None and self._is_current(slot, resources)
        return (True, DUPLICATE_TEXT) if skip else (False, "")

    def record_success(
        self,
        tool_name: str,
        arguments: Any,
        spec: ToolSpec | None,
        outcome: ToolOutcome | None = None,
    ) -> None:
        """Record a success, unless the call is done already or ``finish`` has ended it."""
        if spec is None:
            return
        key = self._make_key(tool_name, arguments, spec)
        resources = _list_written_resources(spec, arguments)
        with self._lock:
            slot = self._get_slot(key)
            if slot.status in ("seen", "running"):
                slot.versions = self._versions_of(resources)
                _store(slot, spec, outcome)

    def record_failure(self, tool_name: str, arguments: Any, spec: ToolSpec | None) -> None:
        """Record a call that failed, timed out or was denied: it may be tried again."""
        if spec is not None:
            key = self._make_key(tool_name, arguments, spec)
            with self._lock:
                self._get_slot(key)

    record_timeout = record_denied = record_failure

    def history_size(self) -> int:
        """Return how many different calls have been seen."""
        return len(self._slots)

    # --- A turn that is resumed elsewhere ---------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the calls that have succeeded, with their outcomes, as plain data."""
        with self._lock:
            done = [slot for slot in self._slots.values() if slot.status == "done"]
            return {
                "writes": self._writes,
                "versions": dict(self._versions),
                "done": [_describe_slot(slot) for slot in done],
            }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ReplayControl:
        """Return the calls that ``to_dict`` described, without their approvals."""
        replay = cls()
        replay._writes, replay._versions = data["writes"], dict(data["versions"])
        for each in data["done"]:
            slot = replay._slots[tuple(each["key"])] = New(tuple(each["key"]), "done")
            slot.outcome = each["outcome"] and outcome_from_dict(each["outcome"])
            left_s = None if each["until"] is None else each["until"] - time.time()
            slot.expires = None if left_s is None else time.monotonic() + left_s
            slot.versions, slot.approvals = each["versions"], None
        return replay

    # --- The atomic verbs -------------------------------------------------------------------------

    def begin(self, spec: ToolSpec, arguments: Mapping[str, Any], principal: Any = None) -> Begun:
        """Claim this call. A ``New`` must be finished, because other calls may wait for it."""
        if spec.is_simple and principal is None and (not self._writes or spec.is_pure):
            key: Hashable = (spec.name, identity(arguments))
        else:
            key = self._make_key(spec.name, arguments, spec, principal)
        new, slots = New(key, "running"), self._slots
        if slots.setdefault(key, new) is new:  # atomic: only one of many threads gets it
            if len(slots) > self._max_history:
                self._forget_oldest()
            return new
        return self._begin_again(new, _list_written_resources(spec, arguments))

    def _begin_again(self, new: New, resources: list[str] | None) -> Begun:
        """Claim a call that was made before, unless it is in flight or its result still holds."""
        key = new.key
        with self._lock:
            slot = self._slots.setdefault(key, new)  # it may have been forgotten meanwhile
            if slot is new:
                return new
            if slot.status == "running":
                waiting = self._get_waiting(slot)
                # finish() takes no lock: if it is still running now, finish() will see the waiter
                if slot.status == "running":
                    return InFlight(key, waiting, slot)
            if self._is_current(slot, resources):
                return Done(key, slot.outcome, slot)
            slot.status, slot.approvals = "running", None
            return slot

    def finish(
        self, begun: New, spec: ToolSpec, arguments: Mapping[str, Any], outcome: ToolOutcome | None
    ) -> None:
        """End a call for which ``begin`` returned New, and give its outcome to those that wait for
        it.
        """
        if type(outcome) is ToolExecutionResult and spec.is_simple:  # the usual case, without lock
            begun.outcome = outcome
            begun.expires = None
            begun.status = "done"
            if begun.waiting is None:
                return
        is_done = type(outcome) is ToolExecutionResult or type(outcome) is ToolArtifactReference
        resources = _list_written_resources(spec, arguments)
        with self._lock:
            waiting, begun.waiting = begun.waiting, None
            if is_done:
                begun.versions = self._versions_of(resources)  # with those that it raised itself
                _store(begun, spec, outcome)
            else:
                begun.status = "ended"
        if waiting is not None:
            waiting.set_result(_share(outcome, spec))

    def forget(self, done: Done) -> None:
        """Allow the call again, because its result is gone."""
        with self._lock:
            slot = self._slots.get(done.key)
            if slot is not None and slot.status == "done" and slot.outcome is done.outcome:
                slot.status = "ended"

    def record_write(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> None:
        """Make earlier reads of the call's resources stale: a write has started or ended."""
        keys = spec.keys_for(arguments)  # before the lock: it may be a user-supplied function
        with self._lock:
            self._writes += 1
            for key in keys:
                if key.exclusive:
                    self._versions[key.name] = self._versions.get(key.name, 0) + 1

    # --- Inside -----------------------------------------------------------------------------------

    def _make_key(
        self, tool_name: str, arguments: Any, spec: ToolSpec, principal: Any = None
    ) -> Hashable:
        versioned = spec.is_read and not spec.is_pure and self._writes
        versions = self._versions_of(_list_resources(spec, arguments)) if versioned else ""
        who = "" if principal is None else self._canonical_principal(principal)
        same = identity(spec.identity_of(arguments))
        return (tool_name, versions, who, same) if versions or who else (tool_name, same)

    def _canonical_principal(self, principal: Any) -> str:
        known, text = self._principal
        if known is not principal:
            text = canonical(principal)
            self._principal = (principal, text)
        return text

    def _versions_of(self, names: list[str] | None) -> str | None:
        """Return the versions of these resources and of unknown ones, or of all if any resource may
        be used.
        """
        if names is None:
            return None
        if ANY_RESOURCE in names:
            return f"#{self._writes}"
        return ",".join(
            f"{len(name)}:{name}={version}"
            for name in [*names, ANY_RESOURCE]
            if (version := self._versions.get(name))
        )

    def _is_current(self, slot: New, resources: list[str] | None) -> bool:
        """Return whether the call is done and its result still holds. Needs the lock."""
        if slot.status != "done" or (slot.expires is not None and time.monotonic() >= slot.expires):
            return False
        return resources is None or getattr(slot, "versions", None) == self._versions_of(resources)

    def _get_waiting(self, slot: New) -> Future[ToolOutcome | None]:
        if slot.waiting is None:
            slot.waiting = Future()
            slot.waiting.set_running_or_notify_cancel()  # one waiter must not cancel the others
        return slot.waiting

    def _get_slot(self, key: Hashable) -> New:
        slot = self._slots.setdefault(key, New(key, "seen"))
        if len(self._slots) > self._max_history:
            self._forget_oldest()
        return slot

    def _forget_oldest(self) -> None:
        try:
            oldest = next(
                (key for key, slot in self._slots.items() if slot.status != "running"), None
            )
        except RuntimeError:  # a call begins in another thread, and will forget one
            return
        self._slots.pop(oldest, None)


def _describe_slot(slot: New) -> dict[str, Any]:
    until = None if slot.expires is None else time.time() + slot.expires - time.monotonic()
    return {
        "key": slot.key,
        "outcome": slot.outcome and outcome_to_dict(slot.outcome),
        "until": until,
        "versions": getattr(slot, "versions", None),
    }


def _list_resources(spec: ToolSpec, arguments: Any) -> list[str]:
    return [key.name for key in spec.keys_for(arguments)]


def _list_written_resources(spec: ToolSpec, arguments: Any) -> list[str] | None:
    """Return a write's resources; None for a read. It may call user code, so call it without the
    lock.
    """
    return None if spec.is_read else _list_resources(spec, arguments)


def _store(slot: New, spec: ToolSpec, outcome: ToolOutcome | None) -> None:
    slot.outcome = outcome
    slot.expires = None if spec.cache_ttl_s is None else time.monotonic() + spec.cache_ttl_s
    slot.status = "done"  # last: from here on other threads may read it


def _share(outcome: ToolOutcome | None, spec: ToolSpec) -> ToolOutcome | None:
    """Return what waiters get: None after a denial or a cancellation, so that they try again."""
    if outcome is None or isinstance(outcome, ToolDenied):
        return None
    if getattr(outcome, "success_source", "") == "cancelled":
        return None
    return mark_as_replay(outcome, spec)
