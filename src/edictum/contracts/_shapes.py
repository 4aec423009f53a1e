"""The shapes of a bundle: one description, read by the loader and printed as the JSON Schema.

``read`` returns plain values and reports what is wrong with its place; ``schema`` says the same in
JSON Schema, and a test holds the two equal. What a value *means* is not decided here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from edictum.contracts._problems import Problems, join_words, suggest
from edictum.contracts._tree import (
    Map,
    Scalar,
    Seq,
    Tree,
    describe_value,
    read_plain_word,
    to_plain,
)

WRONG: Any = object()  # what ``read`` returns for a value that it has reported


class Shape(Protocol):
    def read(self, tree: Tree, problems: Problems) -> Any: ...
    def schema(self) -> dict[str, Any]: ...


def reject(tree: Tree, problems: Problems, wanted: str, hint: str = "") -> Any:
    """Report a value of the wrong kind."""
    return report(tree, problems, f"expected {wanted}, got {describe_value(tree)}", hint)


def report(tree: Tree, problems: Problems, message: str, hint: str) -> Any:
    """Report a problem that the JSON Schema sees too, and return WRONG."""
    problems.shape(tree, message, hint)
    return WRONG


@dataclass(frozen=True)
class String:
    """Text of at least one character."""

    max_length: int | None = None
    pattern: str | None = None
    rule: str = ""  # the pattern in words

    def read(self, tree: Tree, problems: Problems) -> Any:
        if type(tree) is not Scalar or type(tree.value) is not str:
            unquoted = isinstance(tree, Scalar) and tree.value is not None
            hint = "Put it in quotes." if unquoted else "Write some text."
            return reject(tree, problems, "text", hint)
        value = tree.value
        if not value:
            hint = "Write something, or remove the key."
            return report(tree, problems, "this text is empty", hint)
        if self.max_length is not None and len(value) > self.max_length:
            message = f"this text has {len(value)} characters"
            return report(tree, problems, message, f"Use at most {self.max_length}.")
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            message = f"'{value:.60}' is not allowed here"
            return report(tree, problems, message, f"Use {self.rule}.")
        return value

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string", "minLength": 1}
        if self.max_length is not None:
            schema["maxLength"] = self.max_length
        if self.pattern is not None:
            schema["pattern"] = self.pattern
        return schema


@dataclass(frozen=True)
class Choice:
    """One of a few words, with their meanings; ``others`` are the other vocabulary's."""

    words: Mapping[str, str]
    others: Mapping[str, str] = field(default_factory=dict)

    def read(self, tree: Tree, problems: Problems) -> Any:
        value = tree.value if isinstance(tree, Scalar) else None
        if isinstance(value, str) and value in self.words:
            return self.words[value]
        known = f"Use one of: {join_words(self.words)}."
        if not isinstance(value, str):
            return reject(tree, problems, "a word", known)
        if value in self.others:
            message = f"'{value}' belongs to the other vocabulary"
            return report(tree, problems, message, f"Here write '{self.others[value]}'.")
        message = f"'{value:.60}' is not one of the known words"
        return report(tree, problems, message, suggest(value, self.words) + known)

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


def words(*names: str) -> Choice:
    return Choice({name: name for name in names})


@dataclass(frozen=True)
class Boolean:
    def read(self, tree: Tree, problems: Problems) -> Any:
        if isinstance(tree, Scalar) and isinstance(tree.value, bool):
            return tree.value
        return reject(tree, problems, "true or false", "Write true or false, without quotes.")

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Number:
    """A finite number; ``whole`` numbers have no fraction."""

    whole: bool = False
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None

    def read(self, tree: Tree, problems: Problems) -> Any:
        value = self._number(tree.value) if isinstance(tree, Scalar) else None
        if value is None:
            return reject(tree, problems, f"a {self._kind}", self._remedy(tree))
        message = f"{value} is too small"
        if self.at_least is not None and value < self.at_least:
            return report(tree, problems, message, f"Use {self.at_least:g} or more.")
        if self.above is not None and value <= self.above:
            return report(tree, problems, message, f"Use more than {self.above:g}.")
        if self.at_most is not None and value > self.at_most:
            hint = f"Use at most {self.at_most:,.0f}."
            return report(tree, problems, "this number is too large", hint)
        return value

    @property
    def _kind(self) -> str:
        return "whole number" if self.whole else "number"

    def _number(self, value: Any) -> Any:
        """Return the value as such a number; None when it is not one."""
        if self.whole and isinstance(value, float) and value.is_integer():
            value = int(value)
        kinds = int if self.whole else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool):
            return None
        return None if isinstance(value, float) and not math.isfinite(value) else value

    def _remedy(self, tree: Tree) -> str:
        if not isinstance(tree, Scalar) or not isinstance(tree.value, str):
            return f"Write a finite {self._kind}."
        if tree.style in ("'", '"') and self._number(read_plain_word(tree.value)) is not None:
            return "Write it without quotes."
        return f"Write a {self._kind} in digits, for example 50."

    def schema(self) -> dict[str, Any]:
        bounds = (self.at_least, self.above, self.at_most)
        named = zip(("minimum", "exclusiveMinimum", "maximum"), bounds, strict=True)
        schema = {name: bound for name, bound in named if bound is not None}
        return {"type": "integer" if self.whole else "number", **schema}


