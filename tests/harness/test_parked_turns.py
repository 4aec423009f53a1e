"""A turn that does not wait for a person: it ends, and another process goes on with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from turns import USER, Script, assert_answered, calls

from edictum import Edictum, EdictumConfigError, EdictumInputError, ToolDenied
from edictum.approval import ApprovalQueue, InMemoryApprovalBackend
from edictum.harness import (
    ParkedTurn,
    ToolCallRequest,
    ToolSpec,
    TurnBudget,
    TurnResult,
    TurnState,
    run_turn,
    run_turn_sync,
    stream_turn,
    tool,
)
from edictum.outcomes import ToolExecutionResult, outcome_to_model_content
from support.guards import approval_contract


class Office:
    """Processes that share a store of approvals, and what their tools have done."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'approvals.db'}"
        self.done: list[str] = []
        self.guards: list[Edictum] = []
        self.fee: Any = None
        self.contracts: list[Any] = [approval_contract("send")]

    def list_tools(self) -> list[ToolSpec]:
        def send(to: str, fee: Any = self.fee) -> str:
            self.done.append(f"sent to {to}" + (f" for {fee}" if fee else ""))
            return f"sent to {to}"

        def look(key: str) -> str:
            self.done.append(f"looked at {key}")
            return f"value of {key}"

        return [
            tool(name="send", side_effect="write")(send),
            tool(name="look", side_effect="read", idempotent=True)(look),
        ]

    async def run(self, messages: Any, *replies: Any, **options: Any) -> TurnResult:
        """Run a turn, or go on with one, with a guard of its own as in another process."""
        guard = Edictum(contracts=self.contracts, approval_backend=self.url)
        self.guards.append(guard)
        self.model = Script(*replies)
        options = {"park": True, **options}
        return await run_turn(self.model, messages, self.list_tools(), guard, **options)

    async def go_on(self, parked: ParkedTurn | None, *replies: Any, **options: Any) -> TurnResult:
        """Go on with what was written down, and nothing else."""
        assert parked is not None
        return await self.run(ParkedTurn.from_json(parked.to_json()), *replies, **options)

    @property
    def queue(self) -> ApprovalQueue:
        return self.guards[-1].approvals

    async def answer(self, result: TurnResult, approved: bool = True) -> None:
        assert result.parked is not None
        for approval_id in result.parked.approval_ids:
            await self.queue.answer(approval_id, approved, approver="ann", reason="Because.")

    def list_actions(self) -> list[str]:
        return [str(event.action) for event in self.guards[-1].local_sink.events]


@pytest.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    made = Office(tmp_path)
    yield made
    for guard in made.guards:
        await guard.close()


SEND = ("send", {"to": "bob"})
LOOK = ("look", {"key": "a"})


async def test_a_turn_ends_while_a_person_thinks(office: Office) -> None:
    result = await office.run(USER, calls(SEND), session_id="s")
    assert (result.stopped_by, office.done) == ("approval", [])
    (request,) = await office.queue.pending()
    assert result.parked is not None
    assert result.parked.approval_ids == (request.approval_id,)
    assert_answered(result.messages)
    assert office.list_actions() == ["call_approval_requested", "call_paused"]


@pytest.mark.parametrize("fee", [5, 5.0, "5", {"of": 5}, Decimal(5), [1, 2]])
async def test_new_code_with_another_default_asks_again(office: Office, fee: Any) -> None:
    """The yes was for what the tool would have done."""
    first = await office.run(USER, calls(SEND), session_id="s")
    await office.answer(first)
    office.fee = fee
    again = await office.go_on(first.parked, "done")
    assert (again.stopped_by, office.done) == ("approval", [])
    await office.answer(again)
    await office.go_on(again.parked, "done")
    assert office.done == [f"sent to bob for {fee}"]


async def test_another_process_goes_on_with_a_yes(office: Office) -> None:
    first = await office.run(USER, calls(SEND), session_id="s")
    await office.answer(first)
    result = await office.go_on(first.parked, "done")
    assert (result.stopped_by, result.text) == ("answered", "done")
    assert office.done == ["sent to bob"]
    assert office.list_actions() == ["call_approval_granted", "call_executed"]
    ((messages, _),) = office.model.asked
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert "sent to bob" in messages[-1]["content"]
    assert_answered(result.messages)


