"""Large outputs: kept in private, bounded in size and time, readable in parts, and never a
reference to nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edictum import (
    Edictum,
    EdictumConfigError,
    EdictumInputError,
    RedactionPolicy,
    ToolExecutionResult,
    ToolFailure,
    outcome_to_model_content,
)
from edictum.harness._artifact_postgres import PostgresBackend
from edictum.harness._artifact_redis import RedisBackend
from edictum.harness.artifact_backends import (
    ArtifactBackend,
    DirectoryBackend,
    FsspecBackend,
    IndexedBackend,
    default_directory,
    open_backend,
)
from edictum.harness.artifact_reader import make_reader, resolve_pointer
from edictum.harness.artifact_store import DEFAULT_TTL_S, ArtifactError, ArtifactStore
from edictum.outcomes import TOOL_MESSAGE_MAX_CHARS
from support.effort import SOAK, effort
from support.processes import list_open_files

BIG = "\n".join(f"line {number}: some text" for number in range(5_000))


@pytest.fixture
def valkey(broker_url: str) -> str:
    pytest.importorskip("redis")
    return broker_url


@pytest.fixture
def postgres(postgres_server: tuple[str, str]) -> str:
    pytest.importorskip("asyncpg")
    url, origin = postgres_server
    if not url:
        pytest.skip(origin)
    return url


BACKENDS = ["directory", "fsspec memory", "fsspec file", "fsspec, index", "valkey", "postgres"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ArtifactBackend]:
    name = tmp_path.name.replace("[", "_").replace("]", "_").replace(" ", "_")
    if request.param == "directory":
        yield DirectoryBackend(tmp_path / "artifacts")
    elif request.param == "valkey":
        made = RedisBackend(request.getfixturevalue("valkey"), name=f"test:{name}")
        yield made
        made.close()
    elif request.param == "postgres":
        table = f"t_{abs(hash(name))}"
        tables = PostgresBackend(request.getfixturevalue("postgres"), table=table)
        yield tables
        tables.close()
    else:
        pytest.importorskip("fsspec")
        kept = FsspecBackend(
            f"memory://{name}" if "memory" in request.param else f"file://{tmp_path}/bucket"
        )
        yield IndexedBackend(kept, tmp_path / "index.db") if "index" in request.param else kept


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


# --- On every backend -----------------------------------------------------------------------------


class TestEveryBackend:
    """One behaviour, whatever keeps the bytes."""

    def test_what_was_stored_can_be_read_and_described(self, backend: ArtifactBackend) -> None:
        store = ArtifactStore(backend)
        ref = store.store("s-1", BIG, "search")
        assert ref.artifact_id.startswith("art_")
        assert len(ref.artifact_id) == 20
        assert store.retrieve(ref.artifact_id) == BIG
        assert store.retrieve(ref.artifact_id, "s-1") == BIG
        assert store.get_ref(ref.artifact_id) == ref
        assert (ref.session_id, ref.tool_name, ref.chars, ref.lines, ref.kind) == (
            "s-1",
            "search",
            len(BIG),
            5_000,
            "text",
        )
        assert ref.sha256 == hashlib.sha256(BIG.encode()).hexdigest()
        assert (ref.head, ref.tail) == (BIG[:500], BIG[-500:])
        assert not ref.is_expired

    def test_nothing_is_found_where_nothing_is(self, backend: ArtifactBackend) -> None:
        store = ArtifactStore(backend)
        for wrong in (
            "art_0000000000000000",
            "",
            "art_",
            "../../etc/passwd",
            "art_000000000000000/",
            "ART_0000000000000000",
            None,
            3,
        ):
            assert store.retrieve(wrong) is None  # type: ignore[arg-type]
            assert store.get_ref(wrong) is None  # type: ignore[arg-type]

    def test_a_session_sees_its_own(self, backend: ArtifactBackend) -> None:
        store = ArtifactStore(backend)
        mine, theirs = store.store("s-1", "mine", "t"), store.store("s-2", "theirs", "t")
        assert store.retrieve(mine.artifact_id, "s-2") is None
        assert store.cleanup_session("s-1") == 1
        assert store.retrieve(mine.artifact_id) is None
        assert store.retrieve(theirs.artifact_id, "s-2") == "theirs"
        assert store.cleanup_session("s-1") == 0

    def test_artifacts_expire(self, backend: ArtifactBackend) -> None:
        clock = Clock()
        store = ArtifactStore(backend, clock=clock)
        short, long = store.store("s", "a", "t", ttl_s=60), store.store("s", "b", "t", ttl_s=600)
        clock.now += 60
        assert store.retrieve(short.artifact_id) is None
        assert store.get_ref(short.artifact_id) is None
        assert store.retrieve(long.artifact_id) == "b"
        assert store.cleanup_expired() == 1
        assert store.cleanup_expired() == 0

    def test_none_is_the_usual_time_and_infinity_is_for_ever(
        self, backend: ArtifactBackend
    ) -> None:
        clock = Clock()
        store = ArtifactStore(backend, clock=clock)
        usual, for_ever, as_good = (
            store.store("s", "a", "t", ttl_s=ttl_s) for ttl_s in (None, math.inf, 10**400)
        )
        assert (usual.ttl_s, for_ever.ttl_s) == (DEFAULT_TTL_S, math.inf)
        assert store.retrieve(usual.artifact_id) == "a"
        clock.now += 1e9
        assert [store.retrieve(ref.artifact_id) for ref in (usual, for_ever, as_good)] == [
            None,
            "a",
            "a",
        ]
        assert store.cleanup_expired() == 1
        assert store.get_ref(for_ever.artifact_id) == for_ever

    @pytest.mark.parametrize("ttl_s", ["60", math.nan, True, [60]])
    def test_a_time_that_is_none_is_refused_before_anything_is_written(
        self, backend: ArtifactBackend, ttl_s: Any
    ) -> None:
        with pytest.raises(EdictumInputError, match=r"ttl_s is .* math\.inf"):
            ArtifactStore(backend).store("s", "a", "t", ttl_s=ttl_s)
        assert backend.list() == []

    def test_a_new_store_finds_the_old_artifacts_and_sweeps_what_expired(
        self, backend: ArtifactBackend
    ) -> None:
        """After a restart nothing is lost, and nothing stays for ever."""
        clock = Clock()
        first = ArtifactStore(backend, clock=clock)
        short, long = first.store("s", "a", "t", ttl_s=60), first.store("s", "b", "t", ttl_s=600)
        clock.now += 100
        second = ArtifactStore(backend, clock=clock)
        assert [key.rpartition("/")[2] for key, _ in backend.list()] == [long.artifact_id]
        assert second.retrieve(long.artifact_id) == "b"
        assert second.retrieve(short.artifact_id) is None

    def test_quotas_hold_per_session_and_in_all(self, backend: ArtifactBackend) -> None:
        """What is full says so; what has expired makes room."""
        clock = Clock()
        store = ArtifactStore(backend, max_session_bytes=6_000, max_total_bytes=10_000, clock=clock)
        store.store("s-1", "x" * 2_000, "t", ttl_s=60)
        with pytest.raises(ArtifactError, match="the session's artifacts would take"):
            store.store("s-1", "x" * 3_000, "t")
        store.store("s-2", "x" * 4_000, "t")
        with pytest.raises(ArtifactError, match="all artifacts would take"):
            store.store("s-3", "x" * 3_000, "t")
        clock.now += 100
        store.store("s-1", "x" * 2_000, "t")

    @pytest.mark.parametrize(
        "session",
        [
            "../../etc",
            "/etc/passwd",
            "a/b",
            "..",
            "",
            "\0",
            "x" * 10_000,
            "*",
            "ü\udc80",
            "-rf",
            "con",
        ],
    )
    def test_hostile_session_ids_are_harmless(self, backend: ArtifactBackend, session: str) -> None:
        """They never become part of a path."""
        store = ArtifactStore(backend)
        ref = store.store(session, "content", "t")
        assert store.retrieve(ref.artifact_id, session) == "content"
        assert store.get_ref(ref.artifact_id) is not None
        (key,) = [key for key, _ in backend.list()]
        assert set(key) <= set("0123456789abcdef/art_")
        assert store.cleanup_session(session) == 1

    def test_other_things_in_the_same_place_are_left_alone(self, backend: ArtifactBackend) -> None:
        key = "0" * 32 + "/notes"
        backend.put(key, b"not an artifact", 60)
        store = ArtifactStore(backend)
        store.cleanup_expired()
        assert backend.get(key) == b"not an artifact"
        backend.delete(key)

    def test_a_damaged_artifact_is_no_artifact(self, backend: ArtifactBackend) -> None:
        store = ArtifactStore(backend)
        ref = store.store("s", "content", "t")
        ((key, _),) = backend.list()
        backend.put(key, b"{not json", 60)
        assert store.retrieve(ref.artifact_id) is None
        assert store.cleanup_expired() == 1

    def test_threads_can_share_a_store(self, backend: ArtifactBackend) -> None:
        store = ArtifactStore(backend)
        refs: list[Any] = []

        def work(number: int) -> None:
            refs.append((number, store.store(f"s-{number % 2}", f"text {number}", "t")))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refs) == 12
        for number, ref in refs:
            assert store.retrieve(ref.artifact_id) == f"text {number}"


# --- What is written ------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


def test_secrets_are_redacted_before_anything_is_written(tmp_path: Path) -> None:
    """In texts by their shape, in JSON also by the name of their key; custom patterns too."""
    store = ArtifactStore(
        tmp_path / "a", redaction=RedactionPolicy(custom_patterns=[(r"project-\w+", "[PROJECT]")])
    )
    store.store("s", "the key is AKIAABCDEFGHIJKLMNOP of project-x", "t")
    store.store("s", json.dumps({"rows": [{"password": "hunter2", "name": "Ann"}]}), "t")
    store.store("s", {"api_key": "abc", "n": 1}, "t")
    written = b"".join(path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file())
    for secret in (b"AKIAABCDEFGHIJKLMNOP", b"project-x", b"hunter2", b'"abc"'):
        assert secret not in written
    assert b"Ann" in written


def test_a_long_text_is_redacted_as_a_short_one_is() -> None:
    """Long texts are searched window by window; where a window ends makes no difference, however
    long a secret is.
    """
    secrets = [
        "AKIAABCDEFGHIJKLMNOP",
        "password = 'hunter2'",
        "token: " + "z" * 9_000,
        "-----BEGIN RSA PRIVATE KEY-----\n" + "A" * 100_000 + "\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----" + "Q" * 70_000,
    ]
    policy = RedactionPolicy(
        custom_patterns=[(r"project-\w+", "[PROJECT]"), (r"(?<=nothing)", "!")]
    )
    for secret in [*secrets, "project-x", "nothing"]:
        for before in (57_300, 65_520, 131_000):
            filling = "lorem ipsum\n" * 11_000
            text = f"{filling[:before]} {secret}\n{filling}"
            wanted = f"{filling[:before]} {policy.redact_text(secret)}\n{filling}"
            if secret == secrets[-1]:  # it has no end
                wanted = f"{filling[:before]} [REDACTED]"
            assert policy.redact_text(text) == wanted


def test_the_summary_has_counts_head_and_tail_in_200_characters(store: ArtifactStore) -> None:
    for content in (
        BIG,
        "x",
        "",
        "\n" * 9_000,
        "ü" * 20_000,
        {"items": list(range(9_000)), **{f"key {n}": n for n in range(200)}},
        [1, 2, 3],
    ):
        ref = store.store("s", content, "t")
        assert len(ref.summary) <= 200
        assert "characters" in ref.summary
    ref = store.store("s", BIG, "t")
    assert "5,000 lines" in ref.summary
    assert "line 0: some" in ref.summary
    assert ref.summary.endswith("4999: some text'")
    assert "list of 3 items" in store.store("s", [1, 2, 3], "t").summary
    assert "object with 2 keys: a, b" in store.store("s", {"a": 1, "b": 2}, "t").summary


def test_json_is_kept_readable_and_plain_text_is_unwrapped(store: ArtifactStore) -> None:
    """The output of a tool that returned text is that text, not its JSON form."""
    wrapped = store.store("s", json.dumps({"result": "two\nlines"}), "t")
    assert store.retrieve(wrapped.artifact_id) == "two\nlines"
    listed = store.store("s", json.dumps({"result": [1, 2]}), "t")
    assert listed.kind == "json"
    assert (store.retrieve(listed.artifact_id) or "").count("\n") > 2
    almost = store.store("s", "{not json", "t")
    assert store.retrieve(almost.artifact_id) == "{not json"


def test_the_hint_for_the_model_names_the_reader_and_no_path(
    store: ArtifactStore, tmp_path: Path
) -> None:
    ref = store.store("s", BIG, "t")
    hint = ref.to_model_hint()
    assert hint["artifact_reference"] == ref.artifact_id
    assert "read_artifact" in hint["hint"]
    assert str(tmp_path) not in json.dumps(hint)


# --- The directory --------------------------------------------------------------------------------


def folders(base: Path) -> list[Path]:
    """Return the folders of sessions; the index lies beside them."""
    return [path for path in base.iterdir() if path.name != ".index.db"]


def test_directories_and_files_are_private(tmp_path: Path) -> None:
    """Whatever the umask is, and also if the directory was there before."""
    base = tmp_path / "artifacts"
    base.mkdir(mode=0o777)
    base.chmod(0o777)
    before = os.umask(0)
    try:
        ArtifactStore(base).store("s", "content", "t")
    finally:
        os.umask(before)
    for path in (base, *base.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    """Neither as the directory, nor as a session's, nor as a file."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "link").symlink_to(elsewhere)
    with pytest.raises(PermissionError, match="symbolic link"):
        ArtifactStore(tmp_path / "link")
    store = ArtifactStore(tmp_path / "artifacts")
    ref = store.store("s", "content", "t")
    (folder,) = folders(tmp_path / "artifacts")
    (folder / ref.artifact_id).unlink()
    (folder / ref.artifact_id).symlink_to("/etc/hostname")
    assert store.retrieve(ref.artifact_id, "s") is None
    assert store.cleanup_session("s") == 1
    assert not folder.exists()
    folder.symlink_to(elsewhere)
    assert store.retrieve(ref.artifact_id, "s") is None
    with pytest.raises(ArtifactError, match="symbolic link"):
        store.store("s", "content", "t")
    assert list(elsewhere.iterdir()) == []


