"""Convert JSON arguments to the types that a tool's hints name, with pydantic.

Contracts, approvals, the audit and replay control see the JSON that a model sent. It is converted
just before the body runs; the validation gate has refused what cannot be converted. Parameters of
plain JSON types are passed on as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from inspect import iscoroutinefunction
from types import NoneType
from typing import Any, NamedTuple

from edictum.core.decide import describe
from edictum.core.redaction import shorten
from edictum.core.values import dumps, show
from edictum.execution.failures import NotStarted

MAX_TYPE_PROBLEMS = 8


class TypeProblem(NamedTuple):
    """Why one argument cannot be converted. ``kind`` is the same for the same kind of mistake.
    ``for_operators``: a validator has raised something that says nothing about the argument.
    """

    path: str
    message: str
    kind: str
    for_operators: bool = False


class TypedFunction:
    """A function and the pydantic adapters of its parameters that are not plain JSON.

    ``body`` takes JSON arguments and calls the function with converted ones.
    """

    __slots__ = ("_adapters", "body", "function")

    def __init__(self, function: Callable[..., Any], adapters: Mapping[str, Any]) -> None:
        self.function = function
        self._adapters = adapters
        self.body = _make_body(self)
        self.body.typed = self  # type: ignore[attr-defined]  # lets sendable() find the function

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        return not self._convert(arguments)[1]

    def problems(self, arguments: Mapping[str, Any]) -> list[TypeProblem]:
        return self._convert(arguments)[1][:MAX_TYPE_PROBLEMS]

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function wants them, or raise NotStarted."""
        converted, problems = self._convert(arguments)
        if problems:
            why = "; ".join(f"{each.path}: {each.message}" for each in problems[:MAX_TYPE_PROBLEMS])
            raise NotStarted(f"The arguments cannot be read as the tool's types: {why}")
        return converted

    def _convert(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[TypeProblem]]:
        """Convert by way of JSON text, where even a strict model accepts text as a date."""
        converted, problems = dict(arguments), []
        for name, adapter in self._adapters.items():
            try:
                if name in arguments:
                    converted[name] = adapter.validate_json(dumps(arguments[name]))
            except Exception as exc:  # user-supplied validators can raise anything
                problems += _list_problems(exc, name)
        return converted, problems


def _make_body(typed: TypedFunction) -> Callable[..., Any]:
    """Wrap the function under its own name, so that another process can import it."""
    function, convert = typed.function, typed.convert
    if iscoroutinefunction(function):

        @wraps(function, updated=())
        async def run_async(**arguments: Any) -> Any:
            return await function(**convert(arguments))

        return run_async

    @wraps(function, updated=())
    def run(**arguments: Any) -> Any:
        return function(**convert(arguments))

    return run


def _list_problems(exc: Any, name: str) -> list[TypeProblem]:
    """List the errors of a pydantic ValidationError; any other exception is one problem."""
    try:
        errors = exc.errors(include_url=False, include_context=False)
    except Exception:
        kind = type(exc).__name__
        return [TypeProblem(name, f"{kind}: {shorten(describe(exc), 300)}", kind, True)]
    return [
        TypeProblem(".".join(map(str, (name, *error["loc"]))), _message(error), error["type"])
        for error in errors
    ]


def _message(error: Mapping[str, Any]) -> str:
    text = shorten(str(error["msg"]), 300).rstrip(".")
    if error["type"] == "missing":
        return text
    return f"{text}, received {shorten(show(error['input']), 60)}"


# --- Which types need conversion ------------------------------------------------------------------

_SHARED_NODES = frozenset(
    {"str", "int", "float", "bool", "none", "any", "list", "dict", "literal"}
    | {"nullable", "union", "tagged-union", "definitions", "definition-ref"}
    | {"typed-dict", "typed-dict-field"}
)
# JSON that fits the schema of such a type needs no conversion.
PLAIN_NODES = _SHARED_NODES | {"json-or-python"}
# pydantic writes values of such a type to JSON as core.values.to_json does.
JSON_NODES = (
    _SHARED_NODES
    | {"literal of objects", "dict by keys", "str changed", "tuple", "enum", "default"}
    | {"model", "model-fields", "model-field", "dataclass", "dataclass-args", "dataclass-field"}
    | {"function-after", "function-before", "function-wrap", "function-plain"}
)
_NESTED = ("schema", "items_schema", "keys_schema", "values_schema", "json_schema")
_NESTED_MANY = ("choices", "fields", "definitions")


def has_only_nodes(adapter: Any, allowed: frozenset[str]) -> bool:
    """Return whether every node of a TypeAdapter's core schema is of an allowed type."""
    return allowed.issuperset(_node_types(adapter.core_schema))


def _node_types(node: Any) -> Iterator[str]:
    if isinstance(node, (list, tuple)):
        for part in node:
            yield from _node_types(part)
    elif isinstance(node, dict) and isinstance(node.get("type"), str):
        yield _node_type(node)
        for key in (*_NESTED, *_NESTED_MANY):
            yield from _node_types(node.get(key))
    elif isinstance(node, dict):  # schemas by the names of fields, or by tags
        yield from _node_types(list(node.values()))


def _node_type(node: dict[str, Any]) -> str:
    """Return the node's type, with a mark where JSON and the value can differ."""
    match node:
        case {"type": "literal", "expected": expected}:
            plain = all(type(each) in (str, int, bool, NoneType) for each in expected)
            return "literal" if plain else "literal of objects"
        case {"type": "dict", "keys_schema": {"type": keys}} if keys not in ("str", "any"):
            return "dict by keys"
        case {"type": "str"} if node.keys() & {"strip_whitespace", "to_lower", "to_upper"}:
            return "str changed"
    return str(node["type"])
