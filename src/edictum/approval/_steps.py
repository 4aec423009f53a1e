"""What can be done to a request in a queue, as values and as pure functions.

A store fetches the rows that a step concerns, has ``take_step`` say what becomes of them, and saves
that, all in one atomic step. So the rules are the same wherever a queue is kept. A step that is
repeated, because its answer was lost, is answered the same way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from edictum.approval.port import ApprovalStatus
from edictum.core._records import record
from edictum.core.values import dumps

# what the same call does not find again when it is asked about once more
UNANSWERED = (ApprovalStatus.TIMEOUT, ApprovalStatus.WITHDRAWN, ApprovalStatus.VOID)
OPEN = (ApprovalStatus.PENDING, ApprovalStatus.APPROVED, ApprovalStatus.CLAIMED)
STARTED = (ApprovalStatus.USED, ApprovalStatus.DONE)
NOT_ENDED = "An earlier run of this call was started with the approval {} and did not report its"
NOT_ENDED += " end, so it may have had its effect."


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A request as a store keeps it. Times are seconds since the epoch, by the store's clock.

    ``holder`` is the asker, who lives until ``leased_until`` as far as the store knows; ``claim``
    names the call that has taken a yes.
    """

    approval_id: str
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
    call_digest: str = ""  # of a call that may be parked: what it is, whatever the policy says
    is_parked: bool = False  # the run that asked has ended, and goes on when there is an answer

    def to_text(self) -> str:
        """Return the row as JSON."""
        return dumps({name: getattr(self, name) for name in self.__slots__})

    @staticmethod
    def from_text(text: str, leased_until: float) -> QueueRow:
        """Read a row; its lease is kept beside it, as it is renewed often."""
        values = json.loads(text)
        status = ApprovalStatus(values["status"])
        return QueueRow(**{**values, "status": status, "leased_until": leased_until})


@record
class Asking:
    """Ask, or find the same question again. ``row`` has no times yet."""

    row: QueueRow
    lease_s: float


@record
class Looking:
    """Read a request."""

    approval_id: str


@record
class Taking:
    """Take the answer, if there is one. A yes is claimed; ``gives_up`` ends a request that has
    none.
    """

    approval_id: str
    claim: str
    lease_s: float
    gives_up: bool = False


@record
class Answering:
    """Say yes or no to a pending request. ``key`` tells a repetition from a second answer."""

    approval_id: str
    key: str
    approved: bool
    approver: str
    reason: str | None


@record
class Revoking:
    """Take back a yes that was not used."""

    approval_id: str
    approver: str
    reason: str | None


@record
class Withdrawing:
    """Withdraw a request for its asker."""

    approval_id: str
    holder: str


@record
class Parking:
    """Note that the asker does not wait: it asks again, with the same call id."""

    approval_id: str


@record
class Using:
    """Write that the tool is started with a claimed yes."""

    approval_id: str
    claim: str


@record
class Ending:
    """Write that the tool has ended, or give a yes back whose tool was not started."""

    approval_id: str
    claim: str
    started: bool


@record
class Rejection:
    """Why an answer or a revocation does not count."""

    reason: str


QueueStep: TypeAlias = (
    Asking | Looking | Taking | Answering | Revoking | Withdrawing | Parking | Using | Ending
)
# The row to save, if one changed, and the answer.
Taken: TypeAlias = tuple[QueueRow | None, Any]


def take_step(step: QueueStep, rows: Sequence[QueueRow], now: float) -> Taken:
    """Return the row that a step changes, to be saved, and the answer to the step.

    ``rows``: for Asking those of the same session and digest, the oldest first; else the one of
    the step's id.
    """
    if isinstance(step, Asking):
        return _ask(step, rows, now)
    if not rows:
        return None, None
    return _RULES[type(step)](step, rows[0], now)


def _ask(step: Asking, rows: Sequence[QueueRow], now: float) -> Taken:
    asked = step.row
    for row in rows:
        if row.approval_id == asked.approval_id:  # a repetition
            return None, row
    same = sorted(rows, key=lambda row: row.call_id != asked.call_id)  # the call itself first
    found = next((row for row in same if _is_same_question(row, asked, now)), None)
    return _ask_anew(step, rows, now) if found is None else _ask_again(step, found, now)


