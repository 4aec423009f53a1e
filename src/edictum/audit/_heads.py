"""The heads of a chained log: how a sink makes them, and the file beside the log that keeps them.

Processes that write one log add to one file of heads. They take turns by a lock on it, which is
held only while a head is added: once in a thousand events, or a minute.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, TypeAlias

from edictum._logs import AUDIT_HEADS, log
from edictum.audit._keys import HeadSigner, KeyPath
from edictum.audit._reading import (
    BOM,
    JsonLinesReader,
    LogReading,
    is_part_of,
    read_log_lines,
)
from edictum.audit.chain import (
    ChainHead,
    ChainPosition,
    DeletedFile,
    ListedWriter,
    follow_head,
    read_head,
)
from edictum.core.durations import parse_duration
from edictum.errors import EdictumConfigError

HeadCopy = str | os.PathLike[str] | Callable[[str], object]
LinePlace: TypeAlias = tuple[str, int]  # a file, or a table, and the number of the line or row
NumberedLine: TypeAlias = tuple[LinePlace, bytes | None]
TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Chain:
    """How a log is chained.

    ``key`` is the private key that signs heads (``edictum audit keygen``); without one they are not
    signed. A head is written after ``head_events`` events, and ``head_seconds`` after an event at
    the latest. ``copy_to`` are files, or functions that are given the line of a head: places that
    the host of the log cannot change.
    """

    key: KeyPath | None = None
    head_events: int = 1_000
    head_seconds: float = 60.0
    copy_to: HeadCopy | Sequence[HeadCopy] = ()

    def __post_init__(self) -> None:
        if self.head_events < 1 or self.head_seconds <= 0:
            raise EdictumConfigError(
                f"Chain: a head every {self.head_events} events or {self.head_seconds} seconds.",
                hint="Use 1 or more events, and more than 0 seconds.",
            )

    def list_copies(self) -> list[HeadCopy]:
        places = self.copy_to
        if isinstance(places, str | os.PathLike) or callable(places):
            return [places]
        return list(places)


def read_chain(sink: str, chain: Any) -> Chain | None:
    """Return how a sink's log is chained; None if it is not. The value is not quoted: it may be a
    key.
    """
    if chain is None or isinstance(chain, bool):
        return Chain() if chain else None
    if not isinstance(chain, Chain):
        raise EdictumConfigError(
            f"{sink}: chain is of type {type(chain).__name__}, not a Chain.",
            hint='Use True, or Chain(key="audit.key") to sign heads with a key.',
        )
    return chain


def read_retention(retain: str | float | None) -> float:
    """Return for how many seconds nothing may be deleted."""
    seconds = parse_duration(retain) if isinstance(retain, str) else retain or 0.0
    if seconds is None or seconds < 0:
        raise EdictumConfigError(
            f"retain is {retain!r}, not a length of time.", hint='Use "180d" or "12h".'
        )
    return seconds


@contextmanager
def hold_lock(file: IO[bytes] | int) -> Iterator[None]:
    """Hold the lock of an open file between processes. The kernel drops it when its holder dies."""
    import fcntl  # there is none on Windows, where a file that is open cannot be rotated either

    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def hold_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder between processes."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        with hold_lock(opened):
            yield
    finally:
        os.close(opened)


def name_heads(path: Path) -> Path:
    """Return the file of heads of a log."""
    return Path(f"{path}.heads")


def refuse_chained_log(path: Path, *, is_log: bool = False) -> None:
    """Raise if a file that is to be written would replace a part of a chained log. One that
    ``is_log`` may be a chained log itself, and only no part of another one.
    """
    target = path.resolve()
    own = name_heads(target) if is_log else None
    for heads in target.parent.glob("*.heads"):
        if heads != own and (target == heads or is_part_of(target, heads.with_suffix(""))):
            raise EdictumConfigError(
                f"{path} is, or would be read as, a part of the chained log"
                f" {heads.with_suffix('')}.",
                hint="Choose another name.",
            )


class HeadFile:
    """The heads of one log, one line each, private to their owner."""

    def __init__(
        self, path: Path, signer: HeadSigner | None = None, *, fsync: bool = False
    ) -> None:
        self.path = path
        self._signer = signer
        self._fsync = fsync
        self._known: tuple[int, ChainHead] | None = None  # the newest one, and the size behind it

    def add(
        self,
        written: Iterable[ListedWriter],
        retain_s: float,
        deleted: Iterable[DeletedFile] = (),
    ) -> ChainHead:
        """Add a head that follows the newest one, of any process."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "a+b", buffering=0) as file, hold_lock(file):
            head = follow_head(
                self._find_last(file),
                written,
                log=uuid.uuid4().hex,
                at=datetime.now(UTC).isoformat(timespec="milliseconds"),
                retain_s=retain_s,
                deleted=deleted,
            )
            self._append(file, head if self._signer is None else self._signer.sign(head))
        assert self._known is not None
        return self._known[1]

    def _find_last(self, file: IO[bytes]) -> ChainHead | None:
        size = os.fstat(file.fileno()).st_size
        if self._known is not None and self._known[0] == size:
            return self._known[1]
        return find_last_head(file)

    def _append(self, file: IO[bytes], head: ChainHead) -> None:
        line = head.to_json().encode() + b"\n"
        end = file.seek(0, os.SEEK_END)
        if end and _read_at(file, end - 1, 1) != b"\n":  # a line that a full disk has cut
            line = b"\n" + line
        if (count := file.write(line)) != len(line):
            raise OSError(f"only {count} of {len(line)} bytes were written")
        if self._fsync:
            os.fsync(file.fileno())
        self._known = (end + len(line), head)


