"""Locks and forks: a child process has one thread, and nobody there would ever let go of a lock
that another thread held.

A fork waits, for a bounded time, until the locks of these objects are free, so that what they guard
is whole in the child. Which lock could not be had, because the code that forks holds it itself or
its holder takes too long, is replaced in the child: a fork never hangs.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from typing import Any, Protocol

PATIENCE_S = 1.0  # for all locks together


class Locked(Protocol):
    """An object that takes its lock by its attribute each time. While it holds it, it takes no lock
    of another such object.
    """

    _lock: threading.Lock


class Fork:
    """A fork under way: the locks that were taken for it, and whether garbage was collected until
    then.
    """

    def __init__(self) -> None:
        self.taken: list[threading.Lock] = []
        self.collecting = gc.isenabled()

    def end(self) -> None:
        for lock in self.taken:
            lock.release()
        if self.collecting:
            gc.enable()


_known: dict[int, weakref.ref[Any]] = {}
_under_way: dict[
    int, list[Fork]
] = {}  # by thread; several, as a signal handler may fork during a fork


def protect(owner: Locked) -> None:
    """Mind this object's lock in forks, for as long as the object lives."""
    key = id(owner)
    _known[key] = weakref.ref(owner, lambda _: _known.pop(key, None))


def _owners() -> list[Locked]:
    return [owner for known in list(_known.values()) if (owner := known()) is not None]


def _before() -> None:
    fork = Fork()
    _under_way.setdefault(threading.get_ident(), []).append(fork)
    # a call that is collected as garbage is counted, and would wait for a lock that this thread has
    gc.disable()
    until = time.monotonic() + PATIENCE_S
    for owner in _owners():
        lock = owner._lock
        if lock.acquire(timeout=max(0.0, until - time.monotonic())):
            fork.taken.append(lock)


def _in_parent() -> None:
    forks = _under_way.get(threading.get_ident())
    if forks:
        forks.pop().end()
    if not forks:
        _under_way.pop(threading.get_ident(), None)


def _in_child() -> None:
    mine = _under_way.get(threading.get_ident())
    taken = mine[-1].taken if mine else []
    collecting = any(
        fork.collecting for forks in _under_way.values() for fork in forks
    )  # also of threads that are not here
    _under_way.clear()
    for lock in taken:
        lock.release()
    for owner in _owners():
        if all(owner._lock is not lock for lock in taken):
            owner._lock = threading.Lock()
    if collecting:
        gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
