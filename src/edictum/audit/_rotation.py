"""Rotation of an audit file: the numbered files beside it, how they are compressed and deleted."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from edictum._optional import import_optional
from edictum.audit._export import compress
from edictum.audit._filters import read_timestamp
from edictum.audit._heads import SinkChain, hold_lock, name_heads, read_floor
from edictum.audit._reading import LogReading, parse_line, read_log_lines
from edictum.audit.chain import ChainPosition, DeletedFile, read_record
from edictum.errors import EdictumConfigError, EdictumError

Compression = bool | Literal["gzip", "zstd"]
SUFFIXES = {"gzip": ".gz", "zstd": ".zst"}


def choose_suffix(wanted: Compression) -> str:
    """Return the suffix of compressed files: zstd if it is installed, unless one is named."""
    if wanted is False:
        return ""
    if wanted is True:
        wanted = "zstd" if find_spec("zstandard") else "gzip"
    if wanted not in SUFFIXES:
        raise EdictumConfigError(
            f"FileAuditSink: compress is {wanted!r}.", hint='Use True, "gzip" or "zstd".'
        )
    if wanted == "zstd":
        import_optional("zstandard", "zstd", 'FileAuditSink: compress="zstd" needs zstandard.')
    return SUFFIXES[wanted]


class RotatedFiles:
    """The older files of one log: ``<name>.1`` is the newest; a suffix says how it is compressed.

    Of a chained log nothing is deleted that is younger than its retention, and what is deleted is
    named in a head, with its hash. A sink that does not chain cannot do that, so it deletes nothing
    of a chained log.
    """

    def __init__(self, path: Path, keep: int, suffix: str, chain: SinkChain | None) -> None:
        self._path = path
        self._keep = keep
        self._suffix = suffix
        self._chain = chain

    def rotate(self) -> None:
        """Number the file and the older ones, up to the first number that is free.

        The caller holds the lock of the file, and holds it while the file is compressed, when
        others write a new one already. If that is full soon, they wait here for the same lock.
        """
        with suppress(FileNotFoundError), self._name(1).open("rb") as newest, hold_lock(newest):
            pass
        older = self._list_older()
        while len(older) >= self._keep and self._delete(older[-1]):
            older.pop()
        with suppress(FileNotFoundError):  # moved by another program at this moment
            for number, found in reversed(list(enumerate(older, 1))):
                suffix = found.suffix if found.suffix in SUFFIXES.values() else ""
                found.replace(self._name(number + 1, suffix))
            self._path.replace(self._name(1))
            if self._suffix:
                _compress_file(self._name(1), self._suffix)

    def _name(self, number: int, suffix: str = "") -> Path:
        return self._path.with_name(f"{self._path.name}.{number}{suffix}")

    def _list_older(self) -> list[Path]:
        """Return the files from 1 to the first number that is free. A compressed one beside its
        plain one was left by a process that died, and is deleted.
        """
        names, older = set(os.listdir(self._path.parent)), list[Path]()
        while True:
            forms = [self._name(len(older) + 1, suffix) for suffix in ("", *SUFFIXES.values())]
            found = [form for form in forms if form.name in names]
            if not found:
                return older
            for copy in found[1:]:
                copy.unlink(missing_ok=True)
            older.append(found[0])

    def _delete(self, found: Path) -> bool:
        """Delete an old file; return False if it must be kept."""
        if self._chain is not None:
            floor_s = max(self._chain.retain_s, read_floor(self._path))
            if time.time() - found.stat().st_mtime < floor_s:
                return False
            deleted = describe_file(found)
            if deleted.at - deleted.newest < floor_s:
                return False
            self._chain.write_head(deleted=[deleted])
        elif name_heads(self._path).exists():
            return False
        found.unlink()
        return True


def describe_file(path: Path) -> DeletedFile:
    """Return what a head says of a file that is deleted now."""
    newest, count, last = 0.0, 0, dict[str, ChainPosition]()
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        for _, line in read_log_lines(file, LogReading()):
            event = parse_line(line or b"")
            if line is None or isinstance(event, str):
                continue
            count += 1
            newest = max(newest, read_timestamp(event).timestamp())
            if (record := read_record(line)) is not None:
                last[record.writer] = record.position
    return DeletedFile(path.name, content, count, newest, time.time(), tuple(last.values()))


def _compress_file(path: Path, suffix: str) -> None:
    """Compress a file; it stays as it is if that fails."""
    part = path.with_name(f".{path.name}{suffix}.part")
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with path.open("rb") as plain, os.fdopen(descriptor, "wb") as file:
            with compress(file, suffix) as packed:
                shutil.copyfileobj(plain, packed, 1024 * 1024)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path.with_name(f"{path.name}{suffix}"))
        path.unlink()
    except (OSError, EdictumError):
        with suppress(OSError):
            part.unlink()
