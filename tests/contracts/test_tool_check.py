"""Contracts are checked against the tools that they are for."""

from __future__ import annotations

import enum
import logging
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from test_left_out_arguments import bundle

from edictum import Edictum, EdictumConfigError
from edictum.harness import BoundedToolExecutor, ToolSpec, tool


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Order(BaseModel):
    amount: int
    note: str = ""


def refund(
    order_id: str,
    amount: float = 500.0,
    note: str | None = None,
    colour: Colour = Colour.RED,
    size: Literal["s", "m"] = "s",
    urgent: bool = False,
    order: Order | None = None,
    items: list[Order] | None = None,
    count: int = 1,
    anything: Any = None,
    shade: Literal["dark", "light"] | None = None,
) -> str:
    return "refunded"


def contract(when: str, tools: str = "refund", more: str = "") -> str:
    then = "then: {effect: deny, message: no}"
    return f"{{id: big, type: pre, tool: {tools}, when: {when}, {more}{then}}}"


def guard_with(when: str, tools: str = "refund", more: str = "") -> Edictum:
    return Edictum.from_yaml_string(bundle(contract(when, tools, more)))


KNOWN = (
    "Known: args.order_id, args.amount, args.note, args.colour, args.size, args.urgent, args.order,"
    " args.items, args.count, args.anything, args.shade."
)


@pytest.mark.parametrize(
    ("when", "problem"),
    [
        (
            "{args.amuont: {gt: 100}}",
            f"'args.amuont' is not an argument of 'refund'. Did you mean 'args.amount'? {KNOWN}",
        ),
        ("{args.x: {exists: true}}", f"'args.x' is not an argument of 'refund'. {KNOWN}"),
        (
            "{args.order.amuont: {gt: 1}}",
            "'args.order.amuont' is not a field of 'refund'. Did you mean 'args.order.amount'?"
            " Known: args.order.amount, args.order.note.",
        ),
        (
            "{'args.items[*].nte': {contains: x}}",
            "'args.items[*].nte' is not a field of 'refund'. Did you mean 'args.items[*].note'?"
            " Known: args.items[*].amount, args.items[*].note.",
        ),
        (
            "{args.note: {gt: 100}}",
            "'gt' judges a number, and args.note of 'refund' is text.",
        ),
        (
            "{args.amount: {contains: x}}",
            "'contains' judges text, and args.amount of 'refund' is a number.",
        ),
        (
            "{args.amount: {length_gt: 3}}",
            "'length_gt' judges text, a list or a mapping, and args.amount of 'refund' is a number.",
        ),
        (
            "{args.colour: {equals: 5}}",
            "args.colour of 'refund' can never be 5: it is one of 'red', 'blue'.",
        ),
        (
            "{args.size: {in: [xl, xxl]}}",
            "args.size of 'refund' can never be 'xl' or 'xxl': it is one of 's', 'm'.",
        ),
        (
            "{args.shade: {equals: 5}}",
            "args.shade of 'refund' can never be 5: it is one of 'dark', 'light'.",
        ),
        (
            "{args.note: {equals: 5}}",
            "args.note of 'refund' can never be 5: it is text.",
        ),
        (
            "{args.count: {equals: 1.5}}",
            "args.count of 'refund' can never be 1.5: it is a whole number.",
        ),
        (
            "{args.note.deep: {equals: x}}",
            "args.note of 'refund' is text and has no fields ('args.note.deep').",
        ),
        (
            "{'args.note[*]': {equals: x}}",
            "args.note of 'refund' is text and has no elements ('args.note[*]').",
        ),
    ],
)
def test_a_mistake_about_a_named_tool_is_an_error(when: str, problem: str) -> None:
    with pytest.raises(EdictumConfigError) as caught:
        guard_with(when).check_tools([refund])
    expected = f"contract 'big': {problem}"
    assert str(caught.value).startswith(expected), str(caught.value)


@pytest.mark.parametrize(
    "when",
    [
        "{args.amount: {gt: 100}}",
        "{args.urgent: {equals: true}}",
        "{args.urgent: {equals: 1}}",
        "{args.count: {equals: 2.0}}",
        "{args.colour: {in: [red, green]}}",
        "{args.order.amount: {gt: 1}}",
        "{args.items.0.amount: {gt: 1}}",
        "{args.items: {length_gt: 3}}",
        "{args.anything.deep: {gt: 3}}",
        "{args.anything: {contains: x}}",
        "{principal.role: {equals: x}}",
    ],
)
def test_what_can_hold_is_no_problem(when: str) -> None:
    assert guard_with(when).check_tools({"refund": refund}) == []


def test_all_mistakes_are_told_at_once() -> None:
    when = "{any: [{args.amuont: {gt: 1}}, {args.note: {gt: 1}}]}"
    with pytest.raises(EdictumConfigError) as caught:
        guard_with(when).check_tools([refund])
    assert str(caught.value).count("contract 'big':") == 2


