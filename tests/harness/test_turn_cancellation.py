"""A turn that is cancelled hands back what happened, and the next turn goes on with it."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turns import USER, Script, assert_answered, calls, hang, new_guard, search

from edictum import Edictum, EdictumConfigError
from edictum.harness import (
    ModelReply,
    ToolCallRequest,
    TurnBudget,
    TurnState,
    messages_from_json,
    messages_to_json,
    run_turn,
    run_turn_sync,
    tool,
)
from edictum.harness.models._anthropic import to_anthropic
from edictum.outcomes import ToolOutcome
from support.waiting import wait_in_loop


async def cancel_when(
    condition: Any, model: Any, tools: Any, guard: Edictum | None = None, **options: Any
) -> TurnState:
    """Run a turn, cancel it when a condition holds, and return its state."""
    state = TurnState("s")
    guard = guard if guard is not None else new_guard()
    turn = asyncio.create_task(run_turn(model, USER, tools, guard, state=state, **options))
    await wait_in_loop(condition)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    return state


def read_results(state: TurnState) -> dict[str, Any]:
    return {
        message["tool_call_id"]: json.loads(message["content"])
        for message in state.messages
        if message["role"] == "tool"
    }


async def test_what_ran_what_was_running_and_what_did_not_run_are_told_apart() -> None:
    written: list[str] = []
    started = asyncio.Event()

    @tool(side_effect="write", idempotent=False)
    async def write(text: str) -> str:
        written.append(text)
        return f"wrote {text}"

    @tool(side_effect="write", verify="search")
    async def deploy() -> str:
        started.set()
        await asyncio.sleep(30)
        return "deployed"

    model = Script(
        calls(("write", {"text": "a"}), ("deploy", {}), ("write", {"text": "b"}), text="Now.")
    )
    guard = new_guard()
    state = await cancel_when(started.is_set, model, [write, deploy, search], guard)
    results = read_results(state)
    assert results["c0"] == {"result": "wrote a"}
    assert "cancelled while the tool ran" in results["c1"]["error"]
    assert "Whether it took effect is unknown: check with 'search'" in results["c1"]["error"]
    assert results["c2"] == {
        "error": "Blocked: The turn was cancelled before this call was made.",
        "blocked": True,
    }
    assert written == ["a"]
    assert_answered(state.messages)
    told = [message["tool_call_id"] for message in state.messages if message["role"] == "tool"]
    assert told == ["c0", "c1", "c2"]
    in_audit = {event.call_id for event in guard.local_sink.events}
    assert in_audit == {"c0", "c1"}, "the guard was not asked about c2, which its message says"
    assert guard.session("s").in_flight == 0


async def test_the_next_turn_knows_what_ran() -> None:
    asked_again = asyncio.Event()

    async def model(messages: Any, _tools: Any) -> Any:
        if messages[-1]["role"] == "user":
            return calls(("search", {"query": "a"}))
        asked_again.set()
        await asyncio.sleep(30)

    state = await cancel_when(asked_again.is_set, model, [search])
    later = Script(lambda messages: messages[-2]["content"])
    again = [*state.messages, {"role": "user", "content": "What did you do?"}]
    result = await run_turn(later, again, [search], new_guard())
    assert json.loads(result.text) == {"query": "a", "limit": 5}


async def test_calls_side_by_side_end_with_what_each_has_come_to() -> None:
    ended: list[Any] = []

    def listen(_call: ToolCallRequest, outcome: ToolOutcome) -> None:
        ended.append(outcome)

    model = Script(calls(("hang", {}), ("search", {"query": "a"}), ("hang", {"seconds": 31})))
    state = await cancel_when(lambda: ended, model, [hang, search], on_outcome=listen)
    results = read_results(state)
    assert results["c1"] == {"query": "a", "limit": 5}
    assert "cancelled while the tool ran" in results["c0"]["error"]
    assert "cancelled while the tool ran" in results["c2"]["error"]


async def test_a_body_in_a_thread_that_goes_on_is_not_told_as_ended() -> None:
    started, go_on = threading.Event(), threading.Event()

    @tool(side_effect="write")
    def push() -> str:
        started.set()
        go_on.wait(30)
        return "pushed"

    state = await cancel_when(started.is_set, Script(calls(("push", {}))), [push])
    go_on.set()
    assert "Whether it took effect is unknown" in read_results(state)["c0"]["error"]


async def test_a_call_that_waits_for_its_caller_is_not_told_as_denied() -> None:
    asked = asyncio.Event()

    async def find_metadata(_call: ToolCallRequest) -> dict[str, Any]:
        asked.set()
        await asyncio.sleep(30)
        return {}

    model = Script(calls(("search", {"query": "a"})))
    state = await cancel_when(asked.is_set, model, [search], metadata=find_metadata)
    assert "The turn was cancelled while this call was made." in read_results(state)["c0"]["error"]


async def test_a_listener_that_is_cut_off_costs_no_outcome() -> None:
    told = asyncio.Event()

    async def listen(_call: Any, _outcome: Any) -> None:
        told.set()
        await asyncio.sleep(30)

    model = Script(calls(("search", {"query": "a"})))
    state = await cancel_when(told.is_set, model, [search], on_outcome=listen)
    assert read_results(state) == {"c0": {"query": "a", "limit": 5}}


async def test_calls_with_the_same_id_keep_their_own_results() -> None:
    told: list[Any] = []
    started = asyncio.Event()

    @tool(side_effect="read")
    async def wait() -> None:
        started.set()
        await asyncio.sleep(30)

    def listen(_call: Any, outcome: Any) -> None:
        told.append(outcome)

    def is_one_left() -> bool:
        return started.is_set() and bool(told)

    same = [ToolCallRequest("x", "search", {"query": "a"}), ToolCallRequest("x", "wait", {})]
    model = Script(ModelReply("", tuple(same)))
    state = await cancel_when(is_one_left, model, [search, wait], on_outcome=listen)
    first, second = (json.loads(it["content"]) for it in state.messages if it["role"] == "tool")
    assert first == {"query": "a", "limit": 5}
    assert "cancelled while the tool ran" in second["error"]


def test_ctrl_c_hands_back_what_happened() -> None:
    state = TurnState()

    def model(messages: Any, _tools: Any) -> Any:
        if messages[-1]["role"] == "user":
            return "", [ToolCallRequest("a", "search", {"query": "x"})]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_turn_sync(model, USER, [search], new_guard(), state=state)
    assert read_results(state) == {"a": {"query": "x", "limit": 5}}


# --- From one turn to the next --------------------------------------------------------------------


async def test_notes_of_a_turn_do_not_stay_in_the_conversation() -> None:
    model = Script(*(calls(("search", {"query": str(n)})) for n in range(2)), "as far as I got")
    result = await run_turn(model, USER, [search], new_guard(), TurnBudget.create(10, max_steps=2))
    assert any("The budget of this turn is used up" in note for note in result.notes)
    assert "The budget of this turn is used up" in model.asked[-1][0][-1]["content"]
    assert {message["role"] for message in result.messages} == {"user", "assistant", "tool"}
    assert result.state.messages == result.messages


async def test_system_messages_of_the_caller_stay() -> None:
    mine = [{"role": "system", "content": "Be brief."}, *USER]
    result = await run_turn(Script("ok"), mine, [], new_guard())
    assert list(result.messages[:2]) == mine


async def test_messages_of_a_turn_are_plain_data_that_providers_take() -> None:
    @tool(side_effect="read")
    async def fail() -> str:
        raise ValueError("broken")

    model = Script(calls(("fail", {}), ("unknown", {})), "done")
    result = await run_turn(model, USER, [fail], new_guard())
    known = {"role", "content", "tool_calls", "tool_call_id"}
    assert all(message.keys() <= known for message in result.messages)
    assert json.loads(json.dumps(result.messages)) == list(result.messages)


async def test_which_results_told_of_errors_is_kept_in_a_conversation_that_is_stored() -> None:
    @tool(side_effect="read")
    async def fail() -> str:
        raise ValueError("broken")

    model = Script(calls(("fail", {}), ("search", {"query": "a"}), ("unknown", {})), "done")
    result = await run_turn(model, USER, [fail, search], new_guard())
    stored = messages_from_json(messages_to_json(result.messages))
    assert stored == list(result.messages)
    again = messages_from_json(messages_to_json(stored))
    _, asked = to_anthropic(again)
    blocks = [block for message in asked for block in message["content"] if type(block) is dict]
    told = [block.get("is_error", False) for block in blocks if block["type"] == "tool_result"]
    assert told == [True, False, True]
    assert "is_error" not in str(again)


async def test_a_state_serves_one_turn() -> None:
    state, model = TurnState(), Script("one", "two")
    await run_turn(model, USER, [], new_guard(), state=state)
    with pytest.raises(EdictumConfigError, match="has served a turn already"):
        await run_turn(model, USER, [], new_guard(), state=state)
    assert len(model.asked) == 1
    assert state.messages[-1]["content"] == "one"


async def test_a_state_serves_no_two_turns_at_once() -> None:
    state = TurnState()
    turn = asyncio.create_task(run_turn(Script(lambda _: "hi"), USER, [], state=state))
    await asyncio.sleep(0)
    with pytest.raises(EdictumConfigError, match="has served a turn already"):
        await run_turn(Script("two"), USER, [], state=state)
    assert (await turn).text == "hi"


async def test_a_turn_that_cannot_begin_leaves_the_state_for_another() -> None:
    state = TurnState()
    with pytest.raises(EdictumConfigError, match="execution is given beside a guard"):
        await run_turn(Script(), USER, [], new_guard(), state=state, execution="thread")
    assert (await run_turn(Script("hi"), USER, [], new_guard(), state=state)).text == "hi"


# --- At any moment --------------------------------------------------------------------------------


class Journal:
    """Tools that note when they begin and end, and a model that asks for them round by round."""

    def __init__(self, rounds: list[list[tuple[bool, int]]]) -> None:
        self.rounds = list(enumerate(rounds))
        self.begun: set[str] = set()
        self.ended: set[str] = set()
        self.tools = [
            tool(name="look", side_effect="read")(self._work),
            tool(name="save", side_effect="write")(self._work),
        ]

    async def _work(self, key: str, pauses: int) -> str:
        self.begun.add(key)
        for _ in range(pauses):
            await asyncio.sleep(0)
        self.ended.add(key)
        return key

    async def __call__(self, _messages: Any, _tools: Any) -> Any:
        await asyncio.sleep(0)
        if not self.rounds:
            return "done"
        number, asked = self.rounds.pop(0)
        return ModelReply(
            f"round {number}",
            tuple(
                ToolCallRequest(
                    f"{number}-{place}",
                    "save" if writes else "look",
                    {"key": f"{number}-{place}", "pauses": pauses},
                )
                for place, (writes, pauses) in enumerate(asked)
            ),
        )


@given(
    rounds=st.lists(
        st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=4), max_size=3
    ),
    moment=st.integers(0, 120),
)
def test_whenever_a_turn_is_cancelled_its_messages_tell_what_ran(rounds: Any, moment: int) -> None:
    journal, state, guard = Journal(rounds), TurnState("s"), new_guard()

    async def cancel_at_moment() -> None:
        turn = asyncio.create_task(run_turn(journal, USER, journal.tools, guard, state=state))
        for _ in range(moment + 1):  # in the first the turn begins
            await asyncio.sleep(0)
        turn.cancel()
        await asyncio.wait((turn,))

    asyncio.run(cancel_at_moment())
    assert state.messages[: len(USER)] == tuple(USER)
    assert_answered(state.messages)
    results = read_results(state)
    assert journal.begun <= results.keys()
    for key, result in results.items():
        if "result" in result:
            assert key in journal.ended
        elif "cancelled before" in result["error"]:
            assert key not in journal.begun
        else:
            assert "cancelled while" in result["error"], "whether it ended is not known"
    assert guard.session("s").in_flight == 0
