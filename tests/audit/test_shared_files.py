"""An audit file that several processes write, and that other programs move or delete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from edictum import AuditEvent, Edictum, FileAuditSink, ToolExecutionResult
from support.effort import effort
from support.waiting import wait_until

PROCESSES = 4
CALLS = effort(400, soak=10_000)
MAX_BYTES = effort(30_000, soak=300_000)


def names(path: Path) -> list[str]:
    return [json.loads(line)["tool_name"] for line in path.read_text().splitlines()]


def emit(sink: FileAuditSink, *tools: str) -> None:
    for tool in tools:
        sink.emit(AuditEvent(tool_name=tool))


def can_move(path: Path, target: Path) -> bool:
    """Move a file; return False if a rotation has just taken it away."""
    try:
        path.rename(target)
    except FileNotFoundError:
        return False
    return True


# --- Several processes ----------------------------------------------------------------------------

CALLER = """
import sys
from edictum import Edictum, FileAuditSink, ToolExecutionResult
path, name, calls, max_bytes = sys.argv[1:]
guard = Edictum(audit_sink=FileAuditSink(path, max_bytes=int(max_bytes), keep=10_000))
for number in range(int(calls)):
    call = {"call_id": f"{name}-{number}", "session_id": str(number)}
    outcome = guard.dispatch_sync("t", {}, lambda: 1, **call)
    assert isinstance(outcome, ToolExecutionResult) and not outcome.notes, outcome
"""


@pytest.mark.slow
@pytest.mark.soak
def test_every_event_is_there_once_while_files_are_rotated_and_moved(tmp_path: Path) -> None:
    """By the four processes that write them, and by a logrotate that renames one in the middle."""
    path = tmp_path / "audit.jsonl"
    callers = [
        subprocess.Popen(
            [sys.executable, "-c", CALLER, str(path), f"p{number}", str(CALLS), str(MAX_BYTES)]
        )
        for number in range(PROCESSES)
    ]
    half = PROCESSES * CALLS * 1_600 // MAX_BYTES // 2
    wait_until(path.with_name(f"audit.jsonl.{half}").exists, timeout_s=600)
    wait_until(lambda: can_move(path, tmp_path / "audit.jsonl-20261117"), timeout_s=600)
    assert [caller.wait(600) for caller in callers] == [0] * PROCESSES

    files = [file for file in tmp_path.iterdir() if file.is_file()]
    events = Counter(
        (event["call_id"], event["action"])
        for file in files
        for event in map(json.loads, file.read_text().splitlines())
    )
    assert set(events.values()) == {1}
    assert len(events) == PROCESSES * CALLS * 2
    assert len(files) > 2 * half
    sizes = [file.stat().st_size for file in files]
    assert max(sizes) <= MAX_BYTES
    print(
        f"\naudit: {len(events):,} events of {PROCESSES} processes in {len(files)} files, once each"
    )


WRITER = """
import sys
from edictum import AuditEvent, FileAuditSink
sink = FileAuditSink(sys.argv[1])
for number in range(400):
    text = [f"{number} words " * 20] * 100
    sink.emit(AuditEvent(tool_name="t", call_id=f"{sys.argv[2]}-{number}", tool_args={"text": text}))
"""


@pytest.mark.slow
def test_lines_that_processes_write_at_once_stand_alone(tmp_path: Path) -> None:
    """Without rotation, and so without a lock: a line that another process is just writing is not
    taken for one that was cut.
    """
    path = tmp_path / "audit.jsonl"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), f"p{number}"])
        for number in range(PROCESSES)
    ]
    assert [writer.wait(600) for writer in writers] == [0] * PROCESSES
    events = [json.loads(line)["call_id"] for line in path.read_text().splitlines()]
    assert len(events) == len(set(events)) == PROCESSES * 400


def test_a_process_notices_that_another_has_rotated(tmp_path: Path) -> None:
    """It writes to the new file, and what it writes counts there."""
    path = tmp_path / "audit.jsonl"
    size = len(AuditEvent(tool_name="a-1").to_json()) + 1
    first, second = (FileAuditSink(path, max_bytes=2 * size, keep=9) for _ in range(2))
    for number in range(1, 5):
        emit(first, f"a-{number}")
        emit(second, f"b-{number}")
    first.close()
    second.close()
    kept = [names(path.with_name(f"audit.jsonl.{number}")) for number in (3, 2, 1)]
    assert [*kept, names(path)] == [[f"a-{number}", f"b-{number}"] for number in range(1, 5)]


def test_rotation_does_not_look_for_all_files_that_it_may_keep(tmp_path: Path) -> None:
    """It numbers those up to the first gap; what stands behind a gap stays where it is."""
    path = tmp_path / "audit.jsonl"
    path.with_name("audit.jsonl.3").write_text("older\n")
    sink = FileAuditSink(path, max_bytes=1, keep=10_000_000_000)
    emit(sink, "1", "2", "3")
    sink.close()
    assert names(path.with_name("audit.jsonl.1")) == ["2"]
    assert names(path.with_name("audit.jsonl.2")) == ["1"]
    assert path.with_name("audit.jsonl.3").read_text() == "older\n"


# --- Other programs -------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"max_bytes": 100_000}, {"fsync": True}])
def test_a_file_that_was_moved_or_deleted_is_opened_anew(
    tmp_path: Path, options: dict[str, int]
) -> None:
    """As logrotate and ``rm`` do it, with or without a new file in its place."""
    path = tmp_path / "logs" / "audit.jsonl"
    sink = FileAuditSink(path, **options)  # type: ignore[arg-type]  # each value has its own type
    emit(sink, "1")
    path.rename(tmp_path / "moved")
    emit(sink, "2")
    path.rename(tmp_path / "moved again")
    path.touch()
    emit(sink, "3")
    path.unlink()
    emit(sink, "4")
    path.unlink()
    path.parent.rmdir()
    emit(sink, "5")
    sink.close()
    assert names(tmp_path / "moved") == ["1"]
    assert names(tmp_path / "moved again") == ["2"]
    assert names(path) == ["5"]


def test_a_file_that_was_truncated_goes_on_at_its_start(tmp_path: Path) -> None:
    """logrotate calls it ``copytruncate``; without zeros where the old events were."""
    path = tmp_path / "audit.jsonl"
    sink = FileAuditSink(path)
    emit(sink, "1", "2")
    os.truncate(path, 0)
    emit(sink, "3")
    sink.close()
    assert names(path) == ["3"]


def test_a_call_between_two_moves_leaves_both_events(tmp_path: Path) -> None:
    """The file is moved while the tool runs."""
    path = tmp_path / "audit.jsonl"
    with closing(FileAuditSink(path)) as sink:
        guard = Edictum(audit_sink=sink)
        outcome = guard.dispatch_sync("t", {}, lambda: str(path.rename(tmp_path / "old")))
    assert isinstance(outcome, ToolExecutionResult)
    actions = [json.loads(file.read_text())["action"] for file in (tmp_path / "old", path)]
    assert actions == ["call_allowed", "call_executed"]
