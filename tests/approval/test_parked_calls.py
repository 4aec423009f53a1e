"""A call whose host does not wait for a person: it is closed as paused, and made again later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edictum import Edictum, Principal, ToolDenied, ToolExecutionResult, Verdict, precondition
from edictum.approval import (
    ApprovalPending,
    ApprovalQueue,
    ApprovalRequest,
    Approvers,
    HostAnswer,
    InMemoryApprovalBackend,
)
from edictum.core.parking import WAIT, GoingOn, raise_pending, tell_once
from support.guards import approval_contract

CALL: dict[str, Any] = {"session_id": "s", "call_id": "c1"}


@dataclass
class Tree:
    below: Any


@dataclass
class Question:
    """What a host sees of a request."""

    approval_id: str
    is_parked: bool


class Desk:
    """A store, the guards of processes that use it, and how often the tool ran."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'approvals.db'}"
        self.ran: list[Any] = []
        self.guards: list[Edictum] = []

    def start(self, *contracts: Any, **options: Any) -> Edictum:
        """Return a guard, as that of another process."""
        asking = contracts or [approval_contract()]
        guard = Edictum(**{"contracts": asking, "approval_backend": self.url, **options})
        self.guards.append(guard)
        return guard

    def work(self, **args: Any) -> str:
        self.ran.append(args)
        return "done"

    async def call(self, guard: Edictum, **options: Any) -> Any:
        return await guard.dispatch("t", {"n": 1}, self.work, **{"park": True, **CALL, **options})

    async def park(self, guard: Edictum, **options: Any) -> ApprovalRequest:
        with pytest.raises(ApprovalPending) as parked:
            await self.call(guard, **options)
        return parked.value.request

    @property
    def queue(self) -> ApprovalQueue:
        return self.guards[-1].approvals


@pytest.fixture
async def desk(tmp_path: Path) -> Any:
    made = Desk(tmp_path)
    yield made
    for guard in made.guards:
        await guard.close()


def list_actions(guard: Edictum) -> list[str]:
    return [str(event.action) for event in guard.local_sink.events]


async def test_an_unanswered_call_is_parked_and_holds_nothing(desk: Desk) -> None:
    """The question is in the queue, no slot is held, and the tool has not run."""
    guard = desk.start()
    request = await desk.park(guard)
    assert list_actions(guard) == ["call_approval_requested", "call_paused"]
    assert guard.session("s").snapshot().totals.in_flight == 0
    assert [it.approval_id for it in await desk.queue.pending()] == [request.approval_id]
    assert desk.ran == []


async def test_another_process_goes_on_with_the_answer(desk: Desk) -> None:
    """The same call, made again by another guard, takes the yes and runs."""
    request = await desk.park(desk.start())
    await desk.queue.answer(request.approval_id, True, approver="ann")
    guard = desk.start()
    assert isinstance(await desk.call(guard), ToolExecutionResult)
    assert list_actions(guard) == ["call_approval_granted", "call_executed"]
    assert desk.ran == [{"n": 1}]


async def test_an_approved_call_runs_once(desk: Desk) -> None:
    """Made a third time, it finds that its yes was used."""
    request = await desk.park(desk.start())
    await desk.queue.answer(request.approval_id, True, approver="ann")
    await desk.call(desk.start())
    again = await desk.call(desk.start())
    assert isinstance(again, ToolDenied)
    assert desk.ran == [{"n": 1}]


async def test_a_call_without_an_answer_is_parked_again(desk: Desk) -> None:
    """It is one question, however often it is asked."""
    first, second = await desk.park(desk.start()), await desk.park(desk.start())
    assert first.approval_id == second.approval_id
    assert (first.is_parked, second.is_parked) == (False, True)
    assert len(await desk.queue.pending()) == 1


async def test_a_no_is_told_when_the_call_is_made_again(desk: Desk) -> None:
    """With the person's reason."""
    request = await desk.park(desk.start())
    await desk.queue.answer(request.approval_id, False, approver="ann", reason="Not today.")
    outcome = await desk.call(desk.start())
    assert (outcome.reason, outcome.details) == ("write_denied", "Not today.")
    assert desk.ran == []


async def test_a_parked_question_is_not_given_to_an_equal_call(desk: Desk) -> None:
    """Its asker is gone, but will come back for it."""
    first = await desk.park(desk.start())
    second = await desk.park(desk.start(), call_id="c2")
    assert first.approval_id != second.approval_id
    await desk.queue.answer(first.approval_id, True, approver="ann")
    assert isinstance(await desk.call(desk.start()), ToolExecutionResult)
    await desk.park(desk.start(), call_id="c2")


