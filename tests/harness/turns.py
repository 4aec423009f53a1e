"""What the tests of the harness share: a quick way to a turn, and tools that misbehave."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from edictum import Edictum, OperationLimits
from edictum.harness import BoundedToolExecutor, ToolCallRequest, TurnBudget, TurnState, tool
from edictum.outcomes import ToolOutcome

UNLIMITED = OperationLimits(max_attempts=None, max_tool_calls=None)


class FakeTimer:
    """A monotonic clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def request(name: str, arguments: Any = None, call_id: str = "call_0") -> ToolCallRequest:
    return ToolCallRequest(call_id, name, arguments if arguments is not None else {})


def new_state(timeout_s: float = 30, max_steps: int = 100, **budget: Any) -> TurnState:
    return TurnState("session", TurnBudget.create(timeout_s, max_steps, **budget))


def new_guard(**settings: Any) -> Edictum:
    return Edictum(limits=UNLIMITED, **settings)


class Bench:
    """An executor, its guard and one turn."""

    def __init__(
        self,
        *tools: Any,
        state: TurnState | None = None,
        guard: Edictum | None = None,
        **options: Any,
    ) -> None:
        self.guard = guard if guard is not None else new_guard()
        self.state = state if state is not None else new_state()
        self.executor = BoundedToolExecutor(tools, guard=self.guard, **options)

    async def call(
        self, name: str, arguments: Any = None, call_id: str = "call_0", **options: Any
    ) -> ToolOutcome:
        return await self.executor.aexecute(
            request(name, arguments, call_id), self.state, **options
        )

    @property
    def events(self) -> list[tuple[str, str | None, str | None]]:
        return [
            (event.action.value, event.decision_source, event.decision_name)
            for event in self.guard.local_sink.events
        ]


@tool(side_effect="read", idempotent=True, resource_keys=["notes"])
async def search(query: str, limit: int = 5) -> dict[str, Any]:
    """Look for notes."""
    return {"query": query, "limit": limit}


@tool(side_effect="read")
async def hang(seconds: float = 30.0) -> str:
    """Wait, and let itself be cancelled."""
    await asyncio.sleep(seconds)
    return "done"


@tool(side_effect="read")
def block(seconds: float = 30.0) -> str:
    """Wait in a way that nobody can stop."""
    time.sleep(seconds)
    return "done"
