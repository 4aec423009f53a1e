"""FileAuditSink: events as JSON lines in a file, with rotation and, if wanted, fsync.

Several processes may write one file, and other programs may move or delete it. Before each event
the sink looks whether its path still names the file that it has open, and opens the path anew if
not. Rotation is done under a lock on the file itself: a process that gets the lock of a file which
has been moved meanwhile finds that out by the same look.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

from edictum._audit_event import AuditEvent
from edictum._logs import AUDIT_HEADS, log
from edictum.audit._filters import EventData, EventFilter
from edictum.audit._heads import (
    Chain,
    ChainFiles,
    NumberedLine,
    SinkChain,
    hold_folder,
    hold_lock,
    read_chain,
    read_retention,
    refuse_chained_log,
)
from edictum.audit._reading import JsonLinesReader, LogReading
from edictum.audit._rotation import Compression, RotatedFiles, choose_suffix
from edictum.audit._syncing import PendingWrite, SyncGroup
from edictum.audit.sinks import WRITTEN, Written, canonical_event, event_line, takes_entries
from edictum.core.events import Entry
from edictum.core.redaction import RedactionPolicy
from edictum.errors import BackendError, EdictumConfigError
from edictum.execution.forks import call_in_child, protect


class FileAuditSink:
    """Appends one JSON line per event. The parent directory is created; the file stays open and is
    private to its owner. Several processes may write it; one that was moved or deleted is opened
    anew.

    ``max_bytes`` rotates: the file becomes ``<name>.1``, that one ``<name>.2``, and so on up to
    ``keep`` old files, which ``compress`` compresses. ``fsync=True`` makes each event durable
    before its call goes on; ``fsync="batch"`` does so too, with one ``fsync`` for all calls that
    wait at a time. ``chain`` makes changed, removed and added records detectable; ``retain``
    ("180d") keeps a chained log from being deleted earlier, whatever ``keep`` says.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        redaction: RedactionPolicy | None = None,
        *,
        max_bytes: int | None = None,
        keep: int = 5,
        fsync: bool | Literal["batch"] = False,
        chain: Chain | bool = False,
        retain: str | float | None = None,
        compress: Compression = False,
    ) -> None:
        if max_bytes is not None:
            hint = "Use a whole number of bytes, 1 or more, or None for no rotation."
            _check_whole("max_bytes", max_bytes, hint)
        if fsync not in (False, True, "batch"):
            raise EdictumConfigError(
                f"FileAuditSink: fsync is {fsync!r}.", hint='Use True, False or "batch".'
            )
        _check_whole("keep", keep, "Use a whole number of old files, 1 or more.")
        self.path = Path(path)
        refuse_chained_log(self.path, is_log=True)
        self._name = os.fspath(self.path)
        self._redaction = redaction
        self._max_bytes = max_bytes
        self._fsync = bool(fsync)
        self._group = SyncGroup(self._sync) if fsync == "batch" else None
        self.blocking = self._fsync and self._group is None
        self.writes_at_once = not fsync  # emit leaves nothing to wait for
        self._written = self._synced = 0  # events, and how many of them are on the disk
        self._failed, self._failure = 0, OSError()  # how many a failed fsync was for, and why
        self._chain = self._make_chain(chain, read_retention(retain))
        suffix = choose_suffix(compress)
        self._rotated = RotatedFiles(self.path, keep, suffix, self._chain)
        self._timer: threading.Timer | None = None  # for a head that is due when no event comes
        self._lock = threading.Lock()
        protect(self)
        call_in_child(self._reset)
        self._file: IO[bytes] | None = None
        self._identity = (0, 0)  # device and inode of the file that was opened last
        self._end = 0  # its size behind the newest line that was written from here; -1: unknown

    def _make_chain(self, chain: Chain | bool, retain_s: float) -> SinkChain | None:
        settings = read_chain("FileAuditSink", chain)
        if settings is None:
            if retain_s:
                hint = "Pass chain=True, or a Chain: what is deleted is named in its heads."
                raise EdictumConfigError("FileAuditSink: retain= needs a chain.", hint=hint)
            return None
        return SinkChain(settings, self.path, retain_s, fsync=self._fsync)

    def _reset(self) -> None:
        """Start anew in a forked child, which opens the file by itself and is another writer."""
        self._written = self._synced = self._failed = 0
        self._close()
        self._timer = None
        if self._chain is not None:
            self._chain.start_anew()

    @takes_entries
    def emit(self, event: AuditEvent | Entry) -> Written | PendingWrite:
        """Append one line, all of it at once, so that lines of several processes do not mix.

        The rest of a line for which the disk has no room is not written later, because it could end
        up behind a line of another process. The next line, from whichever process, starts anew.
        """
        write = event_line if self._chain is None else canonical_event
        line = write(event, self._redaction)
        with self._lock:
            try:
                if self._chain is None:
                    self._add(line)
                else:
                    self._add_record(line, self._chain)
            except OSError as exc:
                raise self._unwritable(exc) from exc
            number = self._written
        return WRITTEN if self._group is None else self._group.join(number)

    def _add(self, text: str) -> None:
        line = f"{text}\n".encode()
        if self._max_bytes is None:
            file = self._append(line)
        else:
            file = self._append_rotating(line, self._max_bytes)
        self._written += 1
        if self.blocking:
            os.fsync(file.fileno())

    def _sync(self, first: int) -> None:
        """Make everything durable that was written before now; events may be written meanwhile.

        ``first`` is the oldest event that waits: if an earlier ``fsync`` that covered it has
        failed, it has failed, whatever later ones say.
        """
        with self._lock:
            if first <= self._failed:
                raise self._describe(self._failure)
            if self._file is None:  # closing it has made it durable
                return
            written, copy = self._written, os.dup(self._file.fileno())
        try:
            os.fsync(copy)
        except OSError as exc:
            with self._lock:
                self._note_failure(written, exc)
                raise self._unwritable(exc) from exc
        finally:
            os.close(copy)
        with self._lock:
            self._synced = max(self._synced, written)

    def _note_failure(self, written: int, exc: OSError) -> None:
        self._failed, self._failure = max(self._failed, written), exc
        self._synced = max(self._synced, written)  # it is not tried again

    def _add_record(self, text: str, chain: SinkChain) -> None:
        record, position = chain.position.append(text)
        self._add(record)
        if chain.advance(position):
            self._sync_file()
            chain.write_head()
        elif self._timer is None:
            self._start_timer(chain.head_seconds)

    def _start_timer(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, _write_due_head, [weakref.ref(self)])
        self._timer.daemon = True
        with suppress(RuntimeError):  # no thread could be started; the next event looks as well
            self._timer.start()

    def write_due_head(self) -> None:
        """Write a head if there are records that none lists; log it if that fails."""
        with self._lock:
            self._timer = None
            if self._chain is None or not self._chain.has_unlisted():
                return
            try:
                self._sync_file()
                self._chain.write_head()
            except OSError as exc:
                log(AUDIT_HEADS, "a head of %s could not be written: %s", self.path, exc)
                self._start_timer(self._chain.head_seconds)

    def open(self) -> None:
        """Open the file now, to learn before the first event whether it can be written."""
        with self._lock:
            try:
                self._open()
            except OSError as exc:
                raise self._unwritable(exc) from exc

    def read_events(self, wanted: EventFilter, reading: LogReading) -> Iterator[EventData]:
        """Yield the events of the file, and before them those of the rotated files."""
        return JsonLinesReader(self.path).read_events(wanted, reading)

    def read_heads(self, reading: LogReading) -> Iterator[NumberedLine]:
        """Yield the heads of a chained log."""
        return ChainFiles(self.path).read_heads(reading)

    def read_records(self, reading: LogReading) -> Iterator[NumberedLine]:
        """Yield the lines of all files, for ``verify``."""
        return ChainFiles(self.path).read_records(reading)

    def check(self) -> None:
        """Raise if the file cannot be opened, or its disk has no room."""
        self.open()
        if not shutil.disk_usage(self.path.parent).free:
            raise self._unwritable(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def _unwritable(self, exc: OSError) -> BackendError:
        self._close()
        if self._chain is not None:
            self._chain.leave_off()
        return self._describe(exc)

    def _describe(self, exc: OSError) -> BackendError:
        return BackendError(
            f"The audit file {self.path} cannot be written: {exc}.",
            hint="Check the path, its rights and the disk.",
        )

    def _find_size(self) -> int | None:
        """Return the size of the file at the path; None if it is not the one that is open."""
        try:
            found = os.stat(self._name)
        except FileNotFoundError:
            return None
        return found.st_size if (found.st_dev, found.st_ino) == self._identity else None

    def _append(self, line: bytes) -> IO[bytes]:
        file, size = self._file, self._find_size()
        if file is None or size is None:
            file = self._open()
            size = os.fstat(file.fileno()).st_size
        self._write(file, line, size)
        return file

    def _write(self, file: IO[bytes], line: bytes, size: int) -> None:
        if size not in (0, self._end) and self._ends_within_a_line():
            line = b"\n" + line
        written = file.write(line)
        self._end = size + len(line) if written == len(line) else -1
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes were written")

    def _ends_within_a_line(self) -> bool:
        """Return whether a full disk has cut the last line; False if the file cannot be read.

        A line that another process is just writing looks the same. Setting the times of the file
        waits until that is done, and then the file has grown.
        """
        with suppress(OSError), open(self._name, "rb", buffering=0) as file:
            while True:
                end = file.seek(-1, os.SEEK_END)
                if file.read(1) == b"\n":
                    return False
                os.utime(self._name)
                if file.seek(-1, os.SEEK_END) == end:
                    return True
        return False

    def _append_rotating(self, line: bytes, max_bytes: int) -> IO[bytes]:
        """Append a line, to a new file if this one has no room for it.

        The lock keeps a file from being rotated away, and in the end deleted, between the look at
        its size and the write.
        """
        while True:
            file = self._file or self._open()
            with hold_lock(file):
                size = self._find_size()
                if size == 0 or (size is not None and size + len(line) <= max_bytes):
                    self._write(file, line, size)
                    return file
            if size is not None:
                self._rotate(file, max_bytes - len(line))
            self._close()

    def _rotate(self, file: IO[bytes], most: int) -> None:
        """Rotate the file, if it is still the one at the path and holds more than ``most``.

        When another program has just moved the file, two processes hold locks of different files;
        the lock of the folder keeps them from rotating at once, and from losing one of both. It is
        taken first, because a rotation waits for the lock of the newest of the older files.
        """
        with hold_folder(self.path.parent), hold_lock(file):
            size = self._find_size()
            if size and size > most:
                self._rotated.rotate()

    def _open(self) -> IO[bytes]:
        self._close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._file = os.fdopen(descriptor, "ab", buffering=0)
        found = os.fstat(descriptor)
        if self._identity != (found.st_dev, found.st_ino):
            self._identity, self._end = (found.st_dev, found.st_ino), -1
            if self._fsync:
                _sync_directory(self.path.parent)
        return self._file

    def _sync_file(self) -> None:
        """Make durable what waits for the group: a head must not list what is not on the disk."""
        if self._group is not None and self._synced < self._written and self._file is not None:
            os.fsync(self._file.fileno())
            self._synced = self._written

    def _close(self) -> None:
        if self._file is not None:
            try:
                self._sync_file()
            except OSError as exc:
                self._note_failure(self._written, exc)
            self._file.close()
            self._file = None

    def close(self) -> Written:
        """Close the file. A chain ends here: a head says so, and the next event begins another.

        It is done when this returns; that may be awaited, as with all sinks.
        """
        with self._lock:
            self._close()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._chain is not None and self._chain.has_records():
                try:
                    self._chain.write_head(is_closing=True)
                except OSError as exc:
                    raise self._unwritable(exc) from exc
        return WRITTEN


def _check_whole(name: str, value: Any, hint: str) -> None:
    """Raise unless an option is a whole number of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise EdictumConfigError(f"FileAuditSink: {name} is {value!r:.80}.", hint=hint)


def _write_due_head(sink: weakref.ref[FileAuditSink]) -> None:
    if (found := sink()) is not None:
        found.write_due_head()


def _sync_directory(path: Path) -> None:
    """Make the name of a new file durable, as ``fsync`` makes its contents."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
