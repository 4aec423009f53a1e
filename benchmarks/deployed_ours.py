"""This library's side of bench_deployed.py: the same calls as deployed_by_hand.py makes."""

import contextlib
import itertools
import os
import sys
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from cases_ours import ROOMY, contract
from load import POSTGRES, VALKEY, cases_of, new_file, session_ids
from timing import ARGS, tool

from edictum import Edictum, EdictumDenied, EdictumToolError, FileAuditSink, OperationLimits
from edictum.audit import SqliteAuditSink
from edictum.harness import BoundedToolExecutor, TurnBudget, TurnState
from edictum.harness import tool as as_spec

FAR = 10**9
LIMITS = OperationLimits(max_attempts=FAR, max_tool_calls=FAR)
DENIED_ARGS = {"path": "/etc/secret-0"}
CALLS_PER_TURN = 20


def one_contract(**options):
    options.setdefault("limits", ROOMY)
    return Edictum(contracts=[contract(0, "read_file")], **options)


async def usual():
    guard = one_contract()
    return lambda: guard.run("read_file", ARGS, tool)


async def denied():
    guard = one_contract()

    async def call():
        with contextlib.suppress(EdictumDenied):
            await guard.run("read_file", DENIED_ARGS, tool)

    return call


def fail(path):
    raise ValueError("no such file")


async def failing():
    guard = one_contract()

    async def call():
        with contextlib.suppress(ValueError, EdictumToolError):
            await guard.run("read_file", ARGS, fail)

    return call


class OwnClock:
    """Not the library's own clock: time and ids of the program."""

    def now(self):
        return time.time()

    def new_id(self):
        return uuid.uuid4().hex


async def clock():
    guard = one_contract(clock=OwnClock())
    return lambda: guard.run("read_file", ARGS, tool)


async def amounts():
    guard = one_contract(
        limits=OperationLimits(
            max_attempts=None, max_tool_calls=None, max_amounts={"cost": float(FAR)}
        )
    )
    cost = {"cost": 0.001}
    return lambda: guard.run("read_file", ARGS, tool, amounts=cost)


async def read_file(path, page):
    return "contents"


async def turn():
    """Open calls in a turn, which is renewed every few of them, as real ones are."""
    guard = one_contract()
    spec = as_spec(name="read_file", side_effect="read", isolation="inline")(read_file)
    executor, pages = BoundedToolExecutor([spec], guard=guard), itertools.count()

    def turns():
        while True:
            budget = TurnBudget.create(600, max_steps=10_000)
            yield from itertools.repeat(executor.turn(TurnState("bench", budget)), CALLS_PER_TURN)

    current = turns()

    def call():
        page = next(pages)  # another each time, as a model asks; the same would be a duplicate
        args = {**ARGS, "page": page}
        return guard.dispatch("read_file", args, turn=next(current), call_id=f"call-{page}")

    return call


def guarded(**options):
    """Open a guard, for calls in several sessions; options that are functions are called first."""

    async def open_call():
        made = {name: value() if callable(value) else value for name, value in options.items()}
        guard, session = one_contract(limits=LIMITS, **made), session_ids()
        return lambda: guard.run("read_file", ARGS, tool, session_id=session())

    return open_call


def sqlite():
    return f"sqlite:///{new_file('db')}"


async def chained():
    path = new_file("db")
    guard = one_contract(
        limits=LIMITS, backend=f"sqlite:///{path}", audit_sink=SqliteAuditSink(path, chain=True)
    )
    session = session_ids()
    return lambda: guard.run("read_file", ARGS, tool, session_id=session())


def valkey():
    return os.environ[VALKEY]


def postgres():
    return os.environ[POSTGRES]


def file():
    return FileAuditSink(new_file("jsonl"))


CASES = cases_of(
    {
        "usual": usual,
        "denied": denied,
        "failing": failing,
        "clock": clock,
        "amounts": amounts,
        "turn": turn,
        "file": guarded(audit_sink=file),
        "sqlite": guarded(backend=sqlite),
        "sqlite, file": guarded(backend=sqlite, audit_sink=file),
        "sqlite, chained": chained,
        "valkey": guarded(backend=valkey),
        "valkey, file": guarded(backend=valkey, audit_sink=file),
        "postgres": guarded(backend=postgres),
        "postgres, file": guarded(backend=postgres, audit_sink=file),
    }
)
FACTS = {}