@dataclass(frozen=True)
class Anything:
    """Any value but nothing: a key without a value is a mistake."""

    def read(self, tree: Tree, problems: Problems) -> Any:
        value = to_plain(tree)
        if value is None:
            hint = "To ask whether a field is missing, write 'exists: false'."
            return reject(tree, problems, "a value", hint)
        if isinstance(value, float) and not math.isfinite(value):
            hint = "Infinity and NaN compare with nothing."
            return reject(tree, problems, "a finite value", hint)
        return value

    def schema(self) -> dict[str, Any]:
        return {"not": {"type": "null"}}


@dataclass(frozen=True)
class ListOf:
    item: Shape
    one_will_do: bool = False  # a single item may stand without a list around it

    def read(self, tree: Tree, problems: Problems) -> Any:
        if self.one_will_do and isinstance(tree, Scalar):
            value = self.item.read(tree, problems)
            return WRONG if value is WRONG else (value,)
        if not isinstance(tree, Seq):
            return reject(tree, problems, "a list", "Write it as [first, second].")
        if not tree.items:
            hint = "Add at least one item, or remove the key."
            return report(tree, problems, "this list is empty", hint)
        values = tuple(self.item.read(item, problems) for item in tree.items)
        return WRONG if WRONG in values else values

    def schema(self) -> dict[str, Any]:
        many = {"type": "array", "items": self.item.schema(), "minItems": 1}
        return {"anyOf": [self.item.schema(), many]} if self.one_will_do else many


@dataclass(frozen=True)
class Each(ListOf):
    """A list whose items are judged later: returns pairs of tree and value, even of WRONG ones."""

    def read(self, tree: Tree, problems: Problems) -> Any:
        if not isinstance(tree, Seq) or not tree.items:
            return super().read(tree, problems)
        return [(item, self.item.read(item, problems)) for item in tree.items]


@dataclass(frozen=True)
class MapOf:
    """A mapping from names to values of one shape."""

    value: Shape
    may_be_empty: bool = False

    def read(self, tree: Tree, problems: Problems) -> Any:
        if not isinstance(tree, Map):
            return reject(tree, problems, "a mapping", "Write it as name: value.")
        if not tree.values and not self.may_be_empty:
            hint = "Add at least one entry, or remove the key."
            return report(tree, problems, "this mapping is empty", hint)
        values = {}
        for name, item in tree.values.items():
            if not name:
                problems.shape(tree.keys[name], "this name is empty", "Write a name.")
                continue
            if (value := self.value.read(item, problems)) is not WRONG:
                values[name] = value
        return values

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {
            "type": "object",
            "additionalProperties": self.value.schema(),
            "propertyNames": {"minLength": 1},
        }
        return schema if self.may_be_empty else schema | {"minProperties": 1}


@dataclass(frozen=True)
class Free:
    """A free mapping: any names, any values."""

    def read(self, tree: Tree, problems: Problems) -> Any:
        if isinstance(tree, Map):
            return to_plain(tree)
        return reject(tree, problems, "a mapping", "Write it as name: value.")

    def schema(self) -> dict[str, Any]:
        return {"type": "object"}


