"""Batches whose task is cancelled, on a store that writes down what it is asked; and the timer."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from edictum.core.limits import Counters, Grant, Reservation, Settlement
from edictum.errors import BackendError
from edictum.sessions._batching import OWN_CONNECTION_AFTER, TIMER_SLICES, Batch, LoopTimer
from edictum.sessions._remote_ledger import RemoteLedger

GRANT = Grant(True, Counters())


class Notebook:
    """A store. In an event loop it refuses batches of more than one, so that they are sent one by
    one, and hangs at a call ``hang``.
    """

    name = "notebook:"
    serves_loops = True

    def __init__(self) -> None:
        self.by_thread: list[tuple[str, str]] = []
        self.hangs = asyncio.Event()

    def connect(self) -> NotebookConnection:
        return NotebookConnection(self)


class NotebookConnection:
    def __init__(self, store: Notebook) -> None:
        self.store = store

    async def execute(self, batch: Batch) -> list[Any]:
        if threading.current_thread() is not threading.main_thread():
            return self.note(batch)
        if len(batch.ops) > 1:
            raise RuntimeError("too many")
        if getattr(batch.ops[0].step, "call_id", "") == "hang":
            self.store.hangs.set()
            await asyncio.Future()
        return [GRANT if op.kind == "reserve" else None for op in batch.ops]

    def note(self, batch: Batch) -> list[Any]:
        self.store.by_thread += [
            (op.step.result, op.step.call_id) for op in batch.ops if isinstance(op.step, Settlement)
        ]
        return [Counters() if op.kind == "settle" else None for op in batch.ops]

    async def close(self) -> None: ...

    def abandon(self) -> None: ...


async def settle(ledger: RemoteLedger, call: str) -> None:
    await ledger.settle(Settlement("s", call, ("",), (), "success"))


async def test_a_granted_slot_is_not_given_back_because_its_neighbour_was_cancelled() -> None:
    store = Notebook()
    ledger = RemoteLedger(store)
    for _ in range(OWN_CONNECTION_AFTER):
        await ledger.ping()
    running, hanging = (
        asyncio.ensure_future(ledger.reserve(Reservation("s", call, ("",), ())))
        for call in ("runs", "hang")
    )
    kept = asyncio.create_task(settle(ledger, "behind"))
    await store.hangs.wait()
    assert await running == GRANT
    sender: Any = ledger._pool._sender_here()
    sender._task.cancel()
    with pytest.raises(BackendError, match="cancelled"):
        await hanging
    await kept
    await ledger.close()
    assert sorted(store.by_thread) == [("release", "hang"), ("success", "behind")]


async def test_a_timer_gives_the_loop_some_turns_however_late_it_is() -> None:
    """All the time is over when the loop comes to look; what was ready before is still seen
    first.
    """
    over = asyncio.Event()
    turns = 0
    LoopTimer(asyncio.get_running_loop(), 0.0, over.set)
    while not over.is_set() and turns < 100:
        await asyncio.sleep(0)
        turns += 1
    assert TIMER_SLICES <= turns < 100
