"""run_turn answers, whatever a model, its translator or a listener does."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from turns import USER, Script, assert_answered, calls, new_guard, search

from edictum.harness import (
    ModelReply,
    ToolCallRequest,
    ToolScheduler,
    ToolSpec,
    ToolWave,
    TurnBudget,
    anthropic_model,
    openai_model,
    run_turn,
    run_turn_sync,
    tool,
)
from edictum.outcomes import ToolDenied, ToolExecutionResult, ToolFailure, ToolTimeout

ONCE = ToolCallRequest("c", "search", {"query": "a"})


def budget() -> TurnBudget:
    return TurnBudget.create(20)


@tool(side_effect="write")
async def count(seen: str) -> dict[str, Any]:
    return {"seen": seen}


async def test_the_same_request_twice_is_two_calls() -> None:
    again = ToolCallRequest("c", "count", {"seen": "a"})
    result = await run_turn(
        Script(ModelReply("", (again, again)), "done"), USER, [count], new_guard(), budget()
    )
    assert result.stopped_by == "answered"
    assert [outcome.tool_name for outcome in result.outcomes] == ["count", "count"]
    assert_answered(result.messages)


@pytest.mark.parametrize("name", [None, 7, ["search"], {}, ""])
async def test_a_name_that_is_none_is_answered(name: Any) -> None:
    result = await run_turn(
        Script(ModelReply("", (ToolCallRequest("c", name, {}),)), "done"),
        USER,
        [search],
        new_guard(),
        budget(),
    )
    assert result.stopped_by == "answered"
    assert isinstance(result.outcomes[0], ToolDenied)
    assert result.outcomes[0].reason == "unknown_tool"
    assert_answered(result.messages)


@pytest.mark.parametrize(
    ("given", "shown"), [(3, "3"), (None, "call_0"), ("", "call_0"), ([], "call_0"), ("x", "x")]
)
async def test_an_id_is_made_text(given: Any, shown: str) -> None:
    result = await run_turn(
        Script(ModelReply("", (ToolCallRequest(given, "count", {"seen": "a"}),)), "done"),
        USER,
        [count],
        new_guard(),
    )
    assert result.outcomes[0].call_id == shown
    assert_answered(result.messages)


@pytest.mark.parametrize(
    "reply",
    [
        ModelReply("", ({"id": "c", "name": "search", "arguments": {"query": "a"}},)),  # type: ignore[arg-type]
        ModelReply("", [ONCE], None),  # type: ignore[arg-type]
        ModelReply(None, (ONCE,), SimpleNamespace(input_tokens=None)),  # type: ignore[arg-type]
    ],
)
async def test_what_a_reply_holds_is_put_right(reply: ModelReply) -> None:
    result = await run_turn(Script(reply, "done"), USER, [search], new_guard(), budget())
    assert (result.stopped_by, result.text, result.state.input_tokens) == ("answered", "done", 0)
    assert isinstance(result.outcomes[0], ToolExecutionResult)


async def test_usage_may_be_anything_with_its_names() -> None:
    usage: Any = {"input_tokens": 3, "output_tokens": 4}
    result = await run_turn(Script(ModelReply("done", (), usage)), USER, [], new_guard())
    assert (result.state.input_tokens, result.state.output_tokens) == (3, 4)


@pytest.mark.parametrize("reply", [ModelReply(5), ModelReply("", (5,)), ModelReply("", 5)])  # type: ignore[arg-type]
async def test_what_cannot_be_put_right_is_the_models_failure(reply: ModelReply) -> None:
    result = await run_turn(Script(reply), USER, [], new_guard())
    assert result.stopped_by == "model_error"


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        GeneratorExit(),
        asyncio.CancelledError(),
        StopIteration(),
        StopAsyncIteration(),
    ],
)
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_what_a_model_raises_ends_the_turn_and_nothing_else(
    error: BaseException, kind: str
) -> None:
    def model(_messages: Any, _tools: Any) -> Any:
        raise error

    async def asynchronous(messages: Any, tools: Any) -> Any:
        return model(messages, tools)

    result = await run_turn(
        asynchronous if kind == "async" else model, USER, [], new_guard(), TurnBudget.create(20)
    )
    assert result.stopped_by == "model_error"
    assert isinstance(result.error, Exception)
    assert type(error).__name__ in str(result.error) or result.error is error


async def test_a_cancelled_turn_is_cancelled() -> None:
    asked = asyncio.Event()

    async def model(_messages: Any, _tools: Any) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    turn = asyncio.create_task(run_turn(model, USER, [], new_guard()))
    await asked.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn


def test_ctrl_c_goes_on() -> None:
    with pytest.raises(KeyboardInterrupt):
        run_turn_sync(Script(KeyboardInterrupt()), USER, [], new_guard())


def test_a_tool_that_raises_keyboard_interrupt_ends_its_turn_alone() -> None:
    """The event loop that serves all synchronous callers goes on."""

    @tool(side_effect="write")
    def ask(text: str) -> str:
        """Ask."""
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_turn_sync(Script(calls(("ask", {"text": "a"}))), USER, [ask], new_guard())
    assert run_turn_sync(Script("hello"), USER, [], new_guard()).text == "hello"


async def test_a_model_in_a_thread_sees_the_context() -> None:
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace")
    trace.set("here")
    result = await run_turn(lambda _messages, _tools: trace.get("lost"), USER, [], new_guard())
    assert result.text == "here"


async def test_a_listener_that_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    told = asyncio.Event()
    written: list[str] = []

    @tool(side_effect="read", resource_keys=["a"])
    async def look() -> dict[str, Any]:
        return {}

    @tool(side_effect="write", resource_keys=["b"])
    async def write() -> dict[str, Any]:
        await told.wait()  # the listener has raised for the other call of this wave
        written.append("yes")
        return {}

    def listen(_call: Any, _outcome: Any) -> None:
        told.set()
        raise ValueError("deaf")

    model = Script(calls(("look", {}), ("write", {})), "done")
    with caplog.at_level(logging.ERROR, "edictum"):
        result = await run_turn(
            model, USER, [look, write], new_guard(), budget(), on_outcome=listen
        )
    assert (result.stopped_by, written) == ("answered", ["yes"])
    assert [type(outcome) for outcome in result.outcomes] == [ToolExecutionResult] * 2
    assert sum("on_outcome failed" in record.message for record in caplog.records) == 2


class Careless(ToolScheduler):
    """Forgets the first call, names the second one twice, and makes one up."""

    def schedule(self, calls: Any, tools: Any, parallel_enabled: bool = True) -> list[ToolWave]:
        return [ToolWave((calls[1], calls[1], ONCE)), ToolWave((calls[1],))]


async def test_each_call_is_made_once_whatever_a_scheduler_says() -> None:
    seen: list[str] = []

    @tool(side_effect="write")
    async def note_down(what: str) -> str:
        seen.append(what)
        return what

    model = Script(calls(("note_down", {"what": "a"}), ("note_down", {"what": "b"})), "done")
    result = await run_turn(model, USER, [note_down], new_guard(), budget(), scheduler=Careless())
    assert (result.text, seen) == ("done", ["b", "a"])
    assert_answered(result.messages)


async def test_an_asynchronous_listener_has_heard_before_the_model_goes_on() -> None:
    heard: list[str] = []

    async def listen(call: Any, _outcome: Any) -> None:
        await asyncio.sleep(0)
        heard.append(call.id)

    model = Script(
        calls(("search", {"query": "a"}), ("search", {"query": "b"})),
        lambda _messages: ", ".join(sorted(heard)),
    )
    result = await run_turn(model, USER, [search], new_guard(), budget(), on_outcome=listen)
    assert result.text == "c0, c1"


async def test_a_listener_that_hangs_leaves_time_for_the_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[str] = []

    async def listen(call: Any, _outcome: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(call.id)

    model = Script(calls(("count", {"seen": "a"}), ("count", {"seen": "b"})), "done")
    result = await run_turn(
        model, USER, [count], new_guard(), TurnBudget.create(5.3, reserve_s=5), on_outcome=listen
    )
    assert (result.text, result.stopped_by, ended) == ("done", "deadline", ["c0", "c1"])
    assert sum("on_outcome failed" in record.message for record in caplog.records) == 2


@pytest.mark.parametrize("error", [ValueError("deaf"), SystemExit(3), asyncio.CancelledError()])
async def test_what_an_asynchronous_listener_raises_changes_nothing(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def listen(_call: Any, _outcome: Any) -> None:
        raise error

    result = await run_turn(
        Script(calls(("search", {"query": "a"})), "done"),
        USER,
        [search],
        new_guard(),
        budget(),
        on_outcome=listen,
    )
    assert (result.text, result.stopped_by) == ("done", "answered")
    assert sum("on_outcome failed" in record.message for record in caplog.records) == 1


async def test_the_callers_messages_stay_as_they_are() -> None:
    mine = [*USER, {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]
    result = await run_turn(Script(ValueError("gone")), mine, [], new_guard())
    assert mine[-1]["tool_calls"] == [{"id": "1"}]
    assert "tool_calls" not in result.messages[-1]


async def test_ready_made_models_give_calls_without_ids_ids_of_their_own() -> None:
    call = {"function": {"name": "search", "arguments": '{"query": "a"}'}}
    openai = _client(
        [
            {"choices": [{"message": {"tool_calls": [call, call]}}]},
            {"choices": [{"message": {"content": "done"}}]},
        ]
    )
    result = await run_turn(openai_model(openai, model="m"), USER, [search], new_guard(), budget())
    assert [each["id"] for each in result.messages[1]["tool_calls"]] == ["call_0", "call_1"]
    assert_answered(result.messages)


async def test_arguments_nested_without_end_do_not_stop_the_translation() -> None:
    deep = {"type": "tool_use", "id": "c", "name": "search", "input": "[" * 100_000}
    anthropic = _client([{"content": [deep]}, {"content": [{"type": "text", "text": "done"}]}])
    result = await run_turn(
        anthropic_model(anthropic, model="m"), USER, [search], new_guard(), budget()
    )
    assert (result.stopped_by, result.text) == ("answered", "done")


def _client(answers: list[dict[str, Any]]) -> Any:
    async def create(**_: Any) -> dict[str, Any]:
        return answers.pop(0)

    made = SimpleNamespace(create=create)
    return SimpleNamespace(chat=SimpleNamespace(completions=made), messages=made)


async def test_the_model_is_told_which_tool_it_has_lost_and_what_to_do() -> None:
    @tool(side_effect="write", timeout_s=0.05, verify="look")
    async def put(value: int) -> dict[str, Any]:
        await asyncio.sleep(0 if value else 30)
        return {}

    @tool(side_effect="read")
    async def look() -> dict[str, Any]:
        return {"there": False}

    model = Script(calls(("put", {"value": 0})), calls(("put", {"value": 1})), "done")
    result = await run_turn(
        model, USER, [put, look], new_guard(), TurnBudget.create(60, max_steps=20)
    )
    assert isinstance(result.outcomes[0], ToolTimeout)
    assert list(result.notes) == [
        "put is not called again in this turn, because it may have taken effect. Look with look,"
        " and answer with what you find."
    ]
    assert isinstance(result.outcomes[1], ToolDenied)
    assert result.outcomes[1].reason == "blocked"


async def test_a_tool_that_will_not_heal_is_named_once() -> None:
    def fail(key: str) -> Any:
        raise KeyError(key)

    lost = ToolSpec(name="get", function=fail, side_effect="read", non_retryable=(KeyError,))
    model = Script(calls(("get", {"key": "a"}), ("get", {"key": "b"})), "done")
    result = await run_turn(model, USER, [lost], new_guard(), TurnBudget.create(60, max_steps=20))
    assert isinstance(result.outcomes[0], ToolFailure)
    assert list(result.notes) == [
        "get is not called again in this turn: it failed in a way that a retry cannot fix. Go on"
        " without it."
    ]