async def test_a_parked_question_expires_when_it_says(desk: Desk) -> None:
    """Going on does not give it more time."""
    soon = approval_contract(timeout=0.05)
    await desk.park(desk.start(soon))
    while await desk.queue.pending():  # noqa: ASYNC110 - its time has no event
        await asyncio.sleep(0.01)
    guard = desk.start(soon)
    assert isinstance(await desk.call(guard), ToolDenied)
    assert list_actions(guard) == ["call_approval_timeout"]


def ask_while(asks: Callable[[], bool]) -> Any:
    """Return a contract that wants an approval only while it is told so."""

    @precondition("t", id="ask", effect="approve")
    def ask(call: Any) -> Verdict:
        return Verdict.fail("sure?") if asks() else Verdict.pass_()

    return ask


async def test_a_no_counts_even_if_no_contract_asks_any_more(desk: Desk) -> None:
    """A predicate that changes never turns a no into a run."""
    asked = [True, False]
    flips = ask_while(lambda: asked.pop(0))
    request = await desk.park(desk.start(flips))
    await desk.queue.answer(request.approval_id, False, approver="ann")
    guard = desk.start(flips)
    outcome = await desk.call(guard)
    assert isinstance(outcome, ToolDenied)
    assert desk.ran == []
    assert list_actions(guard) == ["call_approval_denied"]


async def test_a_yes_is_used_even_if_no_contract_asks_any_more(desk: Desk) -> None:
    """Else the call could run twice: once with it, once without."""
    asked = [True, False, False]
    flips = ask_while(lambda: asked.pop(0))
    request = await desk.park(desk.start(flips))
    await desk.queue.answer(request.approval_id, True, approver="ann")
    assert isinstance(await desk.call(desk.start(flips)), ToolExecutionResult)
    assert isinstance(await desk.call(desk.start(flips)), ToolDenied)
    assert desk.ran == [{"n": 1}]


async def test_an_open_question_stays_open_even_if_no_contract_asks_any_more(desk: Desk) -> None:
    """Else the answer that comes would be lost."""
    asked = [True, False, False]
    flips = ask_while(lambda: asked.pop(0))
    first, second = await desk.park(desk.start(flips)), await desk.park(desk.start(flips))
    assert (first.approval_id, desk.ran) == (second.approval_id, [])
    await desk.queue.answer(first.approval_id, True, approver="ann")
    assert isinstance(await desk.call(desk.start(flips)), ToolExecutionResult)
    assert desk.ran == [{"n": 1}]


async def test_changed_arguments_about_which_another_contract_asks(desk: Desk) -> None:
    """Each question is found again, and a no to the second one stays a no."""
    asks = [True]

    @precondition("t", id="large", effect="approve")
    def large(call: Any) -> Verdict:
        return Verdict.fail("so many?") if call.args["n"] > 1 and asks else Verdict.pass_()

    contracts = (approval_contract(), large)
    first = await desk.park(desk.start(*contracts))
    await desk.queue.answer(first.approval_id, True, approver="ann", args={"n": 7})
    second = await desk.park(desk.start(*contracts))
    assert second.approval_id != first.approval_id
    assert second.tool_args == {"n": 7}
    await desk.queue.answer(second.approval_id, False, approver="bob")
    asks.clear()
    assert isinstance(await desk.call(desk.start(*contracts)), ToolDenied)
    assert desk.ran == []


async def test_changed_arguments_are_those_that_run(desk: Desk) -> None:
    """The person has changed them while the call was parked."""
    request = await desk.park(desk.start())
    await desk.queue.answer(request.approval_id, True, approver="ann", args={"n": 7})
    outcome = await desk.call(desk.start())
    assert isinstance(outcome, ToolExecutionResult)
    assert desk.ran == [{"n": 7}]


async def test_an_unverified_answer_does_not_count_where_approvers_are_named(desk: Desk) -> None:
    """It only wakes the call, which looks at the store."""
    named = approval_contract(approvers=Approvers(roles=("admin",)))
    options: dict[str, Any] = {"control_flow": (Signal,)}
    for _ in range(2):
        with pytest.raises(Signal):
            await desk.call(desk.start(named), park=told(True), **options)
    (request,) = await desk.queue.pending()
    admin = Principal(user_id="ann", role="admin")
    await desk.queue.answer(request.approval_id, True, approver=admin)
    outcome = await desk.call(desk.start(named), park=told(False), **options)
    assert isinstance(outcome, ToolExecutionResult)