async def test_another_process_goes_on_with_a_no(office: Office) -> None:
    first = await office.run(USER, calls(SEND), session_id="s")
    await office.answer(first, approved=False)
    result = await office.go_on(first.parked, "well then")
    assert office.done == []
    (denied,) = result.outcomes
    assert isinstance(denied, ToolDenied)
    assert denied.details == "Because."


@pytest.mark.parametrize("park", [True, False])
async def test_a_no_counts_where_nothing_can_ask_any_more(office: Office, park: bool) -> None:
    """The contract that asked is gone, and no other asks about the tool."""
    first = await office.run(USER, calls(SEND), session_id="s")
    await office.answer(first, approved=False)
    office.contracts = []
    result = await office.go_on(first.parked, "done", park=park)
    denied = result.outcomes[0]
    assert isinstance(denied, ToolDenied)
    assert (denied.details, office.done) == ("Because.", [])


async def test_a_turn_without_an_answer_is_parked_again(office: Office) -> None:
    first = await office.run(USER, calls(SEND), session_id="s")
    second = await office.go_on(first.parked)
    assert second.stopped_by == "approval"
    assert office.model.asked == []
    assert first.parked is not None
    assert second.parked is not None
    assert second.parked.approval_ids == first.parked.approval_ids
    await office.answer(second)
    third = await office.go_on(second.parked, "done")
    assert (third.text, office.done) == ("done", ["sent to bob"])


async def test_the_same_text_is_resumed_twice(office: Office) -> None:
    """As by a process that was killed before it could say that the turn is over."""
    first = await office.run(USER, calls(SEND), session_id="s")
    await office.answer(first)
    await office.go_on(first.parked, "done")
    again = await office.go_on(first.parked, "again")
    assert office.done == ["sent to bob"]
    (denied,) = again.outcomes
    assert isinstance(denied, ToolDenied)


async def test_calls_that_need_no_answer_run_once(office: Office) -> None:
    first = await office.run(USER, calls(LOOK, SEND), session_id="s")
    assert office.done == ["looked at a"]
    await office.answer(first)
    result = await office.go_on(first.parked, "done")
    assert office.done == ["looked at a", "sent to bob"]
    assert [type(outcome) for outcome in result.outcomes] == [ToolExecutionResult] * 2
    assert_answered(result.messages)
    assert "value of a" in result.messages[2]["content"]


async def test_calls_behind_a_parked_one_are_made_when_it_goes_on(office: Office) -> None:
    """A write comes after the write before it."""
    first = await office.run(
        USER, calls(SEND, ("send", {"to": "eve"})), session_id="s", parallel_enabled=False
    )
    assert len(await office.queue.pending()) == 1
    await office.answer(first)
    second = await office.go_on(first.parked, parallel_enabled=False)
    assert (second.stopped_by, office.done) == ("approval", ["sent to bob"])
    await office.answer(second)
    third = await office.go_on(second.parked, "done", parallel_enabled=False)
    assert (third.text, office.done) == ("done", ["sent to bob", "sent to eve"])
    assert len(third.outcomes) == 2


async def test_a_turn_goes_on_after_several_rounds(office: Office) -> None:
    first = await office.run(USER, calls(LOOK), calls(SEND), session_id="s")
    await office.answer(first)
    second = await office.go_on(first.parked, calls(("send", {"to": "eve"})))
    assert second.stopped_by == "approval"
    assert len(second.outcomes) == 3  # the last one waits


async def test_what_was_used_up_stays_used(office: Office) -> None:
    budget = TurnBudget.create(30, 3, 2)
    first = await office.run(USER, calls(LOOK), calls(SEND), session_id="s", budget=budget)
    assert budget.snapshot()["tool_calls_used"] == 2
    await office.answer(first)
    more = calls(("look", {"key": "b"}))
    result = await office.go_on(first.parked, more, "that is all")
    used = result.state.budget.snapshot()
    assert (used["steps_used"], used["tool_calls_used"]) == (3, 2)
    assert (used["steps_max"], used["tool_calls_max"]) == (3, 2)
    assert result.stopped_by == "tool_calls"
    assert office.done == ["looked at a", "sent to bob"]


async def test_time_and_tokens_are_used_up_too(office: Office) -> None:
    first = await office.run(
        USER, calls(SEND), session_id="s", budget=TurnBudget.create(30, max_tokens=20)
    )
    assert first.parked is not None
    assert 0 < first.parked.budget["used_s"] < 30
    await office.answer(first)
    result = await office.go_on(first.parked, calls(LOOK), "more")
    assert (result.stopped_by, result.state.budget.tokens_used) == ("tokens", 30)
    assert result.state.input_tokens == 20


