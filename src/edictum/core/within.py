"""Waiting in a turn: whatever a call waits for there is bounded by the turn, and its clock stands
while a person decides.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from edictum.core.effects import Ask, AwaitDecision, Effect, Notify, Within
from edictum.core.turn import CallInTurn

T = TypeVar("T")

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
    bound = effect.wait.bound
    if bound == "port":
        return (yield Within(effect, turn.patience_s(port=True)))
    if bound == "turn":
        return (yield Within(effect, turn.patience_s()))
    if type(effect) is Ask:
        return (yield from _held(Within(effect, effect.decision.timeout + LATE_ANSWER_S), turn))
    if type(effect) is AwaitDecision:
        return (yield from _held(Within(effect, effect.timeout + LATE_ANSWER_S), turn))
    return (yield effect)


def _held(effect: Effect, turn: CallInTurn) -> Generator[Effect, Any, Any]:
    turn.hold()
    try:
        return (yield effect)
    finally:
        turn.go_on()


def tell(effect: Notify) -> Generator[Effect, Any, None]:
    yield effect
