"""One framework in its own venv: runs of its real loop with a scripted model, bare and governed in
turns, timed on two clocks.

    .venvs/s1/bin/python benchmarks/adapter_runs.py langchain 2.0

The agents are those of the conformance suite (tests/adapters), which wires each adapter as its page
shows. The tool itself reads the clocks whenever it is entered. From one entry to the next lie the
end of a call, the model's next turn and the beginning of another call: what a call costs, without
what a run does once at its start and its end. One of the turns asks for many calls, and what it
takes longer than the others is what calls cost without a turn of their own. The seconds of all runs
are the answer to bench_adapters.py, which makes tables of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from empty_hooks import EMPTY
from timing import both_clocks
from venvs import answer

from edictum import Edictum, OperationLimits
from edictum.testing._adapter_tools import count_executions
from edictum.testing.adapter import AdapterConformance, ModelScript, ScriptedCall, no_forbidden

TESTS = Path(__file__).resolve().parents[1] / "tests" / "adapters"
LEAST_ROUNDS = 8
WAYS = (
    "async",
    "sync",
)  # an asynchronous function in an asynchronous run; a plain function in a synchronous one

Seconds = tuple[float, float]  # of CPU time, and on the wall
Figures = dict[
    str, dict[str, list[Seconds]]
]  # "bare", "empty hook" or "governed" -> "turn" or "call" -> one figure per round


def calls(*numbers: int) -> list[ScriptedCall]:
    """One turn. The keys differ, since CrewAI ends a run that asks for the same thing again and
    again.
    """
    return [ScriptedCall("look", {"key": f"key {number}"}, f"call_{number}") for number in numbers]


# Semantic Kernel lets a model ask five times in a row. Fresh agents are slower in their first call,
# which is not counted.
FURTHER = 12  # calls in the wide turn, beyond the one that every turn has
SCRIPT: ModelScript = [
    calls(0),
    calls(1),
    calls(2),
    calls(*range(3, 4 + FURTHER)),
    calls(4 + FURTHER),
]
ENTRIES = sum(len(turn) for turn in SCRIPT)


def cut(entries: Sequence[Seconds]) -> dict[str, Seconds]:
    """What a call costs together with its turn, and what it costs alone, from the times at which
    the tool was entered.
    """
    if len(entries) != ENTRIES:
        raise RuntimeError(f"{ENTRIES} calls were asked for, {len(entries)} ran")
    turn = _between(entries[1], entries[2])
    wide = _between(entries[2], entries[-1])  # two turns and the further calls
    cpu, wall = ((both - 2 * one) / FURTHER for both, one in zip(wide, turn, strict=True))
    return {"turn": turn, "call": (cpu, wall)}


def _between(first: Seconds, second: Seconds) -> Seconds:
    return second[0] - first[0], second[1] - first[1]


class Tool:
    """The tool that the model calls."""

    def __init__(self) -> None:
        self.entries: list[Seconds] = []

    def function(self, way: str) -> Callable[..., Any]:
        def look(key: str) -> str:
            """Look something up."""
            self.entries.append(both_clocks())
            return f"value of {key}"

        async def alook(key: str) -> str:
            """Look something up."""
            return look(key)

        alook.__name__ = alook.__qualname__ = "look"
        return alook if way == "async" else look


class Bench:
    """A driver, an adapter with one contract and limits that are far away, and the loop that
    asynchronous runs use.
    """

    def __init__(self, driver: AdapterConformance, way: str, empty_hook: Any = None) -> None:
        self.driver, self.way = driver, way
        self.guard = Edictum(
            contracts=[no_forbidden], limits=OperationLimits(max_attempts=None, max_tool_calls=None)
        )
        self.adapter = driver.make_adapter(self.guard)
        self.wired = {"bare": None, "empty hook": empty_hook, "governed": self.adapter}
        if empty_hook is None:
            del self.wired["empty hook"]
        self.runner = asyncio.Runner()
        self.rounds = 0

    def play_round(self) -> dict[str, dict[str, Seconds]]:
        """One run of each in turns; who is first changes from round to round."""
        self.rounds += 1
        return {
            who: self._play(who)
            for who in (self.wired if self.rounds % 2 else reversed(self.wired))
        }

    def _play(self, who: str) -> dict[str, Seconds]:
        tool = Tool()
        agent = self.driver.build(self.wired[who], [tool.function(self.way)], SCRIPT)
        with no_garbage_collection():
            self._run(agent)
        return cut(tool.entries)

    def _run(self, agent: Any) -> None:
        if self.way == "async":
            self.runner.run(self.driver.arun(agent))
        else:
            self.driver.run(agent)

    def check(self) -> None:
        """An adapter that is not wired costs nothing."""
        counted = count_executions(self.guard)
        if counted != self.rounds * ENTRIES:
            raise RuntimeError(
                f"{self.rounds * ENTRIES} governed calls ran, the guard counted {counted}"
            )

    def close(self) -> None:
        self.runner.close()


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Equal runs would be interrupted for it at equal places, always in the same call. It is done
    between the runs.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def measure(bench: Bench, seconds: float) -> Figures:
    bench.play_round()  # warm up
    gc.freeze()  # what was imported is not looked through again and again
    rounds: list[dict[str, dict[str, Seconds]]] = []
    ends = time.monotonic() + seconds
    while len(rounds) < LEAST_ROUNDS or time.monotonic() < ends:
        rounds.append(bench.play_round())
    bench.check()
    return {
        who: {kind: [played[who][kind] for played in rounds] for kind in ("turn", "call")}
        for who in bench.wired
    }


def driver_of(module: Any) -> AdapterConformance:
    """The first driver that a test module has: the way of wiring that its page shows first."""
    own = [
        item
        for item in vars(module).values()
        if isinstance(item, type) and item.__module__ == module.__name__
    ]
    return next(item for item in own if issubclass(item, AdapterConformance))()


def main(name: str, seconds: float) -> dict[str, Any]:
    sys.path[:0] = [str(TESTS), str(TESTS.parent)]
    driver = driver_of(importlib.import_module(f"test_{name}"))
    logging.disable(
        logging.WARNING
    )  # some frameworks miss, at every turn, what a scripted model does not tell
    ways = [way for way in WAYS if (way, way) in driver.ways]
    empty_hook = EMPTY[name]() if name in EMPTY else None
    figures: dict[str, Figures] = {}
    for way in ways:
        with contextlib.closing(Bench(driver, way, empty_hook)) as bench:
            figures[way] = measure(bench, seconds)
    return {
        "framework": driver.framework,
        "version": metadata.version(driver.distribution),
        "ways": figures,
    }


if __name__ == "__main__":
    answer(lambda: main(sys.argv[1], float(sys.argv[2])))
