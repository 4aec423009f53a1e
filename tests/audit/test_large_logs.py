"""A log that is much larger than the memory it may take: queried, reported and verified in one
pass each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from edictum import AuditAction, AuditEvent
from edictum.audit._export import compress
from edictum.audit.chain import ChainPosition
from support.effort import effort

START = datetime(2026, 7, 1, tzinfo=UTC)
MAX_GROWTH_KB = 96 * 1024
# Prints how many events there were, how fast they were read and how much memory that took.
PROGRAM = """\
import json, re, sys, time
from pathlib import Path
from edictum.audit import query, report, verify

def read_peak_kb():
    return int(re.search(r"VmHWM:\\s*([0-9]+) kB", Path("/proc/self/status").read_text())[1])

def measure(run):
    before, started = read_peak_kb(), time.perf_counter()
    made = run()
    grown = read_peak_kb() - before
    return {**made, "grown_kb": grown, "seconds": time.perf_counter() - started}

def run_query():
    return {"found": sum(1 for _ in query(path, tool="refund", outcome="denied", on_progress=note))}

def run_report():
    made = report(path, on_progress=note)
    made.to_html()
    return {"calls": made.calls, "sessions": len(made.sessions.rows), "events": made.events}

def run_verify():
    found = verify(path, on_progress=note)
    return {"ok": found.ok, "records": found.records}

path, shares = sys.argv[1], []
def note(reading):
    shares.append(reading.bytes_read / reading.bytes_total)

found = {"query": measure(run_query), "report": measure(run_report), "verify": measure(run_verify)}
print(json.dumps({**found, "notes": len(shares), "last": shares[-1]}))
"""


def make_events(count: int) -> Iterator[dict[str, Any]]:
    """Yield events of as many sessions as calls, one call in ten denied."""
    fields = AuditEvent(timestamp=START, action=AuditAction.CALL_EXECUTED).to_dict()
    for number in range(count):
        is_denied = number % 10 == 0
        yield {
            **fields,
            "timestamp": (START + timedelta(milliseconds=number)).isoformat(),
            "call_id": f"c{number}",
            "session_id": f"session-{number}",
            "tool_name": "refund" if is_denied else "look",
            "action": "call_denied" if is_denied else "call_executed",
            "outcome": "denied" if is_denied else "executed",
            "duration_ms": number % 500,
        }


def write_log(path: Path, events: Iterator[dict[str, Any]]) -> None:
    """Write the events as records of 100 writers, compressed."""
    writers = [ChainPosition(f"writer-{number}") for number in range(100)]
    with path.open("wb") as file, compress(file, path.suffix) as content:
        for number, event in enumerate(events):
            line, writers[number % 100] = writers[number % 100].append(json.dumps(event))
            content.write(f"{line}\n".encode())


@pytest.mark.soak
@pytest.mark.slow
def test_large_log_takes_bounded_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As many sessions as calls; ten million of them in `make soak`."""
    pytest.importorskip("zstandard")
    count = effort(40_000, 10_000_000)
    log = tmp_path / "audit.jsonl.zst"  # as JSON it would be 12 GB
    write_log(log, make_events(count))
    command = [sys.executable, "-c", PROGRAM, str(log)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["query"]["found"] == count // 10
    assert found["report"]["events"] == found["report"]["calls"] == count
    assert found["report"]["sessions"] <= 10_000
    assert (found["verify"]["ok"], found["verify"]["records"]) == (True, count)
    assert found["verify"]["grown_kb"] < MAX_GROWTH_KB
    assert found["query"]["grown_kb"] < MAX_GROWTH_KB
    assert found["report"]["grown_kb"] < MAX_GROWTH_KB
    assert found["notes"] > 2
    assert found["last"] == 1
    with capsys.disabled():
        for name in ("query", "report", "verify"):
            speed = count / found[name]["seconds"]
            print(f"\n{name}: {count:,} events, {speed:,.0f} events/s", end="")
            print(f", {found[name]['grown_kb'] / 1024:.0f} MB more memory")
