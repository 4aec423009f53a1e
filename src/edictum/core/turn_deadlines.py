"""Waiting in a turn: whatever a call waits for there is bounded by the turn, and its clock stands
while a person decides.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from edictum.core.effects import (
    Ask,
    AwaitDecision,
    Consult,
    Effect,
    Notify,
    Renew,
    Settle,
    StoreArtifact,
    Withdraw,
    Within,
)
from edictum.core.events import Entry
from edictum.core.limits import Reservation, Settlement
from edictum.core.turn import CallInTurn

T = TypeVar("T")

# What the gate itself sends out: it is given a moment also when the turn is over, so that what
# happened is counted and written.
SENT_OUT = frozenset({Reservation, Settlement, Renew, Entry, Withdraw})
OF_THE_USER = frozenset({Settle, Consult, Notify, StoreArtifact})
LATE_ANSWER_S = 5.0  # by how much an approval backend may overrun the time that it was given


def within(turn: CallInTurn | None, flow: Generator[Effect, Any, T]) -> Generator[Effect, Any, T]:
    """A part of the walk, in a turn with what it adds to all waiting: a bound, and a clock that
    stops for people.
    """
    return flow if turn is None else timed(flow, turn)


def timed(flow: Generator[Effect, Any, T], turn: CallInTurn) -> Generator[Effect, Any, T]:
    answer: Any = None
    try:
        while True:
            answer = yield from bounded(flow.send(answer), turn)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        flow.close()


def bounded(effect: Effect, turn: CallInTurn) -> Generator[Effect, Any, Any]:
    """Whatever is waited for in a turn is waited for within the turn."""
    kind = type(effect)
    if kind in SENT_OUT:
        return (yield Within(effect, turn.patience_s(port=True)))
    if kind is Ask:
        return (yield from _held(Within(effect, effect.decision.timeout + LATE_ANSWER_S), turn))  # type: ignore[union-attr]
    if kind is AwaitDecision:
        return (yield from _held(Within(effect, effect.timeout + LATE_ANSWER_S), turn))  # type: ignore[union-attr]
    if kind in OF_THE_USER:
        return (yield Within(effect, turn.patience_s()))
    return (yield effect)  # it has a bound of its own, or is answered at once


def _held(effect: Effect, turn: CallInTurn) -> Generator[Effect, Any, Any]:
    turn.hold()
    try:
        return (yield effect)
    finally:
        turn.go_on()


def tell(effect: Notify) -> Generator[Effect, Any, None]:
    yield effect
