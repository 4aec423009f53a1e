"""Sinks on a bad day: a full disk, a part of a composite that is not required."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from edictum import (
    AuditEvent,
    CollectingAuditSink,
    CompositeSink,
    Edictum,
    FileAuditSink,
    ToolExecutionResult,
)
from edictum.testing import FailingSink

FULL_DISK = """
import resource, signal, sys
from edictum import Edictum, FileAuditSink, ToolDenied
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
guard, bodies = Edictum(audit_sink=FileAuditSink(sys.argv[1])), []
outcome = guard.dispatch_sync("t", {"a": "x" * 400}, lambda a: bodies.append(a))
print(type(outcome).__name__, len(bodies), "300 of" in outcome.details)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(type(guard.dispatch_sync("t", {"a": "y"}, lambda a: bodies.append(a))).__name__)
"""


def test_a_line_that_is_cut_by_a_full_disk_stops_the_call_and_harms_no_other_line(
    tmp_path: Path,
) -> None:
    """What could not be written down does not start; once there is room, the next line stands
    alone.
    """
    path = tmp_path / "audit.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == ["ToolDenied 0 True", "ToolExecutionResult"]
    torn, *whole = path.read_text().splitlines()
    assert len(torn) == 300
    assert [json.loads(line)["action"] for line in whole] == ["call_allowed", "call_executed"]


@pytest.mark.parametrize("max_bytes", [None, 1_000_000])
@pytest.mark.parametrize("is_open", [True, False])
def test_a_line_that_another_process_could_not_finish_harms_no_other_line(
    tmp_path: Path, is_open: bool, max_bytes: int | None
) -> None:
    """Neither in a process that has the file open, nor in one that opens it later."""
    path = tmp_path / "audit.jsonl"
    sink = FileAuditSink(path, max_bytes=max_bytes)
    if is_open:
        sink.emit(AuditEvent(tool_name="before"))
    with path.open("ab") as other:
        other.write(b'{"tool_na')
    for tool in ("after", "later"):
        sink.emit(AuditEvent(tool_name=tool))
    *whole, torn, after, later = path.read_text().splitlines()
    assert (len(whole), torn) == (is_open, '{"tool_na')
    assert [json.loads(line)["tool_name"] for line in (after, later)] == ["after", "later"]
    sink.close()


def test_a_part_of_a_composite_that_is_not_required_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As when it stands in the guard's own list; its failure is logged."""
    optional, other = FailingSink(required=False), CollectingAuditSink()
    guard = Edictum(audit_sink=CompositeSink([optional, other]))
    assert isinstance(guard.dispatch_sync("t", {}, lambda: 1), ToolExecutionResult)
    assert len(other.events) == 2
    assert "FailingSink" in caplog.text


def test_a_part_of_a_composite_that_is_required_still_fails_it() -> None:
    """Required is what a sink is that says nothing."""
    with pytest.raises(ExceptionGroup, match="1 of 2"):
        asyncio.run(
            CompositeSink([FailingSink(), CollectingAuditSink()]).emit(AuditEvent(tool_name="t"))
        )
