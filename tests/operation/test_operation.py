"""An operator's year in minutes: four workers of gunicorn under load, and all that happens to what
stands behind them.

``make test`` takes the steps that need seconds once, ``make soak`` all of them several times, and
prints what happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sites import (
    LIMIT,
    Load,
    PostgresSite,
    ReplicatedSite,
    SentinelSite,
    Site,
    ValkeySite,
    run_sql,
)

from edictum.sessions import migrate
from edictum.sessions import open as open_ledger
from edictum.sessions.session import Session
from support.effort import SOAK
from support.servers import NoServer
from support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.soak]

ROUNDS = 5 if SOAK else 1
UNWRITTEN = "could not be written"
OPENING = {"call_allowed", "call_denied"}
CLOSING = {"call_executed", "call_failed"}


# --- The policy -----------------------------------------------------------------------------------


def edit_policy(site: Site) -> None:
    """Every worker takes it, and goes by it."""
    site.edition += 1
    version = site.service.write_policy(site.edition)
    wait_until(lambda: site.service.all_say(version=version))
    call = f"p{site.edition}"
    said = site.service.ask("/call", session="policy", call=call, edition=str(site.edition))
    assert said["details"] == f"edition {site.edition} is out"


def break_policy(site: Site) -> None:
    """Every worker says so, and keeps the policy it has."""
    before = site.service.ask_all()[0]["policy_version"]
    kept = site.service.policy.read_text()
    site.service.policy.write_text("contracts: [")
    wait_until(lambda: site.service.all_say("policy", version=before))
    site.load.wait_for_success()
    site.service.policy.write_text(kept)
    wait_until(lambda: site.service.all_say(version=before))


# --- PostgreSQL and its pooler --------------------------------------------------------------------


def restart_store(site: PostgresSite) -> None:
    site.primary.kill()
    wait_until(lambda: site.service.all_say("ledger"))
    site.primary.start()
    wait_until(site.service.all_say)


def slow_store(site: PostgresSite) -> None:
    """Within the time that a call waits for an answer all goes on; beyond it calls are denied."""
    site.line.delay_s = 0.02
    site.line.mode = "slow"
    site.load.wait_for_success()
    wait_until(site.service.all_say)  # a busy machine may be slow for longer than a call waits
    site.line.delay_s = 5.0
    wait_until(lambda: site.service.all_say("ledger"))
    site.line.mode = "clean"
    wait_until(site.service.all_say)


def silence_store(site: PostgresSite) -> None:
    """No answer comes within the time that a call waits for one."""
    site.line.mode = "silent"
    wait_until(lambda: site.service.all_say("ledger"))
    site.line.mode = "clean"
    wait_until(site.service.all_say)


def restart_pooler(site: PostgresSite) -> None:
    site.pooler.kill()
    wait_until(lambda: site.service.all_say("ledger"))
    site.pooler.start()
    wait_until(site.service.all_say)


def upgrade_schema(site: PostgresSite) -> None:
    """Old and new count together, the old version can come back, and after the step it counts
    nothing any more.
    """
    for number in range(2):  # the second time, it is a rollback
        old = site.start_old()
        wait_until(lambda old=old: old.call("old")[0] == "ToolExecutionResult")
        new = site.service.ask("/call", session="old", call=f"upgrade{number}")
        assert new["outcome"] == "ToolExecutionResult"
        old.end()
    old = site.start_old()
    planned = migrate(site.primary.url)
    assert planned.is_applied
    assert old.call("old")[0] == "ToolDenied"
    old.end()
    wait_until(site.service.all_say)


def fail_over(site: ReplicatedSite) -> None:
    """To the replica, and back: what was the primary follows the other one first."""
    for _ in range(2):
        site.primary.kill()
        wait_until(lambda: site.service.all_say("ledger"))
        site.primary, site.replica = site.replica, site.primary
        run_sql(site.primary, "SELECT pg_promote()")
        wait_until(site.service.all_say)
        site.load.wait_for_success()
        site.replica.follow(site.primary)
        site.wait_for_replica()


# --- Valkey ---------------------------------------------------------------------------------------


def restart_valkey(site: ValkeySite) -> None:
    """It has what it answered on its disk; its users are made anew."""
    site.primary.kill()
    wait_until(lambda: site.service.all_say("ledger"))
    site.primary.start()
    site.set_password(site.password_file.read_text())
    wait_until(site.service.all_say)


def rotate_credentials(site: ValkeySite) -> None:
    password = f"after {site.password_file.read_text()}"
    site.set_password(password)
    wait_until(lambda: site.service.all_say("ledger"))
    site.password_file.write_text(password)
    wait_until(site.service.all_say)


def switch_eviction_on(site: ValkeySite) -> None:
    """Noticed within a minute, by connections that stay open."""
    site.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    wait_until(lambda: site.service.all_say("ledger"), timeout_s=150)
    site.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    wait_until(site.service.all_say)


def lose_primary(site: SentinelSite) -> None:
    """Calls are denied until the server that was promoted has a replica, too."""
    site.primary.kill()
    wait_until(lambda: site.service.all_say("ledger"))
    site.wait_for_promotion()
    site.replica.options = ("--replicaof", "127.0.0.1", str(site.primary.port))
    site.replica.start()
    wait_until(site.service.all_say)


def switch_back(site: SentinelSite) -> None:
    """As an operator does who wants to restart a server: it hands over, and follows the other."""
    site.servers.ask(site.servers.sentinels[0], "FAILOVER", "COORDINATED")
    site.wait_for_promotion()
    wait_until(site.service.all_say)


# --- Files ----------------------------------------------------------------------------------------


def rename_log(site: Site) -> None:
    """As logrotate does: each worker goes on in a new file."""
    path = site.service.audit / "audit.jsonl"
    path.rename(path.with_name(f"audit.jsonl-{len(os.listdir(path.parent))}"))
    site.load.wait_for_success()
    assert path.stat().st_size > 0


def fill_disk(site: Site) -> None:
    if not os.path.ismount(site.service.audit):
        return
    filling = site.service.audit / "filling"
    with contextlib.suppress(OSError), filling.open("wb", buffering=0) as out:
        while out.write(b"x" * 1_024):
            pass
    wait_until(lambda: site.service.all_say("audit"))
    filling.unlink()
    wait_until(site.service.all_say)


# --- Workers --------------------------------------------------------------------------------------


def terminate_worker(site: Site) -> None:
    """Its calls end, and another worker takes its place, on the policy of the others."""
    replace_worker(site, signal.SIGTERM)


def kill_worker(site: Site) -> None:
    before = set(site.load.lost)
    replace_worker(site, signal.SIGKILL)
    site.killed |= {call: s for call, s in site.load.lost.items() if call not in before}


def replace_worker(site: Site, number: signal.Signals) -> None:
    known = site.service.ask_all()
    ended, version = known[0]["worker"], known[0]["policy_version"]
    os.kill(ended, number)
    wait_until(lambda: ended not in site.service.find_workers())
    assert site.service.all_say(version=version)


# --- The steps ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """Something that happens; ``quick`` if it is over in seconds, ``once`` if it cannot happen to a
    site again.
    """

    run: Callable[[Any], None]
    quick: bool = True
    once: bool = False


COMMON = (
    Step(edit_policy),
    Step(break_policy),
    Step(rename_log),
    Step(fill_disk),
    Step(terminate_worker),
    Step(kill_worker),
)
STEPS: dict[type[Any], tuple[Step, ...]] = {
    PostgresSite: (
        Step(upgrade_schema, once=True),
        Step(restart_store),
        Step(slow_store),
        Step(silence_store),
        Step(restart_pooler),
        *COMMON,
    ),
    ReplicatedSite: (Step(fail_over),),
    SentinelSite: (Step(lose_primary), Step(switch_back)),
    ValkeySite: (
        Step(restart_valkey),
        Step(rotate_credentials),
        Step(switch_eviction_on, quick=False),
        *COMMON,
    ),
}


@pytest.fixture(params=STEPS, ids=lambda kind: kind.__name__)
def site(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        try:
            made: Site = request.param(tmp_path, stack)
        except (NoServer, OSError) as exc:
            record_property("session_store", f"operation: NOT TESTED, {exc}")
            pytest.skip(str(exc))
        for origin in (*made.origins, mount_disk(tmp_path / "audit", stack)):
            record_property("session_store", f"operation, {origin}")
        made.serve()
        stack.callback(made.end)
        yield made


def mount_disk(folder: Path, stack: contextlib.ExitStack) -> str:
    """Give the audit a disk of its own, so that it can be full; return whether that was possible."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        return "full disk: NOT TESTED, mounting one needs root"
    stack.callback(subprocess.run, ["umount", "--lazy", folder], check=True)
    return "full disk: tmpfs"


