"""A chained audit file: restarts, processes, rotation, compression, heads, keys, and failures."""

from __future__ import annotations

import errno
import gzip
import json
import logging
import os
import random
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import pytest

from edictum import AuditEvent, Edictum, EdictumConfigError, FileAuditSink, ToolExecutionResult
from edictum.audit import Chain, LogReading, _rotation, export, generate_key, query, verify
from edictum.audit._heads import NumberedLine
from edictum.audit.chain import ChainHead, read_head, read_record
from edictum.errors import BackendError
from edictum.testing import AuditConformance
from support.effort import effort
from support.killed_writers import run_program
from support.waiting import wait_until


def emit(sink: FileAuditSink, *tools: str) -> None:
    for tool in tools:
        sink.emit(AuditEvent(tool_name=tool))


def names(path: Path) -> list[str]:
    return [event["tool_name"] for event in query(path)]


def read_heads(path: Path) -> list[ChainHead]:
    lines = Path(f"{path}.heads").read_bytes().splitlines()
    return [head for line in lines if (head := read_head(line)) is not None]


class TestChainedSink(AuditConformance):
    """A chained file does what every sink must."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "audit.jsonl"

    def make_sink(self) -> FileAuditSink:
        return FileAuditSink(self.path, chain=True)

    def read(self, sink: FileAuditSink) -> list[dict[str, Any]]:
        assert verify(sink).ok, verify(sink).problems
        events = [dict(event) for event in query(sink)]
        assert all(event.pop("_chain") for event in events)
        return events


class TestBatchedSink(TestChainedSink):
    """So does one that shares an ``fsync`` between calls."""

    def make_sink(self) -> FileAuditSink:
        return FileAuditSink(self.path, chain=True, fsync="batch")


# --- Chains and heads -----------------------------------------------------------------------------


def test_a_governed_call_is_chained_with_its_outcome(tmp_path: Path) -> None:
    """The closing event, whose outcome is part of the hash."""
    path = tmp_path / "audit.jsonl"
    with closing(FileAuditSink(path, chain=True)) as sink:
        Edictum(audit_sink=sink).dispatch_sync("t", {"ratio": 0.5}, lambda ratio: "Error: no")
    lines = path.read_bytes().splitlines()
    records = [read_record(line) for line in lines]
    assert [record.sequence for record in records if record and record.is_intact] == [1, 2]
    assert json.loads(lines[1])["outcome"] == "failed"
    assert verify(path).ok


def test_a_restart_begins_a_chain_that_the_next_head_lists(tmp_path: Path) -> None:
    """The chain of a sink that was closed has ended; one that was left stays in the heads."""
    path, left = tmp_path / "audit.jsonl", tmp_path / "left.jsonl"
    for number in range(3):
        with closing(FileAuditSink(path, chain=True)) as sink:
            emit(sink, f"{number}")
    assert [len(head.writers) for head in read_heads(path)] == [1, 1, 1]
    found = verify(path)
    assert (found.ok, found.writers, found.records) == (True, 3, 3)

    sinks = [FileAuditSink(left, chain=Chain(head_events=1)) for _ in range(3)]
    for sink in sinks:
        emit(sink, "t")
    assert [len(head.open_writers) for head in read_heads(left)] == [1, 2, 3]
    for sink in sinks:
        sink.close()
    assert verify(left).ok


def test_a_closed_sink_that_is_used_again_begins_a_chain(tmp_path: Path) -> None:
    """The old one has ended, and nothing is written to it."""
    sink = FileAuditSink(tmp_path / "audit.jsonl", chain=True)
    for _ in range(2):
        emit(sink, "t")
        sink.close()
    found = verify(sink)
    assert (found.ok, found.writers, found.unlisted) == (True, 2, 0)


def test_a_head_is_written_though_no_event_comes(tmp_path: Path) -> None:
    """A timer writes it."""
    path = tmp_path / "audit.jsonl"
    with closing(FileAuditSink(path, chain=Chain(head_seconds=0.01))) as sink:
        emit(sink, "t")
        wait_until(lambda: Path(f"{path}.heads").exists() and bool(read_heads(path)))
        assert verify(path).unlisted == 0


def test_heads_are_copied_to_files_and_functions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that fails is logged and stops nothing."""
    path, told = tmp_path / "audit.jsonl", list[str]()

    def fail(line: str) -> None:
        raise RuntimeError("not reachable")

    chain = Chain(head_events=1, copy_to=[fail, tmp_path / "copy", told.append])
    with closing(FileAuditSink(path, chain=chain)) as sink, caplog.at_level(logging.ERROR):
        emit(sink, "1", "2")
    lines = Path(f"{path}.heads").read_text()
    assert (tmp_path / "copy").read_text() == lines
    assert told == lines.splitlines()
    assert verify(path, heads=told).ok
    assert {record.edictum_event for record in caplog.records} == {"audit.heads_not_written"}  # type: ignore[attr-defined]  # put there by the library


