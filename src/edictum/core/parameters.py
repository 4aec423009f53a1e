"""Parameters of tools: declarations of the arguments that a call may leave out.

A contract judges the default of an argument that was not sent: what was checked is what runs. A
declaration is a JSON Schema, or is read as one from a signature, a pydantic model or a dataclass
(``edictum.core.type_schemas``). A property that is neither required nor has a default of plain data
is one whose default cannot be known. All this happens only when an argument that was not sent is
read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import chain, islice
from types import MethodType, NoneType
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from edictum.core._records import record
from edictum.core.freeze import EMPTY, FrozenDict, FrozenList, freeze
from edictum.core.type_schemas import (
    ANYTHING,
    PLACES,
    Schema,
    describe_parameters,
    list_places,
)
from edictum.core.values import JsonVisitor, held_fields, is_same

ANY_ITEM: Final = "[*]"  # a step into every element of a list
NOT_SENT: Final = object()
MAX_REFERENCES = 32  # references followed from one schema: bounds a cycle
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
    """The declaration of one value: its schema, and the root schema with the definitions.

    ``everywhere`` are, by model, the fields of the tool that may be sent in several places: a value
    of which nothing exact is declared may be each of these models.
    """

    __slots__ = ("_found", "_item", "_meanings", "_places", "everywhere", "root", "schema")

    def __init__(self, schema: Schema, root: Schema, everywhere: Sequence[Any] = ()) -> None:
        self.schema = schema
        self.root = root
        self.everywhere = everywhere
        self._found: dict[str, tuple[Declaration | None, bool]] = {}
        self._item: Declaration | None = None
        self._meanings: dict[str, list[Declaration]] | None = None
        self._places: Sequence[Any] | None = None

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

        None if it is not declared, or if several alternatives declare it.
        """
        known = self._found.get(name)
        if known is None:
            known = self._find(name)
            if known[0] is not None:  # a model can invent any number of other names
                self._found[name] = known
        return known

    def _find(self, name: str) -> tuple[Declaration | None, bool]:
        found = [part for part in self._parts() if name in _fields_of(part.schema)]
        if not found or (len(found) > 1 and self._has_alternatives()):
            return None, False
        holder = found[0]
        schema = _fields_of(holder.schema)[name]
        if self.everywhere and self._may_be_other(name):
            schema = _widen(schema)
        return holder.inside(schema), name in _list_required_names(holder.schema)

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
        if self._item is None:
            self._item = self._find_item()
        return self._item

    def _find_item(self) -> Declaration:
        for part in self._parts():
            if isinstance(items := part.schema.get("items"), Mapping):
                is_one_of = self.everywhere and self._has_alternatives()
                several = is_one_of and len(self._candidates("array")) > 1
                return part.inside(_widen(items) if several else items)
        return self.inside(ANYTHING)

    def inside(self, schema: Any) -> Declaration:
        """Return the declaration of a part; a part with definitions of its own is its own root."""
        if not isinstance(schema, Mapping):
            schema = ANYTHING
        has_own = any(key in schema for key in _DEFINITIONS)
        return Declaration(schema, schema if has_own else self.root, self.everywhere)

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
        """Return the schemas of which one must hold, with references resolved."""
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
        found = found if isinstance(found, Mapping) else ANYTHING
        return Declaration(found, self.root, self.everywhere)

    # --- Values -----------------------------------------------------------------------------------

    def fill(self, value: Any, path: Sequence[str] = (), *, is_copy: bool = False) -> Any:
        """Return a value with the known defaults of what was left out inside of it, and its fields
        under each of their names; on a path only those that are on it.

        A copy of a field under another name has no more such copies in parts that are not declared
        exactly: there would be two of each, and of what is inside of it.
        """
        if isinstance(value, Mapping):
            names = path[:1] or self._list_names_to_fill(value, is_copy)
            found = {name: self.get(value, name, path[1:], is_copy=is_copy) for name in names}
            filled = {name: it for name, it in found.items() if it is not NOT_SENT}
            return FrozenDict({**value, **filled})
        if isinstance(value, (list, tuple)):
            item = self.item()
            return FrozenList(item.fill(each, path[1:], is_copy=is_copy) for each in value)
        return value

    def _list_names_to_fill(self, value: Mapping[str, Any], is_copy: bool) -> Iterable[str]:
        is_open = self.everywhere and not is_copy
        others = _list_names(_select_places_of(value, self.places())) if is_open else ()
        return dict.fromkeys((*value, *self.names(), *others))

    def get(
        self,
        values: Mapping[str, Any],
        name: str,
        path: Sequence[str] = (),
        *,
        is_copy: bool = False,
    ) -> Any:
        """Return a field as ``fill`` does, or its known default; without one NOT_SENT."""
        declared = self.find(name)[0]
        found = values.get(name, NOT_SENT)
        if found is NOT_SENT:
            is_copy = True
            found = next(_find_field(values, name, self.places()), (name, NOT_SENT))[1]
        if found is not NOT_SENT:
            if declared is None and self.everywhere:
                declared = self.inside(ANYTHING)
            return found if declared is None else declared.fill(found, path, is_copy=is_copy)
        try:
            return NOT_SENT if declared is None else declared.default()
        except NotPlainError:
            return NOT_SENT

    # --- Fields that may be sent in several places ------------------------------------------------

    def places(self) -> Sequence[Any]:
        """Return, by model, the places of each field that a mapping may have in several.

        They are those of the declared fields; where some alternative does not tell the fields, they
        are all of the tool.
        """
        if self._places is None:
            is_known = self.everywhere and self.schema
            self._places = self._list_places() if is_known else self.everywhere
        return self._places

    def _list_places(self) -> list[Any]:
        parts = self._parts()
        own = [_list_places_of(part.schema) for part in parts]
        objects = self._candidates("object")
        is_exact = objects and all(_fields_of(it.schema) for it in objects)
        if is_exact and len(parts) < MAX_REFERENCES:
            return own
        return [*own, *self.everywhere]

    def _candidates(self, kind: str) -> list[Declaration]:
        """Return the alternatives that a value of a JSON type may be meant by."""
        parts = [(part, part.types()) for part in self.alternatives()]
        return [part for part, types in parts if types is None or kind in types]

    def _may_be_other(self, name: str) -> bool:
        """Return whether by some alternative a field is one about which nothing is declared."""
        return self._has_alternatives() and any(
            name not in _fields_of(part.schema) and not _rules_out_others(part.schema)
            for part in self._candidates("object")
        )

    def find_twice(self, value: Any) -> str:
        """Say which field is sent in two places with different values; "" if none is."""
        if isinstance(value, (list, tuple)):
            item = self.item()
            return next(filter(None, map(item.find_twice, value)), "")
        if not isinstance(value, Mapping):
            return ""
        known = self._list_meanings()
        anything = (self.inside(ANYTHING),)
        inside = (
            declared.find_twice(each)
            for name, each in value.items()
            if isinstance(each, (Mapping, list, tuple))
            for declared in known.get(name, anything)
        )
        return _find_twice(value, self.places()) or next(filter(None, inside), "")

    def _list_meanings(self) -> dict[str, list[Declaration]]:
        """Return the declarations of each field by all alternatives, even of one that is open."""
        if self._meanings is None:
            known: dict[str, list[Declaration]] = {}
            for part in self._parts():
                for name, schema in _fields_of(part.schema).items():
                    known.setdefault(name, []).append(part.inside(schema))
            for name in filter(self._may_be_other, known):
                known[name].append(self.inside(ANYTHING))
            self._meanings = known
        return self._meanings

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
    """Return a weak reference to a function, whose parameters are read later: records outlive
    calls.
    """
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
    return Declaration(schema, schema, list_places(parameters))


