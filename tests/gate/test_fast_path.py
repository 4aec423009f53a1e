"""The fast path and the lifecycle give the same outcomes, counters, events and calls of user code.

Random guards and calls, on the real clock and on one that ticks and sometimes fails.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edictum import (
    Edictum,
    FileAuditSink,
    HookDecision,
    HookRegistration,
    InMemoryApprovalBackend,
    OperationLimits,
    ToolDenied,
    Verdict,
    postcondition,
    precondition,
    session_contract,
)
from edictum.audit.sinks import WRITTEN, Written, takes_entries
from edictum.core._records import replace
from edictum.core.effects import Pause
from edictum.sessions import MemoryLedger
from edictum.success import error_key
from edictum.testing import audit_trail
from support.effort import effort

fast_path = pytest.importorskip("edictum.runtime.fast_path")


class Stop(BaseException):
    """Neither an error nor an exit, as frameworks have them."""


class Thing:
    """A result that is not plain data."""

    def __repr__(self) -> str:
        return "Thing"


INTERRUPTIONS = (KeyboardInterrupt, asyncio.CancelledError, Stop, SystemExit)
ERRORS = (ValueError, LookupError)


def raising(error: type[BaseException]) -> Callable[..., Any]:
    def raises(*args: Any, **kwargs: Any) -> Any:
        raise error("raised")

    return raises


def returning(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


class Later:
    """An awaitable that may be dropped: unlike a coroutine it does not complain."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __await__(self) -> Any:
        yield from asyncio.sleep(0).__await__()
        return self._function()


def later(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: Later(lambda: function(*args, **kwargs))


def deferring(*args: Any, **kwargs: Any) -> Any:
    raise Pause(Stop("deferred"))


VALUES = [
    "text",
    "",
    None,
    7,
    {"rows": [1, 2]},
    {"error": "no"},
    {"error": None},
    {"is_error": True},
    "Error: no",
    "sk-" + "a" * 40,
    Thing(),
    [1, {"a": "b"}],
]


class Ticking:
    """A clock that goes on by a second whenever it is asked, and raises at some of these times."""

    def __init__(self, fails_at: frozenset[int]) -> None:
        self._ticks, self._ids, self._fails_at = itertools.count(), itertools.count(), fails_at

    def now(self) -> float:
        tick = next(self._ticks)
        if tick in self._fails_at:
            raise ValueError("no time")
        return float(tick)

    def new_id(self) -> str:
        return f"id-{next(self._ids)}"


class Writing:
    """A sink that writes at once, and raises at some events instead."""

    blocking = False
    writes_at_once = True

    def __init__(self, fails_at: dict[int, type[BaseException]]) -> None:
        self.lines: list[str] = []
        self._numbers, self._fails_at = itertools.count(), fails_at

    @takes_entries
    def emit(self, event: Any) -> Written:
        error = self._fails_at.get(next(self._numbers))
        if error is not None:
            raise error("not written")
        self.lines.append(event.to_json())
        return WRITTEN


FAIL, PASS = Verdict.fail("objects"), Verdict.pass_()

BODIES = [
    *map(returning, VALUES),
    *map(raising, (*ERRORS, *INTERRUPTIONS)),
    deferring,
    later(returning("later")),
    later(raising(ValueError)),
]
CHECKS = [
    *[returning(PASS)] * 6,
    returning(FAIL),
    returning("no verdict"),
    later(returning(PASS)),
    later(returning(FAIL)),
    *map(raising, (ValueError, *INTERRUPTIONS)),
]


def logged(name: str, function: Callable[..., Any], log: list[str]) -> Callable[..., Any]:
    """The function, which notes that it was called."""

    def called(*args: Any, **kwargs: Any) -> Any:
        log.append(name)
        return function(*args, **kwargs)

    return called


CONTRACTS = st.lists(
    st.tuples(
        st.sampled_from(["pre", "pre", "pre", "post", "session"]),
        st.sampled_from(CHECKS),
        st.sampled_from(["deny", "deny", "approve", "redact"]),
        st.sampled_from([None, None, "observe"]),
    ),
    max_size=3,
)
HOOKS = st.lists(
    st.tuples(
        st.sampled_from(["before", "after"]),
        st.sampled_from(
            [
                returning(HookDecision.allow()),
                returning(HookDecision.deny("hook")),
                returning(HookDecision.rewrite({"x": "rewritten"})),
                raising(ValueError),
            ]
        ),
    ),
    max_size=1,
)
SMALL = st.none() | st.integers(0, 3)
LIMITS = st.builds(
    OperationLimits,
    max_attempts=SMALL,
    max_tool_calls=SMALL,
    max_failures=SMALL,
    max_consecutive_failures=SMALL,
    max_successes_per_tool=st.sampled_from([{}, {}, {"t": 1}, {"t*": 2}]),
    max_amounts=st.sampled_from([{}, {"cost": 2}]),
)
TOOLS: list[dict[str, Any]] = [
    {"t": {"amounts": {"cost": 1}}},
    {"t": {"amounts": {"cost": "args.x", "pages": 1}}},
    {"*": {"amounts": {"cost": raising(ValueError)}}},
    {"t": {"amounts": {"cost": 1}, "actual": {"cost": "result.cost"}}},
]
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "limits": LIMITS,
        "mode": st.sampled_from(["enforce", "enforce", "observe"]),
        "success_check": st.sampled_from([returning(True), returning(False), raising(ValueError)]),
        "principal_resolver": st.sampled_from([returning(None), raising(ValueError)]),
        "on_allow": st.sampled_from([returning(None), raising(ValueError)]),
        "on_deny": st.just(returning(None)),
        "approval": st.booleans(),
        "tools": st.sampled_from(TOOLS),
        "ttl_s": st.sampled_from([1e-9, 60.0]),
        "sink_fails_at": st.dictionaries(
            st.integers(0, 8), st.sampled_from([OSError, *INTERRUPTIONS]), max_size=3
        ),
        "clock_fails_at": st.frozensets(st.integers(0, 12), max_size=3),
    },
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.sampled_from(BODIES[:2]) | st.sampled_from(BODIES),
            "args": st.sampled_from([{}, {"x": 1}, {"x": [1, {"y": 2}]}, {"x": Thing()}]),
            "flag": st.sampled_from(
                [None, error_key, error_key, returning("flagged"), raising(ValueError)]
            ),
            "sync": st.booleans(),
            "session_id": st.sampled_from(["s", "s", "other"]),
        },
        optional={
            "amounts": st.sampled_from(
                [{"cost": 0.5}, {"cost": 3, "pages": 1}, raising(ValueError)]
            ),
            "actual_amounts": st.just(returning({"cost": 1})),
            "parent_session_id": st.just("above"),
        },
    ),
    min_size=1,
    max_size=6,
)

