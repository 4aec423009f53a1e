"""ToolArgValidator: repairs, refusals, and what the model is told."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edictum.harness import ToolArgValidator, ToolSpec
from edictum.harness.arg_validator import Invalid, Malformed, Valid, parse_arguments

SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["count"],
    "properties": {
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "sure": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "where": {"type": "object", "properties": {"line": {"type": "integer"}}},
        "colour": {"enum": ["Red", "Blue"]},
        "text": {"type": "string"},
    },
}
VALIDATOR = ToolArgValidator()


def spec(effect: str = "write", **settings: Any) -> ToolSpec:
    return ToolSpec(name="paint", parameters=SCHEMA, side_effect=effect, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        ({"count": "5"}, {"count": 5}),
        ({"count": " -5 "}, {"count": -5}),
        ({"count": 1, "ratio": "2.5"}, {"count": 1, "ratio": 2.5}),
        ({"count": 1, "sure": "TRUE"}, {"count": 1, "sure": True}),
        ({"count": 1, "where": '{"line": 3}'}, {"count": 1, "where": {"line": 3}}),
        ({"count": 1, "where": '{"line": "3"}'}, {"count": 1, "where": {"line": 3}}),
        ({"count": 1, "tags": "a"}, {"count": 1, "tags": ["a"]}),
        ({"count": 1, "tags": '["a", "b"]'}, {"count": 1, "tags": ["a", "b"]}),
        ({"count": 1, "text": None}, {"count": 1}),
        ({"count": 1, "colour": "red"}, {"count": 1, "colour": "Red"}),
    ],
)
def test_only_what_fails_is_repaired_and_every_repair_is_listed(
    sent: dict[str, Any], got: dict[str, Any]
) -> None:
    checked = VALIDATOR.validate(spec(), sent)
    assert isinstance(checked, Valid)
    assert checked.arguments == got
    assert checked.repairs


def test_valid_arguments_are_not_touched() -> None:
    sent = {"count": 5, "text": "5", "tags": ["true"]}
    checked = VALIDATOR.validate(spec(), sent)
    assert checked == Valid(sent)


@pytest.mark.parametrize(
    "sent",
    [
        {"count": "5x"},
        {"count": "1e3"},
        {"count": 1.5},
        {"count": None},
        {"count": "٥"},
        {"count": [1]},
        {"count": 1, "ratio": "nan"},
        {"count": 1, "sure": "yes"},
        {"count": 1, "where": "[1]"},
        {"count": 1, "colour": "green"},
        {"count": 1, "colour": 3},
        {"count": 1, "text": 3},
        {},
    ],
)
def test_nothing_is_guessed(sent: dict[str, Any]) -> None:
    assert isinstance(VALIDATOR.validate(spec(), sent), Invalid)


def test_irreversible_tools_are_not_repaired_for_unless_it_is_allowed() -> None:
    assert isinstance(VALIDATOR.validate(spec("irreversible"), {"count": "5"}), Invalid)
    assert isinstance(VALIDATOR.validate(spec("irreversible", coerce=True), {"count": "5"}), Valid)
    assert isinstance(VALIDATOR.validate(spec("read", coerce=False), {"count": "5"}), Invalid)
    assert isinstance(
        ToolArgValidator(coerce=False).validate(spec("read"), {"count": "5"}), Invalid
    )


def test_a_refusal_says_what_is_wrong_and_what_is_right() -> None:
    refused = VALIDATOR.validate(spec(), {"count": "many", "colr": "red"})
    assert isinstance(refused, Invalid)
    assert "count: expected integer, received string 'many'" in refused.details
    assert "unknown property 'colr', did you mean 'colour'?" in refused.details
    assert "Valid properties of paint: count, ratio" in refused.details


def test_the_same_mistake_has_the_same_signature() -> None:
    first, second, other = (
        VALIDATOR.validate(spec(), {"count": value}) for value in ("many", "few", None)
    )
    assert isinstance(first, Invalid)
    assert isinstance(second, Invalid)
    assert first.signature == second.signature
    assert VALIDATOR.validate(spec(), {"wrong": 1}) != first
    assert isinstance(other, Invalid)


def test_values_that_json_does_not_know_are_judged_by_their_json() -> None:
    free = ToolSpec(
        name="t",
        parameters={"type": "object", "properties": {"day": {"type": "string"}}},
        side_effect="read",
    )  # type: ignore[arg-type]
    checked = VALIDATOR.validate(free, {"day": datetime.date(2026, 1, 2), "set": {1}})
    assert checked == Valid({"day": "2026-01-02", "set": [1]}, ())
    assert isinstance(VALIDATOR.validate(spec(), {"count": {1, 2}}), Invalid)


@pytest.mark.parametrize(
    ("raw", "got"),
    [
        (None, {}),
        ("", {}),
        (" \n", {}),
        ("null", {}),
        (b"", {}),
        ("{}", {}),
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        (b'{"a": 1}', {"a": 1}),
    ],
)
def test_arguments_come_as_objects_or_as_json_text(raw: Any, got: dict[str, Any]) -> None:
    assert parse_arguments(raw) == got


@pytest.mark.parametrize(
    "raw", ["{", "[1]", "3", "nonsense", [1], 7, "[" * 100_000, "x" * 1_000_001, b"\xff"]
)
def test_what_is_no_object_is_answered_not_raised(raw: Any) -> None:
    assert isinstance(parse_arguments(raw), Malformed)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from([*SCHEMA["properties"], "other"]), JSON))
def test_whatever_a_model_sends_what_comes_out_fits_or_is_refused(sent: dict[str, Any]) -> None:
    checked = VALIDATOR.validate(spec(), sent)
    if isinstance(checked, Valid):
        assert VALIDATOR.validate(spec("irreversible"), checked.arguments) == Valid(
            checked.arguments
        )
    else:
        assert checked.details


@given(JSON | st.binary() | st.text())
def test_parsing_never_raises(raw: Any) -> None:
    parsed = parse_arguments(raw)
    assert type(parsed) is dict or (isinstance(parsed, Malformed) and parsed.details)
