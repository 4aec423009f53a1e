"""The one ledger in front of every store outside this process: it batches, waits for a bounded time, and fails closed.

A store does the counting; this file decides when to ask it and what follows when it does not answer.

* One thread per process and store talks to it, so the same guard serves any number of event loops and threads. Operations that
  wait while it talks go out together, as one batch.
* A caller waits ``wait_s`` at most and then gets a ``BackendError`` that names the store; the guard denies the call.
* A batch that failed is sent again, as it was, until it is through. Stores know batches and calls again, so this changes nothing
  twice. That is what keeps limits true when an answer is lost: a call that ran is counted, if late.
* After ``STRIKES`` failures in a row, or one answer that took too long, the circuit is open: calls are refused at once, except
  settlements, which are kept. The batch that is being sent again is the probe that closes it.
* A slot that was granted to a caller who had stopped waiting is given back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Generator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from edictum.core._draft import record
from edictum.core.decide import describe
from edictum.core.limits import Counters, Grant, Reservation, SessionSnapshot, Settlement
from edictum.errors import BackendError, EdictumConfigError

logger = logging.getLogger("edictum")

MAX_BATCH = 256
STRIKES = 3
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.5
DEFAULT_WAIT_S = 2.0
DEFAULT_LEASE_S = 60.0

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
    """Operations sent as one. A batch that is sent again has the same number, and so has each operation."""

    number: int
    ops: Sequence[Op]


class Store(Protocol):
    """Where a ledger's numbers live. Only one thread calls it."""

    name: str

    def execute(self, batch: Batch, /) -> list[Any]:
        """One answer per operation, or an exception in its place. Connects when it must.

        Raises ``Unavailable`` when the batch may be sent again, anything else when the store refuses the batch as it is.
        """
        ...

    def close(self) -> None: ...

    def forget(self) -> None:
        """This process is a fork: let go of the connection without a word, it belongs to the parent."""
        ...


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
    def kept(self) -> bool:
        """Whether it must get through even when nobody waits: else a call that ran would not be counted."""
        return self.kind == "settle"


class Pending:
    """An operation that was sent; awaiting it gives the answer, in any event loop."""

    __slots__ = ("_op", "_owner")

    def __init__(self, owner: StoreLedger, op: Op) -> None:
        self._owner = owner
        self._op = op

    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait().__await__()

    async def _wait(self) -> Any:
        op, owner = self._op, self._owner
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        op.wake = (loop, future)
        if op.answer is NO_ANSWER:  # else it came between sending and waiting
            timer = loop.call_later(owner.wait_s, _wake, future)
            try:
                await future
            finally:
                timer.cancel()
                given_up = op.abandon()
            if given_up and op.answer is NO_ANSWER:
                raise owner.too_slow()
            while op.answer is NO_ANSWER:  # noqa: ASYNC110 - the other side has claimed it, and is about to set it
                await asyncio.sleep(0)
        if isinstance(op.answer, Exception):
            raise op.answer
        return op.answer


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _wake_all(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        _wake(future)


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


class Courier:
    """The thread that carries operations to a store and answers back."""

    def __init__(self, store: Store, circuit: Circuit, max_batch: int) -> None:
        self.store = store
        self._max_batch = max_batch
        self.circuit = circuit
        self._batches = 0
        self.renew_after_fork()
        _couriers.add(self)

    def renew_after_fork(self) -> None:
        self._inbox: queue.SimpleQueue[Op | None] = queue.SimpleQueue()
        self._backlog: deque[Op] = deque()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._number = 0
        self.circuit.forget()

    def send(self, op: Op) -> None:
        with self._lock:  # numbers go out in their order: a store tells a repetition by it
            if self._stopping.is_set():
                raise BackendError(f"The session store {self.store.name} is closed.")
            self._number += 1
            op.number = self._number
            self._inbox.put(op)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"edictum-{self.store.name}", daemon=True)
                self._thread.start()

    def gave_up(self, why: str) -> None:
        """Somebody has waited too long: open the circuit, and send what will close it when it is answered."""
        if self.circuit.open(why):
            self.send(Op("ping", None))

    def stop(self, wait_s: float) -> None:
        """See what was sent through, for a bounded time, then close the store."""
        with self._lock:
            thread, self._thread = self._thread, None
            already = self._stopping.is_set()
            self._stopping.set()
        if thread is not None:
            self._inbox.put(None)
            thread.join(wait_s)
        elif not already:
            self.store.close()

    def _run(self) -> None:
        while batch := self._take():
            self._deliver(batch)
        self.store.close()

    def _take(self) -> list[Op]:
        """What waits now; an empty list is the end."""
        ops: list[Op] = []
        while self._backlog and len(ops) < self._max_batch:
            ops.append(self._backlog.popleft())
        while not ops:
            first = self._inbox.get()
            if first is None:
                return []
            if first.kept or not first.abandoned:
                ops.append(first)
        self._take_more(ops)
        return ops

    def _take_more(self, ops: list[Op]) -> None:
        try:
            while len(ops) < self._max_batch:
                op = self._inbox.get_nowait()
                if op is None:
                    self._inbox.put(None)  # the end, once these are through
                    return
                if op.kept or not op.abandoned:
                    ops.append(op)
        except queue.Empty:
            return

    def _deliver(self, ops: list[Op]) -> None:
        self._batches += 1
        batch, strikes = Batch(self._batches, ops), 0
        while True:
            try:
                answers = self.store.execute(batch)
                if len(answers) != len(ops):
                    raise Unavailable(f"it gave {len(answers)} answers to {len(ops)} questions")
                break
            except Unavailable as exc:
                strikes += 1
                self._failed(ops, exc, strikes)
                if self._stopping.wait(_pause_s(strikes)):
                    return self._lost(ops)
            except Exception as exc:
                if len(ops) > 1:  # one bad operation must not fail its neighbours
                    for op in ops:
                        self._deliver([op])
                    return None
                answers = [BackendError(f"The session store {self.store.name} refused: {describe(exc)}")]
                break
        self.circuit.close(self.store.name)
        self._hand_over(ops, answers)
        return None

    def _failed(self, ops: list[Op], exc: Unavailable, strikes: int) -> None:
        """A short outage is waited out; a longer one opens the circuit and is told to everybody who waits."""
        if strikes < STRIKES and not isinstance(exc, Refused):
            return
        why = f"The session store {self.store.name} could not be asked: {describe(exc)}"
        self.circuit.open(why)
        while not self._inbox.empty():
            op = self._inbox.get()
            if op is None:
                self._inbox.put(None)
                break
            self._backlog.append(op)
        hint = BackendError(why) if not isinstance(exc, Refused) else EdictumConfigError(why)
        for op in [*ops, *self._backlog]:
            self._answer(op, hint)
        self._backlog = deque(op for op in self._backlog if op.kept)

    @staticmethod
    def _answer(op: Op, answer: Any) -> None:
        """Tell the one who waits, who will then have stopped waiting: an answer that comes later is for nobody."""
        if op.claim():
            op.abandoned = True
            op.answer = answer
            _tell([op])

    def _lost(self, ops: list[Op]) -> None:
        lost = sum(op.kept for op in [*ops, *self._backlog])
        if lost:
            logger.error("The session store %s was closed with %d calls not counted.", self.store.name, lost)

    def _hand_over(self, ops: list[Op], answers: Sequence[Any]) -> None:
        waiting = []
        for op, answer in zip(ops, answers, strict=True):
            if op.claim():
                op.answer = answer
                waiting.append(op)
            else:
                self._give_back(op, answer)
        _tell(waiting)

    def _give_back(self, op: Op, answer: Any) -> None:
        """A slot for a caller who has gone: its tool did not run."""
        if op.kind == "reserve" and isinstance(answer, Grant) and answer.granted and op.step.hold:
            step: Reservation = op.step
            release = Settlement(step.session_id, step.call_id, step.scopes, step.limits, "release", parents=step.parents)
            self._backlog.append(Op("settle", release))
            self._inbox.put(Op("ping", None))


