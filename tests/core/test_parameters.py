"""What is declared about a tool's parameters, in whatever form, and however odd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypedDict

import pytest

from edictum import ToolCall
from edictum.core.parameters import ReadLater, declare, is_default_unknown


def effective(parameters: Any, **args: Any) -> Any:
    return dict(ToolCall("t", args, parameters=parameters).effective_args)


def make_deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    return deep


def make_circular() -> list[Any]:
    circular: list[Any] = []
    circular.append(circular)
    return circular


@pytest.mark.parametrize(
    "default", [make_deep(), make_circular(), 1j, [b"x"]], ids=["deep", "circular", "1j", "bytes"]
)
def test_a_default_that_is_not_plain_is_not_known(default: Any) -> None:
    """What is too deep, contains itself or is not JSON is left out; the others are filled in."""
    assert effective(lambda a=default, b=1: 0) == {"b": 1}


def test_what_reads_as_plain_data_is() -> None:
    """Dataclasses, tuples and sets are read as a model would send them."""

    @dataclass
    class Options:
        deep: bool = True

    assert effective(lambda a=Options(), b=(1, 2), c={3}: 0) == {  # noqa: B008 - a default
        "a": {"deep": True},
        "b": [1, 2],
        "c": [3],
    }


def test_several_forms_are_read_together_and_the_first_that_declares_counts() -> None:
    """A function that takes anything and a schema that tells the rest complete each other."""
    schema = {"properties": {"a": {"default": 1}, "b": {"default": 2}}}
    assert effective((lambda a=5, **rest: 0, schema)) == {"a": 5, "b": 2}
    assert effective((None, schema)) == {"a": 1, "b": 2}
    assert effective(ReadLater(lambda: (schema, lambda a=5, c=6: 0))) == {"a": 1, "b": 2, "c": 6}
    assert effective(declare(schema)) == {"a": 1, "b": 2}


class Node(TypedDict):
    name: str
    size: NotRequired[int]


@dataclass
class Tree:
    children: list[Tree] | None = None
    depth: int = 1


def test_types_are_read_as_far_as_they_are_known() -> None:
    """Annotated, TypedDict, dataclasses and containers have the JSON types of their values."""

    def tool(
        node: Annotated[Node, "a note"], tree: Tree, kinds: dict[str, int], rest: tuple[int, ...]
    ) -> None: ...

    declared = declare(tool)
    names = {name: declared.find(name)[0] for name in declared.names()}
    types = {name: found.types() for name, found in names.items() if found is not None}
    assert types == {
        "node": frozenset({"object"}),
        "tree": frozenset({"object"}),
        "kinds": frozenset({"object"}),
        "rest": frozenset({"array"}),
    }
    node = names["node"]
    assert node is not None
    assert node.names() == ["name", "size"]
    assert not node.is_closed()


class TreeHolder:
    def grow(self, tree: Tree, items: list = []) -> None: ...  # type: ignore[type-arg]  # noqa: B006


def test_a_type_that_contains_itself_is_read_once() -> None:
    """A recursive type ends the reading, and loses no default before it."""
    found = effective(TreeHolder().grow, tree={"children": [{}]}, items=[{}])
    assert found == {"tree": {"children": [{}], "depth": 1}, "items": [{}]}


def test_a_class_that_is_not_a_model_is_read_by_its_signature() -> None:
    """A class can be a tool: calling it makes an object."""

    class Plain:
        def __init__(self, amount: int = 5) -> None: ...

    assert effective(Plain) == {"amount": 5}


class RaisingSchema(dict[str, Any]):
    def get(self, *about: Any) -> Any:
        raise RuntimeError("no")


class RaisingTool:
    @property
    def parameters(self) -> Any:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "parameters",
    [
        RaisingSchema(properties={}),
        RaisingTool(),
        {"properties": {"a": True, "b": None}},
        {"properties": {"a": {"anyOf": 5, "$ref": 6, "items": 7}}},
        {"$ref": "#/x/y"},
        5,
    ],
)
def test_parameters_that_cannot_be_read_declare_nothing(parameters: Any) -> None:
    """Whatever is given, nothing raises, and a default counts as not known."""
    assert effective(parameters, a=[1]) == {"a": [1]}
    call = ToolCall("bash", {}, parameters=parameters)
    assert (call.bash_command, call.file_path) == ("", None)
    assert is_default_unknown({}, ("a",), parameters)


def test_properties_of_a_call_read_defaults() -> None:
    """The command and the file of a call are those that the tool will use."""
    tool: Callable[..., Any] = lambda command="ls", path="/etc": 0  # noqa: E731 - a default
    call = ToolCall("bash", {}, parameters=tool)
    assert (call.bash_command, call.file_path) == ("ls", "/etc")
    sent = ToolCall("bash", {"command": "id", "path": "/tmp"}, parameters=tool)
    assert (sent.bash_command, sent.file_path) == ("id", "/tmp")
    assert ToolCall("bash", {"command": 5}).bash_command == "5"


def test_a_name_on_a_list_is_not_unknown() -> None:
    """A list has no names; what lies beyond its end was not left out either."""
    assert not is_default_unknown({"a": [1]}, ("a", "x"), None)
    assert not is_default_unknown({"a": [1]}, ("a", "5", "x"), None)
    assert is_default_unknown({"a": [{}]}, ("a", "0", "x"), None)
