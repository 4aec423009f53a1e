"""``guard.stats()``: what is counted about calls, on every path that a call can take."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from edictum import (
    CallCount,
    Edictum,
    InMemoryApprovalBackend,
    OperationLimits,
    ToolCall,
    Verdict,
    precondition,
)
from edictum.audit import FileAuditSink
from edictum.prometheus import render_metrics
from edictum.runtime.figures import MAX_COUNTED_TOOLS, OTHER_TOOLS, Durations

ROOMY = OperationLimits(max_attempts=None, max_tool_calls=None)


@precondition("send", id="no-bob")
def no_bob(call: ToolCall) -> Verdict:
    return Verdict.fail("not to bob") if call.args["to"] == "bob" else Verdict.pass_()


def send(to: str) -> str:
    return f"sent to {to}"


def fail(to: str) -> str:
    raise ValueError(to)


def make_guard(tmp_path: Path, kind: str) -> Edictum:
    """Return a guard whose calls take the fast path, the lifecycle, or wait for a store."""
    options: dict[str, Any] = {"contracts": [no_bob], "limits": ROOMY}
    if kind == "file audit":
        options["audit_sink"] = FileAuditSink(tmp_path / "audit.jsonl")
    if kind == "sqlite":
        options["backend"] = f"sqlite:///{tmp_path}/sessions.db"
    return Edictum(**options)


@pytest.mark.parametrize("kind", ["memory", "file audit", "sqlite"])
async def test_calls_are_counted_by_tool_decision_and_outcome(tmp_path: Path, kind: str) -> None:
    """Every call once, whichever path it takes."""
    guard = make_guard(tmp_path, kind)

    async def awaited(to: str) -> str:
        return to

    for _ in range(5):
        await guard.run("send", {"to": "alice"}, send)
    await guard.dispatch("send", {"to": "bob"}, send)
    for _ in range(2):
        await guard.dispatch("send", {"to": "carol"}, fail)
    await guard.run("other", {"to": "dora"}, awaited)
    await guard.dispatch(
        "other", {"to": "dora"}, lambda to: threading.Event().wait(5), timeout_s=0.01
    )
    stats = guard.stats()
    assert set(stats.calls) == {
        CallCount("send", "allow", None, "executed", 5),
        CallCount("send", "deny", "precondition", "denied", 1),
        CallCount("send", "allow", None, "failed", 2),
        CallCount("other", "allow", None, "executed", 1),
        CallCount("other", "allow", None, "timeout", 1),
    }
    assert stats.count(tool="send") == 8
    assert stats.count(outcome="executed") == 6
    assert stats.tool_latency["send"].count == 7  # the denied call ran no body
    assert stats.latency["tool"].count == 9
    assert stats.threads_left_behind == {"other": 1}
    assert stats.sessions == (None if kind == "sqlite" else 1)
    assert stats.circuit == ("closed" if kind == "sqlite" else None)
    assert bool(stats.latency["ledger"].count) is (kind == "sqlite")
    assert bool(stats.latency["audit"].count) is (kind == "file audit")
    await guard.close()


def test_threads_lose_no_count() -> None:
    """The fast path takes no lock, and counts 8 threads with frequent switches exactly."""
    guard, before = Edictum(limits=ROOMY), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def call_often() -> None:
        for _ in range(2_000):
            guard.run_sync("send", {"to": "alice"}, send)

    threads = [threading.Thread(target=call_often) for _ in range(8)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert guard.stats().count(tool="send", outcome="executed") == 16_000


def test_the_number_of_tools_is_bounded() -> None:
    """A model that invents names fills no memory; its calls are counted together."""
    guard = Edictum(limits=ROOMY)
    for number in range(MAX_COUNTED_TOOLS + 50):
        guard.run_sync(f"tool{number}", {}, lambda: 1)
    stats = guard.stats()
    assert len(stats.calls) == MAX_COUNTED_TOOLS + 1
    assert stats.count(tool=OTHER_TOOLS) == 50


def test_a_reload_and_another_principal_keep_the_figures() -> None:
    """They are the guard's, not its policy's; a merged guard has its own."""
    guard = Edictum(limits=ROOMY)
    guard.run_sync("send", {"to": "alice"}, send)
    guard.set_principal(None)
    guard.run_sync("send", {"to": "alice"}, send)
    assert guard.stats().count() == 2
    assert Edictum.from_multiple([guard]).stats().count() == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_counts_its_own_calls() -> None:
    """Else the calls before the fork would be counted by each worker."""
    guard = Edictum(limits=ROOMY)
    for _ in range(3):
        guard.run_sync("send", {"to": "alice"}, send)
    child = os.fork()
    if child == 0:
        guard.run_sync("send", {"to": "alice"}, send)
        os._exit(guard.stats().count(outcome="executed"))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert guard.stats().count() == 3


async def test_audit_failures_are_counted(tmp_path: Path) -> None:
    """An event that no sink could take."""
    guard = Edictum(audit_sink=FileAuditSink(tmp_path))  # a directory
    await guard.dispatch("send", {"to": "alice"}, send)
    assert guard.stats().audit_failures == 2  # call_allowed, then call_denied
    assert guard.stats().count(source="audit", outcome="denied") == 1


def test_figures_are_ready_for_json() -> None:
    """``to_dict`` is what a metrics route returns."""
    import json

    guard = Edictum()
    guard.run_sync("send", {"to": "alice"}, send)
    told = json.loads(json.dumps(guard.stats().to_dict()))
    assert told["calls"][0]["tool"] == "send"


def test_durations_fall_into_buckets() -> None:
    """A bucket ends below its bound; a clock that was set back counts as no time."""
    durations = Durations(0.001)
    for seconds in (-5.0, 0.0, 0.0009, 0.001, 0.0039, 0.004, 1e30):
        durations.add(seconds)
    histogram = durations.read()
    assert histogram.count == 7
    assert dict(zip(histogram.bounds_s, histogram.counts, strict=True)) | {} == {
        **dict.fromkeys(histogram.bounds_s, 0),
        0.001: 3,
        0.002: 1,
        0.004: 1,
        0.008: 1,
        histogram.bounds_s[-1]: 1,
    }
    assert histogram.percentile(50) == 0.002
    assert histogram.total_s == pytest.approx(1e30)
    durations.clear()
    durations.add(0.0005)
    durations.add(0.25, times=4)
    assert durations.read().total_s == 1.0
    assert Durations(1.0).read().percentile(50) is None


@pytest.mark.parametrize("kind", ["memory", "file audit"])
async def test_prompts_per_100_consequential_calls(tmp_path: Path, kind: str) -> None:
    """Reads do not make the rate look better, and a call of which the answer is no counts."""

    @precondition("pay", effect="approve")
    def ask(call: ToolCall) -> Verdict:
        return Verdict.fail("sure?")

    sink = FileAuditSink(tmp_path / "audit.jsonl") if kind == "file audit" else None
    guard = Edictum(
        contracts=[ask],
        limits=ROOMY,
        tools={"look": {"side_effect": "read"}, "pay": {"side_effect": "write"}},
        approval_backend=InMemoryApprovalBackend(answer=lambda it: it.tool_args["to"] != "bob"),
        audit_sink=sink,
    )
    assert guard.stats().prompts_per_100 is None
    for tool, to in [("look", "a")] * 9 + [("pay", "a"), ("pay", "bob"), ("send", "a"), ("x", "a")]:
        await guard.dispatch(tool, {"to": to}, send)
    stats = guard.stats()
    assert (stats.prompts, stats.consequential_calls, stats.prompts_per_100) == (2, 4, 50.0)
    assert stats.to_dict()["prompts_per_100"] == 50.0
    made = guard.audit.report()
    assert made.prompts_per_100 == 50.0
    assert [row.prompts_per_100 for row in made.sessions.rows.values()] == [50.0]
    assert "edictum_prompts_total 2" in render_metrics(guard)
    await guard.close()
