"""Where artifacts are kept: a private directory, Redis, PostgreSQL, or what fsspec can reach.

A backend keeps bytes under keys ``<session>/<artifact>``, which the store makes of letters and
digits only. It knows nothing about sessions, time or secrets.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from edictum._optional import import_optional
from edictum.errors import EdictumConfigError
from edictum.harness._artifact_index import (
    PRIVATE_FILE,
    ArtifactIndex,
    Listed,
    ProcessIndex,
    Quotas,
)
from edictum.sessions._urls import Options, take_options

PRIVATE_DIRECTORY = 0o700
INDEX = ".index.db"
HEADER_BYTES = 16_384  # enough for two previews, a summary and two names, all escaped
SWEEP_BATCH = 100  # artifacts that are removed when one is stored
ARTIFACT_KEY = re.compile(r"[0-9a-f]{32}/art_[0-9a-f]{16}")
TEMPORARY = ".tmp-"
CONNECT_S = 5.0  # for a server that does not answer
SERVER_WAIT_S = 30.0  # the same, once it is connected; an artifact may be large
NOT_FOR_ARTIFACTS = {"lease", "ttl", "allow_eviction", "migrate", "replicas", "schema"}


@runtime_checkable
class ArtifactBackend(Protocol):
    """Keeps bytes. ``put`` is atomic: no reader ever sees half a value."""

    def put(self, key: str, data: bytes, ttl_s: float) -> None:
        """Keep the data for at least ``ttl_s`` seconds, which may be infinity."""

    def get(self, key: str, limit: int | None = None) -> bytes | None:
        """Return the data, or its first ``limit`` bytes; None if it does not exist."""

    def delete(self, key: str) -> None:
        """Remove the data, if it exists."""

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        """Return all keys with this prefix, each with the size of its data."""


@runtime_checkable
class CountingBackend(ArtifactBackend, Protocol):
    """A backend that keeps count of its artifacts, so that nothing has to be listed."""

    def put_within(self, data: bytes, artifact: Listed, quotas: Quotas) -> str:
        """Keep the data if it fits, in one step for all processes; else say what is full."""

    def find(self, artifact_id: str) -> str | None:
        """Return the key of an artifact whose session is not known."""

    def sweep(self, now: float) -> int:
        """Remove some of what has expired. Return how many there were."""

    def rebuild(self) -> None:
        """Recount the artifacts that exist."""


def open_backend(location: str | os.PathLike[str] | ArtifactBackend | None) -> ArtifactBackend:
    """Return a backend for None (a private temporary directory), a path, a URL, or a backend."""
    if location is None:
        return DirectoryBackend(default_directory())
    if isinstance(location, os.PathLike):
        return DirectoryBackend(Path(location))
    if not isinstance(location, str):
        return location
    scheme, separator, rest = location.partition("://")
    if not separator or scheme in ("file", "local"):
        return DirectoryBackend(Path(rest if separator else location))
    if scheme.removesuffix("+sentinel") in ("redis", "rediss", "valkey", "valkeys", "unix"):
        import_optional("redis", "redis")
        from edictum.harness._artifact_redis import RedisBackend  # here: it imports this module

        return RedisBackend(location)
    if scheme in ("postgresql", "postgres"):
        import_optional("asyncpg", "postgres")
        from edictum.harness._artifact_postgres import PostgresBackend

        return PostgresBackend(location)
    return FsspecBackend(location)


def take_server_options(url: str) -> tuple[str, Options, float]:
    """Split our own options, and the timeout of an answer, from the URL of a server; refuse those
    that only other stores have.
    """
    query = url.partition("?")[2]
    names = {part.partition("=")[0] for part in query.split("&")}
    if strange := sorted(names & NOT_FOR_ARTIFACTS):
        hint = "Beside what the driver knows it may have wait, password_file and pooler."
        raise EdictumConfigError(f"Artifacts have no option {', '.join(strange)}.", hint=hint)
    plain, options = take_options(url)
    return plain, options, options.wait_s or SERVER_WAIT_S


def default_directory() -> Path:
    return Path(tempfile.gettempdir()) / f"edictum-artifacts-{os.getuid()}"


# --- With an index --------------------------------------------------------------------------------


class Indexed:
    """Adds an index to a backend: quotas are exact, and finding and sweeping list nothing."""

    _index: ArtifactIndex

    def put_within(self: _Indexable, data: bytes, artifact: Listed, quotas: Quotas) -> str:
        if full := self._index.enter(artifact, quotas):
            return full
        try:
            self.put(artifact.key, data, artifact.ttl_s)
        except BaseException:
            with contextlib.suppress(Exception):  # no room for that either
                self._index.remove(artifact.key)
            raise
        return ""

    def find(self, artifact_id: str) -> str | None:
        return self._index.find(artifact_id)

    def sweep(self: _Indexable, now: float) -> int:
        expired = self._index.list_stale(now, SWEEP_BATCH)
        for key in expired:
            self.delete(key)
        return len(expired)

    def rebuild(self) -> None:
        self._index.rebuild()

    def _list_artifacts(self: _Indexable) -> Iterator[Listed]:
        for key, size in self.list():
            if ARTIFACT_KEY.fullmatch(key):
                yield Listed(key, size, read_expiry(self.get(key, HEADER_BYTES)))


class _Indexable(ArtifactBackend, Protocol):
    _index: ArtifactIndex


class IndexedBackend(Indexed):
    """Keeps bytes in another backend, and the index in a file that all processes share; without one
    in memory, for the stores of this process that have the same backend.
    """

    def __init__(self, kept: ArtifactBackend, path: Path | None) -> None:
        self._kept = kept
        if path is not None:
            self._index = ArtifactIndex(path, self._list_artifacts)
            path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        elif isinstance(kept, FsspecBackend):
            self._index = kept.index
        else:
            self._index = make_process_index(kept)

    def put(self, key: str, data: bytes, ttl_s: float) -> None:
        self._kept.put(key, data, ttl_s)

    def get(self, key: str, limit: int | None = None) -> bytes | None:
        return self._kept.get(key, limit)

    def delete(self, key: str) -> None:
        self._kept.delete(key)
        self._index.remove(key)

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        return self._kept.list(prefix)


def make_process_index(kept: ArtifactBackend) -> ProcessIndex:
    """Return an index in memory of what a backend keeps."""

    def list_artifacts(prefix: str) -> Iterator[Listed]:
        for key, size in kept.list(prefix):
            if ARTIFACT_KEY.fullmatch(key):
                yield Listed(key, size, read_expiry(kept.get(key, HEADER_BYTES)))

    return ProcessIndex(lambda: list_artifacts(""), lambda session: list_artifacts(f"{session}/"))


# --- A directory ----------------------------------------------------------------------------------


class DirectoryBackend(Indexed):
    """Files in a directory that only this user can read.

    Every path is opened relative to an open directory without following symbolic links. A directory
    of another user is refused. An entry that is not a regular file is treated as missing. An index
    lists its files; see ``_artifact_index``.
    """

    def __init__(self, base: Path) -> None:
        self._base = base
        self._index = ArtifactIndex(base / INDEX, self._list_artifacts)
        with contextlib.suppress(FileExistsError):
            base.mkdir(mode=PRIVATE_DIRECTORY, parents=True)
        with self._open_base() as directory:
            os.fchmod(directory, PRIVATE_DIRECTORY)

    def _open_base(self) -> contextlib.AbstractContextManager[int]:
        return _open_directory(str(self._base), None)

    @contextlib.contextmanager
    def _open_session(self, key: str) -> Iterator[tuple[int, str]]:
        session, name = key.split("/")
        with self._open_base() as base, _open_directory(session, base) as directory:
            yield directory, name

    @staticmethod
    def _sweep_temporary(base: int) -> None:
        """Remove temporary files of dead writers; a new one may be another process's."""
        too_old = time.time() - 3_600
        for session in os.listdir(base):
            with contextlib.suppress(OSError), _open_directory(session, base) as directory:
                for name in filter(_is_temporary, os.listdir(directory)):
                    about = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    if about.st_mtime < too_old:
                        os.unlink(name, dir_fd=directory)

    def rebuild(self) -> None:
        with self._open_base() as base:
            self._sweep_temporary(base)
        super().rebuild()

    def put(self, key: str, data: bytes, ttl_s: float) -> None:
        with self._open_base() as base, contextlib.suppress(FileExistsError):
            os.mkdir(key.split("/")[0], PRIVATE_DIRECTORY, dir_fd=base)
        with self._open_session(key) as (directory, name):
            temporary = TEMPORARY + name
            try:
                _write_new(temporary, data, directory)
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=directory)
                raise

    def get(self, key: str, limit: int | None = None) -> bytes | None:
        session, name = key.split("/")
        with self._open_base() as base:
            try:
                with _open_directory(session, base) as directory:
                    return _read_file(name, directory, limit)
            except (FileNotFoundError, PermissionError):
                return None

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._open_session(key) as (directory, name):
            for each in (name, TEMPORARY + name):  # the latter if its writer was killed
                with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                    os.unlink(each, dir_fd=directory)
        with self._open_base() as base, contextlib.suppress(OSError):  # not empty yet
            os.rmdir(key.split("/")[0], dir_fd=base)
        self._index.remove(key)

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        found = []
        with self._open_base() as base:
            for session in os.listdir(base):
                if f"{session}/".startswith(prefix) or prefix.startswith(f"{session}/"):
                    files = self._list_files(base, session)
                    found += [(key, size) for key, size in files if key.startswith(prefix)]
        return found

    @staticmethod
    def _list_files(base: int, session: str) -> Iterator[tuple[str, int]]:
        with contextlib.suppress(OSError), _open_directory(session, base) as directory:
            for name in os.listdir(directory):
                with contextlib.suppress(FileNotFoundError):
                    about = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    if not _is_temporary(name) and not stat.S_ISDIR(about.st_mode):
                        yield f"{session}/{name}", about.st_size


