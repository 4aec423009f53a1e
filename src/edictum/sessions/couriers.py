"""Who carries operations to a store and answers back: one thread per process and store, and one
task per event loop.

Both do the same. What waits while they are under way goes out together, as one batch. A batch that
failed is sent again, as it was, until it is through. After ``STRIKES`` failures in a row the
circuit opens; the batch that is being sent again is the probe that closes it. A slot that was
granted to a caller who had stopped waiting is given back.

The thread serves everybody who has no event loop of their own, and the event loops that have only
just begun to ask. It also outlives the loops: what a loop leaves behind when it ends goes by the
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import queue
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

from edictum.core.decide import describe
from edictum.core.limits import Grant, Reservation, Settlement
from edictum.errors import BackendError, EdictumConfigError
from edictum.execution.forks import call_in_child
from edictum.execution.portal import serves_threads
from edictum.sessions.operations import (
    Batch,
    Circuit,
    LoopStore,
    Op,
    Refused,
    Store,
    Unavailable,
    tell,
)

logger = logging.getLogger("edictum")

MAX_BATCH = 256
STRIKES = 3
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.5
# A loop that asks less often than this, as one made for a single call, is not worth a connection.
OWN_CONNECTION_AFTER = 4

Delivery: TypeAlias = Generator[Batch | float, "list[Any] | None", None]


class Courier:
    """What the thread and the tasks have in common. ``send`` may be called by anybody, the rest by
    one thread or task.
    """

    def __init__(self, name: str, circuit: Circuit, max_batch: int) -> None:
        self.name = name
        self.circuit = circuit
        self._max_batch = max_batch
        self._lock = threading.Lock()
        self._backlog: deque[Op] = deque()
        self._number = 0
        self._batches = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def send(self, op: Op) -> None:
        with self._lock:  # numbers go out in their order: a store tells a repetition by it
            self._number += 1
            op.number = self._number
            self._put(op)

    def reroute(self, op: Op, to: asyncio.AbstractEventLoop) -> None:
        """It is awaited in this loop. If that is not where it waits to be sent, it must not depend
        on that other loop.
        """

    def _put(self, op: Op) -> None:
        raise NotImplementedError

    def _pop(self) -> Op | None:
        """The next operation that waits, if there is one."""
        raise NotImplementedError

    def _take(self) -> list[Op]:
        """What waits now and somebody still wants, as many as fit into a batch."""
        ops: list[Op] = []
        while len(ops) < self._max_batch:
            op = self._backlog.popleft() if self._backlog else self._pop()
            if op is None:
                break
            if op.kept or not op.abandoned:
                ops.append(op)
        return ops

    def _delivery(self, ops: list[Op]) -> Delivery:
        """How to get these through: execute each batch it gives, and tell it what came of it; wait
        for each time it gives.
        """
        self._batches += 1
        batch, strikes = Batch(self._batches, ops), 0
        while True:
            try:
                answers = yield batch
                if answers is None or len(answers) != len(ops):
                    raise Unavailable(
                        f"it gave {len(answers or ())} answers to {len(ops)} questions"
                    )
                break
            except Unavailable as exc:
                strikes += 1
                self._failed(ops, exc, strikes)
            except Exception as exc:
                if len(ops) > 1:  # one bad operation must not fail its neighbours
                    for op in ops:
                        yield from self._delivery([op])
                    return
                answers = [BackendError(f"The session store {self.name} refused: {describe(exc)}")]
                break
            yield _pause_s(strikes)
        self.circuit.close(self.name)
        self._hand_over(ops, answers)

    def _failed(self, ops: list[Op], exc: Unavailable, strikes: int) -> None:
        """A short outage is waited out; a longer one opens the circuit and is told to everybody who
        waits.
        """
        if strikes < STRIKES and not isinstance(exc, Refused):
            return
        why = f"The session store {self.name} could not be asked: {describe(exc)}"
        if self.circuit.open(why):
            self._opened()
        while (op := self._pop()) is not None:
            self._backlog.append(op)
        hint = BackendError(why) if not isinstance(exc, Refused) else EdictumConfigError(why)
        for op in [*ops, *self._backlog]:
            self._answer(op, hint)
        self._backlog = deque(op for op in self._backlog if op.kept)

    def _opened(self) -> None:
        """The circuit is open because of this courier."""

    def _answer(self, op: Op, answer: Any) -> None:
        """Tell the one who waits, who will then have stopped waiting: an answer that comes later is
        for nobody.
        """
        if op.claim():
            op.abandoned = True
            op.answer = answer
            tell([op])

    def _hand_over(self, ops: list[Op], answers: Sequence[Any]) -> None:
        waiting = []
        for op, answer in zip(ops, answers, strict=True):
            if op.claim():
                op.answer = answer
                waiting.append(op)
            elif (
                op.kind == "reserve"
                and isinstance(answer, Grant)
                and answer.granted
                and op.step.hold
            ):
                self._backlog.append(_release(op.step))
        tell(waiting, self._loop)


def _release(step: Reservation) -> Op:
    """Gives back a slot for a caller who has gone: its tool did not run."""
    return Op(
        "settle",
        Settlement(
            step.session_id, step.call_id, step.scopes, step.limits, "release", parents=step.parents
        ),
    )


def _pause_s(strikes: int) -> float:
    """A connection that was merely old is replaced at once; a server that is gone is not
    hammered.
    """
    return 0.0 if strikes == 1 else min(FIRST_PAUSE_S * 2.0 ** min(strikes, 20), LONGEST_PAUSE_S)


class ThreadCourier(Courier):
    """A thread of its own, started when it is first needed."""

    def __init__(self, store: Store, circuit: Circuit, max_batch: int) -> None:
        super().__init__(store.name, circuit, max_batch)
        self.store = store
        self.renew_after_fork()

    def renew_after_fork(self) -> None:
        self._inbox: queue.SimpleQueue[Op | None] = queue.SimpleQueue()
        self._backlog = deque()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._number = 0
        self.circuit.forget()

    @property
    def stopped(self) -> bool:
        return self._stopping.is_set()

    def _put(self, op: Op) -> None:
        if self.stopped:
            raise BackendError(f"The session store {self.name} is closed.")
        self._inbox.put(op)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=f"edictum-{self.name}", daemon=True
            )
            self._thread.start()

    def _pop(self) -> Op | None:
        try:
            op = self._inbox.get_nowait()
        except queue.Empty:
            return None
        if op is None:
            self._inbox.put(None)  # the end, once what came before it is through
        return op

    def stop(self, wait_s: float) -> None:
        """See what was sent through, for a bounded time, then close the store."""
        with self._lock:
            thread, self._thread = self._thread, None
            already = self.stopped
            self._stopping.set()
        if thread is not None:
            self._inbox.put(None)
            thread.join(wait_s)
        elif not already:
            self.store.close()

    def _run(self) -> None:
        while batch := self._wait():
            self._deliver(batch)
        self.store.close()

    def _wait(self) -> list[Op]:
        """What is to be sent next; an empty list is the end."""
        while not (ops := self._take()):
            first = self._inbox.get()
            if first is None:
                return []
            self._backlog.append(first)
        return ops

    def _deliver(self, ops: list[Op]) -> None:
        delivery, last = self._delivery(ops), False
        step = next(delivery, None)
        while step is not None:
            if isinstance(step, Batch):
                step = self._try(delivery, step)
            elif last:
                return self._lost(ops)
            else:
                last = self._stopping.wait(step)  # once more before it is given up
                step = next(delivery, None)
        return None

    def _try(self, delivery: Delivery, batch: Batch) -> Batch | float | None:
        try:
            answers = self.store.execute(batch)
        except Exception as exc:
            return _thrown(delivery, exc)
        return _sent(delivery, answers)

    def _lost(self, ops: list[Op]) -> None:
        lost = sum(op.kept for op in [*ops, *self._backlog])
        if lost:
            logger.error(
                "The session store %s was closed with %d calls not counted.", self.name, lost
            )


def _sent(delivery: Delivery, answers: list[Any]) -> Batch | float | None:
    try:
        return delivery.send(answers)
    except StopIteration:
        return None


def _thrown(delivery: Delivery, exc: Exception) -> Batch | float | None:
    try:
        return delivery.throw(exc)
    except StopIteration:
        return None


class LoopCourier(Courier):
    """A task in one event loop, which lives for as long as there is something to carry; made and
    used in that loop.
    """

    def __init__(
        self, store: LoopStore, thread: ThreadCourier, max_batch: int, gone: Callable[[], None]
    ) -> None:
        super().__init__(thread.name, thread.circuit, max_batch)
        self._loop = self.loop = asyncio.get_running_loop()
        self._store = store
        self._thread = thread
        self._gone = gone
        self._inbox: deque[Op] = deque()
        self._under_way: list[Op] = []
        self._task: asyncio.Task[None] | None = None
        self._life = self._live()
        with contextlib.suppress(StopIteration):
            self._life.asend(None).send(None)

    async def _live(self) -> AsyncGenerator[None, None]:
        """Waits for the end. Event loops close the generators that were started in them when they
        end; so this needs no task, which would be in the way of who waits for all tasks.
        """
        try:
            yield
        finally:
            self.retire()
            await self._store.close()

    def send(self, op: Op) -> None:
        super().send(op)
        if self._task is None:  # not under the lock: some loops begin a task while it is made
            self._start()

    def _put(self, op: Op) -> None:
        self._inbox.append(op)

    def _start(self) -> None:
        self._task = self.loop.create_task(self._run(), context=contextvars.Context())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Somebody may have cancelled it, even before it began; and operations may have come since
        it looked for the last time.
        """
        if task is not self._task:
            return
        self._task = None
        if self._inbox or self._backlog:
            self._start()

    def _pop(self) -> Op | None:
        with self._lock:
            return self._inbox.popleft() if self._inbox else None

    def reroute(self, op: Op, to: asyncio.AbstractEventLoop) -> None:
        if to is self.loop:
            return
        with self._lock:
            if op not in self._inbox:
                return
            self._inbox.remove(op)
        self._thread.send(op)

    async def _run(self) -> None:
        try:
            while ops := self._take():
                self._under_way = ops
                await self._deliver(ops)
                self._under_way = []
        finally:
            self._leave_behind([])  # what was under way, if it was cancelled

    async def _deliver(self, ops: list[Op]) -> None:
        delivery = self._delivery(ops)
        step = next(delivery, None)
        while step is not None:
            if isinstance(step, Batch):
                step = await self._try(delivery, step)
            else:
                await asyncio.sleep(step)
                step = next(delivery, None)

    async def _try(self, delivery: Delivery, batch: Batch) -> Batch | float | None:
        try:
            answers = await self._store.execute(batch)
        except Exception as exc:
            return _thrown(delivery, exc)
        return _sent(delivery, answers)

    def _opened(self) -> None:
        """Others are denied now as well, so the probe must not depend on this loop going on."""
        if not self._thread.stopped:
            self._thread.send(Op("ping", None))

    def _leave_behind(self, waiting: Sequence[Op]) -> None:
        """What must get through goes by the thread; the rest is refused, and what it may have taken
        is given back.
        """
        under_way, self._under_way = [op for op in self._under_way if not op.served], []
        ops = [*under_way, *waiting]
        left = [op for op in ops if op.kept] + [
            _release(op.step) for op in under_way if op.kind == "reserve" and op.step.hold
        ]
        try:
            for op in left:
                self._thread.send(op)
        except BackendError:
            logger.error(
                "The session store %s was closed with %d calls not counted.", self.name, len(left)
            )
        hint = BackendError(
            f"The session store {self.name} gave no answer: the task that asked it was cancelled,"
            " as when an event loop ends."
        )
        for op in ops:
            if not op.kept:
                self._answer(op, hint)

    def retire(self) -> None:
        """Carry nothing any more. Safe to call from any thread once the loop has stopped."""
        self._gone()
        task, self._task = self._task, None
        with self._lock:
            waiting = [*self._backlog, *self._inbox]
            self._backlog.clear()
            self._inbox.clear()
        self._leave_behind(waiting)
        if task is not None and not self.loop.is_closed():
            task.cancel()

    async def close(self, wait_s: float) -> None:
        """See what was sent through, for a bounded time, and disconnect."""
        self._gone()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=wait_s)
        await self._life.aclose()


