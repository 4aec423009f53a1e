"""Redaction by contract: remove from a result, inside its structure, what a postcondition objected
to.

A dict stays a dict and a list a list; only the matched text is replaced. Where a condition names a
field and not a text (``result.salary: {gt: 0}``), the field's whole value is. If the condition
still objects to what is left (inside an object that cannot be changed, say), the redaction has
failed and the result is suppressed instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from edictum.contracts._expressions import Expression, Leaf, evaluate, leaves, positive_leaves
from edictum.contracts._operators import redactor_of
from edictum.contracts._regex import Pattern
from edictum.contracts._selectors import STAR, CustomSelectors, Subject
from edictum.core.call import ToolCall
from edictum.core.freeze import copy_with
from edictum.core.library_values import NOT_OPENED, Table, open_value, replace_cells
from edictum.core.redaction import redact_texts
from edictum.core.replacements import Replace
from edictum.core.secret_values import REPLACEMENT
from edictum.core.values import dumps

TextChange = Callable[[str], str]


class NotRedacted(Exception):
    """The contract still objects to what is left."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What replaces the value at a path; an empty path is the whole result."""

    path: tuple[str, ...]
    change: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Redaction:
    """The redaction for a condition.

    It judges the redacted value, and raises NotRedacted when the condition still holds, even if
    because of the call and not of the result.
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
    expression: Expression, custom: CustomSelectors, own: Callable[[Any], Any], replace: Replace
) -> Redaction | None:
    """Return the redaction for a condition; None when it says nothing about the result."""
    if not any(leaf.selector.of_result for leaf in leaves(expression)):
        return None
    speaking = [leaf for leaf in positive_leaves(expression) if leaf.selector.of_result]
    cuts = tuple(cut for leaf in speaking if (cut := _cut(leaf, replace)) is not None)
    return Redaction(cuts, expression, custom, own)


def _still_holds(leaf: Leaf, found: Any, subject: Subject) -> bool:
    """Return whether a leaf holds for the redacted value, leaving out fields that were replaced
    whole.
    """
    if not leaf.selector.of_result:
        return leaf.holds(found, subject)
    if leaf.selector.wild:
        return leaf.holds([item for item in found if not _is_replaced(item)], subject)
    return not _is_replaced(found) and leaf.holds(found, subject)


def _is_replaced(found: Any) -> bool:
    return isinstance(found, str) and REPLACEMENT.fullmatch(found) is not None


def _cut(leaf: Leaf, replace: Replace) -> Cut | None:
    path = () if leaf.selector.whole_text else leaf.selector.path
    if (redactor := redactor_of(leaf.prepared)) is not None:
        return Cut(path, redactor.with_replacement(replace).redact)
    show = partial(replace, "matched")
    if leaf.computed is not None:  # which text is meant is known for each call only
        return Cut(path, lambda value: show(value if isinstance(value, str) else dumps(value)))
    make = _CHANGES.get(leaf.operator.name)
    if make is not None:
        return Cut(
            path, partial(redact_texts, change=make(leaf, show), may_change=_make_search(leaf))
        )
    if not path or leaf.operator.name in ("exists", "empty"):
        return None
    return Cut(path, lambda value: show(value if isinstance(value, str) else dumps(value)))


def _literals(show: TextChange, *texts: str) -> TextChange:
    found = re.compile("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)))
    return lambda text: found.sub(lambda match: show(match.group()), text)


def _patterns(show: TextChange, patterns: tuple[Pattern, ...]) -> TextChange:
    def change(text: str) -> str:
        for pattern in patterns:
            if pattern.search(text):
                text = pattern.replace(text, show)
        return text

    return change


_ANCHORS = re.compile(r"[$^]|\\[AzZ]")


def _make_search(leaf: Leaf) -> Callable[[str], bool] | None:
    """Return a function that says whether a pattern matches any of joined texts; None if it has
    anchors.
    """
    patterns: tuple[Pattern, ...] = {"matches": (leaf.prepared,), "matches_any": leaf.prepared}.get(
        leaf.operator.name, ()
    )
    if not patterns or any(_ANCHORS.search(pattern.source) for pattern in patterns):
        return None
    return lambda text: any(pattern.search(text) for pattern in patterns)


_CHANGES: dict[str, Callable[[Leaf, TextChange], TextChange]] = {
    "matches": lambda leaf, show: _patterns(show, (leaf.prepared,)),
    "matches_any": lambda leaf, show: _patterns(show, leaf.prepared),
    "contains": lambda leaf, show: _literals(show, leaf.value),
    "contains_any": lambda leaf, show: _literals(show, *leaf.value),
    "starts_with": lambda leaf, show: _literals(show, leaf.value),
    "ends_with": lambda leaf, show: _literals(show, leaf.value),
    "equals_ignore_case": lambda leaf, show: (
        lambda text: show(text) if text.casefold() == leaf.prepared else text
    ),
}


def _apply(cut: Cut, value: Any, path: tuple[str, ...]) -> Any:
    """Return the value with the cut made at the path. A path that leads nowhere changes nothing."""
    if not path:
        return cut.change(value)
    key, rest = path[0], path[1:]

    def change(name: Any, item: Any) -> Any:
        is_meant = item is not None and (str(name) == key or (key == STAR and type(name) is int))
        return _apply(cut, item, rest) if is_meant else item

    if type(value) is dict:
        return {name: change(name, item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(change(number, item) for number, item in enumerate(value))
    opened = open_value(value)
    if opened is NOT_OPENED:
        copied = copy_with(value, change)
        return value if copied is None else copied
    if type(opened) is Table:
        columns = [*map(change, opened.by_name(), opened.columns)]
        changed: Any = Table(opened.names, columns, opened.labels)
    else:
        changed = _apply(cut, opened, path)
    made = replace_cells(value, opened, changed)
    return value if made is NOT_OPENED else made
