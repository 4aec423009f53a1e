"""ApprovalQueue: requests for approval in a store that processes share.

One process asks and waits, another lists and answers. A request outlives the process that asked:
the same call, made again, finds its question and its answer.
"""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, Unpack
from uuid import uuid4

from edictum._logs import APPROVAL_NOT_NOTIFIED, log
from edictum.approval._rows import GrantRow, GrantStatus, RequestRow, RowKind
from edictum.approval._steps import (
    Answering,
    Asking,
    Ending,
    Listing,
    Looking,
    Measuring,
    Parking,
    Polling,
    QueueStep,
    Recalling,
    Rejection,
    Remembering,
    Revoking,
    RevokingGrant,
    Taking,
    Using,
    Withdrawing,
)
from edictum.approval._waiters import Look, PushingStore, Waiters
from edictum.approval.approvers import read_person
from edictum.approval.grants import GrantTerms, mark_args
from edictum.approval.port import (
    ApprovalDecision,
    ApprovalRequest,
    ApprovalStatus,
    RequestOptions,
)
from edictum.core.call import Principal
from edictum.core.freeze import EMPTY, thaw
from edictum.core.parking import NOT_AGAIN
from edictum.core.redaction import RedactionPolicy
from edictum.core.values import dumps, is_same
from edictum.errors import BackendError, EdictumInputError
from edictum.sessions._batching import DEFAULT_WAIT_S, MAX_BATCH, Operation, SenderPool, Store

_REDACTION = RedactionPolicy()
ASKER_LEASE_S = 30.0
LOOK_AGAIN_S = 1.0  # at a yes that another call has claimed
ASK_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class GivenAnswer:
    """A yes to a request: whose, when, with which arguments, and for which further calls."""

    approver: str
    at: datetime
    reason: str | None = None
    args: Mapping[str, Any] | None = None
    grant: GrantTerms | None = None


@dataclass(frozen=True, slots=True)
class QueuedApproval:
    """A request as it stands in a queue. Arguments, message and principal have no secrets.

    ``askers`` are the contracts and limits that ask, ``approvers`` say who may answer, for each
    asker that says so. ``answers`` are the yeses so far:
    it is approved once enough persons have said the same. ``changed_args`` are the arguments with
    which it was approved in place of its own, ``grant_id`` the grant that answered it.
    ``precedent`` are the arguments with which a person has approved the last call of this tool for
    the same contract and principal, None without one. ``context`` helps to decide: ``asked_by``,
    ``side_effect``, and where they are known ``prompt``, ``last_calls`` and ``preview``.
    """

    approval_id: str
    status: ApprovalStatus
    tool_name: str
    tool_args: Mapping[str, Any]
    message: str
    session_id: str | None
    call_id: str | None
    principal: Mapping[str, Any] | None
    contract: str | None
    digest: str
    timeout_effect: Literal["deny", "allow"]
    asked_at: datetime
    expires_at: datetime
    answered_at: datetime | None
    approver: str | None
    reason: str | None
    approvers: tuple[Mapping[str, Any], ...] = ()
    answers: tuple[GivenAnswer, ...] = ()
    changed_args: Mapping[str, Any] | None = None
    grant_id: str | None = None
    precedent: Mapping[str, Any] | None = None
    context: Mapping[str, Any] = EMPTY
    askers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ApprovalGrant:
    """A yes that counts for further calls. ``session_id`` is None where it counts in all sessions
    of its principal; ``askers`` are the contracts and limits whose question it answers.

    ``args`` are the patterns of arguments that may differ, ``other_args`` whether all others must
    be those of the approved call.
    """

    grant_id: str
    status: GrantStatus
    tool_name: str
    session_id: str | None
    principal: Mapping[str, Any] | None
    askers: tuple[str, ...]
    args: Mapping[str, Any]
    other_args: Literal["same", "any"]
    approver: str
    reason: str | None
    approval_id: str
    granted_at: datetime
    until: datetime
    revoked_by: str | None = None


