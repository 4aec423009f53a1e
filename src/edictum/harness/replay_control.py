"""ReplayControl: the same call is not run twice when that is pointless, and never twice at once.

``begin`` is one atomic step with three answers: the call is new, the same call is in flight, or it is done. Only calls of *cacheable*
tools are recognised; to repeat any other is the model's right. A key is made of the tool, the validated arguments, the principal and
the versions of the resources that the tool uses. Every write raises the versions of what it writes, so reads from before it are stale.

What succeeded is done. Failures, timeouts and denials are not: they can be tried again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias

from edictum.core._draft import replace
from edictum.harness.canonical import canonical, digest
from edictum.harness.tool_spec import ANYTHING, ToolSpec
from edictum.outcomes import ToolArtifactReference, ToolDenied, ToolExecutionResult, ToolOutcome

MAX_HISTORY = 10_000
DUPLICATE = "The same call has already succeeded in this turn; its result still holds."


@dataclass(frozen=True, slots=True)
class New:
    """Nobody has made this call: run it, then ``finish`` it."""

    key: str


@dataclass(frozen=True, slots=True)
class InFlight:
    """The same call is running; ``outcome`` will hold its outcome, or None when there is nothing to share."""

    key: str
    outcome: Future[ToolOutcome | None]


@dataclass(frozen=True, slots=True)
class Done:
    """The same call has succeeded. ``outcome`` is None when only the fact is known."""

    key: str
    outcome: ToolOutcome | None


Begun: TypeAlias = New | InFlight | Done


@dataclass(slots=True)
class _Slot:
    running: bool = False
    waiting: Future[ToolOutcome | None] | None = None  # made when the first waiter comes
    done: bool = False
    settled: bool = False  # ``finish`` has said how it ended, and nobody else is asked
    outcome: ToolOutcome | None = None
    expires: float | None = None


def replayed(outcome: ToolOutcome) -> ToolOutcome:
    """An outcome as a second call gets it: marked, also for the model, which reads ``output``."""
    if isinstance(outcome, ToolDenied):
        return outcome
    facts = replace(outcome.turn, replayed=True)
    if isinstance(outcome, ToolExecutionResult):
        return replace(outcome, output={**outcome.output, "replayed": True}, turn=facts)
    return replace(outcome, turn=facts)


class ReplayControl:
    """The calls of one turn. Safe for parallel calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: dict[str, _Slot] = {}
        self._versions: dict[str, int] = {}
        self._writes = 0

    # --- The documented verbs ---------------------------------------------------------------------------------------------

    def should_skip(self, tool_name: str, arguments: Any, spec: ToolSpec | None) -> tuple[bool, str]:
        """Whether this call would be refused as a duplicate, and why. To look is not to begin: use ``begin`` to decide."""
        if spec is None or not spec.is_cacheable:
            return False, ""
        with self._lock:
            slot = self._slots.get(self._key(tool_name, arguments, spec))
            return (True, DUPLICATE) if slot is not None and self._is_done(slot) else (False, "")

    def record_success(self, tool_name: str, arguments: Any, spec: ToolSpec | None, outcome: ToolOutcome | None = None) -> None:
        """This call has succeeded. To say so again changes nothing, nor does it when a governed call ended otherwise."""
        if spec is None:
            return
        with self._lock:
            slot = self._slot(self._key(tool_name, arguments, spec))
            if not slot.done and not slot.settled:
                self._store(slot, spec, outcome)

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
            with self._lock:
                self._slot(self._key(tool_name, arguments, spec))

    # --- The atomic verbs -------------------------------------------------------------------------------------------------

    def begin(self, spec: ToolSpec, arguments: Mapping[str, Any], principal: Any = None) -> Begun:
        """Claim this call. A ``New`` must be finished; others wait for it."""
        with self._lock:
            key = self._key(spec.name, arguments, spec, principal)
            slot = self._slot(key)
            if slot.running:
                return InFlight(key, self._waiting(slot))
            if self._is_done(slot):
                return Done(key, slot.outcome)
            slot.running = True
            return New(key)

    def _waiting(self, slot: _Slot) -> Future[ToolOutcome | None]:
        if slot.waiting is None:
            slot.waiting = Future()
            slot.waiting.set_running_or_notify_cancel()  # a waiter that is cancelled must not cancel the others
        return slot.waiting

    def finish(self, begun: New, spec: ToolSpec, arguments: Mapping[str, Any], outcome: ToolOutcome | None, principal: Any = None,
               *, shared: bool = True) -> None:  # fmt: skip
        """The call that ``begin`` called new has ended. Those that wait get the outcome, or None when it is not theirs to share."""
        with self._lock:
            slot = self._slots.get(begun.key) or _Slot()
            waiting, slot.waiting, slot.running, slot.settled = slot.waiting, None, False, True
            if isinstance(outcome, (ToolExecutionResult, ToolArtifactReference)):
                # A write has raised the versions of its own resources: what is done, is done as of now.
                self._store(slot if spec.is_read else self._slot(self._key(spec.name, arguments, spec, principal)), spec, outcome)
        if waiting is not None:
            waiting.set_result(replayed(outcome) if shared and outcome is not None else None)

    def wrote(self, spec: ToolSpec, arguments: Mapping[str, Any]) -> None:
        """A write has started or ended: what was read before from its resources is stale."""
        with self._lock:
            self._writes += 1
            for key in spec.keys_for(arguments):
                if key.exclusive:
                    self._versions[key.name] = self._versions.get(key.name, 0) + 1

    # --- Inside -----------------------------------------------------------------------------------------------------------

    def _key(self, tool_name: str, arguments: Any, spec: ToolSpec, principal: Any = None) -> str:
        who = "" if principal is None else canonical(principal)
        text = f"{tool_name}\n{self._seen_versions(spec, arguments)}\n{len(who)}:{who}{canonical(spec.identity_of(arguments))}"
        return text if len(text) <= 512 else digest(text)

    def _seen_versions(self, spec: ToolSpec, arguments: Any) -> str:
        """The versions this call depends on: of its own resources and of writes to unknown ones, or of every write there was."""
        if spec.is_pure or not self._writes:
            return ""
        names = [key.name for key in spec.keys_for(arguments)]
        if ANYTHING in names:
            return f"#{self._writes}"
        return ",".join(f"{len(name)}:{name}={version}" for name in [*names, ANYTHING] if (version := self._versions.get(name)))

    def _slot(self, key: str) -> _Slot:
        slot = self._slots.get(key)
        if slot is None:
            if len(self._slots) >= MAX_HISTORY:
                self._forget_one()
            slot = self._slots[key] = _Slot()
        return slot

    def _forget_one(self) -> None:
        oldest = next((key for key, slot in self._slots.items() if not slot.running), None)
        if oldest is not None:
            del self._slots[oldest]

    def _store(self, slot: _Slot, spec: ToolSpec, outcome: ToolOutcome | None) -> None:
        slot.done, slot.outcome = True, outcome
        slot.expires = None if spec.cache_ttl_s is None else time.monotonic() + spec.cache_ttl_s

    def _is_done(self, slot: _Slot) -> bool:
        return slot.done and (slot.expires is None or time.monotonic() < slot.expires)
