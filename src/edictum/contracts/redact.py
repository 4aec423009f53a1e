"""Redaction by contract: what a postcondition objected to is taken out of the result, inside its structure.

A dict stays a dict and a list a list; only the matched text is replaced. Where a condition names a field and not a text
(``result.salary: {gt: 0}``), the field's whole value is. When something is left that the condition still objects to (inside an
object that cannot be changed, say), the redaction has failed and the result is suppressed instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edictum.contracts.expressions import Expression, Leaf, positive_leaves
from edictum.contracts.regex import REDACTED, Pattern
from edictum.contracts.selectors import STAR

Change = Callable[[str], str]


class NotRedacted(Exception):
    """Something that the contract objects to is still there."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What to replace, and where: ``path`` is empty for the whole result; without ``change`` the value is replaced whole."""

    path: tuple[str, ...]
    change: Change | None


def redaction_for(expression: Expression, still_objects: Callable[[Any], bool]) -> Callable[[Any], Any] | None:
    """The redaction that a condition calls for; None when it says nothing about the result, and the guard's own is used."""
    cuts = [cut for leaf in positive_leaves(expression) if leaf.selector.of_result and (cut := _cut(leaf)) is not None]
    if not cuts:
        return None

    def redact(value: Any) -> Any:
        for cut in cuts:
            value = _apply(cut, value, cut.path)
        if still_objects(value):
            raise NotRedacted
        return value

    return redact


def _cut(leaf: Leaf) -> Cut | None:
    path = () if leaf.selector.whole_text else leaf.selector.path
    make = _CHANGES.get(leaf.operator.name)
    if make is not None:
        return Cut(path, make(leaf))
    return Cut(path, None) if path and leaf.operator.name not in ("exists", "empty") else None


def _literals(*texts: str) -> Change:
    found = re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)))
    return lambda text: found.sub(REDACTED, text)


def _patterns(patterns: tuple[Pattern, ...]) -> Change:
    def change(text: str) -> str:
        for pattern in patterns:
            if pattern.search(text):
                text = pattern.redact(text)
        return text

    return change


def _ignoring_case(leaf: Leaf) -> Change:
    return lambda text: REDACTED if text.casefold() == leaf.prepared else text


_CHANGES: dict[str, Callable[[Leaf], Change]] = {
    "matches": lambda leaf: _patterns((leaf.prepared,)),
    "matches_any": lambda leaf: _patterns(leaf.prepared),
    "contains": lambda leaf: _literals(leaf.value),
    "contains_any": lambda leaf: _literals(*leaf.value),
    "starts_with": lambda leaf: _literals(leaf.value),
    "ends_with": lambda leaf: _literals(leaf.value),
    "equals_ignore_case": _ignoring_case,
}


def _apply(cut: Cut, value: Any, path: tuple[str, ...]) -> Any:
    """The value with the cut made at the path; a path that leads nowhere changes nothing."""
    if not path:
        return REDACTED if cut.change is None else _map_text(value, cut.change)
    key, rest = path[0], path[1:]
    if isinstance(value, Mapping) and type(value) is dict:
        return {name: _apply(cut, item, rest) if str(name) == key and item is not None else item for name, item in value.items()}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        items = [_apply(cut, item, rest) if key in (STAR, str(number)) and item is not None else item for number, item in enumerate(value)]
        return type(value)(items)
    return value


def _map_text(value: Any, change: Change, depth: int = 0) -> Any:
    """Every text inside a structure changed, keys included; the types stay."""
    if type(value) is str:
        return change(value)
    if depth > 50:
        return value
    if type(value) is dict:
        return {_map_text(key, change, depth + 1): _map_text(item, change, depth + 1) for key, item in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)([_map_text(item, change, depth + 1) for item in value])
    return value
