"""A fork while another thread is in the midst of something: the child finds it whole, and nothing
hangs.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from support.processes import run_python

PREAMBLE = """
import json, os, signal, sys, threading
from edictum import Edictum, FileAuditSink, OperationLimits
from edictum.core.limits import Reservation
from edictum.execution import forks
from edictum.execution.portal import PORTAL
from edictum.sessions import MemoryBackend, MemoryLedger, StorageLedger
from edictum.sessions._sqlite import SqliteStore
from edictum.sessions._remote_ledger import RemoteLedger

class Gate:
    '''Somebody waits in there, who is let out when it is opened, or when a fork waits for him.'''
    def __init__(self, until_fork):
        self.inside, self.opened, self.armed, self.until_fork = threading.Event(), threading.Event(), False, until_fork
    def wait(self):
        if not self.armed:
            return
        self.armed = False
        self.inside.set()
        while not self.opened.wait(0.01):
            if self.until_fork and forks._under_way:
                return
    def clock(self):
        self.wait()
        return 1_000.0

def in_child(work):
    '''What a child says: the answer of ``work``, or that it had to be ended.'''
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        os.write(writer, json.dumps(work()).encode())
        os._exit(0)
    os.close(writer)
    said = os.read(reader, 10_000)
    return json.loads(said) if os.waitpid(pid, 0)[1] == 0 else "hung"

def reserve(ledger, call):
    grant = ledger.reserve(Reservation("s", call, ("", "t"), (), lease_s=10))
    grant = grant if hasattr(grant, "granted") else PORTAL.run(grant)
    return [grant.granted, grant.counters.attempts, grant.counters.in_flight]
