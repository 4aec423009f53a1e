"""The shapes of a bundle: one description, read by the loader and printed as the JSON Schema.

``read`` returns plain values and reports problems with their places; ``schema`` says the same in
JSON Schema, and a test keeps the two equal. What a value *means* is not decided here.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from edictum.contracts._problems import Place, Problems, join_words, suggest
from edictum.contracts._tree import (
    Map,
    Scalar,
    Seq,
    Tree,
    describe_value,
    read_plain_word,
    to_plain,
)
from edictum.core.durations import DURATION, parse_duration

WRONG: Any = object()  # what ``read`` returns for a value that it has reported


class Shape(Protocol):
    def read(self, tree: Tree, problems: Problems) -> Any: ...
    def schema(self) -> dict[str, Any]: ...


def reject(tree: Tree, problems: Problems, wanted: str, hint: str = "") -> Any:
    """Report a value of the wrong kind."""
    return note_shape(tree, problems, f"expected {wanted}, got {describe_value(tree)}", hint)


def note_shape(tree: Tree, problems: Problems, message: str, hint: str) -> Any:
    """Report a problem that the JSON Schema sees too, and return WRONG."""
    problems.shape(tree, message, hint)
    return WRONG


@dataclass(frozen=True)
class String:
    """Text of at least one character."""

    max_length: int | None = None
    pattern: str | None = None
    rule: str = ""  # the pattern in words
    plural: str = ""  # the key to use for a list of such texts

    def read(self, tree: Tree, problems: Problems) -> Any:
        if type(tree) is not Scalar or type(tree.value) is not str:
            return reject(tree, problems, "text", self._remedy(tree))
        value = tree.value
        if not value:
            hint = "Write something, or remove the key."
            return note_shape(tree, problems, "this text is empty", hint)
        if self.max_length is not None and len(value) > self.max_length:
            message = f"this text has {len(value)} characters"
            return note_shape(tree, problems, message, f"Use at most {self.max_length}.")
        if self.pattern is not None and not re.fullmatch(self.pattern, value):
            message = f"'{value:.60}' is not allowed here"
            return note_shape(tree, problems, message, f"Use {self.rule}.")
        return value

    def _remedy(self, tree: Tree) -> str:
        if isinstance(tree, Seq) and self.plural:
            return f"For several, write '{self.plural}: [first, second]'."
        unquoted = isinstance(tree, Scalar) and tree.value is not None
        return "Put it in quotes." if unquoted else "Write some text."

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string", "minLength": 1}
        if self.max_length is not None:
            schema["maxLength"] = self.max_length
        if self.pattern is not None:
            schema["pattern"] = self.pattern
        return schema


@dataclass(frozen=True)
class Choice:
    """One of a few words, with their meanings. ``others`` are words of the other vocabulary, and
    ``synonyms`` words that people write instead.
    """

    words: Mapping[str, str]
    others: Mapping[str, str] = field(default_factory=dict)
    synonyms: Mapping[str, str] = field(default_factory=dict)

    def read(self, tree: Tree, problems: Problems) -> Any:
        value = tree.value if isinstance(tree, Scalar) else None
        if isinstance(value, str) and value in self.words:
            return self.words[value]
        known = f"Use one of: {join_words(self.words)}."
        if not isinstance(value, str):
            return reject(tree, problems, "a word", known)
        if value in self.others:
            message = f"'{value}' belongs to the other vocabulary"
            return note_shape(tree, problems, message, f"Here write '{self.others[value]}'.")
        message = f"'{value:.60}' is not one of the known words"
        meant = self.synonyms.get(value)
        guess = f"Did you mean '{meant}'? " if meant else suggest(value, self.words)
        return note_shape(tree, problems, message, guess + known)

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
            return note_shape(tree, problems, message, f"Use {self.at_least:g} or more.")
        if self.above is not None and value <= self.above:
            return note_shape(tree, problems, message, f"Use more than {self.above:g}.")
        if self.at_most is not None and value > self.at_most:
            hint = f"Use at most {self.at_most:,.0f}."
            return note_shape(tree, problems, "this number is too large", hint)
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
class NumberOrSelector:
    """A number, or the selector of one: returns the tree, since a selector is looked up later."""

    number: Number

    def read(self, tree: Tree, problems: Problems) -> Any:
        is_text = isinstance(tree, Scalar) and isinstance(tree.value, str)
        value = (String() if is_text else self.number).read(tree, problems)
        return WRONG if value is WRONG else tree

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.number.schema(), String().schema()]}


@dataclass(frozen=True)
class Anything:
    """Any value except null: a key without a value is a mistake."""

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
    may_be_empty: bool = False

    def read(self, tree: Tree, problems: Problems) -> Any:
        if self.one_will_do and isinstance(tree, Scalar):
            value = self.item.read(tree, problems)
            return WRONG if value is WRONG else (value,)
        if not isinstance(tree, Seq):
            return reject(tree, problems, "a list", "Write it as [first, second].")
        if not tree.items and not self.may_be_empty:
            hint = "Add at least one item, or remove the key."
            return note_shape(tree, problems, "this list is empty", hint)
        values = tuple(self.item.read(item, problems) for item in tree.items)
        return WRONG if WRONG in values else values

    def schema(self) -> dict[str, Any]:
        many: dict[str, Any] = {"type": "array", "items": self.item.schema()}
        if not self.may_be_empty:
            many["minItems"] = 1
        return {"anyOf": [self.item.schema(), many]} if self.one_will_do else many


class FieldReference(dict[str, str]):
    """``{field: selector}``: a value that is taken from the call. It is the mapping itself, so that
    a bundle stays plain data.
    """

    def __init__(self, selector: str, place: Place) -> None:
        super().__init__(field=selector)
        self.selector, self.place = selector, place

    def __repr__(self) -> str:
        return f"field {self.selector}"


def read_reference(tree: Tree) -> FieldReference | None:
    """Return the reference that a value is; None when it is something else."""
    if not isinstance(tree, Map) or tree.values.keys() != {"field"}:
        return None
    name = tree.values["field"]
    is_text = isinstance(name, Scalar) and isinstance(name.value, str) and name.value
    return FieldReference(name.value, name) if is_text and isinstance(name, Scalar) else None


@dataclass(frozen=True)
class OrField:
    """A value of a shape, or a reference to a field that has one."""

    shape: Shape

    def read(self, tree: Tree, problems: Problems) -> Any:
        return read_reference(tree) or self.shape.read(tree, problems)

    def schema(self) -> dict[str, Any]:
        reference = Record({"field": Field(String(), required=True)}).schema()
        return {"anyOf": [self.shape.schema(), reference]}


TIME_OF_DAY = r"^([01][0-9]|2[0-3]):[0-5][0-9]$|^24:00$"


@dataclass(frozen=True)
class TimeRange:
    """Two times of day, such as ``["09:00", "17:00"]``."""

    def read(self, tree: Tree, problems: Problems) -> Any:
        items = tree.items if isinstance(tree, Seq) else []
        times = [item.value for item in items if isinstance(item, Scalar)]
        if len(items) != 2 or not all(
            isinstance(time, str) and re.search(TIME_OF_DAY, time) for time in times
        ):
            hint = 'Write for example ["09:00", "17:30"].'
            return reject(tree, problems, "two times of day", hint)
        if times[0] == times[1]:
            message = f"no time lies between {times[0]} and {times[1]}"
            problems.add(tree, message, "Write two different times.")
        return tuple(times)

    def schema(self) -> dict[str, Any]:
        time = {"type": "string", "pattern": TIME_OF_DAY}
        return {"type": "array", "minItems": 2, "maxItems": 2, "items": time}


@dataclass(frozen=True)
class Each(ListOf):
    """A list whose items are judged later: returns pairs of tree and value, even of WRONG ones."""

    def read(self, tree: Tree, problems: Problems) -> Any:
        if not isinstance(tree, Seq):
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
            return note_shape(tree, problems, "this mapping is empty", hint)
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


KEY_SIMILARITY = 0.7  # of 1, from which a key is taken for a misspelling of another
MOST = 10**9  # of seconds, calls and the like: every store can count so far


@dataclass(frozen=True)
class Duration:
    """Seconds as a number, or a number with a unit; ``or_none``: or "none", read as None."""

    or_none: bool = False

    def read(self, tree: Tree, problems: Problems) -> Any:
        value = tree.value if isinstance(tree, Scalar) else None
        if value == "none" and self.or_none:
            return None
        seconds = _to_seconds(value)
        if not seconds > 0:
            none = ", or none" if self.or_none else ""
            hint = f"Write for example 60s, 5m or 1h{none}."
            return reject(tree, problems, "a length of time", hint)
        return float(seconds)

    def schema(self) -> dict[str, Any]:
        # A text such as "0s" has the right form and no length, so at least one digit is not zero.
        text = {"type": "string", "pattern": DURATION, "not": {"pattern": r"^[0.]+[a-z]+$"}}
        number = {"type": "number", "exclusiveMinimum": 0, "maximum": MOST}
        return {"anyOf": [number, text, *([{"const": "none"}] if self.or_none else [])]}


def _to_seconds(value: Any) -> float:
    """Return a length of time in seconds; 0 when it is not one."""
    if isinstance(value, str):
        return parse_duration(value) or 0
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value <= MOST:
        return value
    return 0


_VARIABLE = re.compile(r"\$(\$?)\{([^{}]*)\}")
_REFERENCE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


@dataclass(frozen=True)
class EnvironmentText(String):
    """Text in which ``${NAME}`` and ``${NAME:-default}`` stand for variables of the process."""

    def read(self, tree: Tree, problems: Problems) -> Any:
        value = super().read(tree, problems)
        if value is WRONG:
            return WRONG
        found = [_expand(match, tree, problems) for match in _VARIABLE.finditer(value)]
        if WRONG in found:
            return WRONG
        parts = iter(found)
        expanded = _VARIABLE.sub(lambda _match: next(parts), value)
        if not expanded:
            message = "this text is empty once its variables are filled in"
            problems.add(tree, message, "Give the variable a value, or remove the key.")
        return expanded


def _expand(match: re.Match[str], place: Place, problems: Problems) -> Any:
    """Return the replacement of a ``${...}``; report a variable that is not set, or a name that is
    not one.
    """
    if match.group(1):
        return "${" + match.group(2) + "}"
    reference = _REFERENCE.fullmatch(match.group(2))
    if reference is None:
        hint = "Write ${NAME} or ${NAME:-default}; $${...} is the text itself."
        problems.add(place, f"'{match.group():.60}' does not name a variable", hint)
        return WRONG
    name, default = reference.groups()
    value = os.environ.get(name) or default
    if value is None:
        hint = f"Set it, or write ${{{name}:-default}}."
        problems.add(place, f"the environment variable '{name}' is not set", hint)
        return WRONG
    return value


@dataclass(frozen=True)
class Field:
    shape: Shape
    required: bool = False


def _only_word(shape: Shape) -> str:
    """Return the word if only one can be written, else ""."""
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
        """Report an unknown key; return the key that was probably meant."""
        if name in self.others:
            message = f"the key '{name}' belongs to the other vocabulary"
            problems.shape(tree.keys[name], message, f"Here write '{self.others[name]}'.")
            return self.others[name]
        suggestion = suggest(name, self.fields, KEY_SIMILARITY)
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
    text: Shape = field(default_factory=String)

    def read(self, tree: Tree, problems: Problems) -> Any:
        before = len(problems.errors)
        value = (self.other if isinstance(tree, (Map, Seq)) else self.text).read(tree, problems)
        return WRONG if len(problems.errors) > before else value

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.text.schema(), self.other.schema()]}


@dataclass(frozen=True)
class Variant:
    """A record whose other keys depend on the word under one of them."""

    by: str
    records: Mapping[str, Record]
    synonyms: Mapping[str, str] = field(default_factory=dict)

    def read(self, tree: Tree, problems: Problems) -> Any:
        if not isinstance(tree, Map):
            return reject(tree, problems, "a mapping", f"Start it with '{self.by}: ...'.")
        chosen = tree.values.get(self.by)
        if chosen is None:
            hint = f"Add '{self.by}:' with one of: {join_words(self.records)}."
            return note_shape(tree, problems, f"the key '{self.by}' is missing", hint)
        names = {name: name for name in self.records}
        word = Choice(names, synonyms=self.synonyms).read(chosen, problems)
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
