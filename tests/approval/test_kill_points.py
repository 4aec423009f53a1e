"""A process that asks is killed, another answers, a third makes the same call again, or goes on with
the parked turn: on each store, with its server killed and started again in between.
"""

from __future__ import annotations

import asyncio
import itertools
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

WORKER = Path(__file__).parent / "killed_process.py"
DEADLINE_S = 120.0
TRIES = 50
BEFORE_USE = ["before asking", "asked", "claimed", "before use"]
PARKING = ["before asking", "asked", "parked", "before it is written", "written"]
GOING_ON = ["claimed", "before use"]
NO_EFFECT = ["used", "in the tool"]  # killed while it was being started, or ran
AFTER_EFFECT = ["after the effect", "before end"]
TURN_ENDING = [*AFTER_EFFECT, "ended", "told the model"]
TURN_POINTS = [*PARKING, *GOING_ON, *NO_EFFECT, *TURN_ENDING]
ANY_MOMENT, SPAN_S = "any moment", 0.3  # in which a call is usually asked about, answered and made
RANDOM_KILLS = effort(1, 200)
RESTART_EVERY = 5
SERVERS: dict[str, Callable[[], Any]] = {"valkey": Valkey, "postgres": Postgres}
STORES = ["sqlite", *SERVERS]
_numbers = itertools.count()


def choose_points(points: list[str], usual: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Return stores with points. The rules are the same on each store: in the usual form some
    points are tried, in the long form all on all stores.
    """
    chosen = dict.fromkeys(STORES, points) if SOAK else usual
    return [(store, point) for store, tried in chosen.items() for point in tried]


class Place:
    """A store and its server, the folder that shows how often the tool ran, and the processes."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[str]] = []
        self.kills = 0  # of processes with turns
        self.server = None if store == "sqlite" else SERVERS[store]()
        self.url = f"sqlite:///{folder / 'a.db'}" if self.server is None else self.server.url
        self.begin()

    def begin(self) -> None:
        """Begin anew, in a session of its own."""
        self.session = f"s-{next(_numbers)}"

    def start(self, what: str, point: str) -> subprocess.Popen[str]:
        folder, session = str(self.folder), self.session
        worker = subprocess.Popen(
            [sys.executable, str(WORKER), self.url, folder, what, point, session],
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": f"{ROOT}/src:{ROOT}/tests"},
        )
        self.running.append(worker)
        return worker

    def run_turn(self, point: str) -> str:
        """Run a process to its end or its death; return why its turn has ended."""
        worker = self.start("turn", point)
        said, _ = worker.communicate(timeout=DEADLINE_S)
        assert worker.returncode in (0, -9)
        self.kills += worker.returncode == -9
        return said.strip()

    async def restart_server(self, queue: ApprovalQueue) -> None:
        """Kill the server and start it; return when it answers."""
        if self.server is not None:
            self.server.kill()
            self.server.start()
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    return await queue.check()
                except BackendError:
                    await asyncio.sleep(0.02)

    def count_effects(self) -> int:
        effects = self.folder / f"effects-{self.session}"
        return len(effects.read_text().splitlines()) if effects.exists() else 0

    def stop(self) -> None:
        for worker in self.running:
            worker.kill()
            worker.communicate()
        if self.server is not None:
            self.server.stop()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Place]]:
    """The places that were made so far, by store."""
    made: dict[str, Place] = {}
    yield made
    for place in made.values():
        place.stop()


@pytest.fixture
def make_place(
    places: dict[str, Place], tmp_path: Path, record_property: Callable[[str, object], None]
) -> Callable[[str], Place]:
    def make(store: str) -> Place:
        try:
            place = places[store] = places.get(store) or Place(tmp_path, store)
        except (NoServer, OSError) as exc:
            record_property("session_store", f"{store}: NOT TESTED, {exc}")
            pytest.skip(str(exc))
        place.begin()
        return place

    return make


