"""A process that asks is killed, another answers, a third makes the same call again."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edictum.approval import ApprovalQueue, open_approvals
from support.effort import effort
from support.processes import ROOT

WORKER = Path(__file__).parent / "kill_worker.py"
DEADLINE_S = 120.0
BEFORE_USE = ["before asking", "asked", "claimed", "before use"]
AFTER_USE = ["used", "in the tool", "after the effect", "before end"]
RANDOM_KILLS = effort(3, 200)


class Scene:
    """A store, the file that shows how often the tool ran, and the processes."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'approvals.db'}"
        self.effects = folder / "effects"
        self.running: list[subprocess.Popen[str]] = []

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

    def count_effects(self) -> int:
        return len(self.effects.read_text().splitlines()) if self.effects.exists() else 0

    def stop(self) -> None:
        for worker in self.running:
            worker.kill()
            worker.communicate()


def read_outcome(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.read()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.stop()


async def answer_until_ended(queue: ApprovalQueue, worker: subprocess.Popen[str]) -> None:
    """Say yes to what is asked until a process has ended."""
    until = time.monotonic() + DEADLINE_S
    while worker.poll() is None:
        assert time.monotonic() < until, "the process did not end"
        for request in await queue.pending():
            await queue.answer(request.approval_id, True, approver="ann")
        await asyncio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("point", BEFORE_USE)
async def test_a_kill_before_the_start_leaves_the_answer(scene: Scene, point: str) -> None:
    """The same call in another process has it, and runs once."""
    queue = open_approvals(scene.url)
    first = scene.start(point)
    await answer_until_ended(queue, first)
    assert first.returncode == -9
    assert scene.count_effects() == 0
    third = scene.start("never")
    await answer_until_ended(queue, third)
    assert read_outcome(third) == "ToolExecutionResult\n"
    assert scene.count_effects() == 1


@pytest.mark.slow
@pytest.mark.parametrize("point", AFTER_USE)
async def test_a_kill_after_the_start_is_not_repeated(scene: Scene, point: str) -> None:
    """Whether the tool had its effect is not known, so the same call is refused."""
    queue = open_approvals(scene.url)
    first = scene.start(point)
    await answer_until_ended(queue, first)
    assert first.returncode == -9
    effects = scene.count_effects()
    assert effects == (point in ("after the effect", "before end"))
    third = scene.start("never")
    await answer_until_ended(queue, third)
    assert read_outcome(third) == "ToolDenied\n"
    assert scene.count_effects() == effects


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("number", range(RANDOM_KILLS))
async def test_a_kill_at_any_moment(scene: Scene, number: int) -> None:
    """The tool runs at most once, and exactly once unless it may have been started before."""
    queue, rng = open_approvals(scene.url), random.Random(number)
    first = scene.start("never")
    answering = asyncio.ensure_future(answer_until_ended(queue, first))
    await asyncio.sleep(rng.uniform(0.3, 1.5))
    first.kill()
    await answering
    effects = scene.count_effects()
    third = scene.start("never", "c-1")
    await answer_until_ended(queue, third)
    outcome = read_outcome(third)
    if first.returncode == 0:
        return  # it had ended before
    ran_again = outcome == "ToolExecutionResult\n"
    assert scene.count_effects() == effects + ran_again
    assert scene.count_effects() == 1 or not ran_again