def _pause_s(strikes: int) -> float:
    """A connection that was merely old is replaced at once; a server that is gone is not hammered."""
    return 0.0 if strikes == 1 else min(FIRST_PAUSE_S * 2.0 ** min(strikes, 20), LONGEST_PAUSE_S)


def _tell(ops: list[Op]) -> None:
    """Wake who waits for these, each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for op in ops:
        if op.wake is not None:
            by_loop.setdefault(op.wake[0], []).append(op.wake[1])
    for loop, futures in by_loop.items():
        try:
            loop.call_soon_threadsafe(_wake_all, futures)
        except RuntimeError:  # the loop is closed, and its callers with it; leases bring their slots back
            logger.warning("An event loop was closed while %d session operations were under way.", len(futures))


_couriers: weakref.WeakSet[Courier] = weakref.WeakSet()


def _after_fork() -> None:
    for courier in _couriers:
        courier.renew_after_fork()
        courier.store.forget()


os.register_at_fork(after_in_child=_after_fork)


class StoreLedger:
    """A Ledger on a store outside this process."""

    def __init__(
        self, store: Store, *, wait_s: float = DEFAULT_WAIT_S, lease_s: float | None = DEFAULT_LEASE_S, max_batch: int = MAX_BATCH
    ) -> None:
        self.name = store.name
        self.wait_s = wait_s
        self.default_lease_s = lease_s
        self._circuit = Circuit()
        self._courier = Courier(store, self._circuit, max_batch)
        self._finalizer = weakref.finalize(self, self._courier.stop, wait_s)

    def _send(self, kind: Kind, step: Any) -> Pending:
        if self._circuit.why_open is not None and kind != "settle":
            raise BackendError(self._circuit.why_open)
        op = Op(kind, step)
        self._courier.send(op)
        return Pending(self, op)

    def too_slow(self) -> BackendError:
        why = f"The session store {self.name} did not answer within {self.wait_s:g} s."
        self._courier.gave_up(why)
        return BackendError(why)

    async def reserve(self, reservation: Reservation) -> Grant:
        grant: Grant = await self._send("reserve", reservation)
        return grant

    def settle(self, settlement: Settlement) -> Awaitable[Counters]:
        """Sent when called, not when awaited: a caller whose event loop is going away still has its call counted."""
        return self._send("settle", settlement)

    async def renew(self, session_id: str, call_id: str, lease_s: float) -> bool:
        renewed: bool = await self._send("renew", Renewal(session_id, call_id, lease_s))
        return renewed

    async def snapshot(self, session_id: str) -> SessionSnapshot:
        snapshot: SessionSnapshot = await self._send("snapshot", session_id)
        return snapshot

    async def reset(self, session_id: str) -> None:
        await self._send("reset", session_id)

    async def sessions(self, limit: int = 100) -> list[SessionSnapshot]:
        """Sessions with their counters, the most recently used first where the store keeps an order."""
        listed: list[SessionSnapshot] = await self._send("sessions", limit)
        return listed

    async def ping(self) -> None:
        """Whether the store can be used: returns, or raises what is wrong."""
        await self._send("ping", None)

    async def close(self) -> None:
        """See settlements through, for a bounded time, and disconnect."""
        await asyncio.get_running_loop().run_in_executor(None, self._finalizer)
