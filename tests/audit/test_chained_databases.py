"""A chained audit in SQLite, and logs that are compared with their ledger."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from edictum import (
    Edictum,
    EdictumConfigError,
    FileAuditSink,
    InMemoryApprovalBackend,
    ToolExecutionResult,
)
from edictum.audit import Chain, SqliteAuditSink, generate_key, open_audit, query, verify
from edictum.cli.main import main
from edictum.execution.portal import PORTAL
from edictum.sessions import open as open_ledger
from support.databases import open_sqlite
from support.effort import effort
from support.guards import approval_contract
from support.killed_writers import run_program
from support.waiting import wait_in_loop, wait_until


def make_calls(path: Path, *, joined: bool, calls: int = 5, **chain: Any) -> str:
    """Make calls in two sessions, with a chained audit; return the URL of the ledger."""
    ledger = f"sqlite:///{path if joined else path.with_name('sessions.db')}"
    guard = Edictum(backend=ledger, audit_sink=SqliteAuditSink(path, chain=Chain(**chain)))
    for number in range(calls):
        guard.dispatch_sync("t", {}, lambda: 1, session_id=f"s-{number % 2}")
    PORTAL.run(guard.close())
    return ledger


def change(path: Path, *statements: str) -> None:
    with open_sqlite(path) as db:
        for statement in statements:
            db.execute(statement)
    db.close()


# --- The chain ------------------------------------------------------------------------------------


@pytest.mark.parametrize("joined", [False, True])
def test_a_log_that_nothing_was_done_to_verifies(tmp_path: Path, joined: bool) -> None:
    """Both by the URL and by the sink, with signed heads, and with its ledger."""
    path, public = tmp_path / "audit.db", generate_key(tmp_path / "key")
    ledger = make_calls(path, joined=joined, key=tmp_path / "key", head_events=3)
    for source in (f"sqlite:///{path}", SqliteAuditSink(path)):
        found = verify(source, public_key=public, ledger=ledger)
        assert found.ok, found.problems
        assert (found.records, found.unlisted) == (10, 0)
        assert found.heads >= 3


def test_what_is_read_is_the_event_and_its_place_in_the_chain(tmp_path: Path) -> None:
    """The counters are inside of the hash."""
    make_calls(tmp_path / "audit.db", joined=True, calls=1)
    first, second = query(f"sqlite:///{tmp_path}/audit.db")
    assert (first["action"], second["action"]) == ("call_allowed", "call_executed")
    assert second["_chain"]["previous"] == first["_chain"]["hash"]
    assert second["session_execution_count"] == 1


CHANGES = {
    "changed": "UPDATE event SET body = replace(body, 'call_executed', 'call_denied') WHERE id = 4",
    "removed": "DELETE FROM event WHERE id = 5",
    "reordered": "UPDATE event SET id = 100 WHERE id = 5",
    "inserted": "INSERT INTO event SELECT 50, at, session, tool, action, outcome, body FROM event"
    " WHERE id = 3",
    "truncated": "DELETE FROM event WHERE id >= 8",
}


@pytest.mark.parametrize(
    "column", ["at = at + 9", "session = 's'", "tool = ''", "action = 'x'", "outcome = 'failed'"]
)
def test_an_event_that_was_hidden_from_questions_is_found(tmp_path: Path, column: str) -> None:
    """Only what stands beside it was changed."""
    path = tmp_path / "audit.db"
    make_calls(path, joined=True)
    change(path, f"UPDATE event SET {column} WHERE id = 4")
    found = verify(f"sqlite:///{path}")
    assert dict(found.counts) == {"changed": 1}, found.problems
    assert found.problems[0].place.endswith(":4")


@pytest.mark.parametrize("kind", CHANGES)
def test_what_was_done_to_a_table_is_found_and_named(tmp_path: Path, kind: str) -> None:
    """With the rights to change it."""
    path = tmp_path / "audit.db"
    make_calls(path, joined=True)
    change(path, CHANGES[kind])
    found = verify(f"sqlite:///{path}")
    assert dict(found.counts) == {kind: 1}, found.problems


def test_a_transaction_that_failed_begins_another_chain(tmp_path: Path) -> None:
    """Nothing of it is in the log, and nothing is missing."""
    path = tmp_path / "audit.db"
    url = f"sqlite:///{path}"
    sink = SqliteAuditSink(path, chain=True, wait_s=0.3)
    guard = Edictum(backend=f"{url}?wait=0.3", audit_sink=sink)
    guard.dispatch_sync("t", {}, lambda: 1, session_id="s")
    stop = "BEFORE INSERT ON event_writer BEGIN SELECT RAISE(ABORT, 'disk full'); END"
    change(path, f"CREATE TRIGGER stop {stop}")
    guard.dispatch_sync("t", {}, lambda: 1, session_id="s")
    change(path, "DROP TRIGGER stop")
    wait_until(lambda: guard.stats().circuit == "closed")
    guard.dispatch_sync("t", {}, lambda: 1, session_id="s")
    PORTAL.run(guard.close())
    found = verify(url, ledger=url)
    assert found.ok, found.problems
    assert found.writers >= 2


def test_a_head_is_written_when_no_event_comes(tmp_path: Path) -> None:
    """After the seconds that the chain says."""
    guard = Edictum(audit_sink=SqliteAuditSink(tmp_path / "a.db", chain=Chain(head_seconds=0.01)))
    guard.dispatch_sync("t", {}, lambda: 1)
    wait_until(lambda: (tmp_path / "a.db.heads").exists())
    wait_until(lambda: verify(f"sqlite:///{tmp_path}/a.db").unlisted == 0)
    PORTAL.run(guard.close())


def test_a_key_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    """Not when the first event is written."""
    with pytest.raises(EdictumConfigError, match="key"):
        SqliteAuditSink(tmp_path / "audit.db", chain=Chain(key=tmp_path / "none"))


# --- The ledger -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("action = 'call_executed' AND session = 's-1'", "'s-1': the ledger has counted 1 calls"),
        ("session = 's-1'", "'s-1': the ledger has counted 1 calls"),
        ("id >= 6", "'s-0': the ledger has counted 2 calls"),
    ],
)
def test_a_call_that_only_the_ledger_knows_of_is_a_gap(
    tmp_path: Path, condition: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In Python and on the command line."""
    path = tmp_path / "audit.db"
    ledger = make_calls(path, joined=False, calls=3)
    change(path, f"DELETE FROM event WHERE {condition}")
    found = verify(f"sqlite:///{path}", ledger=ledger)
    (gap,) = [problem for problem in found.problems if problem.kind == "gap"]
    assert told in gap.text
    assert main(["audit", "verify", f"sqlite:///{path}", "--ledger", ledger]) == 1
    assert told in capsys.readouterr().out


