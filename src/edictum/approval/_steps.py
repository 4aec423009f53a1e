"""Steps: what can be done to requests and grants in a queue, as values and as pure functions.

A store fetches the rows that a step concerns, those whose id is one of ``step.ids`` or whose key is
one of ``step.keys``, calls ``take_step`` for the new rows, and saves these, all in one atomic step.
So the rules are the same wherever a queue is kept. A step that is repeated, because its answer was
lost, is answered in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from edictum.approval._rows import (
    GrantRow,
    GrantStatus,
    PrecedentRow,
    RequestRow,
    RowKind,
    StoredRow,
    make_call_key,
    make_grant_key,
)
from edictum.approval.approvers import Person, has_enough, refuse_person, replace_answer
from edictum.approval.grants import find_grant, is_in_force, make_grant
from edictum.approval.port import ApprovalStatus
from edictum.core._records import record, replace
from edictum.core.changed_args import find_hidden
from edictum.core.freeze import EMPTY
from edictum.core.values import is_same

# of a request that the same call, made again, does not find
UNANSWERED = (ApprovalStatus.TIMEOUT, ApprovalStatus.WITHDRAWN, ApprovalStatus.VOID)
OPEN = (ApprovalStatus.PENDING, ApprovalStatus.APPROVED, ApprovalStatus.CLAIMED)
STARTED = (ApprovalStatus.USED, ApprovalStatus.DONE)
NOT_ENDED = "An earlier run of this call was started with the approval {} and did not report its"
NOT_ENDED += " end, so it may have had its effect."
HIDDEN = "The changed argument {!r:.80} holds the mark of a secret. Leave it as it was shown, or"
HIDDEN += " write what the tool shall get."


class OfOneRequest:
    """A step that concerns the request of its ``approval_id``."""

    approval_id: str
    __slots__ = ()
    keys: Sequence[str] = ()

    @property
    def ids(self) -> Sequence[str]:
        return (self.approval_id,)


@record
class Asking:
    """Ask, find the same question again, or a grant that answers it. ``row`` has no times yet;
    ``args`` are the arguments of the call with their secrets, which are not stored.
    """

    row: RequestRow
    lease_s: float
    args: Mapping[str, Any] = EMPTY

    @property
    def ids(self) -> Sequence[str]:
        return (self.row.precedent_key,)

    @property
    def keys(self) -> Sequence[str]:
        bindings = self.row.bindings or EMPTY
        return (self.row.key, *map(make_grant_key, bindings.values()))


@record
class Recalling:
    """Find the last request about a call that has an answer, or can still get one; else None."""

    session_id: str
    call_id: str
    call_digest: str
    ids: Sequence[str] = ()

    @property
    def keys(self) -> Sequence[str]:
        return (make_call_key(self.session_id, self.call_digest),)


@record
class Looking(OfOneRequest):
    """Read a request."""

    approval_id: str


@record
class Measuring(OfOneRequest):
    """Read for how many seconds a request can still be answered: 0 when it is not pending."""

    approval_id: str


@record
class Taking(OfOneRequest):
    """Take the answer, if there is one. A yes is claimed for this call. ``gives_up`` ends a request
    without an answer.
    """

    approval_id: str
    claim: str
    lease_s: float
    gives_up: bool = False


@record
class Answering(OfOneRequest):
    """Say yes or no to a pending request. ``key`` tells a repetition from a second answer, and
    names the grant that a yes gives by ``grant``. ``args``: the arguments with which it is
    approved. Of the answers with the same ``nonce`` one is taken.
    """

    approval_id: str
    key: str
    approved: bool
    person: Person
    reason: str | None
    args: Mapping[str, Any] | None = None
    grant: Mapping[str, Any] | None = None
    nonce: str | None = None


@record
class Remembering:
    """Keep the arguments of an approved request as those approved last."""

    row: RequestRow
    keys: Sequence[str] = ()

    @property
    def ids(self) -> Sequence[str]:
        return (self.row.precedent_key,)


@record
class Revoking(OfOneRequest):
    """Revoke a yes that was not used."""

    approval_id: str
    approver: str
    reason: str | None


@record
class RevokingGrant:
    """Revoke a grant. Answered with its row."""

    grant_id: str
    approver: str
    keys: Sequence[str] = ()

    @property
    def ids(self) -> Sequence[str]:
        return (self.grant_id,)


@record
class Withdrawing(OfOneRequest):
    """Withdraw a request for its asker."""

    approval_id: str
    holder: str


@record
class Parking(OfOneRequest):
    """Note that the asker has stopped waiting and will ask again, with the same call id."""

    approval_id: str


@record
class Using:
    """Record that the tool starts with a claimed yes, and with a use of its grant if it has one."""

    approval_id: str
    claim: str
    grant_id: str | None = None
    keys: Sequence[str] = ()

    @property
    def ids(self) -> Sequence[str]:
        return (self.approval_id, *([self.grant_id] if self.grant_id is not None else []))


@record
class Ending(OfOneRequest):
    """Record that the tool has ended, or release a yes whose tool was not started."""

    approval_id: str
    claim: str
    started: bool


@record
class Rejection:
    """Why an answer or a revocation is not accepted."""

    reason: str


QueueStep: TypeAlias = (
    Asking
    | Recalling
    | Looking
    | Measuring
    | Taking
    | Answering
    | Remembering
    | Revoking
    | RevokingGrant
    | Withdrawing
    | Parking
    | Using
    | Ending
)
# The rows to save, those that changed or are new, and the answer.
Taken: TypeAlias = tuple[Sequence[StoredRow], Any]


@record
class Listing:
    """List rows of a kind and a status that have not expired: the oldest first, those after the one
    of an id. Answered with the rows.
    """

    kind: RowKind
    status: str
    session_id: str | None
    tool_name: str | None
    limit: int
    after: str | None


@record
class Polling:
    """Ask what has changed, and renew the leases of pending requests that are waited for. Answered
    with the number of the newest change, and the ids of the rows that have changed since.
    """

    since: int
    renewed: list[str]
    lease_s: float


def take_step(step: QueueStep, rows: Sequence[StoredRow], now: float) -> Taken:
    """Return the rows that a step changes, to be saved, and the answer to the step.

    ``rows`` are those of the step's ids and keys, by ``asked_at`` and then by id.
    """
    requests = [row for row in rows if isinstance(row, RequestRow)]
    grants = [row for row in rows if isinstance(row, GrantRow)]
    if isinstance(step, Asking):
        before = [row for row in rows if isinstance(row, PrecedentRow)]
        row = replace(step.row, precedent=before[0].tool_args if before else None)
        return _ask(replace(step, row=row), requests, grants, now)
    if isinstance(step, Remembering):
        return _remember(step.row, now)
    if isinstance(step, Recalling):
        return (), _find(step, requests)
    if isinstance(step, RevokingGrant):
        return _revoke_grant(step, grants, now)
    if not requests:
        return (), None
    if isinstance(step, Using):
        return _use(step, requests[0], grants, now)
    return _RULES[type(step)](step, requests[0], now)


def _ask(step: Asking, rows: Sequence[RequestRow], grants: Sequence[GrantRow], now: float) -> Taken:
    asked = step.row
    for row in rows:
        if row.row_id == asked.row_id:  # a repetition
            return (), row
    # a yes by a grant that is no longer in force does not count
    in_force = {it.row_id for it in grants if is_in_force(it, now)}
    rows = [it for it in rows if it.grant_id is None or it.grant_id in in_force or _has_started(it)]
    same = sorted(rows, key=lambda row: row.call_id != asked.call_id)  # the call itself first
    found = next((row for row in same if _is_same_question(row, asked, now)), None)
    taken = _ask_anew(step, rows, now) if found is None else _ask_again(step, found, now)
    grant = find_grant(grants, asked, step.args, now)
    row = taken[1]
    if grant is not None and row.status is ApprovalStatus.PENDING:
        return _save(_approve_by(grant, row, now))
    return taken


def _remember(row: RequestRow, now: float) -> Taken:
    args = row.tool_args if row.changed_args is None else row.changed_args
    key = row.precedent_key
    return (PrecedentRow(key, row.tool_name, args, now, now, now),), None


def _has_started(row: RequestRow) -> bool:
    return row.status in STARTED


def _approve_by(grant: GrantRow, row: RequestRow, now: float) -> RequestRow:
    return replace(
        row,
        status=ApprovalStatus.APPROVED,
        grant_id=grant.row_id,
        approver=grant.approver,
        reason=f"Covered by the grant {grant.row_id}.",
        answered_at=now,
        changed_at=now,
    )


def _find(step: Recalling, rows: Sequence[RequestRow]) -> RequestRow | None:
    known = [row for row in rows if row.call_id == step.call_id and row.status not in UNANSWERED]
    return known[-1] if known else None


def _ask_anew(step: Asking, rows: Sequence[RequestRow], now: float) -> Taken:
    asked = step.row
    unended = [row.row_id for row in rows if row.status is ApprovalStatus.USED]
    if unended:
        asked = replace(asked, message=f"{asked.message} {NOT_ENDED.format(unended[-1])}")
    asked = replace(asked, asked_at=now, changed_at=now, leased_until=now + step.lease_s)
    return _save(replace(asked, expires_at=now + asked.timeout))


def _ask_again(step: Asking, found: RequestRow, now: float) -> Taken:
    """Hand the question over to the new asker, unless a call that may still be running has claimed
    its yes.
    """
    is_held = found.status is ApprovalStatus.CLAIMED and found.leased_until > now
    if is_held or _has_started(found):
        return (), found
    asked = step.row
    found = replace(found, holder=asked.holder, leased_until=now + step.lease_s)
    if found.status is ApprovalStatus.PENDING and not found.is_parked:
        found = replace(found, expires_at=now + asked.timeout)
    elif found.status is ApprovalStatus.CLAIMED:
        found = replace(found, status=ApprovalStatus.APPROVED, claim=None)
    return _save(replace(found, call_id=asked.call_id))


def _is_same_question(row: RequestRow, asked: RequestRow, now: float) -> bool:
    """Return whether a row is about the call that is asked about now: the call of the same id, or
    an equal one whose asker is gone and has not taken the answer. Of a call that was started the
    row is found under any policy.
    """
    is_same_call = asked.call_id is not None and row.call_id == asked.call_id
    if asked.call_digest and is_same_call and _has_started(row):
        return True
    if not asked.digest or row.digest != asked.digest:  # an answer would not be bound to it
        return False
    if is_same_call:
        return row.status not in UNANSWERED
    is_open = row.status in OPEN or (row.status is ApprovalStatus.DENIED and not row.told)
    return is_open and row.leased_until <= now and not row.is_parked


def _save(row: RequestRow) -> Taken:
    return (row,), row


def _look(step: Looking, row: RequestRow, now: float) -> Taken:
    return (), row


def _measure(step: Measuring, row: RequestRow, now: float) -> Taken:
    is_open = row.status is ApprovalStatus.PENDING
    return (), max(row.expires_at - now, 0.0) if is_open else 0.0


def _take(step: Taking, row: RequestRow, now: float) -> Taken:
    is_free = row.status is ApprovalStatus.APPROVED or (
        row.status is ApprovalStatus.CLAIMED and row.leased_until <= now
    )
    if is_free:
        row = replace(row, status=ApprovalStatus.CLAIMED, claim=step.claim, changed_at=now)
        return _save(replace(row, leased_until=now + step.lease_s))
    if row.status is ApprovalStatus.DENIED and not row.told:
        return _save(replace(row, told=True))
    is_over = step.gives_up or (row.is_parked and row.expires_at <= now)
    if row.status is ApprovalStatus.PENDING and is_over:
        return _save(replace(row, status=ApprovalStatus.TIMEOUT, changed_at=now))
    return (), row


def _answer(step: Answering, row: RequestRow, now: float) -> Taken:
    if step.key in (row.answer_key, *(it["key"] for it in row.answers)):
        return (), row
    if row.status is ApprovalStatus.PENDING and row.expires_at <= now:
        return (), Rejection("It has expired.")
    if row.status is not ApprovalStatus.PENDING:
        by = f" by {row.approver}" if row.approver else ""
        return (), Rejection(f"It is not pending any more: {row.status}{by}.")
    if step.nonce is not None and step.nonce in row.nonces:
        return (), Rejection("It was answered by this link before.")
    if (problem := refuse_person(row, step.person, now)) is not None:
        return (), Rejection(problem)
    if step.nonce is not None:
        row = replace(row, nonces=[*row.nonces, step.nonce])
    if step.approved:
        return _say_yes(step, row, now)
    row = replace(row, approver=step.person.name, reason=step.reason, answer_key=step.key)
    return _save(replace(row, status=ApprovalStatus.DENIED, answered_at=now, changed_at=now))


def _say_yes(step: Answering, row: RequestRow, now: float) -> Taken:
    """Add a yes. The request is approved once enough persons have said the same yes: with the same
    arguments, and the same grant.
    """
    if step.args is not None and (hidden := find_hidden(row.tool_args, step.args)) is not None:
        return (), Rejection(HIDDEN.format(hidden))
    person = step.person
    answer = {
        "key": step.key,
        "approver": person.name,
        "identities": list(person.identities),
        "roles": list(person.roles),
        "reason": step.reason,
        "args": step.args,
        "grant": step.grant,
        "at": now,
    }
    answers = replace_answer(row.answers, answer)
    same = [it for it in answers if is_same([it["args"], it["grant"]], [step.args, step.grant])]
    names = ", ".join(it["approver"] for it in same)
    approved = replace(
        row,
        status=ApprovalStatus.APPROVED,
        approver=names,
        reason=step.reason,
        answer_key=step.key,
        answers=answers,
        answered_at=now,
        changed_at=now,
        changed_args=step.args,
    )
    grant = None if step.grant is None else make_grant(approved, step.grant, step.key, now)
    if isinstance(grant, str):
        return (), Rejection(grant)
    if not has_enough(row, same):
        return _save(replace(row, answers=answers, changed_at=now))
    return (approved, *([grant] if grant is not None else [])), approved


def _revoke(step: Revoking, row: RequestRow, now: float) -> Taken:
    if row.status is ApprovalStatus.VOID:
        return (), row
    if row.status not in (ApprovalStatus.APPROVED, ApprovalStatus.CLAIMED):
        return (), Rejection(f"It has no unused yes that could be taken back: it is {row.status}.")
    reason = step.reason or f"The approval was revoked by {step.approver}."
    return _save(replace(row, status=ApprovalStatus.VOID, changed_at=now, reason=reason))


def _withdraw(step: Withdrawing, row: RequestRow, now: float) -> Taken:
    if row.holder != step.holder or row.status not in OPEN:
        return (), row
    return _save(replace(row, status=ApprovalStatus.WITHDRAWN, changed_at=now))


def _park(step: Parking, row: RequestRow, now: float) -> Taken:
    if row.status is not ApprovalStatus.PENDING:
        return (), row
    return _save(replace(row, parks=row.parks + 1, leased_until=now))


def _revoke_grant(step: RevokingGrant, grants: Sequence[GrantRow], now: float) -> Taken:
    if not grants:
        return (), None
    grant = grants[0]
    if grant.status is GrantStatus.REVOKED:
        return (), grant
    revoked = GrantStatus.REVOKED
    grant = replace(grant, status=revoked, revoked_by=step.approver, changed_at=now)
    return (grant,), grant


def _use(step: Using, row: RequestRow, grants: Sequence[GrantRow], now: float) -> Taken:
    if row.claim != step.claim or row.status is not ApprovalStatus.CLAIMED:
        return (), row.claim == step.claim and row.status is ApprovalStatus.USED
    in_force = {it.row_id for it in grants if is_in_force(it, now)}
    if row.grant_id is not None and row.grant_id not in in_force:
        reason = "The grant was revoked, or has expired."
        return (replace(row, status=ApprovalStatus.VOID, reason=reason, changed_at=now),), False
    return (replace(row, status=ApprovalStatus.USED, changed_at=now),), True


def _end(step: Ending, row: RequestRow, now: float) -> Taken:
    if row.claim != step.claim or row.status not in (ApprovalStatus.CLAIMED, ApprovalStatus.USED):
        return (), None
    if step.started:
        return (replace(row, status=ApprovalStatus.DONE, changed_at=now),), None
    row = replace(row, status=ApprovalStatus.APPROVED, claim=None, leased_until=now, changed_at=now)
    return (row,), None


_RULES: dict[type[Any], Callable[[Any, RequestRow, float], Taken]] = {
    Looking: _look,
    Measuring: _measure,
    Taking: _take,
    Answering: _answer,
    Revoking: _revoke,
    Withdrawing: _withdraw,
    Parking: _park,
    Ending: _end,
}
