"""Calls that may be made once per window: what counts as made, and what keeps their place while a
person decides.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from turns import Bench, ask_first, new_guard, new_state

from edictum import InMemoryApprovalBackend
from edictum.core._records import replace
from edictum.core.limits import Grant, Reservation
from edictum.harness import BoundedToolExecutor, ToolSpec, TurnBudget, TurnState, tool
from edictum.outcomes import ToolDenied, ToolExecutionResult, ToolFailure
from edictum.sessions import MemoryLedger
from edictum.testing import FailingLedger
from support.waiting import wait_in_loop

PAID: list[int] = []


def pay_and_return_a_lock(order: int) -> Any:
    return threading.Lock()


def payment(value: Any = "receipt", **settings: Any) -> ToolSpec:
    async def pay(order: int) -> int:
        PAID.append(order)
        return value  # type: ignore[no-any-return]

    return tool(
        name="pay", **{"side_effect": "irreversible", "window_s": 600, "verify": "find", **settings}
    )(pay)


@pytest.fixture(autouse=True)
def nothing_is_paid() -> None:
    PAID.clear()


def broken_check(tool_name: str, result: Any) -> bool:
    raise RuntimeError("the checker is broken")


async def made_once(bench: Bench) -> ToolFailure:
    """A call whose body ran to its end, though nobody can tell what it did, is not made again: in
    this turn, and in the next.
    """
    first = await bench.call("pay", {"order": 7})
    assert isinstance(first, ToolFailure)
    assert (first.retryable, first.effect_unknown, first.verify_tool) == (False, True, "find")
    bench.state = new_state()
    again = await bench.call("pay", {"order": 7})
    assert isinstance(again, ToolDenied)
    assert again.reason == "duplicate"
    return first


async def test_a_result_that_nobody_understands_does_not_mean_that_nothing_happened() -> None:
    first = await made_once(Bench(payment("receipt-7"), ToolSpec(name="find")))
    assert PAID == [7]
    assert first.success_source == "schema"
    assert (
        first.error
        == 'The result does not fit the tool\'s schema: "receipt-7" is not of type "integer"'
    )


async def test_a_check_that_fails_does_not_mean_that_nothing_happened() -> None:
    first = await made_once(
        Bench(payment(7), ToolSpec(name="find"), guard=new_guard(success_check=broken_check))
    )
    assert PAID == [7]
    assert first.policy_error


async def test_a_result_that_cannot_come_back_does_not_mean_that_nothing_happened() -> None:
    spec = tool(
        name="pay", side_effect="irreversible", window_s=600, isolation="process", verify="find"
    )(pay_and_return_a_lock)
    assert "cannot be sent back" in (await made_once(Bench(spec, ToolSpec(name="find")))).error


async def test_what_a_read_reports_is_never_an_effect() -> None:
    read = tool(name="look", side_effect="read")(payment("text").function)  # type: ignore[arg-type]
    outcome = await Bench(read).call("look", {"order": 7})
    assert isinstance(outcome, ToolFailure)
    assert (outcome.retryable, outcome.effect_unknown, outcome.verify_tool) == (True, False, None)


# --- While a person decides -----------------------------------------------------------------------


class SlowClerk:
    """Decides when he is told to; meanwhile the ledger's clock goes on."""

    def __init__(self, **settings: Any) -> None:
        self.now = 0.0
        self.backend = InMemoryApprovalBackend()
        ledger = MemoryLedger(clock=lambda: self.now)
        guard = new_guard(contracts=[ask_first], approval_backend=self.backend, backend=ledger)
        self.bench = Bench(payment(7, **settings), ToolSpec(name="find"), guard=guard)

    async def asked(self) -> asyncio.Task[Any]:
        """A call that waits for him."""
        call = asyncio.create_task(self.bench.call("pay", {"order": 7}))
        await wait_in_loop(lambda: self.backend.pending)
        return call

    def decide(self, approved: bool) -> None:
        for request in self.backend.pending:
            self.backend.decide(request.approval_id, approved)


