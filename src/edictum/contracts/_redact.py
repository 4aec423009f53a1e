"""Redaction by contract: what a postcondition objected to is taken out of the result, inside its
structure.

A dict stays a dict and a list a list; only the matched text is replaced. Where a condition names a
field and not a text (``result.salary: {gt: 0}``), the field's whole value is. When something is
left that the condition still objects to (inside an object that cannot be changed, say), the
redaction has failed and the result is suppressed instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edictum.contracts._expressions import Expression, Leaf, evaluate, leaves, positive_leaves
from edictum.contracts._regex import Pattern
from edictum.contracts._selectors import STAR, CustomSelectors, Subject
from edictum.core.call import ToolCall
from edictum.core.secret_patterns import REDACTED
from edictum.core.values import change_text

TextChange = Callable[[str], str]


class NotRedacted(Exception):
    """The contract still objects to what is left."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What to replace, and where: an empty ``path`` is the whole result; without ``change`` the
    value is replaced whole.
    """

    path: tuple[str, ...]
    change: TextChange | None


@dataclass(frozen=True, slots=True)
class Redaction:
    """The redaction that a condition calls for. It judges what it leaves, and raises NotRedacted
    when the condition still holds, even when that is because of the call and not of the result.
    """

    cuts: tuple[Cut, ...]
    expression: Expression
    custom: CustomSelectors
    own: Callable[[Any], Any]  # the guard's, for a condition that names nothing to cut
    checks_itself: bool = True

    def __call__(self, value: Any, call: ToolCall) -> Any:
        if not self.cuts:
            value = self.own(value)
        for cut in self.cuts:
            value = _apply(cut, value, cut.path)
        if evaluate(self.expression, Subject(call, value), self.custom, _still_holds):
            raise NotRedacted
        return value


def redaction_for(
    expression: Expression, custom: CustomSelectors, own: Callable[[Any], Any]
) -> Redaction | None:
    """Return the redaction for a condition; None when it says nothing about the result."""
    if not any(leaf.selector.of_result for leaf in leaves(expression)):
        return None
    speaking = [leaf for leaf in positive_leaves(expression) if leaf.selector.of_result]
    cuts = tuple(cut for leaf in speaking if (cut := _cut(leaf)) is not None)
    return Redaction(cuts, expression, custom, own)


def _still_holds(leaf: Leaf, found: Any, subject: Subject) -> bool:
    """Return whether a leaf holds for what is left, fields that were replaced whole aside."""
    if not leaf.selector.of_result:
        return leaf.holds(found, subject)
    if leaf.selector.wild:
        return leaf.holds([item for item in found if item != REDACTED], subject)
    return found != REDACTED and leaf.holds(found, subject)


def _cut(leaf: Leaf) -> Cut | None:
    path = () if leaf.selector.whole_text else leaf.selector.path
    if leaf.computed is not None:  # which text is meant is known for each call only
        return Cut(path, None)
    make = _CHANGES.get(leaf.operator.name)
    if make is not None:
        return Cut(path, make(leaf))
    return Cut(path, None) if path and leaf.operator.name not in ("exists", "empty") else None


def _literals(*texts: str) -> TextChange:
    found = re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)))
    return lambda text: found.sub(REDACTED, text)


def _patterns(patterns: tuple[Pattern, ...]) -> TextChange:
    def change(text: str) -> str:
        for pattern in patterns:
            if pattern.search(text):
                text = pattern.redact(text)
        return text

    return change


_CHANGES: dict[str, Callable[[Leaf], TextChange]] = {
    "matches": lambda leaf: _patterns((leaf.prepared,)),
    "matches_any": lambda leaf: _patterns(leaf.prepared),
    "contains": lambda leaf: _literals(leaf.value),
    "contains_any": lambda leaf: _literals(*leaf.value),
    "starts_with": lambda leaf: _literals(leaf.value),
    "ends_with": lambda leaf: _literals(leaf.value),
    "equals_ignore_case": lambda leaf: (
        lambda text: REDACTED if text.casefold() == leaf.prepared else text
    ),
}


def _apply(cut: Cut, value: Any, path: tuple[str, ...]) -> Any:
    """Return the value with the cut made at the path; a path that leads nowhere changes nothing."""
    if not path:
        return REDACTED if cut.change is None else change_text(value, cut.change)
    key, rest = path[0], path[1:]
    if isinstance(value, Mapping) and type(value) is dict:
        return {
            name: _apply(cut, item, rest) if str(name) == key and item is not None else item
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        items = [
            _apply(cut, item, rest) if key in (STAR, str(number)) and item is not None else item
            for number, item in enumerate(value)
        ]
        return type(value)(items)
    return value
