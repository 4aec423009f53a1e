"""ParkedTurn: a turn that has ended because calls of it wait for a person, or one under way, as
data.

It holds what another process needs to continue: the conversation up to the reply whose calls were
made, the results of calls that did not have to wait, which of them were started, and what the turn
has used. Answers stay in the approval queue.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edictum.errors import EdictumInputError
from edictum.harness.messages import ChatMessage, read_message, to_request, write_message
from edictum.harness.replay_control import ReplayControl
from edictum.harness.tool_executor import ToolCallRequest
from edictum.harness.turn_budget import TurnBudget
from edictum.harness.turn_state import TurnState
from edictum.outcomes import ToolOutcome, outcome_from_dict, outcome_to_dict

PARKED_VERSION: Final = 2
READABLE: Final = (1, PARKED_VERSION)  # 1 does not say which calls were started
TOKENS: Final = (
    *("input_tokens", "output_tokens"),
    *("cache_read_tokens", "cache_creation_tokens", "reasoning_tokens"),
)


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A call that has ended: its tool message, and its outcome."""

    message: ChatMessage
    outcome: ToolOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedTurn:
    """A turn that waits for approvals, or was under way. Pass it to ``run_turn`` in place of
    messages.

    ``approval_ids`` are the open requests, ``calls`` those of the last reply, ``ended`` those that
    have ended, by position, and ``started`` the positions of those that were started and must not
    be made again.
    """

    approval_ids: tuple[str, ...]
    session_id: str
    messages: tuple[ChatMessage, ...]
    calls: tuple[ToolCallRequest, ...]
    ended: Mapping[int, EndedCall] = field(default_factory=dict)
    started: tuple[int, ...] = ()
    outcomes: tuple[ToolOutcome, ...] = ()
    text: str = ""
    blocked: tuple[str, ...] = ()
    tokens: Mapping[str, int] = field(default_factory=dict)
    budget: Mapping[str, Any] = field(default_factory=dict)
    replay: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the turn as a text, for any store. Raises EdictumInputError if a message holds a
        value that is not JSON.
        """
        ended = {str(place): _write_call(call) for place, call in self.ended.items()}
        data = {
            "version": PARKED_VERSION,
            "approval_ids": self.approval_ids,
            "session_id": self.session_id,
            "messages": [write_message(message) for message in self.messages],
            "calls": [[call.id, call.name, call.arguments] for call in self.calls],
            "ended": ended,
            "started": self.started,
            "outcomes": [outcome_to_dict(outcome) for outcome in self.outcomes],
            "text": self.text,
            "blocked": self.blocked,
            "tokens": dict(self.tokens),
            "budget": dict(self.budget),
            "replay": dict(self.replay),
        }
        try:
            return json.dumps(data)
        except (TypeError, ValueError, RecursionError) as exc:
            problem = f"A parked turn cannot be written as JSON: {exc}."
            hint = "Use messages of texts, numbers, lists and dicts, or keep the object itself."
            raise EdictumInputError(problem, hint=hint) from exc

    @classmethod
    def from_json(cls, text: str | bytes) -> ParkedTurn:
        """Read what ``to_json`` has written; raise EdictumInputError for anything else."""
        try:
            data = json.loads(text)
            version = data.get("version")
            if version in READABLE:
                return _read(data)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
            problem = f"This is not a parked turn: {type(exc).__name__}: {exc}."
            raise EdictumInputError(problem, hint="Pass what ParkedTurn.to_json wrote.") from exc
        raise EdictumInputError(
            f"A parked turn of version {version!r:.40} cannot be read: this edictum reads"
            f" {' and '.join(map(str, READABLE))}.",
            hint="Resume it with the version of edictum that parked it.",
        )


def _read(data: dict[str, Any]) -> ParkedTurn:
    calls = [dict(zip(("id", "name", "arguments"), call, strict=True)) for call in data["calls"]]
    return ParkedTurn(
        approval_ids=tuple(data["approval_ids"]),
        session_id=str(data["session_id"]),
        messages=tuple(map(read_message, data["messages"])),
        calls=tuple(map(to_request, calls)),
        ended={int(place): _read_call(call) for place, call in data["ended"].items()},
        started=tuple(map(int, data.get("started", ()))),
        outcomes=tuple(map(outcome_from_dict, data["outcomes"])),
        text=str(data["text"]),
        blocked=tuple(data["blocked"]),
        tokens={name: int(data["tokens"][name]) for name in TOKENS},
        budget=dict(data["budget"]),
        replay=dict(data["replay"]),
    )


def _write_call(call: EndedCall) -> dict[str, Any]:
    message = write_message(call.message)
    return {"message": message, "outcome": outcome_to_dict(call.outcome)}


def _read_call(data: dict[str, Any]) -> EndedCall:
    return EndedCall(read_message(data["message"]), outcome_from_dict(data["outcome"]))


def keep_tokens(state: TurnState) -> dict[str, int]:
    """Return the tokens that a turn has used."""
    return {name: getattr(state, name) for name in TOKENS}


def restore_state(state: TurnState, parked: ParkedTurn, budget: TurnBudget | None) -> None:
    """Continue in a new state where a turn was parked; ``budget`` replaces the turn's own."""
    state.block(parked.blocked)
    state.add_tokens(**parked.tokens)
    state.replay = ReplayControl.from_dict(parked.replay)
    state.budget = TurnBudget.from_dict(parked.budget, budget)
