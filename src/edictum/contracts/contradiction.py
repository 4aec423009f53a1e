"""Conditions that cannot all hold: two of them under ``all`` make a contract that never fires. Only
what is certain is said.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

from edictum.contracts.expressions import All, Expression, Leaf
from edictum.contracts.selectors import Selector

STRICTER: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "gte": operator.gt,
    "lt": operator.lt,
    "lte": operator.lt,
}


class Together:
    """The conditions on one field that have to hold together, as they are read; the field is done
    with once two of them cannot.

    To take each new condition to every earlier one would be slow for thousands of them. Of those
    with the same operator one speaks for all: the strictest bound, and for the others any, because
    two that differed would have been a contradiction.
    """

    def __init__(self) -> None:
        self.all: list[Leaf] = []
        self.speakers: dict[str, Leaf] = {}
        self.broken = False

    def add(self, leaf: Leaf) -> Leaf | None:
        """The earlier condition that cannot hold when this one does."""
        name = leaf.operator.name
        known = self.speakers.values() if name in self.speakers else self.all
        found = next((other for other in known if contradict(other, leaf)), None)
        self.broken = found is not None
        self.all.append(leaf)
        speaker = self.speakers.setdefault(name, leaf)
        if name in STRICTER and STRICTER[name](leaf.value, speaker.value):
            self.speakers[name] = leaf
        return found


def contradictions(when: Expression) -> Iterator[tuple[Leaf, Leaf]]:
    """For each field, the first two conditions under ``all`` that cannot both hold."""
    fields: dict[Selector, Together] = {}
    for leaf in when.items if isinstance(when, All) else ():
        if not isinstance(leaf, Leaf) or leaf.selector.wild:
            continue
        together = fields.setdefault(leaf.selector, Together())
        if not together.broken and (earlier := together.add(leaf)) is not None:
            yield earlier, leaf


def contradict(first: Leaf, second: Leaf) -> bool:
    """Whether no value satisfies both."""
    pair = {first.operator.name: first.value, second.operator.name: second.value}
    if first.operator.name == second.operator.name:
        return first.operator.name in ("equals", "exists", "empty") and first.value != second.value
    if pair.get("exists") is False:
        return ("empty" not in pair and not first.if_missing | second.if_missing) or pair.get(
            "empty"
        ) is False
    if "equals" in pair and "in" in pair:
        return pair["equals"] not in pair["in"]
    low = max((pair[name] for name in ("gt", "gte") if name in pair), default=None)
    high = min((pair[name] for name in ("lt", "lte") if name in pair), default=None)
    if low is None or high is None:
        return False
    return low > high or (low == high and not {"gte", "lte"} <= pair.keys())
