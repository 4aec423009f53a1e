"""What the tests of the harness share: a quick way to a turn, and tools that misbehave."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from edictum import Edictum, InMemoryApprovalBackend, OperationLimits
from edictum.harness import (
    BoundedToolExecutor,
    ModelReply,
    ToolCallRequest,
    ToolSpec,
    TurnBudget,
    TurnState,
    Usage,
    tool,
)
from edictum.outcomes import ToolExecutionResult, ToolOutcome
from support.guards import approval_contract
from support.waiting import wait_in_loop

USER = [{"role": "user", "content": "Do it."}]
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


def expect_result(outcome: ToolOutcome) -> ToolExecutionResult:
    assert isinstance(outcome, ToolExecutionResult), outcome
    return outcome


def make_counting_tool(
    hold: asyncio.Event | None = None, **settings: Any
) -> tuple[ToolSpec, list[int]]:
    """Return the tool ``work``, which ends when ``hold`` is set, and the keys of the calls that
    ran.
    """
    ran: list[int] = []

    async def work(key: int = 0, fail: bool = False) -> dict[str, int]:
        ran.append(key)
        await (asyncio.sleep(0.02) if hold is None else hold.wait())
        if fail:
            raise ValueError("broken")
        return {"ran": len(ran)}

    return tool(name="work", **{"side_effect": "read", "idempotent": True, **settings})(work), ran


ask_first = approval_contract(message="a person must agree", id="ask_first")


class Clerk:
    """Approves, and keeps what he was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.backend = InMemoryApprovalBackend(self._decide)

    def _decide(self, request: Any) -> bool:
        self.asked.append(dict(request.tool_args))
        return True


class Script:
    """A model that says what it was told to say, and keeps what it was asked."""

    def __init__(self, *replies: Any) -> None:
        self._replies = list(replies)
        self.asked: list[tuple[list[dict[str, Any]], tuple[str, ...]]] = []

    async def __call__(self, messages: list[dict[str, Any]], tools: Any) -> Any:
        self.asked.append((messages, tuple(spec.name for spec in tools)))
        reply = self._replies.pop(0) if self._replies else "nothing more to say"
        if isinstance(reply, BaseException):
            raise reply
        return reply(messages) if callable(reply) else reply


def calls(*requests: Any, text: str = "") -> ModelReply:
    made = [
        ToolCallRequest(f"c{number}", name, arguments)
        for number, (name, arguments) in enumerate(requests)
    ]
    return ModelReply(text, tuple(made), Usage(10, 5))


def assert_answered(messages: Any) -> None:
    """Every call that an assistant message asks for is followed by its tool message, in order."""
    messages = list(messages)
    for place, message in enumerate(messages):
        asked = [call["id"] for call in message.get("tool_calls", ())]
        answers = [
            each.get("tool_call_id") for each in messages[place + 1 : place + 1 + len(asked)]
        ]
        assert answers == asked


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


async def wait_for_duplicate(bench: Bench) -> None:
    """Wait until a call waits for the end of the same call."""
    await wait_in_loop(lambda: any(it.waiting for it in bench.state.replay._slots.values()))


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
