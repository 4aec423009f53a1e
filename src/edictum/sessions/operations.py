"""What is carried between a ledger and its store: operations, batches of them, and what both sides
may say about each other.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

from edictum.core._records import record

logger = logging.getLogger("edictum")

DEFAULT_WAIT_S = 2.0

Kind: TypeAlias = Literal["reserve", "settle", "renew", "snapshot", "reset", "sessions", "ping"]


class Unavailable(Exception):
    """The store could not be asked, or its answer was lost: the same batch may be sent again."""


class Refused(Unavailable):
    """The store must not be used as it is set up; the text says what to change."""


@record
class Renewal:
    session_id: str
    call_id: str
    lease_s: float


@record
class Batch:
    """Operations sent as one. A batch that is sent again has the same number, and so has each
    operation.
    """

    number: int
    ops: Sequence[Op]


class Store(Protocol):
    """Where a ledger's numbers live. Only one thread calls it.

    A store that can be asked from an event loop has a method ``on_loop()`` as well, which gives a
    ``LoopStore`` for one loop.
    """

    name: str

    def execute(self, batch: Batch, /) -> list[Any]:
        """One answer per operation, or an exception in its place. Connects when it must.

        Raises ``Unavailable`` when the batch may be sent again, anything else when the store
        refuses the batch as it is.
        """
        ...

    def close(self) -> None: ...

    def forget(self) -> None:
        """This process is a fork: let go of the connection without a word, it belongs to the
        parent.
        """
        ...


class LoopStore(Protocol):
    """A way to the same store for the coroutines of one event loop: it numbers its operations by
    itself, as another process would.
    """

    async def execute(self, batch: Batch, /) -> list[Any]:
        """As ``Store.execute``."""
        ...

    async def close(self) -> None: ...


NO_ANSWER = object()


class Op:
    """One operation on its way, and who waits for it."""

    __slots__ = ("_claim", "abandoned", "answer", "kind", "number", "step", "wake")

    def __init__(self, kind: Kind, step: Any) -> None:
        self.kind: Kind = kind
        self.step = step
        self.number = 0
        self.answer: Any = NO_ANSWER
        self.wake: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self.abandoned = False
        self._claim = threading.Lock()

    def claim(self) -> bool:
        """Answered or given up, never both: who claims it first decides."""
        return self._claim.acquire(blocking=False)

    def abandon(self) -> bool:
        """Stop waiting, unless the answer is there."""
        if self.claim():
            self.abandoned = True
        return self.abandoned

    @property
    def served(self) -> bool:
        """Whether somebody waited for the answer, and has it."""
        return self.answer is not NO_ANSWER and not self.abandoned

    @property
    def kept(self) -> bool:
        """Whether it must get through even when nobody waits: else a call that ran would not be
        counted.
        """
        return self.kind == "settle"


def wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _wake_all(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        wake(future)


def tell(ops: Sequence[Op], here: asyncio.AbstractEventLoop | None = None) -> None:
    """Wake who waits for these, each event loop once. ``here`` is the loop that runs this."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for op in ops:
        if op.wake is not None:
            by_loop.setdefault(op.wake[0], []).append(op.wake[1])
    for loop, futures in by_loop.items():
        if loop is here:
            _wake_all(futures)
            continue
        try:
            loop.call_soon_threadsafe(_wake_all, futures)
        except (
            RuntimeError
        ):  # the loop is closed, and its callers with it; leases bring their slots back
            logger.warning(
                "An event loop was closed while %d session operations were under way.", len(futures)
            )


class Circuit:
    """Closed while the store answers. Open, it knows why."""

    def __init__(self) -> None:
        self._why: str | None = None

    @property
    def why_open(self) -> str | None:
        return self._why

    def open(self, why: str) -> bool:
        """Whether it was closed until now."""
        was_closed = self._why is None
        if was_closed:
            logger.error("%s Calls are denied until it answers again.", why)
        self._why = why
        return was_closed

    def forget(self) -> None:
        self._why = None

    def close(self, name: str) -> None:
        if self._why is not None:
            logger.warning("The session store %s answers again.", name)
            self._why = None
