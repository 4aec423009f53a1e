"""ModelCall: one call of the model in a turn, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeAlias

from edictum.core.limits import MILLION
from edictum.errors import EdictumConfigError, ModelError
from edictum.harness.messages import CHAT_API, ModelReply, StopReason, Usage
from edictum.harness.models._responses import RESPONSES_API
from edictum.harness.turn_budget import Price, TurnBudget, is_amount

TOKEN_KINDS = tuple(each.name for each in fields(Usage))
CACHED_KINDS = ("cache_read_tokens", "cache_creation_tokens")
COUNTS_CACHED_AS_INPUT = frozenset({CHAT_API, RESPONSES_API})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One call of the model. ``stop_reason`` is None if it failed or ran out of time; then see
    ``error``.

    ``usage`` is separated by kind, whatever the provider: ``input_tokens`` are those that were
    neither read from a cache nor written to it. ``tokens`` are all of them, read and written.
    """

    step: int
    duration_s: float
    usage: Usage = field(default=Usage())
    tokens: int = 0
    stop_reason: StopReason | None = None
    model: str = ""
    response_id: str = ""
    cost: float | None = None
    error: Exception | None = None


OnModelCall: TypeAlias = Callable[[ModelCall], Any]


def separate_usage(reply: ModelReply) -> Usage:
    """Return the usage of a reply with each token counted under one kind only."""
    usage = reply.usage
    if reply.api not in COUNTS_CACHED_AS_INPUT:
        return usage
    cached = usage.cache_read_tokens + usage.cache_creation_tokens
    return replace(usage, input_tokens=max(0, usage.input_tokens - cached))


def count_tokens(usage: Usage) -> int:
    """Return all tokens of a separated usage; reasoning is part of what is written."""
    cached = usage.cache_read_tokens + usage.cache_creation_tokens
    return usage.input_tokens + usage.output_tokens + cached


def check_prices(price: Price | None) -> None:
    """Raise for a table of prices without one for input or output tokens, with an unknown kind of
    token, or with a value that is not an amount.
    """
    if isinstance(price, Mapping):
        for kind in ("input_tokens", "output_tokens"):
            if kind not in price:
                hint = "Give the price of a million tokens of each; 0 if they are free."
                raise EdictumConfigError(f"TurnBudget: price has no {kind!r}.", hint=hint)
    for kind, each in price.items() if isinstance(price, Mapping) else ():
        if kind not in TOKEN_KINDS:
            hint = f"Kinds of tokens are: {', '.join(TOKEN_KINDS)}."
            raise EdictumConfigError(f"TurnBudget: price has the key {kind!r}.", hint=hint)
        if not is_amount(each):
            hint = "Use the price of a million tokens, 0 or more."
            raise EdictumConfigError(f"TurnBudget: price[{kind!r}] is {each!r}.", hint=hint)


def find_cost(call: ModelCall, price: Price | None) -> float | None:
    """Return what a call costs, or None without a price. Raise if the price is not a number."""
    if price is None:
        return None
    if isinstance(price, Mapping):
        counts: dict[str, int] = asdict(call.usage)
        cached = dict.fromkeys(CACHED_KINDS, price["input_tokens"])  # unless they have their own
        prices = {**cached, **price}
        return sum(counts[kind] * each for kind, each in prices.items()) / MILLION
    cost = price(call)
    if not is_amount(cost):
        hint = "Return a number of 0 or more."
        raise EdictumConfigError(f"TurnBudget: price returned {cost!r}.", hint=hint)
    return float(cost)


def check_usage(call: ModelCall, budget: TurnBudget) -> None:
    """Raise if a reply does not say how many tokens it used, and the budget depends on that."""
    by_tokens = budget.max_cost is not None and isinstance(budget.price, Mapping)
    if (budget.max_tokens is not None or by_tokens) and not call.tokens:
        name = "max_cost" if budget.max_tokens is None else "max_tokens"
        hint = f"Return a ModelReply with a Usage, or leave {name} out."
        raise ModelError(f"The reply has no usage, so {name} cannot be kept.", hint=hint)
