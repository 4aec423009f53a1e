"""A process that asks is killed, another answers, a third makes the same call again, or goes on with
the parked turn: on each store, with its server killed and started again in between.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edictum import BackendError, EdictumInputError
from edictum.approval import ApprovalQueue, open_approvals
from support.effort import SOAK, effort
from support.killed_process import NOTES, Killable, Task, start_forks
from support.servers import NoServer, Postgres, Valkey

DEADLINE_S = 120.0
TRIES = 50
BEFORE_USE = ["before asking", "asked", "claimed", "before use"]
PARKING = ["before asking", "asked", "parked", "before it is written", "written"]
GOING_ON = ["claimed", "before use"]
NO_EFFECT = ["used", "in the tool"]  # killed while it was being started, or ran
AFTER_EFFECT = ["after the effect", "before end"]
TURN_ENDING = [*AFTER_EFFECT, "ended", "told the model"]
TURN_POINTS = [*PARKING, *GOING_ON, *NO_EFFECT, *TURN_ENDING]
KEPT = [f"{step} {number}" for step in ("keep", "kept") for number in range(1, 8)]
KEPT += [f"{step} {note}" for step in ("in", "after") for note in NOTES]
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
        self.running: list[Killable] = []
        self.kills = 0  # of processes with turns
        self.server = None if store == "sqlite" else SERVERS[store]()
        self.url = f"sqlite:///{folder / 'a.db'}" if self.server is None else self.server.url
        self.begin()

    def begin(self) -> None:
        """Begin anew, in a session of its own."""
        self.session = f"s-{next(_numbers)}"

    def make_task(self, what: str = "call", point: str = "never") -> Task:
        return Task(self.url, self.folder, self.session, what, point)

    def start(self, what: str, point: str) -> Killable:
        process = Killable(self.make_task(what, point))
        self.running = [*(it for it in self.running if it.code is None), process]
        return process

    def run_turn(self, point: str, what: str = "turn") -> str:
        """Run a process to its end or its death; return why its turn has ended."""
        process = self.start(what, point)
        said = process.wait_for_end(DEADLINE_S)
        self.kills += process.code == -9
        return said

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

    def list_effects(self) -> list[str]:
        effects = self.make_task().effects
        return effects.read_text().splitlines() if effects.exists() else []

    def count_effects(self) -> int:
        return len(self.list_effects())

    def stop(self) -> None:
        for process in self.running:
            process.kill()
        if self.server is not None:
            self.server.stop()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Place]]:
    """The places that were made so far, by store."""
    start_forks()
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


async def answer_all(queue: ApprovalQueue) -> None:
    """Say yes to what is asked, as far as the store can be asked just now."""
    try:
        for request in await queue.pending():
            await queue.answer(request.approval_id, True, approver="ann")
    except (BackendError, EdictumInputError):  # it restarts; or the request is not pending any more
        return


async def answer_until_ended(queue: ApprovalQueue, process: Killable) -> None:
    """Say yes to what is asked until a process has ended."""
    until = time.monotonic() + DEADLINE_S
    while process.code is None:
        assert time.monotonic() < until, "the process did not end"
        await answer_all(queue)
        await asyncio.sleep(0.02)


async def measure_call(place: Place, queue: ApprovalQueue) -> float:
    """Return the seconds in which a call is asked about, answered and made, just now."""
    process = place.start("call", "never")
    await asyncio.to_thread(process.wait_for_start)
    started = time.monotonic()
    await answer_until_ended(queue, process)
    return time.monotonic() - started


async def go_on_to_end(place: Place, queue: ApprovalQueue, what: str = "turn") -> None:
    """Answer and go on until the turn has ended."""
    for _ in range(TRIES):  # a claim of a killed process holds for the rest of its lease
        await answer_all(queue)
        if await asyncio.to_thread(place.run_turn, "never", what) == "answered":
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
    assert first.code == -9
    effects = place.count_effects()
    assert effects == (point in AFTER_EFFECT)
    await place.restart_server(queue)
    third = place.start("call", "never")
    await answer_until_ended(queue, third)
    runs = point in BEFORE_USE
    assert third.wait_for_end(DEADLINE_S) == ("ToolExecutionResult" if runs else "ToolDenied")
    assert place.count_effects() == effects + runs


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("store", STORES)
async def test_a_kill_at_any_moment(make_place: Callable[[str], Place], store: str) -> None:
    """The tool runs at most once, and exactly once unless it may have been started before."""
    place = make_place(store)
    queue = open_approvals(place.url)
    kills = ran = 0
    span_s = await measure_call(place, queue)
    for number in range(RANDOM_KILLS):
        place.begin()
        rng = random.Random(number)
        first = place.start("call", "never")
        answering = asyncio.ensure_future(answer_until_ended(queue, first))
        await asyncio.to_thread(first.wait_for_start)
        await asyncio.sleep(rng.uniform(0.0, span_s))
        first.kill()
        await answering
        effects = place.count_effects()
        if number % RESTART_EVERY == 0:
            await place.restart_server(queue)
        third = place.start("call", "never")
        await answer_until_ended(queue, third)
        outcome = third.wait_for_end(DEADLINE_S)
        if first.code == 0:
            continue  # it had ended before
        kills += 1
        ran_again = outcome == "ToolExecutionResult"
        assert place.count_effects() == effects + ran_again
        assert place.count_effects() == 1 or not ran_again
        ran += place.count_effects()
    print(f"{store}: {kills} calls killed on the way; the tool ran once for {ran} of them")


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
    place.kills = number = ran = 0
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
        ran += place.count_effects()
    print(f"{store}: {place.kills} kills in {number} turns; the tool ran once in {ran} of them")


# --- Turns that are kept as they go ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize(
    ("store", "point"),
    choose_points(
        [*KEPT, *GOING_ON, *NO_EFFECT, *AFTER_EFFECT],
        {"sqlite": ["keep 2", "kept 1", "in second", "after second", "after last", "before use"]},
    ),
)
async def test_a_kept_turn_makes_no_call_twice(
    make_place: Callable[[str], Place], store: str, point: str
) -> None:
    """Calls that nobody is asked about are not made again either, and none is lost, unless the
    process was killed once its tool was about to start.
    """
    place = make_place(store)
    queue = open_approvals(place.url)
    for _ in range(TRIES):
        said = await asyncio.to_thread(place.run_turn, point, "kept")
        if said in ("", "answered"):
            break
        await answer_all(queue)
    await go_on_to_end(place, queue, "kept")
    done = place.list_effects()
    assert len(done) == len(set(done))
    is_lost = point in NO_EFFECT or point.startswith(("in ", "kept "))
    assert len(NOTES) + 1 - len(done) <= is_lost, done
