"""TurnResult: how a turn ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from edictum.harness.messages import ChatMessage
from edictum.harness.turn_state import TurnState
from edictum.outcomes import ToolOutcome

Stop = Literal["answered", "steps", "tool_calls", "deadline", "model_error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """How a turn ended. ``messages`` is the whole conversation, the new messages included."""

    text: str
    messages: tuple[ChatMessage, ...]
    outcomes: tuple[ToolOutcome, ...]
    stopped_by: Stop
    timed_out: bool
    state: TurnState
    error: Exception | None = None
    loops: tuple[str, ...] = ()