def _ask_anew(step: Asking, rows: Sequence[QueueRow], now: float) -> Taken:
    asked = step.row
    unended = [row.approval_id for row in rows if row.status is ApprovalStatus.USED]
    if unended:
        asked = replace(asked, message=f"{asked.message} {NOT_ENDED.format(unended[-1])}")
    asked = replace(asked, asked_at=now, changed_at=now, leased_until=now + step.lease_s)
    return _save(replace(asked, expires_at=now + asked.timeout))


def _ask_again(step: Asking, found: QueueRow, now: float) -> Taken:
    """Hand the question over to the new asker, unless a call that may live has taken its yes."""
    is_held = found.status is ApprovalStatus.CLAIMED and found.leased_until > now
    if is_held or found.status in STARTED:
        return None, found
    asked = step.row
    found = replace(found, holder=asked.holder, leased_until=now + step.lease_s)
    if found.status is ApprovalStatus.PENDING and not found.is_parked:
        found = replace(found, expires_at=now + asked.timeout)
    elif found.status is ApprovalStatus.CLAIMED:
        found = replace(found, status=ApprovalStatus.APPROVED, claim=None)
    return _save(replace(found, call_id=asked.call_id))


def _is_same_question(row: QueueRow, asked: QueueRow, now: float) -> bool:
    """Return whether a call that is asked about is the one that a row is about: the call of the
    same id, or an equal one whose asker is gone and has not taken the answer.
    """
    if not asked.digest:  # it is not known what the answer would be bound to
        return False
    if asked.call_id is not None and row.call_id == asked.call_id:
        return row.status not in UNANSWERED
    is_open = row.status in OPEN or (row.status is ApprovalStatus.DENIED and not row.told)
    return is_open and row.leased_until <= now and not row.is_parked


def _save(row: QueueRow) -> Taken:
    return row, row


def _look(step: Looking, row: QueueRow, now: float) -> Taken:
    return None, row


def _take(step: Taking, row: QueueRow, now: float) -> Taken:
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
    return None, row


def _answer(step: Answering, row: QueueRow, now: float) -> Taken:
    if row.answer_key == step.key:
        return None, row
    if row.status is ApprovalStatus.PENDING and row.expires_at <= now:
        return None, Rejection("It has expired.")
    if row.status is not ApprovalStatus.PENDING:
        by = f" by {row.approver}" if row.approver else ""
        return None, Rejection(f"It is not pending any more: {row.status}{by}.")
    status = ApprovalStatus.APPROVED if step.approved else ApprovalStatus.DENIED
    row = replace(row, approver=step.approver, reason=step.reason, answer_key=step.key)
    return _save(replace(row, status=status, answered_at=now, changed_at=now))


def _revoke(step: Revoking, row: QueueRow, now: float) -> Taken:
    if row.status is ApprovalStatus.VOID:
        return None, row
    if row.status not in (ApprovalStatus.APPROVED, ApprovalStatus.CLAIMED):
        return None, Rejection(
            f"It has no unused yes that could be taken back: it is {row.status}."
        )
    reason = step.reason or f"The approval was revoked by {step.approver}."
    return _save(replace(row, status=ApprovalStatus.VOID, changed_at=now, reason=reason))


def _withdraw(step: Withdrawing, row: QueueRow, now: float) -> Taken:
    if row.holder != step.holder or row.status not in OPEN:
        return None, row
    return _save(replace(row, status=ApprovalStatus.WITHDRAWN, changed_at=now))


def _park(step: Parking, row: QueueRow, now: float) -> Taken:
    if row.status is not ApprovalStatus.PENDING:
        return None, row
    return _save(replace(row, is_parked=True, leased_until=now))


def _use(step: Using, row: QueueRow, now: float) -> Taken:
    if row.claim == step.claim and row.status is ApprovalStatus.CLAIMED:
        return replace(row, status=ApprovalStatus.USED, changed_at=now), True
    return None, row.claim == step.claim and row.status is ApprovalStatus.USED


def _end(step: Ending, row: QueueRow, now: float) -> Taken:
    if row.claim != step.claim or row.status not in (ApprovalStatus.CLAIMED, ApprovalStatus.USED):
        return None, None
    if step.started:
        return replace(row, status=ApprovalStatus.DONE, changed_at=now), None
    return replace(
        row, status=ApprovalStatus.APPROVED, claim=None, leased_until=now, changed_at=now
    ), None


_RULES: dict[type[Any], Callable[[Any, QueueRow, float], Taken]] = {
    Looking: _look,
    Taking: _take,
    Answering: _answer,
    Revoking: _revoke,
    Withdrawing: _withdraw,
    Parking: _park,
    Using: _use,
    Ending: _end,
}
