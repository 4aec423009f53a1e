"""CallRound: the calls of one reply, from their start to their outcomes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from edictum.approval.port import ApprovalRequest
from edictum.core.freeze import EMPTY
from edictum.core.turn import Refusal
from edictum.harness.messages import make_tool_message
from edictum.harness.parked_turn import EndedCall
from edictum.harness.tool_executor import ToolCallRequest
from edictum.outcomes import ToolDenied, ToolFailure, ToolOutcome

NONE_ENDED: Mapping[int, EndedCall] = EMPTY
INTERRUPTED = Refusal(
    "interrupted",
    "This call was started before the turn was interrupted, and did not report its end, so it may"
    " have had its effect. It is not made again: find out what has happened first.",
)


class CallRound:
    """The calls of one reply, identified by position. In a resumed turn ``ended`` are the calls
    that had ended, and ``started`` those that were started. The first ``answered`` get an outcome
    each; ``waiting`` are those that wait for a person.
    """

    def __init__(
        self,
        calls: Sequence[ToolCallRequest],
        ended: Mapping[int, EndedCall] = NONE_ENDED,
        started: Collection[int] = (),
        *,
        goes_on: bool = False,
    ) -> None:
        self.goes_on = goes_on
        self.calls, self._before, self._interrupted = calls, ended, frozenset(started)
        self._started = set(started)
        self.answered = 0
        self._places = {id(call): place for place, call in enumerate(calls)}
        self._outcomes: dict[int, ToolOutcome | None] = {}  # None from its start to its end
        self.waiting: dict[int, ApprovalRequest] = {}

    def list_open(self, calls: Sequence[ToolCallRequest]) -> list[ToolCallRequest]:
        """Return those of some calls that have not ended before."""
        return [call for call in calls if self._places[id(call)] not in self._before]

    def find_refusal(self, call: ToolCallRequest) -> Refusal | None:
        """Return why a call must not be made again; None if it may be made."""
        return INTERRUPTED if self._places[id(call)] in self._interrupted else None

    def start(self, call: ToolCallRequest) -> None:
        """Note that the tool of a call is started, which must not be done twice."""
        self._started.add(self._places[id(call)])

    def list_starts(self) -> tuple[int, ...]:
        """Return the places of the calls that were started and have not ended."""
        return tuple(sorted(self._started - self.find_ends().keys()))

    def begin(self, call: ToolCallRequest) -> None:
        self._outcomes[self._places[id(call)]] = None

    def end(self, call: ToolCallRequest, outcome: ToolOutcome | None) -> None:
        self._outcomes[self._places[id(call)]] = outcome

    def wait(self, call: ToolCallRequest, request: ApprovalRequest) -> None:
        """Note that a call waits for a person."""
        self.waiting[self._places[id(call)]] = request

    def list_ends(self) -> list[EndedCall]:
        """Return the outcome of each answered call, or why it has none."""
        return [self._close(place) for place in range(self.answered)]

    def find_ends(self) -> dict[int, EndedCall]:
        """Return the calls that have ended and do not wait, by their place."""
        ended = self._before.keys() | {it for it, end in self._outcomes.items() if end is not None}
        return {it: self._close(it) for it in sorted(ended - self.waiting.keys())}

    def _close(self, place: int) -> EndedCall:
        if place in self._before:
            return self._before[place]
        call, outcome = self.calls[place], self._outcomes.get(place)
        if outcome is None:
            outcome = self._explain(call, has_begun=place in self._outcomes)
        return EndedCall(make_tool_message(call.id, outcome), outcome)

    def _explain(self, call: ToolCallRequest, *, has_begun: bool) -> ToolOutcome:
        """Return the outcome of a call that was not made or not finished, because its turn was
        cancelled or parked.
        """
        if self.waiting:
            why = "The turn waits for a person's approval; this call is made when it goes on."
            return ToolDenied(call.id, call.name, "paused", why)
        if has_begun:
            error = "The turn was cancelled while this call was made."
            return ToolFailure(call.id, call.name, error, retryable=False, effect_unknown=True)
        why = "The turn was cancelled before this call was made."
        return ToolDenied(call.id, call.name, "cancelled", why)