def test_counters_audit_policy_and_health_are_right_whatever_happens(site: Site) -> None:
    site.load.wait_for_success()
    assert site.service.all_say()
    for number in range(ROUNDS):
        for step in STEPS[type(site)]:
            if (step.quick or SOAK) and not (step.once and number):
                step.run(site)
                site.load.wait_for_success()
    assert site.service.stop() == 0  # under load
    site.load.stop()
    expired = compare_counters(site)
    torn = compare_audit(site)
    assert "deleted or replaced" not in site.service.read_log()
    if SOAK:
        print_figures(site, expired, torn)


def print_figures(site: Site, expired: int, torn: int) -> None:
    said = Counter(answer["outcome"] for answer in site.load.answers.values())
    denied = sum(count_denied_by_ledger(site.load).values())
    print(
        f"\n{type(site).__name__}, {ROUNDS} rounds: {len(site.load.sessions):,} calls of clients,"
        f" {said['ToolExecutionResult']:,} ran, {said['ToolDenied']:,} denied ({denied:,} because"
        f" the store was away), {len(site.load.lost):,} without an answer (killed,"
        f" or after the service had ended);"
        f" {site.service.count_bodies().total():,} bodies, no counter differs but for {expired}"
        f" calls whose lease ran out; {torn} lines cut by a full disk"
    )


