"""A ledger and an audit in one database: a call is counted and recorded in the same transaction."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edictum import (
    CompositeSink,
    Edictum,
    OperationLimits,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    Verdict,
    postcondition,
    session_contract,
)
from edictum.audit import SqliteAuditSink, open_audit, query
from edictum.execution.portal import PORTAL
from edictum.harness import ModelReply, ToolCallRequest, run_turn_sync, tool
from edictum.sessions import open as open_ledger
from edictum.testing import RecordingSink
from support.databases import open_sqlite
from support.guards import denying
from support.waiting import wait_until

MakeGuard = Callable[..., Edictum]


@pytest.fixture
def make_guard(database_url: str) -> Iterator[MakeGuard]:
    """Make guards whose ledger and audit are in one database."""
    made: list[Edictum] = []

    def make(**options: Any) -> Edictum:
        made.append(Edictum(backend=database_url, audit_sink=open_audit(database_url), **options))
        return made[-1]

    yield make
    for guard in made:
        PORTAL.run(guard.close())


def is_joined(guard: Edictum) -> bool:
    return guard._state.handlers._joined is not None


def list_steps(guard: Edictum) -> list[tuple[Any, ...]]:
    return [
        (it["action"], it["session_attempt_count"], it["session_execution_count"])
        for it in guard.audit.query()
    ]


def check_same_as_in_memory(guard: Edictum) -> None:
    """The database has each event once, as the guard's own memory has it."""
    stored = list(guard.audit.query())
    own = [event.to_dict() for event in guard.local_sink.events]
    assert stored == own


# --- What is written ------------------------------------------------------------------------------


def test_the_database_fills_in_the_counters(make_guard: MakeGuard) -> None:
    """Even where an argument looks like them."""
    guard = make_guard()
    assert is_joined(guard)
    for body in (lambda text: 1, lambda text: 1 / 0, lambda text: 3):
        guard.dispatch_sync("t", {"text": '"session_attempt_count": 7'}, body, session_id="s")
    assert list_steps(guard) == [
        ("call_allowed", 1, 0),
        ("call_executed", 1, 1),
        ("call_allowed", 2, 1),
        ("call_failed", 2, 2),
        ("call_allowed", 3, 2),
        ("call_executed", 3, 3),
    ]
    check_same_as_in_memory(guard)


def test_calls_at_once_are_each_recorded_with_their_own_counters(make_guard: MakeGuard) -> None:
    """No number is missing, and none is there twice."""
    guard = make_guard()

    async def call() -> None:
        calls = [guard.dispatch("t", {}, lambda: 1, session_id="s") for _ in range(40)]
        await asyncio.gather(*calls)

    asyncio.run(call())
    steps = list_steps(guard)
    assert sorted(it[1] for it in steps if it[0] == "call_allowed") == list(range(1, 41))
    assert sorted(it[2] for it in steps if it[0] == "call_executed") == list(range(1, 41))


def test_a_denied_call_is_recorded_with_its_attempt(make_guard: MakeGuard) -> None:
    """The contract has decided before the ledger is asked."""
    guard = make_guard(contracts=[denying("never")])
    assert isinstance(guard.dispatch_sync("t", {}, lambda: 1, session_id="s"), ToolDenied)
    assert list_steps(guard) == [("call_denied", 1, 0)]
    check_same_as_in_memory(guard)


def test_a_call_that_a_gate_of_a_turn_refuses_is_recorded_once(make_guard: MakeGuard) -> None:
    """Unknown tools, wrong arguments, blocked tools and callers that cannot be identified."""

    @tool(side_effect="read")
    def pay(n: int) -> str:
        """Pay."""
        return "paid"

    calls = [("c1", "pay", {"n": 1}), ("c2", "pay", {"n": "x"}), ("c3", "nope", {})]

    def answer(messages: Any, tools: Any) -> ModelReply:
        asked = messages[-1]["role"] == "user"
        return ModelReply("", tuple(ToolCallRequest(*it) for it in calls if asked))

    guard = make_guard()
    turn = [{"role": "user", "content": "Pay."}]
    run_turn_sync(answer, turn, [pay], guard, session_id="s")
    run_turn_sync(answer, turn, [pay], guard, session_id=lambda request: 1 / 0)
    events = list(guard.audit.query())
    closed = sorted(it["call_id"] for it in events if it["outcome"] is not None)
    assert closed == ["c1", "c1", "c2", "c2", "c3", "c3"]
    assert guard.audit.report().calls == 6


