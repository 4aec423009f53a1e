"""ArtifactStore: keep outputs that are too large for a message.

``store`` returns an ``ArtifactRef``, whose id and summary go to the model; the model reads parts of
the text with ``read_artifact`` (see ``artifact_reader``). A write that fails raises
``ArtifactError``, so that no reference leads nowhere: the harness then shows both ends of the
output inline.

Secrets are redacted before writing. An artifact belongs to a session, expires, and counts against
two quotas. Ids are not paths, and session ids are hashed before they become part of one. One value
holds both the artifact and its header, so a crash cannot separate them, and several processes can
use the same store. A directory has an index, and Redis and PostgreSQL count what they hold, so that
quotas are exact for all processes and no operation but ``cleanup_expired`` looks at every artifact.
The same holds for stores behind fsspec that are given a file for an index. Without one each process
counts only what it stores itself, and what a session held when it first stored something there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from math import inf, isfinite, isnan
from pathlib import Path
from typing import Any

from edictum._logs import ARTIFACT_AWAY, ARTIFACT_COUNTED_APART, ARTIFACT_DAMAGED, log
from edictum.core.redaction import RedactionPolicy, shorten
from edictum.core.values import show, to_json
from edictum.errors import EdictumConfigError, EdictumError, EdictumInputError
from edictum.execution.forks import protect
from edictum.harness._artifact_index import Listed, Quotas
from edictum.harness.artifact_backends import (
    ARTIFACT_KEY,
    HEADER_BYTES,
    ArtifactBackend,
    CountingBackend,
    IndexedBackend,
    open_backend,
)

DEFAULT_TTL_S = 3_600.0
MAX_SESSION_BYTES = 64 << 20
MAX_TOTAL_BYTES = 512 << 20
MAX_SUMMARY_CHARS = 200
PREVIEW_CHARS = 500
NAME_CHARS = 256
_ID = re.compile(r"art_[0-9a-f]{16}")


class ArtifactError(EdictumError):
    """An artifact could not be stored, or not be read: a quota is full, or the store failed.

    Nothing was kept. A model reads only ``text_for_model``: the reason names hosts and paths, which
    are for operators.
    """

    code = "artifact_error"
    text_for_model = (
        "The artifact store is not available. Do not repeat the call at once: try again later, or"
        " go on without it."
    )


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """What is known about an artifact, without its content."""

    artifact_id: str
    session_id: str
    created_at: float
    ttl_s: float
    size_bytes: int
    tool_name: str
    summary: str
    kind: str = "text"  # or "json"
    sha256: str = ""
    chars: int = 0
    lines: int = 0
    head: str = ""
    tail: str = ""

    @property
    def is_expired(self) -> bool:
        return self.is_expired_at(time.time())

    def is_expired_at(self, now: float) -> bool:
        return now >= self.created_at + self.ttl_s

    def to_model_hint(self) -> dict[str, Any]:
        """Return what the model needs to continue: the id, the contents, and how to read them."""
        hint = (
            "The output is too large for a message. Read parts of it with read_artifact:"
            " offset/limit, head, tail, grep or pointer."
        )
        return {
            "artifact_reference": self.artifact_id,
            "summary": self.summary,
            "size_bytes": self.size_bytes,
            "chars": self.chars,
            "lines": self.lines,
            "kind": self.kind,
            "hint": hint,
        }


class ArtifactStore:
    """Keeps large outputs.

    ``location`` is None (a private directory below the temporary one), a path, ``redis://...``,
    ``postgresql://...``, any URL that fsspec knows, or an ``ArtifactBackend``. With fsspec, and
    with a backend that cannot count, quotas hold for each process separately, unless ``index``
    names a file on a local disk in which all processes count. Its methods may block, and are safe
    to call from several threads.
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | ArtifactBackend | None = None,
        *,
        redaction: RedactionPolicy | None = None,
        max_session_bytes: int = MAX_SESSION_BYTES,
        max_total_bytes: int = MAX_TOTAL_BYTES,
        index: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._backend = _add_index(open_backend(location), index)
        self._redaction = redaction if redaction is not None else RedactionPolicy()
        self._quotas = Quotas(max_session_bytes, max_total_bytes)
        self._now = clock
        self._lock = threading.Lock()
        protect(self)
        self._sweep_at_start()

    def store(
        self, session_id: str, content: Any, tool_name: str, ttl_s: float | None = DEFAULT_TTL_S
    ) -> ArtifactRef:
        """Store a text, JSON text, or any value; raise ArtifactError if that fails.

        It expires after ``ttl_s`` seconds: None is the default, infinity is never.
        """
        ttl_s = _check_ttl(ttl_s)
        text, kind = _to_readable_text(content, self._redaction)
        ref = _make_ref(session_id, text, kind, tool_name, self._now(), ttl_s)
        data = _encode(json.dumps(asdict(ref), ensure_ascii=False)) + b"\n" + _encode(text)
        key = f"{_hash_session(session_id)}/{ref.artifact_id}"
        artifact = Listed(key, len(data), ref.created_at + ttl_s, ttl_s)
        with self._lock, _as_artifact_error("The output could not be stored"):
            self._put_within(data, artifact)
        return ref

    def _put_within(self, data: bytes, artifact: Listed) -> None:
        swept = self._backend.sweep(self._now())
        while full := self._backend.put_within(data, artifact, self._quotas):
            if not swept:
                raise ArtifactError(f"The output could not be stored: {full}.")
            swept = self._backend.sweep(self._now())

    def _sweep_at_start(self) -> None:
        """Remove what has expired. A server that is away is logged: it may come up later."""
        try:
            with _as_artifact_error("Expired artifacts could not be removed"):
                self._backend.sweep(self._now())
        except ArtifactError as exc:
            log(ARTIFACT_AWAY, "the artifact store cannot be used yet: %s", exc)

    def retrieve(self, artifact_id: str, session_id: str | None = None) -> str | None:
        """Return the whole text; None if it is unknown, expired, or of another session."""
        found = self._read(artifact_id, session_id, None)
        return None if found is None else found[1].decode("utf-8", "replace")

    def get_ref(self, artifact_id: str, session_id: str | None = None) -> ArtifactRef | None:
        found = self._read(artifact_id, session_id, HEADER_BYTES)
        return None if found is None else found[0]

    def cleanup_session(self, session_id: str) -> int:
        """Remove all artifacts of a session. Return how many there were."""
        with _as_artifact_error("The session's artifacts could not be removed"):
            keys = [key for key, _ in self._list(f"{_hash_session(session_id)}/")]
            for key in keys:
                self._backend.delete(key)
        return len(keys)

    def cleanup_expired(self) -> int:
        """Remove what has expired, and what cannot be read. Return how many there were.

        It examines every artifact, and compares an index with what exists.
        """
        removed = 0
        with _as_artifact_error("Expired artifacts could not be removed"):
            for key, _ in self._list():
                found = self._read_key(key, HEADER_BYTES)
                if found is None or found[0].is_expired_at(self._now()):
                    self._backend.delete(key)
                    removed += 1
            self._backend.rebuild()
        return removed

    def _read(
        self, artifact_id: str, session_id: str | None, limit: int | None
    ) -> tuple[ArtifactRef, bytes] | None:
        if not isinstance(artifact_id, str) or not _ID.fullmatch(artifact_id):
            return None
        with _as_artifact_error("The artifact could not be read"):
            key: str | None = f"{_hash_session(session_id or '')}/{artifact_id}"
            if session_id is None:
                key = self._backend.find(artifact_id)
            found = None if key is None else self._read_key(key, limit)
        return None if found is None or found[0].is_expired_at(self._now()) else found

    def _list(self, prefix: str = "") -> list[tuple[str, int]]:
        """List our keys only: a bucket or a directory may hold other things."""
        return [
            (key, size) for key, size in self._backend.list(prefix) if ARTIFACT_KEY.fullmatch(key)
        ]

    def _read_key(self, key: str, limit: int | None) -> tuple[ArtifactRef, bytes] | None:
        data = self._backend.get(key, limit)
        if data is None:
            return None
        header, _, content = data.partition(b"\n")
        try:
            return _parse_ref(json.loads(header)), content
        except (ValueError, TypeError, OverflowError, RecursionError) as exc:
            why = shorten(str(exc), 200)
            message = "the artifact %s is damaged and treated as missing: %s"
            log(ARTIFACT_DAMAGED, message, key, why, artifact=key)
            return None


