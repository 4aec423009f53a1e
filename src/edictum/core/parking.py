"""Parking: what a host and the gate tell each other about a call that waits for a person.

A host that can end its run and go on later, perhaps in another process, says so with the option
``park`` of a call. It is called with the open request and raises the host's own exception, which
must be one of ``control_flow``: the call is closed as paused. The host then makes the same call
again, with the same call id, and the call finds its question.
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


# what a host returns that cannot end its run just now: the answer is waited for
WAIT: Final = _Wait()


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
    """What a person has told the host of a call. The host has not verified who it was, so it does
    not count where the contract names ``approvers``.
    """

    approval_id: str
    approved: bool
    approver: str
    reason: str | None = None
    args: Mapping[str, Any] | None = None


def raise_pending(request: Any) -> Any:
    """Park a call, for hosts that take ApprovalPending."""
    raise ApprovalPending(request)