async def test_another_budget_may_be_given(office: Office) -> None:
    first = await office.run(USER, calls(SEND), session_id="s", budget=TurnBudget.create(30, 1))
    await office.answer(first)
    result = await office.go_on(first.parked, "done", budget=TurnBudget.create(30, 5))
    assert (result.stopped_by, result.state.budget.snapshot()["steps_used"]) == ("answered", 2)


async def test_a_price_that_is_a_function_must_be_given_again(office: Office) -> None:
    price: dict[str, Any] = {"max_cost": 1.0, "price": lambda call: 0.25}
    first = await office.run(
        USER, calls(SEND), session_id="s", budget=TurnBudget.create(30, **price)
    )
    await office.answer(first)
    with pytest.raises(EdictumConfigError, match="price"):
        await office.go_on(first.parked, "done")
    result = await office.go_on(first.parked, "done", budget=TurnBudget.create(30, **price))
    assert result.state.budget.cost_used == 0.5


async def test_duplicates_are_known_across_processes(office: Office) -> None:
    first = await office.run(USER, calls(LOOK, SEND), session_id="s")
    await office.answer(first)
    same = [ToolCallRequest("again", *LOOK)]
    result = await office.go_on(first.parked, ("", same), "done")
    assert result.outcomes[-1].tool_name == "look"
    assert office.done.count("looked at a") == 2  # the write in between made it stale
    second = await office.run(USER, calls(LOOK, SEND), session_id="other")
    await office.answer(second, approved=False)
    result = await office.go_on(second.parked, ("", same), "done")
    assert isinstance(result.outcomes[-1], ToolDenied)
    assert result.outcomes[-1].reason == "duplicate"


async def test_blocked_tools_stay_blocked(office: Office) -> None:
    first = await office.run(USER, calls(SEND), session_id="s")
    assert first.parked is not None
    data = json.loads(first.parked.to_json())
    await office.answer(first)
    changed = ParkedTurn.from_json(json.dumps({**data, "blocked": ["look"]}))
    result = await office.run(changed, calls(LOOK), "done")
    assert isinstance(result.outcomes[-1], ToolDenied)
    assert result.outcomes[-1].reason == "blocked"


async def test_a_turn_in_the_session_of_its_guard_keeps_that_session(office: Office) -> None:
    first = await office.run(USER, calls(SEND))
    assert first.parked is not None
    assert first.parked.session_id == office.guards[0].session_id
    await office.answer(first)
    await office.go_on(first.parked, "done")
    assert office.done == ["sent to bob"]


async def test_another_session_is_refused(office: Office) -> None:
    first = await office.run(USER, calls(SEND), session_id="s")
    with pytest.raises(EdictumConfigError, match="session"):
        await office.go_on(first.parked, session_id="other")


async def test_a_session_that_a_function_chooses(office: Office) -> None:
    options: dict[str, Any] = {"session_id": lambda call: f"of {call.name}"}
    first = await office.run(USER, calls(SEND), **options)
    (request,) = await office.queue.pending()
    assert request.session_id == "of send"
    await office.answer(first)
    await office.go_on(first.parked, "done", **options)
    assert office.done == ["sent to bob"]


async def test_a_state_of_the_caller_goes_on(office: Office) -> None:
    first = await office.run(USER, calls(SEND), session_id="s")
    await office.answer(first)
    state = TurnState("s")
    result = await office.go_on(first.parked, "done", state=state)
    assert result.state is state
    assert office.done == ["sent to bob"]


async def test_waiting_in_the_process_that_goes_on(office: Office) -> None:
    first = await office.run(USER, calls(SEND), session_id="s")
    await office.answer(first)
    result = await office.go_on(first.parked, "done", park=False)
    assert (result.text, office.done) == ("done", ["sent to bob"])


async def test_a_failure_told_to_the_model_stays_one(office: Office) -> None:
    """Anthropic is told by a flag that is not part of the message."""
    first = await office.run(USER, calls(("nothing", {}), SEND), session_id="s")
    await office.answer(first)
    result = await office.go_on(first.parked, "done")
    assert getattr(result.messages[2], "is_error", False) is True
    assert getattr(result.messages[3], "is_error", False) is False


