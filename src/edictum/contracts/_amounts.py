"""Amounts that tools state: numbers, or selectors of the call or of its result.

With ``[*]`` an amount is the sum of all elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from edictum.contracts._problems import BundleProblem, suggest
from edictum.contracts._selectors import (
    CustomSelectors,
    Resolver,
    Selector,
    SelectorError,
    Subject,
    parse_selector,
    refuse_asynchronous,
    resolver,
)
from edictum.core.charges import AmountSource
from edictum.core.tool_entry import AMOUNT_KEYS
from edictum.errors import EdictumConfigError

if TYPE_CHECKING:
    from edictum.contracts._bundle import AmountSpec, Bundle

_Stated = TypeVar("_Stated")

NEVER_NUMBERS = ("environment", "tool", "session")
MAX_GUESSED_PAIRS = 1_000  # with more to compare, no name is suggested for another


def parse_amount(text: str, key: str, custom: Mapping[str, Any] | None = None) -> Selector:
    """Return the selector of an amount under ``amounts`` or ``actual``; raise SelectorError."""
    if text.replace(".", "", 1).isdecimal():
        raise SelectorError(f"'{text}' is text", "Write the number without quotes.")
    selector = parse_selector(text, custom)
    if key == "actual" and not selector.of_result:
        hint = f"Write for example result.cost, or put '{text}' under 'amounts'."
        raise SelectorError(f"'{text}' is not a part of the result", hint)
    if key == "amounts" and selector.of_result:
        hint = "Put it under 'actual', and an estimate under 'amounts'."
        raise SelectorError(f"'{text}' is not known before the tool has run", hint)
    if selector.root in NEVER_NUMBERS:
        raise SelectorError(f"'{text}' is not an amount", "Write for example args.amount.")
    refuse_asynchronous(selector, custom)
    return selector


def make_source(selector: Selector, custom: CustomSelectors) -> AmountSource:
    """Return an AmountSource that reads the call or, for ``actual``, the result."""
    find = _add_up(resolver(selector, custom)) if selector.wild else resolver(selector, custom)
    if selector.of_result:
        no_call: Any = None  # a selector of the result does not look at the call
        return AmountSource(selector.text, lambda result: find(Subject(no_call, result)))
    return AmountSource(selector.text, lambda call: find(Subject(call)))


def _add_up(find: Resolver) -> Resolver:
    def add_up(subject: Subject) -> Any:
        """Return the sum, or the first element that is not an amount: no element may offset
        another.
        """
        values: list[Any] = find(subject)
        wrong = [value for value in values if not _is_amount(value)]
        return wrong[0] if wrong else sum(values)

    return add_up


def _is_amount(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def read_selectors(where: str, settings: Any) -> Any:
    """Return the settings of a tool with a source in place of each selector among its amounts."""
    if not isinstance(settings, Mapping):
        return settings
    read = dict(settings)
    for key in AMOUNT_KEYS:
        if isinstance(amounts := settings.get(key), Mapping):
            read[key] = {
                name: _read_selector(f"{where}: {key}[{name!r}]", value, key)
                for name, value in amounts.items()
            }
    return read


def _read_selector(where: str, value: Any, key: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return make_source(parse_amount(value, key), {})
    except SelectorError as exc:
        message = f"{where} is {value!r}: {exc}."
        raise EdictumConfigError(message, hint=exc.hint) from exc


# --- Amounts and limits that do not meet ----------------------------------------------------------


def find_unmatched_amounts(
    bundle: Bundle, stated: Iterable[str] = (), read: Iterable[str] = ()
) -> list[BundleProblem]:
    """Return a warning for each limit on an amount that no tool states, and for each amount that
    no limit reads. ``stated`` and ``read`` are the names known from elsewhere.
    """
    limits = [spec.budgets for spec in bundle.contracts if spec.enabled]
    tools = [settings.get(key, {}) for settings in bundle.tools.values() for key in AMOUNT_KEYS]
    all_stated = {*stated, *chain.from_iterable(tools)}
    all_read = {*read, *chain.from_iterable(limits)}
    unstated = _collect_others(all_stated, limits)
    unread: dict[str, AmountSpec] = _collect_others(all_read, tools)
    pairs = len(unstated) * len(all_stated) + len(unread) * len(all_read)
    if pairs > MAX_GUESSED_PAIRS:
        all_stated, all_read = set(), set()
    return [
        *(_with_guess(problem, name, all_stated) for name, problem in unstated.items()),
        *(_with_guess(spec.unread, name, all_read) for name, spec in unread.items()),
    ]


def _collect_others(known: set[str], named: Iterable[Mapping[str, _Stated]]) -> dict[str, _Stated]:
    """Return in one dict the items whose names are not known."""
    return {name: it for each in named for name, it in each.items() if name not in known}


def _with_guess(problem: BundleProblem, name: str, known: Iterable[str]) -> BundleProblem:
    return replace(problem, hint=suggest(name, known) + problem.hint)