@pytest.mark.parametrize(
    ("answer", "ran"), [(True, 1), (False, 0), (None, 0)], ids=["yes", "no", "open"]
)
async def test_a_policy_that_does_not_ask_any_more(desk: Desk, answer: Any, ran: int) -> None:
    """What was asked under another policy stays a no, and is not taken for a yes."""
    asked = [True, False]
    flips = ask_while(lambda: asked.pop(0))
    request = await desk.park(desk.start(flips))
    if answer is not None:
        await desk.queue.answer(request.approval_id, answer, approver="ann")
    other = precondition("t", id="other")(lambda call: Verdict.pass_())
    await desk.call(desk.start(flips, other))
    assert len(desk.ran) == ran


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "killed while it ran"])
@pytest.mark.parametrize(
    "contracts",
    [(approval_contract("other"),), (approval_contract(timeout=99),)],
    ids=["nothing asks", "it asks on other terms"],
)
async def test_a_started_call_is_not_started_under_another_policy(
    desk: Desk, contracts: Any, ends: bool
) -> None:
    """Nor is a person asked about it, who could not know that it was started before."""
    request = await desk.park(desk.start())
    await desk.queue.answer(request.approval_id, True, approver="ann")
    if ends:
        await desk.call(desk.start())
    else:  # what is left of a process that was killed
        await desk.queue.take(request.approval_id)
        await desk.queue.use(request.approval_id)
    ran = len(desk.ran)
    outcome = await desk.call(desk.start(*contracts), park=GoingOn(raise_pending))
    assert isinstance(outcome, ToolDenied)
    assert outcome.details.startswith("The approval was used before")
    assert (len(desk.ran), await desk.queue.pending()) == (ran, [])


async def test_a_no_counts_where_nothing_can_ask_any_more(desk: Desk) -> None:
    """A host that goes on says so, whatever it was told."""
    request = await desk.park(desk.start())
    await desk.queue.answer(request.approval_id, False, approver="ann", reason="Not now.")
    guard = desk.start(approval_contract("other"))
    outcome = await desk.call(guard, park=tell_once(True, "a host"))
    assert isinstance(outcome, ToolDenied)
    assert (outcome.details, desk.ran) == ("Not now.", [])


async def test_a_tool_about_which_nothing_asks_is_not_looked_up(desk: Desk) -> None:
    """It pays nothing for the queue."""
    guard = desk.start(approval_contract("other"))
    await guard.approvals.close()  # a look would fail
    assert isinstance(await desk.call(guard), ToolExecutionResult)


async def test_calls_about_which_a_person_was_not_asked(desk: Desk) -> None:
    """Nothing is found about them, time and again."""
    guard = desk.start(ask_while(lambda: False))
    for call_id in ("c1", "c2"):
        assert isinstance(await desk.call(guard, call_id=call_id), ToolExecutionResult)


async def test_a_call_that_cannot_be_compared_with_earlier_ones(desk: Desk) -> None:
    """Its argument is nested too deeply to be known again, so it does not run."""
    bottom: Any = 1
    for _ in range(150):
        bottom = Tree(bottom)
    guard = desk.start(ask_while(lambda: False))
    outcome = await guard.dispatch("t", {"n": bottom}, desk.work, park=True, **CALL)
    assert isinstance(outcome, ToolDenied)
    assert outcome.policy_error


async def test_another_call_with_the_same_id_is_another_call(desk: Desk) -> None:
    """Models number their calls, so that ids come again in one session."""
    request = await desk.park(desk.start())
    await desk.queue.answer(request.approval_id, False, approver="ann")
    flips = ask_while(lambda: False)
    outcome = await desk.start(flips).dispatch("t", {"n": 2}, desk.work, park=True, **CALL)
    assert isinstance(outcome, ToolExecutionResult)


async def test_a_store_that_cannot_be_asked_about_earlier_questions(desk: Desk) -> None:
    """The call does not run: it may have been refused."""
    flips = ask_while(lambda: False)
    guard = desk.start(flips)
    await guard.approvals.close()
    outcome = await desk.call(guard)
    assert (outcome.reason, outcome.decision_source) == ("policy_error", "approval_backend")
    assert desk.ran == []


async def test_a_backend_without_a_store_is_waited_for(desk: Desk) -> None:
    """A question that is kept nowhere cannot be parked."""
    guard = desk.start(approval_backend=InMemoryApprovalBackend(True))
    assert isinstance(await desk.call(guard), ToolExecutionResult)


# --- A host that was told the answer itself -------------------------------------------------------


class Signal(Exception):
    """By which a host ends its run."""


