"""What a turn costs: ``dispatch`` with a turn next to ``run``, and each way of running a tool next
to the bare mechanism.

    python benchmarks/bench_harness.py

All rows of a table take turns in one run, so that a busy moment hits all of them; a figure is the
fastest of the repetitions, which is what the code costs when nobody disturbs it. The ratios are
what to read. Celery needs a Valkey from the test wheels and is left out, loudly, where there is
none.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from edictum import Edictum, OperationLimits
from edictum.core.call import ToolCall
from edictum.core.effects import RunTool
from edictum.execution.processes import PROCESSES
from edictum.execution.threads import POOL
from edictum.harness import BoundedToolExecutor, ToolSpec, Turn, TurnBudget, TurnState, tool

TESTS = Path(__file__).resolve().parent.parent / "tests"
REPETITIONS = 15
CALLS_PER_TURN = 20
ARGS = {"a": 1, "b": 2}

Case = Callable[[], Awaitable[Any]]


async def add_async(a: int, b: int = 2) -> int:
    return a + b


def add(a: int, b: int) -> int:
    return a + b


def specs() -> list[ToolSpec]:
    return [
        tool(name="inline", side_effect="read", isolation="inline")(add_async),
        tool(name="cacheable", side_effect="pure", isolation="inline")(add_async),
        tool(name="async", side_effect="read")(add_async),
        tool(name="thread", side_effect="read")(add),
        tool(name="process", side_effect="read", isolation="process")(add),
    ]


class Bench:
    """A guard and a turn that is renewed every few calls, as real ones are."""

    def __init__(self, execution: Any = None) -> None:
        limits = OperationLimits(max_attempts=None, max_tool_calls=None)
        self.guard = Edictum(limits=limits, execution=execution)
        self._executor = BoundedToolExecutor(specs(), guard=self.guard)
        # Others each time, as a model's are; a cacheable call with the same ones would be a
        # duplicate.
        self.arguments = ({"a": number, "b": 2} for number in itertools.count())

    def _turns(self) -> Iterator[Turn]:
        while True:
            turn = self._executor.turn(TurnState("bench", TurnBudget.create(600, max_steps=10_000)))
            yield from itertools.repeat(turn, CALLS_PER_TURN)

    def dispatch(self, name: str) -> Case:
        """A call in a turn."""
        turns = self._turns()
        return lambda: self.guard.dispatch(
            name, next(self.arguments), turn=next(turns), call_id="call"
        )


async def measure(
    cases: dict[str, Case],
    calls: int,
    repetitions: int = REPETITIONS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Microseconds per call of each case, the fastest repetition."""
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(repetitions):
        for name, case in cases.items():
            started = clock()
            for _ in range(calls):
                await case()
            best[name] = min(best[name], (clock() - started) / calls * 1e6)
    return best


def show(title: str, figures: dict[str, float], against: dict[str, str]) -> None:
    print(f"\n{title}")
    for name, value in figures.items():
        base = against.get(name)
        ratio = f"{value / figures[base]:6.2f}x {base}" if base else ""
        print(f"  {name:<38}{value:>10,.1f} us   {ratio}")


async def report_turn(repetitions: int) -> None:
    bench = Bench()
    cases: dict[str, Case] = {
        "run": lambda: bench.guard.run("inline", next(bench.arguments), add_async),
        "run, session and call id given": lambda: bench.guard.run(
            "inline", next(bench.arguments), add_async, session_id="bench", call_id="call"
        ),
        "dispatch in a turn": bench.dispatch("inline"),
        "dispatch in a turn, cacheable": bench.dispatch("cacheable"),
    }
    figures = await measure(cases, 400, repetitions, time.process_time)  # nothing here waits
    show(
        "A turn's gates, replay control and size check, inline, in CPU time",
        figures,
        dict.fromkeys([*cases][1:], "run"),
    )
    ids = figures["dispatch in a turn"] / figures["run, session and call id given"]
    print(f"  dispatch in a turn is {ids:.2f}x a run that is given the same session and call id")


def effect(body: Any, run_in: Any = "inline") -> RunTool:
    return RunTool(ToolCall("add", ARGS), "key", body, 45.0, run_in)


async def bare_async() -> int:
    async with asyncio.timeout(45):
        return await add_async(**ARGS)


async def bare_thread() -> int:
    return await asyncio.wrap_future(POOL.submit(lambda: add(**ARGS)))  # type: ignore[no-any-return]


async def report_isolation(repetitions: int) -> None:
    bench = Bench()
    cases: dict[str, Case] = {
        "async, bare (asyncio.timeout)": bare_async,
        "async": bench.dispatch("async"),
        "thread, bare (a pooled daemon thread)": bare_thread,
        "thread": bench.dispatch("thread"),
        "process, bare (the worker pool)": lambda: PROCESSES.run(effect(add, "process")),
        "process": bench.dispatch("process"),
    }
    names = [*cases]
    figures = await measure(cases, 60, repetitions)
    show(
        "Where a tool runs, next to the bare mechanism",
        figures,
        {names[i + 1]: names[i] for i in range(0, len(names), 2)},
    )


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def celery_worker() -> Iterator[str]:
    """A Valkey and one Celery worker on it, from the tests."""
    servers, helpers = (
        _load(TESTS / "support" / "servers.py"),
        _load(TESTS / "harness" / "execution" / "execution_helpers.py"),
    )
    server = servers.Valkey(durable=False)
    worker = helpers.CeleryWorker(server.url)
    try:
        yield server.url.replace("redis://", "celery://").replace("valkey://", "celery://")
    finally:
        worker.stop()
        server.stop()


async def report_celery(url: str, repetitions: int) -> None:
    from edictum.execution.celery import CeleryEngine

    sys.path.insert(0, str(TESTS / "harness" / "execution"))
    import os

    os.environ["EDICTUM_TEST_BROKER"] = url.replace("celery://", "redis://")
    from celery_bodies import add as remote_add

    engine = CeleryEngine(url)
    guard = Edictum(
        limits=OperationLimits(max_attempts=None, max_tool_calls=None), execution=engine
    )
    turn = Turn(
        TurnState("bench", TurnBudget.create(600, max_steps=100_000)),
        [tool(name="add", side_effect="read")(remote_add)],
    )
    await engine.run(effect(remote_add, engine))  # until the worker is there
    cases: dict[str, Case] = {
        "celery, bare (the engine)": lambda: engine.run(effect(remote_add, engine)),
        "celery": lambda: guard.dispatch("add", ARGS, turn=turn, call_id="call"),
    }
    show(
        "On a Celery worker",
        await measure(cases, 40, repetitions),
        {"celery": "celery, bare (the engine)"},
    )
    await guard.close()


def main() -> None:
    quick = "--quick" in sys.argv
    repetitions = 2 if quick else REPETITIONS
    asyncio.run(report_turn(repetitions))
    asyncio.run(report_isolation(repetitions))
    try:
        with celery_worker() as url:
            asyncio.run(report_celery(url, 2 if quick else 5))
    except Exception as exc:
        print(f"\nCelery: NOT MEASURED, {type(exc).__name__}: {exc}")
    PROCESSES.close()


if __name__ == "__main__":
    main()