"""


def run_forking(code: str, *arguments: str) -> Any:
    return run_python(PREAMBLE + textwrap.dedent(code), *arguments)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_fork_waits_until_what_is_being_counted_is_counted(kind: str, tmp_path: Path) -> None:
    said = run_forking(
        """
        gate = Gate(until_fork=True)
        memory = sys.argv[1] == "memory"
        ledger = MemoryLedger(clock=gate.clock) if memory else RemoteLedger(SqliteStore(sys.argv[2], clock=gate.clock))
        first = reserve(ledger, "first")
        gate.armed = True
        busy = threading.Thread(target=reserve, args=(ledger, "busy"))
        busy.start()
        gate.inside.wait()
        child = in_child(lambda: reserve(ledger, "child"))
        busy.join()
        print(json.dumps([first, child, reserve(ledger, "parent")]))
        """,
        kind,
        str(tmp_path / "s.db"),
    )
    counted = 4 if kind == "sqlite" else 3  # a file is shared with the child
    assert said == [[True, 1, 1], [True, 3, 3], [True, counted, counted]]


def test_a_fork_does_not_wait_for_ever() -> None:
    """Who holds the lock is stuck: the child gets a new one, and the parent goes on when the other
    one does.
    """
    said = run_forking("""
        gate = Gate(until_fork=False)
        ledger = MemoryLedger(clock=gate.clock)
        reserve(ledger, "first")
        gate.armed = True
        busy = threading.Thread(target=reserve, args=(ledger, "busy"))
        busy.start()
        gate.inside.wait()
        child = in_child(lambda: reserve(ledger, "child")[0])
        gate.opened.set()
        busy.join()
        print(json.dumps([child, reserve(ledger, "parent")]))
        """)
    assert said == [True, [True, 3, 3]]


def test_who_forks_while_it_holds_the_lock_itself_does_not_wait_for_itself() -> None:
    """As a signal handler may, that comes in the midst of counting; and so may one that comes in
    the midst of a fork.
    """
    said = run_forking("""
        ledger = MemoryLedger()
        with ledger._lock:
            child = in_child(lambda: reserve(ledger, "child"))
        nested = []
        class Trap:
            '''A lock whose taking is interrupted by a signal.'''
            def __init__(self): self.inner = threading.Lock()
            def acquire(self, timeout):
                if not nested:
                    nested.append("forking")
                    nested.append(in_child(lambda: [*reserve(ledger, "nested"), gc.isenabled()]))
                return self.inner.acquire(timeout=timeout)
            def release(self): self.inner.release()
        import gc
        trap = type("Owner", (), {"_lock": Trap()})()
        forks.protect(trap)
        outer = in_child(lambda: [*reserve(ledger, "outer"), gc.isenabled()])
        print(json.dumps([child, nested, outer, [*reserve(ledger, "parent"), gc.isenabled()], forks._under_way == {}]))
        """)
    assert said == [
        [True, 1, 1],
        ["forking", [True, 1, 1, True]],
        [True, 1, 1, True],
        [True, 1, 1, True],
        True,
    ]


@pytest.mark.parametrize("kind", ["audit file", "storage", "portal", "local sink"])
def test_other_locks_are_free_in_the_child(kind: str, tmp_path: Path) -> None:
    said = run_forking(
        """
        sink = FileAuditSink(sys.argv[2])
        backend = MemoryBackend()
        guard = Edictum(backend=backend, audit_sink=sink)
        guard.run_sync("work", {}, lambda: 1, session_id="s")
        owner = {"audit file": sink, "storage": backend, "portal": PORTAL, "local sink": guard.local_sink}[sys.argv[1]]
        gate = Gate(until_fork=True)
        gate.armed = True
        def hold():
            with owner._lock:
                gate.wait()
        busy = threading.Thread(target=hold)
        busy.start()
        gate.inside.wait()
        def work():
            guard.run_sync("work", {}, lambda: 1, session_id="s")
            return [guard.session("s").executions, len(guard.local_sink.events)]
        child = in_child(work)
        busy.join()
        print(json.dumps([child, work()]))
        """,
        kind,
        str(tmp_path / "audit.jsonl"),
    )
    assert said == [[2, 4], [2, 4]]
    assert len((tmp_path / "audit.jsonl").read_text().splitlines()) == 6


@pytest.mark.parametrize(
    "kind", ["guard", "tickets", "budget", "replay", "state", "artifacts", "approvals", "terminal"]
)
def test_what_a_call_uses_beside_the_stores_is_free_in_the_child(kind: str) -> None:
    said = run_forking(
        """
        import asyncio, io
        from edictum import InMemoryApprovalBackend, LocalApprovalBackend
        from edictum.harness import ArtifactStore, ToolSpec, TurnState
        from edictum.runtime.ticket import TicketTable
        guard, tickets, state, artifacts = Edictum(), TicketTable(), TurnState(), ArtifactStore()
        approvals, write = InMemoryApprovalBackend(), ToolSpec(name="t", side_effect="write")
        terminal = LocalApprovalBackend(stdin=io.StringIO("yes\\n"), stdout=io.StringIO())
        def ask():
            request = asyncio.run(terminal.request_approval("t", {}, "?"))
            return asyncio.run(terminal.wait_for_decision(request.approval_id, timeout=30)).approved
        owner, use = {
            "guard": (guard, lambda: guard.set_principal(None)),
            "tickets": (tickets, lambda: tickets.take("c")),
            "budget": (state.budget, lambda: (state.budget.pause(), state.budget.resume())[0]),
            "replay": (state.replay, lambda: state.replay.record_write(write, {})),
            "state": (state, lambda: state.complete_trace("c")),
            "artifacts": (artifacts, lambda: artifacts.store("s", "text", "t").tool_name),
            "approvals": (approvals, lambda: approvals.pending),
            "terminal": (terminal, ask),
        }[sys.argv[1]]
        lock = owner._turn if owner is terminal else owner._lock
        gate = Gate(until_fork=owner is not terminal)  # a question stays open
        gate.armed = True
        def hold():
            with lock:
                gate.wait()
        busy = threading.Thread(target=hold)
        busy.start()
        gate.inside.wait()
        child = in_child(use)
        gate.opened.set()
        busy.join()
        print(json.dumps([child, child == use()]))
        """,
        kind,
    )
    assert said[0] != "hung"
    assert said[1]


def test_a_child_does_not_keep_the_lock_of_a_parent_that_dies_with_it(tmp_path: Path) -> None:
    """The kernel drops a file's lock with the last process that has it open: the child must not be
    one of them.
    """
    said = run_forking(
        """
        import fcntl
        path = sys.argv[1]
        store = SqliteStore(path)
        ledger = RemoteLedger(store)
        reserve(ledger, "first")
        reader, writer = os.pipe()
        parent = os.fork()
        if parent == 0:  # uses the store, forks, takes the file's lock and dies, while its child lives on
            reserve(ledger, "second")
            waits, ready = os.pipe()
            child = os.fork()
            if child == 0:
                signal.alarm(60)
                os.write(ready, b"!")
                signal.pause()
            os.read(waits, 1)
            fcntl.flock(ledger._pool._thread.connection._lock_fd, fcntl.LOCK_EX)
            os.write(writer, str(child).encode())
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(parent, 0)
        child = int(os.read(reader, 100))
        free = os.open(path + ".lock", os.O_RDWR)
        try:
            fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)
            answer = "free"
        except BlockingIOError:
            answer = "held by nobody who will let go"
        os.kill(child, signal.SIGKILL)
        print(json.dumps(answer))
        """,
        str(tmp_path / "s.db"),
    )
    assert said == "free"
