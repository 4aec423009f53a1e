"""Time and ids come through a port, so that tests own them."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable
from typing import Protocol

from edictum.execution.forks import call_in_child


class Clock(Protocol):
    """Wall-clock time in seconds since the epoch, and ids that are unique across processes."""

    def now(self) -> float: ...

    def new_id(self) -> str: ...


class SystemClock:
    """The machine's time. An id is a random part per process and a number: unique, ordered, and 20
    times cheaper than a uuid4.
    """

    def __init__(self) -> None:
        self._renew()
        call_in_child(self._renew)

    def _renew(self) -> None:
        begin = f"{uuid.uuid4().hex[:20]}-".__add__
        self.new_id: Callable[[], str] = map(begin, map(str, itertools.count(1))).__next__

    now = staticmethod(time.time)


SYSTEM = SystemClock()