def _add_index(backend: ArtifactBackend, index: str | os.PathLike[str] | None) -> CountingBackend:
    """Return a backend that counts: by itself, in a file, or else in the memory of this process."""
    if isinstance(backend, CountingBackend) and index is None:
        return backend
    if isinstance(backend, CountingBackend):
        hint = "Leave it out: directories, Redis and PostgreSQL count by themselves."
        raise EdictumConfigError(f"index= cannot be used with {type(backend).__name__}.", hint=hint)
    if index is None and not getattr(backend, "is_of_process", False):
        message = "the artifact store has no index=, so its quotas hold for each process by itself"
        log(ARTIFACT_COUNTED_APART, message)
    return IndexedBackend(backend, None if index is None else Path(index))


@contextmanager
def _as_artifact_error(what: str) -> Iterator[None]:
    """Raise what a backend raises as an ArtifactError."""
    try:
        yield
    except (ArtifactError, EdictumConfigError):
        raise
    except Exception as exc:
        raise ArtifactError(f"{what}: {type(exc).__name__}: {exc}") from exc


_FIELD_TYPES: dict[str, Any] = {"str": str, "int": int, "float": (int, float)}


def _parse_ref(header: Any) -> ArtifactRef:
    """Return the header of an artifact; raise if a value is missing or unusable."""
    ref = ArtifactRef(**header)
    for each in fields(ref):
        value = getattr(ref, each.name)
        if isinstance(value, bool) or not isinstance(value, _FIELD_TYPES[str(each.type)]):
            raise TypeError(f"{each.name} is {type(value).__name__}")
    if not isfinite(ref.created_at) or isnan(ref.created_at + ref.ttl_s):
        raise ValueError("its expiry is not a time")
    return ref


