"""Every ledger against a sequential model: random walks one step at a time, and histories of
threads that ran at once.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from model import LEASE_S, LIMITS, WINDOWED, Model
from timed import TimedBook, open_timed

from edictum.core.limits import Account, Amount, Limit
from edictum.core.scopes import scope_key
from edictum.testing.ledger import Book, as_tuple
from support.effort import effort

# The call id of a parent's lease is an inner matter of the ledger; the model only needs it to be
# another name.
NAMES = ["1", "2", "3"]
TREE: list[tuple[str, tuple[str, ...]]] = [
    ("root", ()),
    ("child", ("root",)),
    ("grandchild", ("child", "root")),
]
# Scopes of each session, the widest last. They have the other kind of limits than the session.
SCOPES: dict[str, tuple[str, ...]] = {
    "root": ("acme",),
    "child": ("alice", "acme"),
    "grandchild": ("alice",),
}
ACCOUNTS = ("root", "child", "grandchild", "alice", "acme")
RESULTS = ["success", "failure", "release"]
PRICES = [None, 0, 100_000, 300_000]
CALLS, SESSIONS, COSTS, LEASES = (
    st.sampled_from(it) for it in (NAMES, TREE, PRICES, [None, LEASE_S])
)
# No sum of these is near the length of a lease or a window, and from below least of all: servers
# have clocks of their own, which go on while a walk is walked. And no walk takes an hour, after
# which SQLite and PostgreSQL do not know any more which calls ended.
STEPS_S = [120, 130]
numbers = itertools.count(1)


@pytest.fixture(params=["memory", "sqlite", "valkey", "postgres"])
def timed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TimedBook]:
    with open_timed(request.param, request.getfixturevalue, tmp_path) as timed:
        yield timed


@pytest.fixture
def book(timed: TimedBook) -> Book:
    return timed.book


def machine(timed: TimedBook, limits: tuple[Limit, ...]) -> type[RuleBasedStateMachine]:
    book = timed.book
    scope_limits = WINDOWED if limits is LIMITS else LIMITS

    class LedgerMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()
            self.prefix = f"walk {next(numbers)} {time.time_ns()} "

        def _id(self, *sessions: str) -> tuple[str, ...]:
            return tuple(self.prefix + session for session in sessions)

        def _key(self, account: str) -> str:
            is_scope = account in ("alice", "acme")
            return (
                scope_key("principal", self._id(account)[0]) if is_scope else self._id(account)[0]
            )

        def _scopes(self, sid: str) -> tuple[Account, ...]:
            return tuple(Account(self._key(it), ("", "t"), scope_limits) for it in SCOPES[sid])

        @rule(
            where=SESSIONS,
            call=CALLS,
            cost=COSTS,
            attempt=st.booleans(),
            hold=st.integers(0, 3),
            enforce=st.integers(0, 5),
            lease_s=LEASES,
            counts=st.booleans(),
        )
        def reserve(
            self,
            where: Any,
            call: str,
            cost: int | None,
            attempt: bool,
            hold: int,
            enforce: int,
            lease_s: int | None,
            counts: bool,
        ) -> None:
            sid, parents = where
            amounts = {} if cost is None else {"cost": cost}
            said = book.reserve(
                call,
                limits,
                sid=self._id(sid)[0],
                parents=self._id(*parents),
                accounts=self._scopes(sid),
                count_attempt=attempt,
                hold=hold > 0,
                enforce=enforce > 0,
                amounts=amounts,
                lease_s=lease_s,
                expiry_counts=counts,
            )
            self.model, granted = self.model.reserve(
                sid,
                call,
                parents,
                attempt=attempt,
                hold=hold > 0,
                enforce=enforce > 0,
                cost=cost,
                limits=limits,
                lease_s=lease_s,
                counts=counts,
                scopes=SCOPES[sid],
                scope_limits=scope_limits,
            )
            assert said.granted is granted

        @rule(where=SESSIONS, call=CALLS, result=st.sampled_from(RESULTS), cost=COSTS)
        def settle(self, where: Any, call: str, result: Any, cost: int | None) -> None:
            sid, parents = where
            amounts = {} if cost is None else {"cost": cost}
            said = book.settle(
                call,
                result,
                limits,
                sid=self._id(sid)[0],
                parents=self._id(*parents),
                accounts=self._scopes(sid),
                amounts=amounts,
            )
            self.model = self.model.settle(sid, call, (*parents, *SCOPES[sid]), result, cost)
            assert as_tuple(said) == self.model.count(sid).counters()

        @rule(where=SESSIONS, call=CALLS)
        def renew(self, where: Any, call: str) -> None:
            sid, parents = where
            said = book.renew(call, LEASE_S, sid=self._id(sid)[0])
            self.model, renewed = self.model.renew(sid, call, (*parents, *SCOPES[sid]), LEASE_S)
            assert said is renewed

        @rule(seconds=st.sampled_from(STEPS_S))
        def time_passes(self, seconds: int) -> None:
            timed.advance(self.prefix, seconds)
            self.model = self.model.advance(seconds)

        @rule(sid=st.sampled_from(ACCOUNTS))
        def reset(self, sid: str) -> None:
            book.reset(self._key(sid))
            self.model = self.model.reset(sid)

        @invariant()
        def the_counters_agree(self) -> None:
            """Reading a session also ends its leases that have run out, so none is left when the
            next rule is followed.
            """
            for sid in ACCOUNTS:
                count, snapshot = self.model.count(sid), book.snapshot(self._key(sid))
                assert as_tuple(snapshot.totals) == count.counters(), sid
                cost = snapshot.amounts.get("", {}).get("cost", Amount())
                assert (cost.spent, cost.reserved) == (
                    count.spent / 1_000_000,
                    count.reserved / 1_000_000,
                ), sid

    return LedgerMachine


@pytest.mark.soak
@pytest.mark.parametrize("limits", [LIMITS, WINDOWED], ids=["totals", "windows"])
def test_a_walk_agrees_with_the_model(timed: TimedBook, limits: tuple[Limit, ...]) -> None:
    run_state_machine_as_test(
        machine(timed, limits),
        settings=settings(max_examples=effort(10, soak=60), stateful_step_count=25, deadline=None),
    )  # type: ignore[no-untyped-call]


def stroll(walker: Any, rng: random.Random, steps: int) -> None:
    """A long walk: hypothesis finds the short ones, and seldom the ones in which much has happened
    before.
    """
    for _ in range(steps):
        where, call, cost = rng.choice(TREE), rng.choice(NAMES), rng.choice(PRICES)
        match rng.choices(["reserve", "settle", "renew", "time", "reset"], [45, 30, 8, 14, 3])[0]:
            case "reserve":
                ask(walker, rng, where, call, cost)
            case "settle":
                walker.settle(where, call, rng.choice(RESULTS), cost)
            case "renew":
                walker.renew(where, call)
            case "time":
                walker.time_passes(rng.choice(STEPS_S))
            case _:
                walker.reset(where[0])
                for name in rng.choice(
                    [(), NAMES]
                ):  # calls that ran when their session was forgotten, and are held above it
                    ask(walker, rng, where, name, cost)
        walker.the_counters_agree()


def ask(walker: Any, rng: random.Random, where: Any, call: str, cost: int | None) -> None:
    lease_s, attempt = rng.choice([None, LEASE_S, LEASE_S]), rng.random() < 0.8
    walker.reserve(
        where, call, cost, attempt, rng.randrange(5), rng.randrange(6), lease_s, rng.random() < 0.5
    )


@pytest.mark.soak
@pytest.mark.parametrize("limits", [LIMITS, WINDOWED], ids=["totals", "windows"])
def test_long_walks_agree_with_the_model(timed: TimedBook, limits: tuple[Limit, ...]) -> None:
    for seed in range(timed.walks):
        stroll(machine(timed, limits)(), random.Random(seed), 60)


# --- Histories ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    began: float
    ended: float
    what: tuple[Any, ...]
    said: Any


def perform(book: Book, sid: str, what: tuple[Any, ...]) -> Any:
    match what:
        case ("reserve", call):
            return book.reserve(call, LIMITS, sid=sid).granted
        case ("settle", call, result):
            return as_tuple(book.settle(call, result, LIMITS, sid=sid))
        case _:
            return book.totals(sid)


def follow(model: Model, what: tuple[Any, ...]) -> tuple[Model, Any]:
    match what:
        case ("reserve", call):
            return model.reserve("s", call, ())
        case ("settle", call, result):
            after = model.settle("s", call, (), result, None)
            return after, after.count("s").counters()
        case _:
            return model, model.count("s").counters()


def is_linearisable(history: list[Event]) -> bool:
    """Whether some order explains all answers and never puts an operation before one that had ended
    when it began.
    """
    seen: set[Any] = set()

    def search(model: Model, left: frozenset[int]) -> bool:
        if not left:
            return True
        state = (model.key(), left)
        if state in seen:
            return False
        seen.add(state)
        first_end = min(history[index].ended for index in left)
        for index in left:
            if history[index].began <= first_end:
                after, said = follow(model, history[index].what)
                if said == history[index].said and search(after, left - {index}):
                    return True
        return False

    return search(Model(), frozenset(range(len(history))))


def random_plan(rng: random.Random, worker: int) -> list[tuple[Any, ...]]:
    plan: list[tuple[Any, ...]] = []
    for number in range(3):
        call = f"{worker}-{number}" if rng.random() < 0.8 else "shared"
        plan.append(("reserve", call))
        if rng.random() < 0.3:
            plan.append(("read",))
        plan.append(("settle", call, rng.choice(["success", "failure", "release"])))
    return plan


def record(book: Book, sid: str, plans: list[list[tuple[Any, ...]]]) -> list[Event]:
    history: list[Event] = []
    start = threading.Barrier(len(plans))

    def work(plan: list[tuple[Any, ...]]) -> None:
        start.wait()
        for what in plan:
            began = time.perf_counter()
            said = perform(book, sid, what)
            history.append(Event(began, time.perf_counter(), what, said))

    threads = [threading.Thread(target=work, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return history


def test_histories_of_threads_can_be_explained(book: Book, eager_threads: None) -> None:
    overlaps = 0
    for seed in itertools.count():
        if seed >= 12 and (overlaps or seed == 2_000):  # on a busy machine threads seldom overlap
            break
        rng = random.Random(seed)
        plans = [random_plan(rng, worker) for worker in range(4)]
        history = record(book, f"history {seed} {time.time_ns()}", plans)
        assert len(history) == sum(map(len, plans)), "a thread raised"
        assert is_linearisable(history), history
        overlaps += sum(
            one.began < other.ended and other.began < one.ended
            for one, other in itertools.combinations(history, 2)
        )
    assert overlaps > 0  # else nothing ran at once, and nothing was shown


def test_the_check_itself_finds_a_wrong_history() -> None:
    """Six calls were granted at once where five fit; and an answer was given before its cause."""
    over = [Event(0.0, 1.0, ("reserve", str(number)), True) for number in range(6)]
    assert not is_linearisable(over)
    early = [
        Event(0.0, 1.0, ("read",), (1, 0, 0, 0, 0, 1)),
        Event(2.0, 3.0, ("reserve", "a"), True),
    ]
    assert not is_linearisable(early)
    assert is_linearisable([Event(0.0, 2.5, ("read",), (1, 0, 0, 0, 0, 1)), early[1]])
