"""TurnResult: how a turn ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from edictum.harness.messages import ChatMessage, StopReason
from edictum.harness.model_calls import ModelCall
from edictum.harness.parked_turn import ParkedTurn
from edictum.harness.turn_state import TurnState
from edictum.outcomes import ToolOutcome

StoppedBy: TypeAlias = Literal[
    "answered",
    "length",
    "refused",
    "content_filter",
    "steps",
    "tool_calls",
    "deadline",
    "tokens",
    "cost",
    "context",
    "model_error",
    "approval",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """How a turn ended.

    ``messages`` is the whole conversation, the new messages included: pass it on to the next turn.
    What the turn itself said to the model is in ``notes`` instead. ``parked`` is set if
    ``stopped_by`` is "approval": pass it to ``run_turn`` to resume.
    """

    text: str
    messages: tuple[ChatMessage, ...]
    outcomes: tuple[ToolOutcome, ...]
    stopped_by: StoppedBy
    timed_out: bool
    state: TurnState
    error: Exception | None = None
    loops: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stop_reason: StopReason | None = None
    model_calls: tuple[ModelCall, ...] = ()
    parsed: Any = None
    parse_error: str = ""
    parked: ParkedTurn | None = None