def plant_link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def plant_full_directory(path: Path) -> None:
    path.mkdir()
    (path / "mine").touch()


@pytest.mark.parametrize(
    ("plant", "stays"), [(plant_link, False), (os.mkfifo, False), (plant_full_directory, True)]
)
def test_what_is_no_file_is_no_artifact_and_in_nobodys_way(
    tmp_path: Path, plant: Callable[[Path], None], stays: bool
) -> None:
    store = ArtifactStore(tmp_path / "a")
    ref = store.store("s", "content", "t")
    (folder,) = folders(tmp_path / "a")
    planted = folder / f"art_{'a' * 16}"
    plant(planted)
    assert (
        store.retrieve(planted.name)
        is store.retrieve(planted.name, "s")
        is store.get_ref(planted.name)
        is None
    )
    assert list_open_files(tmp_path) == []
    assert store.cleanup_expired() == (0 if stays else 1)
    assert os.path.lexists(planted) == stays
    assert ArtifactStore(tmp_path / "a").retrieve(ref.artifact_id) == "content"
    assert Path("/etc/hostname").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "artifacts"
    base.mkdir()
    os.chown(base, 65534, 65534)
    with pytest.raises(PermissionError, match="belongs to the user 65534"):
        ArtifactStore(base)


def test_what_a_dead_writer_left_is_swept(tmp_path: Path) -> None:
    """But not the file of a writer who may still be at work."""
    base = tmp_path / "artifacts"
    ArtifactStore(base).store("s", "content", "t")
    (folder,) = folders(base)
    old, young = folder / ".tmp-old", folder / ".tmp-young"
    old.touch()
    young.touch()
    os.utime(old, (0, 0))
    ArtifactStore(base).cleanup_expired()
    assert not old.exists()
    assert young.exists()


