"""CallRound: what becomes of the calls of one reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edictum.approval.port import ApprovalRequest
from edictum.core.freeze import EMPTY
from edictum.harness.messages import make_tool_message
from edictum.harness.parked_turn import EndedCall
from edictum.harness.tool_executor import ToolCallRequest
from edictum.outcomes import ToolDenied, ToolFailure, ToolOutcome

NONE_ENDED: Mapping[int, EndedCall] = EMPTY


class CallRound:
    """The calls of one reply, each known by its place; ``ended`` are those of a parked turn that
    had ended then, and ``waiting`` those that wait for a person.
    """

    def __init__(self, calls: Sequence[ToolCallRequest], ended: Mapping[int, EndedCall]) -> None:
        self.calls, self._before = calls, ended
        self._places = {id(call): place for place, call in enumerate(calls)}
        self._outcomes: dict[int, ToolOutcome | None] = {}  # None from its start to its end
        self.waiting: dict[int, ApprovalRequest] = {}

    def list_open(self, calls: Sequence[ToolCallRequest]) -> list[ToolCallRequest]:
        """Return those of some calls that have not ended before."""
        return [call for call in calls if self._places[id(call)] not in self._before]

    def begin(self, call: ToolCallRequest) -> None:
        self._outcomes[self._places[id(call)]] = None

    def end(self, call: ToolCallRequest, outcome: ToolOutcome | None) -> None:
        self._outcomes[self._places[id(call)]] = outcome

    def wait(self, call: ToolCallRequest, request: ApprovalRequest) -> None:
        """Note that a call waits for a person."""
        self.waiting[self._places[id(call)]] = request

    def list_ends(self, count: int) -> list[EndedCall]:
        """Return how the first calls have ended, or why they have not."""
        return [self._close(place) for place in range(count)]

    def find_ends(self, count: int) -> dict[int, EndedCall]:
        """Return those of the first calls that have ended and do not wait, by their place."""
        ended = self._before.keys() | {it for it, end in self._outcomes.items() if end is not None}
        return {it: self._close(it) for it in sorted(ended - self.waiting.keys()) if it < count}

    def _close(self, place: int) -> EndedCall:
        if place in self._before:
            return self._before[place]
        call, outcome = self.calls[place], self._outcomes.get(place)
        if outcome is None:
            outcome = self._explain(call, has_begun=place in self._outcomes)
        return EndedCall(make_tool_message(call.id, outcome), outcome)

    def _explain(self, call: ToolCallRequest, *, has_begun: bool) -> ToolOutcome:
        """Return the outcome of a call that has none, because its turn was cancelled or parked."""
        if self.waiting:
            why = "The turn waits for a person's approval; this call is made when it goes on."
            return ToolDenied(call.id, call.name, "paused", why)
        if has_begun:
            error = "The turn was cancelled while this call was made."
            return ToolFailure(call.id, call.name, error, retryable=False, effect_unknown=True)
        why = "The turn was cancelled before this call was made."
        return ToolDenied(call.id, call.name, "cancelled", why)
