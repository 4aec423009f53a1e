"""Batching: operations that wait at the same time go to a store together.

A ``BatchSender`` is a task in one event loop. It sends what waits as one batch, and sends a batch
whose answer was lost again, with the same numbers, until it is answered. A ``SenderPool`` has one
sender in a thread of its own, for callers without an event loop and for loops that ask rarely, and
one in each event loop that asks often, if the store can be asked from there. What an event loop
leaves unsent when it ends goes through the thread.

After ``STRIKES`` failures in a row, or when a caller has waited too long, the circuit opens: calls
are refused at once, except settlements, which are kept. The batch that is being sent again is the
probe that closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterable, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

from edictum._logs import (
    LEDGER_ANSWERS,
    LEDGER_LOOP_CLOSED,
    LEDGER_NOT_COUNTED,
    LEDGER_REPLACED,
    LEDGER_SENDING_FAILED,
    LEDGER_UNAVAILABLE,
    log,
)
from edictum.core._records import record
from edictum.core.decide import describe
from edictum.core.limits import Grant, Reservation, release_of
from edictum.errors import BackendError, EdictumConfigError
from edictum.execution.forks import call_in_child
from edictum.execution.portal import serves_threads
from edictum.execution.waiting import start_in_background

DEFAULT_WAIT_S = 2.0
MAX_BATCH = 256
STRIKES = 3
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.5
# An event loop that asks less often, such as one made for a single call, gets no connection.
OWN_CONNECTION_AFTER = 4
TIMER_SLICES = 4
NO_ANSWER = object()

OperationKind: TypeAlias = Literal[
    "reserve",
    "settle",
    "renew",
    "snapshot",
    "reset",
    "sessions",
    "ping",
    "approval",
    "approval end",
    "event",
    "closing event",
]
KEPT = frozenset({"settle", "approval end", "closing event"})


class Unavailable(Exception):
    """The store could not be asked, or its answer was lost: the same batch may be sent again."""


class Refused(Unavailable):
    """The store must not be used as it is set up; the text says what to change."""


@record
class StoredVersion:
    """The schema version by which a store was written, and the oldest version of programs that can
    read it.
    """

    written_by: int
    readable_since: int


def check_stored_version(
    name: str, found: StoredVersion, own: int, known: Collection[int], remedy: str
) -> None:
    """Refuse a store that this version cannot use; ``known`` are the versions that it can."""
    if found.written_by > own and found.readable_since > own:
        raise Refused(
            f"{name} was set up by a newer version of edictum (schema {found.written_by}, readable"
            f" since {found.readable_since}; this one is {own}). Upgrade this one."
        )
    if found.written_by < own and found.written_by not in known:
        raise Refused(
            f"{name} was set up by an unreleased version of edictum (schema {found.written_by}) and"
            f" cannot be read. {remedy}"
        )


class DataIdentity:
    """Notices that a server's data was deleted or replaced."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._known: object = NO_ANSWER

    def compare(self, found: object) -> None:
        """Log if the identity differs from the one that was found before."""
        before, self._known = self._known, found
        if before not in (NO_ANSWER, found):
            message = "What %s kept was deleted or replaced while it was in use."
            log(LEDGER_REPLACED, message, self._name, store=self._name)


@record
class Renewal:
    session_id: str
    call_id: str
    lease_s: float


@record
class Batch:
    """Operations sent as one. A repeated batch keeps its number, and so does each operation."""

    number: int
    ops: Sequence[Operation]


class Connection(Protocol):
    """A connection to the store for one event loop, made on first use."""

    async def execute(self, batch: Batch, /) -> list[Any]:
        """Return one answer, or an exception in its place, per operation.

        Raises ``Unavailable`` when the batch may be sent again, anything else when the store
        refuses the batch as it is.
        """
        ...

    async def close(self) -> None:
        """Disconnect. The next ``execute`` connects again."""
        ...

    def abandon(self) -> None:
        """Release a connection that belongs to the parent process, without using it."""
        ...


