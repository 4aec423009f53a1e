"""Explain a condition: its tree, with the value that each leaf read and whether it held."""

from __future__ import annotations

from edictum.contracts._expressions import ALWAYS, All, AnyOf, Expression, Leaf, Not
from edictum.contracts._messages import MAX_SHOWN_VALUE, is_hidden, show_without_secrets
from edictum.contracts._operators import redactor_of
from edictum.contracts._selectors import (
    CustomSelectors,
    Pending,
    Selector,
    Subject,
    has_unknown_default,
    resolver,
)
from edictum.core.decide import describe
from edictum.core.redaction import RedactionPolicy, shorten
from edictum.core.secret_patterns import REDACTED
from edictum.explanation import ConditionNode

MAX_REASON_VALUE = 100
MAX_REASONS = 3


def explain(
    expression: Expression, subject: Subject, custom: CustomSelectors, redaction: RedactionPolicy
) -> ConditionNode:
    """Judge every leaf, even those that evaluation would not have reached."""
    if isinstance(expression, Leaf):
        return _explain_leaf(expression, subject, custom, redaction)
    if isinstance(expression, Not):
        item = explain(expression.item, subject, custom, redaction)
        return ConditionNode("not", None if item.held is None else not item.held, items=(item,))
    if expression == ALWAYS:
        return ConditionNode("every call", True)
    items = tuple(explain(item, subject, custom, redaction) for item in expression.items)
    word, decisive = ("all", False) if isinstance(expression, All) else ("any", True)
    # The first item from the left that decides, by its value or by an error, does.
    decides = (item.held for item in items if item.held is decisive or item.held is None)
    return ConditionNode(word, next(decides, not decisive), items=items)


def _explain_leaf(
    leaf: Leaf, subject: Subject, custom: CustomSelectors, redaction: RedactionPolicy
) -> ConditionNode:
    value: str | None = None
    try:
        found = resolver(leaf.selector, custom)(subject)
        value = show_value(leaf, found, redaction)
        if found is None and has_unknown_default(subject.call, leaf.selector):
            value = "not sent, its default is not known"
        value += _show_others(leaf, subject, custom, redaction)
        return ConditionNode(str(leaf), leaf.holds(found, subject), value)
    except Pending as pending:  # judging has not come to this leaf
        pending.drop()
        return ConditionNode(str(leaf), None, value, describe(pending))
    except Exception as exc:
        return ConditionNode(str(leaf), None, value, describe(exc))


def _show_others(
    leaf: Leaf, subject: Subject, custom: CustomSelectors, redaction: RedactionPolicy
) -> str:
    """Return the fields that a leaf compares with, and their values."""
    return "".join(
        f"; {selector.text} is {_show(selector, resolver(selector, custom)(subject), redaction)}"
        for selector in leaf.selectors[1:]
    )


def show_value(
    leaf: Leaf, found: object, redaction: RedactionPolicy, limit: int = MAX_SHOWN_VALUE
) -> str:
    """Return the value that a leaf read, redacted and bounded."""
    if found is not None and (redactor := redactor_of(leaf.prepared)) is not None:
        found = redactor.redact(found)
    return _show(leaf.selector, found, redaction, limit)


def _show(
    selector: Selector, found: object, redaction: RedactionPolicy, limit: int = MAX_SHOWN_VALUE
) -> str:
    if found is None:
        return "missing"
    if is_hidden(selector, redaction):
        return REDACTED
    text = show_without_secrets(found, redaction, limit)
    return repr(text) if isinstance(found, str) else text


def reason_for(
    expression: Expression, subject: Subject, custom: CustomSelectors, redaction: RedactionPolicy
) -> str:
    """Return why a condition holds: the first leaves that do, with their values, redacted."""
    held = [
        f"{leaf.selector.text} is {show_value(leaf, found, redaction, MAX_REASON_VALUE)}"
        f" ({leaf.operator.name} {shorten(repr(leaf.value), MAX_REASON_VALUE)})"
        for leaf, found in _find_true_leaves(expression, subject, custom)
    ]
    return "; ".join(held[:MAX_REASONS]) or "the condition of the rule holds"


def _find_true_leaves(
    expression: Expression, subject: Subject, custom: CustomSelectors
) -> list[tuple[Leaf, object]]:
    """Return the leaves outside ``not`` that hold; with ``[*]``, the first element for which."""
    if isinstance(expression, All | AnyOf):
        return [
            pair for item in expression.items for pair in _find_true_leaves(item, subject, custom)
        ]
    if isinstance(expression, Not):
        return []
    try:
        found = resolver(expression.selector, custom)(subject)
        values = found if expression.selector.wild else [found]
        return [(expression, value) for value in values if expression.test(value, subject)][:1]
    except Exception:
        return []
