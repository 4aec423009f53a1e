"""``edictum audit tail FILE``: the newest events, and new ones as they come."""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from io import BufferedReader
from pathlib import Path

from edictum.audit import LogReading
from edictum.audit._filters import EventData, EventFilter, read_filter
from edictum.audit._reading import (
    GZIP_MAGIC,
    MAX_LINE_BYTES,
    TOO_LONG,
    ZSTD_MAGIC,
    parse_line,
    unreadable,
)
from edictum.audit._report_tables import format_cell
from edictum.cli._audit_options import (
    add_filters,
    make_row,
    read_count,
    read_filter_options,
    tell_problems,
)
from edictum.core.values import write_sorted
from edictum.errors import EdictumConfigError

FIRST_WINDOW_BYTES = 256 * 1024
TAIL_POLL_S = 0.2
COMPRESSED = (GZIP_MAGIC, ZSTD_MAGIC)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="JSON lines that a FileAuditSink writes")
    parser.add_argument(
        "-n", type=read_count, default=10, metavar="N", dest="count", help="so many"
    )
    follow = "go on with events that come, over rotations too, until Ctrl-C"
    parser.add_argument("-f", "--follow", action="store_true", help=follow)
    parser.add_argument("--json", action="store_true", help="the events as JSON lines")
    add_filters(parser)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Print the newest events; return 1 if one of the lines could not be read."""
    wanted = read_filter(read_filter_options(options))
    scheme, mark, _ = options.file.partition("://")
    if mark:
        hint = "Use edictum audit query, with --since."
        raise EdictumConfigError(f"tail reads files of JSON lines, not {scheme}://.", hint=hint)
    with closing(LogTail(Path(options.file), wanted)) as log:
        for event in log.read_last(options.count):
            _print_event(event, as_json=options.json)
        for event in log.follow() if options.follow else ():
            _print_event(event, as_json=options.json)
        return tell_problems(log.reading)


def _print_event(event: EventData, *, as_json: bool) -> None:
    cells = map(format_cell, filter(None, make_row(event)))
    print(write_sorted(event) if as_json else "  ".join(cells), flush=True)


def _open_file(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except OSError as exc:
        raise unreadable(path, exc.strerror or str(exc)) from exc


def _find_obstacle(file: BufferedReader) -> str:
    """Return why a file cannot be read from its end; nothing if it can."""
    if not file.seekable():
        return "a pipe"
    return "compressed" if file.peek(4).startswith(COMPRESSED) else ""


class LogTail:
    """Reads a plain file from its end, and what is appended to it or to the file that replaces
    it.
    """

    def __init__(self, path: Path, wanted: EventFilter) -> None:
        self._path = path
        self._tests = wanted.list_tests()
        self._file: BufferedReader = _open_file(path)
        if why := _find_obstacle(self._file):
            self.close()
            hint = "Use edictum audit query."
            raise EdictumConfigError(f"tail cannot read {path}: it is {why}.", hint=hint)
        self.reading = LogReading()
        self._is_inside = False  # of a line of which the rest is not read

    def close(self) -> None:
        self._file.close()

    def read_last(self, count: int) -> list[EventData]:
        """Return the newest events that match; reads no more of the file than that takes."""
        size, window = os.fstat(self._file.fileno()).st_size, FIRST_WINDOW_BYTES
        while True:
            self.reading = LogReading()
            start = max(size - window, 0)
            self._file.seek(start)
            self._is_inside = start > 0  # of the line that the window begins in
            found = deque(self._read_new(), maxlen=count)
            if len(found) == count or not start:
                return list(found)
            window *= 4

    def follow(self) -> Iterator[EventData]:
        """Yield events as they are appended."""
        while True:
            yield from self._read_new()
            if self._is_replaced():
                yield from self._read_new()  # what was written before the file was moved
                self._file.close()
                self._file = self._path.open("rb")
                self._is_inside = False
            else:
                self._start_again()
                time.sleep(TAIL_POLL_S)

    def _read_new(self) -> Iterator[EventData]:
        """Yield the events of all whole lines behind the position of the file."""
        while line := self._read_line():
            event = parse_line(line)
            if isinstance(event, str):
                self.reading.note_problem(event, str(self._path))
            elif all(test(event) for test in self._tests):
                yield event

    def _read_line(self) -> bytes:
        """Return the next whole line, without those that are blank or too long to be held."""
        while line := self._file.readline(MAX_LINE_BYTES):
            is_end = line.endswith(b"\n")
            if self._is_inside:
                self._is_inside = not is_end
            elif is_end and not line.isspace():
                return line
            elif not is_end and len(line) < MAX_LINE_BYTES:
                self._file.seek(-len(line), os.SEEK_CUR)  # it is being written
                return b""
            elif not is_end:
                self._is_inside = True
                self.reading.note_problem(TOO_LONG, str(self._path))
        return b""

    def _is_replaced(self) -> bool:
        """Return whether the path names another file now."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self._file.fileno())
        return (found.st_dev, found.st_ino) != (mine.st_dev, mine.st_ino)

    def _start_again(self) -> None:
        """Go back to the start of a file that was truncated."""
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)
            self._is_inside = False
