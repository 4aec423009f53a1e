"""Parameters of tools: what is declared about the arguments that a call may leave out.

A contract judges the default of an argument that was not sent: what was checked is what runs. A
declaration is a JSON Schema, or is read as one from a signature, a pydantic model or a dataclass
(``edictum.core.type_schemas``). A property that is neither required nor has a default of plain data
is one whose default cannot be known. All this happens only when an argument that was not sent is
read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from types import MethodType, NoneType
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from edictum.core._records import record
from edictum.core.freeze import EMPTY, FrozenDict, FrozenList, freeze
from edictum.core.type_schemas import ACCEPTED_NAMES, Schema, describe_parameters
from edictum.core.values import JsonVisitor, held_fields

ANY_ITEM: Final = "[*]"  # a step into every element of a list
NOT_SENT: Final = object()
MAX_REFERENCES = 32  # that one schema may stand behind: a circle ends there
_SIMPLE = (str, int, bool, NoneType)
_UNIONS = ("anyOf", "oneOf")
_DEFINITIONS = ("$defs", "definitions")
_CONVERTED = (Enum, str, int, float, date, time, timedelta)


class NotPlainError(ValueError):
    """A default is not plain data: a sentinel, a client, a function."""


@record
class ReadLater:
    """Parameters in any form, read when they are needed."""

    read: Callable[[], Any]


class _PlainVisitor(JsonVisitor):
    """Make plain data of a default, as a model would send it; raise NotPlainError for the rest."""

    __slots__ = ()

    def scalar(self, value: Any) -> Any:
        if isinstance(value, (bytes, complex)):
            raise NotPlainError
        return super().scalar(value)

    def other(self, value: Any) -> Any:
        if isinstance(value, Enum) and len(type(value)) == 1 and not isinstance(value, (str, int)):
            raise NotPlainError  # a sentinel, to a type checker
        if isinstance(value, _CONVERTED):
            return super().other(value)
        if isinstance(value, Decimal):
            return int(value) if value == value.to_integral_value() else float(value)
        if hasattr(type(value), "__fspath__"):
            return self.visit(value.__fspath__())
        held = held_fields(value)
        if held is None:
            raise NotPlainError
        return self.visit(held)

    def too_deep(self, value: Any) -> Any:
        raise NotPlainError

    def circular(self, value: Any) -> Any:
        raise NotPlainError

    def unreadable(self, value: Any, error: Exception) -> Any:
        raise NotPlainError from error


class Declaration:
    """What is declared about one value: its schema, and the schema that has its definitions."""

    __slots__ = ("_found", "root", "schema")

    def __init__(self, schema: Schema, root: Schema) -> None:
        self.schema = schema
        self.root = root
        self._found: dict[str, tuple[Declaration | None, bool]] = {}

    def default(self) -> Any:
        """Return the declared default as frozen plain data; raise NotPlainError without one."""
        for part in (self,) if "default" in self.schema else self._parts():
            if "default" in part.schema:
                found = part.schema["default"]
                plain = type(found) in _SIMPLE
                return found if plain else freeze(_PlainVisitor().visit(found))
        raise NotPlainError

    def find(self, name: str) -> tuple[Declaration | None, bool]:
        """Return the declaration of a field, and whether a value without it cannot be used.

        None: it is not declared, or by several alternatives of which it is not known which holds.
        """
        known = self._found.get(name)
        if known is None:
            known = self._find(name)
            if known[0] is not None:  # other names a model can invent without end
                self._found[name] = known
        return known

    def _find(self, name: str) -> tuple[Declaration | None, bool]:
        found = [part for part in self._parts() if name in _fields_of(part.schema)]
        if not found or (len(found) > 1 and self._has_alternatives()):
            return None, False
        holder = found[0]
        return holder.inside(_fields_of(holder.schema)[name]), name in _required_by(holder.schema)

    def names(self) -> list[str]:
        """Return the names of all declared fields, in their order."""
        parts = map(_fields_of, (part.schema for part in self._parts()))
        return list(dict.fromkeys(name for part in parts for name in part))

    def is_closed(self) -> bool:
        """Return whether fields that are not declared can be ruled out."""
        parts = [part.schema for part in self._parts() if _is_object(part.schema)]
        closed = [_rules_out_others(schema) for schema in parts]
        return bool(closed) and (all(closed) if self._has_alternatives() else any(closed))

    def item(self) -> Declaration:
        """Return the declaration of the elements of a list."""
        for part in self._parts():
            if isinstance(part.schema.get("items"), Mapping):
                return part.inside(part.schema["items"])
        return NOTHING_DECLARED

    def inside(self, schema: Any) -> Declaration:
        """Return the declaration of a part; a part with definitions of its own is its own root."""
        if not isinstance(schema, Mapping):
            return NOTHING_DECLARED
        has_own = any(key in schema for key in _DEFINITIONS)
        return Declaration(schema, schema if has_own else self.root)

    def types(self) -> frozenset[str] | None:
        """Return the JSON types that a value may have; None if that is not declared."""
        found: set[str] = set()
        for part in self.alternatives():
            declared = part.schema.get("type")
            if "enum" in part.schema or "const" in part.schema:
                found |= {_json_type(value) for value in part.choices() or ()}
            elif isinstance(declared, str):
                found.add(declared)
            elif isinstance(declared, (list, tuple)):
                found.update(map(str, declared))
            else:
                return None
        return frozenset(found)

    def choices(self) -> list[Any] | None:
        """Return the only values that are declared to be possible; None if there are others."""
        found: list[Any] = []
        for part in self.alternatives():
            if "const" in part.schema:
                found.append(part.schema["const"])
            elif isinstance(part.schema.get("enum"), (list, tuple)):
                found += part.schema["enum"]
            elif part.schema.get("type") != "null":
                return None
        return found

    def alternatives(self) -> list[Declaration]:
        """Return the schemas of which one must hold, without references and what is around them."""
        parts = self._parts()
        telling = [part for part in parts if not _is_wrapper(part.schema)]
        return telling or parts[:1]

    def _has_alternatives(self) -> bool:
        return any(key in part.schema for part in self._parts() for key in _UNIONS)

    def _parts(self) -> list[Declaration]:
        """Return this schema and those that it refers to, its own first."""
        found: list[Declaration] = []
        waiting = [self]
        while waiting and len(found) < MAX_REFERENCES:
            part = waiting.pop(0)
            found.append(part)
            waiting += part._references()
        return found

    def _references(self) -> Iterator[Declaration]:
        target = self.schema.get("$ref")
        if isinstance(target, str):
            yield self._look_up(target)
        for key in ("allOf", *_UNIONS):
            items = self.schema.get(key)
            if isinstance(items, (list, tuple)):
                yield from map(self.inside, items)

    def _look_up(self, target: str) -> Declaration:
        found: Any = self.root
        for step in target.removeprefix("#").strip("/").split("/") if target != "#" else ():
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return Declaration(found, self.root) if isinstance(found, Mapping) else NOTHING_DECLARED

    # --- Values -----------------------------------------------------------------------------------

    def fill(self, value: Any) -> Any:
        """Return a value with the known defaults of what was left out inside of it."""
        if isinstance(value, Mapping):
            found = {name: self.get(value, name) for name in (*value, *self.names())}
            return FrozenDict({name: it for name, it in found.items() if it is not NOT_SENT})
        if isinstance(value, (list, tuple)):
            item = self.item()
            return FrozenList(map(item.fill, value))
        return value

    def get(self, values: Mapping[str, Any], name: str) -> Any:
        """Return a field as ``fill`` does, or its known default; without one NOT_SENT."""
        declared = self.find(name)[0]
        if name in values:
            return values[name] if declared is None else declared.fill(values[name])
        if declared is None:
            return NOT_SENT
        for other in declared.schema.get(ACCEPTED_NAMES, ()):
            if other in values:  # the same field, under another name
                return declared.fill(values[other])
        try:
            return declared.default()
        except NotPlainError:
            return NOT_SENT

    def is_unknown(self, value: Any, path: tuple[str, ...]) -> bool:
        """Return whether a filled value lacks something on a path whose default is not known."""
        if not path:
            return False
        name, rest = path[0], path[1:]
        if isinstance(value, Mapping):
            declared, required = self.find(name)
            if name in value:
                return (declared or NOTHING_DECLARED).is_unknown(value[name], rest)
            return not required and (declared is not None or not self.is_closed())
        if not isinstance(value, (list, tuple)):
            return False
        chosen = value if name == ANY_ITEM else _element(value, name)
        return any(self.item().is_unknown(each, rest) for each in chosen)


NOTHING_DECLARED = Declaration({}, {})
# Of functions and types, and of the functions behind methods, which are new objects at each access.
_DECLARED: WeakKeyDictionary[Any, Declaration] = WeakKeyDictionary()
_DECLARED_METHODS: WeakKeyDictionary[Any, Declaration] = WeakKeyDictionary()


def refer_to(function: Callable[..., Any] | None) -> Any:
    """Return a function as parameters that do not keep it alive: records outlive their calls."""
    try:
        return None if function is None else ref(function)
    except TypeError:  # an object to which there are no weak references
        return function


def declare(parameters: Any) -> Declaration:
    """Return the declaration of a tool's arguments from any form in which parameters are given.

    It does not raise: what cannot be read declares nothing.
    """
    try:
        while isinstance(parameters, (ref, ReadLater)):
            parameters = parameters() if isinstance(parameters, ref) else parameters.read()
        if isinstance(parameters, Declaration):
            return parameters
        if isinstance(parameters, MethodType):
            return _declare_once(_DECLARED_METHODS, parameters.__func__, parameters)
        return _declare_once(_DECLARED, parameters, parameters)
    except Exception:  # user-supplied annotations and schemas can raise anything
        return NOTHING_DECLARED


def _declare_once(
    known: WeakKeyDictionary[Any, Declaration], key: Any, parameters: Any
) -> Declaration:
    try:
        found = known.get(key)
    except TypeError:  # a dict, or an object that cannot be a key
        return _declare(parameters)
    if found is None:
        found = known[key] = _declare(parameters)
    return found


def _declare(parameters: Any) -> Declaration:
    schema = describe_parameters(parameters)
    return Declaration(schema, schema)


def fill_args(args: Mapping[str, Any], parameters: Any) -> Mapping[str, Any]:
    """Return the arguments of a call with the known defaults of those that were not sent."""
    try:
        filled: Mapping[str, Any] = declare(parameters).fill(args)
    except Exception:  # a schema that is not one
        return args
    return filled


def fill_argument(args: Mapping[str, Any], name: str, parameters: Any) -> Mapping[str, Any]:
    """Return one argument under its name as ``fill_args`` does; an empty mapping if it has none."""
    try:
        found = declare(parameters).get(args, name)
    except Exception:  # a schema that is not one
        found = args.get(name, NOT_SENT)
    return EMPTY if found is NOT_SENT else {name: found}


def is_default_unknown(filled: Any, path: tuple[str, ...], parameters: Any) -> bool:
    """Return whether filled arguments lack something on a path whose default is not known."""
    try:
        return declare(parameters).is_unknown(filled, path)
    except Exception:  # a schema that is not one
        return True


def _element(value: Any, name: str) -> Any:
    return value[int(name) : int(name) + 1] if name.isdecimal() else ()


def _fields_of(schema: Schema) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _required_by(schema: Schema) -> Any:
    found = schema.get("required")
    return found if isinstance(found, (list, tuple)) else ()


def _is_object(schema: Schema) -> bool:
    return "properties" in schema or schema.get("type") == "object"


def _rules_out_others(schema: Schema) -> bool:
    return schema.get("additionalProperties") is False and "patternProperties" not in schema


def _is_wrapper(schema: Schema) -> bool:
    return "$ref" in schema or any(key in schema for key in ("allOf", *_UNIONS))


def _json_type(value: Any) -> str:
    return _JSON_TYPE_NAMES.get(type(value), "object")


_JSON_TYPE_NAMES = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
}