OF_THE_RUN = ("timestamp", "instance_id", "duration_ms", "policy_digest")
STATED = ("session_id", "amounts", "actual_amounts", "parent_session_id")


def make_guard(
    contracts: list[Any], hooks: list[Any], options: dict[str, Any], log: list[str]
) -> Edictum:
    options = dict(options)
    made: list[Any] = []
    for number, (kind, check, effect, mode) in enumerate(contracts):
        name = f"{kind}-{number}"
        options_of = {"id": name, "mode": mode}
        asked = logged(name, check, log)
        if kind == "pre":
            effect_of = effect if effect == "approve" else "deny"
            made.append(precondition("*", effect=effect_of, **options_of)(asked))
        elif kind == "post":
            effect_of = "warn" if effect == "approve" else effect
            made.append(postcondition("*", effect=effect_of, **options_of)(asked))
        else:
            made.append(session_contract(**options_of)(asked))
    registered = [
        HookRegistration(phase, "*", logged(f"hook-{phase}", callback, log))
        for phase, callback in hooks
    ]
    for name in ("success_check", "principal_resolver", "on_allow", "on_deny"):
        if name in options:
            options[name] = logged(name, options[name], log)
    approval = options.pop("approval", None)
    if approval is not None:
        options["approval_backend"] = InMemoryApprovalBackend(approval)
    if "clock_fails_at" in options:
        options["clock"] = Ticking(options.pop("clock_fails_at"))
    if "sink_fails_at" in options:
        options["audit_sink"] = [Writing(options.pop("sink_fails_at"))]
    ledger = MemoryLedger(ttl_s=options.pop("ttl_s", None))
    return Edictum(contracts=made, hooks=registered, backend=ledger, **options)


