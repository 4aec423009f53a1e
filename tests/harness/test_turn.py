"""run_turn: the loop from a user's message to the final answer."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from turns import (
    USER,
    FakeTimer,
    Script,
    assert_answered,
    block,
    calls,
    hang,
    new_guard,
    search,
)

from edictum import EdictumInputError
from edictum.harness import (
    ArtifactStore,
    ModelReply,
    ToolCallRequest,
    TurnBudget,
    TurnState,
    run_turn,
    run_turn_sync,
    tool,
)
from edictum.harness.messages import to_reply
from edictum.outcomes import ToolArtifactReference, ToolDenied, ToolExecutionResult, ToolTimeout


async def test_a_turn_from_question_to_answer() -> None:
    model = Script(calls(("search", {"query": "a"}), ("search", {"query": "b"})), "found both")
    result = await run_turn(model, USER, [search], new_guard(), TurnBudget.create(10))
    assert (result.text, result.stopped_by, result.timed_out) == ("found both", "answered", False)
    assert [message["role"] for message in result.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert [outcome.value["query"] for outcome in result.outcomes] == ["a", "b"]  # type: ignore[union-attr]
    assert_answered(result.messages)
    assert (result.state.input_tokens, result.state.output_tokens) == (10, 5)
    assert not result.state.is_accepting_writes()
    assert model.asked[0][1] == ("search",)


async def test_results_are_in_call_order_whatever_ends_first() -> None:
    @tool(side_effect="read")
    async def wait(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    result = await run_turn(
        Script(calls(*(("wait", {"seconds": s}) for s in (0.05, 0.0, 0.02)))),
        USER,
        [wait],
        new_guard(),
    )
    assert [outcome.value for outcome in result.outcomes] == [0.05, 0.0, 0.02]  # type: ignore[union-attr]


async def test_every_call_is_answered_when_the_calls_run_out_in_mid_wave() -> None:
    model = Script(calls(*(("search", {"query": str(n)}) for n in range(5))), "best I can")
    result = await run_turn(
        model, USER, [search], new_guard(), TurnBudget.create(10, max_steps=3, max_tool_calls=2)
    )
    assert (
        sorted(type(outcome).__name__ for outcome in result.outcomes)
        == ["ToolDenied"] * 3 + ["ToolExecutionResult"] * 2
    )
    assert {outcome.reason for outcome in result.outcomes if isinstance(outcome, ToolDenied)} == {
        "budget"
    }
    assert_answered(result.messages)


async def test_every_call_is_answered_when_the_time_runs_out_in_mid_wave() -> None:
    model = Script(
        calls(
            ("hang", {}), ("block", {"seconds": 1.5}), ("search", {"query": "a"}), ("nobody", {})
        ),
        "sorry",
    )
    result = await run_turn(
        model,
        USER,
        [hang, block, search],
        new_guard(),
        TurnBudget.create(6, max_steps=9, reserve_s=5),
    )
    assert_answered(result.messages)
    assert len(result.outcomes) == 4
    assert isinstance(result.outcomes[0], ToolTimeout)
    assert result.text == "sorry", "the reserve is kept for the answer"
    assert result.stopped_by == "deadline"
    assert model.asked[-1][1] == ()


async def test_when_the_steps_are_used_the_model_is_asked_for_its_answer_without_tools() -> None:
    def forever(messages: Any) -> ModelReply:
        return calls(("search", {"query": str(len(messages))}), text="still looking")

    model = Script(forever, forever, calls(("search", {"query": "more"}), text="my answer"))
    result = await run_turn(model, USER, [search], new_guard(), TurnBudget.create(10, max_steps=2))
    assert (result.text, result.stopped_by) == ("my answer", "steps")
    assert model.asked[-1][1] == ()
    assert_answered(result.messages)


def ask_again(messages: Any) -> ModelReply:
    return calls(("search", {"query": str(len(messages))}), text="still looking")


async def test_when_the_calls_are_used_the_model_is_asked_for_its_answer_without_tools() -> None:
    model = Script(ask_again, ask_again, calls(("search", {"query": "more"}), text="my answer"))
    result = await run_turn(
        model, USER, [search], new_guard(), TurnBudget.create(10, max_steps=8, max_tool_calls=2)
    )
    assert (result.text, result.stopped_by, result.timed_out) == ("my answer", "tool_calls", False)
    assert [offered for _, offered in model.asked] == [("search",), ("search",), ()]
    assert [type(outcome) for outcome in result.outcomes] == [ToolExecutionResult] * 2
    assert_answered(result.messages)


async def test_a_call_that_is_answered_again_uses_up_no_call() -> None:
    same = calls(("search", {"query": "a"}))
    model = Script(same, same, calls(("search", {"query": "b"})), "done")
    budget = TurnBudget.create(10, max_steps=8, max_tool_calls=2)
    result = await run_turn(model, USER, [search], new_guard(), budget, on_duplicate="replay")
    assert [outcome.turn.replayed for outcome in result.outcomes] == [False, True, False]  # type: ignore[union-attr]
    assert (result.stopped_by, model.asked[-1][1]) == ("tool_calls", ())


async def test_without_tools_no_call_is_missed() -> None:
    result = await run_turn(
        Script("hello"), USER, [], new_guard(), TurnBudget.create(10, max_tool_calls=0)
    )
    assert (result.text, result.stopped_by) == ("hello", "answered")


async def test_the_model_is_told_how_much_of_the_budget_is_used() -> None:
    model = Script(*(calls(("search", {"query": str(n)})) for n in range(20)))
    result = await run_turn(model, USER, [search], new_guard(), TurnBudget.create(60, max_steps=20))
    told = [re.match(r"(\d+)%", text) for text in result.notes]
    assert [found.group(1) for found in told if found] == ["50", "80", "95"]


async def test_one_of_a_kind_is_told_in_the_singular() -> None:
    model = Script(calls(*(("search", {"query": query}) for query in "abc")), "done")
    result = await run_turn(
        model, USER, [search], new_guard(), TurnBudget.create(60, max_steps=2, max_tool_calls=1)
    )
    assert any("1 step, 0 tool calls and" in text for text in result.notes)
    refused = [outcome.details for outcome in result.outcomes if isinstance(outcome, ToolDenied)]
    assert (
        refused
        == ["The limit of 1 tool call in this turn is reached. Answer with what you have."] * 2
    )


@pytest.mark.parametrize(
    ("rounds", "noticed"),
    [
        ([("search", {"query": "a"})] * 3, "3 times in a row"),
        ([("search", {"query": "a"}), ("search", {"query": "b"})] * 2, "alternate"),
        ([("search", {"query": str(n)}) for n in range(5)], None),
    ],
)
async def test_loops_are_noticed(rounds: list[Any], noticed: str | None) -> None:
    result = await run_turn(
        Script(*(calls(each) for each in rounds)),
        USER,
        [search],
        new_guard(),
        TurnBudget.create(60, max_steps=50),
    )
    assert (noticed is None) == (result.loops == ())
    if noticed is not None:
        assert noticed in result.loops[0]
        assert any(noticed in text for text in result.notes)


async def test_the_model_is_told_that_an_earlier_call_has_ended_after_all() -> None:
    @tool(side_effect="write", timeout_s=0.05)
    def save() -> str:
        time.sleep(0.1)
        return "saved"

    model = Script(calls(("save", {})), calls(("hang", {"seconds": 0.3})), "done")
    result = await run_turn(model, USER, [save, hang], new_guard(), TurnBudget.create(10))
    assert any("save that timed out earlier has ended" in text for text in result.notes)


async def test_large_outputs_are_read_back_in_parts(tmp_path: Path) -> None:
    @tool(side_effect="read")
    async def dump() -> str:
        return "\n".join(f"line {number}" for number in range(10_000))

    def read(messages: Any) -> ModelReply:
        reference = json.loads(messages[-1]["content"])["artifact_reference"]
        return calls(("read_artifact", {"artifact_id": reference, "grep": "line 777"}))

    model = Script(calls(("dump", {})), read, "777 it is")
    result = await run_turn(
        model,
        USER,
        [dump],
        new_guard(),
        TurnBudget.create(20),
        artifact_store=ArtifactStore(tmp_path / "store"),
    )
    assert isinstance(result.outcomes[0], ToolArtifactReference)
    assert isinstance(result.outcomes[1], ToolExecutionResult), result.outcomes[1]
    assert "777" in json.dumps(result.outcomes[1].output)
    assert model.asked[0][1] == ("dump", "read_artifact")


# --- Models that misbehave ------------------------------------------------------------------------


async def test_a_model_that_raises_ends_the_turn_with_what_there_is() -> None:
    result = await run_turn(
        Script(calls(("search", {"query": "a"}), text="so far"), ConnectionError("gone")),
        USER,
        [search],
        new_guard(),
    )
    assert (result.stopped_by, result.text) == ("model_error", "so far")
    assert isinstance(result.error, ConnectionError)
    assert_answered(result.messages)


async def test_a_model_that_raises_a_timeout_of_its_own_has_failed() -> None:
    result = await run_turn(Script(TimeoutError("mine")), USER, [], new_guard())
    assert (result.stopped_by, type(result.error)) == ("model_error", TimeoutError)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_model_that_hangs_is_left_behind(kind: str) -> None:
    go_on = threading.Event()
    answered: list[str] = []

    async def slow(messages: Any, tools: Any) -> str:
        await asyncio.sleep(60)
        answered.append("late")
        return "late"

    def blocking(messages: Any, tools: Any) -> str:
        go_on.wait(60)
        answered.append("late")
        return "late"

    result = await run_turn(
        slow if kind == "async" else blocking, USER, [], new_guard(), TurnBudget.create(0.2)
    )
    assert (result.stopped_by, result.text, result.timed_out) == ("deadline", "", True)
    assert answered == []
    go_on.set()


async def test_a_model_that_answers_with_nonsense_has_failed() -> None:
    result = await run_turn(Script(lambda messages: 17), USER, [], new_guard())
    assert result.stopped_by == "model_error"
    assert isinstance(result.error, EdictumInputError)


async def test_a_turn_without_time_answers_without_being_asked() -> None:
    timer = FakeTimer()
    budget = TurnBudget.create(10, timer=timer)
    timer.advance(11)
    result = await run_turn(Script(), USER, [], new_guard(), budget)
    assert (result.stopped_by, result.text, result.messages) == ("deadline", "", tuple(USER))


@pytest.mark.parametrize(
    "answer",
    [
        ("text", [ToolCallRequest("a", "search", {"query": "x"})]),
        {
            "text": "text",
            "tool_calls": [{"id": "a", "name": "search", "arguments": {"query": "x"}}],
        },
        {
            "content": "text",
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "search", "arguments": {"query": "x"}},
                }
            ],
        },
        ("text", [{"id": "a", "name": "search", "input": {"query": "x"}}]),
    ],
)
def test_what_a_model_may_return(answer: Any) -> None:
    calls = (ToolCallRequest("a", "search", {"query": "x"}),)
    assert to_reply(answer) == ModelReply("text", calls, stop_reason="tool_calls")


def test_what_else_a_model_may_return() -> None:
    assert to_reply(None) == to_reply("") == ModelReply()
    assert to_reply(("", [{"name": "a"}])).tool_calls[0].id == "call_0"
    for wrong in (3, ("a", "b", "c"), ("a", [3])):
        with pytest.raises(EdictumInputError):
            to_reply(wrong)


# --- The synchronous face -------------------------------------------------------------------------


def test_the_synchronous_face() -> None:
    def model(messages: Any, tools: Any) -> Any:
        return (
            ("", [ToolCallRequest("a", "search", '{"query": "x"}')])
            if len(messages) == 1
            else "done"
        )

    heard: list[str] = []
    result = run_turn_sync(
        model,
        USER,
        [search],
        new_guard(),
        state=TurnState("s"),
        on_outcome=lambda call, outcome: heard.append(call.name),
    )
    assert (result.text, heard) == ("done", ["search"])


async def test_a_cancelled_turn_leaves_nothing_running() -> None:
    guard = new_guard()
    turn = asyncio.create_task(
        run_turn(Script(calls(("hang", {}))), USER, [hang], guard, session_id="s")
    )
    await asyncio.sleep(0.05)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert guard.session("s").in_flight == 0


async def test_a_reply_with_too_many_calls_is_left_when_the_budget_is_used_up() -> None:
    """Fail if each of them is answered: that would take longer than the turn may."""
    model = Script(calls(*[("search", {"query": str(it)}) for it in range(5_000)]), "done")
    guard = new_guard()
    budget = TurnBudget.create(60, max_steps=2, max_tool_calls=10)
    result = await run_turn(model, USER, [search], guard, budget)
    assert [type(it) for it in result.outcomes[9:11]] == [ToolExecutionResult, ToolDenied]
    assert (len(result.outcomes), guard.session().executions) == (1_000, 10)
    assert_answered(result.messages)
    assert any("4000 of 5000 calls in one reply were left out" in it for it in result.notes)


async def test_a_reply_with_many_calls_is_run_as_far_as_the_budget_goes() -> None:
    model = Script(calls(*[("search", {"query": str(it)}) for it in range(2_500)]), "done")
    budget = TurnBudget.create(600, max_steps=2, max_tool_calls=2_500)
    result = await run_turn(model, USER, [search], new_guard(), budget)
    assert {type(it) for it in result.outcomes} == {ToolExecutionResult}
    assert len(result.outcomes) == 2_500
    assert_answered(result.messages)
