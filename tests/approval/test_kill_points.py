"""A process that asks is killed, another answers, a third makes the same call again: on each store,
with its server killed and started again in between.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edictum import BackendError, EdictumInputError
from edictum.approval import ApprovalQueue, open_approvals
from support.effort import SOAK, effort
from support.processes import ROOT
from support.servers import NoServer, Postgres, Valkey

WORKER = Path(__file__).parent / "kill_worker.py"
DEADLINE_S = 120.0
BEFORE_USE = ["before asking", "asked", "claimed", "before use"]
AFTER_USE = ["used", "in the tool", "after the effect", "before end"]
ANY_MOMENT, SPAN_S = "any moment", 0.3  # in which a call is usually asked about, answered and made
RANDOM_KILLS = effort(1, 200)
SERVERS: dict[str, Callable[[], Any]] = {"valkey": Valkey, "postgres": Postgres}
# the rules are the same on each store: all points are tried on one, and in the long form on all
POINTS = [
    (store, point)
    for store in ("sqlite", *SERVERS)
    for point in [*BEFORE_USE, *AFTER_USE]
    if SOAK or store == "sqlite" or point in ("claimed", "used")
]


class Scene:
    """A store, the file that shows how often the tool ran, and the processes."""

    def __init__(self, folder: Path, store: str, report: Callable[[str, object], None]) -> None:
        self.effects = folder / "effects"
        self.running: list[subprocess.Popen[str]] = []
        self.server: Any = None
        if store == "sqlite":
            self.url = f"sqlite:///{folder / 'approvals.db'}"
            return
        try:
            self.server = SERVERS[store]()
        except (NoServer, OSError) as exc:
            report("session_store", f"{store}: NOT TESTED, {exc}")
            pytest.skip(str(exc))
        self.url = self.server.url

    def start(self, point: str, call_id: str = "c-1") -> subprocess.Popen[str]:
        command = [sys.executable, str(WORKER), self.url, str(self.effects), point, call_id]
        worker = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": f"{ROOT}/src:{ROOT}/tests"},
        )
        self.running.append(worker)
        return worker

    def restart_server(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.start()

    def count_effects(self) -> int:
        return len(self.effects.read_text().splitlines()) if self.effects.exists() else 0

    def stop(self) -> None:
        for worker in self.running:
            worker.kill()
            worker.communicate()
        if self.server is not None:
            self.server.stop()


def read_outcome(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.read()


@pytest.fixture
def make_scene(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> Iterator[Callable[[str], Scene]]:
    made: list[Scene] = []

    def make(store: str) -> Scene:
        made.append(Scene(tmp_path, store, record_property))
        return made[-1]

    yield make
    for scene in made:
        scene.stop()


async def answer_all(queue: ApprovalQueue) -> None:
    """Say yes to what is asked, as far as the store can be asked just now."""
    try:
        for request in await queue.pending():
            await queue.answer(request.approval_id, True, approver="ann")
    except (BackendError, EdictumInputError):  # it restarts; or the request is not pending any more
        return


async def answer_until_ended(queue: ApprovalQueue, worker: subprocess.Popen[str]) -> None:
    """Say yes to what is asked until a process has ended."""
    until = time.monotonic() + DEADLINE_S
    while worker.poll() is None:
        assert time.monotonic() < until, "the process did not end"
        await answer_all(queue)
        await asyncio.sleep(0.02)


async def wait_for_store(queue: ApprovalQueue) -> None:
    """Return when the store answers."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return await queue.check()
            except BackendError:
                await asyncio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("store", "point"), POINTS)
async def test_a_kill_at_each_step(
    make_scene: Callable[[str], Scene], store: str, point: str
) -> None:
    """Before the start the answer is there for the same call in another process, which runs once;
    after it, whether the tool had its effect is not known, so the same call is refused.
    """
    scene = make_scene(store)
    queue = open_approvals(scene.url)
    first = scene.start(point)
    await answer_until_ended(queue, first)
    assert first.returncode == -9
    effects = scene.count_effects()
    assert effects == (point in ("after the effect", "before end"))
    scene.restart_server()
    await wait_for_store(queue)
    third = scene.start("never")
    await answer_until_ended(queue, third)
    runs = point in BEFORE_USE
    assert read_outcome(third) == ("ToolExecutionResult\n" if runs else "ToolDenied\n")
    assert scene.count_effects() == effects + runs


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("store", ["sqlite", *SERVERS])
async def test_a_kill_at_any_moment(make_scene: Callable[[str], Scene], store: str) -> None:
    """The tool runs at most once, and exactly once unless it may have been started before."""
    scene = make_scene(store)
    queue = open_approvals(scene.url)
    for number in range(RANDOM_KILLS):
        rng, call_id = random.Random(number), f"c-{number}"
        scene.effects = scene.effects.with_name(f"effects-{number}")
        first = scene.start(ANY_MOMENT, call_id)
        answering = asyncio.ensure_future(answer_until_ended(queue, first))
        assert first.stdout is not None
        await asyncio.to_thread(first.stdout.readline)  # it has started
        await asyncio.sleep(rng.uniform(0.0, SPAN_S))
        first.kill()
        await answering
        effects = scene.count_effects()
        if number % 5 == 0:
            scene.restart_server()
            await wait_for_store(queue)
        third = scene.start("never", call_id)
        await answer_until_ended(queue, third)
        outcome = read_outcome(third)
        if first.returncode == 0:
            continue  # it had ended before
        ran_again = outcome == "ToolExecutionResult\n"
        assert scene.count_effects() == effects + ran_again
        assert scene.count_effects() == 1 or not ran_again
