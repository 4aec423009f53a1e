"""Where events go: file, standard output, memory, and several at once."""

from __future__ import annotations

import asyncio
import io
import json
import os
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edictum import (
    AuditEvent,
    AuditSink,
    BackendError,
    CollectingAuditSink,
    CompositeSink,
    Edictum,
    EdictumConfigError,
    FileAuditSink,
    MarkEvictedError,
    RedactionPolicy,
    StdoutAuditSink,
    ToolDenied,
)
from edictum.audit import SqliteAuditSink, query
from edictum.testing import AuditConformance, FailingSink, RecordingSink


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def numbered(number: int) -> AuditEvent:
    return AuditEvent(tool_name=f"t-{number}")


class Appending(io.StringIO):
    """A stream whose text ends up in a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def flush(self) -> None:
        self._path.write_text(self.getvalue())


def write(sink: FileAuditSink, *numbers: int) -> None:
    for number in numbers:
        sink.emit(numbered(number))
    sink.close()


# --- The suite that every sink must pass ----------------------------------------------------------


class TestFileSink(AuditConformance):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.path = tmp_path / "audit.jsonl"

    def make_sink(self) -> Any:
        return FileAuditSink(self.path)

    def read(self, sink: Any) -> list[Any]:
        return lines(self.path)


class TestRotatingFileSink(TestFileSink):
    def make_sink(self) -> Any:
        return FileAuditSink(self.path, max_bytes=20_000, keep=100)

    def read(self, sink: Any) -> list[Any]:
        files = sorted(
            self.path.parent.glob("audit.jsonl.*"), key=lambda path: -int(path.suffix[1:])
        )
        return [line for path in [*files, self.path] for line in lines(path)]


class TestStdoutSink(AuditConformance):
    def make_sink(self) -> Any:
        self.stream = io.StringIO()
        return StdoutAuditSink(stream=self.stream)

    def read(self, sink: Any) -> list[Any]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


class TestCollectingSink(AuditConformance):
    def make_sink(self) -> Any:
        return CollectingAuditSink()

    def read(self, sink: Any) -> list[Any]:
        return [event.to_dict() for event in sink.events]


class TestCompositeSink(AuditConformance):
    def make_sink(self) -> Any:
        self.parts = [RecordingSink(), CollectingAuditSink(), RecordingSink(asynchronous=True)]
        return CompositeSink(self.parts)

    def read(self, sink: Any) -> list[Any]:
        first, *others = [[event.to_dict() for event in part.events] for part in self.parts]
        assert sorted(map(json.dumps, first)) == sorted(map(json.dumps, others[0]))
        assert len(others[1]) == len(first)
        return first


# --- File -----------------------------------------------------------------------------------------


def test_the_parent_directory_is_created(tmp_path: Path) -> None:
    """However deep."""
    path = tmp_path / "a" / "b" / "audit.jsonl"
    write(FileAuditSink(path), 1)
    assert lines(path)[0]["tool_name"] == "t-1"


def test_the_file_is_private_to_its_owner(tmp_path: Path) -> None:
    """It says who did what."""
    path = tmp_path / "audit.jsonl"
    old = os.umask(0)
    try:
        write(FileAuditSink(path), 1)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_events_are_appended_to_what_is_there(tmp_path: Path) -> None:
    """By a later sink, after a close, and when the path is given as text."""
    path = tmp_path / "audit.jsonl"
    first = FileAuditSink(str(path))
    write(first, 1)
    write(first, 2)
    write(FileAuditSink(path, fsync=True), 3)
    assert [line["tool_name"] for line in lines(path)] == ["t-1", "t-2", "t-3"]


def test_rotation_keeps_so_many_old_files_and_every_line_whole(tmp_path: Path) -> None:
    """The newest events are in the file itself."""
    path = tmp_path / "audit.jsonl"
    size = len(json.dumps(numbered(10).to_dict())) + 1
    sink = FileAuditSink(path, max_bytes=size * 2, keep=2)
    for number in range(10, 20):
        sink.emit(numbered(number))
    sink.close()
    kept = {
        file.name: [line["tool_name"] for line in lines(file)]
        for file in sorted(tmp_path.iterdir())
    }
    assert kept == {
        "audit.jsonl": ["t-18", "t-19"],
        "audit.jsonl.1": ["t-16", "t-17"],
        "audit.jsonl.2": ["t-14", "t-15"],
    }


def test_an_event_larger_than_the_limit_is_written_all_the_same(tmp_path: Path) -> None:
    """In a file of its own."""
    path = tmp_path / "audit.jsonl"
    write(FileAuditSink(path, max_bytes=1), 1, 2, 3)
    assert [len(lines(file)) for file in sorted(tmp_path.iterdir())] == [1, 1, 1]


WRITER = """
import sys
from edictum import AuditEvent, FileAuditSink
sink = FileAuditSink(sys.argv[1])
for number in range(200):
    sink.emit(AuditEvent(tool_name=sys.argv[2], reason="x" * 500))