def compare_counters(site: Site) -> int:
    """Every body is counted, and nothing else, except calls of which the store could not know that
    they never began: they were killed, or denied because the answer to their reservation was lost
    for longer than its lease. Return how many those are.
    """
    bodies, killed = site.service.count_bodies(), Counter(site.killed.values())
    assert max(bodies.values()) == LIMIT
    ledger = open_ledger(site.store, wait_s=30)

    def count(session: str) -> Any:
        return Session(session, ledger).snapshot().totals

    for session in bodies:
        wait_until(lambda session=session: count(session).in_flight == 0)
    expired, denied = site.count_expired(bodies), count_denied_by_ledger(site.load)
    bodies["old"] += 2 if "old" in bodies else 0  # those of the older version
    for session, ran in bodies.items():
        settled = count(session).executions - expired[session]
        assert ran - killed[session] <= settled <= ran, (session, ran, settled, expired, killed)
        assert expired[session] <= killed[session] + denied[session]
    asyncio.run(ledger.close())  # type: ignore[attr-defined]  # of stores
    return expired.total()


def count_denied_by_ledger(load: Load) -> Counter[str]:
    """Return how many calls of each session were denied because their store did not answer."""
    told = {call: answer["details"] for call, answer in load.answers.items()}
    return Counter(load.sessions[call] for call in told if "session store" in told[call])


def compare_audit(site: Site) -> int:
    """Each call has its opening and its closing event once, unless it was killed or the disk was
    full, which its caller was told. Return how many lines the disk has cut.
    """
    events, torn = site.service.read_events()
    opened = Counter(event["call_id"] for event in events if event["action"] in OPENING)
    closed = Counter(event["call_id"] for event in events if event["action"] in CLOSING)
    assert max((*opened.values(), *closed.values())) == 1
    unwritten = 0
    for call, answer in site.load.answers.items():
        told = any(UNWRITTEN in text for text in (answer["details"], *answer["notes"]))
        unwritten += told
        if not told:
            assert opened[call] == 1, (call, answer)
            assert closed[call] == (answer["outcome"] == "ToolExecutionResult"), (call, answer)
    allowed = {event["call_id"] for event in events if event["action"] == "call_allowed"}
    answered = site.load.answers.keys()
    assert {call for call in allowed if not closed[call]} - answered <= site.killed.keys()
    assert bool(torn) <= bool(unwritten)
    return torn
