"""Find conditions under ``all`` that cannot both hold, which make a contract that never fires."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from edictum.contracts._expressions import All, Expression, Leaf
from edictum.contracts._selectors import Selector

STRICTER: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.gt,
    "lt": operator.lt,
    "lte": operator.lt,
}


class FieldConditions:
    """The conditions on one field that have to hold together, until two of them cannot.

    Comparing each with every earlier one would be slow for thousands of them. One of each operator
    is enough: the strictest bound, and for the others any, because two that differed would have
    been a contradiction.
    """

    def __init__(self) -> None:
        self.all: list[Leaf] = []
        self.strictest: dict[str, Leaf] = {}
        self.contradicted = False

    def add(self, leaf: Leaf) -> Leaf | None:
        """Add a condition; return the earlier one that cannot hold when this one does."""
        name = leaf.operator.name
        known = self.strictest.values() if name in self.strictest else self.all
        found = next((other for other in known if contradict(other, leaf)), None)
        self.contradicted = found is not None
        self.all.append(leaf)
        strictest = self.strictest.setdefault(name, leaf)
        if name in STRICTER and STRICTER[name](leaf.value, strictest.value):
            self.strictest[name] = leaf
        return found


def contradictions(when: Expression) -> Iterator[tuple[Leaf, Leaf]]:
    """Return, for each field, the first two conditions under ``all`` that cannot both hold."""
    fields: dict[Selector, FieldConditions] = {}
    for leaf in when.items if isinstance(when, All) else ():
        if not isinstance(leaf, Leaf) or leaf.selector.wild or leaf.computed is not None:
            continue
        field = fields.setdefault(leaf.selector, FieldConditions())
        if not field.contradicted and (earlier := field.add(leaf)) is not None:
            yield earlier, leaf


def contradict(first: Leaf, second: Leaf) -> bool:
    """Return whether certainly no value satisfies both."""
    pair = {first.operator.name: first.value, second.operator.name: second.value}
    if first.operator.name == second.operator.name:
        return first.operator.name in ("equals", "exists", "empty") and first.value != second.value
    if pair.get("exists") is False:
        return pair.get("empty") is False
    if "equals" in pair and "in" in pair:
        return pair["equals"] not in pair["in"]
    return _bounds_contradict(pair)


def _bounds_contradict(pair: Mapping[str, Any]) -> bool:
    low = max((pair[name] for name in ("gt", "gte") if name in pair), default=None)
    high = min((pair[name] for name in ("lt", "lte") if name in pair), default=None)
    if low is None or high is None:
        return False
    return low > high or (low == high and not {"gte", "lte"} <= pair.keys())
