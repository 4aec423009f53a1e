"""Deny, count and record calls that the guard cannot take as the model sent them.

A turn of the harness takes whatever a model sent and gives it a name that can be written down.
This one knows no tools. It is imported on first use, since few calls need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edictum.core.call import check_tool_name, snapshot
from edictum.core.policy import Policy
from edictum.core.turn import Refusal
from edictum.errors import EdictumInputError
from edictum.harness.arg_validator import Malformed, parse_arguments
from edictum.harness.turn_call import Turn, TurnCall

NOT_AN_OBJECT = "The arguments are not an object. Send one JSON object with the tool's parameters."


class DenyingTurn(Turn):
    """Denies every call, for this reason."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self._reason = reason

    def open(
        self, tool_name: str, arguments: Any, function: Callable[..., Any] | None, policy: Policy
    ) -> TurnCall:
        known = super().open(tool_name, arguments, None, policy)
        call = _DeniedCall(self, known._known, arguments, None)
        call.reason = self._reason
        return call


class _DeniedCall(TurnCall):
    reason = ""

    def describe_unknown_tool(self) -> str:
        return self.reason


def make_denying_turn(gate: str, problem: str) -> Turn:
    """Return a turn that denies every call on behalf of a gate, because its caller cannot be
    determined or its tool cannot run here.
    """
    turn = Turn()
    turn.deny_calls(gate, Refusal("policy_error", problem, policy_error=True))
    return turn


def make_malformed_turn(text: str) -> Turn:
    """Return a turn that denies every call, because what was sent as arguments is not an object."""
    read = parse_arguments(text)
    details = read.details if isinstance(read, Malformed) else NOT_AN_OBJECT
    turn = Turn()
    turn.deny_calls("validation", Refusal("malformed_arguments", details))
    return turn


def find_input_error(name: str, args: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the name or the arguments of a call, else None."""
    try:
        check_tool_name(name)
        snapshot(name, args)
    except EdictumInputError as exc:
        return str(exc)
    return None
