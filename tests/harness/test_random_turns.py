"""Hundreds of turns of random calls to tools that sleep, raise, return garbage, fork, die and ignore
signals.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from misbehaving_tools import TOOLS
from turns import new_guard

from edictum.harness import ModelReply, ToolCallRequest, TurnBudget, TurnResult, run_turn
from edictum.outcomes import OUTCOME_KINDS
from support.effort import effort

TURN_S = 0.25
EXAMPLES, TURNS = effort(15, soak=200), 20

seconds = st.sampled_from([0.0, 0.01, 0.05, 0.2, 0.3])
quick = st.one_of(
    st.tuples(
        st.sampled_from(["sleeps", "blocks", "ignores_cancellation"]),
        st.fixed_dictionaries({"seconds": seconds}),
    ),
    st.tuples(
        st.just("raises"),
        st.fixed_dictionaries(
            {"kind": st.sampled_from(["value", "exit", "timeout", "base", "key"])}
        ),
    ),
    st.tuples(
        st.just("garbage"),
        st.fixed_dictionaries(
            {"kind": st.sampled_from(["none", "set", "bytes", "nan", "big", "object", "error"])}
        ),
    ),
    st.tuples(
        st.sampled_from(["nobody", "sleeps", ""]),
        st.sampled_from(["{", [], None, {"seconds": "0.01"}, {"second": 1}]),
    ),
)
slow = st.one_of(
    st.tuples(st.just("forks"), st.fixed_dictionaries({"seconds": seconds})),
    st.tuples(st.just("dies"), st.fixed_dictionaries({"code": st.sampled_from([0, 1, 9])})),
)
rounds = st.lists(st.lists(quick, min_size=1, max_size=4), min_size=1, max_size=3)


class RandomModel:
    """Asks for the calls that were drawn, round after round, with ids that repeat."""

    def __init__(self, script: list[list[tuple[str, Any]]]) -> None:
        self._script = list(script)
        self.asked = 0

    async def __call__(self, messages: Any, tools: Any) -> ModelReply:
        if not self._script or not tools:
            return ModelReply("done")
        calls = tuple(
            ToolCallRequest(f"call_{n}", name, arguments)
            for n, (name, arguments) in enumerate(self._script.pop(0))
        )
        self.asked += len(calls)
        return ModelReply("", calls)


async def one_turn(
    script: list[list[tuple[str, Any]]], guard: Any, ends: list[tuple[float, float]]
) -> None:
    """Run a turn; its deadline and its end are added to ``ends``."""
    model = RandomModel(script)
    budget = TurnBudget.create(TURN_S, max_steps=8, max_tool_calls=10)
    result = await run_turn(model, [{"role": "user", "content": "go"}], TOOLS, guard, budget)
    ends.append((budget.deadline, time.perf_counter()))
    check(result, model.asked)


def check(result: TurnResult, asked: int) -> None:
    """Each call has exactly one outcome and exactly one tool message."""
    assert len(result.outcomes) == asked
    assert all(type(outcome) in OUTCOME_KINDS for outcome in result.outcomes)
    assert sum(message["role"] == "tool" for message in result.messages) == asked
    assert len({entry.trace_id for entry in result.state.tool_trace.values()}) == len(
        result.state.tool_trace
    )


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def descendants() -> set[int]:
    """Processes below this one that are alive."""
    parents = {}
    for entry in (entry for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
        except (OSError, IndexError):
            continue
        if state != "Z":
            parents[int(entry.name)] = int(parent)
    found, grew = {os.getpid()}, True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found, grew = found | more, bool(more)
    return found - {os.getpid()}


def settle(holds: Any, timeout_s: float = 60.0) -> bool:
    """Whether something becomes true before long."""
    end = time.perf_counter() + timeout_s
    while not holds() and time.perf_counter() < end:
        gc.collect()
        time.sleep(0.05)
    return bool(holds())


@pytest.mark.slow
@pytest.mark.soak
def test_random_turns_each_end_and_leave_nothing_behind() -> None:
    from edictum.execution.processes import PROCESSES
    from edictum.execution.threads import POOL

    guard = new_guard()
    ends: list[tuple[float, float]] = []
    drawn = 0
    servers = descendants()  # that other tests of this process have started

    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(rounds, min_size=TURNS, max_size=TURNS), st.one_of(st.just(None), slow))
    def run(scripts: list[Any], extra: Any) -> None:
        nonlocal drawn
        drawn += len(scripts)
        if extra is not None:
            scripts[0] = [[extra, *scripts[0][0]], *scripts[0][1:]]

        async def together() -> None:
            await asyncio.gather(*(one_turn(script, guard, ends) for script in scripts))

        asyncio.run(together())

    asyncio.run(
        one_turn([[("dies", {"code": 1})]], guard, [])
    )  # the workers are warm, and hold their files, from here on
    files, threads = open_files(), threading.active_count()
    run()
    assert drawn >= EXAMPLES * TURNS
    late = sorted(ended - deadline for deadline, ended in ends if ended > deadline)
    print(
        f"\nturns: {len(ends)}; {len(late)} after their deadline,"
        f" the latest by {max(late, default=0.0) * 1000:.0f} ms"
    )
    assert settle(lambda: POOL.abandoned.count + guard._state.wiring.abandoned.count() == 0)
    assert settle(lambda: threading.active_count() <= threads + 16), threading.enumerate()
    assert settle(lambda: open_files() <= files + 16), os.listdir("/proc/self/fd")
    assert guard.session().in_flight == 0
    PROCESSES.close()
    assert settle(lambda: descendants() <= servers), descendants() - servers