FULL_DISK = """
import resource, sys
from pathlib import Path
from edictum.harness.artifact_store import ArtifactError, ArtifactStore
store = ArtifactStore(sys.argv[1])
kept = store.store("s", "small", "t")
resource.setrlimit(resource.RLIMIT_FSIZE, (90_000, 90_000))
try:
    store.store("s", "x" * 100_000, "t")
except ArtifactError as exc:
    print(exc.code)
print(store.retrieve(kept.artifact_id))
print(sum(path.is_file() for path in Path(sys.argv[1]).rglob("*/*")))
"""


def test_a_full_disk_leaves_no_half_artifact(tmp_path: Path) -> None:
    """The failure is explicit, what was there stays, and no piece of the failed one does."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "a")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["artifact_error", "small", "1"], done


STORER = """
import sys
from edictum.harness import _artifact_postgres, _artifact_redis, artifact_backends
from edictum.harness.artifact_store import ArtifactError, ArtifactStore
place, quota, name = sys.argv[1:]
index = None
if place.startswith("fsspec:"):
    index = place.partition(":")[2]
    place = artifact_backends.FsspecBackend("file://" + index + ".bucket")
elif "redis" in place or "valkey" in place:
    place = _artifact_redis.RedisBackend(place, name)
elif place.startswith("postgres"):
    place = _artifact_postgres.PostgresBackend(place, name)