def told(answer: bool, approver: str = "bob") -> Callable[[ApprovalRequest], Any]:
    """Return how a host parks that is told an answer when it goes on."""
    said: list[HostAnswer] = []

    def park(request: ApprovalRequest) -> Any:
        if not request.is_parked or said:
            raise Signal
        said.append(HostAnswer(request.approval_id, answer, approver))
        return said[0]

    return park


async def test_what_the_host_was_told_is_the_answer(desk: Desk) -> None:
    """It is written to the queue, with the name that the host gives."""
    for number, answer in enumerate((True, False)):
        options: dict[str, Any] = {"control_flow": (Signal,), "call_id": f"c{number}"}
        with pytest.raises(Signal):
            await desk.call(desk.start(), park=told(answer), **options)
        guard = desk.start()
        outcome = await desk.call(guard, park=told(answer), **options)
        assert isinstance(outcome, ToolExecutionResult) is answer
        assert guard.local_sink.events[0].approver == "bob"


async def test_a_host_answers_for_its_own_session_only(desk: Desk) -> None:
    """Whatever approval its person names."""
    other = await desk.park(desk.start(), session_id="other", call_id="c9")

    def park(request: ApprovalRequest) -> Any:
        if not request.is_parked:
            raise Signal
        request_id = request.approval_id
        return [HostAnswer(other.approval_id, True, "mal"), HostAnswer(request_id, True, "bob")]

    options: dict[str, Any] = {"control_flow": (Signal,), "park": park}
    with pytest.raises(Signal):
        await desk.call(desk.start(), **options)
    assert isinstance(await desk.call(desk.start(), **options), ToolExecutionResult)
    (pending,) = await desk.queue.pending()
    assert pending.approval_id == other.approval_id


async def test_the_answer_in_the_store_goes_first(desk: Desk) -> None:
    """What the host was told comes too late."""
    options: dict[str, Any] = {"control_flow": (Signal,), "park": told(True)}
    with pytest.raises(Signal):
        await desk.call(desk.start(), **options)
    (request,) = await desk.queue.pending()
    await desk.queue.answer(request.approval_id, False, approver="ann")
    assert isinstance(await desk.call(desk.start(), **options), ToolDenied)


async def test_a_host_that_cannot_pause_just_now(desk: Desk) -> None:
    """The call waits for the answer of the store."""
    running = asyncio.ensure_future(desk.call(desk.start(), park=lambda request: WAIT))
    while not (pending := await desk.queue.pending()):  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    await desk.queue.answer(pending[0].approval_id, True, approver="ann")
    assert isinstance(await running, ToolExecutionResult)
    assert repr(WAIT) == "WAIT"


async def test_a_host_tells_what_it_was_told_once(desk: Desk) -> None:
    """Then it waits: what it was told does not count where a verified person must answer."""
    for number, answer in enumerate((True, False)):
        request = await desk.park(desk.start(), call_id=f"c{number}")
        assert request.is_parked is False
        outcome = await desk.call(
            desk.start(), call_id=f"c{number}", park=tell_once(answer, "a host")
        )
        assert isinstance(outcome, ToolExecutionResult) is answer
        assert desk.guards[-1].local_sink.events[0].approver == "a host"
    asked, parked = Question("a-1", is_parked=False), Question("a-1", is_parked=True)
    tell, wait = tell_once(True, "a host"), tell_once(None, "a host")
    assert tell(asked) is WAIT  # it was asked just now, so the host was told of another question
    assert tell(parked) == HostAnswer(asked.approval_id, True, "a host")
    assert tell(parked) is wait(parked) is WAIT
    assert tell_once(None, "a host", lambda request: "ends")(parked) == "ends"


async def test_a_host_that_returns_something_else(desk: Desk) -> None:
    """It is a mistake of the host, and the call is denied."""
    outcome = await desk.call(desk.start(), park=lambda request: "yes")
    assert isinstance(outcome, ToolDenied)
    assert "park returned str" in outcome.details


async def test_a_host_that_waits_for_its_person(desk: Desk) -> None:
    """It may answer at once, and its function may be asynchronous."""

    async def park(request: ApprovalRequest) -> HostAnswer:
        return HostAnswer(request.approval_id, True, "bob", "It is fine.")

    assert isinstance(await desk.call(desk.start(), park=park), ToolExecutionResult)


def test_synchronous_callers_park_as_well(tmp_path: Path) -> None:
    """The same, from synchronous code."""
    desk = Desk(tmp_path)
    guard = desk.start()
    options: dict[str, Any] = {"park": True, "principal": Principal(user_id="u"), **CALL}
    with pytest.raises(ApprovalPending, match="waits for the approval"):
        guard.dispatch_sync("t", {"n": 1}, desk.work, **options)
    assert list_actions(guard) == ["call_approval_requested", "call_paused"]
