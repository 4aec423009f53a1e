"""A log that is much larger than the memory it may take: written by the sink, rotated and
compressed, then queried, reported and verified in one pass each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edictum import AuditAction, AuditEvent, FileAuditSink
from support.effort import effort

MAX_GROWTH_KB = 96 * 1024
# Both programs print, for each step, how long it took and how much memory, at a tenth and at the
# end. The first one writes as many sessions as calls, one call in ten denied, by four writers.
MEASURING = """\
import asyncio, json, re, sys, time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from edictum import AuditAction, AuditEvent, FileAuditSink
from edictum.audit import Chain, query, report, verify

path, count = sys.argv[1], int(sys.argv[2])
resident, notes = [], 0

def read_kb(name):
    return int(re.search(name + r":\\s*([0-9]+) kB", Path("/proc/self/status").read_text())[1])

def note_share(share):
    global notes
    notes += 1
    if share >= 0.1 and not resident:
        resident.append(read_kb("VmRSS"))

def note(reading):
    note_share(reading.bytes_read / reading.bytes_total)

def measure(run):
    resident.clear()
    before, started = read_kb("VmHWM"), time.perf_counter()
    busy = time.process_time()
    made = run()
    times = {"seconds": time.perf_counter() - started, "cpu": time.process_time() - busy}
    memory = {"grown_kb": read_kb("VmHWM") - before, "resident": [*resident, read_kb("VmRSS")]}
    return {**made, **times, **memory}

def tell(**steps):
    print(json.dumps({name: measure(run) for name, run in steps.items()} | {"notes": notes}))
"""
WRITING = (
    MEASURING
    + """
START = datetime(2026, 7, 1, tzinfo=UTC)

def make_event(number):
    is_denied = number % 10 == 0
    return AuditEvent(
        timestamp=START + timedelta(milliseconds=number),
        call_id=f"c{number}",
        session_id=f"session-{number}",
        tool_name="refund" if is_denied else "look",
        action=AuditAction.CALL_DENIED if is_denied else AuditAction.CALL_EXECUTED,
        outcome="denied" if is_denied else "executed",
        duration_ms=number % 500,
    )

def run_write():
    options = {"chain": Chain(), "max_bytes": max(count * 20, 1_000_000), "keep": 1_000}
    sinks = [FileAuditSink(path, compress="zstd", **options) for _ in range(4)]
    for number in range(count):
        sinks[number // 1_000 % 4].emit(make_event(number))
        if number % 5_000 == 0:
            note_share(number / count)
    for sink in sinks:
        sink.close()
    return {}

tell(write=run_write)
"""
)
READING = (
    MEASURING
    + """
def run_query():
    return {"found": sum(1 for _ in query(path, tool="refund", outcome="denied", on_progress=note))}

def run_report():
    made = report(path, on_progress=note)
    made.to_html()
    return {"calls": made.calls, "sessions": len(made.sessions.rows), "events": made.events}

def run_verify():
    found = verify(path, on_progress=note)
    return {"ok": found.ok, "records": found.records, "writers": found.writers}

tell(query=run_query, report=run_report, verify=run_verify)
"""
)

LONG_LINE = (
    MEASURING
    + """
from edictum.cli.main import main

def ask(*words):
    return lambda: {"code": main(["audit", *words])}

tell(
    verify=ask("verify", path),
    query=ask("query", path, "--json"),
    report=ask("report", path, "--json"),
    tail=ask("tail", path, "-n", "6", "--json"),
)
"""
)


def run_program(program: str, path: Path, count: int) -> dict[str, Any]:
    command = [sys.executable, "-c", program, str(path), str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found.pop("notes") > 2
    return found


@pytest.mark.soak
@pytest.mark.slow
def test_large_log_takes_bounded_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As many sessions as calls; ten million of them in `make soak`, or EDICTUM_EVENTS."""
    pytest.importorskip("zstandard")
    count = int(os.environ.get("EDICTUM_EVENTS") or effort(40_000, 10_000_000))  # of 12 GB in all
    log = tmp_path / "audit.jsonl"
    steps = run_program(WRITING, log, count)
    with capsys.disabled():
        tell_step("write", steps["write"], count)
    steps |= run_program(READING, log, count)
    assert steps["query"]["found"] == count // 10
    assert steps["report"]["events"] == steps["report"]["calls"] == count
    assert steps["report"]["sessions"] <= 10_000
    assert (steps["verify"]["ok"], steps["verify"]["records"]) == (True, count)
    assert steps["verify"]["writers"] == 4
    with capsys.disabled():
        for name in ("query", "report", "verify"):
            tell_step(name, steps[name], count)
    assert {name for name, step in steps.items() if step["grown_kb"] > MAX_GROWTH_KB} == set()
    for file in tmp_path.iterdir():
        file.unlink()


@pytest.mark.soak
@pytest.mark.slow
def test_long_line_is_said_and_the_rest_is_read(tmp_path: Path) -> None:
    """In bounded memory, by every command; 1 GB in `make soak`. The line is a hole in the file."""
    log, size = tmp_path / "audit.jsonl", effort(40_000_000, 1_000_000_000)
    for names in ("abc", "def"):
        sink = FileAuditSink(log, chain=True)
        for name in names:
            sink.emit(AuditEvent(action=AuditAction.CALL_EXECUTED, tool_name=f"tool-{name}"))
        sink.close()
        if names == "abc":
            os.truncate(log, log.stat().st_size + size)
            with log.open("ab") as file:
                file.write(b"\n")
    command = [sys.executable, "-c", LONG_LINE, str(log), "6"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *told, last = done.stdout.splitlines()
    steps = json.loads(last)
    del steps["notes"]
    assert {name for name, step in steps.items() if step["grown_kb"] > MAX_GROWTH_KB} == set()
    assert {name: step["code"] for name, step in steps.items()} == {
        **dict.fromkeys(("query", "report", "tail"), 1),
        "verify": 0,  # nothing of the chain is missing
    }
    assert f"note: {log}:4: longer than 8 MiB" in told
    assert any(line.startswith("OK: 6 records of 2 writers") for line in told)
    tools = [json.loads(line).get("tool_name") for line in told if line.startswith("{")]
    assert list(filter(None, tools)) == [f"tool-{name}" for name in "abcdef"] * 2
    assert done.stderr.count("1 could not be read: longer than 8 MiB.") == 3
    log.unlink()


def tell_step(name: str, step: dict[str, Any], count: int) -> None:
    speed, of_cpu = count / step["seconds"], count / step["cpu"]
    tenth, whole = step["resident"][0] / 1024, step["resident"][-1] / 1024
    print(f"\n{name}: {count:,} events, {speed:,.0f}/s, {of_cpu:,.0f}/s of CPU time", end="")
    memory = f"resident {tenth:.0f} MB at a tenth, {whole:.0f} MB at the end"
    print(f", {memory}, peak {step['grown_kb'] / 1024:.0f} MB more than before it", flush=True)