def test_a_gap_in_a_log_without_a_chain(database_url: str, tmp_path: Path) -> None:
    """Its ledger and the log say the same, and then one of two calls is not in the log."""
    ledger = open_ledger(f"sqlite:///{tmp_path}/sessions.db")
    sinks = [open_audit(database_url), FileAuditSink(tmp_path / "audit.jsonl")]
    guards = [Edictum(backend=ledger, audit_sink=sinks), Edictum(backend=ledger)]
    guards[0].dispatch_sync("t", {}, lambda: 1, session_id="s")
    sources = [database_url, sinks[0], tmp_path / "audit.jsonl"]
    assert all(verify(source, ledger=ledger).ok for source in sources)
    guards[1].dispatch_sync("t", {}, lambda: 1, session_id="s")
    for source in sources:
        found = verify(source, ledger=ledger)
        assert dict(found.counts) == {"gap": 1}
        assert any("has no chain" in note for note in found.notes)
    PORTAL.run(guards[0].close())


def test_sessions_that_begin_again_and_calls_under_way_are_no_gap(tmp_path: Path) -> None:
    """Nor is a call that ends while the two are compared."""
    url, told = f"sqlite:///{tmp_path}/audit.db", []
    ledger: Any = open_ledger(url)
    guard = Edictum(backend=ledger, audit_sink=url)
    guard.dispatch_sync("t", {}, lambda: 1, session_id="s")
    PORTAL.run(ledger.reset("s"))
    guard.dispatch_sync("t", {}, lambda: 1, session_id="s")
    guard.dispatch_sync("t", {}, lambda: told.append(verify(url, ledger=url)), session_id="s")
    told.append(verify(url, ledger=ledger))
    assert all(found.ok for found in told), told
    PORTAL.run(guard.close())


async def test_a_call_that_is_approved_after_others_have_run_is_no_gap(tmp_path: Path) -> None:
    """Its second opening event has the number of its attempt, which was the first."""
    url = f"sqlite:///{tmp_path}/audit.db"
    backend = InMemoryApprovalBackend()
    ask = approval_contract("asked")
    guard = Edictum(backend=url, audit_sink=url, contracts=[ask], approval_backend=backend)
    first = asyncio.create_task(guard.dispatch("asked", {}, lambda: 1, session_id="s"))
    await wait_in_loop(lambda: bool(backend.pending))
    await guard.dispatch("t", {}, lambda: 1, session_id="s")
    (request,) = backend.pending
    backend.decide(request.approval_id, True)
    assert isinstance(await first, ToolExecutionResult)
    await guard.close()
    found = verify(url, ledger=url)
    assert found.ok, found.problems


