"""The tree of a YAML document, in which every value knows its line and column."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from edictum.contracts._problems import Place

MAX_DESCRIBED = 60
_NUMBER_START = frozenset("-+.0123456789")
_INT = re.compile(r"[-+]?[0-9]{1,400}")
_BASED = re.compile(r"0x[0-9a-fA-F]{1,64}|0o[0-7]{1,64}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,4})?")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", "+.inf"), float("inf")),
    "-.inf": float("-inf"),
    ".nan": float("nan"),
}
_VALUE_KINDS: tuple[tuple[Any, str], ...] = (
    (bool, "true or false"),
    ((int, float), "a number"),
    (str, "text"),
    (bytes, "bytes"),
    (Mapping, "a mapping"),
    ((list, tuple, set, frozenset), "a list"),
)
_KIND_NAMES = {bool: "true or false", int: "a number", float: "a number"}


@dataclass(slots=True, eq=False)
class Scalar(Place):
    """A single value. ``style`` is the quote or block sign it was written with, "" for none."""

    value: Any = None
    style: str = ""


@dataclass(slots=True, eq=False)
class Seq(Place):
    items: list[Tree] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Map(Place):
    """A mapping; ``keys`` has the places of the keys."""

    keys: dict[str, Scalar] = field(default_factory=dict)
    values: dict[str, Tree] = field(default_factory=dict)


Tree: TypeAlias = Scalar | Seq | Map


def to_plain(tree: Tree) -> Any:
    """Return the tree as ordinary Python data."""
    if isinstance(tree, Map):
        return {key: to_plain(value) for key, value in tree.values.items()}
    if isinstance(tree, Seq):
        return [to_plain(item) for item in tree.items]
    return tree.value


def read_plain_word(text: str) -> Any:
    """Return the value of an unquoted word, by the rules of YAML 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_START:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text


def describe_value(tree: Tree | None) -> str:
    """Return words for a value, for error messages."""
    if isinstance(tree, Map):
        return "a mapping"
    if isinstance(tree, Seq):
        return "a list"
    if tree is None or tree.value is None:
        return "empty"
    kind = _KIND_NAMES.get(type(tree.value), "text")
    text = repr(tree.value) if isinstance(tree.value, str) else yaml_key_text(tree.value)
    return f"{kind} ({text if len(text) <= MAX_DESCRIBED else text[: MAX_DESCRIBED - 3] + '...'})"


def name_kind(value: Any) -> str:
    """Return words for the kind of a call's value."""
    if value is None:
        return "null"
    named = (kind for types, kind in _VALUE_KINDS if isinstance(value, types))
    return next(named, f"a {type(value).__name__}")


def yaml_key_text(value: Any) -> str:
    """Return the word that was written for a key that YAML reads as a number or a flag."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)
