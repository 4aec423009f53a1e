"""Mistakes in what a tool is said to be: found where it is said, with what to write instead. And
results that nobody has worked out.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import pytest
from turns import Bench, new_guard

from edictum import EdictumConfigError
from edictum.harness import DeadlineToken, ToolArgValidator, ToolSpec, Turn, tool
from edictum.harness.arg_validator import Invalid
from edictum.outcomes import ToolDenied, ToolExecutionResult, ToolFailure, outcome_to_model_content

if TYPE_CHECKING:
    from somewhere import Elsewhere  # type: ignore[import-not-found]


# --- Generators -----------------------------------------------------------------------------------


def rows(count: int = 2) -> Iterator[int]:
    yield from range(count)


async def rows_later() -> AsyncIterator[int]:
    yield 1


class Rows:
    def __call__(self) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize("function", [rows, rows_later, functools.partial(rows, 3), Rows()])
def test_a_generator_is_no_tool(function: Any) -> None:
    for make in (tool, lambda function: ToolSpec(name="rows", function=function)):
        with pytest.raises(EdictumConfigError, match=r"is a generator.*Return a list"):
            make(function)


@pytest.mark.parametrize("hint", [None, list[int], str])
@pytest.mark.parametrize("result", [rows, rows_later, lambda: map(str, [1])])
async def test_a_result_that_has_not_run_is_no_success(result: Any, hint: Any) -> None:
    def look() -> Any:
        return result()

    look.__annotations__ = {} if hint is None else {"return": hint}
    outcome = await Bench(tool(side_effect="write")(look)).call("look")
    assert isinstance(outcome, ToolFailure), outcome
    assert "whose body has not run" in outcome_to_model_content(outcome)
    assert outcome.effect_unknown, "nobody can tell what was done before"


async def test_what_a_result_says_of_itself_is_heard_as_before() -> None:
    said = tool(name="said", side_effect="read", returns=None)(lambda: {"error": "no"})
    fine = tool(name="fine", side_effect="read", returns=None)(lambda: {"error": None})
    bench = Bench(said, fine)
    assert isinstance(await bench.call("said"), ToolFailure)
    assert isinstance(await bench.call("fine"), ToolExecutionResult)


# --- Settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"identity": "order"}, r"identity is 'order'\. Write identity=\['order'\]"),
        (
            {"identity": ("oder",)},
            r"identity names 'oder', which is not one of its arguments\. Did you mean 'order'",
        ),
        ({"identity": ("x",)}, r"Its arguments are: order"),
        ({"identity": (1,)}, r"Pass the names of arguments"),
        ({"identity": 5}, r"Pass the names of arguments"),
        ({"resource_keys": "vault"}, r"Write resource_keys=\['vault'\]"),
        ({"min_useful_s": "1"}, r"min_useful_s is '1'\. Use seconds"),
        ({"min_useful_s": None}, r"min_useful_s is None"),
        ({"min_useful_s": float("nan")}, r"min_useful_s is nan"),
        ({"returns": "x"}, r"returns is 'x'\. Pass a JSON Schema"),
        ({"idempotent": "no"}, r"idempotent is 'no'\. Use True or False"),
        ({"coerce": "no"}, r"coerce is 'no'\. Use True, False or None"),
    ],
)
def test_a_setting_that_means_nothing_is_refused(wrong: dict[str, Any], said: str) -> None:
    def status(order: int) -> int:
        return order

    with pytest.raises(EdictumConfigError, match=said):
        tool(**{"side_effect": "read", **wrong})(status)


def test_settings_beside_the_function_or_another_tool() -> None:
    def status(order: int) -> int:
        return order

    spec = tool(status, side_effect="read", timeout_s=5)
    assert (spec.name, spec.side_effect, spec.timeout_s) == ("status", "read", 5)
    other = tool(spec, name="other", side_effect="write")
    assert (other.name, other.side_effect, other.timeout_s) == ("other", "write", 5)
    assert other.function is status
    with pytest.raises(EdictumConfigError, match="idempotent is 'no'"):
        tool(spec, idempotent="no")


@pytest.mark.parametrize("identity", [None, (), ("order",), ["order"], frozenset({"order"})])
def test_an_identity_that_means_something_is_taken(identity: Any) -> None:
    spec = tool(side_effect="read", identity=identity)(lambda order: order)  # type: ignore[misc]
    assert spec.identity == identity


def test_an_open_schema_has_arguments_that_it_does_not_name() -> None:
    stated = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert ToolSpec(name="t", parameters=stated, identity=("b",)).identity_of({"a": 1, "b": 2}) == {
        "b": 2
    }
    assert ToolSpec(name="t", identity=("b",)).identity == ("b",)


# --- The deadline ---------------------------------------------------------------------------------


def optional(n: int, deadline: DeadlineToken | None = None) -> bool:
    return deadline is not None and deadline.remaining_s() > 0


def old_optional(n: int, deadline: Optional[DeadlineToken] = None) -> bool:  # noqa: UP045
    return deadline is not None and deadline.remaining_s() > 0


def marked(n: int, deadline: Annotated[DeadlineToken, "the end"]) -> bool:
    return deadline.remaining_s() > 0


def unreadable(n: Elsewhere, deadline: DeadlineToken | None) -> bool:
    return deadline is not None and deadline.remaining_s() > 0


STATED = {"type": "object", "properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("function", [optional, old_optional, marked])
async def test_a_deadline_is_found_however_the_tool_is_described(
    function: Any, stated: bool
) -> None:
    spec = tool(name="t", side_effect="read", **({"parameters": STATED} if stated else {}))(
        function
    )
    outcome = await Bench(spec).call("t", {"n": 1})
    assert isinstance(outcome, ToolExecutionResult), outcome
    assert outcome.value is True
    assert set(spec.parameters["properties"]) == {"n"}


async def test_a_deadline_is_found_among_hints_that_cannot_be_read() -> None:
    outcome = await Bench(tool(side_effect="read", parameters=STATED)(unreadable)).call(
        "unreadable", {"n": 1}
    )
    assert isinstance(outcome, ToolExecutionResult), outcome
    assert outcome.value is True


async def test_a_model_cannot_set_the_deadline() -> None:
    bench = Bench(tool(side_effect="read", parameters=STATED)(optional))
    set_to_five = await bench.call("optional", {"n": 1, "deadline": 5})
    assert isinstance(set_to_five, ToolDenied), set_to_five
    assert set_to_five.reason == "validation"
    set_to_none = await bench.call("optional", {"n": 1, "deadline": None})
    assert isinstance(set_to_none, ToolExecutionResult), "nothing was said, and that is left out"
    assert set_to_none.value is True


def test_a_schema_that_names_the_deadline_contradicts_the_function() -> None:
    with pytest.raises(EdictumConfigError, match="leave it out of parameters"):
        tool(parameters={"type": "object", "properties": {"deadline": {"type": "number"}}})(
            optional
        )


# --- Other things that can be called --------------------------------------------------------------


def query(tenant: str, text: str, limit: int = 5) -> str:
    """Look something up."""
    return f"{tenant} {text} {limit}"


class Search:
    """Searches."""

    def __call__(self, text: str) -> str:
        return text.upper()


class SearchLater:
    async def __call__(self, text: str) -> str:
        """Search, later."""
        return text.upper()


@pytest.mark.parametrize(
    "bound", [functools.partial(query, tenant="a"), functools.partial(query, "a")]
)
async def test_a_partial_is_a_tool_without_what_it_has_bound(bound: Any) -> None:
    spec = tool(side_effect="read")(bound)
    assert (spec.name, spec.description) == ("query", "Look something up.")
    assert set(spec.parameters["properties"]) == {"text", "limit"}
    bench = Bench(spec)
    outcome = await bench.call("query", {"text": "x"})
    assert isinstance(outcome, ToolExecutionResult), outcome
    assert outcome.value == "a x 5"
    assert isinstance(await bench.call("query", {"text": "x", "tenant": "b"}), ToolDenied), (
        "what the host has bound is bound"
    )


@pytest.mark.parametrize(
    ("found", "description"), [(Search(), "Searches."), (SearchLater(), "Search, later.")]
)
async def test_an_object_that_can_be_called_is_a_tool(found: Any, description: str) -> None:
    spec = tool(side_effect="read")(found)
    assert (spec.name, spec.description) == (type(found).__name__, description)
    outcome = await Bench(spec).call(spec.name, {"text": "x"})
    assert isinstance(outcome, ToolExecutionResult), outcome
    assert outcome.value == "X"


# --- What a model sends ---------------------------------------------------------------------------


@tool(side_effect="read")
def say(text: str, loud: float | None = None, how: Literal["Up"] = "Up") -> str:
    return text + how


@pytest.mark.parametrize(
    "sent",
    [
        {"te\ud800xt": "a"},
        {"text": {"a\ud800": 1}},
        {"text": ["\ud800"]},
        {"text": "a", "\ud800": "\ud800"},
    ],
)
def test_half_a_character_is_refused_and_raises_nothing(sent: Any) -> None:
    checked = ToolArgValidator().validate(say, sent)
    assert isinstance(checked, Invalid)
    checked.details.encode()


async def test_a_name_with_half_a_character_is_told_apart() -> None:
    outcome = await Bench(say).call("say", '{"te\\ud800xt": "a"}')
    assert isinstance(outcome, ToolDenied)
    assert outcome.reason == "validation"
    assert "did you mean 'text'?" in outcome.details


@pytest.mark.parametrize(
    ("sent", "said"),
    [("NaN", "received nan,"), ("Infinity", "received inf,"), ("-1e999", "received -inf,")],
)
async def test_what_is_no_number_is_called_by_its_name(sent: str, said: str) -> None:
    outcome = await Bench(say).call("say", f'{{"text": "a", "loud": {sent}}}')
    assert isinstance(outcome, ToolDenied)
    assert f"loud: expected number or null, {said} which is not a JSON number" in outcome.details


async def test_the_only_value_there_is_is_repaired_like_one_of_many() -> None:
    outcome = await Bench(say).call("say", {"text": "a", "how": "up"})
    assert isinstance(outcome, ToolExecutionResult), outcome
    assert (outcome.value, outcome.turn.repairs) == ("aUp", ("how: 'up' read as 'Up'",))


async def test_a_generator_that_is_handed_over_is_the_mistake_of_the_host() -> None:
    with pytest.raises(EdictumConfigError, match="is a generator"):
        await new_guard().dispatch("rows", {}, rows, turn=Turn())
