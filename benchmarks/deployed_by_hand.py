"""The guards of bench_deployed.py as people write them by hand: each does what its row needs, and
nothing else.

All check one condition, count calls against a limit, and write down two events per call. In memory
an event is a dict in a deque. In a file it has the fields and values that this library's event has;
what both events of a call have in common is made once, and secrets are blanked, by the names of
arguments and by what tokens look like.
"""

import asyncio
import contextlib
import itertools
import json
import os
import re
import socket
import sys
import threading
import time
import uuid
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from cases_by_hand import ByHand
from ledgers_by_hand import ChainedByHand, PostgresByHand, SqliteByHand, ValkeyByHand
from load import POSTGRES, VALKEY, cases_of, new_file, session_ids
from timing import ARGS, tool

FAR = 10**9
SENSITIVE = frozenset(("password", "secret", "token", "api_key", "authorization", "cookie"))
TOKENS = re.compile(r"(?i)\bbearer\s+\S+|\b(?:sk|ghp|xox[bp])[-_]\w{10,}|\bAKIA[0-9A-Z]{16}\b")
DENIED_ARGS = {"path": "/etc/secret-0"}
BLANK = {
    "schema_version": "0.6.0",
    "timestamp": None,
    "run_id": None,
    "call_id": None,
    "call_index": 0,
    "parent_call_id": None,
    "tool_name": None,
    "tool_args": None,
    "side_effect": "irreversible",
    "environment": "production",
    "principal": None,
    "action": None,
    "decision_source": None,
    "decision_name": None,
    "reason": None,
    "hooks_evaluated": [],
    "contracts_evaluated": [
        {"name": "contract-0", "type": "precondition", "passed": True, "message": None}
    ],
    "tool_success": None,
    "postconditions_passed": None,
    "duration_ms": 0,
    "error": None,
    "result_summary": None,
    "session_attempt_count": 0,
    "session_execution_count": 0,
    "mode": "enforce",
    "policy_version": None,
    "policy_error": False,
    "session_id": None,
    "outcome": None,
    "success_source": None,
    "success_reason": None,
    "approval_id": None,
    "approver": None,
    "policy_digest": "a digest",
    "host": socket.gethostname(),
    "pid": os.getpid(),
    "instance_id": uuid.uuid4().hex,
}


def redact(value):
    """Return a copy without secrets, whatever it is nested in."""
    if isinstance(value, str):
        return TOKENS.sub("[REDACTED]", value)
    if isinstance(value, dict):
        return {
            name: "[REDACTED]" if str(name).lower() in SENSITIVE else redact(inner)
            for name, inner in value.items()
        }
    return [redact(inner) for inner in value] if isinstance(value, (list, tuple)) else value


class Memory:
    """Two dicts per call in a deque."""

    def __init__(self):
        self.events = deque(maxlen=50_000)

    def begin(self, tool, args, call_id, session):
        return {"call_id": call_id, "tool": tool, "args": dict(args), "session": session}

    def write(self, common, action, **more):
        self.events.append({**common, "time": time.time(), "action": action, **more})


class JsonLines:
    """Two lines per call, each written before the call goes on."""

    def __init__(self, path):
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock, self._numbers = threading.Lock(), itertools.count()
        self._run_id = uuid.uuid4().hex

    def begin(self, tool, args, call_id, session):
        return {
            **BLANK,
            "run_id": self._run_id,
            "call_id": call_id,
            "call_index": next(self._numbers),
            "session_id": session,
            "tool_name": tool,
            "tool_args": redact(args),
        }

    def write(self, common, action, **more):
        now = datetime.now(UTC).isoformat()
        line = json.dumps({**common, "timestamp": now, "action": action, **more}) + "\n"
        with self._lock:
            os.write(self._file, line.encode())


class Counting:
    """The limit of a process of its own: a number per session."""

    def __init__(self, *_):
        self._attempts, self._executions = {}, {}

    async def reserve(self, sid, call, tool):
        attempts = self._attempts[sid] = self._attempts.get(sid, 0) + 1
        return (attempts, self._executions.get(sid, 0)) if attempts <= FAR else None

    async def settle(self, sid, call, tool, success):
        self._executions[sid] = self._executions.get(sid, 0) + 1


class Guard:
    """A check, a ledger, an audit."""

    def __init__(self, ledger, audit):
        self._ledger, self._audit = ledger, audit

    async def run(self, tool, args, function, session):
        call_id = uuid.uuid4().hex
        common = self._audit.begin(tool, args, call_id, session)
        if "/etc/secret" in args["path"]:
            self._audit.write(common, "call_denied", reason="no")
            raise PermissionError(tool)
        counted = await self._ledger.reserve(session, call_id, tool)
        if counted is None:
            self._audit.write(common, "call_denied", reason="limit")
            raise PermissionError(tool)
        attempts, executions = counted
        self._audit.write(
            common,
            "call_allowed",
            session_attempt_count=attempts,
            session_execution_count=executions,
        )
        started = time.perf_counter()
        try:
            result = function(**args)
        except Exception as exc:
            await self._ledger.settle(session, call_id, tool, False)
            self._audit.write(
                common, "call_failed", error=redact(f"{type(exc).__name__}: {exc}"[:500])
            )
            raise
        await self._ledger.settle(session, call_id, tool, True)
        self._audit.write(
            common,
            "call_executed",
            tool_success=True,
            duration_ms=int((time.perf_counter() - started) * 1e3),
            result_summary=redact(json.dumps(result)[:500]),
            session_attempt_count=attempts,
            session_execution_count=executions + 1,
            outcome="executed",
            success_source="default",
        )
        return result