class LooksFirst(InMemoryApprovalBackend):
    """Makes a call before it asks, as a preview does."""

    guard: Edictum

    async def request_approval(self, *args: Any, **options: Any) -> Any:
        await self.guard.dispatch("look", {}, lambda: 1, session_id="s")
        request = await super().request_approval(*args, **options)
        self.decide(request.approval_id, True)
        return request


async def test_a_first_call_that_is_recorded_after_another_is_no_gap(tmp_path: Path) -> None:
    """The approval backend looks at the session while its first call still waits."""
    url, backend = f"sqlite:///{tmp_path}/audit.db", LooksFirst()
    ask = approval_contract("asked")
    guard = Edictum(backend=url, audit_sink=url, contracts=[ask], approval_backend=backend)
    backend.guard = guard
    await guard.dispatch("asked", {}, lambda: 1, session_id="s")
    await guard.close()
    found = verify(url, ledger=url)
    assert (found.ok, found.compared) == (True, 5), found.problems


def test_calls_that_only_the_log_knows_of_are_a_gap(tmp_path: Path) -> None:
    """As when the ledger was restored from an older copy."""
    path = tmp_path / "audit.db"
    ledger = make_calls(path, joined=False, calls=4)
    change(tmp_path / "sessions.db", "UPDATE tally SET executions = 1, successes = 1")
    found = verify(f"sqlite:///{path}", ledger=ledger)
    assert {problem.kind for problem in found.problems} == {"gap"}
    assert "the log has the end of call 2" in found.problems[0].text


KILLED_IN_BODY = """
import os, signal, sys
from edictum import Edictum

guard = Edictum(backend=f"{sys.argv[1]}?lease=1s", audit_sink=sys.argv[1])
guard.dispatch_sync("t", {}, lambda: 1, session_id="s")
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
guard.dispatch_sync("t", {}, kill, session_id="s", call_id="c-1")
"""


def test_a_call_whose_process_ended_is_in_doubt_and_not_a_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its end is not known. If the ledger says that it succeeded, its end was removed."""
    url = f"sqlite:///{tmp_path}/audit.db"
    subprocess.run([sys.executable, "-c", KILLED_IN_BODY, url], check=False, timeout=60)
    ledger: Any = open_ledger(url)
    wait_until(lambda: PORTAL.run(ledger.snapshot("s")).totals.failures == 1)
    found = verify(url, ledger=ledger)
    assert (found.ok, found.in_doubt, found.compared) == (True, 1, 3), found.problems
    assert main(["audit", "verify", url, "--ledger", url]) == 0
    told = capsys.readouterr().out
    assert "session 's': 1 call is in doubt: the process ended while the body ran" in told
    assert "OK: 3 events compared with the ledger, 1 calls in doubt." in told
    change(tmp_path / "audit.db", "DELETE FROM event WHERE action = 'call_executed'")
    found = verify(url, ledger=ledger)
    assert (dict(found.counts), found.in_doubt) == ({"gap": 1}, 1)
    PORTAL.run(ledger.close())


def test_a_call_in_doubt_that_is_made_again_stays_in_doubt(tmp_path: Path) -> None:
    """With the same id, as hosts do that go on after a crash."""
    url = f"sqlite:///{tmp_path}/audit.db"
    subprocess.run([sys.executable, "-c", KILLED_IN_BODY, url], check=False, timeout=60)
    ledger: Any = open_ledger(url)
    wait_until(lambda: PORTAL.run(ledger.snapshot("s")).totals.failures == 1)
    guard = Edictum(backend=url, audit_sink=url)
    guard.dispatch_sync("t", {}, lambda: 1, session_id="s", call_id="c-1")
    PORTAL.run(guard.close())
    found = verify(url, ledger=ledger)
    assert (found.ok, found.in_doubt, found.compared) == (True, 1, 5), found.problems
    PORTAL.run(ledger.close())


@pytest.mark.parametrize("heads", ["kept", "removed", "removed, and a key is given"])
def test_a_line_before_the_others_does_not_hide_a_chain_from_the_ledger(
    tmp_path: Path, heads: str
) -> None:
    """A log that is compared with its ledger is verified as well, whatever its first line is."""
    public, path = generate_key(tmp_path / "key"), tmp_path / "audit.jsonl"
    ledger = f"sqlite:///{tmp_path}/sessions.db"
    sink = FileAuditSink(path, chain=Chain(key=tmp_path / "key"))
    guard = Edictum(backend=ledger, audit_sink=sink)
    guard.dispatch_sync("t", {"amount": "four hundred"}, lambda amount: 1, session_id="s")
    PORTAL.run(guard.close())
    path.write_text("x\n" + path.read_text().replace("four hundred", "four", 1))
    if heads != "kept":
        Path(f"{path}.heads").unlink()
    found = verify(path, public_key=public if "key" in heads else None, ledger=ledger)
    assert found.counts["changed"] == 1, found


def test_a_key_for_a_log_that_cannot_be_chained_is_refused(postgres_url: str) -> None:
    """It would be taken for checked."""
    with pytest.raises(EdictumConfigError, match="keeps no chained log"):
        verify(postgres_url, public_key="audit.key.pub", ledger=postgres_url)


@pytest.mark.parametrize("name", ["sqlite:///{}/other.db", "memory:"])
def test_a_ledger_that_opening_would_make_is_refused(tmp_path: Path, name: str) -> None:
    """A misspelled name would agree with every log."""
    make_calls(tmp_path / "audit.db", joined=False)
    with pytest.raises(EdictumConfigError, match=r"does not exist|in memory"):
        verify(f"sqlite:///{tmp_path}/audit.db", ledger=name.format(tmp_path))
    assert not (tmp_path / "other.db").exists()


def test_a_value_that_is_not_text_is_a_changed_record(tmp_path: Path) -> None:
    """It stops neither verification nor questions."""
    path = tmp_path / "audit.db"
    make_calls(path, joined=True)
    change(path, "UPDATE event SET body = x'ff00' WHERE id = 1")
    found = verify(f"sqlite:///{path}")
    assert not found.ok
    assert len(list(query(f"sqlite:///{path}"))) == 9


# --- Processes that are killed --------------------------------------------------------------------

KILLS = effort(6, soak=500)
KILLED = """
import sys
from edictum import Edictum, OperationLimits, ToolExecutionResult
from edictum.audit import Chain, SqliteAuditSink, open_audit
from support.killed_writers import kill_writers