MOST = 10**9  # of seconds, calls and the like: every store can count so far
DURATION = r"^[0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h|d)$"
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Duration:
    """Seconds as a number, or a number with a unit."""

    def read(self, tree: Tree, problems: Problems) -> Any:
        value = tree.value if isinstance(tree, Scalar) else None
        seconds: float = 0
        if isinstance(value, str) and (found := re.fullmatch(DURATION, value)):
            seconds = float(value[: found.start(2)]) * UNITS[found.group(2)]
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and value <= MOST:
            seconds = value
        if not seconds > 0:
            return reject(tree, problems, "a length of time", "Write for example 60s, 5m or 1h.")
        return float(seconds)

    def schema(self) -> dict[str, Any]:
        # A text such as "0s" has the right form and no length, so at least one digit is not zero.
        text = {"type": "string", "pattern": DURATION, "not": {"pattern": r"^[0.]+[a-z]+$"}}
        return {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": MOST}, text]}


@dataclass(frozen=True)
class Field:
    shape: Shape
    required: bool = False


def _only_word(shape: Shape) -> str:
    """Return the only word that can be written, or ""."""
    return next(iter(shape.words)) if isinstance(shape, Choice) and len(shape.words) == 1 else ""


@dataclass(frozen=True)
class Record:
    """A mapping with known keys. ``needs`` maps a key to another that it only makes sense with;
    ``others`` maps keys of the other vocabulary to those to use instead.
    """

    fields: Mapping[str, Field]
    one_of: tuple[tuple[str, ...], ...] = ()
    any_of: tuple[tuple[str, ...], ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)

    def read(self, tree: Tree, problems: Problems) -> Any:
        if not isinstance(tree, Map):
            hint = f"Write it as 'key: value'. Known keys: {join_words(self.fields)}."
            return reject(tree, problems, "a mapping", hint)
        values: dict[str, Any] = {}
        misnamed: list[str] = []
        for name, item in tree.values.items():
            known = self.fields.get(name)
            if known is None:
                misnamed.append(self._report_unknown_key(tree, name, problems))
            elif (value := known.shape.read(item, problems)) is not WRONG:
                values[name] = value
        self._check_required_keys(tree, misnamed, problems)
        return values

    def _report_unknown_key(self, tree: Map, name: str, problems: Problems) -> str:
        """Report a key that does not belong here; return the key that was probably meant."""
        if name in self.others:
            message = f"the key '{name}' belongs to the other vocabulary"
            problems.shape(tree.keys[name], message, f"Here write '{self.others[name]}'.")
            return self.others[name]
        suggestion = suggest(name, self.fields)
        hint = f"{suggestion}Known keys here: {join_words(self.fields)}."
        problems.shape(tree.keys[name], f"unknown key '{name}'", hint)
        return suggestion.split("'")[1] if suggestion else ""

    def _check_required_keys(self, tree: Map, misnamed: list[str], problems: Problems) -> None:
        have = tree.values.keys() | set(misnamed)
        for name, known in self.fields.items():
            if known.required and name not in have:
                hint = f"Add '{name}: {_only_word(known.shape) or '...'}'."
                problems.shape(tree, f"the key '{name}' is missing", hint)
        self._check_groups(tree, have, problems)
        for name, other in self.needs.items():
            if name in have and other not in have:
                hint = f"Add '{other}', or remove '{name}'."
                problems.shape(tree.keys[name], f"'{name}' needs '{other}' as well", hint)

    def _check_groups(self, tree: Map, have: set[str], problems: Problems) -> None:
        for group in self.one_of:
            if len(have & set(group)) != 1:
                what = "are both given" if have & set(group) else "are missing"
                message = f"{' and '.join(map(repr, group))} {what}"
                problems.shape(tree, message, f"Give exactly one of: {join_words(group)}.")
        for group in self.any_of:
            if not have & set(group):
                message = f"at least one of {join_words(group)} is needed"
                problems.shape(tree, message, "Add one of them.")

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {
            "type": "object",
            "additionalProperties": False,
            "properties": {name: known.shape.schema() for name, known in self.fields.items()},
        }
        if required := [name for name, known in self.fields.items() if known.required]:
            schema["required"] = required
        if self.needs:
            schema["dependentRequired"] = {name: [other] for name, other in self.needs.items()}
        groups = [{"oneOf": _require_each(group)} for group in self.one_of]
        groups += [{"anyOf": _require_each(group)} for group in self.any_of]
        return schema | {"allOf": groups} if groups else schema


def _require_each(group: Iterable[str]) -> list[dict[str, Any]]:
    return [{"required": [name]} for name in group]


@dataclass(frozen=True)
class TextOr:
    """A text, or a value of another shape."""

    other: Shape

    def read(self, tree: Tree, problems: Problems) -> Any:
        before = len(problems.errors)
        value = (self.other if isinstance(tree, (Map, Seq)) else String()).read(tree, problems)
        return WRONG if len(problems.errors) > before else value

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [String().schema(), self.other.schema()]}


@dataclass(frozen=True)
class Variant:
    """A record whose other keys depend on the word under one of them."""

    by: str
    records: Mapping[str, Record]

    def read(self, tree: Tree, problems: Problems) -> Any:
        if not isinstance(tree, Map):
            return reject(tree, problems, "a mapping", f"Start it with '{self.by}: ...'.")
        chosen = tree.values.get(self.by)
        if chosen is None:
            hint = f"Add '{self.by}:' with one of: {join_words(self.records)}."
            return report(tree, problems, f"the key '{self.by}' is missing", hint)
        word = words(*self.records).read(chosen, problems)
        return WRONG if word is WRONG else self.records[word].read(tree, problems)

    def schema(self) -> dict[str, Any]:
        cases = [
            {
                "if": {"properties": {self.by: {"const": word}}, "required": [self.by]},
                "then": record.schema(),
            }
            for word, record in self.records.items()
        ]
        return {
            "type": "object",
            "required": [self.by],
            "properties": {self.by: {"enum": list(self.records)}},
            "allOf": cases,
        }


@dataclass(frozen=True)
class Definition:
    """A shape with a reader of its own, and a named definition in the schema."""

    reader: Callable[[Tree, Problems], Any]
    reference: str

    def read(self, tree: Tree, problems: Problems) -> Any:
        return self.reader(tree, problems)

    def schema(self) -> dict[str, Any]:
        return {"$ref": f"#/$defs/{self.reference}"}
