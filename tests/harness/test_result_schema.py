"""``@tool`` reads the type of the result as well: a result of another shape is a failure, and a
type that says nothing asks for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, NotRequired

import pytest
from pydantic import BaseModel, Field
from turns import Bench
from typing_extensions import TypedDict

from edictum.core.values import to_json
from edictum.harness import ToolRegistry, tool
from edictum.harness._schemas import compile_schema, explain_mismatch
from edictum.outcomes import ToolExecutionResult, ToolFailure


class Colour(StrEnum):
    RED = "red"


class Row(TypedDict):
    name: str
    note: NotRequired[str]


class Tree(TypedDict):
    children: list[Tree]


@dataclass
class Point:
    names: ClassVar[list[str]] = []
    x: int
    y: int | None = None


@dataclass
class Lasting:
    how_long: timedelta


class Page(BaseModel):
    rows: list[Row]
    where: Point | None = Field(default=None, alias="at")


class Opaque:
    pass


def returning(hint: Any, value: Any = None, **settings: Any) -> Any:
    def work() -> Any:
        return value

    work.__annotations__["return"] = hint
    return tool(side_effect="read", **settings)(work)


FITTING: list[tuple[Any, Any, Any]] = [  # a hint, a value that fits it, one that does not
    (str, "a", 1),
    (int, 1, "1"),
    (float, 1, "1"),
    (bool, True, "yes"),
    (dict, {"a": 1}, [1]),
    (dict[str, int], {"a": 1}, {"a": "b"}),
    (list[int], [1, 2], ["a"]),
    (tuple[int, str], (1, "a"), (1,)),
    (str | None, None, 1),
    (Literal["a", "b"], "b", "c"),
    (Annotated[int, "how many"], 1, None),
    (Colour, Colour.RED, "blue"),
    (Row, {"name": "a"}, {"note": "a"}),
    (Tree, {"children": [{"children": []}]}, {"children": [{}]}),
    (Point, Point(1), {"y": 2}),
    (list[Page], [Page(rows=[{"name": "a"}], at=Point(1))], [{"rows": [{}]}]),
]


@pytest.mark.parametrize(
    ("hint", "fits", "does_not"), FITTING, ids=[str(hint) for hint, *_ in FITTING]
)
async def test_a_result_is_held_to_its_type(hint: Any, fits: Any, does_not: Any) -> None:
    assert isinstance(await Bench(returning(hint, fits)).call("work"), ToolExecutionResult)
    outcome = await Bench(returning(hint, does_not)).call("work")
    assert isinstance(outcome, ToolFailure)
    assert outcome.success_source == "schema"
    assert outcome.success_reason.startswith("The result does not fit the tool's schema: ")


@pytest.mark.parametrize(
    "hint",
    [
        Any,
        None,
        object,
        Opaque,
        Iterator[int],
        Callable[[], int],
        Lasting,
        list[Lasting],
        bytes,
        set[int],
    ],
)
async def test_a_type_that_says_nothing_of_json_asks_for_nothing(hint: Any) -> None:
    spec = returning(hint, {"any": "thing"})
    assert spec.returns is None
    assert isinstance(await Bench(spec).call("work"), ToolExecutionResult)


async def test_no_type_and_a_schema_of_one_s_own_and_none_at_all() -> None:
    def untyped():  # type: ignore[no-untyped-def]
        return 1

    assert tool(untyped).returns is None
    assert returning(int, returns={"type": "string"}).returns == {"type": "string"}
    off = returning(int, "not a number", returns=None)
    assert off.returns is None
    assert isinstance(await Bench(off).call("work"), ToolExecutionResult)


async def test_an_error_is_read_before_the_schema() -> None:
    outcome = await Bench(returning(dict[str, int], {"error": "no such row"})).call("work")
    assert isinstance(outcome, ToolFailure)
    assert outcome.error == "no such row"


async def test_tools_of_one_name_do_not_mix_up_their_schemas() -> None:
    for number in range(3):
        hint = (str, int, list[int])[number]
        spec = returning(hint, ("a", 1, [1])[number])
        bench = Bench(*ToolRegistry([spec]))
        assert isinstance(await bench.call("work"), ToolExecutionResult)


def test_a_class_whose_hints_cannot_be_read_asks_for_nothing() -> None:
    @dataclass
    class Broken:
        x: NotThere  # type: ignore[name-defined]  # noqa: F821

    assert returning(Broken).returns is None


ANY_VALUES = {
    "string": ["", "a"],
    "integer": [0, -1, 10**30],
    "number": [0, 10**30],
    "boolean": [True, False],
    "null": [None],
    "object": [{}, {"a": 1}, {1: object()}, {"a": {"b": {2, 3}}}],
    "array": [[], [1, object()], [[None]]],
}


@pytest.mark.parametrize("kind", ANY_VALUES)
@pytest.mark.parametrize("more", [{}, {"title": "A result"}, {"additionalProperties": True}])
def test_what_is_let_pass_by_its_type_fits_the_schema(kind: str, more: dict[str, Any]) -> None:
    schema = {"type": kind, **more}
    for value in ANY_VALUES[kind]:
        assert explain_mismatch(compile_schema(schema), value) is None
        assert compile_schema(schema).is_valid(to_json(value))


@pytest.mark.parametrize("hint", [str, dict[str, str], list[str]])
async def test_half_a_character_is_no_misfit(hint: Any) -> None:
    value: Any = {str: "\ud800", dict[str, str]: {"name": "\ud800"}, list[str]: ["\ud800"]}[hint]
    assert isinstance(await Bench(returning(hint, value)).call("work"), ToolExecutionResult)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, True),
        ({"type": "boolean"}, 1),
        ({"type": "string", "maxLength": 1}, "ab"),
        ({"type": "object", "required": ["a"]}, {}),
        ({"type": "object", "additionalProperties": False}, {"a": 1}),
        ({"type": ["integer", "null"]}, "a"),
    ],
)
def test_what_a_schema_asks_beyond_a_type_is_looked_at(schema: dict[str, Any], value: Any) -> None:
    assert explain_mismatch(compile_schema(schema), value) is not None