async def test_the_events_of_a_parked_turn(office: Office) -> None:
    guard = Edictum(contracts=[approval_contract("send")], approval_backend=office.url)
    office.guards.append(guard)
    events = [
        type(event).__name__
        async for event in stream_turn(
            Script(calls(SEND)), USER, office.list_tools(), guard, park=True
        )
    ]
    assert events[-2:] == ["ToolCallMade", "TurnEnded"]


def test_synchronous_callers_park_as_well(tmp_path: Path) -> None:
    office = Office(tmp_path)
    guard = Edictum(contracts=[approval_contract("send")], approval_backend=office.url)
    tools: Any = office.list_tools()
    result = run_turn_sync(Script(calls(SEND)), USER, tools, guard, park=True)
    assert result.stopped_by == "approval"


@pytest.mark.parametrize("backend", [None, InMemoryApprovalBackend(True)])
async def test_a_guard_without_a_queue_cannot_park(backend: Any) -> None:
    guard = Edictum(approval_backend=backend)
    with pytest.raises(EdictumConfigError, match="no approval queue"):
        await run_turn(Script("hello"), USER, (), guard, park=True)
    with pytest.raises(EdictumConfigError, match="no approval queue"):
        await run_turn(Script("hello"), USER, park=True)
    with pytest.raises(EdictumConfigError, match="park is"):
        await run_turn(Script("hello"), USER, park=1)  # type: ignore[arg-type]  # that is the test


# --- The text -------------------------------------------------------------------------------------


async def test_a_message_that_is_not_json_is_named(office: Office) -> None:
    odd = [{"role": "user", "content": object()}]
    result = await office.run(odd, calls(SEND), session_id="s")
    assert result.parked is not None
    with pytest.raises(EdictumInputError, match="cannot be written as JSON"):
        result.parked.to_json()
    await office.answer(result)
    ended = await office.run(result.parked, "done")
    assert (ended.text, office.done) == ("done", ["sent to bob"])


@pytest.mark.parametrize(
    "text",
    ["", "nothing", "[]", "null", "{}", '{"version": 1}', '{"version": 1, "calls": 3}', b"\xff"],
)
def test_what_is_not_a_parked_turn(text: Any) -> None:
    with pytest.raises(EdictumInputError):
        ParkedTurn.from_json(text)


async def test_a_version_that_is_not_known(office: Office) -> None:
    result = await office.run(USER, calls(SEND), session_id="s")
    assert result.parked is not None
    data = json.loads(result.parked.to_json())
    assert data["version"] == 2
    with pytest.raises(EdictumInputError, match=r"^A parked turn of version 3 cannot be read"):
        ParkedTurn.from_json(json.dumps({**data, "version": 3}))


async def test_a_text_of_the_first_version_goes_on(office: Office) -> None:
    """It does not say which calls were started."""
    result = await office.run(USER, calls(SEND), session_id="s")
    assert result.parked is not None
    data = json.loads(result.parked.to_json())
    del data["started"]
    parked = ParkedTurn.from_json(json.dumps({**data, "version": 1}))
    assert parked == result.parked


async def test_the_text_says_the_same_again(office: Office) -> None:
    result = await office.run(USER, calls(LOOK, ("nothing", {}), SEND), session_id="s")
    assert result.parked is not None
    text = result.parked.to_json()
    assert json.loads(ParkedTurn.from_json(text).to_json()) == json.loads(text)


# --- A turn that is kept as it goes ---------------------------------------------------------------


def pay_tool(office: Office, *, ends: bool = True) -> ToolSpec:
    async def pay(to: str) -> str:
        office.done.append(f"paid {to}")
        if not ends:
            await asyncio.Event().wait()
        return f"paid {to}"

    return tool(name="pay", side_effect="write")(pay)


async def test_a_kept_turn_goes_on_where_it_was_stored(office: Office) -> None:
    """The parked text does not know what was done after it; what was kept last does."""
    pay, kept = ("pay", {"to": "eve"}), list[str]()
    tools = [*office.list_tools(), pay_tool(office)]

    def keep(turn: ParkedTurn) -> None:
        kept.append(turn.to_json())

    office.list_tools = lambda: tools  # type: ignore[method-assign]
    first = await office.run(USER, calls(LOOK, SEND), session_id="s", keep=keep)
    assert first.parked is not None
    assert ParkedTurn.from_json(kept[-1]).approval_ids == first.parked.approval_ids
    await office.answer(first)
    await office.go_on(first.parked, calls(pay), "done", keep=keep)
    assert office.done == ["looked at a", "sent to bob", "paid eve"]
    again = await office.run(ParkedTurn.from_json(kept[-1]), "done")
    assert (again.stopped_by, len(office.done)) == ("answered", 3)
    assert [type(outcome) for outcome in again.outcomes] == [ToolExecutionResult] * 3
    assert_answered(again.messages)