def test_a_full_limit_is_recorded_as_a_denial_and_not_as_a_call(make_guard: MakeGuard) -> None:
    """The event that went with the reservation is not written."""
    guard = make_guard(limits=OperationLimits(max_tool_calls=1))
    for _ in range(2):
        guard.dispatch_sync("t", {}, lambda: 1, session_id="s")
    assert [step[0] for step in list_steps(guard)] == [
        "call_allowed",
        "call_executed",
        "call_denied",
    ]
    check_same_as_in_memory(guard)


def test_a_limit_that_observes_is_recorded_before_the_call(make_guard: MakeGuard) -> None:
    """The event that went with the reservation is not written."""
    guard = make_guard(limits=OperationLimits(max_tool_calls=1), mode="observe")
    for _ in range(2):
        guard.dispatch_sync("t", {}, lambda: 1, session_id="s")
    assert [step[0] for step in list_steps(guard)][2:] == [
        "call_would_deny",
        "call_allowed",
        "call_executed",
    ]
    check_same_as_in_memory(guard)


def test_session_contracts_are_asked_before_the_call_is_recorded(make_guard: MakeGuard) -> None:
    """User code stands between the reservation and its event."""

    @session_contract(id="first-only")
    async def first_only(session: Any) -> Verdict:
        is_first = await session.attempt_count() < 2
        return Verdict.pass_() if is_first else Verdict.fail("no more")

    guard = make_guard(contracts=[first_only])
    outcomes = [guard.dispatch_sync("t", {}, lambda: 1, session_id="s") for _ in range(2)]
    assert [type(it) for it in outcomes] == [ToolExecutionResult, ToolDenied]
    assert [step[0] for step in list_steps(guard)] == [
        "call_allowed",
        "call_executed",
        "call_denied",
    ]
    check_same_as_in_memory(guard)


def test_warnings_stand_before_the_event_that_closes_the_call(make_guard: MakeGuard) -> None:
    """They have the counters of the settlement as well."""

    @postcondition("t", id="odd")
    def odd(call: Any, result: Any) -> Verdict:
        return Verdict.fail("even")

    guard = make_guard(contracts=[odd])
    guard.dispatch_sync("t", {}, lambda: 2, session_id="s")
    assert list_steps(guard) == [
        ("call_allowed", 1, 0),
        ("postcondition_warning", 1, 1),
        ("call_executed", 1, 1),
    ]
    check_same_as_in_memory(guard)


def test_other_sinks_get_the_same_events(make_guard: MakeGuard, database_url: str) -> None:
    """With the counters that the database has filled in."""
    other = RecordingSink()
    guard = Edictum(backend=database_url, audit_sink=[open_audit(database_url), other])
    assert is_joined(guard)
    guard.dispatch_sync("t", {}, lambda: 1, session_id="s")
    assert [event.to_dict() for event in other.events] == list(query(database_url))
    PORTAL.run(guard.close())


# --- What is joined -------------------------------------------------------------------------------


def test_which_ledgers_and_sinks_are_joined(tmp_path: Path) -> None:
    """Those of one file; every call is recorded in any case."""
    url, other = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    cases = {
        "same": (url, SqliteAuditSink(tmp_path / "a.db"), True),
        "by another name": (url, SqliteAuditSink(tmp_path / "link.db"), True),
        "with others": (
            url,
            CompositeSink([RecordingSink(), CompositeSink([SqliteAuditSink(tmp_path / "a.db")])]),
            True,
        ),
        "another file": (other, SqliteAuditSink(tmp_path / "a.db"), False),
        "memory": ("memory:", SqliteAuditSink(tmp_path / "a.db"), False),
        "drops": (url, SqliteAuditSink(tmp_path / "a.db", when_full="drop"), False),
    }
    for name, (backend, sink, expected) in cases.items():
        guard = Edictum(backend=backend, audit_sink=sink)
        assert is_joined(guard) is expected, name
        assert isinstance(guard.dispatch_sync("t", {}, lambda: 1), ToolExecutionResult), name
        PORTAL.run(guard.close())
    assert len(list(query(url))) == 12


