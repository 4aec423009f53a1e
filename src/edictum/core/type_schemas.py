"""Read signatures and types as JSON Schemas, as far as arguments are concerned.

What is not known is left out: ``{}`` is the schema of any value. A default is kept as the object
that it is, because a function may change its own; ``edictum.core.parameters`` copies plain ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, fields, is_dataclass
from datetime import date, time
from enum import Enum
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

Schema: TypeAlias = Mapping[str, Any]
ANYTHING: Final[Schema] = {}
ACCEPTED_NAMES: Final = (
    "x-accepted-names"  # of a field: all under which it may be sent, by precedence
)
_JSON_NAMES: dict[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
    None: "null",
    dict: "object",
    list: "array",
    tuple: "array",
    set: "array",
    frozenset: "array",
    date: "string",
    time: "string",
}
_LISTS = (list, set, frozenset, Sequence, AbstractSet)
_FACTORIES = (list, dict, set, frozenset, tuple, str, int, float, bool)  # that do nothing else


def describe_parameters(parameters: Any) -> Schema:
    """Return the schema of a tool's arguments: of a function, a type, or given as a schema.

    Several in a tuple are read together, and the first that declares an argument counts. An object
    may have its schema as ``parameters``.
    """
    if parameters is None or isinstance(parameters, Mapping):
        return parameters or ANYTHING
    if isinstance(parameters, tuple):
        return {"allOf": [describe_parameters(each) for each in parameters]}
    own = getattr(parameters, "parameters", None)
    if isinstance(own, Mapping):
        return own
    if isinstance(parameters, type):
        described = describe_type(parameters)
        if "properties" in described:
            return described
    return _describe_signature(parameters) if callable(parameters) else ANYTHING


def _describe_signature(function: Callable[..., Any]) -> Schema:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # it does not tell
        return ANYTHING
    hints = _read_hints(inspect.unwrap(getattr(function, "func", function)))
    found, is_open = {}, False
    for each in parameters:
        if each.kind is each.VAR_KEYWORD:
            is_open = True
        elif each.kind is not each.VAR_POSITIONAL:
            default = MISSING if each.default is each.empty else each.default
            found[each.name] = _Field(hints.get(each.name, each.annotation), default)
    return _make_object(found, is_open)


class _Field:
    """A field: its type, and its default as far as it is known without running code for it."""

    def __init__(self, hint: Any, default: Any, factory: Any = MISSING) -> None:
        self.hint = hint
        self.is_required = default is MISSING and factory is MISSING
        self.has_default = default is not MISSING or factory in _FACTORIES
        self.default = factory() if factory in _FACTORIES else default

    def describe(self, inside: tuple[Any, ...]) -> Schema:
        schema = describe_type(self.hint, inside)
        return {**schema, "default": self.default} if self.has_default else schema


def _make_object(
    fields: Mapping[str, _Field], is_open: bool, inside: tuple[Any, ...] = ()
) -> Schema:
    return {
        "type": "object",
        "properties": {name: field.describe(inside) for name, field in fields.items()},
        "required": [name for name, field in fields.items() if field.is_required],
        "additionalProperties": is_open,
    }


def _read_hints(holder: Any) -> dict[str, Any]:
    try:
        return get_type_hints(holder, include_extras=True)
    except Exception:  # names that cannot be found, or an object without hints
        return {}


def describe_type(hint: Any, inside: tuple[Any, ...] = ()) -> Schema:
    """Return the schema of the values of a type; ``inside`` are the types around it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return describe_type(arguments[0], inside)
    if origin in (Union, UnionType):
        return {"anyOf": [describe_type(each, inside) for each in arguments]}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in _LISTS:
        return {"type": "array", "items": describe_type(arguments[0], inside)}
    if isinstance(origin or hint, type) or hint is None:
        return _describe_class(origin or hint, inside)
    return ANYTHING


def _describe_class(kind: Any, inside: tuple[Any, ...]) -> Schema:
    if kind in _JSON_NAMES:
        return {"type": _JSON_NAMES[kind]}
    if kind in inside:  # a type that contains itself
        return ANYTHING
    if issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    if isinstance(getattr(kind, "model_fields", None), Mapping):
        return _describe_model(kind, (*inside, kind))
    if is_dataclass(kind):
        return _describe_dataclass(kind, (*inside, kind))
    if is_typeddict(kind):
        return _describe_typed_dict(kind, (*inside, kind))
    return {"type": "object"} if issubclass(kind, Mapping) else ANYTHING


def _describe_model(kind: Any, inside: tuple[Any, ...]) -> Schema:
    """Return the schema of a pydantic model: fields under the names by which they are sent."""
    found, others = {}, {}
    by_name = any(kind.model_config.get(key) for key in ("populate_by_name", "validate_by_name"))
    for name, field in kind.model_fields.items():
        names, is_whole = _list_names(name, field, by_name)
        factory = MISSING if field.default_factory is None else field.default_factory
        default = MISSING if field.is_required() or factory is not MISSING else field.default
        if not is_whole:  # it may come from inside of another argument, which is not looked for
            default, factory = MISSING, _read_elsewhere
        for each in names:
            found[each] = _Field(field.annotation, default, factory)
            others[each] = {ACCEPTED_NAMES: names} if len(names) > 1 else {}
    made = _make_object(found, kind.model_config.get("extra") == "allow", inside)
    properties = {name: {**schema, **others[name]} for name, schema in made["properties"].items()}
    return {**made, "properties": properties}


def _list_names(name: str, field: Any, by_name: bool) -> tuple[list[str], bool]:
    """Return the names under which a field of a model may be sent, the one that counts first, and
    whether these are all its places.
    """
    alias = field.alias if field.validation_alias is None else field.validation_alias
    choices = [name] if alias is None else list(getattr(alias, "choices", (alias,)))
    names = [each for each in choices if isinstance(each, str)]
    is_whole = len(names) == len(choices)
    if by_name or not names:
        names.append(name)
    return list(dict.fromkeys(names)), is_whole


def _read_elsewhere() -> None:
    """Stand for a default that cannot be known."""


def _describe_dataclass(kind: Any, inside: tuple[Any, ...]) -> Schema:
    hints = _read_hints(kind)
    own = [field for field in fields(kind) if field.init]
    found = {
        field.name: _Field(hints.get(field.name, Any), field.default, field.default_factory)
        for field in own
    }
    return _make_object(found, False, inside)


def _describe_typed_dict(kind: Any, inside: tuple[Any, ...]) -> Schema:
    hints = _read_hints(kind)
    properties = {name: describe_type(hint, inside) for name, hint in hints.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name in kind.__required_keys__],
    }
