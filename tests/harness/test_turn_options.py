"""Options of turns that are not what their names stand for are refused before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from edictum import EdictumConfigError
from edictum.execution.processes import ProcessPool
from edictum.harness import ModelReply, TurnBudget, Usage, run_turn_sync

USER = [{"role": "user", "content": "Go."}]


def answer(*_: Any) -> str:
    return "done"


@pytest.mark.parametrize("mode", ["Off", "OFF", "none", False, None, 0])
def test_a_web_mode_that_does_not_exist_is_refused(mode: Any) -> None:
    """It would mean "on", and a web tool would run."""
    with pytest.raises(EdictumConfigError, match=r'web_mode is .*Use "on" or "off"'):
        run_turn_sync(
            lambda *_: ModelReply("", ({"id": "1", "name": "x", "arguments": {}},)),  # type: ignore[arg-type]  # read as one
            USER,
            web_mode=mode,
        )


@pytest.mark.parametrize("name", ["on_evnt", "on_outcom", "principle"])
def test_an_option_that_does_not_exist_is_refused(name: str) -> None:
    """A function under a misspelled name would be taken for one that describes the caller."""
    with pytest.raises(EdictumConfigError, match=f"no option '{name}'"):
        run_turn_sync(answer, USER, **{name: print})


@pytest.mark.parametrize("price", [{}, {"input_tokens": 3.0}, {"output_tokens": 15.0}])
def test_a_table_of_prices_by_which_tokens_are_free_is_refused(price: dict[str, float]) -> None:
    """A budget of money would never be reached."""
    budget = TurnBudget.create(5, max_cost=1.0, price=price)
    with pytest.raises(EdictumConfigError, match="price has no"):
        run_turn_sync(answer, USER, budget=budget)


def test_tokens_of_a_cache_without_a_price_cost_as_much_as_input() -> None:
    """They are not free."""
    usage = Usage(input_tokens=0, output_tokens=0, cache_creation_tokens=1_000_000)
    price = {"input_tokens": 3.0, "output_tokens": 15.0, "cache_read_tokens": 0.3}
    result = run_turn_sync(
        lambda *_: ModelReply("done", usage=usage),
        USER,
        budget=TurnBudget.create(5, max_cost=9.0, price=price),
    )
    assert [call.cost for call in result.model_calls] == [3.0]


@pytest.mark.parametrize(
    "options",
    [
        {"max_workers": -3},
        {"max_workers": "2"},
        {"max_workers": 0},
        {"memory_bytes": -1},
        {"cpu_s": 0},
        {"max_result_bytes": 1.5},
        {"env": {"A=B": "x"}},
        {"env": {"A": "x\0y"}},
        {"env": {"A": 1}},
        {"env": ["A"]},
    ],
    ids=str,
)
def test_options_of_a_process_pool_that_cannot_be_used_are_refused(options: dict[str, Any]) -> None:
    """A call would hang, or raise what no caller expects."""
    with pytest.raises(EdictumConfigError, match=f"ProcessPool: {next(iter(options))} "):
        ProcessPool(**options)
