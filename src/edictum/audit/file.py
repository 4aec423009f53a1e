"""FileAuditSink: events as JSON lines in a file, with rotation and, if wanted, fsync."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import IO

from edictum._audit_event import AuditEvent
from edictum.audit.sinks import WRITTEN, Written, event_line, takes_entries
from edictum.core.events import Entry
from edictum.core.redaction import RedactionPolicy
from edictum.errors import BackendError, EdictumConfigError
from edictum.execution.forks import call_in_child, protect


class FileAuditSink:
    """Appends one JSON line per event. The parent directory is created; the file stays open and is
    private to its owner.

    ``max_bytes`` rotates: the file becomes ``<name>.1``, that one ``<name>.2``, and so on up to
    ``keep`` old files. ``fsync=True`` makes each event durable before its call goes on.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        redaction: RedactionPolicy | None = None,
        *,
        max_bytes: int | None = None,
        keep: int = 5,
        fsync: bool = False,
    ) -> None:
        if max_bytes is not None and max_bytes < 1:
            raise EdictumConfigError(
                f"FileAuditSink: max_bytes is {max_bytes}.",
                hint="Use 1 or more, or None for no rotation.",
            )
        if keep < 1:
            raise EdictumConfigError(
                f"FileAuditSink: keep is {keep}.", hint="Use 1 or more old files."
            )
        self.path = Path(path)
        self._redaction = redaction
        self._max_bytes = max_bytes
        self._keep = keep
        self._fsync = fsync
        self._lock = threading.Lock()
        protect(self)
        call_in_child(self._close)  # a child opens the file by itself
        self._file: IO[bytes] | None = None
        self._torn = False  # the last line lacks its end, so the next one starts on a new line

    @takes_entries
    def emit(self, event: AuditEvent | Entry) -> Written:
        """Append one line, all of it at once, so that lines of several processes do not mix.

        The rest of a line for which the disk has no room is not written later, because it could end
        up behind a line of another process.
        """
        line = event_line(event, self._redaction).encode() + b"\n"
        with self._lock:
            try:
                file = self._file or self._open()
                if self._max_bytes is not None and 0 < file.tell() > self._max_bytes - len(line):
                    file = self._rotate()
                line = b"\n" + line if self._torn else line
                written = file.write(line)
                self._torn = written != len(line)
                if self._torn:
                    raise OSError(f"only {written} of {len(line)} bytes were written")
                if self._fsync:
                    os.fsync(file.fileno())
            except OSError as exc:
                raise self._unwritable(exc) from exc
        return WRITTEN

    def open(self) -> None:
        """Open the file now, to learn before the first event whether it can be written."""
        with self._lock:
            try:
                self._open()
            except OSError as exc:
                raise self._unwritable(exc) from exc

    def check(self) -> None:
        """Raise if the file cannot be opened, or its disk has no room."""
        self.open()
        if not shutil.disk_usage(self.path.parent).free:
            raise self._unwritable(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    def _unwritable(self, exc: OSError) -> BackendError:
        self._close()
        return BackendError(
            f"The audit file {self.path} cannot be written: {exc}.",
            hint="Check the path, its rights and the disk.",
        )

    def _open(self) -> IO[bytes]:
        self._close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._file = os.fdopen(descriptor, "ab", buffering=0)
        self._file.seek(0, os.SEEK_END)
        return self._file

    def _rotate(self) -> IO[bytes]:
        self._close()
        for number in range(self._keep - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        self.path.replace(self._numbered(1))
        self._torn = False
        return self._open()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def close(self) -> None:
        with self._lock:
            self._close()
