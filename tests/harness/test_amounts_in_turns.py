"""Amounts that tools state, in turns: nothing has to be said at the call."""

from __future__ import annotations

from typing import Any

import pytest
from turns import USER, Script, calls

from edictum import Edictum, EdictumConfigError, InMemoryApprovalBackend, OperationLimits
from edictum.harness import ToolSpec, TurnResult, run_turn, tool
from support.guards import approval_contract

BUDGET = OperationLimits(max_amounts={"refunded": 100})


def make_refund(**settings: Any) -> tuple[ToolSpec, list[float]]:
    """Return a tool that refunds half of the amount, and the amounts that it was called with."""
    ran: list[float] = []

    def refund(amount: float = 40, key: int = 0) -> dict[str, float]:
        ran.append(amount)
        return {"refunded": amount / 2}

    return tool(name="refund", side_effect="write", **settings)(refund), ran


async def play(
    guard: Edictum, spec: ToolSpec, *arguments: Any, at_once: bool = False, **options: Any
) -> TurnResult:
    requests = [("refund", each) for each in arguments]
    steps = [calls(*requests)] if at_once else [calls(each) for each in requests]
    return await run_turn(Script(*steps, "done"), USER, [spec], guard, session_id="s", **options)


def kinds(result: TurnResult) -> list[str]:
    return [type(outcome).__name__.removeprefix("Tool") for outcome in result.outcomes]


def spent(guard: Edictum, name: str = "refunded") -> float:
    return guard.session("s").snapshot().amounts[""][name].spent


@pytest.mark.parametrize("where", ["bundle", "python", "spec"])
async def test_the_third_refund_is_refused_before_a_person_is_asked(where: str) -> None:
    amounts = {"refunded": "args.amount"}
    backend = InMemoryApprovalBackend(True)
    options: dict[str, Any] = {
        "limits": BUDGET,
        "contracts": [approval_contract("refund")],
        "approval_backend": backend,
    }
    if where == "bundle":
        head = "apiVersion: edictum/v1\nkind: ContractBundle\nmetadata: {name: x}\n"
        table = "tools: {refund: {amounts: {refunded: args.amount}}}\n"
        guard = Edictum.from_yaml_string(head + table, **options)
    else:
        tools = {"refund": {"amounts": amounts}} if where == "python" else None
        guard = Edictum(tools=tools, **options)
    spec, ran = make_refund(amounts=amounts if where == "spec" else {})
    result = await play(guard, spec, *({"amount": 40, "key": key} for key in range(3)))
    assert kinds(result) == ["ExecutionResult", "ExecutionResult", "Denied"]
    assert (ran, len(backend.requests), spent(guard)) == ([40, 40], 2, 80)


async def test_refunds_in_one_step_stay_within_the_budget() -> None:
    spec, ran = make_refund(amounts={"refunded": "args.amount"}, resource_keys=["r:{key}"])
    guard = Edictum(limits=BUDGET)
    made = ({"amount": 40, "key": key} for key in range(6))
    result = await play(guard, spec, *made, at_once=True)
    assert sorted(kinds(result)) == ["Denied"] * 4 + ["ExecutionResult"] * 2
    assert ran == [40, 40]


async def test_what_was_used_is_settled() -> None:
    spec, ran = make_refund(
        amounts={"refunded": "args.amount"}, actual={"refunded": "result.refunded"}
    )
    guard = Edictum(limits=BUDGET)
    await play(guard, spec, *({"amount": 40, "key": key} for key in range(6)))
    assert (len(ran), spent(guard)) == (4, 80)


async def test_repaired_arguments_and_defaults_are_what_counts() -> None:
    """The gates of the turn make of them what the tool gets."""
    spec, ran = make_refund(amounts={"refunded": "args.amount"}, coerce=True)
    guard = Edictum(limits=BUDGET)
    result = await play(guard, spec, {"amount": "30", "key": 1}, {"key": 2})
    assert kinds(result) == ["ExecutionResult", "ExecutionResult"]
    assert (ran, spent(guard)) == ([30, 40], 70)


async def test_the_caller_of_the_turn_may_state_amounts_itself() -> None:
    spec, _ = make_refund(amounts={"refunded": "args.amount", "calls": 1})
    guard = Edictum()
    await play(guard, spec, {"amount": 40}, amounts={"refunded": 7})
    assert (spent(guard), spent(guard, "calls")) == (7, 1)


async def test_of_spec_and_policy_the_policy_is_believed() -> None:
    spec, _ = make_refund(amounts={"refunded": 1, "calls": 1})
    guard = Edictum(tools={"refund": {"amounts": {"refunded": "args.amount"}}})
    await play(guard, spec, {"amount": 40})
    assert (spent(guard), spent(guard, "calls")) == (40, 1)


async def test_a_retry_is_charged_as_well() -> None:
    """Each attempt is a call of its own to the guard."""
    tries: list[int] = []

    @tool(side_effect="write", idempotent=True, max_retries=1, amounts={"cost": 2})
    def refund() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("try again")
        return "done"

    guard = Edictum()
    result = await play(guard, refund, {})
    assert (kinds(result), spent(guard, "cost")) == (["ExecutionResult"], 4)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"amounts": {"cost": "arg.x"}}, "tool 'refund': amounts['cost'] is 'arg.x': unknown sel"),
        ({"amounts": {"cost": "result.x"}}, "not known before the tool has run"),
        ({"actual": {"cost": "args.x"}}, "not a part of the result"),
        ({"amounts": {"cost": -1}}, "amounts is {'cost': -1}."),
        ({"amounts": 5}, "amounts is 5."),
    ],
)
def test_mistakes_are_refused_when_the_tool_is_made(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(EdictumConfigError) as caught:
        make_refund(**settings)
    assert why in str(caught.value)