def test_a_glob_and_an_unknown_tool_are_warned_about() -> None:
    glob = guard_with("{args.amuont: {gt: 100}}", "'re*'").check_tools([refund])
    assert glob == [
        f"contract 'big': 'args.amuont' is not an argument of 'refund'. Did you mean 'args.amount'?"
        f" {KNOWN}"
    ]
    misspelt = guard_with("{args.amount: {gt: 100}}", "refnd").check_tools([refund])
    assert misspelt == [
        "contract 'big' is for 'refnd', which is not one of the tools. Did you mean 'refund'?"
    ]
    other = guard_with("{args.amount: {gt: 100}}", "deploy").check_tools([refund])
    assert other == ["contract 'big' is for 'deploy', which is not one of the tools."]


def test_an_open_schema_is_warned_about_when_the_name_looks_misspelt() -> None:
    schema = {"type": "object", "properties": {"amount": {"type": "number", "default": 1}}}
    found = guard_with("{args.amuont: {gt: 100}}").check_tools({"refund": schema})
    assert found == [
        "contract 'big': 'args.amuont' is not an argument of 'refund'. Did you mean 'args.amount'?"
        " Known: args.amount."
    ]
    assert guard_with("{args.x: {exists: true}}").check_tools({"refund": schema}) == []
    closed = {**schema, "additionalProperties": False}
    with pytest.raises(EdictumConfigError, match=r"args\.amuont"):
        guard_with("{args.amuont: {gt: 100}}").check_tools({"refund": closed})


def test_types_of_a_schema_are_read() -> None:
    schema = {"properties": {"a": {"type": ["string", "null"]}, "b": {"const": 5}}}
    guard = guard_with("{any: [{args.a: {gt: 1}}, {args.b: {equals: 6}}]}")
    with pytest.raises(EdictumConfigError) as caught:
        guard.check_tools({"refund": {**schema, "required": ["a", "b"]}})
    assert str(caught.value).splitlines()[0] == (
        "contract 'big': 'gt' judges a number, and args.a of 'refund' is text."
    )
    assert "args.b of 'refund' can never be 6: it is one of 5." in str(caught.value)


UNKNOWN = (
    "contract 'big': the default of args.amount of 'refund' is not known: a call that leaves it out"
    " is not judged. State the default in the tool's signature or schema, or write 'missing_args:"
    " deny'."
)


@pytest.mark.parametrize(
    "parameters",
    [
        lambda **rest: 0,
        lambda amount=object(): 0,  # noqa: B008 - a default
        max,
        {"properties": {"amount": {"type": "number"}}},
    ],
)
def test_a_default_that_is_not_known_is_warned_about(
    parameters: Any, caplog: pytest.LogCaptureFixture
) -> None:
    guard = guard_with("{args.amount: {gt: 100}}")
    for _ in range(2):
        assert guard.check_tools({"refund": parameters}) == [UNKNOWN]
    assert [record.getMessage() for record in caplog.records] == [UNKNOWN]  # once
    strict = guard_with("{args.amount: {gt: 100}}", more="missing_args: deny, ")
    assert strict.check_tools({"refund": parameters}) == []
    assert guard_with("{args.amount: {exists: true}}").check_tools({"refund": parameters}) == []


def test_success_rules_are_checked_too() -> None:
    rule = "success: [{id: s, tool: refund, failure_when: {args.amuont: {gt: 1}}}]\n"
    text = bundle(contract("{args.amount: {gt: 1}}")) + rule
    with pytest.raises(EdictumConfigError, match=r"contract 's': 'args.amuont' is not an argument"):
        Edictum.from_yaml_string(text).check_tools([refund])


def test_a_turn_is_not_begun_with_a_contract_that_can_never_fire() -> None:
    @tool(side_effect="write")
    def pay(amount: int = 5) -> str:
        return "paid"

    guard = guard_with("{args.amuont: {gt: 100}}", "pay")
    with pytest.raises(EdictumConfigError, match=r"Did you mean 'args.amount'\?"):
        BoundedToolExecutor([pay], guard=guard)


def test_tools_are_functions_specs_or_named() -> None:
    guard = guard_with("{args.amuont: {gt: 100}}")
    spec = ToolSpec(name="refund", parameters={"properties": {}, "additionalProperties": False})
    for tools in ([refund], {"refund": refund}, [spec], refund):
        with pytest.raises(EdictumConfigError, match=r"args\.amuont"):
            guard.check_tools(tools)
    with pytest.raises(EdictumConfigError, match="has no name"):
        guard.check_tools([object()])


def test_a_guard_without_a_bundle_has_nothing_to_check(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert Edictum().check_tools([refund]) == []
    assert caplog.records == []