class Store(Protocol):
    """Keeps the counters of a ledger, requests for approval, or events."""

    name: str
    serves_loops: bool  # False: its connection blocks, and is used in a thread only

    def connect(self) -> Connection: ...


class LoopTimer:
    """Calls back after so many seconds, unless it is cancelled.

    The time is waited out in slices, and a slice that took longer counts as one: when something
    blocks the event loop, an answer may lie unread in a socket, and the loop must run a few times
    before the store can be blamed.
    """

    __slots__ = ("_callback", "_handle", "_left", "_loop", "_slice_s")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], object]
    ) -> None:
        self._loop = loop
        self._slice_s = seconds / TIMER_SLICES
        self._left = TIMER_SLICES
        self._callback = callback
        self._handle = loop.call_later(self._slice_s, self._tick)

    def _tick(self) -> None:
        self._left -= 1
        if self._left:
            self._handle = self._loop.call_later(self._slice_s, self._tick)
        else:
            self._callback()

    def cancel(self) -> None:
        self._handle.cancel()


class Operation:
    """One operation for a store, and the future that waits for it.

    Awaiting it sends it, unless it was sent before, and returns the answer, in any event loop.
    ``number`` is its place among the operations of its sender; 0 until it is sent. ``events`` are
    audit rows that the store commits with it.
    """

    __slots__ = (
        "_pool",
        "answer",
        "ends_within_s",
        "events",
        "future",
        "kind",
        "number",
        "step",
        "timer",
    )

    def __init__(
        self, pool: SenderPool, kind: OperationKind, step: Any, events: Sequence[Any] = ()
    ) -> None:
        self._pool = pool
        self.kind: OperationKind = kind
        self.step = step
        self.events = events
        self.number = 0
        self.answer: Any = NO_ANSWER
        self.future: asyncio.Future[Any] | None = None
        self.timer: LoopTimer | None = None
        self.ends_within_s = pool.wait_s

    def __await__(self) -> Generator[Any, None, Any]:
        return self.to_future().__await__()

    def to_future(self) -> asyncio.Future[Any]:
        """Return a future of the running event loop that gets the answer, or an error when the time
        is over.
        """
        pool, loop = self._pool, asyncio.get_running_loop()
        future = self.future = loop.create_future()
        self.timer = LoopTimer(loop, pool.wait_s, partial(pool.give_up, future))
        if self.number:
            pool.await_elsewhere(self, loop)
            return future
        try:
            if pool.why_open is not None:
                raise BackendError(pool.why_open)
            pool.send(self)
        except BackendError as exc:
            self.timer.cancel()
            future.set_exception(exc)
        return future

    def make_part(self, kind: OperationKind, step: Any) -> Operation:
        """Return an operation for a part of this one, in one of the accounts of its call."""
        part = Operation(self._pool, kind, step)
        part.number = self.number
        return part

    @property
    def is_kept(self) -> bool:
        """Whether it must be delivered even when no caller waits: a call that ran must be
        counted.
        """
        return self.kind in KEPT

    @property
    def is_unanswered(self) -> bool:
        return self.answer is NO_ANSWER or isinstance(self.answer, Exception)

    @property
    def is_wanted(self) -> bool:
        return self.kind in KEPT or self.future is None or not self.future.done()


def _release(pool: SenderPool, step: Reservation) -> Operation:
    """Return an operation that releases the slots of a caller who stopped waiting."""
    return Operation(pool, "settle", release_of(step))


def _as_sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _is_program_ending(error: RuntimeError) -> bool:
    """Return whether the interpreter is shutting down, when asyncio can no longer start the threads
    that resolve host names.

    It stops starting them a moment before the main thread counts as ended.
    """
    return "shutdown" in str(error) or not threading.main_thread().is_alive()


