"""What a turn may spend on its model: tokens, money, context; and what is told of each call."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turns import USER, Script, assert_answered, calls, new_guard, search

from edictum import EdictumConfigError
from edictum.harness import (
    ModelCall,
    ModelReply,
    ToolCallRequest,
    TurnBudget,
    TurnState,
    Usage,
    run_turn,
    run_turn_sync,
)

PRICES = {"input_tokens": 3.0, "output_tokens": 15.0}


def ask(number: int, usage: Usage) -> ModelReply:
    call = ToolCallRequest(f"c{number}", "search", {"query": str(number)})
    return ModelReply("looking", (call,), usage)


def endless(usage: Usage) -> Script:
    return Script(*(ask(number, usage) for number in range(50)))


async def test_a_turn_ends_before_the_model_call_that_has_no_tokens_left() -> None:
    model = endless(Usage(80, 20))
    budget = TurnBudget.create(60, max_steps=50, max_tokens=250)
    result = await run_turn(model, USER, [search], new_guard(), budget)
    assert (result.stopped_by, result.text, len(model.asked)) == ("tokens", "looking", 3)
    assert len(result.outcomes) == 3
    assert_answered(result.messages)
    assert result.messages[-1]["role"] == "tool"


async def test_a_turn_ends_before_the_model_call_that_has_no_money_left() -> None:
    model = endless(Usage(100_000, 10_000))  # 0.30 and 0.15
    budget = TurnBudget.create(60, max_steps=50, max_cost=1.0, price=PRICES)
    result = await run_turn(model, USER, [search], new_guard(), budget)
    assert (result.stopped_by, len(model.asked)) == ("cost", 3)
    assert [call.cost for call in result.model_calls] == [pytest.approx(0.45)] * 3
    assert budget.snapshot()["cost_used"] == pytest.approx(1.35)


async def test_a_function_may_tell_the_price_of_a_call() -> None:
    budget = TurnBudget.create(
        60, max_steps=50, max_cost=2, price=lambda call: 1 if call.model == "small" else 2
    )
    replies = [ModelReply("x", (call("a"),), model="small"), ModelReply("y", model="large")]
    result = await run_turn(Script(*replies), USER, [search], new_guard(), budget)
    assert [each.cost for each in result.model_calls] == [1.0, 2.0]
    assert result.stopped_by == "answered"


def call(query: str) -> ToolCallRequest:
    return ToolCallRequest("c", "search", {"query": query})


@pytest.mark.parametrize(
    ("api", "tokens", "cost"), [("openai", 110, 80), ("anthropic", 150, 120), ("", 150, 120)]
)
async def test_cached_tokens_count_once_whatever_the_provider(
    api: str, tokens: int, cost: float
) -> None:
    """OpenAI's input tokens include the cached ones, Anthropic's do not. What the table has no price
    for is written to the cache, and costs as input does.
    """
    reply = ModelReply("hi", (), Usage(100, 10, 30, 10), api=api)
    price = {"input_tokens": 1e6, "cache_read_tokens": 0, "output_tokens": 1e6}
    budget = TurnBudget.create(60, price=price)
    result = await run_turn(Script(reply), USER, [], new_guard(), budget)
    (call,) = result.model_calls
    assert (call.tokens, call.cost, budget.tokens_used) == (tokens, cost, tokens)


async def test_tokens_that_are_used_up_leave_no_last_question() -> None:
    model = endless(Usage(100, 0))
    budget = TurnBudget.create(60, max_steps=1, max_tokens=100)
    result = await run_turn(model, USER, [search], new_guard(), budget)
    assert (result.stopped_by, len(model.asked)) == ("tokens", 1)


async def test_a_conversation_that_has_grown_too_long_ends_the_turn() -> None:
    replies = [ask(number, Usage(10, 0, cache_read_tokens=90 * number)) for number in range(9)]
    budget = TurnBudget.create(60, max_steps=50, max_context_tokens=200)
    result = await run_turn(Script(*replies), USER, [search], new_guard(), budget)
    assert (result.stopped_by, len(result.model_calls)) == ("context", 4)


@pytest.mark.parametrize(
    "options", [{"max_tokens": 100}, {"max_cost": 1.0, "price": PRICES}], ids=["tokens", "cost"]
)
async def test_a_reply_that_does_not_tell_its_tokens_is_not_used(options: Any) -> None:
    """Fail if a bound is passed over in silence, or if the calls of such a reply run."""
    guard = new_guard()
    model = Script(ModelReply("looking", (call("a"),)))
    result = await run_turn(model, USER, [search], guard, TurnBudget.create(60, **options))
    assert (result.stopped_by, result.outcomes) == ("model_error", ())
    assert "usage" in str(result.error)
    assert guard.session().attempts == 0
    assert result.messages[-1] == {"role": "assistant", "content": "looking"}


@pytest.mark.parametrize("price", [lambda _: -1, lambda _: float("nan"), lambda _: 1 / 0])
async def test_a_price_that_is_not_a_number_ends_the_turn(price: Any) -> None:
    budget = TurnBudget.create(60, max_cost=1, price=price)
    result = await run_turn(Script(ask(0, Usage(1, 1))), USER, [search], new_guard(), budget)
    assert (result.stopped_by, result.outcomes) == ("model_error", ())
    assert result.model_calls[0].error is result.error is not None


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_tokens": -1},
        {"max_tokens": 1.5},
        {"max_cost": -1, "price": PRICES},
        {"max_cost": True, "price": PRICES},
        {"max_cost": 1},
        {"price": 3},
        {"max_context_tokens": -1},
    ],
)
def test_a_wrong_budget_is_refused(wrong: Any) -> None:
    with pytest.raises(EdictumConfigError, match="TurnBudget"):
        TurnBudget.create(**wrong)


@pytest.mark.parametrize("price", [{"tokens": 3}, {"input_tokens": -1}, {"input_tokens": "3"}])
async def test_a_wrong_table_of_prices_is_refused_before_the_turn(price: Any) -> None:
    model = Script("done")
    with pytest.raises(EdictumConfigError, match="price"):
        await run_turn(model, USER, budget=TurnBudget.create(price=price))
    assert model.asked == []


async def test_the_model_is_told_of_tokens_and_money() -> None:
    budget = TurnBudget.create(60, 50, max_tokens=1_000, max_cost=10, price=lambda _: 1)
    result = await run_turn(endless(Usage(300, 0)), USER, [search], new_guard(), budget)
    assert [note for note in result.notes if "400 tokens" in note and "80% of the money" in note]


async def test_a_listener_is_told_of_every_model_call() -> None:
    heard: list[ModelCall] = []

    async def listen(call: ModelCall) -> None:
        await asyncio.sleep(0)
        heard.append(call)

    reply = ModelReply("", (call("a"),), Usage(10, 5), model="m-1", response_id="r1")
    model = Script(reply, ConnectionError("gone"))
    result = await run_turn(model, USER, [search], new_guard(), on_model_call=listen)
    first, second = heard
    assert tuple(heard) == result.model_calls
    assert (first.step, first.usage, first.stop_reason) == (1, Usage(10, 5), "tool_calls")
    assert (first.model, first.response_id, first.cost, first.error) == ("m-1", "r1", None, None)
    assert first.duration_s >= 0
    assert (second.step, second.stop_reason) == (2, None)
    assert isinstance(second.error, ConnectionError)


async def test_a_model_call_that_runs_out_of_time_is_told_as_well() -> None:
    async def slow(_messages: Any, _tools: Any) -> str:
        await asyncio.sleep(60)
        return "late"

    budget = TurnBudget.create(0.3, reserve_s=0.1)
    result = await run_turn(slow, USER, [], new_guard(), budget)
    assert result.stopped_by == "deadline"
    assert {type(each.error).__mro__[1] for each in result.model_calls} == {TimeoutError}


async def test_a_listener_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def listen(_call: ModelCall) -> None:
        raise ValueError("deaf")

    with caplog.at_level(logging.ERROR, "edictum"):
        result = await run_turn(Script("hi"), USER, [], new_guard(), on_model_call=listen)
    assert result.text == "hi"
    assert "on_model_call failed" in caplog.text


# --- The budget of a turn that is given none ------------------------------------------------------


@pytest.mark.parametrize("state", [None, "new"])
async def test_a_turn_without_a_budget_leaves_room_for_a_coding_agent(state: Any) -> None:
    rounds = [calls(*(("search", {"query": f"{n}-{it}"}) for it in range(5))) for n in range(30)]
    given_state = None if state is None else TurnState()
    result = await run_turn(Script(*rounds, "done"), USER, [search], new_guard(), state=given_state)
    assert (result.stopped_by, len(result.outcomes)) == ("answered", 150)


async def test_the_budget_of_a_state_is_kept() -> None:
    state = TurnState(budget=TurnBudget.create(60, max_steps=1))
    result = await run_turn(endless(Usage()), USER, [search], new_guard(), state=state)
    assert result.stopped_by == "steps"


# --- Against a plain model ------------------------------------------------------------------------


@given(
    usages=st.lists(st.tuples(st.integers(1, 500), st.integers(0, 500)), max_size=8),
    max_tokens=st.none() | st.integers(0, 2_000),
    max_cost=st.none() | st.integers(0, 2_000),
    max_steps=st.integers(0, 8),
)
def test_a_turn_ends_where_a_plain_count_ends_it(
    usages: Any, max_tokens: int | None, max_cost: int | None, max_steps: int
) -> None:
    replies = [ask(number, Usage(*usage)) for number, usage in enumerate(usages)]
    last = ModelReply("done", (), Usage(1, 0))
    budget = TurnBudget.create(
        60,
        max_steps,
        50,
        max_context_tokens=None,
        max_tokens=max_tokens,
        max_cost=max_cost,
        price=lambda call: call.usage.output_tokens,
    )
    result = run_turn_sync(Script(*replies, *[last] * 2), USER, [search], new_guard(), budget)
    assert (result.stopped_by, len(result.model_calls)) == count_plainly(
        [*usages, (1, 0)], max_tokens, max_cost, max_steps
    )


def count_plainly(
    usages: Any, max_tokens: int | None, max_cost: int | None, max_steps: int
) -> tuple[str, int]:
    tokens = cost = made = 0
    while True:
        if max_tokens is not None and tokens >= max_tokens:
            return "tokens", made
        if max_cost is not None and cost >= max_cost:
            return "cost", made
        if made == max_steps:
            return "steps", made + 1
        tokens, cost = tokens + sum(usages[made]), cost + usages[made][1]
        made += 1
        if made == len(usages):
            return "answered", made
