"""Who is calling in a turn: options of ``run_turn`` and the executor that are functions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from turns import USER, request

from edictum import Edictum, EdictumConfigError, OperationLimits, Principal
from edictum.harness import (
    ArtifactStore,
    BoundedToolExecutor,
    ModelReply,
    TurnBudget,
    TurnState,
    run_turn,
    tool,
)
from edictum.outcomes import ToolDenied, ToolExecutionResult


@tool(side_effect="read", idempotent=True)
def look(key: str) -> str:
    """Look something up."""
    return key


def model_of(*calls: Any) -> Any:
    """A model that makes these calls, one turn of them, and answers."""

    def model(messages: Any, tools: Any) -> Any:
        return ModelReply("", calls) if messages[-1]["role"] == "user" else "done"

    return model


def last(guard: Edictum) -> tuple[str, Any]:
    event = guard.local_sink.last()
    return event.session_id, (event.principal or {}).get("user_id")


@pytest.mark.parametrize("kind", ["value", "plain", "asynchronous"])
async def test_a_turn_takes_who_is_calling_as_values_and_as_functions(kind: str) -> None:
    guard = Edictum(limits=OperationLimits(max_cost=10))

    def make(value: Any) -> Any:
        async def find(call: Any) -> Any:
            return value

        return {"value": value, "plain": lambda call: value, "asynchronous": find}[kind]

    options: dict[str, Any] = {
        "session_id": make("chat"),
        "parent_session_id": make("team"),
        "principal": make(Principal(user_id="ada")),
        "metadata": make({"channel": "web"}),
        "amounts": make({"cost": 4}),
    }
    calls = [request("look", {"key": str(n)}, f"c{n}") for n in range(3)]
    result = await run_turn(model_of(*calls), USER, [look], guard, TurnBudget.create(30), **options)
    assert sorted(type(outcome).__name__ for outcome in result.outcomes) == [
        "ToolDenied",
        "ToolExecutionResult",
        "ToolExecutionResult",
    ]
    assert last(guard) == ("chat", "ada")
    assert [guard.session(name).executions for name in ("chat", "team")] == [2, 2]


async def test_a_function_gets_the_request_of_each_call() -> None:
    guard = Edictum()
    calls = [request("look", {"key": "a"}, "c1"), request("look", {"key": "b"}, "c2")]
    await run_turn(
        model_of(*calls), USER, [look], guard, session_id=lambda call: f"session of {call.id}"
    )
    found = {(event.call_id, event.session_id) for event in guard.local_sink.events}
    assert found == {("c1", "session of c1"), ("c2", "session of c2")}


def test_the_session_of_the_state_goes_first() -> None:
    guard = Edictum()
    executor = BoundedToolExecutor([look], guard=guard, session_id=lambda call: "function")
    executor.execute(request("look", {"key": "a"}), TurnState("state"))
    assert last(guard)[0] == "state"
    executor.execute(request("look", {"key": "a"}), TurnState())
    assert last(guard)[0] == "function"


@pytest.mark.parametrize("how", ["execute", "aexecute"])
async def test_a_function_that_fails_denies_the_call(how: str) -> None:
    def fail(call: Any) -> Any:
        raise LookupError("no such user")

    guard = Edictum()
    executor = BoundedToolExecutor([look], guard=guard, principal=fail)
    ended = getattr(executor, how)(request("look", {"key": "a"}), TurnState("chat"))
    outcome = await ended if how == "aexecute" else ended
    assert isinstance(outcome, ToolDenied)
    assert (outcome.reason, outcome.policy_error) == ("policy_error", True)
    assert outcome.details == (
        "The principal of this call could not be determined: LookupError: no such user"
    )
    assert (guard.session("chat").attempts, guard.session("chat").executions) == (1, 0)


def test_a_parent_that_is_the_session_itself_denies_the_call() -> None:
    executor = BoundedToolExecutor([look], guard=Edictum(), parent_session_id=lambda call: "chat")
    outcome = executor.execute(request("look", {"key": "a"}), TurnState("chat"))
    assert isinstance(outcome, ToolDenied)
    assert "names a session twice" in str(outcome.details)


@pytest.mark.parametrize("how", ["execute", "aexecute"])
async def test_a_function_that_hangs_ends_with_the_time_of_a_tool(how: str) -> None:
    async def hang(call: Any) -> Any:
        await asyncio.Event().wait()

    executor = BoundedToolExecutor(
        [look], guard=Edictum(), session_id=hang, tool_timeout_cap_s=0.05
    )
    ended = getattr(executor, how)(request("look", {"key": "a"}), TurnState())
    outcome = await ended if how == "aexecute" else ended
    assert isinstance(outcome, ToolDenied)
    assert "TimeoutError: no answer within" in str(outcome.details)


async def test_a_session_is_stated_once_and_as_text_where_artifacts_are_kept() -> None:
    with pytest.raises(EdictumConfigError, match="session_id is given beside a state"):
        await run_turn(model_of(), USER, [look], session_id="a", state=TurnState("b"))
    with pytest.raises(EdictumConfigError, match="session_id is a function"):
        await run_turn(
            model_of(), USER, [look], session_id=lambda call: "a", artifact_store=ArtifactStore()
        )


def test_an_executor_without_options_counts_in_the_guard_s_session() -> None:
    guard = Edictum()
    outcome = BoundedToolExecutor([look], guard=guard).execute(
        request("look", {"key": "a"}), TurnState()
    )
    assert isinstance(outcome, ToolExecutionResult)
    assert last(guard)[0] == guard.session_id
