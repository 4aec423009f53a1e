"""Probes: ask each part of a guard whether it can do its work, and what it has counted.

A ledger is asked by ``ping``, or else by a look at a session; a sink, an approval backend and an
engine by ``check``, if they have it: ordinary or async, it raises what is wrong. A sink that did
not take its newest event is not well, whatever its ``check`` says.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any

from edictum._watching import Watch
from edictum.approval.port import ApprovalBackend, find_approver_problem
from edictum.audit._ports import PORTS
from edictum.audit.sinks import AuditSink
from edictum.core.decide import describe
from edictum.core.decision import USER_ERRORS
from edictum.core.policy import Policy
from edictum.errors import BackendError, EdictumConfigError, EdictumInputError
from edictum.execution.portal import PORTAL
from edictum.execution.threads import POOL
from edictum.execution.waiting import await_until, call_until
from edictum.health import Health, PartHealth
from edictum.runtime.clock import SYSTEM
from edictum.runtime.wiring import Wiring
from edictum.sessions._urls import as_ledger
from edictum.sessions.ledger import Ledger
from edictum.stats import Stats

CHECK_TIMEOUT_S = 2.0
CLOCK_TOLERANCE_S = 60.0
PROBED_SESSION = "edictum-health-check"


class ClockWatch:
    """Compares the system's clock with one that cannot be set, between one look and the next."""

    def __init__(self) -> None:
        self._difference_s = _clock_difference_s()

    def take_jump_s(self) -> float:
        """Return by how much the clock was set since the last look."""
        before, self._difference_s = self._difference_s, _clock_difference_s()
        return self._difference_s - before


def _clock_difference_s() -> float:
    steady = getattr(time, "CLOCK_BOOTTIME", None)  # runs on while the machine sleeps
    return time.time() - (time.monotonic() if steady is None else time.clock_gettime(steady))


# --- Health ---------------------------------------------------------------------------------------


