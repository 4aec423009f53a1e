"""The approval port: ask a person, wait for the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from inspect import Signature, signature
from typing import Any, Literal, Protocol, TypedDict, Unpack, runtime_checkable
from uuid import uuid4

from edictum.core.freeze import EMPTY
from edictum.core.policy import Policy
from edictum.errors import EdictumConfigError


class ApprovalStatus(StrEnum):
    """The state of a request. In a queue a yes is claimed by the call that takes it, used when its
    tool is started, and done when that has ended; one that was revoked, or belongs to another call,
    is void.
    """

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    TIMEOUT = "timeout"
    WITHDRAWN = "withdrawn"
    VOID = "void"
    CLAIMED = "claimed"
    USED = "used"
    DONE = "done"


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What a person is asked. ``digest`` binds the answer to this tool, these arguments, this
    principal, this policy and the contracts that ask. ``grant_id`` names the grant that answers it
    in place of a person. ``parks``: how often the run that asked has ended, to ask again.
    """

    approval_id: str
    tool_name: str
    tool_args: Mapping[str, Any]
    message: str
    timeout: float
    timeout_effect: Literal["deny", "allow"] = "deny"
    principal: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = EMPTY
    created_at: datetime = field(default_factory=_now)
    session_id: str | None = None
    digest: str = ""
    grant_id: str | None = None
    parks: int = 0

    @property
    def is_parked(self) -> bool:
        return self.parks > 0


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """The answer. A backend that keeps requests elsewhere returns their digest, so that it is
    checked. ``args`` are arguments with which the call is approved in place of its own: those that
    are given as the request has shown them stay what they are in the call.
    """

    approved: bool
    approver: str | None = None
    reason: str | None = None
    status: ApprovalStatus = ApprovalStatus.PENDING
    timestamp: datetime = field(default_factory=_now)
    digest: str | None = None
    args: Mapping[str, Any] | None = None


class RequestOptions(TypedDict, total=False):
    """The keyword arguments of ``request_approval``."""

    timeout: float
    timeout_effect: Literal["deny", "allow"]
    principal: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None
    session_id: str | None


class RequestKeeper:
    """Creates requests, each with its own id and the digest from its metadata."""

    async def request_approval(
        self,
        tool_name: str,
        tool_args: Mapping[str, Any],
        message: str,
        **options: Unpack[RequestOptions],
    ) -> ApprovalRequest:
        metadata = options.get("metadata") or EMPTY
        more: dict[str, Any] = {"timeout": 300, **options, "metadata": metadata}
        request = ApprovalRequest(
            str(uuid4()), tool_name, tool_args, message, digest=metadata.get("digest", ""), **more
        )
        self._keep(request)
        return request

    def _keep(self, request: ApprovalRequest) -> None:
        raise NotImplementedError


REQUEST_KEYWORDS = (
    *("tool_name", "tool_args", "message", "timeout", "timeout_effect"),
    *("principal", "metadata", "session_id"),
)
DECISION_KEYWORDS = ("approval_id", "timeout")
RAW_ARGS = "raw_args"


def takes_raw_args(backend: object) -> bool:
    """Return whether a backend has a parameter for the arguments with their secrets."""
    taken = _read_parameters(getattr(backend, "request_approval", None))
    return taken is not None and RAW_ARGS in taken.parameters


def verifies_approvers(backend: object) -> bool:
    """Return whether a backend verifies who answers, so that it can enforce ``approvers``."""
    return getattr(backend, "verifies_approvers", False) is True


def find_approver_problem(backend: object, policy: Policy) -> EdictumConfigError | None:
    """Return an error if a policy restricts who may approve and the backend cannot enforce it, else
    None.
    """
    if backend is None or verifies_approvers(backend) or not policy.has_approvers():
        return None
    return make_unverified_error(backend)


def make_unverified_error(backend: object) -> EdictumConfigError:
    """Return the error for a backend that does not verify who answers."""
    kind = type(backend).__name__
    return EdictumConfigError(
        f"The approval backend {kind} does not verify who answers: calls whose contract has"
        " 'approvers' are denied.",
        hint="Use an approval queue, such as approval_backend='sqlite:///approvals.db'.",
    )


def find_wrong_keywords(method: Any, keywords: tuple[str, ...]) -> TypeError | None:
    """Return why a method of a backend cannot be called with these keywords, else None."""
    taken = _read_parameters(method)
    try:
        if taken is not None:
            taken.bind(**dict.fromkeys(keywords))
    except TypeError as exc:
        return exc
    return None


def _read_parameters(method: Any) -> Signature | None:
    try:
        return signature(method)
    except (TypeError, ValueError):  # a builtin, or not a function
        return None


@runtime_checkable
class ApprovalBackend(Protocol):
    """Where approvals are asked for, with these keywords. Arguments, message and principal come
    without secrets; a backend whose ``request_approval`` has a parameter ``raw_args`` gets the
    arguments as they are as well. A backend may have ``withdraw(approval_id)`` as well, which is
    called when the answer is not awaited any more, and ``late_answer_s``: by how many seconds it
    may overrun its timeout, 5 by default.

    A backend that keeps answers has two more: ``use(approval_id)`` is called just before the tool
    of an approved call is started, which must not happen unless it returns True, and
    ``end(approval_id, started)`` when the tool has ended, or was not started after all.

    The metadata of a request state who may answer (``approvers``) and whose call it is
    (``requester``). A backend that enforces this has ``verifies_approvers = True``; without it a
    call that only some may approve is denied.
    """

    async def request_approval(
        self,
        tool_name: str,
        tool_args: Mapping[str, Any],
        message: str,
        *,
        timeout: float = 300,
        timeout_effect: Literal["deny", "allow"] = "deny",
        principal: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        session_id: str | None = None,
    ) -> ApprovalRequest: ...

    async def wait_for_decision(
        self, approval_id: str, timeout: float | None = None
    ) -> ApprovalDecision: ...
