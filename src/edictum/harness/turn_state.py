"""TurnState: everything that one turn knows, in one place, safe for parallel calls.

The late-write gate is one atomic transition per execution: from running to completed, timed out or
cancelled, never to two of them. The second attempt gets False: a tool that finishes late cannot
apply its result, and a waiter that times out too late takes the result instead. Executions have
keys of their own, because providers may reuse call ids.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from edictum.core.call import check_session_id
from edictum.errors import EdictumConfigError
from edictum.execution.forks import protect
from edictum.harness.replay_control import ReplayControl
from edictum.harness.turn_budget import TurnBudget
from edictum.outcomes import ToolOutcome

MAX_TRACE = 10_000

# "cancelled": its caller was cancelled, before it began or while it ran, or the turn was closed.
TraceStatus = Literal["running", "completed", "timed_out", "cancelled"]


@dataclass(slots=True)
class ToolTraceEntry:
    """One execution of a tool."""

    trace_id: str
    tool_name: str
    call_id: str = ""
    status: TraceStatus = "running"
    finished_late: bool = False
    result: Any = field(default=None, repr=False)


class TurnState:
    """The state of one turn. Without a ``session_id`` its calls belong to the guard's session.

    ``messages`` is the conversation when the turn is over, even if it was cancelled: with the
    result of each call and, for a call that was not made, a message that says so. ``prompt`` is
    what the user said last, for a person who is asked to approve a call.
    """

    def __init__(
        self,
        session_id: str = "",
        budget: TurnBudget | None = None,
        *,
        replay: ReplayControl | None = None,
        max_trace: int = MAX_TRACE,
    ) -> None:
        if session_id:
            check_session_id(session_id)
        self.session_id = session_id
        self.has_default_budget = budget is None
        self.budget = budget if budget is not None else TurnBudget.create()
        self.replay = replay if replay is not None else ReplayControl()
        self.blocked_tool_names: set[str] = set()
        self.tool_trace: dict[str, ToolTraceEntry] = {}
        self.tool_results: list[ToolOutcome] = []
        self.messages: tuple[dict[str, Any], ...] = ()
        self.prompt: str | None = None
        self.final_text = ""
        self.timed_out = False
        self.input_tokens = self.output_tokens = 0
        self.cache_read_tokens = self.cache_creation_tokens = self.reasoning_tokens = 0
        self._lock = threading.Lock()
        protect(self)
        self.accepting = True
        self._has_begun = False
        self._repairs: dict[tuple[str, str], int] = {}
        self._max_trace = max_trace
        self._late: deque[ToolTraceEntry] = deque(maxlen=max_trace)

    # --- Executions: the late-write gate ----------------------------------------------------------

    def set_trace_running(self, trace_id: str, tool_name: str, call_id: str = "") -> ToolTraceEntry:
        trace = self.tool_trace
        entry = trace[trace_id] = ToolTraceEntry(trace_id, tool_name, call_id)
        if len(trace) > self._max_trace:
            self._forget_oldest()
        return entry

    def _forget_oldest(self) -> None:
        with self._lock:
            try:
                oldest = next(iter(self.tool_trace))
            except RuntimeError:  # a call starts in another thread, and will forget one
                return
            self.tool_trace.pop(oldest, None)

    def complete_trace(self, trace_id: str, result: Any = None) -> bool:
        """End an execution. Return whether its result counts; a late one is remembered."""
        with self._lock:
            entry = self.tool_trace.get(trace_id)
            if entry is None:
                return False
            if entry.status == "running" and self.accepting:
                entry.status, entry.result = "completed", result
                return True
            if entry.status == "running":  # the turn was closed meanwhile
                entry.status = "cancelled"
            self._note_if_late(entry)
            return False

    def fail_trace(self, trace_id: str) -> bool:
        """End an execution that raised. Return whether that was too late, which is remembered."""
        with self._lock:
            entry = self.tool_trace.get(trace_id)
            return entry is not None and self._note_if_late(entry)

    def _note_if_late(self, entry: ToolTraceEntry) -> bool:
        given_up = entry.status in ("timed_out", "cancelled")
        if given_up and not entry.finished_late:
            entry.finished_late = True
            self._late.append(entry)
        return given_up

    def mark_trace_timed_out(self, trace_id: str) -> bool:
        """Give up waiting. Return False if the body has completed: then its result counts."""
        with self._lock:
            entry = self.tool_trace.get(trace_id)
            if entry is not None and entry.status in ("completed", "timed_out"):
                return False
            if entry is not None:
                entry.status = "timed_out"
            return True

    def cancel_trace(self, trace_id: str) -> bool:
        """Cancel an execution whose caller is gone. Return False if it had ended."""
        with self._lock:
            entry = self.tool_trace.get(trace_id)
            if entry is None or entry.status != "running":
                return False
            entry.status = "cancelled"
            return True

    def late_completions(self) -> list[ToolTraceEntry]:
        """Return and forget the executions that ended after the turn had given them up."""
        with self._lock:
            late = list(self._late)
            self._late.clear()
        return late

    def begin_turn(self) -> None:
        """Claim the state for one turn. Raise if it was claimed before, or is closed."""
        with self._lock:
            if self._has_begun or not self.accepting:
                raise EdictumConfigError(
                    "state is a TurnState that has served a turn already.",
                    hint="Pass a new TurnState for each turn; state.messages is the conversation.",
                )
            self._has_begun = True

    def close_writes(self) -> None:
        """End the turn: no result counts any more, and no call starts."""
        with self._lock:
            self.accepting = False

    def is_accepting_writes(self) -> bool:
        return self.accepting

    def record_tool_result(self, outcome: ToolOutcome) -> bool:
        """Keep an outcome for the turn's result, unless the turn is over."""
        if self.accepting:
            self.tool_results.append(outcome)
        return self.accepting

    def block(self, names: Iterable[str]) -> None:
        """Refuse these tools for the rest of the turn."""
        self.blocked_tool_names.update(names)

    # --- Counts -----------------------------------------------------------------------------------

    def increment_repair(self, tool_name: str, signature: str = "") -> int:
        """Count a call whose arguments could not be repaired, and return the new count."""
        key = (tool_name, signature)
        with self._lock:
            self._repairs[key] = self._repairs.get(key, 0) + 1
            return self._repairs[key]

    def repair_count(self, tool_name: str, signature: str | None = None) -> int:
        """Return how often this mistake was made; without a signature, any with this tool."""
        with self._lock:
            return sum(
                n
                for (tool, kind), n in self._repairs.items()
                if tool == tool_name and signature in (None, kind)
            )

    def add_tokens(
        self,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cache_read_tokens: int = 0,
        cache_creation_tokens: int = 0,
        reasoning_tokens: int = 0,
    ) -> None:
        with self._lock:
            self.input_tokens += input_tokens
            self.output_tokens += output_tokens
            self.cache_read_tokens += cache_read_tokens
            self.cache_creation_tokens += cache_creation_tokens
            self.reasoning_tokens += reasoning_tokens