def read_outcome(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.read().strip()


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


async def go_on_to_end(place: Place, queue: ApprovalQueue) -> None:
    """Answer and go on until the turn has ended."""
    for _ in range(TRIES):  # a claim of a killed process holds for the rest of its lease
        await answer_all(queue)
        if await asyncio.to_thread(place.run_turn, "never") == "answered":
            return
    raise AssertionError("the turn did not end")


# --- Calls ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    ("store", "point"),
    choose_points(
        [*BEFORE_USE, *NO_EFFECT, *AFTER_EFFECT],
        {
            "sqlite": [*BEFORE_USE, *NO_EFFECT, *AFTER_EFFECT],
            "valkey": ["claimed", "used"],
            "postgres": ["claimed", "used"],
        },
    ),
)
async def test_a_kill_at_each_step(
    make_place: Callable[[str], Place], store: str, point: str
) -> None:
    """Before the start the answer is there for the same call in another process, which runs once;
    after it, whether the tool had its effect is not known, so the same call is refused.
    """
    place = make_place(store)
    queue = open_approvals(place.url)
    first = place.start("call", point)
    await answer_until_ended(queue, first)
    assert first.returncode == -9
    effects = place.count_effects()
    assert effects == (point in AFTER_EFFECT)
    await place.restart_server(queue)
    third = place.start("call", "never")
    await answer_until_ended(queue, third)
    runs = point in BEFORE_USE
    assert read_outcome(third) == ("ToolExecutionResult" if runs else "ToolDenied")
    assert place.count_effects() == effects + runs


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("store", STORES)
async def test_a_kill_at_any_moment(make_place: Callable[[str], Place], store: str) -> None:
    """The tool runs at most once, and exactly once unless it may have been started before."""
    place = make_place(store)
    queue = open_approvals(place.url)
    for number in range(RANDOM_KILLS):
        place.begin()
        rng = random.Random(number)
        first = place.start("call", ANY_MOMENT)
        answering = asyncio.ensure_future(answer_until_ended(queue, first))
        assert first.stdout is not None
        await asyncio.to_thread(first.stdout.readline)  # it has started
        await asyncio.sleep(rng.uniform(0.0, SPAN_S))
        first.kill()
        await answering
        effects = place.count_effects()
        if number % RESTART_EVERY == 0:
            await place.restart_server(queue)
        third = place.start("call", "never")
        await answer_until_ended(queue, third)
        outcome = read_outcome(third)
        if first.returncode == 0:
            continue  # it had ended before
        ran_again = outcome == "ToolExecutionResult"
        assert place.count_effects() == effects + ran_again
        assert place.count_effects() == 1 or not ran_again


# --- Turns ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(("store", "point"), choose_points(PARKING, {"sqlite": ["parked"]}))
async def test_a_kill_while_the_turn_is_parked(
    make_place: Callable[[str], Place], store: str, point: str
) -> None:
    """The next process finds the question, or asks it, and the tool runs once."""
    place = make_place(store)
    queue = open_approvals(place.url)
    assert place.run_turn(point) == ""
    await place.restart_server(queue)
    await go_on_to_end(place, queue)
    assert place.count_effects() == 1


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    ("store", "point"),
    choose_points(
        [*GOING_ON, *NO_EFFECT, *TURN_ENDING],
        {"sqlite": ["in the tool"], "valkey": ["claimed"], "postgres": ["claimed"]},
    ),
)
async def test_a_kill_while_the_turn_goes_on(
    make_place: Callable[[str], Place], store: str, point: str
) -> None:
    """Before the start the next process makes the call; after it none does."""
    place = make_place(store)
    queue = open_approvals(place.url)
    assert place.run_turn("written") == ""
    await place.restart_server(queue)
    await answer_all(queue)
    await place.restart_server(queue)
    assert place.run_turn(point) == ""
    await go_on_to_end(place, queue)
    assert place.count_effects() == (point not in NO_EFFECT)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("store", STORES if SOAK else ["sqlite"])
async def test_kills_at_random_points_of_a_turn(
    make_place: Callable[[str], Place], store: str
) -> None:
    """The tool runs at most once, and exactly once unless it was killed while it ran."""
    place = make_place(store)
    queue = open_approvals(place.url)
    place.kills = number = 0
    while place.kills < RANDOM_KILLS:  # some points are not reached
        place.begin()
        number += 1
        points = random.Random(number).choices(TURN_POINTS, k=4)
        for point in points:
            await asyncio.to_thread(place.run_turn, point)
            await answer_all(queue)
        if number % RESTART_EVERY == 1:
            await place.restart_server(queue)
        await go_on_to_end(place, queue)
        assert place.count_effects() <= 1, points
        if not set(NO_EFFECT) & set(points):
            assert place.count_effects() == 1, points
