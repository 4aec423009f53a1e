"""Whether the arguments that a tool gets are still those that came."""

from __future__ import annotations

from typing import Any

import pytest

from edictum.adapters._wire import parse_json_args
from edictum.core.freeze import freeze_args
from edictum.core.values import is_same

CHANGED: list[tuple[Any, Any]] = [
    ({"n": True}, {"n": 1}),
    ({"n": 1.0}, {"n": 1}),
    ({"n": [0]}, {"n": [False]}),
    ({"n": {"m": 1}}, {"n": {"m": True}}),
    ({"n": 1}, {"n": 1, "m": 2}),
    ({"n": [1, 2]}, {"n": [1]}),
    ({"n": None}, {}),
    ({"n": float("nan")}, {"n": float("nan")}),
]


@pytest.mark.parametrize(("checked", "given"), CHANGED)
def test_what_is_equal_to_python_alone_has_changed(checked: Any, given: Any) -> None:
    assert not is_same(checked, given)


def test_a_snapshot_is_the_same_as_what_it_was_made_of() -> None:
    given = {"text": "a", "n": 1, "deep": {"list": [1, {"x": None}], "flag": True}}
    assert is_same(freeze_args(given), given)


@pytest.mark.parametrize("text", ['["a"]', '"a"', '{"a":', "null", "[" * 1_000_000])
def test_what_is_not_an_object_is_not_read_as_no_arguments(text: str) -> None:
    assert parse_json_args(text) is None
    assert parse_json_args("") == {}