def test_a_head_that_is_written_while_a_log_is_verified_is_not_missed(tmp_path: Path) -> None:
    """After the heads of the log were read: the copy of it that is kept elsewhere is newer."""
    copies = tmp_path / "copy"

    class Busy:
        """A log that grows as soon as its heads were read."""

        def read_heads(self, reading: LogReading) -> Iterator[NumberedLine]:
            yield from sink.read_heads(reading)
            emit(sink, "3")

        def read_records(self, reading: LogReading) -> Iterator[NumberedLine]:
            return sink.read_records(reading)

    chain = Chain(head_events=1, copy_to=copies)
    with closing(FileAuditSink(tmp_path / "audit.jsonl", chain=chain)) as sink:
        emit(sink, "1", "2")
        found = verify(Busy(), heads=copies)
        assert found.ok, found.problems


def test_a_forked_child_is_a_writer_of_its_own(tmp_path: Path) -> None:
    """Parent and child do not write one chain."""
    path = tmp_path / "audit.jsonl"
    sink = FileAuditSink(path, chain=True)
    emit(sink, "parent")
    child = os.fork()
    if child == 0:
        emit(sink, "child")
        sink.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    emit(sink, "parent")
    sink.close()
    found = verify(path)
    assert (found.ok, found.writers, found.records) == (True, 2, 3), found.problems


