"""TurnState: everything that one turn knows, in one place, safe for parallel calls.

The late-write gate is one atomic transition per execution: running -> completed, timed out or
cancelled, never two of them. Whoever comes second gets False: a tool that finishes late cannot
apply its result, and a waiter that times out too late takes the result instead. Executions have
keys of their own; the provider's call ids may be reused.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from edictum.core.call import check_session_id
from edictum.harness.replay_control import ReplayControl
from edictum.harness.turn_budget import TurnBudget
from edictum.outcomes import ToolOutcome

MAX_TRACE = 10_000
new = object.__new__

# "cancelled": nobody waits for it any more. Its caller was cancelled, before it began or in the
# middle, or the turn was closed.
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
    """The state of one turn. Without a ``session_id`` its calls belong to the guard's own
    session.
    """

    def __init__(
        self,
        session_id: str = "",
        budget: TurnBudget | None = None,
        *,
        replay: ReplayControl | None = None,
    ) -> None:
        if session_id:
            check_session_id(session_id)
        self.session_id = session_id
        self.budget = budget if budget is not None else TurnBudget.create()
        self.replay = replay if replay is not None else ReplayControl()
        self.blocked_tool_names: set[str] = set()
        self.tool_trace: dict[str, ToolTraceEntry] = {}
        self.tool_results: list[ToolOutcome] = []
        self.final_text = ""
        self.timed_out = False
        self.input_tokens = self.output_tokens = self.cache_read_tokens = (
            self.cache_creation_tokens
        ) = 0
        self._lock = threading.Lock()
        self.accepting = True
        self._repairs: dict[tuple[str, str], int] = {}
        self._late: deque[ToolTraceEntry] = deque(maxlen=MAX_TRACE)

    # --- Executions: the late-write gate ----------------------------------------------------------

    def set_trace_running(self, trace_id: str, tool_name: str, call_id: str = "") -> ToolTraceEntry:
        trace = self.tool_trace
        entry = trace[trace_id] = new(
            ToolTraceEntry
        )  # with the slots filled in here it takes half the time
        entry.trace_id, entry.tool_name, entry.call_id = trace_id, tool_name, call_id
        entry.status, entry.finished_late, entry.result = "running", False, None
        if len(trace) > MAX_TRACE:
            self._forget_one()
        return entry

    def _forget_one(self) -> None:
        with self._lock:
            try:
                oldest = next(iter(self.tool_trace))
            except (
                RuntimeError
            ):  # somebody starts a call at this very moment; that call will forget one
                return
            self.tool_trace.pop(oldest, None)

    def complete_trace(self, trace_id: str, result: Any = None) -> bool:
        """The body has ended. True if its result counts; False if it came too late, which is
        remembered.
        """
        with self._lock:
            entry = self.tool_trace.get(trace_id)
            if entry is None:
                return False
            if entry.status == "running" and self.accepting:
                entry.status, entry.result = "completed", result
                return True
            if entry.status == "running":  # the turn was closed meanwhile
                entry.status = "cancelled"
            self._ended_late(entry)
            return False

    def fail_trace(self, trace_id: str) -> bool:
        """The body has ended with an exception. True if it came too late for anybody to hear of it,
        which is remembered.
        """
        with self._lock:
            entry = self.tool_trace.get(trace_id)
            return entry is not None and self._ended_late(entry)

    def _ended_late(self, entry: ToolTraceEntry) -> bool:
        given_up = entry.status in ("timed_out", "cancelled")
        if given_up and not entry.finished_late:
            entry.finished_late = True
            self._late.append(entry)
        return given_up

    def mark_trace_timed_out(self, trace_id: str) -> bool:
        """The waiter gives up. False if the body had completed: its result counts, and the waiter
        takes it.
        """
        with self._lock:
            entry = self.tool_trace.get(trace_id)
            if entry is not None and entry.status in ("completed", "timed_out"):
                return False
            if entry is not None:
                entry.status = "timed_out"
            return True

    def cancel_trace(self, trace_id: str) -> bool:
        """Nobody waits any more, and the body has not ended, or will not begin. False if it had
        ended.
        """
        with self._lock:
            entry = self.tool_trace.get(trace_id)
            if entry is None or entry.status != "running":
                return False
            entry.status = "cancelled"
            return True

    def late_completions(self) -> list[ToolTraceEntry]:
        """Executions that ended after they had been given up, since the last time this was
        asked.
        """
        with self._lock:
            late, self._late = list(self._late), deque(maxlen=MAX_TRACE)
        return late

    def close_writes(self) -> None:
        """The turn is over: no result counts any more, and no call starts."""
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
        """These tools will not heal in this turn."""
        self.blocked_tool_names.update(names)

    # --- Counts -----------------------------------------------------------------------------------

    def increment_repair(self, tool_name: str, signature: str = "") -> int:
        """Count one call whose arguments could not be repaired, by tool and kind of mistake; a call
        id would never add up.
        """
        with self._lock:
            count = self._repairs[tool_name, signature] = (
                self._repairs.get((tool_name, signature), 0) + 1
            )
            return count

    def repair_count(self, tool_name: str, signature: str | None = None) -> int:
        """How often this mistake was made; without a signature all mistakes with this tool."""
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
    ) -> None:
        with self._lock:
            self.input_tokens += input_tokens
            self.output_tokens += output_tokens
            self.cache_read_tokens += cache_read_tokens
            self.cache_creation_tokens += cache_creation_tokens
