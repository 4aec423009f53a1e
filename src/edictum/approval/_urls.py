"""Open the approval queue that a URL names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edictum.approval.queue import ASKER_LEASE_S, ApprovalQueue, Notifier
from edictum.errors import BackendError, EdictumConfigError
from edictum.execution.portal import PORTAL
from edictum.sessions._batching import DEFAULT_WAIT_S, Store
from edictum.sessions._urls import Options, read_scheme, read_sqlite_path, take_options


def open_approvals(url: str, *, notify: Notifier | Sequence[Notifier] = ()) -> ApprovalQueue:
    """Return the approval queue that a URL names: ``sqlite:///file.db``.

    The file may be that of a session store. The options of a session store may stand in its query:
    ``lease`` is how long a process that asks may be silent until it counts as gone (default 30 s),
    ``ttl`` after how long a request in which nothing changes is forgotten (default a day), ``wait``
    how long the store is waited for (default 2 s). A store that does not answer now is tried again
    by the first call. ``notify``: what tells people of new requests, such as a ``Webhook``.
    """
    notifiers = _read_notifiers(notify)
    scheme = read_scheme(url)
    make = APPROVAL_SCHEMES.get(scheme)
    if make is None:
        hint = f"Known: {', '.join(APPROVAL_SCHEMES)}. Or pass an approval backend."
        raise EdictumConfigError(f"No approval store for {(scheme or url)!r}.", hint=hint)
    plain, options = take_options(url, {})
    queue = ApprovalQueue(
        make(plain, options),
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


def _open_sqlite(url: str, options: Options) -> Store:
    path = read_sqlite_path(url)
    from edictum.approval._sqlite_queue import SqliteApprovalStore  # sqlite3 is slow to import

    return SqliteApprovalStore(path, ttl_s=options.ttl_s)


APPROVAL_SCHEMES: dict[str, Callable[[str, Options], Any]] = {"sqlite": _open_sqlite}
