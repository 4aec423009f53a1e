"""A tool is called with what its hints name; everybody else sees the JSON that was sent."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType
from uuid import UUID

import pytest
import typed_tools
from pydantic import AfterValidator, BaseModel, Field, PositiveInt, StringConstraints, TypeAdapter
from turns import Bench, new_guard
from typed_tools import ORDER, READ, Colour, Item, Order, told
from typing_extensions import TypedDict

from edictum import Verdict, precondition
from edictum.core._records import replace
from edictum.harness import DeadlineToken, ToolArgValidator, Turn, tool
from edictum.harness._typed_arguments import PLAIN_NODES, has_only_nodes
from edictum.outcomes import ToolDenied, ToolExecutionResult, ToolFailure

NUMBER = "12345678-1234-5678-1234-567812345678"
UserId = NewType("UserId", int)


@dataclass
class Point:
    x: int
    at: date | None = None


class Pair(NamedTuple):
    left: int
    right: date


class Trip(TypedDict):
    day: date


class Plain(TypedDict):
    count: int


def taking(hint: Any, **settings: Any) -> tuple[Any, list[Any]]:
    """A tool with one parameter of this type, and what it has been called with."""
    got: list[Any] = []

    def take(value: Any) -> str:
        got.append(value)
        return "taken"

    take.__annotations__ = {"value": hint, "return": str}
    return tool(side_effect="read", **settings)(take), got


@pytest.mark.parametrize(
    ("hint", "sent", "wanted"),
    [
        (Item, {"name": "tea"}, Item(name="tea", colour=Colour.RED)),
        (Point, {"x": 1, "at": "2024-05-01"}, Point(1, date(2024, 5, 1))),
        (Trip, {"day": "2024-05-01"}, {"day": date(2024, 5, 1)}),
        (Pair, [1, "2024-05-01"], Pair(1, date(2024, 5, 1))),
        (date, "2024-05-01", date(2024, 5, 1)),
        (datetime, "2024-05-01T10:00:00Z", datetime(2024, 5, 1, 10, tzinfo=UTC)),
        (time, "10:30", time(10, 30)),
        (timedelta, "PT90S", timedelta(seconds=90)),
        (Colour, "blue", Colour.BLUE),
        (UUID, NUMBER, UUID(NUMBER)),
        (Decimal, 0.1, Decimal("0.1")),
        (Decimal, "0.10", Decimal("0.10")),
        (Path, "/tmp/a", Path("/tmp/a")),
        (set[int], [1, 2], {1, 2}),
        (tuple[str, date], ["a", "2024-05-01"], ("a", date(2024, 5, 1))),
        (list[Item], [{"name": "a"}, {"name": "b"}], [Item(name="a"), Item(name="b")]),
        (dict[int, str], {"1": "a"}, {1: "a"}),
        (date | None, None, None),
        (date | None, "2024-05-01", date(2024, 5, 1)),
        (date | int, 5, 5),
        (Iterable[date], ["2024-05-01"], [date(2024, 5, 1)]),
        (Annotated[str, AfterValidator(str.upper)], "tea", "TEA"),
        (list[str], ["a"], ["a"]),
    ],
)
async def test_the_body_gets_what_its_hint_names(hint: Any, sent: Any, wanted: Any) -> None:
    spec, got = taking(hint)
    outcome = await Bench(spec).call("take", {"value": sent})
    assert isinstance(outcome, ToolExecutionResult), outcome
    assert got == [wanted]
    assert [type(each) for each in got] == [type(wanted)]


@pytest.mark.parametrize(
    "hint",
    [
        str,
        int,
        float,
        bool,
        type(None),
        Any,
        list[int],
        dict[str, list[float]],
        Mapping[str, Any],
        Sequence[str],
        list,
        dict,
        Iterable,
        Literal["a", 1],
        str | None,
        UserId,
        PositiveInt,
        Annotated[str, Field(min_length=1, description="x")],
        Annotated[int, "how many"],
        Plain,
    ],
)
def test_plain_json_is_not_read_again(hint: Any) -> None:
    spec, _ = taking(hint)
    assert spec.body is spec.function


@pytest.mark.parametrize(
    "hint",
    [
        Literal[Colour.RED],
        dict[int, str],
        tuple[int],
        Item,
        Trip,
        Annotated[str, AfterValidator(str.upper)],
        Annotated[str, StringConstraints(strip_whitespace=True)],
    ],
)
def test_what_json_writes_otherwise_is_read(hint: Any) -> None:
    assert not has_only_nodes(TypeAdapter(hint), PLAIN_NODES)
    spec, _ = taking(hint)
    assert spec.body is not spec.function


# --- Who sees what --------------------------------------------------------------------------------


async def test_contracts_and_the_audit_see_json() -> None:
    seen: list[Any] = []

    @precondition("take")
    def look(call: Any) -> Verdict:
        seen.append(call.args["value"])
        return Verdict.pass_()

    spec, got = taking(Order)
    bench = Bench(spec, guard=new_guard(contracts=[look]))
    await bench.call("take", {"value": ORDER})
    assert seen == [ORDER]
    assert bench.guard.local_sink.events[-1].tool_args == {"value": ORDER}
    assert [told(order) for order in got] == [READ]


async def test_the_same_json_is_the_same_call() -> None:
    spec, got = taking(Order, idempotent=True)
    bench = Bench(spec)
    await bench.call("take", {"value": ORDER})
    again = await bench.call("take", {"value": dict(reversed(ORDER.items()))})
    assert isinstance(again, ToolDenied)
    assert (again.reason, len(got)) == ("duplicate", 1)


@pytest.mark.parametrize(
    ("hint", "sent", "said"),
    [
        (date, "garbage", "value: Input should be a valid date"),
        (list[date], ["2024-05-01", "x"], "value.1: Input should be a valid date"),
        (Order, {**ORDER, "items": []}, "value.items: Value error, order something"),
        (Annotated[str, AfterValidator(lambda text: {}[text])], "x", "value: KeyError: 'x'"),
    ],
)
async def test_what_cannot_be_read_is_refused_before_anybody_is_asked(
    hint: Any, sent: Any, said: str
) -> None:
    asked: list[Any] = []

    @precondition("take")
    def look(call: Any) -> Verdict:
        asked.append(call)
        return Verdict.pass_()

    spec, got = taking(hint)
    bench = Bench(spec, guard=new_guard(contracts=[look]))
    for count in range(1, 4):
        outcome = await bench.call("take", {"value": sent})
        assert isinstance(outcome, ToolDenied), outcome
        assert outcome.reason == "validation"
        assert outcome.details.startswith(said)
        assert ("made 3 times" in outcome.details) is (count == 3)
    assert (asked, got) == ([], [])


async def test_what_is_repaired_is_read() -> None:
    spec, got = taking(list[Item])
    outcome = await Bench(spec).call("take", {"value": {"name": "tea", "colour": "BLUE"}})
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.was_coerced
    assert got == [[Item(name="tea", colour=Colour.BLUE)]]


async def test_a_repair_that_leads_to_what_cannot_be_read_is_refused() -> None:
    spec, got = taking(list[date])
    outcome = await Bench(spec).call("take", {"value": "soon"})
    assert isinstance(outcome, ToolDenied)
    assert (outcome.reason, got) == ("validation", [])
    assert outcome.details.startswith("value.0: Input should be a valid date")


async def test_a_host_may_pass_what_the_tool_wants() -> None:
    spec, got = taking(date)
    await Bench(spec).call("take", {"value": date(2024, 5, 1)})
    assert got == [date(2024, 5, 1)]


async def test_a_default_arrives_as_it_is() -> None:
    got: list[Any] = []

    @tool(side_effect="read")
    def paint(
        colour: Colour = Colour.RED,
        day: date | None = None,
        item: Item = Item(name="tea"),  # noqa: B008
        times: int = 2,
    ) -> None:
        got.append((colour, day, item, times))

    await Bench(paint).call("paint")
    await Bench(paint).call("paint", {"colour": "blue", "times": 3})
    assert got == [
        (Colour.RED, None, Item(name="tea"), 2),
        (Colour.BLUE, None, Item(name="tea"), 3),
    ]


async def test_a_stated_schema_is_all_there_is() -> None:
    """Whoever writes the schema himself gets the JSON that fits it."""
    spec, got = taking(date, parameters={"type": "object"})
    await Bench(spec).call("take", {"value": "tomorrow"})
    assert got == ["tomorrow"]


def test_a_direct_call_is_a_call() -> None:
    spec, got = taking(date)
    spec(value="as it is")
    assert got == ["as it is"]


class Lenient(ToolArgValidator):
    """Lets everything pass."""

    def fits(self, spec: Any, arguments: Any) -> bool:
        return True


async def test_a_validator_that_lets_it_pass_does_not_start_the_body() -> None:
    spec, got = taking(date)
    outcome = await Bench(spec, validator=Lenient()).call("take", {"value": "garbage"})
    assert isinstance(outcome, ToolFailure)
    assert "value: Input should be a valid date" in outcome.error
    assert got == []


def test_another_function_is_not_called_in_the_place_of_the_first() -> None:
    spec, _ = taking(date)
    other = replace(spec, function=print)
    assert other.body is print


# --- Where it runs --------------------------------------------------------------------------------


def kinds_of_bodies() -> list[Callable[..., Any]]:
    async def later(order: Order, deadline: DeadlineToken) -> tuple[str, bool]:
        return told(order), deadline.remaining_s() > 0

    def at_once(order: Order, deadline: DeadlineToken) -> tuple[str, bool]:
        return told(order), deadline.remaining_s() > 0

    return [later, at_once]


@pytest.mark.parametrize("function", kinds_of_bodies())
@pytest.mark.parametrize("isolation", [None, "async", "thread"])
async def test_here(function: Any, isolation: Any) -> None:
    spec = tool(name="buy", side_effect="write", isolation=isolation)(function)
    outcome = await Bench(spec).call("buy", {"order": ORDER})
    assert isinstance(outcome, ToolExecutionResult), outcome
    assert outcome.value == (READ, True)


@pytest.mark.parametrize(
    "spec",
    [
        typed_tools.buy_elsewhere,
        typed_tools.buy_elsewhere_later,
        typed_tools.renamed,
        typed_tools.by_object,
    ],
)
async def test_in_a_process(spec: Any) -> None:
    bench = Bench(spec)
    outcome = await bench.call(spec.name, {"order": ORDER})
    assert isinstance(outcome, ToolExecutionResult), outcome
    assert (outcome.value["told"], outcome.value["time"]) == (READ, True)
    assert outcome.value["pid"] != os.getpid()


async def test_in_a_process_under_a_policy_that_knows_more_of_the_tool() -> None:
    guard = new_guard(tools={"buy_elsewhere": {"side_effect": "irreversible"}})
    outcome = await Bench(typed_tools.buy_elsewhere, guard=guard).call(
        "buy_elsewhere", {"order": ORDER}
    )
    assert isinstance(outcome, ToolExecutionResult), outcome
    assert outcome.value["told"] == READ


@pytest.mark.parametrize("policy", [{}, {"take": {"side_effect": "irreversible"}}])
async def test_who_hands_over_the_tool_itself_means_the_tool(policy: Any) -> None:
    spec, got = taking(date)
    guard = new_guard(tools=policy)
    turn = Turn(tools=[spec])
    for handed in (spec.function, spec, None):
        await guard.dispatch("take", {"value": "2024-05-01"}, handed, turn=turn)
    assert got == [date(2024, 5, 1)] * 3


async def test_another_function_gets_the_json() -> None:
    """It belongs to a framework, which reads its arguments itself."""
    spec, _ = taking(date)
    got: list[Any] = []
    await new_guard().dispatch(
        "take", {"value": "2024-05-01"}, lambda value: got.append(value), turn=Turn(tools=[spec])
    )
    assert got == ["2024-05-01"]


class Choice(Enum):
    ONE = 1


async def test_a_method_and_a_model_that_is_a_tool() -> None:
    class Shop:
        name = "shop"

        def sell(self, choice: Choice) -> str:
            return f"{self.name} {choice.name}"

    class Basket(BaseModel):
        items: list[Item]

    bench = Bench(tool(side_effect="read")(Shop().sell), tool(side_effect="read")(Basket))
    sold, basket = (
        await bench.call("sell", {"choice": 1}),
        await bench.call("Basket", {"items": [{"name": "tea"}]}),
    )
    assert isinstance(sold, ToolExecutionResult)
    assert sold.value == "shop ONE"
    assert isinstance(basket, ToolExecutionResult)
    assert basket.value == Basket(items=[Item(name="tea")])
