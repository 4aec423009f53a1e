"""Open the ledger that a URL names."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import EllipsisType
from typing import Any, cast

from edictum._optional import name_extra
from edictum.core._records import record
from edictum.core.durations import parse_duration
from edictum.errors import BackendError, EdictumConfigError
from edictum.execution.portal import PORTAL
from edictum.sessions._addresses import Credentials, read_from_file
from edictum.sessions._four_verb_ledger import StorageBackend, StorageLedger, is_storage
from edictum.sessions._migration import Migration
from edictum.sessions.ledger import Ledger
from edictum.sessions.memory import SESSION_TTL_S, MemoryLedger

VERBS = ("reserve", "settle", "renew", "snapshot", "reset")
ENTRY_POINTS = "edictum.ledgers"


@record
class Options:
    """How to use a store. None for ``lease_s`` or ``wait_s`` means the store's own default, for
    ``ttl_s`` that sessions are kept forever.
    """

    lease_s: float | None = None
    ttl_s: float | None = SESSION_TTL_S
    wait_s: float | None = None
    allow_eviction: bool = False
    replicas: int = 0
    migrates: bool = False
    credentials: Credentials | None = None


def open(  # noqa: A001  # sessions.open(url) is the published name
    url: str,
    *,
    lease_s: float | None = None,
    ttl_s: float | EllipsisType | None = ...,
    wait_s: float | None = None,
    credentials: Credentials | None = None,
) -> Ledger:
    """Return the ledger that a URL names.

    ``memory:``, ``sqlite:///file.db`` (four slashes for an absolute path), ``redis://``,
    ``rediss://``, ``valkey://``, ``valkeys://``, ``postgresql://``, and every scheme that an
    installed package registers as an entry point in the group ``edictum.ledgers``.

    ``lease_s`` is how long the slots of a crashed worker stay taken, ``ttl_s`` how long an unused
    session is kept (default: a day; None: forever), ``wait_s`` how long a call waits for the store
    (default 2) before it is denied. All three may stand in the URL's query as ``lease``, ``ttl``
    (``none`` for forever) and ``wait``. ``credentials`` is a function, ordinary or ``async``, that
    returns a password or ``(user, password)``; it is called for each new connection to a server. So
    is the file read that ``?password_file=`` names. A store that does not answer now is tried again
    by the first call; one that answers and is not set up as it must be is refused here.
    """
    scheme = read_scheme(url)
    stated = {"lease_s": lease_s, "wait_s": wait_s}
    given: dict[str, Any] = {name: it for name, it in stated.items() if it is not None}
    if ttl_s is not ...:
        given["ttl_s"] = ttl_s
    plain, options = take_options(url, credentials, **given)
    make = SCHEMES.get(scheme)
    if make is not None:
        return make(plain, options)
    from importlib.metadata import entry_points  # slow to import

    for entry in entry_points(group=ENTRY_POINTS, name=scheme):
        return cast(
            "Ledger",
            entry.load()(url, lease_s=options.lease_s, ttl_s=options.ttl_s, wait_s=options.wait_s),
        )
    hint = (
        f"Known: {', '.join(SCHEMES)}, and entry points in the group {ENTRY_POINTS!r}. Or pass a"
        " Ledger object."
    )
    raise EdictumConfigError(f"No session store for {(scheme or url)!r}.", hint=hint)


def migrate(
    url: str,
    *,
    dry_run: bool = False,
    grant_to: str | None = None,
    credentials: Credentials | None = None,
) -> Migration:
    """Bring a session store to the version of this library; return the Migration.

    An empty store is set up, as its first use would do. ``dry_run`` changes nothing: print the
    returned Migration for the statements, and for the rights that a program needs which does not
    own the store. ``grant_to`` is a role that is given these rights. Programs of an older version
    that the new one does not serve are refused from then on. Only PostgreSQL has had other versions
    so far.
    """
    return migrate_store(
        url, "session store", _postgres_store, credentials, dry_run=dry_run, grant_to=grant_to
    )


def migrate_store(
    url: str,
    kind: str,
    make: Callable[[str, Options], Any],
    credentials: Credentials | None,
    *,
    dry_run: bool,
    grant_to: str | None,
) -> Migration:
    """Bring a store of some kind to the version of this library; ``make`` makes it on PostgreSQL,
    the only one that has had other versions so far, and that programs may use without owning it.
    """
    if read_scheme(url) not in ("postgresql", "postgres"):
        raise EdictumConfigError(
            f"Only a PostgreSQL {kind} can be migrated.",
            hint="Other stores have had only one version so far: there is nothing to migrate.",
        )
    store = make(*take_options(url, credentials))
    done: Migration = PORTAL.run(store.migrate(dry_run=dry_run, grant_to=grant_to))
    return done


def read_scheme(url: Any) -> str:
    if not isinstance(url, str):
        raise EdictumConfigError(f"The URL of a store is a {type(url).__name__}, not text.")
    return url.partition(":")[0].lower()


QUERY = {"lease": "lease_s", "ttl": "ttl_s", "wait": "wait_s"}
FOR_GOOD = ("ttl", "none")
SWITCHES = {"allow_eviction": "allow_eviction", "migrate": "migrates"}


def take_options(
    url: str, credentials: Credentials | None = None, **given: Any
) -> tuple[str, Options]:
    """Split our own query options from a URL; a keyword argument takes precedence over the URL."""
    from urllib.parse import parse_qsl, urlencode

    bare, _, query = url.partition("?")
    rest: list[tuple[str, str]] = []
    found: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if (option := _read_option(url, name, value)) is None:
            rest.append((name, value))
        else:
            found |= option
    for name, value in given.items():
        found[name] = None if value is None else _seconds(name, value)
    if credentials is not None:
        found["credentials"] = credentials
    return (f"{bare}?{urlencode(rest)}" if rest else bare), Options(**found)


def _read_option(url: str, name: str, value: str) -> dict[str, Any] | None:
    """Return one of our own options, under its name in ``Options``; None for any other."""
    if name in QUERY:
        return {QUERY[name]: None if (name, value) == FOR_GOOD else _seconds(name, value)}
    if name in SWITCHES:
        if value not in ("0", "1"):
            raise EdictumConfigError(
                f"The URL of a store: {name} is {value!r}.", hint="Use 1 or 0."
            )
        return {SWITCHES[name]: value == "1"}
    if name == "replicas" and url.lower().startswith(("redis", "valkey")):
        return {"replicas": _count_replicas(value)}
    return {"credentials": read_from_file(value)} if name == "password_file" else None


def _seconds(name: str, value: Any) -> float:
    """Return a duration in seconds: from "30s", or from a number or its text."""
    seconds = parse_duration(value) if isinstance(value, str) else None
    if seconds is None:
        try:
            seconds = float(value)
        except (TypeError, ValueError):
            seconds = 0.0
    if not 0 < seconds < float("inf"):
        hint = "Use seconds, more than 0, or a number with a unit: 500ms, 30s, 5m, 2h, 1d."
        raise EdictumConfigError(f"The URL of a store: {name} is {value!r}.", hint=hint)
    return seconds


def _count_replicas(value: str) -> int:
    if not value.isdecimal():
        hint = "Use the number of replicas that must have a call before it is answered: replicas=1."
        raise EdictumConfigError(f"Session store: replicas is {value!r}.", hint=hint)
    return int(value)


def _memory(url: str, options: Options) -> Ledger:
    _refuse_query(url)
    return MemoryLedger(lease_s=options.lease_s, ttl_s=options.ttl_s)


def _sqlite(url: str, options: Options) -> Ledger:
    path = read_sqlite_path(url)
    return _with_store(_import_sqlite().SqliteStore(path, ttl_s=options.ttl_s), options)


def read_sqlite_path(url: str) -> str:
    """Return the path that a URL names, on a system where it can be used."""
    _import_sqlite()
    _refuse_query(url)
    path = url.removeprefix("sqlite:///")
    if not path or path == url:
        raise EdictumConfigError(
            f"{url!r} does not name a file.",
            hint="Write sqlite:///sessions.db, or sqlite:////var/lib/app/sessions.db.",
        )
    return path


def check_store_exists(url: str) -> None:
    """Refuse a store that opening would create: there is nothing in it to look at."""
    scheme = read_scheme(url)
    if scheme == "memory":
        hint = "Pass the ledger itself, or the URL of a store that is kept."
        raise EdictumConfigError(
            "A store in memory cannot be opened by another program.", hint=hint
        )
    if scheme == "sqlite" and not Path(path := read_sqlite_path(url.partition("?")[0])).exists():
        hint = "Pass the URL that the guard was given as its session store."
        raise EdictumConfigError(f"The store {path!r} does not exist.", hint=hint)


def _import_sqlite() -> Any:
    problem = "A SQLite store needs a POSIX system with sqlite3."
    return import_store("edictum.sessions._sqlite", problem, "Use memory: or a server.")


def _redis(url: str, options: Options) -> Ledger:
    store = _import_server("redis").RedisStore
    return _with_store(store(url, ttl_s=options.ttl_s, **redis_options(options)), options)


def redis_options(options: Options) -> dict[str, Any]:
    """Return the options that all stores on Redis have."""
    return {
        "allow_eviction": options.allow_eviction,
        "credentials": options.credentials,
        "replicas": options.replicas,
    }


def _postgres(url: str, options: Options) -> Ledger:
    return _with_store(_postgres_store(url, options), options)


def _postgres_store(url: str, options: Options) -> Any:
    store = _import_server("postgres").PostgresStore
    more = {"credentials": options.credentials, "migrates": options.migrates}
    return store(url, ttl_s=options.ttl_s, **more)


def _refuse_query(url: str) -> None:
    """Refuse options that this store does not have."""
    unknown = url.partition("?")[2]
    if unknown:
        names = ", ".join(part.partition("=")[0] for part in unknown.split("&"))
        known = ", ".join(QUERY)
        raise EdictumConfigError(
            f"The store {url.partition('?')[0]} has no option {names}.",
            hint=f"It has {known}.",
        )


def _import_server(extra: str) -> Any:
    problem = f"The {extra} session store is not installed."
    return import_store(f"edictum.sessions._{extra}", problem, name_extra(extra))


def import_store(module: str, problem: str, hint: str) -> Any:
    """Import a store with optional dependencies; if one is missing, say how to get it."""
    try:
        return import_module(module)
    except ImportError as exc:
        raise EdictumConfigError(problem, hint=hint) from exc


def _with_store(store: Any, options: Options) -> Ledger:
    from edictum.sessions._batching import DEFAULT_WAIT_S
    from edictum.sessions._remote_ledger import DEFAULT_LEASE_S, RemoteLedger

    ledger = RemoteLedger(
        store, wait_s=options.wait_s or DEFAULT_WAIT_S, lease_s=options.lease_s or DEFAULT_LEASE_S
    )
    try:
        PORTAL.run(ledger.ping())
    except BackendError:  # it may come up later; the log says that calls are denied until then
        pass
    except EdictumConfigError:
        PORTAL.run(ledger.close())
        raise
    return ledger


SCHEMES: dict[str, Callable[[str, Options], Ledger]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "redis": _redis,
    "rediss": _redis,
    "valkey": _redis,
    "valkeys": _redis,
    **dict.fromkeys([f"{it}+sentinel" for it in ("redis", "rediss", "valkey", "valkeys")], _redis),
    "postgresql": _postgres,
    "postgres": _postgres,
}


def as_ledger(backend: Any) -> Ledger:
    """Return a ledger for what a guard was given: None, a URL, a ledger, or a StorageBackend."""
    if backend is None:
        return MemoryLedger()
    if isinstance(backend, str):
        return open(backend)
    if all(callable(getattr(backend, verb, None)) for verb in VERBS):
        return cast("Ledger", backend)
    if is_storage(backend):
        return StorageLedger(cast("StorageBackend", backend))
    raise EdictumConfigError(
        f"backend is {type(backend).__name__}, which is neither a Ledger nor a StorageBackend.",
        hint=f"A Ledger has {', '.join(VERBS)}; a StorageBackend has get, set, delete, increment.",
    )