async def check_parts(
    policy: Policy,
    wiring: Wiring,
    watches: Sequence[Watch],
    clock_watch: ClockWatch,
    timeout_s: float,
) -> Health:
    """Ask all parts at the same time, each within the time limit."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
        raise EdictumInputError(
            f"check: timeout_s is {timeout_s!r:.80}.", hint="Use a number of seconds above 0."
        )
    probes: list[tuple[str, Callable[[], Any]]] = [
        ("ledger", lambda: _probe_ledger(wiring.ledger)),
        *(_name_sink_probe(wiring, sink) for sink in wiring.sinks),
        ("approvals", lambda: _probe_approvals(wiring.approval_backend, policy)),
        ("engine", lambda: _probe_engines(policy, wiring, timeout_s)),
        ("policy", lambda: _probe_policy(policy, watches)),
        ("clock", lambda: _probe_clock(wiring, clock_watch)),
    ]
    if not wiring.sinks:
        probes.insert(1, ("audit", lambda: "Events are kept in memory only."))
    parts = await asyncio.gather(*(_probe(*probe, timeout_s) for probe in probes))
    return Health(all(part.ok for part in parts), policy.version, tuple(parts))


async def _probe(name: str, ask: Callable[[], Any], timeout_s: float) -> PartHealth:
    """Return what a part answered. If it raises, the error is the sentence."""
    started = time.perf_counter()
    try:
        answer = ask()
        if isawaitable(answer):
            answer = await await_until(answer, timeout_s)
        ok, message = True, str(answer)
    except TimeoutError:
        ok, message = False, f"No answer within {timeout_s:g} s."
    except USER_ERRORS as exc:
        ok, message = False, describe(exc)
    return PartHealth(name, ok, message, int((time.perf_counter() - started) * 1_000))


async def _probe_ledger(ledger: Ledger) -> str:
    await ask_ledger(ledger)
    return f"The session store {_name_ledger(ledger)} answers."


async def ask_ledger(ledger: Ledger) -> None:
    """Raise the reason why a ledger cannot count, as far as it can be found out without
    counting.
    """
    ping = getattr(ledger, "ping", None)
    answer: Any = ping() if ping is not None else ledger.snapshot(PROBED_SESSION)
    if isawaitable(answer):
        await answer


def open_ledger(backend: Any, *, required: bool) -> Ledger:
    """Return the ledger of a guard. Raise EdictumConfigError if it is required and does not answer
    within its own time limit.
    """
    if not isinstance(required, bool):
        raise EdictumConfigError(f"require_store is {required!r:.80}.", hint="Use True or False.")
    ledger = as_ledger(backend)
    try:
        if required:
            PORTAL.run(ask_ledger(ledger))
    except EdictumConfigError:
        raise
    except USER_ERRORS as exc:
        raise EdictumConfigError(
            f"require_store: the session store {_name_ledger(ledger)} cannot be used:"
            f" {describe(exc)}",
            hint="Fix the store, or leave require_store out: calls are then denied until it"
            " answers.",
        ) from exc
    return ledger


def _name_ledger(ledger: Ledger) -> str:
    return str(getattr(ledger, "name", type(ledger).__name__))


def _name_sink_probe(wiring: Wiring, sink: AuditSink) -> tuple[str, Callable[[], Any]]:
    name = "audit" if len(wiring.sinks) == 1 else f"audit:{wiring.sinks.index(sink)}"
    return name, lambda: _probe_sink(sink)


async def _probe_sink(sink: AuditSink) -> str:
    """Ask a sink, if it can be asked.

    Whatever it answers, it is not well while it does not take events: a check of a file does not
    show that writing to it fails.
    """
    kind, check = type(sink).__name__, getattr(sink, "check", None)
    if check is not None:
        await call_until(check, (), None)
    if problem := PORTS.find(sink).problem:
        raise BackendError(f"{kind} did not take its newest event: {problem}")
    if check is not None:
        return f"{kind} can be written."
    return f"{kind} has no check(); it took its newest event, if there was one."


def _probe_approvals(backend: ApprovalBackend | None, policy: Policy) -> str | Awaitable[str]:
    if (problem := find_approver_problem(backend, policy)) is not None:
        raise problem
    if backend is None:
        return "No approval backend is set: calls that need approval are denied."
    kind, check = type(backend).__name__, getattr(backend, "check", None)
    if check is None:
        return f"{kind} has no check()."
    return _ask(check, f"{kind} answers.")


async def _ask(check: Callable[..., Any], message: str, *args: Any) -> str:
    await call_until(check, args, None)
    return message


async def _probe_engines(policy: Policy, wiring: Wiring, timeout_s: float) -> str:
    full = [tool for tool, n in wiring.abandoned.by_tool().items() if n >= wiring.abandoned.maximum]
    if full:
        raise BackendError(
            f"No further call is started of {', '.join(map(repr, full))}:"
            f" {wiring.abandoned.maximum} that ran out of time are still running."
        )
    places = {entry.run_in for entry in policy.tools.values() if entry.run_in is not None}
    engine = wiring.run_in
    if (check := getattr(engine, "check", None)) is not None:
        await call_until(check, (timeout_s / 2,), None)
    default = engine if isinstance(engine, str) else type(engine).__name__
    return f"Tools run in: {', '.join(sorted({default, *places}))}."


def _probe_policy(policy: Policy, watches: Sequence[Watch]) -> str:
    version = policy.version or "without a version"
    for watch in watches:
        if (problem := watch.problem) is not None:
            raise EdictumConfigError(f"The policy {version} stays in force: {problem}")
    watched = ", its files are watched" if any(watch.is_running for watch in watches) else ""
    return f"The policy {version} is in force{watched}."


def _probe_clock(wiring: Wiring, clock_watch: ClockWatch) -> str:
    now = wiring.clock.now()
    jump_s = clock_watch.take_jump_s() if wiring.clock is SYSTEM else 0.0
    if abs(jump_s) > CLOCK_TOLERANCE_S:
        raise EdictumConfigError(
            f"The system's clock was set by {jump_s:+.0f} s since the last look: windows and leases"
            " of stores that go by it are wrong by as much."
        )
    return f"It is {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(now))}."


# --- Figures --------------------------------------------------------------------------------------


def read_stats(policy: Policy, wiring: Wiring) -> Stats:
    """Return what a guard has counted, and how much its parts hold now."""
    ledger, figures = wiring.ledger, wiring.figures
    circuit = reason = None
    if hasattr(ledger, "why_unavailable"):
        reason = ledger.why_unavailable
        circuit = "closed" if reason is None else "open"
    count_open = getattr(ledger, "count_open_settlements", None)
    count_sessions = getattr(ledger, "count_sessions", None)
    return Stats(
        policy_version=policy.version,
        calls=figures.read_calls(),
        latency=figures.read_latency(),
        tool_latency=figures.read_tools(),
        circuit=circuit,
        circuit_reason=reason,
        uncounted_calls=0 if count_open is None else count_open(),
        threads_left_behind=wiring.abandoned.by_tool(),
        functions_left_behind=POOL.abandoned.count,
        processes=_count_processes(),
        audit_failures=figures.audit_failures,
        audit_dropped=sum(PORTS.find(sink).dropped for sink in wiring.sinks),
        prompts=figures.prompts,
        consequential_calls=figures.count_consequential(),
        sessions=None if count_sessions is None else count_sessions(),
    )


def _count_processes() -> int:
    """Count the workers of the process pool, which is loaded when it is first used."""
    module = sys.modules.get("edictum.execution.processes")
    return 0 if module is None else module.PROCESSES.count_workers()
