"""SessionView: a session's counters as a session contract sees them, at one moment."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from edictum.core.call import ToolCall
from edictum.core.limits import Counters, SessionSnapshot


class Count(int):
    """A number that can also be called and awaited, as the older library's users read it."""

    def __call__(self) -> Count:
        return self

    def __await__(self) -> Generator[Any, None, int]:
        yield from ()
        return int(self)


class SessionReading:
    """The counters of a session under their names. Subclasses say where the numbers come from."""

    def _totals(self) -> Counters:
        raise NotImplementedError

    def _tools(self) -> Mapping[str, Counters]:
        raise NotImplementedError

    @property
    def attempts(self) -> int:
        return self._totals().attempts

    @property
    def executions(self) -> int:
        """Calls that ran, including, for a session contract, those that are running now."""
        return self._totals().executions

    @property
    def successes(self) -> int:
        return self._totals().successes

    @property
    def failures(self) -> int:
        return self._totals().failures

    @property
    def consecutive_failures(self) -> Count:
        return Count(self._totals().consecutive_failures)

    @property
    def in_flight(self) -> int:
        return self._totals().in_flight

    @property
    def per_tool(self) -> dict[str, int]:
        """Executions by tool."""
        return {tool: counters.executions for tool, counters in self._tools().items()}

    @property
    def successes_per_tool(self) -> dict[str, int]:
        return {tool: counters.successes for tool, counters in self._tools().items()}

    async def attempt_count(self) -> int:
        return self.attempts

    async def execution_count(self) -> int:
        return self.executions

    async def tool_execution_count(self, tool: str) -> int:
        return self.per_tool.get(tool, 0)


class SessionView(SessionReading):
    """What a session contract receives. Other calls in flight count as executed.

    ``own_tool`` is the tool of the judged ``call`` when it holds a slot: it does not count against
    itself.
    """

    __slots__ = ("_per_tool", "_sum", "call", "session_id")

    def __init__(
        self, snapshot: SessionSnapshot, own_tool: str | None, call: ToolCall | None = None
    ) -> None:
        self.session_id = snapshot.session_id
        self.call = call
        self._sum = _without_own(snapshot.totals, own_tool is not None)
        self._per_tool = {
            tool: _without_own(counters, tool == own_tool)
            for tool, counters in snapshot.per_tool.items()
        }

    def _totals(self) -> Counters:
        return self._sum

    def _tools(self) -> Mapping[str, Counters]:
        return self._per_tool


def _without_own(counters: Counters, holds: bool) -> Counters:
    others = counters.in_flight - holds
    if not others and not holds:
        return counters
    return Counters(
        counters.attempts,
        counters.executions + others,
        counters.successes,
        counters.failures,
        counters.consecutive_failures,
        others,
    )
