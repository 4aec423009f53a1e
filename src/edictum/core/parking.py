"""Parking: a call that waits for a person lets its host end the run and continue it later.

A host that can do so, perhaps in another process, gives the call the option ``park``, a function of
the open request. The function raises the host's own exception, which must be one of
``control_flow``, and the call is closed as paused. Later the host makes the same call again, with
the same call id, and the gate finds the question that was asked before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

# of the open ApprovalRequest
Park: TypeAlias = Callable[[Any], Any]


class _Wait:
    def __repr__(self) -> str:
        return "WAIT"


# returned by a host that cannot end its run now: the call waits for the answer
WAIT: Final = _Wait()


# by the status of a request: why a call whose tool was started with it is not started again
NOT_AGAIN: Final[Mapping[str, str]] = {
    "used": "The approval was used before: the call was started then, and whether it had its effect"
    " is not known. It is not started again.",
    "done": "The approval was used before: the call has run, and is not run again.",
}


class ApprovalPending(BaseException):
    """A call was parked: a person has been asked, and has not answered.

    It is not an error, so it is not an Exception. Make the same call again, with the same session
    and call id, when the request has been answered.
    """

    def __init__(self, request: Any) -> None:
        super().__init__(f"The call waits for the approval {request.approval_id}.")
        self.request = request


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """A person's answer that the host of a call received itself. The host has not verified who the
    person was, so it does not count where the contract names ``approvers``.
    """

    approval_id: str
    approved: bool
    approver: str
    reason: str | None = None
    args: Mapping[str, Any] | None = None


class GoingOn:
    """Parks a call of a host that continues after a pause, as ``park`` says. An earlier question
    about the call is looked up even if no contract can ask about its tool any more.
    """

    goes_on = True

    def __init__(self, park: Park) -> None:
        self._park = park

    def __call__(self, request: Any) -> Any:
        return self._park(request)


def wait_for_answer(request: Any) -> Any:
    """Wait, for hosts that cannot end their run."""
    return WAIT


def tell_once(approved: bool | None, approver: str, then: Park = wait_for_answer) -> Park:
    """Return the ``park`` of a call. It gives, once, the answer ``approved`` that the host received
    when it continued, and after that does ``then``. None: the host does not continue a run.
    """
    told = approved

    def park(request: Any) -> Any:
        nonlocal told
        if told is None or not request.is_parked:
            return then(request)
        answer, told = HostAnswer(request.approval_id, told, approver), None
        return answer

    return park if approved is None else GoingOn(park)


def raise_pending(request: Any) -> Any:
    """Raise ApprovalPending, for hosts that park a call by catching it."""
    raise ApprovalPending(request)