class BatchSender:
    """Sends operations from one event loop. Any thread may call ``send``."""

    def __init__(self, pool: SenderPool, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.connection = pool.store.connect()
        self._pool = pool
        self._lock = threading.RLock()  # a garbage collection meanwhile may send settlements
        self._inbox: deque[Operation] = deque()
        self._numbers = 0
        self._batches = 0
        self._is_awake = False
        self._task: asyncio.Task[None] | None = None
        self._under_way: list[Operation] = []
        self._stopping = asyncio.Event()

    def send(self, op: Operation) -> None:
        with self._lock:  # a store recognises a repetition by numbers that only grow
            op.number = self._numbers = self._numbers + 1
            self._inbox.append(op)
            if self._is_awake:
                return
            self._is_awake = True
        if asyncio._get_running_loop() is self.loop:
            self._start()
        else:
            self.loop.call_soon_threadsafe(self._start)

    def count_settlements(self) -> int:
        """Return how many settlements have no answer yet."""
        with self._lock:
            ops = [*self._under_way, *self._inbox]
        return sum(op.is_kept and op.answer is NO_ANSWER for op in ops)

    def remove(self, op: Operation) -> bool:
        """Remove an operation that is not sent yet; return False if it is."""
        with self._lock:
            try:
                self._inbox.remove(op)
            except ValueError:
                return False
            return True

    def _start(self) -> None:
        self._task = self.loop.create_task(self._run(), context=contextvars.Context())
        self._task.add_done_callback(self._restart)

    def _restart(self, task: asyncio.Task[None]) -> None:
        """Start the task again if it was cancelled, perhaps before it began, and operations are
        waiting.
        """
        if task is not self._task:
            return
        self._task = None
        if task.cancelled() or task.exception() is not None:
            if not task.cancelled():
                log(
                    LEDGER_SENDING_FAILED,
                    "Sending to a %s failed.",
                    self._pool.kind,
                    exc_info=task.exception(),
                    store=self._pool.name,
                )
            self._leave_behind(())
            with self._lock:
                self._is_awake = bool(self._inbox)
            if self._is_awake:
                self._start()

    async def _run(self) -> None:
        while ops := self._take():
            self._under_way = ops
            await self._deliver(ops)
            self._under_way = []

    def _take(self) -> list[Operation]:
        with self._lock:
            inbox, ops = self._inbox, list[Operation]()
            while inbox and len(ops) < self._pool.max_batch:
                op = inbox.popleft()
                if op.is_wanted:
                    ops.append(op)
            self._is_awake = bool(ops)
        return ops

    async def _deliver(self, ops: list[Operation]) -> None:
        """Send operations until they are answered. One that is at fault itself must not fail the
        others.
        """
        self._batches += 1
        answers: list[Any]
        try:
            answers = await self._repeat(Batch(self._batches, ops))
        except Unavailable:
            return self._report_lost_operations([*ops, *self._inbox])
        except Exception as exc:
            if len(ops) > 1:
                for op in ops:
                    await self._deliver([op])
                return None
            why = f"The {self._pool.kind} {self._pool.name} refused: {describe(exc)}"
            answers = [BackendError(why)]
        self._pool.close_circuit()
        return self._pool.hand_over(zip(ops, answers, strict=True), self.loop)

    async def _repeat(self, batch: Batch) -> list[Any]:
        """Send a batch until it is answered. When the sender is closed it is sent once more."""
        strikes, is_last = 0, False
        while True:
            try:
                return await self._execute(batch)
            except Unavailable as exc:
                if is_last:
                    raise
                strikes += 1
                self._strike(batch.ops, exc, strikes)
            if strikes > 1:  # a stale connection is replaced at once
                await self._pause(min(FIRST_PAUSE_S * 2.0 ** min(strikes, 20), LONGEST_PAUSE_S))
            is_last = self._stopping.is_set()

    async def _execute(self, batch: Batch) -> list[Any]:
        """Ask the store within the pool's time limit, which does not run while the loop is
        blocked.
        """
        wait_s = self._pool.wait_s
        try:
            async with asyncio.timeout(None) as bound:
                timer = LoopTimer(self.loop, wait_s, lambda: bound.reschedule(self.loop.time()))
                try:
                    answers = await self.connection.execute(batch)
                finally:
                    timer.cancel()
        except TimeoutError as exc:
            raise Unavailable(f"no answer within {wait_s:g} s") from exc
        except RuntimeError as exc:
            if not _is_program_ending(exc):
                raise
            raise Unavailable(describe(exc)) from exc
        if len(answers) != len(batch.ops):
            raise Unavailable(f"it gave {len(answers)} answers to {len(batch.ops)} questions")
        return answers

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _strike(self, ops: Sequence[Operation], exc: Unavailable, strikes: int) -> None:
        """Wait out a short outage; after a longer one open the circuit and fail all callers."""
        if strikes < STRIKES and not isinstance(exc, Refused):
            return
        reason = _as_sentence(describe(exc))
        why = f"The {self._pool.kind} {self._pool.name} could not be asked: {reason}"
        error = EdictumConfigError(why) if isinstance(exc, Refused) else BackendError(why)
        with self._lock:
            waiting = [*ops, *self._inbox]
            self._inbox = deque(op for op in self._inbox if op.is_kept)
        self._pool.open_circuit(why, probing=self)
        self._pool.hand_over(((op, error) for op in waiting), self.loop)

    def _report_lost_operations(self, ops: Iterable[Operation]) -> None:
        if lost := sum(op.is_kept for op in ops):
            message = "The %s %s was closed with %d %s."
            name, kind, what = self._pool.name, self._pool.kind, self._pool.what_is_lost
            log(LEDGER_NOT_COUNTED, message, kind, name, lost, what, store=name, calls=lost)

    def _leave_behind(self, waiting: Iterable[Operation]) -> None:
        """Hand settlements to the pool's thread; refuse the rest and release the slots that it
        took.
        """
        under_way = [op for op in self._under_way if op.is_unanswered]
        self._under_way = []
        ops = [*under_way, *waiting]
        left = [op for op in ops if op.is_kept]
        held = [op.step for op in under_way if op.kind == "reserve" and op.step.hold]
        left += [_release(self._pool, step) for step in held]
        try:
            for op in left:
                self._pool.send_from_thread(op)
        except BackendError:
            self._report_lost_operations(left)
        error = BackendError(
            f"The {self._pool.kind} {self._pool.name} gave no answer: the task that asked it"
            " was cancelled, as when an event loop ends."
        )
        self._pool.hand_over(((op, error) for op in ops if not op.is_kept), self.loop)

    def retire(self) -> None:
        """Stop sending. Any thread may call it once the loop has stopped."""
        self._pool.forget(self.loop)
        task, self._task = self._task, None
        with self._lock:
            waiting = list(self._inbox)
            self._inbox.clear()
        self._leave_behind(waiting)
        if task is not None and not self.loop.is_closed():
            task.cancel()

    async def finish(self, wait_s: float | None = None) -> None:
        """Wait until everything is sent, for at most ``wait_s`` if it is given, and disconnect."""
        if wait_s is None:
            self._stopping.set()
        while self._is_awake or self._task is not None:
            if self._task is None:
                await asyncio.sleep(0)  # its start is scheduled
            elif not (await asyncio.wait({self._task}, timeout=wait_s))[0]:
                break
        await self.connection.close()


class LoopSender(BatchSender):
    """A sender in a caller's event loop, made in that loop."""

    def __init__(self, pool: SenderPool) -> None:
        super().__init__(pool, asyncio.get_running_loop())
        self._life = self._live()
        with contextlib.suppress(StopIteration):
            self._life.asend(None).send(None)

    async def _live(self) -> AsyncGenerator[None, None]:
        """Wait for the end of the loop, which closes the generators that were started in it.

        A task would keep callers waiting who wait for all tasks.
        """
        try:
            yield
        finally:
            self.retire()
            await self.connection.close()

    async def close(self, wait_s: float) -> None:
        self._pool.forget(self.loop)
        await self.finish(wait_s)
        await self._life.aclose()


class ThreadSender(BatchSender):
    """A sender in a thread of its own."""

    def __init__(self, pool: SenderPool) -> None:
        super().__init__(pool, asyncio.new_event_loop())
        self.thread = threading.Thread(target=self._serve, name=f"edictum-{pool.name}", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        self.loop.run_forever()
        self.loop.run_until_complete(self._end())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def _end(self) -> None:
        """Send what is waiting, and abort connections whose TLS shutdown the peer has not
        answered.
        """
        await self.finish()
        for transport in list(getattr(self.loop, "_transports", {}).values()):
            transport.abort()
        await asyncio.sleep(0)

    def stop(self, wait_s: float) -> None:
        """Wait for operations under way, for a bounded time; the thread then ends."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        if self.thread is not threading.current_thread():
            self.thread.join(wait_s)


class SenderPool:
    """All senders of a ledger, an approval queue or an audit sink.

    Messages use ``kind`` for the store and ``what_is_lost`` for operations that could not be kept.
    """

    def __init__(
        self,
        store: Store,
        wait_s: float,
        max_batch: int,
        kind: str = "session store",
        what_is_lost: str = "calls not counted",
    ) -> None:
        self.store = store
        self.kind = kind
        self.what_is_lost = what_is_lost
        self.name = store.name
        self.wait_s = wait_s
        self.max_batch = max_batch
        self._inherited: list[Any] = []
        self._is_closed = False
        self._reset()
        call_in_child(self.renew_after_fork)

    def _reset(self) -> None:
        self.why_open: str | None = None  # of the circuit; None while the store answers
        self._lock = threading.RLock()
        self._thread: ThreadSender | None = None
        self._by_loop: dict[asyncio.AbstractEventLoop, LoopSender] = {}
        self._asked: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, int] = (
            weakref.WeakKeyDictionary()
        )

    def renew_after_fork(self) -> None:
        """Start anew in a child process; keep references to what belongs to the parent, so that it
        is not closed.
        """
        senders = [self._thread, *self._by_loop.values()]
        self._inherited.append(senders)
        for sender in senders:
            if sender is not None:
                sender.connection.abandon()
        self._reset()

    # --- Sending ----------------------------------------------------------------------------------

    def send(self, op: Operation) -> None:
        sender = self._sender_here() if self.store.serves_loops else None
        if sender is None:
            self.send_from_thread(op)
        else:
            sender.send(op)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def send_from_thread(self, op: Operation) -> None:
        with self._lock:
            if self._is_closed:
                raise BackendError(f"The {self.kind} {self.name} is closed.")
            if self._thread is None:
                self._thread = ThreadSender(self)
            self._thread.send(op)

    def await_elsewhere(self, op: Operation, loop: asyncio.AbstractEventLoop) -> None:
        """Make an operation that was sent from another event loop awaitable in this one,
        independently of the other loop.
        """
        if op.answer is not NO_ANSWER:  # it came before there was a future
            self._resolve([(op, op.answer)])
        for other, sender in list(self._by_loop.items()):
            if other is not loop and sender.remove(op):
                self.send_from_thread(op)

    def _sender_here(self) -> LoopSender | None:
        """Return the sender of the running event loop; None stands for the thread."""
        loop = asyncio._get_running_loop()
        if loop is None or serves_threads():
            return None
        return self._by_loop.get(loop) or self._new_sender(loop)

    def _new_sender(self, loop: asyncio.AbstractEventLoop) -> LoopSender | None:
        asked = self._asked[loop] = self._asked.get(loop, 0) + 1
        if asked <= OWN_CONNECTION_AFTER or self._is_closed:
            return None
        for other, sender in list(self._by_loop.items()):
            if other.is_closed():  # without ending what ran in it
                sender.retire()
        sender = self._by_loop[loop] = LoopSender(self)
        return sender

    def forget(self, loop: asyncio.AbstractEventLoop) -> None:
        self._by_loop.pop(loop, None)

    # --- Answers ----------------------------------------------------------------------------------

    def hand_over(
        self, answers: Iterable[tuple[Operation, Any]], here: asyncio.AbstractEventLoop
    ) -> None:
        """Give all waiting callers their answers, waking each event loop once."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Operation, Any]]] = {}
        for op, answer in answers:
            op.answer = answer
            future = op.future
            if future is None:
                continue
            if future.done():
                self._give_back(op, answer)
            else:
                by_loop.setdefault(future.get_loop(), []).append((op, answer))
        for loop, told in by_loop.items():
            if loop is here:
                self._resolve(told)
                continue
            try:
                loop.call_soon_threadsafe(self._resolve, told)
            except RuntimeError:
                log(
                    LEDGER_LOOP_CLOSED,
                    "An event loop was closed while %d session operations were under way.",
                    len(told),
                    store=self.name,
                )
                for op, answer in told:
                    self._give_back(op, answer)

    def _resolve(self, told: list[tuple[Operation, Any]]) -> None:
        for op, answer in told:
            future = op.future
            assert future is not None
            if future.done():
                self._give_back(op, answer)
                continue
            if op.timer is not None:
                op.timer.cancel()
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    def _give_back(self, op: Operation, answer: Any) -> None:
        """Release slots that were granted to a caller who had stopped waiting."""
        if isinstance(answer, Grant) and answer.granted and op.step.hold:
            with contextlib.suppress(BackendError):  # closed: the lease runs out
                self.send_from_thread(_release(self, op.step))

    def give_up(self, future: asyncio.Future[Any]) -> None:
        """Fail a future whose answer has not come in time."""
        if not future.done():
            why = f"The {self.kind} {self.name} did not answer within {self.wait_s:g} s."
            self.open_circuit(why)
            future.set_exception(BackendError(why))

    def open_circuit(self, why: str, probing: BatchSender | None = None) -> None:
        """Refuse calls until the store answers. The thread probes it, because event loops may
        stop.
        """
        was_closed, self.why_open = self.why_open is None, why
        if was_closed:
            message = "%s Calls are denied until it answers again."
            log(LEDGER_UNAVAILABLE, message, why, store=self.name)
        if was_closed and (probing is None or probing is not self._thread):
            with contextlib.suppress(BackendError):
                self.send_from_thread(Operation(self, "ping", None))

    def close_circuit(self) -> None:
        if self.why_open is not None:
            message = "The %s %s answers again."
            log(LEDGER_ANSWERS, message, self.kind, self.name, store=self.name)
            self.why_open = None

    def count_open_settlements(self) -> int:
        """Return how many settlements wait to be sent or answered."""
        with self._lock:
            senders = [self._thread, *self._by_loop.values()]
        return sum(sender.count_settlements() for sender in senders if sender is not None)

    # --- Closing ----------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Close the sender of the running event loop."""
        sender = self._by_loop.get(asyncio.get_running_loop())
        if sender is not None:
            await sender.close(self.wait_s)

    def stop(self) -> None:
        """Wait for operations under way, for a bounded time, and disconnect everything."""
        ends = [self._close_in_its_loop(sender) for sender in list(self._by_loop.values())]
        for end in ends:
            with contextlib.suppress(Exception):  # what was not sent has gone to the thread
                end()
        with self._lock:
            self._is_closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop(self.wait_s)

    def _close_in_its_loop(self, sender: LoopSender) -> Callable[[], object]:
        """Start to close a sender in its own loop; return a function that waits for that."""
        loop = sender.loop
        if not loop.is_running():
            sender.retire()
        elif loop is asyncio._get_running_loop():
            start_in_background(sender.close(self.wait_s))
        else:
            closing = asyncio.run_coroutine_threadsafe(sender.close(self.wait_s), loop)
            return lambda: closing.result(self.wait_s)
        return lambda: None
