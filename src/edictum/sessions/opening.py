"""From a URL to a ledger."""

from __future__ import annotations

from typing import Any, cast

from edictum.errors import EdictumConfigError
from edictum.sessions.ledger import Ledger
from edictum.sessions.memory import MemoryLedger
from edictum.sessions.storage import StorageBackend, StorageLedger, is_storage

VERBS = ("reserve", "settle", "renew", "snapshot", "reset")


def open(url: str) -> Ledger:
    """The ledger that a URL names: ``memory:``."""
    scheme = url.partition(":")[0]
    if scheme == "memory":
        return MemoryLedger()
    raise EdictumConfigError(f"No session store for {scheme + ':'!r} in this version.", hint="Use 'memory:', or pass a Ledger object.")


def as_ledger(backend: Any) -> Ledger:
    """A ledger from whatever a guard was given: nothing, a URL, a ledger, or an older four-verb storage."""
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
