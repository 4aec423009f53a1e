"""``try_reserve`` and ``try_commit`` of the in-memory ledger count exactly as ``reserve`` and
``settle`` do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from edictum.core.limits import Limit, Metric, Reservation, Settlement
from edictum.sessions.memory import MemoryLedger, ReservationTemplate, reservation_template

TOOLS = ("", "send", "send*")
Result = Literal["success", "failure", "release"]


def limit(metric: Metric, maximum: int, tool: str) -> Limit:
    return Limit(
        name="a limit",
        metric=metric,
        maximum=maximum,
        tool="" if metric is Metric.ATTEMPTS else tool,
        amount="cost" if metric is Metric.AMOUNT else None,
    )


limits = st.lists(
    st.builds(limit, st.sampled_from(list(Metric)), st.integers(0, 4), st.sampled_from(TOOLS)),
    max_size=3,
).map(tuple)
steps = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from(["success", "success", "failure", "release"]),
        st.booleans(),
        st.sampled_from([{}, {}, {"cost": 1}, {"cost": 2, "pages": 1}]),
    ),
    max_size=30,
)


@dataclass
class Caller:
    """Makes the same calls in one of two ways: by a template where it is free, or by reservations."""

    template: ReservationTemplate
    quick: bool
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    running: dict[str, bool] = field(default_factory=dict)

    def begin(self, call: str, amounts: dict[str, int]) -> bool:
        if self.quick and self.ledger.try_reserve("s", call, self.template, amounts) is not None:
            self.running[call] = True
            return True
        what = ("s", call, self.template.tools, self.template.lease.held.limits)
        granted = self.ledger.reserve(Reservation(*what, amounts=amounts)).granted
        if granted:
            self.running[call] = False
        return granted

    def end(self, call: str, result: Result, *, twice: bool) -> None:
        if self.running.pop(call) and result != "release":
            success = result == "success"
            assert self.ledger.try_commit("s", call, self.template, success) is not None
            if not twice:
                return
        for _ in range(1 + twice):
            self.ledger.settle(
                Settlement("s", call, self.template.tools, self.template.lease.held.limits, result)
            )


@given(limits, steps)
def test_a_template_counts_as_a_reservation_does(
    limits: tuple[Limit, ...], steps: list[tuple[int, Result, bool, dict[str, int]]]
) -> None:
    template = ReservationTemplate(TOOLS, limits)
    callers = [Caller(template, quick=True), Caller(template, quick=False)]
    for number, (slot, result, twice, amounts) in enumerate(steps):
        call = next((call for call in callers[0].running if call.startswith(f"{slot}.")), None)
        if call is None:
            begun = [caller.begin(f"{slot}.{number}", amounts) for caller in callers]
            assert begun[0] is begun[1]
        else:
            for caller in callers:
                caller.end(call, result, twice=twice)
        quick, slow = (caller.ledger.snapshot("s") for caller in callers)
        assert repr(quick) == repr(slow)


def test_try_reserve_declines_new_sessions_and_sessions_with_leases() -> None:
    ledger, template = MemoryLedger(), ReservationTemplate(("", "send"), ())
    assert ledger.try_reserve("new session", "call", template) is None
    ledger.reserve(Reservation("s", "a", template.tools, (), lease_s=5))
    assert ledger.try_reserve("s", "b", template) is None, (
        "a lease of this session may have run out"
    )
    assert ledger.snapshot("s").totals.attempts == 1


def test_try_commit_declines_a_session_that_was_reset() -> None:
    ledger, template = MemoryLedger(), ReservationTemplate(("", "send"), ())
    ledger.settle(Settlement("s", "first", template.tools, (), "success"))
    assert ledger.try_reserve("s", "call", template) is not None
    ledger.reset("s")
    assert ledger.try_commit("s", "call", template, True) is None
    assert ledger.settle(Settlement("s", "call", template.tools, (), "success")).successes == 1


def test_the_same_call_reserved_again_is_granted_and_counted_once() -> None:
    ledger, template = MemoryLedger(), ReservationTemplate(("", "send"), ())
    ledger.settle(Settlement("s", "first", template.tools, (), "success"))
    assert ledger.try_reserve("s", "call", template) == (1, 1)
    assert ledger.try_reserve("s", "call", template) is None
    assert ledger.reserve(Reservation("s", "call", template.tools, ())).granted
    assert ledger.snapshot("s").totals.in_flight == 1


def test_windows_have_no_template() -> None:
    rate = Limit(name="rate", metric=Metric.EXECUTIONS, maximum=1, window_s=60)
    assert reservation_template(("",), (rate,)) is None


class Now:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_sessions_with_a_lifetime_are_kept_alive_by_try_reserve() -> None:
    now = Now()
    ledger, template = MemoryLedger(clock=now, ttl_s=10), ReservationTemplate(("", "send"), ())
    ledger.reserve(Reservation("s", "first", template.tools, ()))
    ledger.settle(Settlement("s", "first", template.tools, (), "success"))
    for number in range(5):
        now.s += 6
        call = f"c{number}"
        if ledger.try_reserve("s", call, template) is None:  # time to look for old sessions
            ledger.reserve(Reservation("s", call, template.tools, ()))
            ledger.settle(Settlement("s", call, template.tools, (), "success"))
        else:
            assert ledger.try_commit("s", call, template, True) is not None
    assert ledger.snapshot("s").totals.executions == 6


def test_try_reserve_declines_a_session_whose_lifetime_is_over() -> None:
    now = Now()
    ledger, template = MemoryLedger(clock=now, ttl_s=10), ReservationTemplate(("", "send"), ())
    ledger.reserve(Reservation("s", "first", template.tools, ()))
    ledger.settle(Settlement("s", "first", template.tools, (), "success"))
    now.s += 11
    assert ledger.try_reserve("s", "second", template) is None
    assert ledger.reserve(Reservation("s", "second", template.tools, ())).counters.attempts == 1