class Notifier(Protocol):
    """Notifies people that a request waits. A request whose call was made again after a crash is
    sent again, with the same id. May have ``async close()``.
    """

    def notify(self, request: QueuedApproval) -> None:
        """Send a notification of a request, and return at once, because a call waits meanwhile."""
        ...


class ApprovalQueue:
    """An approval backend on a store, and the other side of it: what is asked, and answers.

    A guard asks and waits. ``pending``, ``get``, ``answer``, ``revoke``, ``grants`` and
    ``revoke_grant`` are for the person's side, in this or any other process. The caller of
    ``answer`` must have verified the approver.
    """

    verifies_approvers = True

    def __init__(
        self,
        store: Store,
        *,
        lease_s: float = ASKER_LEASE_S,
        wait_s: float = DEFAULT_WAIT_S,
        notify: Sequence[Notifier] = (),
    ) -> None:
        self.name = store.name
        self._lease_s = lease_s
        self._pool = SenderPool(store, wait_s, MAX_BATCH, "approval store")
        listen = store.listen if isinstance(store, PushingStore) and store.can_push else None
        self._waiters = Waiters(_make_look(self._pool, lease_s), listen, lease_s / 3)
        self._holders: dict[str, str] = {}  # by approval id, for as long as it is waited for
        self._claims: dict[str, str] = {}  # taken, not used
        self._used: dict[str, str] = {}
        self._grants: dict[str, str] = {}  # the grant by which a yes was taken
        self._notifiers = notify
        self._finalizer = weakref.finalize(self, self._pool.stop)

    def _send(self, step: QueueStep) -> Awaitable[Any]:
        return Operation(self._pool, "approval", step)

    # --- The side of the call ---------------------------------------------------------------------

    async def request_approval(
        self,
        tool_name: str,
        tool_args: Mapping[str, Any],
        message: str,
        *,
        raw_args: Mapping[str, Any] | None = None,
        **options: Unpack[RequestOptions],
    ) -> ApprovalRequest:
        """Ask, or find the question again that the same call has asked before a crash.

        ``raw_args`` are the arguments with their secrets: grants are matched with them, and they
        are not stored.
        """
        metadata = options.get("metadata") or EMPTY
        args = tool_args if raw_args is None else raw_args
        made = RequestRow(
            row_id=str(uuid4()),
            session_id=options.get("session_id"),
            call_id=metadata.get("call_id"),
            digest=metadata.get("digest", ""),
            tool_name=tool_name,
            tool_args=tool_args,
            message=message,
            timeout=options.get("timeout", ASK_TIMEOUT_S),
            timeout_effect=options.get("timeout_effect", "deny"),
            principal=options.get("principal"),
            contract=metadata.get("contract"),
            call_digest=metadata.get("call_digest", ""),
            holder=str(uuid4()),
            askers=metadata.get("askers", ()),
            approvers=metadata.get("approvers", ()),
            requester=metadata.get("requester", ()),
            bindings=metadata.get("bindings"),
            marks=mark_args(args),
            context=metadata.get("context"),
        )
        try:
            asked: RequestRow = await self._send(Asking(made, self._lease_s, args))
        except asyncio.CancelledError:
            self._take_back(made)
            raise
        self._holders[asked.row_id] = made.holder
        self._notify(asked)
        return ApprovalRequest(
            asked.row_id,
            tool_name,
            tool_args,
            asked.message,
            made.timeout,
            options.get("timeout_effect", "deny"),
            made.principal,
            metadata,
            _to_datetime(asked.asked_at),
            made.session_id,
            asked.digest,
            asked.grant_id,
            asked.parks,
        )

    def _take_back(self, made: RequestRow) -> None:
        """Withdraw a request that may be in the store although its caller does not know so."""
        with suppress(BackendError):
            self._pool.send(
                Operation(self._pool, "approval end", Withdrawing(made.row_id, made.holder))
            )

    def _notify(self, asked: RequestRow) -> None:
        """Call the notifiers; a failure changes nothing about the request."""
        if asked.status is not ApprovalStatus.PENDING:
            return
        for notifier in self._notifiers:
            try:
                notifier.notify(_to_public(asked))
            except Exception as exc:
                name, approval_id = type(notifier).__name__, asked.row_id
                log(
                    APPROVAL_NOT_NOTIFIED,
                    "%s was not told of the approval request %s: %s",
                    name,
                    approval_id,
                    exc,
                    exc_info=exc,
                    approval_id=approval_id,
                )

    async def wait_for_decision(
        self, approval_id: str, timeout: float | None = None
    ) -> ApprovalDecision:
        """Wait for the answer, and claim a yes for this call."""
        claim = str(uuid4())
        with self._waiters.join(approval_id) as waiter:
            try:
                async with asyncio.timeout(timeout):
                    row = await self._send_again(Taking(approval_id, claim, self._lease_s))
                    while _is_awaited(row, claim):
                        is_open = row.status is ApprovalStatus.PENDING
                        await waiter.wait(self._lease_s if is_open else LOOK_AGAIN_S)
                        waiter.forget_changes()
                        row = await self._send_again(Taking(approval_id, claim, self._lease_s))
            except TimeoutError:
                row = await self._send(Taking(approval_id, claim, self._lease_s, gives_up=True))
        return self._decide(approval_id, row, claim)

    async def _send_again(self, step: QueueStep) -> Any:
        """Ask the store once more; if it has gone away, wait for it."""
        while True:
            try:
                return await self._send(step)
            except BackendError:
                if self._pool.is_closed:
                    raise
                await asyncio.sleep(LOOK_AGAIN_S)

    def _decide(self, approval_id: str, row: RequestRow | None, claim: str) -> ApprovalDecision:
        if row is None:
            reason = "The request is not in the queue any more."
            return ApprovalDecision(False, status=ApprovalStatus.VOID, reason=reason)
        if row.status is ApprovalStatus.CLAIMED and row.claim == claim:
            self._claims[approval_id] = claim
            if row.grant_id is not None:
                self._grants[approval_id] = row.grant_id
            return _make_decision(row, ApprovalStatus.APPROVED)
        self._holders.pop(approval_id, None)
        if row.status in (ApprovalStatus.DENIED, ApprovalStatus.TIMEOUT, ApprovalStatus.WITHDRAWN):
            return _make_decision(row, row.status)
        if row.status is ApprovalStatus.CLAIMED:
            # by another call, for as long as this one could wait
            return _make_decision(row, ApprovalStatus.TIMEOUT)
        return replace(
            _make_decision(row, ApprovalStatus.VOID), reason=NOT_AGAIN.get(row.status, row.reason)
        )

    async def take(self, approval_id: str) -> ApprovalDecision | None:
        """Return the answer, and claim a yes for this call; None while there is none."""
        claim = str(uuid4())
        row = await self._send(Taking(approval_id, claim, self._lease_s))
        return None if _is_awaited(row, claim) else self._decide(approval_id, row, claim)

    async def park(self, approval_id: str) -> None:
        """Note that the asker has stopped waiting, and will ask again when its run continues."""
        self._holders.pop(approval_id, None)
        await self._send(Parking(approval_id))

    async def find(self, session_id: str, call_id: str, call_digest: str) -> QueuedApproval | None:
        """Return the last request about a call, whatever the policy was; None if there is none, or
        it ended without an answer.
        """
        row = await self._send(Recalling(session_id, call_id, call_digest))
        return None if row is None else _to_public(row)

    async def use(self, approval_id: str) -> bool:
        """Record that the tool starts. Returns False if the yes was revoked, or belongs to another
        call.
        """
        claim = self._claims.pop(approval_id, None)
        if claim is None:
            return False
        self._used[approval_id] = claim
        grant_id = self._grants.pop(approval_id, None)
        return bool(await self._send(Using(approval_id, claim, grant_id)))

    async def end(self, approval_id: str, started: bool) -> None:
        """Record that the tool has ended, or release a yes whose tool was not started."""
        self._holders.pop(approval_id, None)
        self._grants.pop(approval_id, None)
        claim = self._claims.pop(approval_id, None) or self._used.pop(approval_id, None)
        if claim is not None:
            op = Operation(self._pool, "approval end", Ending(approval_id, claim, started))
            self._pool.send(op)
            await op

    async def withdraw(self, approval_id: str) -> None:
        """Withdraw a request that is no longer awaited."""
        self._claims.pop(approval_id, None)
        self._grants.pop(approval_id, None)
        holder = self._holders.pop(approval_id, None)
        if holder is not None:
            await self._send(Withdrawing(approval_id, holder))

    # --- The side of the person -------------------------------------------------------------------

    async def get(self, approval_id: str) -> QueuedApproval | None:
        """Return a request, whatever became of it; None if it is unknown or was deleted."""
        row = await self._send(Looking(approval_id))
        return None if row is None else _to_public(row)

    async def pending(
        self,
        *,
        session_id: str | None = None,
        tool_name: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[QueuedApproval]:
        """Return requests that wait for an answer, the oldest first.

        ``after`` is the id of the last one of the page before.
        """
        wanted = (ApprovalStatus.PENDING, session_id, tool_name, limit, after)
        rows = await self._list(RequestRow.kind, *wanted)
        return [_to_public(row) for row in rows]

    async def _list(self, kind: RowKind, *wanted: Any) -> Any:
        step = Listing(kind, *wanted)
        limit = step.limit
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise EdictumInputError(f"limit is {limit!r:.80}.", hint="Use 1 or more.")
        return await Operation(self._pool, "approval", step)

    async def wait_for_answers(
        self, approval_ids: Iterable[str], timeout: float | None = None
    ) -> list[str]:
        """Return those of the ids for which a run that has paused can go on, as soon as there is
        one: the request was answered, has expired, was withdrawn or is not known any more.

        Nothing is claimed. Returns an empty list when the time, in seconds, is over. Raises
        BackendError when the store cannot be asked; one that goes away later is waited for.
        """
        watching = [asyncio.ensure_future(self._watch(it)) for it in dict.fromkeys(approval_ids)]
        if not watching:
            hint = "Pass the ids of open requests, such as parked.approval_ids."
            raise EdictumInputError("wait_for_answers needs the id of a request.", hint=hint)
        try:
            ended, _ = await asyncio.wait(
                watching, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
            )
            return [it.result() for it in watching if it in ended]
        finally:
            for it in watching:
                it.cancel()
            await asyncio.gather(*watching, return_exceptions=True)

    async def _watch(self, approval_id: str) -> str:
        """Return the id once the request cannot be answered any more."""
        with self._waiters.join(approval_id, holds=False) as waiter:
            left_s = await self._send(Measuring(approval_id))
            while left_s:
                await waiter.wait(min(left_s, self._lease_s))
                waiter.forget_changes()
                left_s = await self._send_again(Measuring(approval_id))
            return approval_id

    async def answer(
        self,
        approval_id: str,
        approved: bool,
        *,
        approver: str | Principal,
        reason: str | None = None,
        args: Mapping[str, Any] | None = None,
        grant: GrantTerms | None = None,
        nonce: str | None = None,
    ) -> QueuedApproval:
        """Say yes or no to a pending request. Where one yes is enough, the first answer counts.

        ``args``: approve the call with these arguments in place of its own; those that are given as
        the request shows them stay what they are in the call. ``grant``: let the yes count for
        further calls. ``nonce``: refuse a second answer with the same one. Raises EdictumInputError
        when the request is unknown or is not pending any more, when the approver may not answer it,
        and for arguments or a grant that cannot be.
        """
        person = read_person(approver)
        if not isinstance(approved, bool):
            raise EdictumInputError(
                f"answer: approved is a bool, not {approved!r:.80}.",
                hint='Use answer(approval_id, True, approver="ann").',
            )
        _check_yes(approved, args, grant)
        step = Answering(
            approval_id,
            str(uuid4()),
            approved,
            person,
            _hide_secrets(reason),
            None if args is None else _read_changed_args(args),
            None if grant is None else json.loads(dumps(grant.as_dict())),
            nonce,
        )
        row = await self._change(step)
        if row.status is ApprovalStatus.APPROVED:
            with suppress(BackendError):  # the answer counts without it
                await self._send(Remembering(replace(row, changed_args=_hide(row.changed_args))))
        return _to_public(row)

    async def answer_many(
        self,
        approval_ids: Iterable[str],
        approved: bool,
        *,
        approver: str | Principal,
        reason: str | None = None,
    ) -> dict[str, QueuedApproval | EdictumInputError]:
        """Say yes or no to several requests. Returns the result for each id: the request, or why
        the answer does not count. One that fails does not stop the others.
        """
        results: dict[str, QueuedApproval | EdictumInputError] = {}
        for approval_id in dict.fromkeys(approval_ids):
            try:
                results[approval_id] = await self.answer(
                    approval_id, approved, approver=approver, reason=reason
                )
            except EdictumInputError as exc:
                results[approval_id] = exc
        return results

    async def revoke(
        self, approval_id: str, *, approver: str | Principal, reason: str | None = None
    ) -> QueuedApproval:
        """Revoke a yes whose tool was not started yet.

        Raises EdictumInputError when there is none.
        """
        name = read_person(approver).name
        return _to_public(await self._change(Revoking(approval_id, name, _hide_secrets(reason))))

    async def grants(
        self,
        *,
        session_id: str | None = None,
        tool_name: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[ApprovalGrant]:
        """Return the grants in force, the oldest first; a filter by session leaves out those that
        count in all sessions of a principal.
        """
        wanted = (GrantStatus.ACTIVE, session_id, tool_name, limit, after)
        rows = await self._list(GrantRow.kind, *wanted)
        return [_to_public_grant(row) for row in rows]

    async def revoke_grant(self, grant_id: str, *, approver: str | Principal) -> ApprovalGrant:
        """Revoke a grant: no further call starts with it.

        Raises EdictumInputError when there is none of that id.
        """
        name = read_person(approver).name
        row = await self._send(RevokingGrant(grant_id, name))
        if row is None:
            hint = "It is in another store, or was forgotten."
            raise EdictumInputError(f"No grant {grant_id!r:.80}.", hint=hint)
        return _to_public_grant(row)

    async def _change(self, step: Answering | Revoking) -> RequestRow:
        answer, approval_id = await self._send(step), step.approval_id
        if answer is None:
            hint = "It is in another store, or was forgotten."
            raise EdictumInputError(f"No approval request {approval_id!r:.80}.", hint=hint)
        if isinstance(answer, Rejection):
            raise EdictumInputError(f"Approval request {approval_id!r:.80}: {answer.reason}")
        self._waiters.wake([approval_id])
        row: RequestRow = answer
        return row

    # --- The store --------------------------------------------------------------------------------

    async def check(self) -> None:
        """Raise the reason if the store cannot be used."""
        await Operation(self._pool, "ping", None)

    async def close(self) -> None:
        """Disconnect, once the notifiers are done."""
        await asyncio.gather(*(it.close() for it in self._notifiers if hasattr(it, "close")))
        await self._pool.leave()
        await asyncio.get_running_loop().run_in_executor(None, self._finalizer)


def _make_look(pool: SenderPool, lease_s: float) -> Look:
    async def look(since: int, renewed: list[str]) -> tuple[int, list[str]]:
        op = Operation(pool, "approval", Polling(since, renewed, lease_s))
        if pool.why_open is None:  # else it is refused below
            pool.send_from_thread(op)
        found: tuple[int, list[str]] = await op
        return found

    return look


def _is_awaited(row: RequestRow | None, claim: str) -> bool:
    """Return whether there is still something to wait for: an answer, or the end of another call's
    claim.
    """
    if row is None:
        return False
    return row.status is ApprovalStatus.PENDING or (
        row.status is ApprovalStatus.CLAIMED and row.claim != claim
    )


def _make_decision(row: RequestRow, status: ApprovalStatus) -> ApprovalDecision:
    approved = status is ApprovalStatus.APPROVED
    at = datetime.now(UTC) if row.answered_at is None else _to_datetime(row.answered_at)
    args = row.changed_args if approved else None
    reason = row.reason
    if approved and any(it["key"] == row.answer_key and it["grant"] for it in row.answers):
        reason = f"{reason or ''} It gives the grant {row.answer_key} for further calls.".strip()
    return ApprovalDecision(approved, row.approver, reason, status, at, row.digest, args)


def _check_yes(approved: bool, args: Any, grant: Any) -> None:
    """Refuse arguments and grants that cannot come with an answer."""
    if not approved and (args is not None or grant is not None):
        raise EdictumInputError(
            "answer: args and grant need approved=True.", hint="Leave them out."
        )
    if args is not None and grant is not None:
        hint = "Approve the changed call once; grant further calls with an answer to one of them."
        raise EdictumInputError("answer: args and grant cannot be combined.", hint=hint)
    if args is not None and not _has_text_names(args):
        hint = "Use a dict: the arguments as the request shows them, with your changes."
        raise EdictumInputError("answer: args is not a mapping of names to values.", hint=hint)
    if grant is not None and not isinstance(grant, GrantTerms):
        hint = 'Use GrantTerms(scope="session").'
        raise EdictumInputError(f"answer: grant is {type(grant).__name__}.", hint=hint)


def _has_text_names(args: Any) -> bool:
    return isinstance(args, Mapping) and all(isinstance(name, str) for name in args)


def _to_datetime(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _to_public(row: RequestRow) -> QueuedApproval:
    answered = None if row.answered_at is None else _to_datetime(row.answered_at)
    return QueuedApproval(
        row.row_id,
        row.status,
        row.tool_name,
        row.tool_args,
        row.message,
        row.session_id,
        row.call_id,
        row.principal,
        row.contract,
        row.digest,
        "allow" if row.timeout_effect == "allow" else "deny",
        _to_datetime(row.asked_at),
        _to_datetime(row.expires_at),
        answered,
        row.approver,
        row.reason,
        tuple(row.approvers),
        tuple(_to_given_answer(it) for it in row.answers),
        _hide(row.changed_args),
        row.grant_id,
        row.precedent,
        row.context or EMPTY,
        tuple(row.askers),
    )


def _hide(args: Mapping[str, Any] | None) -> Any:
    """Return the arguments that a person wrote, without secrets, for display. The call gets them
    unredacted.
    """
    return None if args is None else _REDACTION.redact_value(args)


def _hide_secrets(text: str | None) -> str | None:
    return None if text is None else _REDACTION.redact_text(text)


def _read_changed_args(args: Mapping[str, Any]) -> Any:
    """Return arguments as the store keeps them; raise for values that JSON would change."""
    plain = thaw(args)
    try:
        read = json.loads(json.dumps(plain, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as exc:
        problem = f"answer: args cannot be written as JSON: {exc}."
        raise EdictumInputError(problem, hint="Use texts, numbers, lists and dicts.") from exc
    if not is_same(read, plain):
        problem = "answer: args are not what JSON makes of them, such as a key that is a number."
        raise EdictumInputError(problem, hint="Use texts, numbers, lists and dicts.")
    return read


def _to_given_answer(answer: Mapping[str, Any]) -> GivenAnswer:
    return GivenAnswer(
        answer["approver"],
        _to_datetime(answer["at"]),
        answer["reason"],
        _hide(answer["args"]),
        None if answer["grant"] is None else GrantTerms.from_dict(answer["grant"]),
    )


def _to_public_grant(row: GrantRow) -> ApprovalGrant:
    return ApprovalGrant(
        row.row_id,
        row.status,
        row.tool_name,
        row.session_id,
        row.principal,
        tuple(row.askers),
        row.patterns,
        "any" if row.marks is None else "same",
        row.approver,
        row.reason,
        row.approval_id,
        _to_datetime(row.asked_at),
        _to_datetime(row.expires_at),
        row.revoked_by,
    )