def test_threads_of_one_sink_write_one_chain(tmp_path: Path) -> None:
    """One after the other, whichever thread comes first."""
    path = tmp_path / "audit.jsonl"
    with closing(FileAuditSink(path, chain=Chain(head_events=7))) as sink:
        threads = [threading.Thread(target=emit, args=(sink, *"abcdefghij")) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = verify(path)
    assert (found.ok, found.writers, found.records, found.unlisted) == (True, 1, 80, 0)


# --- Keys -----------------------------------------------------------------------------------------


def test_a_key_is_private_to_its_owner_and_never_replaced(tmp_path: Path) -> None:
    """Mode 0600, and an error if the name is taken."""
    public = generate_key(tmp_path / "keys" / "audit.key")
    private = tmp_path / "keys" / "audit.key"
    assert private.stat().st_mode & 0o777 == 0o600
    assert public == tmp_path / "keys" / "audit.key.pub"
    text = private.read_bytes()
    with pytest.raises(EdictumConfigError, match="cannot be written: File exists"):
        generate_key(private)
    assert private.read_bytes() == text


def test_a_key_whose_public_part_has_no_place_is_not_written(tmp_path: Path) -> None:
    """It could not be made again under this name."""
    (tmp_path / "key.pub").write_text("another one")
    with pytest.raises(EdictumConfigError, match="cannot be written"):
        generate_key(tmp_path / "key")
    assert [file.name for file in tmp_path.iterdir()] == ["key.pub"]


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """With the command that mends it."""
    generate_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(EdictumConfigError, match="can be read by others"):
        FileAuditSink(tmp_path / "audit.jsonl", chain=Chain(key=tmp_path / "key"))


@pytest.mark.parametrize("content", ["", "secret-text", "-----BEGIN PRIVATE KEY-----\nsecret-text"])
def test_a_file_without_a_key_is_refused_and_not_quoted(tmp_path: Path, content: str) -> None:
    """What it holds may be a secret."""
    path = tmp_path / "key"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(EdictumConfigError, match="holds no private Ed25519 key") as raised:
        FileAuditSink(tmp_path / "audit.jsonl", chain=Chain(key=path))
    assert "secret-text" not in str(raised.value)
    sink = FileAuditSink(tmp_path / "audit.jsonl", chain=True)
    with pytest.raises(EdictumConfigError, match="holds no public Ed25519 key"):
        verify(sink, public_key=path)


def test_a_private_key_is_not_taken_for_a_public_one(tmp_path: Path) -> None:
    """Nor the other way round."""
    public = generate_key(tmp_path / "key")
    with pytest.raises(EdictumConfigError, match="holds no public Ed25519 key"):
        verify(tmp_path / "audit.jsonl", public_key=tmp_path / "key")
    public.chmod(0o600)
    with pytest.raises(EdictumConfigError, match="holds no private Ed25519 key"):
        FileAuditSink(tmp_path / "audit.jsonl", chain=Chain(key=public))


def test_the_key_is_in_no_file_and_no_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in the log, the heads, log lines or representations."""
    generate_key(tmp_path / "key")
    secret = (tmp_path / "key").read_text().splitlines()[1]
    chain = Chain(key=tmp_path / "key", head_events=1)
    with closing(FileAuditSink(tmp_path / "log" / "audit.jsonl", chain=chain)) as sink:
        emit(sink, "t")
        shown = f"{chain!r} {vars(sink)!r} {caplog.text}"
    written = "".join(file.read_text() for file in (tmp_path / "log").iterdir())
    assert secret not in shown + written


@pytest.mark.parametrize("options", [{"head_events": 0}, {"head_seconds": 0}])
def test_a_chain_without_heads_is_refused(options: dict[str, int]) -> None:
    """Every so many events, and every so many seconds, are both needed."""
    with pytest.raises(EdictumConfigError, match="a head every"):
        Chain(**options)  # type: ignore[arg-type]  # each value has its own type


# --- Rotation and compression ---------------------------------------------------------------------


@pytest.mark.parametrize("compress", [False, True, "gzip", "zstd"])
def test_rotation_and_compression_keep_the_chain(tmp_path: Path, compress: Any) -> None:
    """All records are read back, from all files, in their order."""
    path = tmp_path / "audit.jsonl"
    options = {"max_bytes": 4_000, "keep": 100, "compress": compress}
    tools = [f"tool-{number}" for number in range(30)]
    with closing(FileAuditSink(path, chain=Chain(head_events=4), **options)) as sink:  # type: ignore[arg-type]  # each value has its own type
        emit(sink, *tools)
        assert verify(sink).ok
    suffix = {False: "", "gzip": ".gz"}.get(compress, ".zst")
    older = [file.name for file in tmp_path.iterdir() if not file.name.endswith(("heads", "jsonl"))]
    assert len(older) > 5
    assert all(name.endswith(suffix) and name.count(".") == 2 + bool(suffix) for name in older)
    found = verify(path)
    assert (found.ok, found.records, found.deleted) == (True, 30, 0), found.problems
    assert names(path) == tools


def test_a_compressed_file_beside_its_plain_one_is_not_read_twice(tmp_path: Path) -> None:
    """As it is when a process dies, or while logrotate compresses."""
    path = tmp_path / "audit.jsonl"
    with closing(FileAuditSink(path, chain=True, max_bytes=1, keep=9)) as sink:
        emit(sink, "1", "2")
        plain = tmp_path / "audit.jsonl.1"
        (tmp_path / "audit.jsonl.1.gz").write_bytes(gzip.compress(plain.read_bytes()))
        assert names(path) == ["1", "2"]
        assert verify(path).ok


def test_compression_that_fails_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    """The plain file is kept, and read."""
    path = tmp_path / "audit.jsonl"
    (tmp_path / ".audit.jsonl.1.gz.part").mkdir()
    with closing(FileAuditSink(path, chain=True, max_bytes=1, keep=9, compress="gzip")) as sink:
        emit(sink, "1", "2")
    assert (tmp_path / "audit.jsonl.1").exists()
    assert verify(path).ok


def test_a_file_that_is_being_compressed_is_not_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer fills the next file meanwhile. Its rotation waits, and nothing is lost."""
    path, compress = tmp_path / "audit.jsonl", _rotation.compress
    options: dict[str, Any] = {"chain": True, "max_bytes": 1, "keep": 99}
    first, second = FileAuditSink(path, compress="gzip", **options), FileAuditSink(path, **options)
    other = threading.Thread(target=emit, args=(second, "3", "4", "5"))

    def compress_slowly(file: IO[bytes], suffix: str) -> IO[bytes]:
        if other.ident is None:
            other.start()
            other.join(timeout=0.2)  # it ends here only if it does not wait
        return compress(file, suffix)

    monkeypatch.setattr(_rotation, "compress", compress_slowly)
    emit(first, "1", "2")
    other.join()
    first.close()
    second.close()
    assert sorted(names(path)) == list("12345")
    found = verify(path)
    assert (found.ok, found.records) == (True, 5), found.problems


def test_an_unknown_compression_is_refused(tmp_path: Path) -> None:
    """When the sink is made."""
    with pytest.raises(EdictumConfigError, match="compress is 'rar'"):
        FileAuditSink(tmp_path / "audit.jsonl", compress="rar")  # type: ignore[arg-type]  # on purpose


def test_an_exported_log_is_still_chained(tmp_path: Path) -> None:
    """Records are written as they were, compressed or not."""
    path = tmp_path / "audit.jsonl"
    with closing(FileAuditSink(path, chain=True)) as sink:
        Edictum(audit_sink=sink).run_sync("t", {"ratio": 1e20, "é": "\ue000"}, lambda **given: 0.5)
    export(query(path), tmp_path / "copy.jsonl.gz")
    found = verify(tmp_path / "copy.jsonl.gz")
    assert (found.ok, found.records) == (True, 2), found.problems


def test_a_log_that_another_program_moves_stays_one_chain(tmp_path: Path) -> None:
    """Until that program deletes a part of it."""
    path = tmp_path / "audit.jsonl"
    with closing(FileAuditSink(path, chain=True)) as sink:
        emit(sink, "1", "2")
        path.rename(tmp_path / "audit.jsonl.1")
        emit(sink, "3")
    assert verify(path).ok
    (tmp_path / "audit.jsonl.1").unlink()
    assert [problem.kind for problem in verify(path).problems] == ["removed"]


# --- One fsync for several events -----------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inodes that ``fsync`` was called for."""
    calls, fsync = list[int](), os.fsync

    def note(descriptor: int) -> None:
        calls.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return calls


async def test_events_that_wait_together_share_an_fsync(tmp_path: Path, synced: list[int]) -> None:
    """Each is on the disk when it was awaited."""
    path = tmp_path / "audit.jsonl"
    sink = FileAuditSink(path, fsync="batch")
    pending = [sink.emit(AuditEvent(tool_name=f"{number}")) for number in range(200)]
    for write in pending:
        await write
    inode = path.stat().st_ino
    assert 1 <= synced.count(inode) <= 200
    assert sink._synced == sink._written == 200
    sink.close()
    assert names(path) == [f"{number}" for number in range(200)]


async def test_a_file_is_synced_before_it_is_rotated_or_listed(
    tmp_path: Path, synced: list[int]
) -> None:
    """Nothing waits for a file that is closed already, and no head lists what may get lost."""
    path = tmp_path / "audit.jsonl"
    sink = FileAuditSink(path, fsync="batch", chain=Chain(head_events=1), max_bytes=1, keep=9)
    for number in range(4):
        await sink.emit(AuditEvent(tool_name=f"{number}"))
    files = [path, *(path.with_name(f"audit.jsonl.{number}") for number in (1, 2, 3))]
    heads = Path(f"{path}.heads").stat().st_ino
    first = synced.index(files[-1].stat().st_ino)
    assert first < synced.index(heads)
    assert {file.stat().st_ino for file in files} <= set(synced)
    sink.close()


async def test_an_fsync_that_fails_fails_those_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later events are written, and the log verifies."""

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = tmp_path / "audit.jsonl"
    sink = FileAuditSink(path, fsync="batch", chain=True)
    await sink.emit(AuditEvent(tool_name="1"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        pending = [sink.emit(AuditEvent(tool_name=name)) for name in "23"]
        for write in pending:
            with pytest.raises(BackendError, match="Input/output error"):
                await write
    await sink.emit(AuditEvent(tool_name="4"))
    sink.close()
    assert verify(path).ok
    assert {"1", "4"} <= set(names(path))


def test_an_unknown_fsync_is_refused(tmp_path: Path) -> None:
    """When the sink is made."""
    with pytest.raises(EdictumConfigError, match="fsync is 'often'"):
        FileAuditSink(tmp_path / "audit.jsonl", fsync="often")  # type: ignore[arg-type]  # on purpose


# --- Failures -------------------------------------------------------------------------------------


@contextmanager
def limit_file_size(count: int) -> Iterator[None]:
    """Have no file of this process grow beyond a size: a disk that is full in the middle of a line."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("fsync", [False, True, "batch"])
def test_a_full_disk_in_the_middle_of_a_record(tmp_path: Path, fsync: Any) -> None:
    """What was acknowledged is there, what was not is no record, and the log verifies."""
    path = tmp_path / "audit.jsonl"
    with closing(FileAuditSink(path, chain=Chain(head_events=2), fsync=fsync)) as sink:
        emit(sink, "1", "2", "3")
        with limit_file_size(path.stat().st_size + 500):
            for _ in range(3):
                with pytest.raises(BackendError, match="cannot be written"):
                    emit(sink, "lost")
        emit(sink, "4", "5")
    found = verify(path)
    assert found.ok, found.problems
    assert (found.records, found.writers) == (5, 2)
    assert [note for note in found.notes if "record 4 of" in note and "was cut" in note]
    assert names(path) == ["1", "2", "3", "4", "5"]


def test_heads_that_cannot_be_written_stop_calls(tmp_path: Path) -> None:
    """As events that cannot be written do; when they can be, the log verifies."""
    path = tmp_path / "audit.jsonl"
    heads = Path(f"{path}.heads")
    heads.mkdir()
    guard = Edictum(audit_sink=FileAuditSink(path, chain=Chain(head_events=1)))
    outcome = guard.dispatch_sync("t", {}, lambda: 1)
    assert not isinstance(outcome, ToolExecutionResult)
    assert os.strerror(errno.EISDIR) in str(outcome)
    heads.rmdir()
    assert isinstance(guard.dispatch_sync("t", {}, lambda: 1), ToolExecutionResult)
    found = verify(path)
    assert found.ok, found.problems
    guard.audit_sink.sinks[1].close()  # type: ignore[union-attr]  # a CompositeSink


def test_lines_that_are_no_records_are_said_and_change_nothing(tmp_path: Path) -> None:
    """Torn, in another encoding, and too long to be held."""
    path = tmp_path / "audit.jsonl"
    sink = FileAuditSink(path, chain=True)
    emit(sink, "1")
    strange = [
        b'{"action": "call_al',
        '{"action": "é"}'.encode("utf-16"),
        b"\xff\x00\xfe",
        b"[" * 100_000,
        b"",
        b"x" * (9 * 1024 * 1024),
    ]
    with path.open("ab") as file:
        file.write(b"\n".join(strange) + b"\n")
    emit(sink, "2")
    sink.close()
    found = verify(path)
    assert (found.ok, found.records) == (True, 2), found.problems
    assert [note.rpartition("/")[2] for note in found.notes[:-1]] == [
        "audit.jsonl:2: torn, or not JSON",
        "audit.jsonl:3: not UTF-8",
        "audit.jsonl:4: not UTF-8",
        "audit.jsonl:5: torn, or not JSON",
        "audit.jsonl:7: longer than 8 MiB",
    ]


def test_a_heads_file_that_a_crash_has_cut_goes_on(tmp_path: Path) -> None:
    """The next head follows the newest whole one."""
    path = tmp_path / "audit.jsonl"
    heads = Path(f"{path}.heads")
    with closing(FileAuditSink(path, chain=Chain(head_events=1))) as sink:
        emit(sink, "1", "2")
        os.truncate(heads, heads.stat().st_size - 20)
        emit(sink, "3")
    found = verify(path)
    assert found.ok, found.problems
    assert "torn, or not JSON" in found.notes[0]


def test_a_clock_that_jumps_back_changes_nothing(tmp_path: Path) -> None:
    """The order of a chain is that of its numbers."""
    path = tmp_path / "audit.jsonl"
    with closing(FileAuditSink(path, chain=True)) as sink:
        for second in (30, 10, 20):
            at = f"2026-07-01T09:30:{second}+00:00"
            sink.emit(AuditEvent(tool_name="t", timestamp=datetime.fromisoformat(at)))
    assert verify(path).ok


# --- kill -9 --------------------------------------------------------------------------------------

KILLS = effort(10, soak=500)
KILLED = """
import sys
from edictum import AuditEvent, FileAuditSink
from edictum.audit import Chain
from support.killed_writers import kill_writers

folder, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def write(number, acknowledge):
    chain = Chain(key=f"{folder}/key", head_events=10)
    options = {"max_bytes": 100_000, "keep": 10_000, "compress": "zstd"}
    sink = FileAuditSink(f"{folder}/audit.jsonl", chain=chain, **options)
    for index in range(10_000_000):
        name = f"{number}-{index}"
        sink.emit(AuditEvent(tool_name=name, tool_args={"text": "x" * (index % 50 * 100)}))
        acknowledge(name)


kill_writers(write, folder, kills, seed, most=40)
"""


@pytest.mark.slow
@pytest.mark.soak
def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    """Four processes write one log, with rotation, compression and heads; one after the other is
    killed at a random moment, and another takes its place.
    """
    public = generate_key(tmp_path / "key")
    seed = random.randrange(2**32)
    run_program(KILLED, tmp_path, KILLS, seed)
    path = tmp_path / "audit.jsonl"
    found = verify(path, public_key=public)
    assert found.ok, (seed, found.problems)
    written = names(path)
    assert len(written) == len(set(written)), seed
    acknowledged = set((tmp_path / "acks").read_text().split())
    assert acknowledged <= set(written), (seed, acknowledged - set(written))
    assert found.writers >= KILLS
    print(
        f"\naudit: {KILLS} kills, {len(acknowledged):,} acknowledged events, {found.heads:,} heads"
    )
