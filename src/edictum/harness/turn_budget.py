"""TurnBudget and DeadlineToken: how much time, tokens and money, and how many steps and calls, a
turn has.

A call has one absolute deadline, ``min(the turn's end less its reserve, now + cap)``, without a
minimum: with too little time left it is not started. The reserve is kept for the model's final
answer. The clock stands still while a person decides.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import repeat
from operator import length_hint
from typing import Any, Literal, Self, TypeAlias

from edictum.errors import EdictumConfigError
from edictum.execution.forks import protect

DEFAULT_CAP_S = 45.0
RESERVE_SHARE = 0.1
MAX_RESERVE_S = 5.0

BOUNDS = (
    *("timeout_s", "max_steps", "max_tool_calls", "max_reflections", "max_context_tokens"),
    *("max_tokens", "max_cost", "reserve_s"),
)

Timer = Callable[[], float]
# of a ModelCall its cost, or the price of a million tokens by the names that Usage has for them
Price: TypeAlias = Callable[[Any], float] | Mapping[str, float]


def pluralize(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@dataclass(kw_only=True, eq=False, repr=False)
class TurnBudget:
    """The bounds of one turn, and what it has used. Make it with ``TurnBudget.create``; threads may
    share it.
    """

    timeout_s: float
    max_steps: int
    max_tool_calls: int
    max_reflections: int
    max_context_tokens: int | None
    reserve_s: float
    timer: Timer
    max_tokens: int | None = None
    max_cost: float | None = None
    price: Price | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        protect(self)
        self.deadline = self.timer() + self.timeout_s  # on the timer's clock; a pause moves it
        self._tools_until = self.deadline - self.reserve_s
        self._paused_at: float | None = None
        self._pauses = 0
        # next() of such an iterator is atomic: threads take a ticket each without a lock
        self._steps = _make_tickets(self.max_steps)
        self._tool_calls = _make_tickets(self.max_tool_calls)
        self._reflections = _make_tickets(self.max_reflections)
        self.tokens_used = self.context_tokens = 0
        self.cost_used = 0.0

    @classmethod
    def create(
        cls,
        timeout_s: float = 60,
        max_steps: int = 6,
        max_tool_calls: int | None = None,
        max_reflections: int = 4,
        max_context_tokens: int | None = 200_000,
        *,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        price: Price | None = None,
        reserve_s: float | None = None,
        timer: Timer = time.perf_counter,
    ) -> TurnBudget:
        """Create a budget whose clock starts now. ``max_tool_calls=None``: as many as steps.
        ``reserve_s=None``: a tenth, at most 5 s.
        """
        if not is_duration(timeout_s):
            raise _wrong_value("timeout_s", timeout_s, "Use seconds, more than 0.")
        reserve = min(MAX_RESERVE_S, timeout_s * RESERVE_SHARE) if reserve_s is None else reserve_s
        if not 0 <= reserve < timeout_s:
            raise _wrong_value("reserve_s", reserve_s, "Use 0 or more, and less than timeout_s.")
        calls = max_steps if max_tool_calls is None else max_tool_calls
        _check_counts(max_steps=max_steps, max_tool_calls=calls, max_reflections=max_reflections)
        tokens = {"max_tokens": max_tokens, "max_context_tokens": max_context_tokens}
        _check_counts(**{name: most for name, most in tokens.items() if most is not None})
        _check_price(max_cost, price)
        return cls(
            timeout_s=timeout_s,
            max_steps=max_steps,
            max_tool_calls=calls,
            max_reflections=max_reflections,
            max_context_tokens=max_context_tokens,
            reserve_s=reserve,
            timer=timer,
            max_tokens=max_tokens,
            max_cost=max_cost,
            price=price,
        )

    # --- A turn that is resumed elsewhere ---------------------------------------------------------

    def to_dict(self, *, calls_given_back: int = 0) -> dict[str, Any]:
        """Return the bounds and what is used, as plain data, except for a price that is a
        function.
        """
        left = self.snapshot()
        return {
            **{name: getattr(self, name) for name in BOUNDS},
            "price": dict(self.price) if isinstance(self.price, Mapping) else None,
            "steps_used": left["steps_used"],
            "tool_calls_used": max(0, left["tool_calls_used"] - calls_given_back),
            "reflections_used": left["reflections_used"],
            "tokens_used": self.tokens_used,
            "cost_used": self.cost_used,
            "context_tokens": self.context_tokens,
            "used_s": self.timeout_s - self.remaining_s(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], given: TurnBudget | None = None) -> TurnBudget:
        """Return the budget that ``to_dict`` described, or the given one, with what was used."""
        bounds = {name: data[name] for name in (*BOUNDS, "price")}
        budget = cls.create(**bounds) if given is None else given
        for _ in range(data["steps_used"]):
            budget.claim_step()
        for _ in range(data["tool_calls_used"]):
            budget.claim_tool_call()
        for _ in range(data["reflections_used"]):
            budget.claim_reflection()
        budget.add_usage(data["tokens_used"], data["cost_used"], data["context_tokens"])
        budget.deadline -= data["used_s"]
        budget._tools_until = budget.deadline - budget.reserve_s
        return budget

    # --- Time -------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the time on the turn's clock, which stands still during a pause."""
        paused_at = self._paused_at
        return self.timer() if paused_at is None else paused_at

    def remaining_s(self) -> float:
        return max(0.0, self.deadline - self.now())

    def is_expired(self) -> bool:
        return self.now() >= self.deadline

    def tool_time_s(self, cap_s: float = DEFAULT_CAP_S) -> float:
        """Return the seconds left for one tool, without the reserve; negative when over."""
        paused_at = self._paused_at
        left_s = self._tools_until - (self.timer() if paused_at is None else paused_at)
        return cap_s if left_s > cap_s else left_s  # noqa: FURB136 -- min() doubles the cost

    def tool_deadline(self, cap_s: float = DEFAULT_CAP_S) -> float:
        """Return the absolute deadline of a call that starts now, on the timer's clock."""
        return self.timer() + self.tool_time_s(cap_s)

    def per_tool_remaining_s(self, cap_s: float = DEFAULT_CAP_S) -> float:
        return max(0.0, self.tool_time_s(cap_s))

    def pause(self) -> None:
        """Stop the clock while a person decides. It resumes when the last pause ends."""
        with self._lock:
            self._pauses += 1
            if self._paused_at is None:
                self._paused_at = self.timer()

    def resume(self) -> None:
        with self._lock:
            if self._pauses:
                self._pauses -= 1
            if not self._pauses and self._paused_at is not None:
                self.deadline += self.timer() - self._paused_at
                self._tools_until = self.deadline - self.reserve_s
                self._paused_at = None

    # --- Counts -----------------------------------------------------------------------------------

    def claim_step(self) -> bool:
        """Take one step, atomically. Return False when all are used."""
        return next(self._steps, False)

    def claim_tool_call(self) -> bool:
        """Take one tool call, atomically. Return False when all are used."""
        return next(self._tool_calls, False)

    def claim_reflection(self) -> bool:
        """Take one reflection, atomically. Return False when all are used."""
        return next(self._reflections, False)

    def add_usage(self, tokens: int, cost: float = 0.0, context_tokens: int = 0) -> None:
        """Count a model call: its tokens, its cost, and how long the conversation is with it."""
        with self._lock:
            self.tokens_used += tokens
            self.cost_used += cost
            self.context_tokens = context_tokens

    def find_used_up_limit(self) -> Literal["tokens", "cost", "context"] | None:
        """Return which limit on the use of the model is reached, or None."""
        if self.max_tokens is not None and self.tokens_used >= self.max_tokens:
            return "tokens"
        if self.max_cost is not None and self.cost_used >= self.max_cost:
            return "cost"
        if self.max_context_tokens is not None and self.context_tokens >= self.max_context_tokens:
            return "context"
        return None

    @property
    def used(self) -> float:
        """The largest used share of time, steps, tool calls, tokens and cost, from 0 to 1."""
        return max(
            1 - self.remaining_s() / self.timeout_s,
            _compute_used_share(self._steps, self.max_steps),
            _compute_used_share(self._tool_calls, self.max_tool_calls),
            _share(self.tokens_used, self.max_tokens),
            _share(self.cost_used, self.max_cost),
        )

    def snapshot(self) -> dict[str, Any]:
        """Return the budget as plain data, for logs and for the model."""
        return {
            "remaining_s": self.remaining_s(),
            "expired": self.is_expired(),
            "paused": self._paused_at is not None,
            "reserve_s": self.reserve_s,
            "ends_at": time.time() + self.remaining_s(),
            "steps_used": _count_used_tickets(self._steps, self.max_steps),
            "steps_max": self.max_steps,
            "tool_calls_used": _count_used_tickets(self._tool_calls, self.max_tool_calls),
            "tool_calls_max": self.max_tool_calls,
            "reflections_used": _count_used_tickets(self._reflections, self.max_reflections),
            "reflections_max": self.max_reflections,
            "tokens_used": self.tokens_used,
            "tokens_max": self.max_tokens,
            "cost_used": self.cost_used,
            "cost_max": self.max_cost,
            "context_tokens": self.context_tokens,
            "context_tokens_max": self.max_context_tokens,
        }


