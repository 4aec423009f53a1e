"""Custom selectors: called once for each call, ordinary or asynchronous, and never fail open."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections import Counter
from typing import Any

import pytest

from edictum import Edictum, EdictumConfigError, HookDecision, HookRegistration, ToolCall
from edictum.outcomes import ToolDenied, ToolExecutionResult
from support.bundles import bundle_of, contract

CONTRACTS = [
    contract("mail", when={"args.to": {"not_equals": {"field": "order.email"}}}),
    contract("total", when={"order.total": {"gt": 100}}, message="{order.total} for {order.email}"),
    contract(
        "owner", when={"all": [{"order.vip": {"equals": False}}, {"order.old": {"equals": 1}}]}
    ),
    contract("late", when={"all": [{"session.attempts": {"gt": 5}}, {"order.total": {"gt": 1}}]}),
    contract("seen", type="post", when={"order.total": {"gt": 50}}, effect="warn"),
]
ORDER = {"email": "a@b.c", "total": 70, "vip": True, "old": 0}


def send(to: str) -> str:
    return f"sent to {to}"


def make_guard(selector: Any) -> Edictum:
    return Edictum.from_yaml_string(bundle_of(*CONTRACTS), custom_selectors={"order": selector})


class Orders:
    """Counts how often it is asked."""

    def __init__(self, order: Any = None) -> None:
        self.asked: Counter[str] = Counter()
        self.order = ORDER if order is None else order

    def plain(self, call: ToolCall) -> Any:
        self.asked[call.call_id] += 1
        return self.order

    async def later(self, call: ToolCall) -> Any:
        await asyncio.sleep(0)
        return self.plain(call)

    def awaitable(self, call: ToolCall) -> Any:
        return self.later(call)

    def select(self, kind: str) -> Any:
        return getattr(self, kind)


KINDS = ["plain", "later", "awaitable"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_selector_is_called_once_for_each_call(kind: str) -> None:
    orders = Orders()
    guard = make_guard(orders.select(kind))
    outcomes = [await guard.dispatch("send", {"to": "a@b.c"}, send) for _ in range(3)]
    assert [type(outcome) for outcome in outcomes] == [ToolExecutionResult] * 3
    assert [finding.contract_id for finding in outcomes[0].findings] == ["seen"]  # type: ignore[union-attr]
    assert sorted(orders.asked.values()) == [1, 1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_selector_decides_in_synchronous_calls(kind: str) -> None:
    orders = Orders({**ORDER, "total": 500})
    guard = make_guard(orders.select(kind))
    outcome = guard.dispatch_sync("send", {"to": "a@b.c"}, send)
    assert isinstance(outcome, ToolDenied)
    assert outcome.details == "500 for a@b.c"
    assert not outcome.policy_error
    assert list(orders.asked.values()) == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_evaluate_and_explain_ask_a_selector_too(kind: str) -> None:
    orders = Orders({**ORDER, "total": 500})
    guard = make_guard(orders.select(kind))
    assert guard.evaluate("send", {"to": "a@b.c"}).deny_reasons == ["500 for a@b.c"]
    with warnings.catch_warnings(action="error"):
        shown = str(guard.explain("send", {"to": "a@b.c"}))
        gc.collect()
    assert "order.total gt 100: holds  (value: 500)" in shown
    assert (
        "args.to not_equals field order.email: does not hold"
        "  (value: 'a@b.c'; order.email is 'a@b.c')" in shown
    )


def test_explain_leaves_a_selector_alone_that_judging_did_not_need() -> None:
    when = {"all": [{"args.to": {"equals": "y"}}, {"order.total": {"gt": 1}}]}
    guard = Edictum.from_yaml_string(
        bundle_of(contract("c", when=when)), custom_selectors={"order": Orders().later}
    )
    with warnings.catch_warnings(action="error"):
        shown = str(guard.explain("send", {"to": "x"}))
        gc.collect()
    assert "order.total gt 1: error  (the selector is asynchronous and was not awaited)" in shown
    assert shown.startswith("send: allow")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [None, {}, {"email": None}])
async def test_a_selector_that_returns_nothing_denies(kind: str, order: Any) -> None:
    orders = Orders()
    orders.order = order
    outcome = await make_guard(orders.select(kind)).dispatch("send", {"to": "x"}, send)
    assert isinstance(outcome, ToolDenied)
    assert outcome.policy_error


@pytest.mark.parametrize("kind", KINDS)
async def test_a_selector_that_raises_denies_and_is_not_asked_again(kind: str) -> None:
    asked = []

    def fail(call: ToolCall) -> Any:
        asked.append(call.call_id)
        raise ConnectionError("the database is down")

    async def fail_later(call: ToolCall) -> Any:
        await asyncio.sleep(0)
        return fail(call)

    selector = {"plain": fail, "later": fail_later, "awaitable": lambda call: fail_later(call)}[
        kind
    ]
    outcome = await make_guard(selector).dispatch("send", {"to": "a@b.c"}, send)
    assert isinstance(outcome, ToolDenied)
    assert outcome.policy_error
    assert len(asked) == 1


async def test_rewritten_arguments_are_looked_up_anew() -> None:
    guard = Edictum.from_yaml_string(
        bundle_of(contract("long", when={"size.of": {"gt": 3}})),
        custom_selectors={"size": lambda call: {"of": len(call.args["to"])}},
        hooks=[
            HookRegistration(
                phase="before",
                tool="*",
                callback=lambda call: HookDecision.rewrite({"to": "long enough"}, "test"),
            )
        ],
    )
    assert isinstance(await guard.dispatch("send", {"to": "x"}, send), ToolDenied)


async def test_many_calls_wait_at_the_same_time_without_mixing() -> None:
    async def order_of(call: ToolCall) -> dict[str, Any]:
        await asyncio.sleep(0.001 * (call.args["n"] % 3))
        return {"n": call.args["n"]}

    guard = Edictum.from_yaml_string(
        bundle_of(contract("odd", when={"order.n": {"not_equals": {"field": "args.n"}}})),
        custom_selectors={"order": order_of},
    )
    calls = [guard.dispatch("t", {"n": n}, lambda n: n) for n in range(60)]
    outcomes = await asyncio.gather(*calls)
    assert [outcome.value for outcome in outcomes] == list(range(60))  # type: ignore[union-attr]


async def test_a_cancelled_caller_does_not_wait_for_a_selector() -> None:
    started = asyncio.Event()

    async def never(call: ToolCall) -> Any:
        started.set()
        await asyncio.Event().wait()

    guard = make_guard(never)
    task = asyncio.ensure_future(guard.dispatch("send", {"to": "x"}, send))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_success_rule_takes_no_asynchronous_selector() -> None:
    rule = {"tool": "*", "failure_when": {"order.total": {"gt": 1}}}
    with pytest.raises(EdictumConfigError, match="success rules do not wait"):
        Edictum.from_yaml_string(
            bundle_of(success=[rule]), custom_selectors={"order": Orders().later}
        )
