"""A failed call is freed when its outcome is, without the garbage collector: the traceback of its
exception refers to the frames of the library, none of which may refer to the exception.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edictum import Edictum, EdictumToolError
from support.waiting import wait_until


class Boom(Exception):
    """Can be referred to weakly."""


ALIVE: weakref.WeakSet[Boom] = weakref.WeakSet()


def fail() -> None:
    error = Boom("no")
    ALIVE.add(error)
    try:
        raise error
    finally:
        del error  # a local variable would be a cycle of the tool's own


async def fail_later() -> None:
    await asyncio.sleep(0)
    fail()


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=["memory", "sqlite"])
def guard(request: pytest.FixtureRequest, tmp_path: Path) -> Edictum:
    backend = None if request.param == "memory" else f"sqlite:///{tmp_path / 'sessions.db'}"
    return Edictum(backend=backend, local_events=1)


WAYS: dict[str, dict[str, Any]] = {
    "inline": {},
    "in a thread": {"run_in": "thread"},
    "with a deadline": {"timeout_s": 60},
}
BODIES = [fail, fail_later]


def freed() -> bool:
    return not ALIVE


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("body", BODIES)
async def test_asynchronous_calls(guard: Edictum, body: Any, options: dict[str, Any]) -> None:
    """Awaited calls keep nothing of what failed."""
    assert await guard.dispatch("work", {}, body, **options)
    with pytest.raises(EdictumToolError):
        await guard.run("work", {}, body, **options)
    wait_until(freed)


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("body", BODIES)
def test_synchronous_calls(guard: Edictum, body: Any, options: dict[str, Any]) -> None:
    """Calls of synchronous hosts keep nothing of what failed."""
    assert guard.dispatch_sync("work", {}, body, **options)
    with pytest.raises(EdictumToolError):
        guard.run_sync("work", {}, body, **options)
    wait_until(freed)
