"""Read events back: the port of sinks that keep events, and JSON lines in files.

LogReading takes bounded memory, whatever the size of a file or of a line. Lines that cannot be read
are counted and reported, and reading continues with the next one.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from edictum._optional import import_optional
from edictum.audit._filters import EventData, EventFilter, read_timestamp
from edictum.errors import EdictumConfigError, EdictumError

MAX_LINE_BYTES = 8 * 1024 * 1024  # an event of this library has at most some ten thousand
TOO_LONG = "longer than 8 MiB"
MAX_EXAMPLES = 10
PROGRESS_LINES = 5_000
ZSTD_CHUNK_BYTES = 4_096  # of compressed data, which may become 30,000 times as much
COMPRESSED_SUFFIXES = (".gz", ".zst")
GZIP_MAGIC, ZSTD_MAGIC, BOM = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xef\xbb\xbf"
# Suffixes that rotation, logrotate and its dateext append to the name of a file.
_ROTATED = re.compile(r"(?P<mark>[.-])(?P<number>\d+)(\.gz|\.zst)?|\.gz|\.zst")


@dataclass(slots=True)
class LogReading:
    """How far reading has come, and what could not be read.

    ``problems`` counts lines, and files that break off, by what is wrong with them; ``examples``
    says where the first of them are.
    """

    on_progress: Callable[[LogReading], None] | None = None
    lines: int = 0
    bytes_read: int = 0
    bytes_total: int = 0
    problems: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def note_problem(self, what: str, where: str) -> None:
        self.problems[what] += 1
        if len(self.examples) < MAX_EXAMPLES:
            self.examples.append(f"{where}: {what}")

    def note_progress(self) -> None:
        if self.on_progress is not None:
            self.on_progress(self)


@runtime_checkable
class EventReader(Protocol):
    """A sink, or anything else, that can return the events it keeps."""

    def read_events(self, wanted: EventFilter, reading: LogReading, /) -> Iterator[EventData]:
        """Yield the events that match, oldest first, as JSON data."""
        ...


def filter_events(events: Iterator[EventData], wanted: EventFilter) -> Iterator[EventData]:
    """Yield the events that match."""
    tests = wanted.list_tests()
    return (event for event in events if all(test(event) for test in tests))


class JsonLinesReader:
    """Reads files of JSON lines, one after the other: plain, gzip or zstd (extra ``zstd``).

    With ``rotated`` the older files of each path are read before it: ``audit.jsonl.2.gz``,
    ``audit.jsonl.1``, ``audit.jsonl``.
    """

    def __init__(self, *paths: str | os.PathLike[str], rotated: bool = True) -> None:
        self.paths = [Path(path) for path in paths]
        self.rotated = rotated

    def read_events(self, wanted: EventFilter, reading: LogReading) -> Iterator[EventData]:
        """Yield the events that match. All files are opened first, so that a rotation meanwhile
        neither hides an event nor shows it twice.
        """
        with ExitStack() as stack:
            for file in self.open_files(stack, reading):
                yield from filter_events(_read_file(file, wanted, reading), wanted)
        reading.note_progress()

    def open_files(self, stack: ExitStack, reading: LogReading) -> list[io.BufferedReader]:
        """Return all files, open, oldest first."""
        files = [file for path in self.paths for file in self._open_all(path, stack)]
        reading.bytes_total += sum(os.fstat(file.fileno()).st_size for file in files)
        return files

    def _open_all(self, path: Path, stack: ExitStack) -> list[io.BufferedReader]:
        """Open the files of a path, newest first; return them oldest first."""
        opened: dict[tuple[int, int], io.BufferedReader] = {}
        for name in [path, *(find_older_files(path) if self.rotated else ())]:
            try:
                file = stack.enter_context(_open_log(name))
            except FileNotFoundError:
                continue
            except OSError as exc:
                raise unreadable(name, exc.strerror or str(exc)) from exc
            found = os.fstat(file.fileno())
            opened.setdefault((found.st_dev, found.st_ino), file)
        if not opened:
            raise unreadable(path, "it does not exist")
        return list(opened.values())[::-1]


def _open_log(path: Path) -> io.BufferedReader:
    """Open a file, or what it has been compressed to since it was found."""
    for suffix in ("", *COMPRESSED_SUFFIXES):
        with suppress(FileNotFoundError):
            return Path(f"{path}{suffix}").open("rb")
    raise FileNotFoundError(path)


def _match_older(name: str, log: str) -> re.Match[str] | None:
    """Return how a file of this name is numbered, if it is taken for an older file of a log."""
    return _ROTATED.fullmatch(name.removeprefix(log)) if name.startswith(log) else None


def is_part_of(path: Path, log: Path) -> bool:
    """Return whether a file is a log, or would be read as one of its older files."""
    one, other = path.resolve(), log.resolve()
    is_named_so = one.name == other.name or _match_older(one.name, other.name) is not None
    return one.parent == other.parent and is_named_so


def find_older_files(path: Path) -> list[Path]:
    """Return the older files of a log, newest first."""
    if not path.parent.is_dir():
        return []
    found: list[tuple[int, Path]] = []
    for other in path.parent.iterdir():
        match = _match_older(other.name, path.name)
        if match and other.is_file():
            number = int(match["number"] or 0)
            found.append((-number if match["mark"] == "-" else number, other))  # dates grow
    names = {other.name for _, other in found}
    return [other for _, other in sorted(found) if not _is_copy(other, names)]


def _is_copy(path: Path, names: set[str]) -> bool:
    """Return whether a compressed file lies beside its plain file: then compressing was not
    finished.
    """
    return path.suffix in COMPRESSED_SUFFIXES and path.stem in names


def parse_line(line: bytes) -> EventData | str:
    """Return the event of a line, or what is wrong with the line."""
    try:
        event = json.loads(line.decode())
        read_timestamp(event)
    except UnicodeDecodeError:
        return "not UTF-8"
    except (ValueError, RecursionError) as exc:
        is_json = not isinstance(exc, json.JSONDecodeError | RecursionError)
        return "not an event" if is_json else "torn, or not JSON"
    except (TypeError, KeyError):
        return "not an event"
    if not isinstance(event.get("action"), str):
        return "not an event"
    return event  # type: ignore[no-any-return]  # a dict: read_timestamp has read it by name


def parse_body(body: object, where: str, reading: LogReading) -> EventData | None:
    """Return the event of a row of a database; None if it cannot be read, which is noted."""
    reading.lines += 1
    text = body if isinstance(body, str) else ""  # a database accepts other values as well
    reading.bytes_read += len(text)
    if reading.lines % PROGRESS_LINES == 0:
        reading.note_progress()
    event = parse_line(text.encode(errors="replace"))
    if isinstance(event, str):
        reading.note_problem(event, where)
        return None
    return event


def _read_file(
    file: io.BufferedReader, wanted: EventFilter, reading: LogReading
) -> Iterator[EventData]:
    """Yield the events of a file, without some that do not match."""
    needles, name = wanted.list_needles(), str(file.name)
    for number, line in read_log_lines(file, reading):
        if line is None:
            reading.note_problem(TOO_LONG, f"{name}:{number}")
            continue
        if line.isspace() or _is_unwanted(line, needles):
            continue
        event = parse_line(line.removeprefix(BOM) if number == 1 else line)
        if isinstance(event, str):
            reading.note_problem(event, f"{name}:{number}")
        else:
            yield event


def read_log_lines(
    file: io.BufferedReader, reading: LogReading
) -> Iterator[tuple[int, bytes | None]]:
    """Yield the lines of an open file, compressed or not, with their numbers; None for one that is
    too long.
    """
    before, number = reading.bytes_read, 0
    for line in _read_lines(_decompress(file), str(file.name), reading):
        number += 1
        if number % PROGRESS_LINES == 0:
            reading.bytes_read = before + (file.tell() if file.seekable() else 0)
            reading.note_progress()
        yield number, line
    reading.lines += number
    reading.bytes_read = before + os.fstat(file.fileno()).st_size


def _is_unwanted(line: bytes, needles: list[tuple[bytes, ...]]) -> bool:
    """Return whether a line is whole, and cannot have an event that the query asks for."""
    for names in needles:
        if not any(name in line for name in names):
            return line.endswith(b"}\n")
    return False


def _read_lines(file: io.BufferedReader, name: str, reading: LogReading) -> Iterator[bytes | None]:
    """Yield lines; None for one that is too long to be held, which is skipped."""
    try:
        while line := file.readline(MAX_LINE_BYTES):
            if len(line) < MAX_LINE_BYTES or line.endswith(b"\n"):
                yield line
                continue
            while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield None
    except (EOFError, zlib.error, OSError) as exc:
        reading.note_problem("the file breaks off, or cannot be read", f"{name} ({exc})")


def _decompress(file: io.BufferedReader) -> io.BufferedReader:
    """Return the content of a file, whatever its name says about it."""
    start = file.peek(4)[:4]  # what comes from a pipe cannot be read again
    if start.startswith(GZIP_MAGIC):
        return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]  # has what is used of it
    if start == ZSTD_MAGIC:
        zstd: Any = import_optional("zstandard", "zstd", f"{file.name} is compressed with zstd.")
        return io.BufferedReader(_ZstdContent(file, zstd))
    return file


class _ZstdContent(io.RawIOBase):
    """What a file of zstd frames holds. A frame that breaks off raises, after what it had."""

    def __init__(self, file: io.BufferedReader, zstd: Any) -> None:
        self._file = file
        self._decompressor = zstd.ZstdDecompressor()
        self._frame = self._decompressor.decompressobj()
        self._ready = memoryview(b"")
        self._is_inside = False  # of a frame
        self._error_type: type[Exception] = zstd.ZstdError
        self._failure = ""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._file.read(ZSTD_CHUNK_BYTES)
            if self._failure or (self._is_inside and not data):
                raise EOFError(self._failure or "the file ended inside of a zstd frame")
            if not data:
                return 0
            self._ready = memoryview(self._decompress_chunk(data))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _decompress_chunk(self, data: bytes) -> bytes:
        found = []
        while data:
            try:
                found.append(self._frame.decompress(data))
            except self._error_type as exc:  # reported once everything before it has been read
                self._failure = str(exc)
                break
            self._is_inside, data = not self._frame.eof, self._frame.unused_data
            if self._frame.eof:
                self._frame = self._decompressor.decompressobj()
        return b"".join(found)


def unreadable(path: Path, why: str) -> EdictumError:
    return EdictumConfigError(
        f"The audit file {path} cannot be read: {why}.", hint="Check the path and its rights."
    )


def find_reader(source: Any) -> EventReader:
    """Return the reader of a path, a URL, or a sink that keeps events."""
    if isinstance(source, str) and "://" in source:
        from edictum.audit.stores import open_reader  # it imports this module

        return open_reader(source)
    if isinstance(source, str | os.PathLike):
        return JsonLinesReader(source)
    for reader in list_sink_readers(source):
        return reader
    raise EdictumConfigError(
        f"{type(source).__name__} keeps no events that could be read back.",
        hint="Pass the path of a file of JSON lines, the URL of a database, or a sink with"
        " read_events().",
    )


def list_sink_readers(sink: Any) -> Iterator[EventReader]:
    """Yield what can be read of a sink: itself, or the sinks that it gives events to."""
    if isinstance(sink, EventReader):
        yield sink
    else:
        for inner in getattr(sink, "sinks", ()):
            yield from list_sink_readers(inner)


def find_readers(source: Any) -> list[EventReader]:
    """Return the readers of one source or several."""
    is_several = isinstance(source, Sequence) and not isinstance(source, str)
    return [find_reader(one) for one in (source if is_several else (source,))]