url, folder, kills, seed = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])


def open_sink():
    if url.startswith("sqlite"):
        chain = Chain(key=f"{folder}/key", head_events=5)
        return SqliteAuditSink(url.removeprefix("sqlite:///"), chain=chain, wait_s=30)
    return open_audit(f"{url}&wait=30s")


def write(number, acknowledge):
    limits = OperationLimits(max_tool_calls=10**9, max_attempts=10**9)
    backend = f"{url}{'&' if '?' in url else '?'}wait=30s"
    guard = Edictum(backend=backend, audit_sink=open_sink(), limits=limits)
    for index in range(10_000_000):
        name = f"{number}-{index}"
        about = {"session_id": f"s-{index % 3}", "call_id": name}
        outcome = guard.dispatch_sync("t", {}, lambda: 1, **about)
        assert isinstance(outcome, ToolExecutionResult) and not outcome.notes, outcome
        acknowledge(name)


kill_writers(write, folder, kills, seed, most=10)
"""


def compare_with_ledger(url: str, events: list[dict[str, Any]]) -> int:
    """Every attempt is in the log once, and so is the end of every call that ended; return how many
    bodies were killed long enough ago for the ledger to count them as failed.
    """
    ledger, in_doubt = open_ledger(url), 0
    for snapshot in PORTAL.run(ledger.sessions()):
        mine = [event for event in events if event["session_id"] == snapshot.session_id]
        actions, totals = Counter(event["action"] for event in mine), snapshot.totals
        assert actions["call_allowed"] == totals.attempts
        assert actions["call_executed"] == totals.successes
        assert totals.in_flight == totals.attempts - totals.executions
        ends = {it["session_execution_count"] for it in mine if it["action"] == "call_executed"}
        assert len(ends) == totals.successes
        assert ends <= set(range(1, totals.executions + 1))
        in_doubt += totals.failures
    PORTAL.run(ledger.close())
    return in_doubt


@pytest.mark.slow
@pytest.mark.soak
def test_ledger_and_audit_agree_after_kill_9(database_url: str, tmp_path: Path) -> None:
    """Four processes write to one database; one after the other is killed at a random moment, and
    another takes its place.
    """
    public, seed = generate_key(tmp_path / "key"), random.randrange(2**32)
    run_program(KILLED, database_url, tmp_path, KILLS, seed)
    events = list(query(database_url))
    keys = [(event["call_id"], event["action"]) for event in events]
    assert len(keys) == len(set(keys)), seed
    acknowledged = (tmp_path / "acks").read_text().split()
    assert {(name, "call_executed") for name in acknowledged} <= set(keys), seed
    in_doubt = compare_with_ledger(database_url, events)
    is_chained = database_url.startswith("sqlite")
    key = {"public_key": public} if is_chained else {}
    found = verify(database_url, ledger=database_url, **key)
    assert found.ok, (seed, found.problems)
    assert found.in_doubt >= in_doubt, seed
    assert found.records == (len(events) if is_chained else 0)
    print(f"\naudit: {KILLS} kills, {len(acknowledged):,} acknowledged calls of {len(events):,}")
