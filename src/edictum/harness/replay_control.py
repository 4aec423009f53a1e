"""ReplayControl: the same call is not run twice when that is pointless, and never twice at once.

``begin`` is one atomic step with three answers: the call is new, the same call is in flight, or it
is done. Only calls of *cacheable* tools are recognised; to repeat any other is the model's right. A
key is made of the tool, the validated arguments, the principal and, for reads, the versions of the
resources that the tool uses. Every write raises the versions of what it writes, so reads from
before it are stale. A write would so give itself another key; what it has done holds for as long as
the versions are as it left them.

What succeeded is done. Failures, timeouts and denials are not: they can be tried again.
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
from edictum.core.jsonable import dumps
from edictum.harness.canonical import canonical, identity
from edictum.harness.tool_spec import ANYTHING, ToolSpec
from edictum.outcomes import ToolArtifactReference, ToolDenied, ToolExecutionResult, ToolOutcome

MAX_HISTORY = 10_000
# "seen": somebody says that it was made, and it did not succeed. "ended": ``finish`` says so, and
# nobody else is asked.
Status: TypeAlias = Literal["seen", "running", "done", "ended"]
made = object.__new__  # with its slots filled in where it is made, a New takes half the time
DUPLICATE = "The same call has already succeeded in this turn; its result still holds."


class New:
    """Nobody has made this call: run it, then ``finish`` it. What becomes of it is kept here."""

    __slots__ = ("approvals", "expires", "key", "outcome", "status", "versions", "waiting")

    key: Hashable
    status: Status
    outcome: ToolOutcome | None  # these two once it is done
    expires: float | None
    versions: str | None  # and this, if it is a write: of its resources, as it left them
    approvals: Mapping[str, Any] | None  # what people have approved of it, if they were asked

    waiting: Future[ToolOutcome | None] | None  # made when the first waiter comes


@dataclass(frozen=True, slots=True)
class InFlight:
    """The same call is running; ``outcome`` will hold its outcome, or None when there is nothing to
    share.
    """

    key: Hashable
    outcome: Future[ToolOutcome | None]
    first: New | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Done:
    """The same call has succeeded. ``outcome`` is None when only the fact is known."""

    key: Hashable
    outcome: ToolOutcome | None
    first: New | None = field(default=None, compare=False, repr=False)


Begun: TypeAlias = New | InFlight | Done


def replayed(outcome: ToolOutcome, spec: ToolSpec) -> ToolOutcome:
    """An outcome as a second call gets it: a copy that is marked, also for the model, which reads
    ``output``.
    """
    if isinstance(outcome, ToolDenied):
        return outcome
    outcome = replace(detached(outcome), turn=replace(outcome.turn, replayed=True))
    if (
        not isinstance(outcome, ToolExecutionResult) or "replayed" in outcome.output
    ):  # that word is the tool's own
        return outcome
    output = {**outcome.output, "replayed": True}
    return (
        replace(outcome, output=output) if len(dumps(output)) <= spec.max_output_chars else outcome
    )


def detached(outcome: Any) -> Any:
    """A result that shares nothing with the first: whoever got that may change it."""
    if type(outcome) is not ToolExecutionResult:
        return outcome
    try:
        output, value = deepcopy((outcome.output, outcome.value))  # together, since they may be one
    except Exception:  # an object that cannot be copied
        return outcome
    return replace(outcome, output=output, value=value)


class ReplayControl:
    """The calls of one turn. Safe for parallel calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[Hashable, New] = {}
        self._versions: dict[str, int] = {}
        self._writes = 0
        self._principal: tuple[Any, str] = (None, "")  # the last one, and its canonical text

    # --- The documented verbs ---------------------------------------------------------------------

    def should_skip(
        self, tool_name: str, arguments: Any, spec: ToolSpec | None
    ) -> tuple[bool, str]:
        """Whether this call would be refused as a duplicate, and why. To look is not to begin: use
        ``begin`` to decide.
        """
        if spec is None or not spec.is_cacheable:
            return False, ""
        key, resources = self._key(tool_name, arguments, spec), _written(spec, arguments)
        with self._lock:
            slot = self._slots.get(key)
            return (
                (True, DUPLICATE)
                if slot is not None and self._holds(slot, resources)
                else (False, "")
            )

    def record_success(
        self,
        tool_name: str,
        arguments: Any,
        spec: ToolSpec | None,
        outcome: ToolOutcome | None = None,
    ) -> None:
        """This call has succeeded. To say so again changes nothing, nor does it when a governed
        call ended otherwise.
        """
        if spec is None:
            return
        key, resources = self._key(tool_name, arguments, spec), _written(spec, arguments)
        with self._lock:
            slot = self._slot(key)
            if slot.status in ("seen", "running"):
                slot.versions = self._versions_of(resources)
                _store(slot, spec, outcome)

    def record_failure(self, tool_name: str, arguments: Any, spec: ToolSpec | None) -> None:
        """This call has failed; it may be tried again."""
        self._seen(tool_name, arguments, spec)

    def record_timeout(self, tool_name: str, arguments: Any, spec: ToolSpec | None) -> None:
        """This call ran out of time; it may be tried again."""
        self._seen(tool_name, arguments, spec)

    def record_denied(self, tool_name: str, arguments: Any, spec: ToolSpec | None) -> None:
        """This call was denied; it may be tried again."""
        self._seen(tool_name, arguments, spec)

    def history_size(self) -> int:
        """How many different calls have been seen."""
        return len(self._slots)

    def _seen(self, tool_name: str, arguments: Any, spec: ToolSpec | None) -> None:
        if spec is not None:
            key = self._key(tool_name, arguments, spec)
            with self._lock:
                self._slot(key)

    # --- The atomic verbs -------------------------------------------------------------------------

    def begin(self, spec: ToolSpec, arguments: Mapping[str, Any], principal: Any = None) -> Begun:
        """Claim this call. A ``New`` must be finished; others wait for it."""
        if spec.is_simple and principal is None and (not self._writes or spec.is_pure):
            key: Hashable = (spec.name, identity(arguments))
        else:
            key = self._key(spec.name, arguments, spec, principal)
        new, slots = made(New), self._slots
        new.key, new.status, new.waiting = key, "running", None
        if slots.setdefault(key, new) is new:  # in one step, so that one of many gets it
            if len(slots) > MAX_HISTORY:
                self._forget_one()
            return new
        resources = _written(spec, arguments)
        with self._lock:
            slot = slots.setdefault(key, new)  # it may have been forgotten meanwhile
            if slot is new:
                return new
            if slot.status == "running":
                waiting = self._waiting(slot)
                if (
                    slot.status == "running"
                ):  # still, so that whoever finishes it will find this one waiting
                    return InFlight(key, waiting, slot)
            if self._holds(slot, resources):
                return Done(key, slot.outcome, slot)
            slot.status, slot.approvals = "running", None
            return slot

    def _waiting(self, slot: New) -> Future[ToolOutcome | None]:
        if slot.waiting is None:
            slot.waiting = Future()
            # a waiter that is cancelled must not cancel the others
            slot.waiting.set_running_or_notify_cancel()
        return slot.waiting

    def finish(
        self, begun: New, spec: ToolSpec, arguments: Mapping[str, Any], outcome: ToolOutcome | None
    ) -> None:
        """The call that ``begin`` called new has ended. Those that wait get the outcome, or None
        when it is not theirs to share.
        """
        if (
            type(outcome) is ToolExecutionResult and spec.is_simple
        ):  # nearly always; no lock: ``begin`` looks again once it waits
            begun.outcome = outcome
            begun.expires = None
            begun.status = "done"
            if begun.waiting is None:
                return
        done = type(outcome) is ToolExecutionResult or type(outcome) is ToolArtifactReference
        resources = _written(spec, arguments)
        with self._lock:
            waiting, begun.waiting = begun.waiting, None
            if done:
                begun.versions = self._versions_of(
                    resources
                )  # with those that it has raised itself: it is done as of now
                _store(begun, spec, outcome)
            else:
                begun.status = "ended"
        if waiting is not None:
            waiting.set_result(_shared(outcome, spec))

    def forget(self, done: Done) -> None:
        """What this call gave is gone, so it may be made again."""
        with self._lock:
            slot = self._slots.get(done.key)
            if slot is not None and slot.status == "done" and slot.outcome is done.outcome:
                slot.status = "ended"

    def wrote(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> None:
        """A write has started or ended: what was read before from its resources is stale."""
        keys = spec.keys_for(
            arguments
        )  # before the lock is taken: a function of the user may tell them
        with self._lock:
            self._writes += 1
            for key in keys:
                if key.exclusive:
                    self._versions[key.name] = self._versions.get(key.name, 0) + 1

    # --- Inside -----------------------------------------------------------------------------------

    def _key(
        self, tool_name: str, arguments: Any, spec: ToolSpec, principal: Any = None
    ) -> Hashable:
        in_key = spec.is_read and not spec.is_pure and self._writes
        versions = self._versions_of(_names(spec, arguments)) if in_key else ""
        who = "" if principal is None else self._who(principal)
        same = identity(arguments if spec.identity is None else spec.identity_of(arguments))
        return (tool_name, versions, who, same) if versions or who else (tool_name, same)

    def _who(self, principal: Any) -> str:
        known, text = self._principal
        if known is not principal:
            text = canonical(principal)
            self._principal = (principal, text)
        return text

    def _versions_of(self, names: list[str] | None) -> str | None:
        """The versions that a call depends on: of its own resources and of writes to unknown ones,
        or of every write there was.
        """
        if names is None:
            return None
        if ANYTHING in names:
            return f"#{self._writes}"
        return ",".join(
            f"{len(name)}:{name}={version}"
            for name in [*names, ANYTHING]
            if (version := self._versions.get(name))
        )

    def _holds(self, slot: New, resources: list[str] | None) -> bool:
        """Whether it is done, and not too long ago; and, if it is a write, nothing was written over
        it.

        The versions are looked up under the lock: those of a moment before would be the ones that
        the call itself has raised since.
        """
        if slot.status != "done" or (slot.expires is not None and time.monotonic() >= slot.expires):
            return False
        return resources is None or getattr(slot, "versions", None) == self._versions_of(resources)

    def _slot(self, key: Hashable) -> New:
        new = made(New)
        new.key, new.status, new.waiting = key, "seen", None
        slot = self._slots.setdefault(key, new)
        if len(self._slots) > MAX_HISTORY:
            self._forget_one()
        return slot

    def _forget_one(self) -> None:
        try:
            oldest = next(
                (key for key, slot in self._slots.items() if slot.status != "running"), None
            )
        except (
            RuntimeError
        ):  # somebody begins a call at this very moment; that call will forget one
            return
        self._slots.pop(oldest, None)


def _names(spec: ToolSpec, arguments: Any) -> list[str]:
    return [key.name for key in spec.keys_for(arguments)]


def _written(spec: ToolSpec, arguments: Any) -> list[str] | None:
    """What it depends on whether a write still holds; None for a read, whose key has the versions.
    A function of the user may tell it, so this is asked before the lock is taken.
    """
    return None if spec.is_read else _names(spec, arguments)


def _store(slot: New, spec: ToolSpec, outcome: ToolOutcome | None) -> None:
    slot.outcome = outcome
    slot.expires = None if spec.cache_ttl_s is None else time.monotonic() + spec.cache_ttl_s
    slot.status = "done"  # last: from here on others may read it


def _shared(outcome: ToolOutcome | None, spec: ToolSpec) -> ToolOutcome | None:
    """What those get who wait for the same call. Who was denied, or cancelled, says nothing about
    them: they try for themselves.
    """
    alone = (
        outcome is None
        or isinstance(outcome, ToolDenied)
        or getattr(outcome, "success_source", "") == "cancelled"
    )
    return None if alone else replayed(outcome, spec)  # type: ignore[arg-type]