def read_expiry(data: bytes | None) -> float:
    """Return when an artifact expires, from its header; one that cannot be read has expired."""
    try:
        header = json.loads((data or b"").partition(b"\n")[0])
        return float(header["created_at"] + header["ttl_s"])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return 0.0


def _is_temporary(name: str) -> bool:
    return name.startswith(TEMPORARY)


@contextlib.contextmanager
def _open_directory(path: str, parent: int | None) -> Iterator[int]:
    """Open a directory that belongs to this user and is not a symbolic link."""
    try:
        directory = os.open(
            path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent
        )
    except OSError as exc:
        if exc.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        message = f"{path} is a symbolic link or not a directory; artifacts are not kept there"
        raise PermissionError(message) from exc
    try:
        about = os.fstat(directory)
        if about.st_uid != os.geteuid():
            message = f"{path} belongs to the user {about.st_uid}; artifacts are not kept there"
            raise PermissionError(message)
        yield directory
    finally:
        os.close(directory)


def _read_file(name: str, directory: int, limit: int | None) -> bytes | None:
    """Return the contents of a regular file; None for a link, a directory or a pipe."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not block
    try:
        file = os.open(name, flags, dir_fd=directory)
    except OSError as exc:
        if exc.errno not in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise
        return None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        return None
    with os.fdopen(file, "rb") as opened:
        return opened.read(-1 if limit is None else limit)


def _write_new(name: str, data: bytes, directory: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(name, flags, PRIVATE_FILE, dir_fd=directory)
    with os.fdopen(file, "wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(opened.fileno())


# --- Other file systems ---------------------------------------------------------------------------


class FsspecBackend:
    """Any file system that fsspec knows: ``s3://bucket/artifacts``, ``gs://``, ``memory://``.

    Who may read there must be configured there.
    """

    def __init__(self, url: str) -> None:
        fsspec = import_optional("fsspec", "artifacts")
        try:
            self._files, self._base = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as exc:
            shown = re.sub(r"(?<=://)[^/]*@", "", url)  # without a user and a password
            message = f"Artifacts cannot be kept at {shown!r}: {exc}"
            raise EdictumConfigError(message, hint="Use a URL that fsspec knows.") from exc
        self.index = make_process_index(self)  # for stores without an index of their own
        self.is_of_process = self._files.protocol == "memory"  # no other process stores there

    def _path(self, key: str) -> str:
        return f"{self._base.rstrip('/')}/{key}"

    def put(self, key: str, data: bytes, ttl_s: float) -> None:
        """Write to a temporary name and rename, for file systems that show incomplete files."""
        path = self._path(key)
        folder = path.rpartition("/")[0]
        self._files.makedirs(folder, exist_ok=True)
        temporary = f"{folder}/{TEMPORARY}{secrets.token_hex(8)}"
        try:
            self._files.pipe_file(temporary, data)
            self._files.mv(temporary, path)
        except BaseException:
            with contextlib.suppress(Exception):
                self._files.rm_file(temporary)
            raise

    def get(self, key: str, limit: int | None = None) -> bytes | None:
        try:
            data: bytes = self._files.cat_file(self._path(key), start=0, end=limit)
        except FileNotFoundError:
            return None
        return data

    def delete(self, key: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(key))

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        folder = prefix.rpartition("/")[0]
        try:
            found = self._files.find(self._path(folder) if folder else self._base, detail=True)
        except FileNotFoundError:
            return []
        sizes = {path[len(self._base) :].strip("/"): each["size"] for path, each in found.items()}
        return [
            (key, size)
            for key, size in sizes.items()
            if key.startswith(prefix) and TEMPORARY not in key
        ]
