"""A condition explained: its tree, with what each leaf looked at and whether it held."""

from __future__ import annotations

from edictum.contracts.expressions import All, Expression, Leaf, Not
from edictum.contracts.generate import Custom
from edictum.contracts.messages import MAX_VALUE, hidden, present
from edictum.contracts.selectors import Subject, resolver
from edictum.core.decide import describe
from edictum.core.redaction import RedactionPolicy
from edictum.core.secret_patterns import REDACTED
from edictum.explanation import ConditionNode


def explain(
    expression: Expression, subject: Subject, custom: Custom, redaction: RedactionPolicy
) -> ConditionNode:
    """Every leaf is judged, also those that the compiled contract would not have reached."""
    if isinstance(expression, Leaf):
        return _leaf(expression, subject, custom, redaction)
    if isinstance(expression, Not):
        item = explain(expression.item, subject, custom, redaction)
        return ConditionNode("not", None if item.held is None else not item.held, items=(item,))
    items = tuple(explain(item, subject, custom, redaction) for item in expression.items)
    word, decisive = ("all", False) if isinstance(expression, All) else ("any", True)
    # From left to right, the first that decides does: the deciding value, or an error.
    held = next(
        (item.held for item in items if item.held is decisive or item.held is None), not decisive
    )
    return ConditionNode(word, held, items=items)


def _leaf(
    leaf: Leaf, subject: Subject, custom: Custom, redaction: RedactionPolicy
) -> ConditionNode:
    try:
        found = resolver(leaf.selector, custom)(subject)
    except Exception as exc:
        return ConditionNode(str(leaf), None, error=describe(exc))
    value = shown(leaf, found, redaction)
    try:
        return ConditionNode(str(leaf), leaf.holds(found), value)
    except Exception as exc:
        return ConditionNode(str(leaf), None, value, describe(exc))


def shown(leaf: Leaf, found: object, redaction: RedactionPolicy, limit: int = MAX_VALUE) -> str:
    """What a leaf looked at, as people may see it."""
    if found is None:
        return "missing"
    if hidden(leaf.selector, redaction):
        return REDACTED
    text = present(found, redaction, limit)
    return repr(text) if isinstance(found, str) else text