class ChainedGuard:
    """A check, and a ledger that writes the events as well."""

    def __init__(self, ledger):
        self._ledger, self._numbers, self._run_id = ledger, itertools.count(), uuid.uuid4().hex

    async def run(self, tool, args, function, session):
        call_id = uuid.uuid4().hex
        common = {
            **BLANK,
            "run_id": self._run_id,
            "call_id": call_id,
            "call_index": next(self._numbers),
            "session_id": session,
            "tool_name": tool,
            "tool_args": redact(args),
        }
        about = (session, call_id, tool)
        wanted = "call_denied" if "/etc/secret" in args["path"] else "call_allowed"
        allowed, denied = _date(common, wanted), _date(common, "call_denied", reason="limit")
        counted = await self._ledger.reserve(*about, allowed, denied)
        if counted is None or wanted == "call_denied":
            raise PermissionError(tool)
        started = time.perf_counter()
        try:
            result = function(**args)
        except Exception as exc:
            error = redact(f"{type(exc).__name__}: {exc}"[:500])
            await self._ledger.settle(*about, False, _date(common, "call_failed", error=error))
            raise
        ended = _date(
            common,
            "call_executed",
            tool_success=True,
            duration_ms=int((time.perf_counter() - started) * 1e3),
            result_summary=redact(json.dumps(result)[:500]),
            outcome="executed",
            success_source="default",
        )
        await self._ledger.settle(*about, True, ended)
        return result


def _date(common, action, **more):
    return {**common, "timestamp": datetime.now(UTC).isoformat(), "action": action, **more}


class ByHandWithAmounts(ByHand):
    """What a call is expected to cost is taken before it, and put right after it."""

    def __init__(self, limit, budget):
        super().__init__(limit)
        self.budget, self.spent, self.reserved = budget, 0.0, 0.0

    async def run_for(self, tool, args, function, cost):
        if self.spent + self.reserved + cost > self.budget:
            self.record("denied", str(uuid.uuid4()), tool, args)
            raise PermissionError(tool)
        self.reserved += cost
        try:
            return await self.run(tool, args, function)
        finally:
            self.reserved -= cost
            self.spent += cost


class ByHandThatFails(ByHand):
    """As its parent, and a failing tool is written down too."""

    async def run(self, tool, args, function):
        call_id = str(uuid.uuid4())
        self.record("allowed", call_id, tool, args)
        self.count += 1
        try:
            result = function(**args)
        except Exception as exc:
            self.record(f"failed: {exc}", call_id, tool, args)
            raise
        self.record("executed", call_id, tool, args)
        return result


def fail(path):
    raise ValueError("no such file")


async def usual():
    guard = ByHand(FAR)
    return lambda: guard.run("read_file", ARGS, tool)


async def denied():
    guard = ByHand(FAR)

    async def call():
        with contextlib.suppress(PermissionError):
            await guard.run("read_file", DENIED_ARGS, tool)

    return call


async def failing():
    guard = ByHandThatFails(FAR)

    async def call():
        with contextlib.suppress(ValueError):
            await guard.run("read_file", ARGS, fail)

    return call


async def amounts():
    guard = ByHandWithAmounts(FAR, float(FAR))
    return lambda: guard.run_for("read_file", ARGS, tool, 0.001)


def guarded(make_ledger, make_audit):
    """Open a guard with this ledger and this audit, for calls in several sessions."""

    async def open_call():
        ledger = make_ledger()
        if hasattr(ledger, "open"):
            await ledger.open()
        guard, session = Guard(ledger, make_audit()), session_ids()
        return lambda: guard.run("read_file", ARGS, tool, session())

    return open_call


async def chained():
    guard, session = ChainedGuard(ChainedByHand(new_file("db"), FAR, FAR)), session_ids()
    return lambda: guard.run("read_file", ARGS, tool, session())


def sqlite(max_calls=FAR):
    return SqliteByHand(new_file("db"), FAR, max_calls)


def valkey(max_calls=FAR):
    return ValkeyByHand(os.environ[VALKEY], FAR, max_calls)


def postgres(max_calls=FAR):
    return PostgresByHand(os.environ[POSTGRES], FAR, max_calls)


def file():
    return JsonLines(new_file("jsonl"))


CASES = cases_of(
    {
        "usual": usual,
        "denied": denied,
        "failing": failing,
        "clock": usual,
        "amounts": amounts,
        "file": guarded(Counting, file),
        "sqlite": guarded(sqlite, Memory),
        "sqlite, file": guarded(sqlite, file),
        "sqlite, chained": chained,
        "valkey": guarded(valkey, Memory),
        "valkey, file": guarded(valkey, file),
        "postgres": guarded(postgres, Memory),
        "postgres, file": guarded(postgres, file),
    }
)


def bodies_that_run(make_ledger):
    """Return how many of 100 calls at once pass a limit of three."""
    ran = []

    def body(path):
        ran.append(path)

    async def calls():
        ledger = make_ledger(3)
        if hasattr(ledger, "open"):
            await ledger.open()
        guard, session = Guard(ledger, Memory()), uuid.uuid4().hex
        tried = [guard.run("read_file", ARGS, body, session) for _ in range(100)]
        await asyncio.gather(*tried, return_exceptions=True)
        await ledger.close()

    asyncio.run(calls())
    return len(ran)


FACTS = {
    "sqlite": lambda: bodies_that_run(sqlite),
    "valkey": lambda: bodies_that_run(valkey),
    "postgres": lambda: bodies_that_run(postgres),
}