@pytest.mark.parametrize("window_s", [60, 86_400])
async def test_a_call_keeps_its_place_while_a_person_decides(window_s: float) -> None:
    clerk = SlowClerk(window_s=window_s)
    first = await clerk.asked()
    clerk.now += 250
    again = await clerk.bench.call("pay", {"order": 7})
    assert isinstance(again, ToolDenied)
    assert again.reason == "duplicate"
    clerk.decide(True)
    assert isinstance(await first, ToolExecutionResult)
    assert PAID == [7]


async def test_a_call_that_a_person_refused_may_be_asked_for_again() -> None:
    clerk = SlowClerk()
    first = await clerk.asked()
    clerk.now += 250
    clerk.decide(False)
    assert isinstance(await first, ToolDenied)
    second = await clerk.asked()
    clerk.decide(True)
    assert isinstance(await second, ToolExecutionResult)


class ForgetfulLedger(MemoryLedger):
    def renew(self, session_id: str, call_id: str, lease_s: float) -> bool:
        return False


@pytest.mark.parametrize(
    ("ledger", "why"),
    [(FailingLedger({"renew"}), "the ledger is down"), (ForgetfulLedger(), "it is gone")],
    ids=["fails", "forgets"],
)
async def test_nobody_is_asked_about_a_call_whose_place_cannot_be_kept(
    ledger: MemoryLedger, why: str
) -> None:
    backend = InMemoryApprovalBackend(True)
    bench = Bench(
        payment(7),
        ToolSpec(name="find"),
        guard=new_guard(contracts=[ask_first], approval_backend=backend, backend=ledger),
    )
    outcome = await bench.call("pay", {"order": 7})
    assert isinstance(outcome, ToolDenied)
    assert (outcome.policy_error, backend.requests, PAID) == (True, [], [])
    assert (
        outcome.details
        == f"The place of this call within its window cannot be kept while a person decides: {why}"
    )


class NotingLedger(MemoryLedger):
    def __init__(self) -> None:
        super().__init__()
        self.leases: list[float | None] = []

    def reserve(self, reservation: Reservation) -> Grant:
        self.leases.append(reservation.lease_s)
        return super().reserve(reservation)


async def test_a_place_is_kept_for_longer_than_all_attempts_can_take() -> None:
    ledger = NotingLedger()
    spec = payment(7, side_effect="write", idempotent=True, max_retries=9)
    await Bench(spec, ToolSpec(name="find"), guard=new_guard(backend=ledger)).call(
        "pay", {"order": 7}, tool_timeout_cap_s=40
    )
    assert ledger.leases[0] is not None
    assert ledger.leases[0] > 10 * 40


async def test_a_window_belongs_to_the_session_not_to_the_one_above() -> None:
    guard = new_guard()
    for session in ("first child", "second child", "second child"):
        executor = BoundedToolExecutor([payment(7), ToolSpec(name="find")], guard=guard)
        turn = executor.turn(TurnState(session, TurnBudget.create(600)))
        outcome = await guard.dispatch("pay", {"order": 7}, turn=turn, parent_session_id="above")
    assert PAID == [7, 7]
    assert isinstance(outcome, ToolDenied)
    assert guard.session("above").snapshot().per_tool.keys() == {"pay"}


async def test_a_grant_that_came_after_its_lease_is_not_run() -> None:
    """The place in the window may be another call's; it is given back."""

    class Late(MemoryLedger):
        is_late = True

        def reserve(self, reservation: Reservation) -> Grant:
            return replace(super().reserve(reservation), is_late=self.is_late)

    ledger = Late()
    bench = Bench(payment(7), ToolSpec(name="find"), guard=new_guard(backend=ledger))
    late = await bench.call("pay", {"order": 7})
    assert isinstance(late, ToolDenied)
    assert (late.reason, PAID) == ("policy_error", [])
    ledger.is_late = False
    assert isinstance(await bench.call("pay", {"order": 7}), ToolExecutionResult)
