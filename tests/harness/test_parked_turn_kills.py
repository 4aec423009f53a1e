"""A turn is parked, another process answers, a third goes on; any of them may be killed."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from edictum.approval import open_approvals
from support.effort import effort
from support.processes import ROOT

WORKER = Path(__file__).parent / "parked_turn_worker.py"
DEADLINE_S = 120.0
TRIES = 50
PARKING = ["asked", "parked", "before it is written", "written"]
BEFORE_USE = ["claimed", "before use"]
AFTER_USE = ["used", "in the tool", "after the effect", "before end", "ended", "told the model"]
NO_EFFECT = ["used", "in the tool"]  # killed while it was being started, or ran
POINTS = ["never", *PARKING, *BEFORE_USE, *AFTER_USE]
RANDOM_KILLS = effort(1, 200)


class Scene:
    """A store, the folder of the turn, and the processes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, f"sqlite:///{folder / 'approvals.db'}"

    def run(self, point: str) -> str:
        """Run a process to its end or its death; return why the turn ended."""
        command = [sys.executable, str(WORKER), self.url, str(self.folder), point]
        paths = {"PYTHONPATH": f"{ROOT}/src:{ROOT}/tests"}
        ended = subprocess.run(
            command, env=paths, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert ended.returncode in (0, -9), ended.stderr
        return ended.stdout.strip()

    async def answer(self) -> None:
        queue = open_approvals(self.url)
        for request in await queue.pending():
            await queue.answer(request.approval_id, True, approver="ann")
        await queue.close()

    async def run_to_end(self) -> None:
        """Answer and go on until the turn has ended."""
        for _ in range(TRIES):  # a claim of a killed process holds for the rest of its lease
            await self.answer()
            if self.run("never") == "answered":
                return
        raise AssertionError("the turn did not end")

    def count_effects(self) -> int:
        effects = self.folder / "effects"
        return len(effects.read_text().splitlines()) if effects.exists() else 0


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("point", PARKING[1 : effort(2, 4)])
async def test_a_kill_while_the_turn_is_parked(scene: Scene, point: str) -> None:
    scene.run(point)
    await scene.run_to_end()
    assert scene.count_effects() == 1


@pytest.mark.slow
@pytest.mark.parametrize("point", [BEFORE_USE[0], *AFTER_USE[1 : effort(2, 6)]])
async def test_a_kill_while_the_turn_goes_on(scene: Scene, point: str) -> None:
    assert scene.run("never") == "approval"
    await scene.answer()
    assert scene.run(point) == ""
    await scene.run_to_end()
    assert scene.count_effects() == (point not in NO_EFFECT)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("number", range(RANDOM_KILLS))
async def test_kills_at_random_points(scene: Scene, number: int) -> None:
    """The tool runs at most once, and exactly once unless it was killed while it ran."""
    points = random.Random(number).choices(POINTS, k=4)
    for point in points:
        scene.run(point)
        await scene.answer()
    await scene.run_to_end()
    assert scene.count_effects() <= 1
    if not set(NO_EFFECT) & set(points):
        assert scene.count_effects() == 1
