"""The quick way through the in-memory ledger, ``enter`` and ``leave``, counts exactly as
``reserve`` and ``settle`` do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from edictum.core.limits import Limit, Metric, Reservation, Seat, Settlement, seat_for
from edictum.sessions.memory import MemoryLedger

SCOPES = ("", "send", "send*")
METRICS = [metric for metric in Metric if metric is not Metric.AMOUNT]
Result = Literal["success", "failure", "release"]


def limit(metric: Metric, maximum: int, scope: str) -> Limit:
    return Limit(
        name="a limit",
        metric=metric,
        maximum=maximum,
        scope="" if metric is Metric.ATTEMPTS else scope,
    )


limits = st.lists(
    st.builds(limit, st.sampled_from(METRICS), st.integers(0, 4), st.sampled_from(SCOPES)),
    max_size=3,
).map(tuple)
steps = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from(["success", "success", "failure", "release"]),
        st.booleans(),
    ),
    max_size=30,
)


@dataclass
class Caller:
    """Makes the same calls in one of two ways: as the lifecycle does, by a seat where there is one
    free; or the long way.
    """

    seat: Seat
    quick: bool
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    running: dict[str, bool] = field(default_factory=dict)

    def begin(self, call: str) -> bool:
        if self.quick and self.ledger.enter("s", call, self.seat) is not None:
            self.running[call] = True
            return True
        granted = self.ledger.reserve(
            Reservation("s", call, self.seat.scopes, self.seat.limits)
        ).granted
        if granted:
            self.running[call] = False
        return granted

    def end(self, call: str, result: Result, *, twice: bool) -> None:
        if self.running.pop(call) and result == "success":
            assert self.ledger.leave("s", call, self.seat) is not None
            if not twice:
                return
        for _ in range(1 + twice):
            self.ledger.settle(Settlement("s", call, self.seat.scopes, self.seat.limits, result))


@given(limits, steps)
def test_a_seat_counts_as_a_reservation_does(
    limits: tuple[Limit, ...], steps: list[tuple[int, Result, bool]]
) -> None:
    seat = Seat(SCOPES, limits)
    callers = [Caller(seat, quick=True), Caller(seat, quick=False)]
    for number, (slot, result, twice) in enumerate(steps):
        call = next((call for call in callers[0].running if call.startswith(f"{slot}.")), None)
        if call is None:
            assert callers[0].begin(f"{slot}.{number}") is callers[1].begin(f"{slot}.{number}")
        else:
            for caller in callers:
                caller.end(call, result, twice=twice)
        quick, slow = (caller.ledger.snapshot("s") for caller in callers)
        assert repr(quick) == repr(slow)


def test_a_seat_is_not_given_where_there_is_more_to_think_about() -> None:
    ledger, seat = MemoryLedger(), Seat(("", "send"), ())
    assert ledger.enter("new session", "call", seat) is None
    ledger.reserve(Reservation("s", "a", seat.scopes, (), lease_s=5))
    assert ledger.enter("s", "b", seat) is None, "a lease of this session may have run out"
    assert ledger.snapshot("s").totals.attempts == 1


def test_a_seat_in_a_session_that_was_reset_is_not_left_but_settled() -> None:
    ledger, seat = MemoryLedger(), Seat(("", "send"), ())
    ledger.settle(Settlement("s", "first", seat.scopes, (), "success"))
    assert ledger.enter("s", "call", seat) is not None
    ledger.reset("s")
    assert ledger.leave("s", "call", seat) is None
    assert ledger.settle(Settlement("s", "call", seat.scopes, (), "success")).successes == 1


def test_the_same_call_reserved_again_is_granted_and_counted_once() -> None:
    ledger, seat = MemoryLedger(), Seat(("", "send"), ())
    ledger.settle(Settlement("s", "first", seat.scopes, (), "success"))
    assert ledger.enter("s", "call", seat) == (1, 1)
    assert ledger.enter("s", "call", seat) is None
    assert ledger.reserve(Reservation("s", "call", seat.scopes, ())).granted
    assert ledger.snapshot("s").totals.in_flight == 1


def test_windows_and_budgets_have_no_seats() -> None:
    assert (
        seat_for(("",), (Limit(name="rate", metric=Metric.EXECUTIONS, maximum=1, window_s=60),))
        is None
    )
    assert (
        seat_for(("",), (Limit(name="cost", metric=Metric.AMOUNT, maximum=1, amount="cost"),))
        is None
    )
