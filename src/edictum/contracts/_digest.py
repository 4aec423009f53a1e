"""The digest of a bundle: equal for texts with the same meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, assert_never

from edictum.contracts._bundle import AmountSpec, Bundle, ContractSpec, SuccessSpec
from edictum.contracts._expressions import All, AnyOf, Expression, Leaf, Not
from edictum.core.values import digest

# its position, its name, and where calls are counted, approved and audited
NOT_SAID = frozenset(
    {"source", "place", "name", "session", "approvals", "observability", "version", "warnings"}
    | {"observe_alongside"}  # composed already
    | {"budgets"}  # warnings about the amounts in ``limits``
)


def digest_bundle(bundle: Bundle) -> str:
    """Return a digest of what a composed bundle says, without its comments, store and sinks."""
    return digest(_to_plain(bundle))


def _to_plain(part: Any) -> Any:
    """Return a part of a bundle as plain values, without contracts that are switched off."""
    if isinstance(part, (Bundle, ContractSpec, SuccessSpec)):
        names = [field.name for field in fields(part) if field.name not in NOT_SAID]
        return {name: _to_plain(getattr(part, name)) for name in names}
    if isinstance(part, (Leaf, All, AnyOf, Not)):
        return _describe(part)
    if isinstance(part, AmountSpec):
        return getattr(part.value, "text", part.value)  # a selector, or a number
    if isinstance(part, Mapping):
        return {name: _to_plain(item) for name, item in part.items()}
    if isinstance(part, tuple):
        return [_to_plain(item) for item in part if getattr(item, "enabled", True)]
    return part


def _describe(expression: Expression) -> Any:
    match expression:
        case Leaf():
            return [expression.selector.text, expression.operator.name, expression.value]
        case Not():
            return ["not", _describe(expression.item)]
        case All():
            return ["all", *map(_describe, expression.items)]
        case AnyOf():
            return ["any", *map(_describe, expression.items)]
        case _:
            assert_never(expression)