class Couriers:
    """All couriers of a ledger."""

    def __init__(self, store: Store, circuit: Circuit, max_batch: int) -> None:
        self.thread = ThreadCourier(store, circuit, max_batch)
        self._max_batch = max_batch
        self._on_loop: Callable[[], LoopStore] | None = getattr(store, "on_loop", None)
        self._inherited: list[Any] = []
        self._by_loop: dict[asyncio.AbstractEventLoop, LoopCourier] = {}
        self._asked: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, int] = (
            weakref.WeakKeyDictionary()
        )
        call_in_child(self.renew_after_fork)

    def renew_after_fork(self) -> None:
        self._inherited.append(
            self._by_loop
        )  # kept, so that nothing closes what belongs to the parent process
        self._by_loop = {}
        self.thread.renew_after_fork()
        self.thread.store.forget()

    def here(self) -> Courier:
        """The one for the code that calls."""
        if self._on_loop is None or serves_threads():
            return self.thread
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self.thread
        return self._by_loop.get(loop) or self._for_newcomer(loop, self._on_loop)

    def _for_newcomer(
        self, loop: asyncio.AbstractEventLoop, make_store: Callable[[], LoopStore]
    ) -> Courier:
        asked = self._asked[loop] = self._asked.get(loop, 0) + 1
        if asked <= OWN_CONNECTION_AFTER or self.thread.stopped:
            return self.thread
        for other, courier in list(self._by_loop.items()):
            if other.is_closed():  # without ending what ran in it
                courier.retire()
        self._by_loop[loop] = LoopCourier(
            make_store(), self.thread, self._max_batch, lambda: self._forget(loop)
        )
        return self._by_loop[loop]

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        self._by_loop.pop(loop, None)

    def gave_up(self, why: str) -> None:
        """Somebody has waited too long: open the circuit, and send what will close it when it is
        answered.
        """
        if self.thread.circuit.open(why):
            self.thread.send(Op("ping", None))

    async def leave(self, wait_s: float) -> None:
        """Close what there is for the running loop."""
        courier = self._by_loop.get(asyncio.get_running_loop())
        if courier is not None:
            await courier.close(wait_s)

    def stop(self, wait_s: float) -> None:
        ends = [_end(courier, wait_s) for courier in list(self._by_loop.values())]
        for end in ends:
            if end is not None:
                with contextlib.suppress(
                    Exception
                ):  # what it could not see through has gone to the thread
                    end.result(wait_s)
        self.thread.stop(wait_s)


def _end(courier: LoopCourier, wait_s: float) -> Future[None] | None:
    """Close it in its own loop where that runs; where not, nothing can be waited for."""
    loop = courier.loop
    if not loop.is_running():
        courier.retire()
    elif loop is not asyncio._get_running_loop():
        return asyncio.run_coroutine_threadsafe(courier.close(wait_s), loop)
    else:
        task = loop.create_task(courier.close(wait_s))
        _ending.add(task)
        task.add_done_callback(_ending.discard)
    return None


_ending: set[asyncio.Task[None]] = set()
