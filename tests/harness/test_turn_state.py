"""TurnState: the late-write gate, the trace, repair counts, tokens."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from turns import Bench

from edictum.harness import TurnState, tool
from edictum.outcomes import ToolDenied


def test_completed_and_timed_out_exclude_each_other() -> None:
    state = TurnState()
    state.set_trace_running("a", "tool")
    assert state.complete_trace("a", "value") is True
    assert state.mark_trace_timed_out("a") is False
    assert state.tool_trace["a"].result == "value"
    state.set_trace_running("b", "tool")
    assert state.mark_trace_timed_out("b") is True
    assert state.complete_trace("b", "late") is False
    assert state.tool_trace["b"].result is None


def test_a_late_end_is_remembered_once() -> None:
    state = TurnState()
    state.set_trace_running("a", "tool", "call_0")
    state.mark_trace_timed_out("a")
    state.complete_trace("a")
    state.complete_trace("a")
    assert [entry.call_id for entry in state.late_completions()] == ["call_0"]
    assert state.late_completions() == []


def test_the_race_of_completion_and_timeout_has_one_winner() -> None:
    state = TurnState()
    for round_ in range(300):
        key = str(round_)
        state.set_trace_running(key, "tool")
        won: list[bool] = []
        start = threading.Barrier(2)
        verbs = (state.complete_trace, state.mark_trace_timed_out)

        def go(
            verb: object, key: str = key, won: list[bool] = won, start: threading.Barrier = start
        ) -> None:
            start.wait()
            won.append(verb(key))  # type: ignore[operator]

        threads = [threading.Thread(target=go, args=(verb,)) for verb in verbs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == [False, True]


class Busy(dict[str, Any]):
    """A dict that somebody changes while it is looked through."""

    def __iter__(self) -> Any:
        raise RuntimeError("dictionary changed size during iteration")


def test_a_long_turn_keeps_the_latest_of_its_trace_even_while_others_add_to_it() -> None:
    state = TurnState(max_trace=2)
    for key in "abc":
        state.set_trace_running(key, "tool")
    assert [*state.tool_trace] == ["b", "c"]
    state.tool_trace = Busy(state.tool_trace.items())
    assert state.set_trace_running("d", "tool").trace_id == "d"


def test_after_the_turn_nothing_counts_any_more() -> None:
    state = TurnState()
    state.set_trace_running("a", "tool")
    state.close_writes()
    assert not state.is_accepting_writes()
    assert state.complete_trace("a") is False
    assert state.record_tool_result(ToolDenied("c", "t", "deadline")) is False
    assert state.tool_results == []


def test_an_unknown_execution_does_not_complete_and_can_be_given_up() -> None:
    state = TurnState()
    assert state.complete_trace("unknown") is False
    assert state.mark_trace_timed_out("unknown") is True


def test_repairs_add_up_per_tool_and_kind_of_mistake() -> None:
    state = TurnState()
    assert [state.increment_repair("tool", "a:type") for _ in range(2)] == [1, 2]
    assert state.increment_repair("tool", "b:enum") == 1
    assert state.repair_count("tool", "a:type") == 2
    assert state.repair_count("tool") == 3
    assert state.repair_count("other") == 0


def test_tokens_add_up() -> None:
    state = TurnState()
    state.add_tokens(input_tokens=3, output_tokens=2)
    state.add_tokens(input_tokens=1, cache_read_tokens=7, cache_creation_tokens=1)
    assert (
        state.input_tokens,
        state.output_tokens,
        state.cache_read_tokens,
        state.cache_creation_tokens,
    ) == (4, 2, 7, 1)


@pytest.mark.parametrize("isolation", ["async", "inline"])
async def test_a_call_whose_caller_was_cancelled_is_not_completed(isolation: Any) -> None:
    started = asyncio.Event()

    async def hang() -> None:
        started.set()
        await asyncio.sleep(30)

    bench = Bench(tool(name="hang", side_effect="read", isolation=isolation)(hang))
    call = asyncio.create_task(bench.call("hang"))
    await started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [entry.status for entry in bench.state.tool_trace.values()] == ["cancelled"]