def _wrong_value(name: str, value: Any, hint: str) -> EdictumConfigError:
    return EdictumConfigError(f"TurnBudget: {name} is {value!r}.", hint=hint)


def _check_counts(**counts: Any) -> None:
    for name, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _wrong_value(name, value, "Use a whole number of 0 or more.")


def _check_price(max_cost: Any, price: Any) -> None:
    if price is not None and not callable(price) and not isinstance(price, Mapping):
        hint = "Use a function of a ModelCall, or prices of a million tokens by kind."
        raise _wrong_value("price", price, hint)
    if max_cost is None:
        return
    if not is_amount(max_cost):
        raise _wrong_value("max_cost", max_cost, "Use a number of 0 or more.")
    if price is None:
        hint = "Add price=, a function of a ModelCall, or prices of a million tokens by kind."
        raise _wrong_value("price", None, hint)


def is_amount(value: Any) -> bool:
    """Return whether a value is a finite number of 0 or more."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 <= value < float("inf")


def _make_tickets(count: int) -> Iterator[bool]:
    return repeat(True, min(count, sys.maxsize))


def _count_used_tickets(tickets: Iterator[bool], count: int) -> int:
    return min(count, sys.maxsize) - length_hint(tickets)


def _compute_used_share(tickets: Iterator[bool], count: int) -> float:
    return _count_used_tickets(tickets, count) / count if count else 1.0


def _share(used: float, most: float | None) -> float:
    if most is None:
        return 0.0
    return min(1.0, used / most) if most else 1.0


def is_duration(value: Any) -> bool:
    """Return whether a value is a finite number of seconds, more than 0."""
    return is_amount(value) and value > 0


class DeadlineExceeded(TimeoutError):
    """Raised by ``DeadlineToken.check`` in a co-operative tool whose time is over."""


class DeadlineToken:
    """One call's deadline. A co-operative tool checks it and returns early.

    A tool gets it as a parameter annotated ``DeadlineToken``, or from ``DeadlineToken.current()``.
    It may be sent to another process of the same machine; only ``cancel`` does not reach across.
    """

    __slots__ = ("_cancelled", "deadline_s", "timer")

    def __init__(self, deadline_s: float, timer: Timer = time.perf_counter) -> None:
        self.deadline_s = deadline_s
        self.timer = timer
        self._cancelled = False

    @classmethod
    def from_budget(cls, budget: TurnBudget, cap_s: float = DEFAULT_CAP_S) -> Self:
        return cls(budget.tool_deadline(cap_s), budget.timer)

    @staticmethod
    def current() -> DeadlineToken | None:
        """Return the token of the call that runs here, or None outside a turn."""
        return CURRENT_TOKEN.get()

    def remaining_s(self) -> float:
        return 0.0 if self._cancelled else max(0.0, self.deadline_s - self.timer())

    def is_expired(self) -> bool:
        return self._cancelled or self.timer() >= self.deadline_s

    def cancel(self) -> None:
        """Make the token expire at once."""
        self._cancelled = True

    def check(self) -> None:
        """Raise ``DeadlineExceeded`` when the time is over."""
        if self.is_expired():
            raise DeadlineExceeded("the call's time is over")

    def __reduce__(self) -> tuple[Any, ...]:
        return (DeadlineToken, (self.deadline_s,))


CURRENT_TOKEN: ContextVar[DeadlineToken | None] = ContextVar("edictum_deadline", default=None)
