"""Forks: the one registry of what must happen around a fork and in the child.

``protect`` makes a fork wait, for a bounded time, until the locks of all registered objects are
free, so that what they guard is consistent in the child. A lock that cannot be had, because the
forking code holds it itself or its holder takes too long, is replaced in the child: a fork never
hangs.

``call_in_child`` runs a method in the child, for what belongs to the parent: threads, connections,
event loops, worker processes, ids. The methods run in the order of their registration, after the
locks are free.

Both hold their objects weakly.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any, Protocol, cast

LOCK_WAIT_S = 1.0  # for all locks together


class Locked(Protocol):
    """An object with a lock. The lock is read from the attribute each time; its holder takes no
    other registered lock.
    """

    _lock: threading.Lock


class Fork:
    """A fork under way: the locks that were taken for it, and whether the collector was on."""

    def __init__(self) -> None:
        self.taken: list[threading.Lock] = []
        self.collecting = gc.isenabled()

    def release(self) -> None:
        for lock in self.taken:
            lock.release()


_protected: dict[int, weakref.ref[Any]] = {}
# An object and its method, apart: a reference to the bound method would keep the object alive.
_resets: dict[int, tuple[weakref.ref[Any], Callable[[Any], None]]] = {}
# By thread; several for one thread, as a signal handler may fork during a fork.
_under_way: dict[int, list[Fork]] = {}


def protect(owner: Locked) -> None:
    """Take this object's lock around forks, for as long as the object lives."""
    key = id(owner)
    _protected[key] = weakref.ref(owner, lambda _: _protected.pop(key, None))


def call_in_child(method: Callable[[], None]) -> None:
    """Call a bound method in every forked child while its object lives. One per object."""
    bound = cast("MethodType", method)
    key = id(bound.__self__)
    owner = weakref.ref(bound.__self__, lambda _: _resets.pop(key, None))
    _resets[key] = (owner, bound.__func__)


def _owners() -> list[Locked]:
    return [owner for known in list(_protected.values()) if (owner := known()) is not None]


def _before() -> None:
    fork = Fork()
    _under_way.setdefault(threading.get_ident(), []).append(fork)
    # A call that is collected as garbage is counted, and would wait for a lock of this thread.
    gc.disable()
    until = time.monotonic() + LOCK_WAIT_S
    for owner in _owners():
        lock = owner._lock
        if lock.acquire(timeout=max(0.0, until - time.monotonic())):
            fork.taken.append(lock)


def _in_parent() -> None:
    forks = _under_way.get(threading.get_ident())
    if forks:
        fork = forks.pop()
        fork.release()
        if fork.collecting:
            gc.enable()
    if not forks:
        _under_way.pop(threading.get_ident(), None)


def _in_child() -> None:
    # even if a thread that is not in the child had turned the collector off for its own fork
    collecting = any(fork.collecting for forks in _under_way.values() for fork in forks)
    mine = _under_way.get(threading.get_ident())
    fork = mine[-1] if mine else Fork()
    fork.release()
    for owner in _owners():
        if all(owner._lock is not lock for lock in fork.taken):
            owner._lock = threading.Lock()
    _under_way.clear()
    for reference, function in list(_resets.values()):
        if (resetting := reference()) is not None:
            function(resetting)
    if collecting:
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
