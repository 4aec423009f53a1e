"""Write events for other programs: JSON lines, CSV and CloudEvents, plain or compressed."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias, get_args

from edictum._audit_event import AuditEvent
from edictum._optional import import_optional
from edictum.audit._filters import EventData
from edictum.audit._heads import refuse_chained_log
from edictum.audit._report_tables import disarm_formulas
from edictum.audit.chain import canonicalize_data
from edictum.core.values import dumps, write_sorted
from edictum.errors import BackendError, EdictumInputError

ExportFormat: TypeAlias = Literal["jsonl", "csv", "cloudevents"]
CSV_COLUMNS = tuple(AuditEvent.__slots__)


def export(
    events: Iterable[EventData], path: str | os.PathLike[str], *, format: ExportFormat = "jsonl"
) -> int:
    """Write events to a file, and return how many.

    ``format`` is "jsonl" (the events as they are; records of a chain can be verified), "csv" (one
    column for each field) or "cloudevents" (JSON lines, one CloudEvents 1.0 object each). A name
    that ends in ``.gz`` or ``.zst`` (extra ``zstd``) is compressed. The file appears when it is
    complete, and is private to its owner. It cannot take the place of a part of a chained log.
    """
    check_format(format)
    target = Path(path)
    refuse_chained_log(target)
    part = target.parent / f".{target.name}.{os.getpid()}.part"
    try:
        with ExitStack() as stack:
            file = stack.enter_context(os.fdopen(_create(part), "wb"))
            with compress(file, target.suffix) as content:
                count = write_events(events, content, format)
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except OSError as exc:
        raise BackendError(
            f"The export {target} cannot be written: {exc.strerror or exc}.",
            hint="Check the path, its rights and the disk.",
        ) from exc
    finally:
        with suppress(OSError):  # it is not there any more when all went well
            part.unlink()
    return count


def check_format(format: str) -> None:
    if format not in get_args(ExportFormat):
        known = ", ".join(get_args(ExportFormat))
        raise EdictumInputError(f"{format!r} is not a format of exports.", hint=f"Known: {known}.")


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)


def compress(file: IO[bytes], suffix: str) -> IO[bytes]:
    """Return a file that compresses as the suffix says; closing it leaves the one below open."""
    if suffix == ".gz":
        packed: Any = gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0)
        return packed  # type: ignore[no-any-return]  # a GzipFile has what is used of a file
    if suffix == ".zst":
        zstd: Any = import_optional("zstandard", "zstd", "A name in .zst asks for zstd.")
        writer: IO[bytes] = zstd.ZstdCompressor().stream_writer(file, closefd=False)
        return writer
    return io.BufferedWriter(_KeepOpen(file))


class _KeepOpen(io.RawIOBase):
    """Passes bytes on; closing it leaves the file below open."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._file.write(data)


def write_events(events: Iterable[EventData], file: IO[bytes], format: ExportFormat) -> int:
    """Write events to an open file, and return how many."""
    if format == "csv":
        return _write_csv(events, file)
    write_line = _LINES[format]
    count = 0
    for event in events:
        file.write(write_line(event).encode() + b"\n")
        count += 1
    return count


def _write_csv(events: Iterable[EventData], file: IO[bytes]) -> int:
    row = io.StringIO()
    writer = csv.writer(row)
    writer.writerow(CSV_COLUMNS)
    count = 0
    for event in events:
        cells = (event.get(name) for name in CSV_COLUMNS)
        writer.writerow(disarm_formulas(map(_write_cell, cells)))
        file.write(row.getvalue().encode(errors="replace"))  # half of a surrogate pair
        row.seek(0)
        row.truncate()
        count += 1
    file.write(row.getvalue().encode())  # the names of the columns, if there was no event
    return count


def _write_cell(value: Any) -> Any:
    return dumps(value) if isinstance(value, dict | list | bool) else value


def make_cloud_event(event: EventData) -> dict[str, Any]:
    """Return an event as CloudEvents 1.0. Its id is the digest of its content: the same event has
    the same id in every export.
    """
    text = dumps(event)
    made = {
        "specversion": "1.0",
        "id": hashlib.sha256(text.encode()).hexdigest(),
        "source": f"urn:edictum:{event.get('instance_id') or 'unknown'}",
        "type": f"edictum.audit.{event['action']}",
        "time": event["timestamp"],
        "datacontenttype": "application/json",
        "data": event,
    }
    if tool := event.get("tool_name"):  # a subject must not be empty
        made["subject"] = tool
    return made


_LINES: dict[str, Callable[[EventData], str]] = {
    "jsonl": lambda event: canonicalize_data(event) if "_chain" in event else write_sorted(event),
    "cloudevents": lambda event: dumps(make_cloud_event(event)),
}
