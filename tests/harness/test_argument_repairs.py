"""Ordinary mistakes of models: repaired where there is one way to read them, refused as mistakes
otherwise, never a fault of the gate.
"""

from __future__ import annotations

import enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from turns import Bench

from edictum.harness import ArtifactStore, tool
from edictum.harness.artifact_reader import make_reader
from edictum.outcomes import ToolDenied, ToolExecutionResult


class Colour(enum.Enum):
    RED = "red"


class Point(BaseModel):
    x: int


@tool(side_effect="read")
async def paint(
    mode: Literal["a", "b"] = "a",
    count: int = 1,
    share: float = 1.0,
    limit: int | None = None,
    colour: Colour | None = None,
    tags: list[str] | None = None,
    at: Point | None = None,
    either: int | list[str] = 0,
    flag: bool | None = None,
    whole: int | float | None = None,  # noqa: PYI041 -- both branches read "5", and read it alike
) -> dict[str, Any]:
    return {
        "mode": mode,
        "count": count,
        "share": share,
        "limit": limit,
        "colour": colour,
        "tags": tags,
        "at": at,
        "either": either,
        "flag": flag,
        "whole": whole,
    }


@pytest.mark.parametrize(
    ("sent", "got"),
    [
        ({"mode": None}, {"mode": "a"}),
        ({"limit": "5"}, {"limit": 5}),
        ({"limit": " -5 "}, {"limit": -5}),
        ({"colour": "RED"}, {"colour": Colour.RED}),
        ({"tags": "one"}, {"tags": ["one"]}),
        ({"tags": '["one", "two"]'}, {"tags": ["one", "two"]}),
        ({"at": '{"x": 1}'}, {"at": Point(x=1)}),
        ({"flag": "true"}, {"flag": True}),
        ({"whole": "5"}, {"whole": 5}),
        ({"whole": "5.5"}, {"whole": 5.5}),
    ],
)
async def test_one_reading_is_taken(sent: dict[str, Any], got: dict[str, Any]) -> None:
    outcome = await Bench(paint).call("paint", sent)
    assert isinstance(outcome, ToolExecutionResult), outcome
    assert {name: outcome.value[name] for name in got} == got
    assert outcome.was_coerced


@pytest.mark.parametrize(
    "sent",
    [
        {"count": "--5"},
        {"count": "+-5"},
        {"count": "1_0"},
        {"share": "--5"},
        {"limit": "five"},
        {"limit": [5]},
        {"either": "5"},  # the number, or a list of one text
        {"at": '{"x": "one"}'},
        {"at": "1"},
        {"colour": "green"},
    ],
)
async def test_what_has_no_reading_or_two_is_the_models_mistake(sent: dict[str, Any]) -> None:
    outcome = await Bench(paint).call("paint", sent)
    assert isinstance(outcome, ToolDenied)
    assert (outcome.reason, outcome.policy_error) == ("validation", False)
    assert outcome.details.startswith(next(iter(sent)))


async def test_the_model_is_told_which_types_would_do() -> None:
    outcome = await Bench(paint).call("paint", {"limit": "five"})
    assert isinstance(outcome, ToolDenied)
    assert outcome.details.startswith("limit: expected integer or null, received string 'five'.")


async def test_the_reader_of_artifacts_takes_numbers_that_came_as_text(tmp_path: Any) -> None:
    store = ArtifactStore(tmp_path)
    stored = store.store("session", "one\ntwo\nthree", "t").artifact_id
    bench = Bench(tool(side_effect="read")(make_reader(store, "session")))
    outcome = await bench.call("read_artifact", {"artifact_id": stored, "head": "2"})
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value["content"] == "one\ntwo"
