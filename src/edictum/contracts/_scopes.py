"""The scope of a limit: a name, or a selector whose value says whose calls count together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edictum.contracts._problems import join_words, suggest
from edictum.contracts._selectors import (
    CustomSelectors,
    Selector,
    SelectorError,
    Subject,
    parse_selector,
    refuse_asynchronous,
    resolver,
)
from edictum.core.call import ToolCall
from edictum.core.limits import NAMED_SCOPES

SCOPE_ROOTS = ("args", "principal", "metadata")  # what differs from call to call


def parse_scope(text: str, custom: CustomSelectors) -> Selector | None:
    """Return the selector of a scope, None for one with a name; raise SelectorError for others."""
    if text in NAMED_SCOPES:
        return None
    wanted = f"Use {join_words(NAMED_SCOPES)}, or a selector such as args.account_id."
    if "." not in text and "[" not in text:
        raise SelectorError(f"unknown scope '{text}'", suggest(text, NAMED_SCOPES) + wanted)
    selector = parse_selector(text, custom)
    if selector.root not in (*SCOPE_ROOTS, *custom) or selector.wild:
        raise SelectorError(f"'{text}' cannot be a scope: it does not name one value", wanted)
    refuse_asynchronous(selector, custom)
    return selector


def compile_scope(text: str, custom: CustomSelectors) -> Callable[[ToolCall], Any] | None:
    """Return a function from a call to the value of its scope; None for a scope with a name."""
    selector = parse_scope(text, custom)
    if selector is None:
        return None
    find = resolver(selector, custom)
    return lambda call: find(Subject(call))
