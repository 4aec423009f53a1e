"""Open the approval queue that a URL names, and set up its store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edictum._optional import name_extra
from edictum.approval.queue import ASKER_LEASE_S, ApprovalQueue, Notifier
from edictum.errors import BackendError, EdictumConfigError
from edictum.execution.portal import PORTAL
from edictum.sessions._addresses import Credentials
from edictum.sessions._batching import DEFAULT_WAIT_S, Store
from edictum.sessions._migration import Migration
from edictum.sessions._urls import (
    Options,
    import_store,
    migrate_store,
    read_scheme,
    read_sqlite_path,
    redis_options,
    take_options,
)


def open_approvals(
    url: str,
    *,
    credentials: Credentials | None = None,
    notify: Notifier | Sequence[Notifier] = (),
) -> ApprovalQueue:
    """Return the approval queue that a URL names.

    ``sqlite:///file.db`` (four slashes for an absolute path), ``redis://``, ``rediss://``,
    ``valkey://``, ``valkeys://``, each with ``+sentinel`` as well, and ``postgresql://``: the URLs
    of session stores. File, database or schema may be that of a session store.

    The options of a session store may stand in the query: ``lease`` is how long a process that asks
    may be silent until it counts as gone (default 30 s), ``ttl`` after how long an unchanged
    request is deleted (default a day), ``wait`` how long to wait for the store (default 2 s).
    ``credentials`` is a function that returns a password or ``(user, password)``. A store that does
    not answer now is tried again by the first call. ``notify``: notifiers of new requests, such as
    a ``Webhook``.
    """
    notifiers = _read_notifiers(notify)
    store, options = make_approval_store(url, credentials)
    queue = ApprovalQueue(
        store,
        lease_s=options.lease_s or ASKER_LEASE_S,
        wait_s=options.wait_s or DEFAULT_WAIT_S,
        notify=notifiers,
    )
    try:
        PORTAL.run(queue.check())
    except BackendError:  # it may come up later; until then calls that need approval are denied
        pass
    except EdictumConfigError:
        PORTAL.run(queue.close())
        raise
    return queue


def _read_notifiers(notify: Any) -> tuple[Notifier, ...]:
    notifiers = tuple(notify) if isinstance(notify, list | tuple) else (notify,)
    for notifier in notifiers:
        if not callable(getattr(notifier, "notify", None)):
            hint = "Pass Webhook(...), or an object with notify(request)."
            raise EdictumConfigError(f"notify is {type(notifier).__name__}.", hint=hint)
    return notifiers


def migrate_approvals(
    url: str,
    *,
    dry_run: bool = False,
    grant_to: str | None = None,
    credentials: Credentials | None = None,
) -> Migration:
    """Set up the tables of a queue on PostgreSQL, for programs without the right to do so. Returns
    the Migration.

    ``dry_run`` changes nothing: print the answer for the statements and the rights that a program
    needs which does not own the schema. ``grant_to`` is a role that is given these rights.
    """
    return migrate_store(
        url, "approval store", _make_postgres, credentials, dry_run=dry_run, grant_to=grant_to
    )


def make_approval_store(url: str, credentials: Credentials | None = None) -> tuple[Any, Options]:
    """Return the store that a URL names, and the options that stand in it."""
    scheme = read_scheme(url)
    make = APPROVAL_SCHEMES.get(scheme)
    if make is None:
        hint = f"Known: {', '.join(APPROVAL_SCHEMES)}. Or pass an approval backend."
        raise EdictumConfigError(f"No approval store for {(scheme or url)!r}.", hint=hint)
    plain, options = take_options(url, credentials)
    return make(plain, options), options


def _make_sqlite(url: str, options: Options) -> Store:
    path = read_sqlite_path(url)
    from edictum.approval._sqlite_queue import SqliteApprovalStore  # sqlite3 is slow to import

    return SqliteApprovalStore(path, ttl_s=options.ttl_s)


def _make_redis(url: str, options: Options) -> Store:
    make = _import_server("redis").RedisApprovalStore
    store: Store = make(url, ttl_s=options.ttl_s, **redis_options(options))
    return store


def _make_postgres(url: str, options: Options) -> Store:
    make = _import_server("postgres").PostgresApprovalStore
    more = {"credentials": options.credentials, "migrates": options.migrates}
    store: Store = make(url, ttl_s=options.ttl_s, **more)
    return store


def _import_server(extra: str) -> Any:
    problem = f"The {extra} approval store is not installed."
    module = f"edictum.approval._{extra}_queue"
    return import_store(module, problem, name_extra(extra))


_REDIS = ("redis", "rediss", "valkey", "valkeys")
APPROVAL_SCHEMES: dict[str, Callable[[str, Options], Any]] = {
    "sqlite": _make_sqlite,
    **dict.fromkeys(_REDIS, _make_redis),
    **dict.fromkeys([f"{it}+sentinel" for it in _REDIS], _make_redis),
    **dict.fromkeys(("postgresql", "postgres"), _make_postgres),
}