def test_guards_that_share_a_ledger_share_its_audit(database_url: str) -> None:
    """A second sink on the same database writes by itself."""
    ledger = open_ledger(database_url)
    first, second = open_audit(database_url), open_audit(database_url)
    guards = [Edictum(backend=ledger, audit_sink=sink) for sink in (first, first, second)]
    assert [is_joined(guard) for guard in guards] == [True, True, False]
    for guard in guards:
        guard.dispatch_sync("t", {}, lambda: 1, session_id="s")
    steps = list_steps(guards[0])
    assert [step[2] for step in steps if step[0] == "call_executed"] == [1, 2, 3]
    for part in (ledger, first, second):
        PORTAL.run(part.close())


# --- What fails -----------------------------------------------------------------------------------


def test_neither_is_there_when_the_transaction_fails(tmp_path: Path) -> None:
    """A full disk, in effect: the event cannot be inserted, so the call is not counted either."""
    url = f"sqlite:///{tmp_path}/a.db"
    guard = Edictum(backend=f"{url}?wait=0.3", audit_sink=open_audit(url))
    guard.dispatch_sync("t", {}, lambda: 1, session_id="s")
    with open_sqlite(tmp_path / "a.db") as db:
        stop = "BEFORE INSERT ON event BEGIN SELECT RAISE(ABORT, 'disk full'); END"
        db.execute(f"CREATE TRIGGER stop {stop}")
    ran: list[int] = []
    outcome = guard.dispatch_sync("t", {}, lambda: ran.append(1), session_id="s")
    assert isinstance(outcome, ToolDenied)
    assert ran == []
    with open_sqlite(tmp_path / "a.db") as db:
        db.execute("DROP TRIGGER stop")
    wait_until(lambda: guard.stats().circuit == "closed")
    assert guard.session("s").snapshot().totals.attempts == 1
    PORTAL.run(guard.close())


def test_an_end_that_the_database_took_late_is_there_once(tmp_path: Path) -> None:
    """The outcome says that it was not counted and not written; both happen when the database can
    be used again.
    """
    url = f"sqlite:///{tmp_path}/a.db"
    guard = Edictum(backend=f"{url}?wait=0.3", audit_sink=open_audit(f"{url}?wait=0.3"))
    blocker = sqlite3.connect(tmp_path / "a.db", isolation_level=None)

    def block() -> int:
        blocker.execute("BEGIN IMMEDIATE")
        return 1

    outcome = guard.dispatch_sync("t", {}, block, session_id="s")
    assert isinstance(outcome, ToolExecutionResult)
    assert len(outcome.notes) == 2
    assert "could not be counted" in outcome.notes[0]
    assert "could not be written" in outcome.notes[1]
    blocker.execute("ROLLBACK")
    blocker.close()
    wait_until(lambda: len(list(guard.audit.query())) == 2)
    assert list_steps(guard) == [("call_allowed", 1, 0), ("call_executed", 1, 1)]
    totals = guard.session("s").snapshot().totals
    assert (totals.executions, totals.successes) == (1, 1)
    PORTAL.run(guard.close())


def test_a_call_that_cannot_be_written_is_counted(make_guard: MakeGuard) -> None:
    """A clock that fails where the event of its end is made."""
    from edictum.testing import FakeClock

    class Failing(FakeClock):
        fails = False

        def now(self) -> float:
            if self.fails:
                raise RuntimeError("no time")
            return super().now()

    clock = Failing()
    guard = make_guard(clock=clock)

    def body() -> int:
        clock.fails = True
        return 1

    outcome = guard.dispatch_sync("t", {}, body, session_id="s")
    assert isinstance(outcome, ToolExecutionResult)
    assert "no time" in outcome.notes[0]
    assert guard.session("s").snapshot().totals.executions == 1
    assert [step[0] for step in list_steps(guard)] == ["call_allowed"]


def test_a_tool_that_is_interrupted_is_counted_and_recorded(make_guard: MakeGuard) -> None:
    """In one transaction too."""
    guard = make_guard()

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard.dispatch_sync("t", {}, interrupt, session_id="s")
    assert [step[0] for step in list_steps(guard)] == ["call_allowed", "call_failed"]
    check_same_as_in_memory(guard)
    assert isinstance(guard.dispatch_sync("t", {}, lambda: 1 / 0, session_id="s"), ToolFailure)