def _read_at(file: IO[bytes], start: int, count: int) -> bytes:
    file.seek(start)
    return file.read(count)


def find_last_head(file: IO[bytes]) -> ChainHead | None:
    """Return the newest whole head of an open file of heads."""
    size, wanted = file.seek(0, os.SEEK_END), TAIL_BYTES
    while True:
        start = max(size - wanted, 0)
        lines = _read_at(file, start, size - start).split(b"\n")
        for line in reversed(lines if start == 0 else lines[1:]):
            if (head := read_head(line)) is not None:
                return head
        if start == 0:
            return None
        wanted *= 4


def read_floor(path: Path) -> float:
    """Return for how many seconds a log must be kept, as its newest head says."""
    try:
        with name_heads(path).open("rb", buffering=0) as file:
            head = find_last_head(file)
    except FileNotFoundError:
        return 0.0
    return 0.0 if head is None else head.retain_s


class SinkChain:
    """The chain that one sink writes in one process, and the heads that are due for it."""

    def __init__(
        self, chain: Chain, path: Path, retain_s: float = 0.0, *, fsync: bool = False
    ) -> None:
        signer = None if chain.key is None else HeadSigner(chain.key)
        self.heads = HeadFile(name_heads(path), signer, fsync=fsync)
        self.retain_s = retain_s
        self.head_seconds = chain.head_seconds
        self._head_events = chain.head_events
        self._copies = chain.list_copies()
        self.start_anew()

    def start_anew(self) -> None:
        """Start a chain for a new process. Records of the parent are listed by the parent."""
        self.position = ChainPosition(uuid.uuid4().hex)
        self._ended: list[ChainPosition] = []  # chains of this sink that the next head lists
        self._listed = 0  # the sequence number that the newest head lists
        self._due_at = 0.0

    def leave_off(self) -> None:
        """Continue with a new chain, because it is not known how much of the last record was
        written.
        """
        ended = [*self._ended, self.position] if self.position.sequence else self._ended
        due_at = self._due_at
        self.start_anew()
        self._ended, self._due_at = ended, due_at

    def advance(self, position: ChainPosition) -> bool:
        """Continue behind a record that was written; return whether a head is due."""
        now, count = time.monotonic(), position.sequence - self._listed
        if count == 1 and not self._ended:
            self._due_at = now + self.head_seconds
        self.position = position
        return count >= self._head_events or now >= self._due_at

    def has_unlisted(self) -> bool:
        """Return whether there are records that no head lists."""
        return self.position.sequence > self._listed or bool(self._ended)

    def has_records(self) -> bool:
        """Return whether this sink has written records since its chain began."""
        return self.position.sequence > 0 or bool(self._ended)

    def write_head(self, *, is_closing: bool = False, deleted: Iterable[DeletedFile] = ()) -> None:
        """Write a head that lists this chain, and copy it to where it is wanted."""
        written = [ListedWriter(position) for position in self._ended]
        if self.position.sequence:
            written.append(ListedWriter(self.position, is_closing))
        head = self.heads.add(written, self.retain_s, deleted)
        self._ended, self._listed = [], self.position.sequence
        if is_closing:
            self.start_anew()
        for place in self._copies:
            _copy_head(head.to_json(), place)


def _copy_head(line: str, place: HeadCopy) -> None:
    """Copy a head to another place. If that fails, the next head contains as much and more."""
    try:
        if callable(place):
            place(line)
            return
        with os.fdopen(os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
            file.write(f"{line}\n".encode())
    except Exception as exc:
        log(AUDIT_HEADS, "a head of the audit could not be copied: %s", exc)


class ChainFiles:
    """Reads a chained log in files: the rotated ones first, and the file of heads beside it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def read_heads(self, reading: LogReading) -> Iterator[NumberedLine]:
        """Yield the lines of the file of heads, if there is one."""
        try:
            file = name_heads(self.path).open("rb")
        except FileNotFoundError:
            return
        with file:
            yield from number_lines(file, LogReading())

    def read_records(self, reading: LogReading) -> Iterator[NumberedLine]:
        """Yield the lines of all files, oldest first."""
        with ExitStack() as stack:
            for file in JsonLinesReader(self.path).open_files(stack, reading):
                yield from number_lines(file, reading)
        reading.note_progress()


def number_lines(file: BufferedReader, reading: LogReading) -> Iterator[NumberedLine]:
    name = str(file.name)
    for number, line in read_log_lines(file, reading):
        is_first = number == 1 and line is not None and line.startswith(BOM)
        yield (name, number), line.removeprefix(BOM) if is_first and line is not None else line
