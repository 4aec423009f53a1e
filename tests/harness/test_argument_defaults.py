"""Arguments that a model leaves out: contracts, people and the audit see what the tool will do, not
only what the model has said.
"""

from __future__ import annotations

import enum
from typing import Any

import pytest
from turns import Bench, new_guard

from edictum import Edictum, HookDecision, HookRegistration, Verdict, precondition
from edictum.harness import ToolArgValidator, ToolSpec, tool
from edictum.harness._schemas import find_defaults
from edictum.harness.arg_validator import Valid
from edictum.outcomes import ToolDenied, ToolExecutionResult


class Colour(enum.StrEnum):
    RED = "red"


@precondition("pay")
def not_too_much(call: Any) -> Verdict:
    return Verdict.fail("too much") if call.args.get("amount", 0) > 50 else Verdict.pass_()


def pay_tool(ran: list[Any], **settings: Any) -> ToolSpec:
    @tool(side_effect="write", **settings)
    def pay(to: str, amount: int = 1000, note: str | None = None) -> str:
        ran.append((to, amount, note))
        return "paid"

    return pay


async def test_a_contract_judges_what_the_tool_would_do_by_default() -> None:
    ran: list[Any] = []
    guard = new_guard(contracts=[not_too_much])
    bench = Bench(pay_tool(ran), guard=guard)
    outcome = await bench.call("pay", {"to": "a"})
    assert isinstance(outcome, ToolDenied)
    assert ran == []
    assert guard.local_sink.events[-1].tool_args == {"to": "a", "amount": 1000}
    assert isinstance(await bench.call("pay", {"to": "a", "amount": 5}), ToolExecutionResult)
    assert ran == [("a", 5, None)]


async def test_to_state_a_default_and_to_leave_it_out_is_the_same_call() -> None:
    ran: list[Any] = []
    bench = Bench(pay_tool(ran, idempotent=True, resource_keys=["account"]))
    assert isinstance(await bench.call("pay", {"to": "a"}), ToolExecutionResult)
    again = await bench.call("pay", {"to": "a", "amount": 1000})
    assert isinstance(again, ToolDenied)
    assert again.reason == "duplicate"
    assert len(ran) == 1


async def test_what_a_repair_or_a_hook_takes_away_is_filled_in_as_well() -> None:
    ran: list[Any] = []
    seen: list[Any] = []

    @precondition("pay")
    def look(call: Any) -> Verdict:
        seen.append(dict(call.args))
        return Verdict.pass_()

    forgetful = HookRegistration(
        phase="before",
        tool="pay",
        callback=lambda call: HookDecision.rewrite({"to": call.args["to"]}),
    )
    await Bench(pay_tool(ran), guard=new_guard(contracts=[look])).call(
        "pay", {"to": "a", "amount": None}
    )
    await Bench(pay_tool(ran), guard=new_guard(contracts=[look], hooks=[forgetful])).call(
        "pay", {"to": "b", "amount": 7}
    )
    assert seen == [{"to": "a", "amount": 1000}, {"to": "b", "amount": 1000}]
    assert ran == [("a", 1000, None), ("b", 1000, None)]


def test_only_defaults_that_a_tool_gets_as_it_has_them_are_filled_in() -> None:
    @tool
    def paint(
        colour: Colour = Colour.RED,
        pair: tuple[int, int] = (1, 2),
        width: float = 1.5,
        on: bool = False,
        tags: list[str] = ["a"],  # noqa: B006
        nothing: str | None = None,
        wrong: int = "text",  # type: ignore[assignment]
    ) -> None:
        """Colour and pair are written otherwise in JSON, nothing is nothing, wrong is wrong."""

    checked = ToolArgValidator().validate(paint, {"colour": "red"})
    assert isinstance(checked, Valid)
    assert checked == Valid({"colour": "red", "width": 1.5, "on": False, "tags": ["a"]})


@pytest.mark.parametrize(
    ("default", "function", "filled"),
    [
        (3, None, {"n": 3}),
        (3, lambda n=3: n, {"n": 3}),
        (3, lambda n=4: n, {}),
        (1, lambda n=True: n, {}),
        (3, lambda **more: more, {}),
        ("three", None, {}),
        (3, print, {}),
    ],
)
def test_a_schema_that_somebody_wrote_is_believed_unless_the_function_says_otherwise(
    default: Any, function: Any, filled: Any
) -> None:
    assert (
        find_defaults(
            {"type": "object", "properties": {"n": {"type": "integer", "default": default}}},
            function,
        )
        == filled
    )


def test_schemas_that_refer_to_others_or_are_none_have_no_defaults() -> None:
    assert (
        find_defaults({"properties": {"n": {"$ref": "#/$defs/n", "default": 1}, "m": True}}, None)
        == {}
    )
    assert find_defaults({"properties": []}, None) == {}


def test_a_guard_by_itself_does_not_look_into_the_function() -> None:
    """It knows no schema: what is left out is not there, and a contract says what that means."""
    ran: list[Any] = []
    guard = Edictum(contracts=[not_too_much])
    guard.run_sync("pay", {"to": "a"}, lambda to, amount=1000: ran.append(amount))
    assert ran == [1000]
    assert guard.local_sink.events[-1].tool_args == {"to": "a"}


async def test_a_default_that_only_the_schema_tells_is_judged() -> None:
    """A tool of MCP: its function takes whatever was sent, and its schema tells the defaults."""
    ran: list[Any] = []
    schema = {"type": "object", "properties": {"amount": {"type": "integer", "default": 1000}}}
    spec = ToolSpec(name="pay", parameters=schema, function=lambda **args: ran.append(args))

    @precondition("pay")
    def small(call: Any) -> Verdict:
        found = call.effective_args["amount"]
        return Verdict.fail("too much") if found > 50 else Verdict.pass_()

    bench = Bench(spec, guard=new_guard(contracts=[small]))
    assert isinstance(await bench.call("pay", {}), ToolDenied)
    assert ran == []
    await bench.call("pay", {"amount": 5})
    assert ran == [{"amount": 5}]


async def test_a_default_that_is_left_to_the_function_is_judged() -> None:
    @tool(side_effect="write")
    def paint(colour: Colour = Colour.RED) -> str:
        raise AssertionError("it ran")

    @precondition("paint")
    def not_red(call: Any) -> Verdict:
        red = call.effective_args["colour"] == "red"
        return Verdict.fail("not red") if red else Verdict.pass_()

    outcome = await Bench(paint, guard=new_guard(contracts=[not_red])).call("paint", {})
    assert isinstance(outcome, ToolDenied)
    assert outcome.details == "not red"
