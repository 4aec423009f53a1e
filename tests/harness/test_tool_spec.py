"""ToolSpec, the registry, @tool and MCP tools."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from edictum import EdictumConfigError, SideEffect
from edictum.harness import DeadlineToken, ResourceKey, ToolRegistry, ToolSpec, spec_from_mcp, tool
from edictum.harness._schemas import compile_schema, make_schemas


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Opaque:
    pass


class Point(BaseModel):
    x: int
    y: int = 0


def test_what_is_not_said_is_the_worst_case() -> None:
    spec = ToolSpec(name="unknown")
    assert spec.side_effect is SideEffect.IRREVERSIBLE
    assert not (spec.idempotent or spec.is_cacheable or spec.safe_to_repeat or spec.may_coerce)
    assert spec.keys_for({}) == (ResourceKey("*", exclusive=True),)
    assert spec.max_retries == 0


def test_safe_to_repeat_and_pointless_to_repeat_are_two_things() -> None:
    poll = ToolSpec(name="poll", side_effect="read", idempotent=True, cacheable=False)  # type: ignore[arg-type]
    assert poll.safe_to_repeat
    assert not poll.is_cacheable
    assert ToolSpec(name="put", side_effect="write", idempotent=True).is_cacheable  # type: ignore[arg-type]
    assert not ToolSpec(name="read", side_effect="read").is_cacheable  # type: ignore[arg-type]
    assert ToolSpec(name="sum", side_effect="pure").is_cacheable  # type: ignore[arg-type]


def test_a_typed_function_becomes_a_spec() -> None:
    @tool(side_effect="read", timeout_s=5)
    def paint(
        where: Point,
        colour: Colour,
        times: int = 1,
        how: Literal["thin", "thick"] = "thin",
        also: list[str] | None = None,
    ) -> str:
        """Paint a point."""
        return "painted"

    assert (paint.name, paint.description, paint.timeout_s) == ("paint", "Paint a point.", 5)
    assert paint.parameters["required"] == ["where", "colour"]
    assert paint.parameters["additionalProperties"] is False
    fits = compile_schema(paint.parameters).is_valid
    assert fits({"where": {"x": 1}, "colour": "red", "how": "thick", "also": ["a"]})
    assert not fits({"where": {"x": "1"}, "colour": "red"})
    assert not fits({"where": {"x": 1}, "colour": "green"})
    assert paint(where=Point(x=1), colour=Colour.RED) == "painted"


def test_the_three_ways_to_write_the_decorator() -> None:
    @tool
    def bare(a: int) -> int:
        """Bare."""
        return a

    @tool("Described.")
    def described(a: int) -> int:
        return a

    @tool(name="other", parameters={"type": "object"})
    def renamed(**anything: Any) -> int:
        return 1

    assert [spec.description for spec in (bare, described)] == ["Bare.", "Described."]
    assert renamed.name == "other"


def test_a_parameter_called_like_a_method_of_pydantic_is_a_parameter_all_the_same() -> None:
    @tool
    def odd(
        copy: int, json: str, model_config: int, schema: str = "s", self: int = 1, _hidden: int = 2
    ) -> int:
        return copy

    assert set(odd.parameters["properties"]) == {
        "copy",
        "json",
        "model_config",
        "schema",
        "self",
        "_hidden",
    }


def test_a_token_is_no_part_of_the_schema() -> None:
    @tool
    def work(a: int, deadline: DeadlineToken) -> int:
        return a

    assert work.token_parameter == "deadline"
    assert set(work.parameters["properties"]) == {"a"}


def test_functions_that_no_schema_describes_are_refused() -> None:
    def gather(*things: int) -> int:
        return 0

    def strange(a: threading_lock) -> int:  # type: ignore[name-defined]  # noqa: F821
        return 0

    def opaque(a: Opaque) -> int:
        return 0

    for function, what in (
        (gather, "cannot be named"),
        (strange, "type hints cannot be read"),
        (opaque, "no schema"),
    ):
        with pytest.raises(EdictumConfigError, match=what):
            make_schemas(function)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "a/b"},
        {"side_effect": "sideways"},
        {"isolation": "cloud"},
        {"on_duplicate": "maybe"},
        {"timeout_s": 0},
        {"max_retries": 2},
        {"function": 1},
        {"parameters": []},
        {"max_output_chars": 0},
        {"min_useful_s": -1},
        {"side_effect": "read", "window_s": 60},
    ],
)
def test_a_wrong_spec_is_refused_where_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"(?i)tool|invalid"):
        ToolSpec(**{"name": "t", **wrong})


def test_resources_can_be_fixed_filled_in_or_computed() -> None:
    def spec(keys: Any, effect: str = "write") -> ToolSpec:
        return ToolSpec(name="t", side_effect=effect, resource_keys=keys)  # type: ignore[arg-type]

    assert spec(["vault"]).keys_for({}) == (ResourceKey("vault", True),)
    assert spec(["file:{path}"], "read").keys_for({"path": "a"}) == (ResourceKey("file:a", False),)
    assert spec(lambda args: [ResourceKey(args["a"], exclusive=False)]).keys_for({"a": "x"}) == (
        ResourceKey("x", False),
    )
    assert spec(["file:{path}"]).keys_for({}) == (ResourceKey("*", True),), (
        "what cannot be told is any resource"
    )
    assert spec(lambda args: 1 / 0, "read").keys_for({}) == (ResourceKey("*", False),)
    assert spec(None, "pure").keys_for({}) == ()


def test_a_registry_has_one_description_per_name() -> None:
    registry = ToolRegistry([ToolSpec(name="a")])
    with pytest.raises(EdictumConfigError, match="registered already"):
        registry.register(ToolSpec(name="a"))
    assert registry.get("a") is not None
    assert registry.get(["a"]) is None
    assert ("a" in registry, len(registry), registry.names()) == (True, 1, ("a",))
    registry.register(ToolSpec(name="pay", verify="nobody"))
    with pytest.raises(EdictumConfigError, match="nobody"):
        registry.check()


def test_a_tool_without_a_function_says_so() -> None:
    with pytest.raises(EdictumConfigError, match="no function"):
        ToolSpec(name="a")()


def test_what_models_are_told() -> None:
    spec = ToolSpec(name="a", description="does a")
    assert spec.to_openai_schema()["function"] == {
        "name": "a",
        "description": "does a",
        "parameters": {"type": "object"},
    }
    assert spec.to_anthropic_schema() == {
        "name": "a",
        "description": "does a",
        "input_schema": {"type": "object"},
    }


@pytest.mark.parametrize(
    ("annotations", "effect", "idempotent"),
    [
        (None, SideEffect.IRREVERSIBLE, False),
        ({"readOnlyHint": True, "idempotentHint": True}, SideEffect.READ, False),
        ({"destructiveHint": False}, SideEffect.WRITE, False),
        ({"destructiveHint": False, "idempotentHint": True}, SideEffect.WRITE, True),
        ({"readOnlyHint": "yes"}, SideEffect.IRREVERSIBLE, False),
    ],
)
def test_mcp_annotations_map_onto_a_spec(
    annotations: Any, effect: SideEffect, idempotent: bool
) -> None:
    described = {
        "name": "t",
        "inputSchema": {"type": "object"},
        "outputSchema": {"type": "object"},
        "annotations": annotations,
    }
    spec = spec_from_mcp(described, timeout_s=3)
    assert (spec.side_effect, spec.idempotent, spec.timeout_s) == (effect, idempotent, 3)
    assert spec.returns == {"type": "object"}
    assert spec.open_world


def test_a_schema_that_is_none_is_reported_when_the_executor_is_made() -> None:
    from edictum.harness import BoundedToolExecutor

    with pytest.raises(EdictumConfigError, match="not a JSON Schema"):
        BoundedToolExecutor([ToolSpec(name="a", parameters={"type": 12})])