store = ArtifactStore(place, max_session_bytes=int(quota), index=index)
while True:
    try:
        store.store("s", "x" * 500, "t")
    except ArtifactError as exc:
        assert "would take" in str(exc), exc
        break
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["directory", "fsspec", "valkey", "postgres"])
def test_a_quota_is_exact_over_processes(
    place: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Four of them fill a session together: as many artifacts as fit, not one more."""
    name, backend = f"t_{abs(hash(str(tmp_path)))}", DirectoryBackend(tmp_path / "a")
    at, index = str(tmp_path / "a"), None
    if place == "fsspec":
        at, index = f"fsspec:{tmp_path}/i", tmp_path / "i"
        backend = FsspecBackend(f"file://{index}.bucket")
    elif place != "directory":
        at = request.getfixturevalue(place)
    if place == "valkey":
        backend = RedisBackend(at, name)
    elif place == "postgres":
        backend = PostgresBackend(at, name)
    ArtifactStore(backend, index=index).store("other", "x" * 500, "t")
    ((_, size),) = backend.list()
    quota = 60 * (size + 10) + 50  # sizes differ by the digits of a time
    command = [sys.executable, "-c", STORER, at, str(quota), name]
    storers = [subprocess.Popen(command) for _ in range(4)]
    assert [storer.wait(240) for storer in storers] == [0] * 4
    used = sum(size for key, size in backend.list()) - size
    assert quota - 2 * size < used <= quota
    if isinstance(backend, RedisBackend | PostgresBackend):
        backend.close()


class ListedOften(FsspecBackend):
    """Counts how often everything is listed."""

    times = 0

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        self.times += 1
        return super().list(prefix)


def test_with_an_index_nothing_is_listed_again(tmp_path: Path) -> None:
    """Neither by a store that is opened, nor to store, find and read; what lay there before is
    entered once. A place that counts by itself needs none.
    """
    backend = ListedOften(f"file://{tmp_path}/bucket")
    before = ArtifactStore(backend).store("s", "before", "t")
    backend.times = 0
    for number in range(5):
        store = ArtifactStore(backend, index=tmp_path / "below" / "index.db")
        ref = store.store("s", f"text {number}", "t")
        assert store.retrieve(ref.artifact_id) == f"text {number}"
    assert store.retrieve(before.artifact_id) == "before"
    assert backend.times == 1
    with pytest.raises(EdictumConfigError, match="index= cannot be used with"):
        ArtifactStore(tmp_path / "a", index=tmp_path / "index.db")


@pytest.mark.parametrize("place", ["valkey", "postgres"])
def test_artifacts_of_an_older_version_are_counted(
    place: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """What was stored without a count is counted when the store is opened, and still expires."""
    name, url, clock = f"t_{abs(hash(str(tmp_path)))}", request.getfixturevalue(place), Clock()
    backend: Any = (RedisBackend if place == "valkey" else PostgresBackend)(url, name)
    old = ArtifactStore(backend, clock=clock).store("s", "x" * 500, "t", ttl_s=60)
    ((_, size),) = backend.list()
    forget_counts(backend, name)
    store = ArtifactStore(backend, max_session_bytes=size + 100, clock=clock)
    with pytest.raises(ArtifactError, match="would take"):
        store.store("s", "y" * 500, "t")
    assert store.retrieve(old.artifact_id) == "x" * 500
    clock.now += 61
    store.cleanup_expired()
    store.store("s", "y" * 500, "t")
    backend.close()


def forget_counts(backend: Any, name: str) -> None:
    if isinstance(backend, RedisBackend):
        counts = (f"{name}:expiries", f"{name}:ids", f"{name}:taken")
        backend._ask(lambda client: client.delete(*counts))
    else:
        backend._call("execute", "DROP TABLE {0}_taken")
        backend._call("execute", "ALTER TABLE {0} DROP COLUMN expires_at")
        backend.close()


FILES = effort(300, soak=100_000)


def fill(base: Path, count: int) -> None:
    """Write artifacts as an earlier process has left them, without an index."""
    ref = ArtifactStore(base).store("s", "content", "t", ttl_s=math.inf)
    (folder,) = folders(base)
    text = (folder / ref.artifact_id).read_text()
    for number in range(count - 1):
        (folder / f"art_{number:016x}").write_text(text)
    (base / ".index.db").unlink()


@pytest.mark.soak
def test_many_artifacts_take_no_longer_than_few(tmp_path: Path) -> None:
    """Printed; what is asserted is that all of them are found and counted."""
    times: dict[int, list[float]] = {}
    for count in (100, FILES):
        fill(tmp_path / str(count), count)
        marks, made = [], []

        def mark(marks: list[float] = marks) -> None:
            marks.append(time.perf_counter())

        ArtifactStore(tmp_path / str(count))  # makes the index, once
        mark()
        for _ in range(20):
            store = ArtifactStore(tmp_path / str(count))
        mark()
        made = [store.store("s", f"text {number}", "t").artifact_id for number in range(20)]
        mark()
        assert [store.retrieve(each) for each in made] == [f"text {n}" for n in range(20)]
        mark()
        times[count] = [after - before for before, after in itertools.pairwise(marks)]
        assert store.retrieve(f"art_{count - 2:016x}") == "content"
        full = ArtifactStore(tmp_path / str(count), max_session_bytes=count * 300)
        with pytest.raises(ArtifactError, match="the session's artifacts would take"):
            full.store("s", "one more", "t")
    if SOAK:
        ratios = [many / few for few, many in zip(*times.values(), strict=True)]
        said = ", ".join(
            f"{n} {r:.2f}" for n, r in zip(["open", "store", "read"], ratios, strict=True)
        )
        print(f"\nartifacts, {FILES:,} to 100: {said}")


class Listing(FsspecBackend):
    """Notes what is listed."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.listed: list[str] = []

    def list(self, prefix: str = "") -> list[tuple[str, int]]:
        self.listed.append(prefix)
        return super().list(prefix)


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_without_an_index_only_the_session_is_listed_and_once(scheme: str, tmp_path: Path) -> None:
    """Whatever lies in other sessions: neither to open a store, nor to store and to read."""
    pytest.importorskip("fsspec")
    url = f"{scheme}://{tmp_path}/bucket"
    before = [ArtifactStore(FsspecBackend(url)).store(f"s-{n}", "before", "t") for n in range(5)]
    backend = Listing(url)  # as in another process
    for number in range(5):
        store = ArtifactStore(backend)
        ref = store.store("s-1", f"text {number}", "t")
        assert store.retrieve(ref.artifact_id, "s-1") == f"text {number}"
        assert store.retrieve(ref.artifact_id) == f"text {number}"
    assert len(backend.listed) == 1
    assert len(backend.listed[0]) == 33, "a session"
    assert len(backend.list(backend.listed[0])) == 6
    assert store.retrieve(before[0].artifact_id) == "before"
    assert backend.listed[-1] == "", "only an id of which the session is not known"


def test_without_an_index_a_process_counts_its_sessions(tmp_path: Path) -> None:
    """A session with what lay there before; what others store meanwhile is not known."""
    pytest.importorskip("fsspec")
    url, clock = f"file://{tmp_path}/bucket", Clock()
    quotas: dict[str, Any] = {"max_session_bytes": 6_000, "max_total_bytes": 10_000, "clock": clock}
    first = ArtifactStore(FsspecBackend(url), **quotas)
    first.store("s-1", "x" * 2_000, "t", ttl_s=60)
    second = ArtifactStore(FsspecBackend(url), **quotas)
    with pytest.raises(ArtifactError, match="the session's artifacts would take"):
        second.store("s-1", "x" * 3_000, "t")
    second.store("s-2", "x" * 3_000, "t")
    with pytest.raises(ArtifactError, match="all artifacts would take"):
        second.store("s-3", "x" * 2_000, "t")
    first.store("s-3", "x" * 2_000, "t")
    clock.now += 100
    second.store("s-1", "x" * 3_000, "t")
    assert first.cleanup_expired() == 0, "it was swept"
    with pytest.raises(ArtifactError, match="all artifacts would take"):
        first.store("s-4", "x" * 2_000, "t")  # it has looked at all of them


def test_a_store_that_counts_for_its_process_alone_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """When it is made; not where no other process can store anything, and not with an index."""
    pytest.importorskip("fsspec")
    url = f"file://{tmp_path}/bucket"
    ArtifactStore("memory://bucket")
    ArtifactStore(tmp_path / "directory")
    ArtifactStore(FsspecBackend(url), index=tmp_path / "index.db")
    assert not caplog.records
    ArtifactStore(FsspecBackend(url))
    (record,) = caplog.records
    assert vars(record)["edictum_event"] == "artifact.counted_apart"
    assert "index=" in caplog.text


def test_a_backend_of_four_methods_counts_too() -> None:
    class Kept:
        def __init__(self) -> None:
            self.values: dict[str, bytes] = {}

        def put(self, key: str, data: bytes, ttl_s: float) -> None:
            self.values[key] = data

        def get(self, key: str, limit: int | None = None) -> bytes | None:
            return self.values.get(key)

        def delete(self, key: str) -> None:
            self.values.pop(key, None)

        def list(self, prefix: str = "") -> list[tuple[str, int]]:
            return [(key, len(it)) for key, it in self.values.items() if key.startswith(prefix)]

    store = ArtifactStore(Kept(), max_session_bytes=3_000)
    ref = store.store("s", "x" * 500, "t")
    with pytest.raises(ArtifactError, match="the session's artifacts would take"):
        store.store("s", "x" * 1_500, "t")
    assert store.retrieve(ref.artifact_id) == "x" * 500
    assert store.cleanup_session("s") == 1
    store.store("s", "x" * 1_000, "t")


@pytest.mark.soak
@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_many_objects_of_others_take_no_longer_than_few(scheme: str, tmp_path: Path) -> None:
    """Without an index. Printed; what is asserted is that what was stored can be read. (A memory
    file system looks at all of its objects whenever it is asked about a folder.)
    """
    pytest.importorskip("fsspec")
    times: dict[int, list[float]] = {}
    for count in (100, FILES):
        url = f"{scheme}://{tmp_path}/{count}"
        files = FsspecBackend(url)
        for number in range(count):
            folder = f"{files._base}/{number // 100:032x}"
            if number % 100 == 0:
                files._files.makedirs(folder, exist_ok=True)
            files._files.pipe_file(f"{folder}/art_{number:016x}", b"x" * 500)
        marks = [time.perf_counter()]
        backend = FsspecBackend(url)
        store = ArtifactStore(backend)
        store.store("s", "first", "t")
        marks.append(time.perf_counter())
        made = [store.store("s", f"text {n}", "t").artifact_id for n in range(50)]
        marks.append(time.perf_counter())
        assert [store.retrieve(each, "s") for each in made] == [f"text {n}" for n in range(50)]
        marks.append(time.perf_counter())
        times[count] = [after - before for before, after in itertools.pairwise(marks)]
    if SOAK:
        ratios = [many / few for few, many in zip(*times.values(), strict=True)]
        names = ["open and first", "store", "read"]
        said = ", ".join(f"{n} {r:.2f}" for n, r in zip(names, ratios, strict=True))
        print(f"\nobjects in {scheme}, {FILES:,} to 100: {said}")


@pytest.mark.parametrize("damage", [b"no database at all" * 100, b"", None])
def test_an_index_that_is_damaged_or_gone_is_made_anew(
    tmp_path: Path, damage: bytes | None
) -> None:
    """From the files: nothing is lost, and all of it counts."""
    store = ArtifactStore(tmp_path / "a")
    ref = store.store("s", "x" * 2_000, "t")
    index = tmp_path / "a" / ".index.db"
    index.unlink()
    if damage is not None:
        index.write_bytes(damage)
    assert store.retrieve(ref.artifact_id) == "x" * 2_000
    with pytest.raises(ArtifactError, match="the session's artifacts would take"):
        ArtifactStore(tmp_path / "a", max_session_bytes=3_000).store("s", "x" * 2_000, "t")


def test_what_a_killed_writer_entered_counts_until_it_expires(tmp_path: Path) -> None:
    """Its file was never written; then it makes room, and what it left is gone."""
    clock = Clock()
    store = ArtifactStore(tmp_path / "a", max_session_bytes=6_000, clock=clock)
    store.store("s", "x" * 4_000, "t", ttl_s=60)
    (folder,) = folders(tmp_path / "a")
    (file,) = folder.iterdir()
    file.rename(folder / f".tmp-{file.name}")  # as if it had been killed before the renaming
    with pytest.raises(ArtifactError, match="the session's artifacts would take"):
        store.store("s", "x" * 4_000, "t")
    clock.now += 100
    store.store("s", "x" * 4_000, "t")
    assert [path.name[:4] for path in folder.iterdir()] == ["art_"]


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1/0", "postgresql://nobody@127.0.0.1:1/nothing"]
)
def test_a_server_that_is_away_stops_no_start(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged then, and an ArtifactError at each use."""
    pytest.importorskip("redis")
    pytest.importorskip("asyncpg")
    store = ArtifactStore(url)
    assert "the artifact store cannot be used yet" in caplog.text
    for use in (
        lambda: store.store("s", "content", "t"),
        lambda: store.retrieve("art_0000000000000000"),
        lambda: store.get_ref("art_0000000000000000", "s"),
        lambda: store.cleanup_session("s"),
        store.cleanup_expired,
    ):
        with pytest.raises(ArtifactError):
            use()


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "a")
    for number in range(20):
        ref = store.store(f"s-{number}", "content", "t")
        store.retrieve(ref.artifact_id)
        store.cleanup_session(f"s-{number}")
    assert list_open_files(tmp_path) == []
    assert folders(tmp_path / "a") == []


def test_a_place_is_a_path_a_url_or_a_backend(tmp_path: Path) -> None:
    assert isinstance(open_backend(tmp_path / "a"), DirectoryBackend)
    assert isinstance(open_backend(str(tmp_path / "b")), DirectoryBackend)
    assert isinstance(open_backend(f"file://{tmp_path}/c"), DirectoryBackend)
    assert isinstance(open_backend(f"local://{tmp_path}/c"), DirectoryBackend), (
        "fsspec would follow links there"
    )
    assert isinstance(open_backend("memory://here"), FsspecBackend)
    assert isinstance(open_backend("redis://localhost:1/0"), RedisBackend)
    made = DirectoryBackend(tmp_path / "a")
    assert open_backend(made) is made
    assert default_directory().name == f"edictum-artifacts-{os.getuid()}"
    with pytest.raises(EdictumConfigError, match="cannot be kept at"):
        open_backend("nosuchthing://x")


# --- The reader -----------------------------------------------------------------------------------


@pytest.fixture
def read(store: ArtifactStore) -> Callable[..., dict[str, Any]]:
    return make_reader(store, "s")


def fits(answer: dict[str, Any]) -> bool:
    return (
        len(outcome_to_model_content(ToolExecutionResult("c", "read_artifact", answer, 0)))
        <= TOOL_MESSAGE_MAX_CHARS
    )


def test_a_text_can_be_read_from_one_end_to_the_other(
    store: ArtifactStore, read: Callable[..., dict[str, Any]]
) -> None:
    """Each answer fits a message, also when every character is escaped."""
    for text in (BIG, "ü" * 30_000, "\0\\\"'" * 8_000, "😀" * 9_000):
        artifact = store.store("s", text, "t").artifact_id
        got, offset = "", 0
        while offset is not None:
            answer = read(artifact, offset=offset, limit=1_000_000)
            assert fits(answer)
            got += answer["content"]
            offset = answer.get("next_offset")
        assert got == text


def test_head_and_tail_are_lines(store: ArtifactStore, read: Callable[..., dict[str, Any]]) -> None:
    artifact = store.store("s", BIG, "t").artifact_id
    assert read(artifact, head=2)["content"] == "line 0: some text\nline 1: some text"
    assert read(artifact, tail=1)["content"] == "line 4999: some text"
    assert read(artifact, tail=0)["content"] == read(artifact, head=0)["content"] == ""
    for answer in (read(artifact, head=100_000), read(artifact, tail=100_000)):
        assert fits(answer)
        assert answer["truncated"]
    assert read(artifact, tail=100_000)["content"].endswith("line 4999: some text")


def test_grep_finds_lines_with_their_numbers_and_places(
    store: ArtifactStore, read: Callable[..., dict[str, Any]]
) -> None:
    artifact = store.store("s", BIG, "t").artifact_id
    answer = read(artifact, grep=r"^line 42\d\d:")
    assert answer["total_matches"] == 100
    assert len(answer["matches"]) == 50
    assert fits(answer)
    first = answer["matches"][0]
    assert (first["line"], first["text"]) == (4_201, "line 4200: some text")
    assert read(artifact, offset=first["offset"], limit=9)["content"] == "line 4200"
    assert read(artifact, grep="nothing like it")["matches"] == []


def test_grep_shows_the_match_in_a_long_line_and_takes_linear_time(
    store: ArtifactStore, read: Callable[..., dict[str, Any]]
) -> None:
    artifact = store.store("s", "a" * 200_000 + "needle" + "b" * 200_000, "t").artifact_id
    (match,) = read(artifact, grep="needle")["matches"]
    assert "needle" in match["text"]
    assert read(artifact, grep="(a+)+$")["total_matches"] == 0


def test_json_pointers(store: ArtifactStore, read: Callable[..., dict[str, Any]]) -> None:
    value = {"items": [{"name": f"n{n}"} for n in range(3_000)], "a/b": {"m~n": 1}, "": 0}
    artifact = store.store("s", json.dumps(value), "t").artifact_id
    assert read(artifact, pointer="/items/2999/name")["value"] == "n2999"
    assert read(artifact, pointer="/a~1b/m~0n")["value"] == 1
    assert read(artifact, pointer="/")["value"] == 0
    for pointer, wanted in (("", "object"), ("/items", "list")):
        answer = read(artifact, pointer=pointer)
        assert fits(answer)
        assert (answer["type"], answer["truncated"]) == (wanted, True)
    for wrong in (
        "items",
        "/nothing",
        "/items/3000",
        "/items/-1",
        "/items/x",
        "/items/0/name/deeper",
    ):
        assert "error" in read(artifact, pointer=wrong)
    with pytest.raises(LookupError, match="looks into a int"):
        resolve_pointer(1, "/x")


def test_what_cannot_be_read_is_said(
    store: ArtifactStore, read: Callable[..., dict[str, Any]]
) -> None:
    """An unknown id, another session's artifact, a pattern that is none, a pointer into a text."""
    mine, theirs = (
        store.store("s", BIG, "t").artifact_id,
        store.store("other", BIG, "t").artifact_id,
    )
    for answer in (
        read("art_0000000000000000"),
        read("/etc/passwd"),
        read(theirs),
        read(mine, grep="(a"),
        read(mine, pointer="/a"),
        read(None),
    ):
        assert isinstance(answer["error"], str)
        assert fits(answer)


async def test_the_reader_is_a_tool(
    store: ArtifactStore, read: Callable[..., dict[str, Any]]
) -> None:
    """Governed like any other; what it cannot read is its failure."""
    guard = Edictum(tools={"read_artifact": {"side_effect": "read"}})
    artifact = store.store("s", BIG, "t").artifact_id
    outcome = await guard.dispatch("read_artifact", {"artifact_id": artifact, "head": 1}, read)
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.output["content"] == "line 0: some text"
    assert isinstance(
        await guard.dispatch("read_artifact", {"artifact_id": "art_x"}, read), ToolFailure
    )
    assert read.__name__ == "read_artifact"


def test_ten_megabytes(store: ArtifactStore, read: Callable[..., dict[str, Any]]) -> None:
    artifact = store.store("s", {"rows": ["x" * 100] * 100_000}, "t").artifact_id
    assert read(artifact, pointer="/rows/99999")["value"] == "x" * 100
    assert fits(read(artifact, offset=5_000_000, limit=10_000_000))