"""


def test_lines_of_several_processes_do_not_mix(tmp_path: Path) -> None:
    """Each line is one write to a file opened for appending."""
    path = tmp_path / "audit.jsonl"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), f"p-{number}"])
        for number in range(3)
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    names = [line["tool_name"] for line in lines(path)]
    assert {name: names.count(name) for name in set(names)} == {"p-0": 200, "p-1": 200, "p-2": 200}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_sink_goes_on_after_a_fork(tmp_path: Path) -> None:
    """The child opens the file itself."""
    code = """
import os, sys
from edictum import AuditEvent, FileAuditSink
sink = FileAuditSink(sys.argv[1])
sink.emit(AuditEvent(tool_name="parent"))
pid = os.fork()
sink.emit(AuditEvent(tool_name="child" if pid == 0 else "parent"))
if pid:
    os.waitpid(pid, 0)
"""
    path = tmp_path / "audit.jsonl"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(path)], check=True, timeout=60)
    assert sorted(line["tool_name"] for line in lines(path)) == ["child", "parent", "parent"]


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("max_bytes", "100MB", "max_bytes is '100MB'"),
        ("max_bytes", 0, "max_bytes is 0"),
        ("max_bytes", 1.5, "max_bytes is 1.5"),
        ("keep", "10", "keep is '10'"),
        ("keep", True, "keep is True"),
        ("keep", None, "keep is None"),
        ("chain", "audit.key", "chain is of type str, not a Chain"),
        ("chain", 1, "chain is of type int, not a Chain"),
        ("chain", {"key": "audit.key"}, "chain is of type dict, not a Chain"),
    ],
)
def test_a_wrong_option_of_a_file_sink_is_named(
    tmp_path: Path, option: str, value: Any, told: str
) -> None:
    """When the sink is made, with what to write instead."""
    with pytest.raises(EdictumConfigError, match=f"^FileAuditSink: {told}") as raised:
        FileAuditSink(tmp_path / "audit.jsonl", **{option: value})
    assert raised.value.hint


def test_a_wrong_chain_of_a_database_is_named_and_not_quoted(tmp_path: Path) -> None:
    """It may be the key itself."""
    chain: Any = "secret-text"
    with pytest.raises(EdictumConfigError, match="SqliteAuditSink: chain is of type str") as raised:
        SqliteAuditSink(tmp_path / "audit.db", chain=chain)
    assert "secret-text" not in str(raised.value)


def test_a_file_can_be_opened_before_its_first_event(tmp_path: Path) -> None:
    """So that a path that cannot be written is known when a program starts."""
    with closing(FileAuditSink(tmp_path / "logs" / "audit.jsonl")) as sink:
        sink.open()
        assert sink.path.read_text() == ""
        sink.emit(numbered(1))
    assert [line["tool_name"] for line in lines(sink.path)] == ["t-1"]
    with pytest.raises(BackendError, match=r"audit\.jsonl/x cannot be written.*Check the path"):
        FileAuditSink(sink.path / "x").open()


def test_a_file_that_cannot_be_written_says_which_and_stops_the_call(tmp_path: Path) -> None:
    """And is tried anew by the next call."""
    path = tmp_path / "audit.jsonl"
    path.mkdir()
    sink = FileAuditSink(path)
    with pytest.raises(BackendError, match=r"audit\.jsonl cannot be written.*Check the path"):
        sink.emit(numbered(1))
    assert isinstance(Edictum(audit_sink=sink).dispatch_sync("t", {}, lambda: 1), ToolDenied)
    path.rmdir()
    write(sink, 2)
    assert [line["tool_name"] for line in lines(path)] == ["t-2"]


@pytest.mark.parametrize(
    "make", [FileAuditSink, lambda path, policy: StdoutAuditSink(policy, Appending(path))]
)
def test_a_sinks_own_redaction_comes_on_top(make: Any, tmp_path: Path) -> None:
    """Events are redacted already; a sink may know more secrets."""
    path = tmp_path / "audit.jsonl"
    sink = make(path, RedactionPolicy(custom_patterns=[(r"acme-\d+", "[CUSTOMER]")]))
    Edictum(audit_sink=sink).dispatch_sync("t", {"customer": "acme-42"}, lambda customer: "ok")
    assert lines(path)[0]["tool_args"] == {"customer": "[CUSTOMER]"}
    if isinstance(sink, FileAuditSink):
        sink.close()


def test_standard_output_is_looked_up_when_an_event_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Programs redirect it."""
    Edictum(audit_sink=StdoutAuditSink()).dispatch_sync("t", {}, lambda: 1)
    assert [json.loads(line)["action"] for line in capsys.readouterr().out.splitlines()] == [
        "call_allowed",
        "call_executed",
    ]


# --- Composite ------------------------------------------------------------------------------------