def _check_ttl(ttl_s: Any) -> float:
    if ttl_s is None:
        return DEFAULT_TTL_S
    if isinstance(ttl_s, bool) or not isinstance(ttl_s, (int, float)) or ttl_s != ttl_s:
        hint = "Pass seconds, None for the default, or math.inf for ever."
        raise EdictumInputError(f"ttl_s is {shorten(show(ttl_s), 80)}.", hint=hint)
    return float(max(0, ttl_s)) if ttl_s < 1e300 else inf  # larger ones overflow when added to


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _hash_session(session_id: str) -> str:
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _to_readable_text(content: Any, redaction: RedactionPolicy) -> tuple[str, str]:
    """Return the content as text without secrets, and "text" or "json"."""
    value = content
    if isinstance(content, str):
        try:
            value = json.loads(content) if content.lstrip()[:1] in ("{", "[") else content
        except (ValueError, RecursionError):
            value = content
    if isinstance(value, dict) and list(value) == ["result"] and isinstance(value["result"], str):
        value = value["result"]
    if isinstance(value, str):
        return redaction.redact_text(value), "text"
    return json.dumps(to_json(redaction.redact_value(value)), indent=1, ensure_ascii=False), "json"


def _make_ref(
    session_id: str, text: str, kind: str, tool_name: str, created_at: float, ttl_s: float
) -> ArtifactRef:
    data, lines = _encode(text), text.count("\n") + 1
    return ArtifactRef(
        artifact_id=f"art_{secrets.token_hex(8)}",
        session_id=shorten(session_id, NAME_CHARS),
        created_at=created_at,
        ttl_s=ttl_s,
        size_bytes=len(data),
        tool_name=shorten(tool_name, NAME_CHARS),
        summary=_summarize(text, kind, lines),
        kind=kind,
        sha256=hashlib.sha256(data).hexdigest(),
        chars=len(text),
        lines=lines,
        head=text[:PREVIEW_CHARS],
        tail=text[-PREVIEW_CHARS:],
    )


def _summarize(text: str, kind: str, lines: int) -> str:
    """Return counts, the head and the tail, in at most MAX_SUMMARY_CHARS."""
    counts = f"{len(text):,} characters, {lines:,} lines"
    shape = f", JSON {_describe_shape(text)}" if kind == "json" else ""
    about = shorten(f"{counts}{shape}", 110)
    part = (MAX_SUMMARY_CHARS - len(about) - len(": '' ... ''")) // 2
    head, tail = (
        " ".join(end.split())[:part] for end in (text[: 4 * part], text[-4 * part :][::-1])
    )
    return f"{about}: '{head}' ... '{tail[::-1]}'"


def _describe_shape(text: str) -> str:
    value = json.loads(text)
    if isinstance(value, dict):
        return f"object with {len(value)} keys: {', '.join(map(str, value))}"
    return f"list of {len(value)} items" if isinstance(value, list) else type(value).__name__
