"""Retention: what a log with a floor keeps, and what deleting leaves behind."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from edictum import AuditEvent, EdictumConfigError, FileAuditSink
from edictum.audit import Chain, LogReading, export, query, verify, write_evidence
from edictum.audit._heads import NumberedLine
from edictum.audit._rotation import describe_file
from edictum.audit.chain import follow_head, read_head
from edictum.cli.main import main

OLD = datetime.now(UTC) - timedelta(days=200)


def emit(sink: FileAuditSink, *tools: str, at: datetime | None = None) -> None:
    for tool in tools:
        sink.emit(AuditEvent(tool_name=tool, timestamp=at or datetime.now(UTC)))


def names(path: Path) -> list[str]:
    return [event["tool_name"] for event in query(path)]


def make_old(path: Path) -> None:
    """Have the rotated files look as old as their events."""
    for file in path.parent.glob(f"{path.name}.*"):
        if not file.name.endswith(".heads"):
            os.utime(file, (OLD.timestamp(), OLD.timestamp()))


def open_sink(path: Path, **options: Any) -> FileAuditSink:
    """Return a sink that puts every event into a file of its own, and keeps two of them."""
    return FileAuditSink(path, **({"max_bytes": 1, "keep": 2} | options))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def test_nothing_younger_is_deleted_whatever_keep_says(path: Path) -> None:
    """There are more old files than `keep` then."""
    with closing(open_sink(path, chain=True, retain="180d")) as sink:
        emit(sink, *"123456")
    assert names(path) == list("123456")
    assert verify(path).ok


@pytest.mark.parametrize("compress", [False, True])
def test_what_is_old_enough_is_deleted_and_leaves_its_hash(path: Path, compress: bool) -> None:
    """In a head, with the positions of its writers."""
    with closing(open_sink(path, chain=True, retain="180d", compress=compress)) as sink:
        emit(sink, *"1234", at=OLD)
        make_old(path)
        oldest = next(path.parent.glob("audit.jsonl.3*")).read_bytes()
        emit(sink, *"5")
        assert names(path) == ["3", "4", "5"]
    found = verify(path)
    assert (found.ok, found.records, found.deleted) == (True, 3, 2), found.problems
    lines = Path(f"{path}.heads").read_text().splitlines()
    deleted = [entry for line in lines if (head := read_head(line)) for entry in head.deleted]
    assert deleted[0].sha256 == hashlib.sha256(oldest).hexdigest()
    assert [(entry.records, entry.writers[0].sequence) for entry in deleted] == [(1, 1), (1, 2)]


def test_a_file_that_is_old_with_an_event_that_is_not_is_kept(path: Path) -> None:
    """A clock that jumped, or a file that was touched, does not delete it."""
    with closing(open_sink(path, chain=True, retain="180d")) as sink:
        emit(sink, *"1234")
        make_old(path)
        emit(sink, "5")
    assert names(path) == list("12345")


def test_a_file_that_is_not_old_with_events_that_are_is_kept(path: Path) -> None:
    """Both times must be old enough."""
    with closing(open_sink(path, chain=True, retain="180d")) as sink:
        emit(sink, *"1234", at=OLD)
        emit(sink, "5")
    assert names(path) == list("12345")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chain": True},
        {"chain": True, "retain": "1s"},
        {"keep": 1},
        {"chain": Chain(), "keep": 1},
    ],
)
def test_a_log_with_a_floor_is_not_shortened_by_another_sink(
    path: Path, options: dict[str, Any]
) -> None:
    """Not by one without retention, with less of it, or without a chain: the heads tell the floor."""
    with closing(open_sink(path, chain=True, retain="180d")) as sink:
        emit(sink, *"123")
    with closing(open_sink(path, **options)) as other:
        emit(other, *"456")
    assert names(path) == list("123456")


def test_a_sink_without_a_chain_deletes_nothing_of_a_chained_log(path: Path) -> None:
    """It could not say what it deleted."""
    with closing(open_sink(path, chain=True)) as sink:
        emit(sink, *"123", at=OLD)
    with closing(open_sink(path)) as other:
        emit(other, *"4567", at=OLD)
    assert names(path) == list("123"[-3:]) + list("4567")


def test_without_retention_keep_decides_and_what_is_deleted_is_named(path: Path) -> None:
    """The log verifies without what was deleted."""
    with closing(open_sink(path, chain=True)) as sink:
        emit(sink, *"123456")
        assert names(path) == ["4", "5", "6"]
    found = verify(path)
    assert (found.ok, found.deleted) == (True, 3)


def test_a_file_that_another_program_deletes_is_missed(path: Path) -> None:
    """No head says that it was deleted."""
    with closing(open_sink(path, chain=True, retain="180d")) as sink:
        emit(sink, *"12345")
    (path.parent / "audit.jsonl.4").unlink()
    assert [(problem.kind, problem.sequence) for problem in verify(path).problems] == [
        ("removed", 1)
    ]


def test_a_file_that_is_deleted_while_a_log_is_verified_is_not_missed(path: Path) -> None:
    """After the heads were read, and before the files are opened: the newest head names it."""

    class Busy:
        """A log that is rotated as soon as its heads were read."""

        def read_heads(self, reading: LogReading) -> Iterator[NumberedLine]:
            yield from sink.read_heads(reading)
            emit(sink, *next(more))

        def read_records(self, reading: LogReading) -> Iterator[NumberedLine]:
            return sink.read_records(reading)

    more = iter([("5", "6", "7"), ()])
    with closing(open_sink(path, chain=True)) as sink:
        emit(sink, *"1234")
        found = verify(Busy())
        assert found.ok, found.problems
        assert found.deleted == 4


def test_a_deletion_before_its_time_is_found(path: Path) -> None:
    """By a program that writes heads as it should, but does not wait."""
    with closing(open_sink(path, chain=True, retain="180d")) as sink:
        emit(sink, *"12")
    older, heads = path.with_name("audit.jsonl.1"), Path(f"{path}.heads")
    last = read_head(heads.read_text().splitlines()[-1])
    head = follow_head(last, [], log="", at="now", deleted=[describe_file(older)])
    heads.write_text(f"{heads.read_text()}{head.to_json()}\n")
    older.unlink()
    found = verify(path)
    assert [(problem.kind, problem.text) for problem in found.problems] == [
        ("removed", "audit.jsonl.1 was deleted before its time")
    ]


def test_a_floor_that_is_lowered_is_found(path: Path) -> None:
    """By a head that was made without the one before it."""
    with closing(open_sink(path, chain=True, retain="180d")) as sink:
        emit(sink, *"12")
    heads = Path(f"{path}.heads")
    last = read_head(heads.read_text().splitlines()[-1])
    assert last is not None
    head = replace(follow_head(last, [], log="", at="now"), retain_s=0)
    heads.write_text(f"{heads.read_text()}{head.to_json()}\n")
    assert [problem.text for problem in verify(path).problems] == ["head 2 lowers the retention"]


@pytest.mark.parametrize("retain", ["soon", "180", -1])
def test_a_retention_that_is_not_a_length_of_time_is_refused(path: Path, retain: Any) -> None:
    """When the sink is made."""
    with pytest.raises(EdictumConfigError, match="not a length of time"):
        FileAuditSink(path, chain=True, retain=retain)


def test_retention_needs_a_chain(path: Path) -> None:
    """Without heads there is no place for what is left of a file."""
    with pytest.raises(EdictumConfigError, match="retain= needs a chain"):
        FileAuditSink(path, retain="180d")


@pytest.mark.parametrize("name", ["audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.heads"])
@pytest.mark.parametrize("options", [{}, {"chain": True}])
def test_a_part_of_a_chained_log_is_not_the_log_of_another_sink(
    path: Path, name: str, options: dict[str, Any]
) -> None:
    """It would be rotated, and deleted, without a look at the floor of the log that it is of."""
    with closing(open_sink(path, chain=True, retain="180d")) as sink:
        emit(sink, *"123")
    linked = path.parent / "linked.jsonl"
    linked.symlink_to(path.with_name(name))
    for other in (path.with_name(name), linked):
        with pytest.raises(EdictumConfigError, match="a part of the chained log"):
            open_sink(other, keep=1, **options)
    linked.unlink()
    linked.symlink_to(path)
    for own in (path, linked):  # the log itself
        open_sink(own, chain=True).close()
    assert names(path) == list("123")
    assert verify(path).ok


# --- Files that are written beside a log ----------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.7.gz", "audit.jsonl.gz", "audit.jsonl.heads"],
)
def test_nothing_that_is_written_takes_the_place_of_a_part_of_a_chained_log(
    path: Path, name: str
) -> None:
    """Nor a name that would be read as one: the log would have those events twice."""
    with closing(open_sink(path, chain=True, retain="180d")) as sink:
        emit(sink, *"123")
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    target = path.with_name(name)
    linked = path.parent / "linked"
    linked.symlink_to(target)
    for written in (target, linked):
        with pytest.raises(EdictumConfigError, match="a part of the chained log"):
            export(query(path, tool="3"), written)
        with pytest.raises(EdictumConfigError, match="a part of the chained log"):
            write_evidence(path, written)
        assert main(["audit", "report", str(path), "--html", str(written)]) == 2
        other = str(path.with_name("evidence.json"))
        command = ["audit", "evidence", str(path), "--to", other, "--script", str(written)]
        assert main(command) == 2
    linked.unlink()
    after = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    assert after == before
    export(query(path), path.with_name("audit.csv"), format="csv")
