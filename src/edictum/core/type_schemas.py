"""Read signatures and types as JSON Schemas, as far as arguments are concerned.

Whatever is unknown is omitted: ``{}`` is the schema of any value. A default is kept as the object
that it is, because a function may change its own; ``edictum.core.parameters`` copies plain ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import MISSING, InitVar, fields, is_dataclass
from datetime import date, time
from enum import Enum
from itertools import chain
from types import NoneType, SimpleNamespace, UnionType
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
PLACES: Final = "x-places"  # of a field: its names, and paths into other arguments, if several
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
_FACTORIES = (list, dict, set, frozenset, tuple, str, int, float, bool)  # without side effects


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
    except (TypeError, ValueError):  # a builtin without a signature
        return ANYTHING
    types, found, is_open = _read_parameter_types(function), {}, False
    for each in parameters:
        if each.kind is each.VAR_KEYWORD:
            is_open = True
        elif each.kind is not each.VAR_POSITIONAL:
            default = MISSING if each.default is each.empty else each.default
            found[each.name] = _Field(types[each.name], default)
    return _make_object(found, is_open)


def _read_parameter_types(function: Any) -> dict[str, Any]:
    hints = _read_hints(inspect.unwrap(getattr(function, "func", function)))
    parameters = inspect.signature(function).parameters.values()
    others = {it.name: it.annotation for it in parameters if it.name not in hints}
    found = {**hints, **{name: _read_hint(it, function) for name, it in others.items()}}
    return {it.name: found[it.name] for it in parameters}


class _Field:
    """A field: its type, and its default, if it is known without running code."""

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
        parts = [_read_own_hints(each) for each in reversed(getattr(holder, "__mro__", (holder,)))]
        return dict(chain.from_iterable(parts))


def _read_own_hints(holder: Any) -> Iterator[tuple[str, Any]]:
    """Yield the hints of a function, or those in the body of a class, each that can be read."""
    for name, hint in getattr(holder, "__dict__", {}).get("__annotations__", {}).items():
        yield name, _read_hint(hint, holder)


def _read_hint(hint: Any, holder: Any) -> Any:
    """Return a hint with its names looked up in the module of its holder, as far as possible."""
    module = inspect.getmodule(holder)
    try:
        wrapped = SimpleNamespace(__annotations__={"it": hint})
        return get_type_hints(wrapped, vars(module), include_extras=True)["it"]
    except Exception:  # names that cannot be found
        return hint


def list_places(parameters: Any) -> list[list[Any]]:
    """Return, for every model anywhere in the types of parameters, the places of its fields that
    have several.

    What holds a type is not asked for its meaning: all that it names is looked into.
    """
    found: list[list[Any]] = []
    seen: dict[int, Any] = {}
    waiting = list(_list_types_of(parameters))
    while waiting:
        hint = waiting.pop()
        if id(hint) not in seen:
            seen[id(hint)] = hint  # kept, or another could get its id
            try:
                found.append(_list_own_places(hint))
                waiting += _list_types_in(hint)
            except Exception:  # noqa: S112 - a class of any library may raise when it is read
                continue
    return list(filter(None, found))


def _list_types_of(parameters: Any) -> Iterator[Any]:
    if isinstance(parameters, tuple):
        yield from chain.from_iterable(map(_list_types_of, parameters))
    elif isinstance(parameters, type):
        yield parameters
    if callable(parameters):
        try:
            yield from _read_parameter_types(parameters).values()
        except (TypeError, ValueError):  # it does not tell
            return


def _list_types_in(hint: Any) -> Iterator[Any]:
    """Yield the types that a type names: its arguments, what it is an alias of, its fields."""
    origin = get_origin(hint)
    if origin is Annotated:
        yield get_args(hint)[0]
    elif origin is not None and origin is not Literal:
        yield from (origin, *get_args(hint))
    elif isinstance(hint, type):
        yield from _read_hints(hint).values()
        yield from (field.annotation for field in _read_fields(hint).values())
    elif isinstance(hint, InitVar):
        yield hint.type
    elif type(hint).__module__ in ("typing", "typing_extensions"):
        yield from (_read_hint(_read_inner_type(hint, name), hint) for name in _HELD_BY)
        yield from _read_inner_type(hint, "__constraints__") or ()


def _read_inner_type(hint: Any, name: str) -> Any:
    try:
        return getattr(hint, name, None)
    except Exception:  # the value of an alias is worked out when it is read
        return None


# By a NewType, an alias, a type variable.
_HELD_BY = ("__supertype__", "__value__", "__bound__", "__default__")


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
    held = getattr(hint, "__supertype__", None)  # of a NewType
    return ANYTHING if held is None else describe_type(held, inside)


def _describe_class(kind: Any, inside: tuple[Any, ...]) -> Schema:
    if kind in _JSON_NAMES:
        return {"type": _JSON_NAMES[kind]}
    if kind in inside or (not _read_fields(kind) and _list_own_places(kind)):
        return ANYTHING  # it contains itself, or has other names for fields than its own
    if issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    if getattr(kind, "__pydantic_root_model__", False):
        return describe_type(kind.model_fields["root"].annotation, (*inside, kind))
    if _read_fields(kind):
        return _describe_model(kind, (*inside, kind))
    if is_dataclass(kind):
        return _describe_dataclass(kind, (*inside, kind))
    if is_typeddict(kind):
        return _describe_typed_dict(kind, (*inside, kind))
    return {"type": "object"} if issubclass(kind, Mapping) else ANYTHING


def _describe_model(kind: Any, inside: tuple[Any, ...]) -> Schema:
    """Return the schema of a pydantic model or dataclass: fields under the names by which they are
    sent.
    """
    found: dict[str, _Field] = {}
    others: dict[str, Schema] = {}
    for name, field in _read_fields(kind).items():
        names, paths = _list_places(name, field, _is_sent_by_name(kind))
        factory = MISSING if field.default_factory is None else field.default_factory
        default = MISSING if field.is_required() or factory is not MISSING else field.default
        if paths:  # what stands there is read, but not all that a path can mean
            default, factory = MISSING, _read_elsewhere
        places = [*names, *paths]
        for each in names:
            found[each] = _Field(field.annotation, default, factory)
            others[each] = {PLACES: places} if len(places) > 1 else {}
    made = _make_object(found, _read_config(kind).get("extra") == "allow", inside)
    properties = {name: {**schema, **others[name]} for name, schema in made["properties"].items()}
    return {**made, "properties": properties}


def _read_config(kind: Any) -> Any:
    return getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", None) or {}


def _is_sent_by_name(kind: Any) -> bool:
    config = _read_config(kind)
    return bool(config.get("populate_by_name") or config.get("validate_by_name"))


def _read_fields(kind: Any) -> Mapping[str, Any]:
    """Return the fields of a pydantic model or dataclass that may be sent; none of other types."""
    if not getattr(kind, "__pydantic_complete__", True) and hasattr(kind, "model_rebuild"):
        with suppress(Exception):  # pydantic does it when the model is first used
            kind.model_rebuild(raise_errors=False)
    found = getattr(kind, "__pydantic_fields__", None) or getattr(kind, "model_fields", None)
    fields = found if isinstance(found, Mapping) else {}
    return {name: it for name, it in fields.items() if getattr(it, "init", None) is not False}


def _list_own_places(hint: Any) -> list[list[Any]]:
    """Return the places of the fields of a type that have several."""
    if not isinstance(hint, type):
        return []
    fields = _read_fields(hint) or _read_annotated_fields(hint)
    found = [_list_places(name, it, _is_sent_by_name(hint)) for name, it in fields.items()]
    return [[*names, *paths] for names, paths in found if len(names) + len(paths) > 1]


def _read_annotated_fields(kind: type) -> dict[str, Any]:
    """Return what pydantic is told of fields of a type that is not its own: ``Annotated[int,
    Field(alias="n")]``.
    """
    found: dict[str, Any] = {}
    for name, hint in _read_hints(kind).items():
        for held in chain.from_iterable(getattr(it, "__metadata__", ()) for it in _unwrap(hint)):
            if hasattr(held, "validation_alias"):
                found[name] = held
    return found


def _unwrap(hint: Any) -> Iterator[Any]:
    """Yield a hint, and what stands in its Required, NotRequired or ReadOnly."""
    yield hint
    if get_origin(hint) is not Annotated:
        yield from get_args(hint)[:1]


def _list_places(name: str, field: Any, by_name: bool) -> tuple[list[str], list[list[Any]]]:
    """Return the names under which a field of a model may be sent, the one that counts first, and
    the paths into other arguments from which it may come.
    """
    alias = field.alias if field.validation_alias is None else field.validation_alias
    choices = [name] if alias is None else list(getattr(alias, "choices", (alias,)))
    names = [each for each in choices if isinstance(each, str)]
    paths = [list(each.path) for each in choices if not isinstance(each, str)]
    if by_name or not names:
        names.append(name)
    return list(dict.fromkeys(names)), paths


def _read_elsewhere() -> None:
    """Mark a default that cannot be known: this is never called."""


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