def fill_args(args: Mapping[str, Any], parameters: Any) -> Mapping[str, Any]:
    """Return the arguments of a call with the known defaults of those that were not sent."""
    try:
        filled: Mapping[str, Any] = declare(parameters).fill(args)
    except Exception:  # a schema that is not one
        return args
    return filled


def fill_argument(
    args: Mapping[str, Any], path: Sequence[str], parameters: Any
) -> Mapping[str, Any]:
    """Return one argument under its name, filled as by ``fill_args`` as far as a path into it needs
    that; an empty mapping if there is none.
    """
    name = path[0]
    try:
        found = declare(parameters).get(args, name, path[1:])
    except Exception:  # a schema that is not one
        found = args.get(name, NOT_SENT)
    return EMPTY if found is NOT_SENT else {name: found}


def find_field_sent_twice(args: Mapping[str, Any], parameters: Any) -> str:
    """Say which field is sent under two names, or in two places, with different values; "" if none
    is. It is not known which of them the tool takes.
    """
    declared = declare(parameters)
    return declared.find_twice(args) if declared.everywhere else ""


def has_fields_in_places(parameters: Any) -> bool:
    """Return whether some field may be sent in several places."""
    return bool(declare(parameters).everywhere)


def _widen(schema: Any) -> Schema:
    """Return the schema of a value that has this one, or another that is not known."""
    return {"anyOf": [schema, ANYTHING]}


