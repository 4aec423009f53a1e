"""What a store of approvals keeps: rows of three kinds, requests, grants and precedents.

A store knows of a row what all rows have: ``kind``, ``row_id``, ``key``, ``status``,
``session_id``, ``tool_name``, ``asked_at``, ``expires_at``, ``leased_until`` and ``changed_at``.
The rest is a text to it: ``row.to_text()``, and ``read_row`` reads it. Times are seconds since the
epoch, by the store's clock. Several rows may have the same key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Literal, TypeAlias

from edictum.approval.port import ApprovalStatus
from edictum.core.values import digest, dumps

RowKind = Literal["request", "grant", "precedent"]


def make_call_key(session_id: str | None, call_digest: str) -> str:
    """Return the key of the requests about a call, under any policy."""
    return f"call:{digest(session_id, call_digest)}"


def make_grant_key(binding: str) -> str:
    """Return the key of the grants for a binding: a session or a principal, with a tool and a
    policy.
    """
    return f"grant:{binding}"


def make_precedent_key(tool_name: str, contract: str | None, principal: Any) -> str:
    """Return the key of the last approval for a tool, a contract and a principal."""
    return f"precedent:{digest(tool_name, contract, principal)}"


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A request.

    ``holder`` is the asker, whose lease ends at ``leased_until``; ``claim`` names the call that has
    taken a yes. ``askers`` are the contracts and limits that ask, ``approvers`` who may answer,
    ``requester`` the identities on whose behalf the call is made, ``bindings`` what a grant would
    be bound to, by its scope, and ``marks`` the digests of the arguments. ``answers`` are the yeses
    so far, ``changed_args`` those with which the call was approved. ``context`` helps a person to
    decide, ``precedent`` are the arguments that were approved last, and ``nonces`` are those of its
    answers. ``digest`` binds the answer, ``call_digest`` identifies the call under any policy.
    ``parks``: how often the run that asked has ended, to ask again with the same call id.
    """

    kind: ClassVar[RowKind] = "request"

    row_id: str
    session_id: str | None
    call_id: str | None
    digest: str
    tool_name: str
    tool_args: Any
    message: str
    timeout: float
    timeout_effect: str
    principal: Any = None
    contract: str | None = None
    holder: str = ""
    leased_until: float = 0.0
    asked_at: float = 0.0
    expires_at: float = 0.0
    status: ApprovalStatus = ApprovalStatus.PENDING
    changed_at: float = 0.0
    answered_at: float | None = None
    approver: str | None = None
    reason: str | None = None
    answer_key: str | None = None
    claim: str | None = None
    told: bool = False  # the asker has been told that it was denied
    askers: Sequence[str] = ()
    approvers: Sequence[Mapping[str, Any]] = ()
    requester: Sequence[str] = ()
    bindings: Mapping[str, str] | None = None
    marks: Mapping[str, str] | None = None
    answers: Sequence[Mapping[str, Any]] = ()
    changed_args: Mapping[str, Any] | None = None
    grant_id: str | None = None
    context: Mapping[str, Any] | None = None
    precedent: Mapping[str, Any] | None = None
    nonces: Sequence[str] = ()
    call_digest: str = ""
    parks: int = 0

    @property
    def is_parked(self) -> bool:
        return self.parks > 0

    @property
    def key(self) -> str:
        return make_call_key(self.session_id, self.call_digest or self.digest)

    @property
    def precedent_key(self) -> str:
        return make_precedent_key(self.tool_name, self.contract, self.principal)

    def to_text(self) -> str:
        """Return the row as JSON."""
        return _write(self)


class GrantStatus(StrEnum):
    """The state of a grant. An active one counts until it expires."""

    ACTIVE = "active"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class GrantRow:
    """A yes for further calls. ``session_id`` is None where it is for a principal in any session.

    ``binding`` is that of the request it was given for, ``askers`` are whose questions it answers,
    ``marks`` the digests of the arguments that must be the same, None for those that may be any.
    """

    kind: ClassVar[RowKind] = "grant"

    row_id: str
    binding: str
    session_id: str | None
    tool_name: str
    principal: Any
    askers: Sequence[str]
    patterns: Mapping[str, Any]
    marks: Mapping[str, str] | None
    approver: str
    reason: str | None
    approval_id: str
    asked_at: float
    expires_at: float
    status: GrantStatus = GrantStatus.ACTIVE
    changed_at: float = 0.0
    leased_until: float = 0.0
    revoked_by: str | None = None

    @property
    def key(self) -> str:
        return make_grant_key(self.binding)

    def to_text(self) -> str:
        """Return the row as JSON."""
        return _write(self)


@dataclass(frozen=True, slots=True)
class PrecedentRow:
    """The arguments, without secrets, that a person has approved last. Its id is its key."""

    kind: ClassVar[RowKind] = "precedent"
    status: ClassVar[str] = "kept"
    session_id: ClassVar[None] = None

    row_id: str
    tool_name: str
    tool_args: Any
    asked_at: float
    expires_at: float
    changed_at: float
    leased_until: float = 0.0

    @property
    def key(self) -> str:
        return self.row_id

    def to_text(self) -> str:
        """Return the row as JSON."""
        return _write(self)


StoredRow: TypeAlias = RequestRow | GrantRow | PrecedentRow


def _write(row: StoredRow) -> str:
    return dumps({"kind": row.kind, **{name: getattr(row, name) for name in row.__slots__}})


def read_row(text: str, leased_until: float) -> StoredRow:
    """Read a row; its lease is kept beside it, as it is renewed often."""
    values = json.loads(text)
    values["leased_until"] = leased_until
    kind = values.pop("kind")
    if kind == PrecedentRow.kind:
        return PrecedentRow(**values)
    if kind == GrantRow.kind:
        return GrantRow(**{**values, "status": GrantStatus(values["status"])})
    return RequestRow(**{**values, "status": ApprovalStatus(values["status"])})
