"""From effect to port: one handler per effect.

A handler returns the answer or an awaitable of it; an exception becomes ``Failed``. What a failing
port means for a call is decided by the lifecycle, and written down in one table, which the
documentation prints.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from edictum.core.decide import describe
from edictum.core.decision import USER_ERRORS
from edictum.core.effects import (
    Ask,
    Await,
    AwaitDecision,
    AwaitDuplicate,
    CallUserCode,
    Delay,
    NoApprovalBackend,
    Notify,
    Renew,
    Rewritten,
    StoreArtifact,
    Withdraw,
    Within,
)
from edictum.core.events import Entry
from edictum.core.limits import Grant, Reservation, Settlement
from edictum.errors import BackendError
from edictum.execution.body import needs_await
from edictum.runtime.bounded import Around, close, consulted, seen_through, within
from edictum.runtime.renewal import renewals_for
from edictum.runtime.wiring import Wiring

logger = logging.getLogger("edictum")

PORT_FAILURES: dict[str, str] = {
    "ledger, before the tool": "The call is denied (`policy_error`); the tool does not run.",
    "ledger, after the tool": (
        "The result is kept; the outcome's notes and the closing event say that the call could not"
        " be counted."
    ),
    "audit, before the tool": (
        "The call is denied (`policy_error`), its slots are given back. A sink with `required ="
        " False` is skipped."
    ),
    "audit, after the tool": (
        "The result is kept; the outcome's notes and the log say that it could not be written."
    ),
    "approval backend": (
        "The call is denied (`policy_error`). No backend, no answer, and one five seconds too late"
        " mean no."
    ),
    "principal resolver": "The call is denied (`policy_error`).",
    "contract, hook or selector": (
        "The call is denied (`policy_error`); in observe mode the denial is only reported."
    ),
    "success check": "The call counts as failed (`policy_error`); the result stays in the audit.",
    "postcondition": "It counts as an objection: warn warns, redact and deny suppress the output.",
    "artifact store": (
        "The output is shown in line, cut in the middle; the outcome's notes say why."
    ),
    "callback (`on_allow`, `on_deny`, after-hook)": "Logged; nothing else changes.",
    "telemetry": "Ignored.",
}

Handler = Callable[[Any], Any]
# What has been sent is seen through, also when the turn does not wait for it any more: nobody could
# know how far it had come.
SEEN_THROUGH = frozenset({Reservation, Settlement, Entry})


class Ports:
    """The handlers for one wiring, and which of them may answer with an awaitable."""

    __slots__ = (
        "_approval",
        "_local",
        "_now",
        "_sinks",
        "handlers",
        "may_wait",
        "renewals",
        "wiring",
    )

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self._now = wiring.clock.now
        self._local = wiring.local_sink
        self._sinks = wiring.sinks
        self._approval = wiring.approval_backend
        ledger = wiring.ledger
        self.renewals = renewals_for(ledger)
        self.handlers: dict[type[Any], Handler] = {
            Reservation: ledger.reserve,
            Settlement: ledger.settle,
            Renew: lambda effect: ledger.renew(effect.session_id, effect.call_id, effect.lease_s),
            Entry: self._record if self._sinks else _local_recorder(wiring),
            Await: lambda effect: effect.awaitable,
            CallUserCode: lambda effect: consulted(effect.function, effect.args, None),
            Rewritten: lambda effect: effect.problem,
            Within: self._within,
            AwaitDuplicate: lambda effect: outcome_of(effect.outcome, effect.timeout_s),
            Delay: lambda effect: asyncio.sleep(effect.seconds),
            StoreArtifact: _store_artifact,
            Ask: self._ask,
            AwaitDecision: self._await_decision,
            Withdraw: self._withdraw,
            Notify: self._notify,
        }
        self.may_wait: frozenset[type[Any]] = frozenset(
            {
                Await,
                CallUserCode,
                NoApprovalBackend,
                Within,
                Ask,
                AwaitDecision,
                Withdraw,
                Notify,
                AwaitDuplicate,
                Delay,
                StoreArtifact,
            }
            | (
                {Reservation, Settlement, Renew}
                if iscoroutinefunction(ledger.reserve) or not _is_plain(ledger)
                else set()
            )
            | ({Entry} if self._sinks else set())
        )

    def _record(self, entry: Entry) -> Awaitable[None] | None:
        """Every sink is tried; what failed is raised together, unless the sink says that it is not
        required.
        """
        entry.at = self._now()
        self._local.take(entry)
        event = entry.event()
        sent = _Sent()
        for sink in self._sinks:
            try:
                emitted = sink.emit(event)
            except USER_ERRORS as exc:
                sent.failures.append((sink, exc))
            else:
                if isawaitable(emitted):
                    sent.waiting.append((sink, emitted))
        if sent.waiting:
            return sent
        _report(sent.failures)
        return None

    def _ask(self, effect: Ask) -> Any:
        if self._approval is None:
            raise NoApprovalBackend
        call, decision = effect.call, effect.decision
        return self._approval.request_approval(
            tool_name=call.tool_name,
            tool_args=call.args,
            message=decision.reason or "",
            timeout=decision.timeout,
            timeout_effect=decision.timeout_effect,
            principal=call.principal.as_dict() if call.principal else None,
            metadata={"digest": effect.digest, "contract": decision.name, "call_id": call.call_id},
            session_id=call.run_id,
        )

    def _await_decision(self, effect: AwaitDecision) -> Any:
        return self._approval.wait_for_decision(  # type: ignore[union-attr]
            approval_id=effect.request.approval_id, timeout=effect.timeout
        )

    def _withdraw(self, effect: Withdraw) -> Any:
        withdraw = getattr(self._approval, "withdraw", None)
        return withdraw(effect.request.approval_id) if withdraw is not None else None

    def _within(self, effect: Within) -> Any:
        """An effect that is not waited for longer than that."""
        wanted, timeout_s = effect.effect, effect.timeout_s
        kind = type(wanted)
        if kind is CallUserCode:
            return consulted(wanted.function, wanted.args, timeout_s)
        if kind is Notify:
            return Around(
                partial(_listen, what=wanted.what),
                consulted(wanted.callback, wanted.args, timeout_s),
            )
        value = self.handlers[kind](wanted)
        if kind not in self.may_wait or not needs_await(value):
            return value
        if kind not in SEEN_THROUGH:
            return Around(partial(within, timeout_s=timeout_s), value)
        return Around(
            partial(seen_through, timeout_s=timeout_s, later=partial(self._late, wanted)), value
        )

    def _late(
        self, sent: Reservation | Settlement | Entry, value: Any, error: BaseException | None
    ) -> Any:
        """What was sent has been answered when nobody waited for it any more: a slot that nobody
        will use is given back.
        """
        if error is not None:
            logger.error(
                "%s was not answered in time, and then failed: %s",
                type(sent).__name__,
                describe(error),
            )
        elif (
            isinstance(sent, Reservation)
            and sent.hold
            and isinstance(value, Grant)
            and value.granted
        ):
            return self.wiring.ledger.settle(
                Settlement(
                    sent.session_id,
                    sent.call_id,
                    sent.scopes,
                    sent.limits,
                    "release",
                    parents=sent.parents,
                )
            )
        return None

    def _notify(self, effect: Notify) -> Any:
        try:
            told = effect.callback(*effect.args)
        except USER_ERRORS:
            logger.exception("%s raised; the call goes on", effect.what)
            return None
        return Around(partial(_listen, what=effect.what), told) if isawaitable(told) else None


async def outcome_of(running: Future[Any], timeout_s: float) -> Any:
    """What a call elsewhere, perhaps in another thread, ended as; None when it has not ended in
    time.
    """
    waiting = asyncio.wrap_future(running)
    try:
        done, _ = await asyncio.wait({waiting}, timeout=max(0.0, timeout_s))
        return waiting.result() if done else None
    finally:
        waiting.cancel()  # lets go of this loop; the call itself is not cancelled


async def _store_artifact(effect: StoreArtifact) -> Any:
    """Stores write to disks and networks, so a thread does it."""
    return await consulted(
        effect.store.store, (effect.session_id, effect.content, effect.tool_name), None
    )


def _local_recorder(wiring: Wiring) -> Handler:
    """The handler when the in-memory sink is the only one: two calls per governed call, so it is
    kept flat.
    """
    now, take = wiring.clock.now, wiring.local_sink.take

    def record(entry: Entry) -> None:
        entry.at = now()
        take(entry)

    return record


def _is_plain(ledger: Any) -> bool:
    """Whether the ledger is known to answer at once."""
    return not any(
        iscoroutinefunction(getattr(ledger, verb)) for verb in ("reserve", "settle", "snapshot")
    )


async def _listen(told: Awaitable[Any], what: str) -> None:
    try:
        await told
    except USER_ERRORS:
        logger.exception("%s raised; the call goes on", what)


class _Sent:
    """An event on its way to sinks that write in their own time. Whatever becomes of one, the next
    gets it too.
    """

    __slots__ = ("failures", "waiting")

    def __init__(self) -> None:
        self.failures: list[tuple[Any, BaseException]] = []
        self.waiting: deque[tuple[Any, Awaitable[None]]] = deque()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._see_to_all().__await__()

    async def _see_to_all(self) -> None:
        try:
            while self.waiting:
                sink, emitted = self.waiting.popleft()
                try:
                    await emitted
                except (*USER_ERRORS, asyncio.CancelledError) as exc:
                    self.failures.append((sink, exc))
        finally:
            self.close()
        _report(self.failures)

    def close(self) -> None:
        while self.waiting:
            close(self.waiting.popleft()[1])


def _report(failures: list[tuple[Any, BaseException]]) -> None:
    for sink, exc in failures:
        logger.error("audit sink %s failed: %s", type(sink).__name__, describe(exc))
    required = [(sink, exc) for sink, exc in failures if getattr(sink, "required", True)]
    if required:
        named = "; ".join(f"{type(sink).__name__}: {describe(exc)}" for sink, exc in required)
        raise BackendError(named) from required[0][1]
