"""The deadlines that a turn sets for whatever its calls wait for.

Ports of the gate get a moment even when the turn is over, so that what happened is counted and
recorded.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any, TypeVar

from edictum.core.effects import Effect, Within
from edictum.core.relay import relay
from edictum.core.turn import CallInTurn

_T = TypeVar("_T")


def bounded_by_turn(
    flow: Generator[Effect, Any, _T], turn: CallInTurn
) -> Generator[Effect, Any, _T]:
    """Pass on the effects of ``flow``, each bounded by the time that the turn has left."""
    return relay(flow, partial(bound, turn))


def bound(turn: CallInTurn, effect: Effect) -> Effect:
    """Return the effect with its time limit, or as it is when it has one of its own."""
    kind = effect.wait.bound
    if kind == "port":
        return Within(effect, turn.time_left_s(port=True))
    if kind == "turn":
        return Within(effect, turn.time_left_s())
    return effect
