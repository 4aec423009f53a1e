"""Parking: keep a question in its queue while the run that asked it ends; see core/parking.py."""

from __future__ import annotations

from contextlib import suppress
from inspect import isawaitable
from typing import Any

from edictum.approval.port import ApprovalDecision, ApprovalRequest
from edictum.core.parking import WAIT, HostAnswer, Park
from edictum.errors import EdictumInputError

KEEPS_QUESTIONS = ("take", "park", "find", "get", "answer")


def can_park(backend: object) -> bool:
    """Return whether a backend keeps questions, so that the run which asked one can end."""
    return all(hasattr(backend, name) for name in KEEPS_QUESTIONS)


async def take_or_park(
    backend: Any, request: ApprovalRequest, park: Park, timeout: float
) -> ApprovalDecision:
    """Return the answer to a request. While there is none, park the call.

    ``park`` raises the exception that ends the host's run. A host that received answers itself
    returns HostAnswers, which are passed to the queue: only those that it accepts count. A host
    that ``replays`` is asked first for the answers of each earlier pause. One that ``only_asks``
    gets the request as soon as it is in the queue, and no answer.
    """
    if getattr(park, "only_asks", False):
        await backend.park(request.approval_id)
        await _call(park, request)
    for _ in range(request.parks if getattr(park, "replays", False) else 0):
        await _pass_on(backend, request, await _call(park, request))
    while (decision := await backend.take(request.approval_id)) is None:
        await backend.park(request.approval_id)
        told = await _call(park, request)
        if told is WAIT:
            decision = await backend.wait_for_decision(request.approval_id, timeout)
            break
        await _pass_on(backend, request, told)
    return decision  # type: ignore[no-any-return]  # of a backend that is known by its methods


async def _call(park: Park, request: ApprovalRequest) -> Any:
    told = park(request)
    return await told if isawaitable(told) else told


async def _pass_on(backend: Any, request: ApprovalRequest, told: Any) -> None:
    """Pass the answers of a host to the queue, but only those to requests of the session whose call
    it parked.
    """
    for answer in told if isinstance(told, (list, tuple)) else (told,):
        if not isinstance(answer, HostAnswer):
            problem = f"park returned {type(answer).__name__}."
            raise TypeError(f"{problem} Raise one of control_flow, or return a HostAnswer.")
        given: dict[str, Any] = {"approver": answer.approver, "reason": answer.reason}
        if answer.args is not None:
            given["args"] = answer.args
        if not await _is_of_session(backend, answer.approval_id, request):
            continue
        with suppress(EdictumInputError):  # answered before, or not by a verified approver
            await backend.answer(answer.approval_id, answer.approved, **given)


async def _is_of_session(backend: Any, approval_id: str, request: ApprovalRequest) -> bool:
    if approval_id == request.approval_id:
        return True
    found = await backend.get(approval_id)
    return found is not None and found.session_id == request.session_id