def _list_places_of(schema: Schema) -> list[Any]:
    """Return the places of each field of one model that has several."""
    fields = (it for it in _fields_of(schema).values() if isinstance(it, Mapping))
    found = (it[PLACES] for it in fields if PLACES in it)
    return list({id(places): places for places in found}.values())  # each name of a field has them


def _select_places_of(values: Mapping[str, Any], models: Iterable[Any]) -> list[Any]:
    """Return, by model, the places of the fields that are sent in one of them."""
    kept = (
        [it for it in groups if any(_read(values, place) is not NOT_SENT for place in it)]
        for groups in models
    )
    return list(filter(None, kept))


def _list_names(models: Iterable[Any]) -> list[str]:
    """Return the names of fields that may be sent in several places."""
    places = chain.from_iterable(chain.from_iterable(models))
    return list(dict.fromkeys(place for place in places if isinstance(place, str)))


def _find_field(values: Mapping[str, Any], name: str, models: Iterable[Any]) -> Iterator[Any]:
    """Yield, by model, where a field is sent and its value: under its name, else elsewhere."""
    for groups in models:
        others = (place for places in groups if name in places for place in (name, *places))
        found = ((place, _read(values, place)) for place in others)
        yield from islice((it for it in found if it[1] is not NOT_SENT), 1)


def _find_twice(values: Mapping[str, Any], models: Sequence[Any]) -> str:
    """Say which two places of one field have different values, or may be of one field: it is not
    known of which model the value is.
    """
    models = _select_places_of(values, models)
    groups = chain.from_iterable(models)
    found = ([(it, _read(values, it)) for it in places] for places in groups)
    names = _list_names(models) if len(models) > 1 else ()
    by_model = (list(_find_field(values, name, models)) for name in names)
    for sent in chain(found, by_model):
        kept = [(place, value) for place, value in sent if value is not NOT_SENT]
        for place, value in kept[1:]:
            if not is_same(value, kept[0][1]):
                both = f"{_show(kept[0][0])} and {_show(place)} are two names of one field"
                return f"{both}, and have different values. Send it under one of them."
    return ""


def _show(place: str | list[Any]) -> str:
    return repr(place if isinstance(place, str) else ".".join(map(str, place)))


def _read(values: Mapping[str, Any], place: str | list[Any]) -> Any:
    if isinstance(place, str):
        return values.get(place, NOT_SENT)
    found: Any = values
    for step in place:
        if isinstance(found, str):
            return NOT_SENT
        try:
            found = found[step]
        except (KeyError, IndexError, TypeError):
            return NOT_SENT
    return found


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


def _list_required_names(schema: Schema) -> Any:
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