def call(guard: Edictum, made: dict[str, Any], log: list[str]) -> Any:
    """How one call ends: its outcome or what it raises, as comparable data."""
    flag = made["flag"]
    if flag not in (None, error_key):
        flag = logged("flag", flag, log)
    body = logged("body", made["body"], log)
    stated = {name: made[name] for name in STATED if name in made}
    options = {"flag": flag, "call_id": "c", **stated}
    try:
        if made["sync"]:
            return shown(guard.dispatch_sync("t", made["args"], body, **options))
        return shown(asyncio.run(guard.dispatch("t", made["args"], body, **options)))
    except BaseException as exc:
        return type(exc), str(exc)


def shown(outcome: Any) -> Any:
    assert is_dataclass(outcome)
    values = {item.name: getattr(outcome, item.name) for item in fields(outcome)}
    values["exception"] = repr(values.get("exception"))
    return type(outcome), {
        name: repr(value) for name, value in values.items() if name != "elapsed_ms"
    }


def trail(guard: Edictum) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in event.items() if name != "timestamp"}
        for event in audit_trail(guard.local_sink.events)
    ]


def read_lines(guard: Edictum) -> list[dict[str, Any]]:
    """Return what the sink of a guard has taken, without what differs from run to run."""
    (sink,) = guard._state.wiring.sinks
    assert isinstance(sink, Writing)
    events = [json.loads(line) for line in sink.lines]
    return [{name: it[name] for name in it if name not in OF_THE_RUN} for it in events]


@settings(max_examples=effort(133), deadline=None)
@given(CONTRACTS, HOOKS, OPTIONS, CALLS)
def test_both_paths_agree(
    contracts: list[Any], hooks: list[Any], options: dict[str, Any], calls: list[dict[str, Any]]
) -> None:
    """Outcomes, exceptions, counters, every field of every event, and who was asked how often."""
    logs: list[list[str]] = [[], []]
    fast, slow = (make_guard(contracts, hooks, options, log) for log in logs)
    slow._state = replace(slow._state, fast_path=None)
    for made in calls:
        ends = [call(guard, made, log) for guard, log in zip((fast, slow), logs, strict=True)]
        assert ends[0] == ends[1]
        assert logs[0] == logs[1]
        for session in ("s", "other", "above"):
            counted = [repr(guard.backend.snapshot(session)) for guard in (fast, slow)]
            assert counted[0] == counted[1]
    assert trail(fast) == trail(slow)
    assert fast.stats().calls == slow.stats().calls
    if "sink_fails_at" in options:
        assert read_lines(fast) == read_lines(slow)
    if "clock_fails_at" in options:
        times = [[event.timestamp for event in guard.local_sink.events] for guard in (fast, slow)]
        assert times[0] == times[1]


@pytest.mark.parametrize("backend", [MemoryLedger(), MemoryLedger(ttl_s=60)], ids=["plain", "ttl"])
@pytest.mark.parametrize("audited", [False, True], ids=["in memory", "in a file"])
def test_the_usual_call_takes_the_fast_path(
    backend: MemoryLedger, audited: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the second call of a session on, even when sessions have a lifetime."""
    sinks = [FileAuditSink(tmp_path / "audit.jsonl")] if audited else []
    guard = Edictum(
        backend=backend, audit_sink=sinks, contracts=[precondition("*")(returning(PASS))]
    )
    guard.run_sync("t", {}, lambda: 1)
    monkeypatch.setattr(fast_path, "lifecycle", raising(AssertionError))
    assert guard.run_sync("t", {}, lambda: 2) == 2
    assert asyncio.run(guard.run("t", {}, lambda: 3, session_id=guard.session_id)) == 3
    for sink in sinks:
        sink.close()


@pytest.mark.parametrize(
    "options",
    [
        {"on_allow": returning(None)},
        {"audit_sink": [type("Sink", (), {"emit": returning(None)})()]},
    ],
    ids=["on_allow", "sink"],
)
def test_guards_with_other_ports_take_the_lifecycle(options: dict[str, Any]) -> None:
    """A callback, or a sink that may have to be waited for."""
    assert Edictum(**options)._state.fast_path is None


def test_a_denied_call_asks_its_contracts_once() -> None:
    """The lifecycle goes on with what the fast path was told."""
    log: list[str] = []
    guard = Edictum(contracts=[precondition("*")(logged("asked", returning(FAIL), log))])
    assert isinstance(guard.dispatch_sync("t", {}, lambda: 1), ToolDenied)
    assert log == ["asked"]
