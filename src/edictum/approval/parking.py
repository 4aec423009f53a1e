"""Parking: a question stays in its queue, and the run that asked it ends until it is answered.

A host that can end its run and go on later, perhaps in another process, says so with the option
``park`` of a call. It is called with the open request and raises the host's own exception, which
must be one of ``control_flow``: the call is closed as paused. The host then makes the same call
again, with the same call id, and the call finds its question.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Final, TypeAlias

from edictum.approval.port import ApprovalDecision, ApprovalRequest
from edictum.errors import EdictumInputError

KEEPS_QUESTIONS = ("take", "park", "find", "answer")
Park: TypeAlias = Callable[[ApprovalRequest], Any]


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

    def __init__(self, request: ApprovalRequest) -> None:
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


def can_park(backend: object) -> bool:
    """Return whether a backend keeps questions, so that the run which asked one can end."""
    return all(hasattr(backend, name) for name in KEEPS_QUESTIONS)


def raise_pending(request: ApprovalRequest) -> Any:
    """Park a call, for hosts that take ApprovalPending."""
    raise ApprovalPending(request)


async def take_or_park(
    backend: Any, request: ApprovalRequest, park: Park, timeout: float
) -> ApprovalDecision:
    """Return the answer to a request. While there is none, park the call.

    ``park`` raises the exception that ends the host's run. Where the host itself was told answers,
    it returns HostAnswers, which are given to the queue: only what that takes counts. A host that
    ``replays`` is asked first for what it was told after each pause before. One that ``only_asks``
    gets the request as soon as it is in the queue, and takes no answer.
    """
    if getattr(park, "only_asks", False):
        await backend.park(request.approval_id)
        await _call(park, request)
    for _ in range(request.parks if getattr(park, "replays", False) else 0):
        await _pass_on(backend, await _call(park, request))
    while (decision := await backend.take(request.approval_id)) is None:
        await backend.park(request.approval_id)
        told = await _call(park, request)
        if told is WAIT:
            decision = await backend.wait_for_decision(request.approval_id, timeout)
            break
        await _pass_on(backend, told)
    return decision  # type: ignore[no-any-return]  # of a backend that is known by its methods


async def _call(park: Park, request: ApprovalRequest) -> Any:
    told = park(request)
    return await told if isawaitable(told) else told


async def _pass_on(backend: Any, told: Any) -> None:
    """Give the answers of a host to the queue."""
    for answer in told if isinstance(told, (list, tuple)) else (told,):
        if not isinstance(answer, HostAnswer):
            problem = f"park returned {type(answer).__name__}."
            raise TypeError(f"{problem} Raise one of control_flow, or return a HostAnswer.")
        given: dict[str, Any] = {"approver": answer.approver, "reason": answer.reason}
        if answer.args is not None:
            given["args"] = answer.args
        with suppress(EdictumInputError):  # answered before, or not by a verified approver
            await backend.answer(answer.approval_id, answer.approved, **given)
