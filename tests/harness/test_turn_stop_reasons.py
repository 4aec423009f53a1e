"""A reply that was cut, refused or filtered ends the turn as what it is; a paused one goes on."""

from __future__ import annotations

from typing import Any

import pytest
from turns import USER, Script, assert_answered, new_guard, search

from edictum.harness import ModelReply, ToolCallRequest, TurnBudget, run_turn, tool
from edictum.outcomes import ToolDenied, ToolExecutionResult

CUT = ("length", "refused", "content_filter")


@pytest.mark.parametrize("stop_reason", CUT)
async def test_a_reply_that_is_not_whole_ends_the_turn_as_what_it_is(stop_reason: Any) -> None:
    model = Script(ModelReply("once upon", stop_reason=stop_reason))
    result = await run_turn(model, USER, [search], new_guard())
    assert (result.stopped_by, result.stop_reason) == (stop_reason, stop_reason)
    assert (result.text, result.error, len(model.asked)) == ("once upon", None, 1)
    assert result.messages[-1] == {"role": "assistant", "content": "once upon"}


async def test_the_text_of_a_refusal_is_the_turns_text() -> None:
    model = Script(ModelReply(refusal="I can't help with that.", stop_reason="refused"))
    result = await run_turn(model, USER, [], new_guard())
    assert (result.stopped_by, result.text) == ("refused", "I can't help with that.")


@pytest.mark.parametrize("stop_reason", CUT)
async def test_calls_of_a_reply_that_is_not_whole_do_not_run(stop_reason: Any) -> None:
    saved: list[str] = []

    @tool(side_effect="write")
    async def save(text: str) -> str:
        saved.append(text)
        return "saved"

    guard = new_guard()
    cut = ModelReply(
        "",
        (ToolCallRequest("a", "save", {"text": "delete every"}), ToolCallRequest("b", "save", "{")),
        stop_reason=stop_reason,
    )
    result = await run_turn(Script(cut), USER, [save], guard, session_id="s")
    assert (result.stopped_by, saved) == (stop_reason, [])
    assert [getattr(it, "reason", None) for it in result.outcomes] == ["incomplete_reply"] * 2
    assert_answered(result.messages)
    assert all("was not made" in message["content"] for message in result.messages[-2:])
    events = guard.local_sink.events
    assert [(it.action.value, it.decision_source, it.decision_name) for it in events] == [
        ("call_denied", "turn", "reply")
    ] * 2
    assert guard.session("s").executions == 0


async def test_the_next_turn_reads_that_the_calls_of_a_cut_reply_did_not_run() -> None:
    cut = ModelReply("", (ToolCallRequest("a", "search", {"query": "x"}),), stop_reason="length")
    first = await run_turn(Script(cut), USER, [search], new_guard())
    model = Script(lambda messages: messages[-2]["content"])
    again = [*first.messages, {"role": "user", "content": "go on"}]
    second = await run_turn(model, again, [search], new_guard())
    assert "cut off at its greatest length" in second.text


async def test_a_paused_reply_is_continued_with_what_it_has_said() -> None:
    model = Script(ModelReply("Let me see. ", stop_reason="paused"), "It is 4.")
    result = await run_turn(model, USER, [search], new_guard())
    assert (result.stopped_by, result.text) == ("answered", "Let me see. It is 4.")
    assert model.asked[1][0][-1] == {"role": "assistant", "content": "Let me see. "}
    assert [message["role"] for message in result.messages] == ["user", "assistant", "assistant"]


async def test_calls_of_a_paused_reply_run() -> None:
    call = ToolCallRequest("a", "search", {"query": "x"})
    model = Script(ModelReply("", (call,), stop_reason="paused"), "done")
    result = await run_turn(model, USER, [search], new_guard())
    assert [type(outcome) for outcome in result.outcomes] == [ToolExecutionResult]
    assert (result.text, result.stopped_by) == ("done", "answered")


async def test_a_model_that_pauses_for_ever_uses_up_the_steps() -> None:
    model = Script(*[ModelReply(".", stop_reason="paused")] * 9)
    result = await run_turn(model, USER, [], new_guard(), TurnBudget.create(10, max_steps=3))
    assert (result.stopped_by, len(model.asked)) == ("steps", 4)


async def test_a_reply_that_is_not_whole_keeps_what_ran_before_it() -> None:
    call = ToolCallRequest("a", "search", {"query": "x"})
    model = Script(ModelReply("", (call,)), ModelReply("", (call,), stop_reason="length"))
    result = await run_turn(model, USER, [search], new_guard())
    assert [type(outcome) for outcome in result.outcomes] == [ToolExecutionResult, ToolDenied]
    assert_answered(result.messages)


async def test_a_structured_answer_passes_through() -> None:
    model = Script(ModelReply('{"a": 1}', parsed={"a": 1}))
    result = await run_turn(model, USER, [], new_guard())
    assert (result.parsed, result.parse_error) == ({"a": 1}, "")
    model = Script(ModelReply("no", parse_error="not JSON"))
    result = await run_turn(model, USER, [], new_guard())
    assert (result.parsed, result.parse_error, result.stopped_by) == (None, "not JSON", "answered")