async def test_a_call_that_was_interrupted_is_not_made_again(office: Office) -> None:
    kept: list[str] = []

    async def keep(turn: ParkedTurn) -> None:
        kept.append(turn.to_json())

    tools = [*office.list_tools(), pay_tool(office, ends=False)]
    office.list_tools = lambda: tools  # type: ignore[method-assign]
    asked = calls(LOOK, ("pay", {"to": "eve"}))
    running = asyncio.ensure_future(office.run(USER, asked, session_id="s", keep=keep))
    async with asyncio.timeout(60):
        while "paid eve" not in office.done:  # noqa: ASYNC110 - the body has no other way
            await asyncio.sleep(0.01)
    running.cancel()  # nothing is stored any more, as when it is killed
    with pytest.raises(asyncio.CancelledError):
        await running
    again = await office.run(ParkedTurn.from_json(kept[-1]), "done", keep=keep)
    assert office.done == ["looked at a", "paid eve"]
    denied = again.outcomes[1]
    assert isinstance(denied, ToolDenied)
    assert (denied.reason, denied.details.split(":")[0]) == (
        "interrupted",
        "This call was started before the turn was interrupted, and did not report its end, so it"
        " may have had its effect. It is not made again",
    )
    assert office.list_actions() == ["call_denied"]
    assert json.loads(kept[-1])["started"] == []


async def test_a_start_that_cannot_be_stored_is_none(office: Office) -> None:
    """Nothing runs that the next process would not know of; a read may be made again."""

    def keep(turn: ParkedTurn) -> None:
        raise OSError("disk full")

    tools = [*office.list_tools(), pay_tool(office)]
    office.list_tools = lambda: tools  # type: ignore[method-assign]
    asked = calls(LOOK, ("pay", {"to": "eve"}))
    result = await office.run(USER, asked, "done", session_id="s", keep=keep)
    assert office.done == ["looked at a"]
    denied = result.outcomes[1]
    assert isinstance(denied, ToolDenied)
    assert denied.details.startswith("That the call is started could not be stored: disk full")
    assert (denied.reason, denied.policy_error) == ("policy_error", True)
    assert "disk full" not in outcome_to_model_content(denied)
    counted = office.guards[-1].session("s")
    assert (counted.executions, counted.in_flight) == (1, 0)


async def test_an_approved_call_is_stored_in_its_queue(office: Office) -> None:
    """Else a kill between the two would lose a call that was never started."""
    kept: list[ParkedTurn] = []
    first = await office.run(USER, calls(SEND), session_id="s", keep=kept.append)
    await office.answer(first)
    await office.go_on(first.parked, "done", keep=kept.append)
    assert [turn.started for turn in kept] == [(), ()]
    assert [sorted(turn.ended) for turn in kept] == [[], [0]]


async def test_an_approved_call_is_stored_in_the_turn_if_nothing_else_records_it(
    office: Office,
) -> None:
    """The backend has no ``use``: a person would be asked again about a call that was started."""
    kept: list[ParkedTurn] = []
    tools = [pay_tool(office, ends=False)]
    office.list_tools = lambda: tools  # type: ignore[method-assign]
    office.contracts = [approval_contract("pay")]
    office.url = InMemoryApprovalBackend(True)  # type: ignore[assignment]
    options: dict[str, Any] = {"park": False, "session_id": "s"}
    running = asyncio.ensure_future(
        office.run(USER, calls(("pay", {"to": "eve"})), keep=kept.append, **options)
    )
    async with asyncio.timeout(60):
        while "paid eve" not in office.done:  # noqa: ASYNC110 - the body has no other way
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    again = await office.go_on(kept[-1], "done", **options)
    assert office.done == ["paid eve"]
    denied = again.outcomes[0]
    assert isinstance(denied, ToolDenied)
    assert denied.reason == "interrupted"


async def test_what_is_not_a_function_cannot_keep(office: Office) -> None:
    with pytest.raises(EdictumConfigError, match=r"^keep is 'turn\.json'"):
        await office.run(USER, "done", keep="turn.json")