async def test_a_composite_tries_all_and_reports_what_failed() -> None:
    """Together, at the end."""
    good = RecordingSink()
    composite = CompositeSink(
        [FailingSink(error="one"), good, FailingSink(error="three", asynchronous=True)]
    )
    with pytest.raises(ExceptionGroup, match="2 of 3 audit sinks failed") as raised:
        await composite.emit(numbered(1))
    assert [str(error) for error in raised.value.exceptions] == ["one", "three"]
    assert len(good.events) == 1
    assert len(composite.sinks) == 3


async def test_a_composite_closes_all_its_sinks() -> None:
    """Also behind one that cannot be closed."""

    class Stuck(RecordingSink):
        def close(self) -> None:
            raise OSError("stuck")

    class Later(RecordingSink):
        async def close(self) -> None:  # type: ignore[override]
            self.closed = True

    sinks = [Stuck(), RecordingSink(), Later()]
    with pytest.raises((ExceptionGroup, OSError)):
        await CompositeSink(sinks).close()
    assert [sink.closed for sink in sinks] == [False, True, True]


def test_a_composite_needs_sinks() -> None:
    """An audit that goes nowhere is a mistake."""
    with pytest.raises(ValueError, match="at least one sink"):
        CompositeSink([])


def test_a_guard_takes_one_sink_several_or_none() -> None:
    """The local one is always there."""
    one, two = RecordingSink(), RecordingSink()
    for given in (None, [], one, [one, two], (one, two)):
        guard = Edictum(audit_sink=given)
        guard.dispatch_sync("t", {}, lambda: 1)
        assert len(guard.local_sink.events) == 2
        sinks = getattr(guard.audit_sink, "sinks", [guard.audit_sink])
        assert sinks[0] is guard.local_sink
        assert sinks[1:] == ([given] if given is one else list(given or []))
    assert (len(one.events), len(two.events)) == (6, 4)
    assert isinstance(one, AuditSink)


def test_local_and_given_sinks_see_the_same_events() -> None:
    """Equal, in the same order."""
    sink = RecordingSink()
    guard = Edictum(audit_sink=sink)
    guard.dispatch_sync("t", {"password": "x"}, lambda password: 1)
    assert guard.local_sink.events == sink.events


# --- Memory ---------------------------------------------------------------------------------------


def test_the_ring_keeps_the_newest() -> None:
    """And never grows."""
    sink = CollectingAuditSink(max_events=3)
    guard_events = [numbered(number) for number in range(5)]
    for event in guard_events:
        asyncio.run(sink.emit(event))
    assert [event.tool_name for event in sink.events] == ["t-2", "t-3", "t-4"]


def test_events_since_a_mark() -> None:
    """A mark is a position in all that came."""
    guard = Edictum()
    guard.dispatch_sync("one", {}, lambda: 1)
    mark = guard.local_sink.mark()
    assert guard.local_sink.since_mark(mark) == []
    guard.dispatch_sync("two", {}, lambda: 1)
    assert [event.tool_name for event in guard.local_sink.since_mark(mark)] == ["two", "two"]
    assert len(guard.local_sink.since_mark(0)) == 4


def test_a_mark_that_fell_out_of_the_ring_is_an_error_not_a_gap() -> None:
    """Somebody relies on seeing everything since."""
    sink = CollectingAuditSink(max_events=2)
    mark = sink.mark()
    for number in range(3):
        asyncio.run(sink.emit(numbered(number)))
    with pytest.raises(MarkEvictedError, match=r"mark 0 is too old.*Raise max_events"):
        sink.since_mark(mark)
    assert [event.tool_name for event in sink.since_mark(1)] == ["t-1", "t-2"]
    for strange in (-1, 4):
        with pytest.raises(ValueError, match="not from this sink"):
            sink.since_mark(strange)


def test_clearing_forgets_events_but_not_that_they_were() -> None:
    """A mark from before is evicted."""
    sink = CollectingAuditSink()
    mark = sink.mark()
    asyncio.run(sink.emit(numbered(1)))
    sink.clear()
    assert sink.events == []
    with pytest.raises(MarkEvictedError):
        sink.since_mark(mark)
    assert sink.since_mark(sink.mark()) == []
    with pytest.raises(IndexError):
        sink.last()


def test_events_can_be_filtered_by_action() -> None:
    """By the enum or its value."""
    guard = Edictum()
    guard.dispatch_sync("t", {}, lambda: 1)
    guard.dispatch_sync("t", {}, lambda: 1 / 0)
    assert [event.outcome for event in guard.local_sink.filter("call_failed")] == ["failed"]


@pytest.mark.parametrize("size", [0, -1])
def test_a_ring_of_nothing_is_refused(size: int) -> None:
    """With the number."""
    with pytest.raises(ValueError, match=f"max_events is {size}"):
        CollectingAuditSink(max_events=size)


async def test_every_sink_is_closed_by_awaiting_close(tmp_path: Path) -> None:
    """Whether it writes to a file or to a database."""
    for sink in (FileAuditSink(tmp_path / "a.jsonl"), SqliteAuditSink(tmp_path / "a.db")):
        await sink.emit(AuditEvent(tool_name="t"))
        await sink.close()
        assert len(list(query(sink))) == 1
