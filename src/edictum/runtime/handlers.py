"""Effect handlers: from effect to port, one handler per effect.

A handler returns the answer or an awaitable of it; an exception becomes ``Failed``. What a failing
port means for a call is decided by the lifecycle, and written down in ``PORT_FAILURES``, from which
the documentation is generated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from functools import partial
from inspect import isawaitable
from time import perf_counter
from typing import Any

from edictum._audit_event import AuditAction, AuditEvent
from edictum._logs import CALL_NOT_JUDGED, LEDGER_LATE, POLICY_ERROR, log
from edictum.approval.parking import can_park, take_or_park
from edictum.approval.port import make_unverified_error, takes_raw_args, verifies_approvers
from edictum.audit._ports import PORTS, SinkPort
from edictum.audit.sinks import WRITTEN, Written
from edictum.core.call import ToolCall
from edictum.core.decide import describe
from edictum.core.decision import USER_ERRORS, Failed
from edictum.core.effects import (
    Ask,
    Await,
    AwaitDecision,
    AwaitDuplicate,
    CallUserCode,
    Delay,
    Effect,
    EndApproval,
    FindQuestion,
    NoApprovalBackend,
    Notify,
    Pause,
    Renew,
    StoreArtifact,
    UseApproval,
    Withdraw,
)
from edictum.core.events import Entry
from edictum.core.limits import Grant, Reservation, Settlement, release_of
from edictum.errors import BackendError
from edictum.execution.captured import close
from edictum.execution.waiting import call_until, wait_done
from edictum.outcomes import PARTS as PARTS_OF_GATE
from edictum.runtime.figures import Figures
from edictum.runtime.renewal import renewals_for
from edictum.runtime.wiring import Wiring
from edictum.sessions.ledger import Ledger

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
        "The call is denied (`policy_error`). A missing backend, no answer, and one more than five"
        " seconds late count as no."
    ),
    "principal resolver": "The call is denied (`policy_error`).",
    "contract, hook or selector": (
        "The call is denied (`policy_error`); in observe mode the denial is only reported."
    ),
    "amounts of a call": (
        "The call is denied (`policy_error`); in observe mode, or where all limits that read them"
        " observe, it is only reported."
    ),
    "success check": "The call counts as failed (`policy_error`); the result stays in the audit.",
    "postcondition": "It counts as an objection: warn warns, redact and deny suppress the output.",
    "artifact store": (
        "The output is shown in line, cut in the middle; the outcome's notes say why."
    ),
    "callback (`on_allow`, `on_deny`, after-hook)": "Logged; nothing else changes.",
    "telemetry": "Ignored.",
}

# Sources of a denial that are no rule about calls: something failed.
GATE_SOURCES = frozenset({*(part.partition(":")[0] for part in PARTS_OF_GATE), "host"})

Handler = Callable[[Any], Any]


class EffectHandlers:
    """The handlers for one wiring.

    ``by_kind`` performs an effect. ``in_turn`` replaces the handlers that call user code directly:
    in a turn it runs in a thread, with a timeout, so that it can be abandoned.
    """

    __slots__ = (
        "_approval",
        "_joined",
        "_local",
        "_now",
        "_shows_secrets",
        "_sinks",
        "by_kind",
        "figures",
        "in_turn",
        "renewals",
        "wiring",
    )

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self.figures = wiring.figures
        self._now = wiring.clock.now
        self._local = wiring.local_sink
        self._sinks = [PORTS.find(sink) for sink in wiring.sinks]
        self._approval = wiring.approval_backend
        self._shows_secrets = takes_raw_args(wiring.approval_backend)
        ledger = wiring.ledger
        self._joined = next((it for it in self._sinks if it.join_ledger(ledger)), None)
        reserve, settle = ledger.reserve, ledger.settle
        if self._joined is not None:
            reserve, settle = partial(self._send_step, reserve), partial(self._send_step, settle)
        self.renewals = renewals_for(ledger)
        self.by_kind: dict[type[Any], Handler] = {
            Reservation: reserve,
            Settlement: settle,
            Renew: lambda effect: ledger.renew(effect.session_id, effect.call_id, effect.lease_s),
            Entry: self._record_and_count if self._sinks else _local_recorder(wiring),
            Await: lambda effect: effect.awaitable,
            CallUserCode: lambda effect: call_until(effect.function, effect.args, None),
            AwaitDuplicate: lambda effect: _outcome_of(effect.outcome, effect.timeout_s),
            Delay: lambda effect: asyncio.sleep(effect.seconds),
            StoreArtifact: _store_artifact,
            Ask: self._ask,
            AwaitDecision: self._await_decision,
            FindQuestion: self._find_question,
            Withdraw: self._withdraw,
            UseApproval: self._use_approval,
            EndApproval: self._end_approval,
            Notify: lambda effect: effect.callback(*effect.args),
        }
        self.in_turn: dict[type[Any], Callable[[Any, float], Awaitable[Any]]] = {
            CallUserCode: lambda effect, timeout_s: call_until(
                effect.function, effect.args, timeout_s
            ),
            Notify: lambda effect, timeout_s: call_until(effect.callback, effect.args, timeout_s),
        }

    @property
    def records_at_once(self) -> bool:
        """Whether an event is recorded by the time that its handler returns: no sink must be
        awaited.
        """
        return all(sink.writes_at_once for sink in self._sinks)

    def _send_step(self, send: Callable[..., Any], step: Reservation | Settlement) -> Any:
        """Send the ledger a step together with its events: it commits them in one transaction."""
        assert self._joined is not None
        try:
            for entry in step.events:
                entry.at = self._now()
            rows = [self._joined.prepare(entry) for entry in step.events]
        except USER_ERRORS:  # the call must be counted; recording says what is wrong
            return send(step)
        for entry in step.events:
            entry.is_sent = True
        return send(step, rows)

    def _record_and_count(self, entry: Entry) -> Awaitable[None] | None:
        started, figures = perf_counter(), self.figures
        try:
            emitted = self._record(entry)
        finally:
            figures.count_entry(entry)
        if emitted is None:  # else the driver waits for it
            figures.audit.add(perf_counter() - started)
        return emitted

    def _record(self, entry: Entry) -> Awaitable[None] | None:
        if not entry.is_sent:
            entry.at = self._now()
        self._local.take(entry)
        if entry.policy_error:
            _log_policy_error(entry, self.wiring.ledger)
        return self._emit(entry, self._joined if entry.is_sent else None)

    def record_event(self, event: AuditEvent) -> Awaitable[None] | None:
        """Record an event that is not that of a call."""
        self._local.take(event)
        return self._emit(event)

    def _emit(
        self, entry: Entry | AuditEvent, sent: SinkPort | None = None
    ) -> Awaitable[None] | None:
        """Try every sink, then raise the failures together, except those of sinks that are not
        required.

        ``sent`` is the sink to which the ledger has written the event already, if the ledger
        answered.
        """
        failures: list[tuple[SinkPort, BaseException]] = []
        waiting: deque[tuple[SinkPort, Awaitable[None]]] = deque()
        for sink in self._sinks:
            try:
                emitted = _confirm_write(entry) if sink is sent else sink.emit(entry)
            except USER_ERRORS as exc:
                failures.append((sink, exc))
            else:
                if emitted is not WRITTEN and emitted is not None and isawaitable(emitted):
                    waiting.append((sink, emitted))
                elif sink.failures and not sink.drops:  # else it is not known yet
                    sink.note_success()
        if waiting:
            return _Emission(failures, waiting, self.figures)
        if failures:
            _raise_required_failures(failures, self.figures)
        return None

    def _ask(self, effect: Ask) -> Any:
        if self._approval is None:
            raise NoApprovalBackend
        call, decision = effect.call, effect.decision
        if decision.approvers and not verifies_approvers(self._approval):
            raise make_unverified_error(self._approval)
        asked = {
            **effect.shown,
            "tool_name": call.tool_name,
            "timeout": decision.timeout,
            "timeout_effect": decision.timeout_effect,
            "metadata": effect.metadata,
            "session_id": call.run_id,
        }
        if self._shows_secrets:
            asked["raw_args"] = call.effective_args
        effect.metadata["context"]["last_calls"] = self._local.list_last_calls(call.run_id)
        ask = partial(_pass_signals, self._approval.request_approval, effect.control_flow, asked)
        return ask() if effect.preview is None else self._preview_then(ask, effect)

    async def _preview_then(self, ask: Callable[[], Any], effect: Ask) -> Any:
        """Find out what the call would change, then ask. If the preview fails, the person is told
        why.

        A question that is asked again has its preview already.
        """
        assert effect.preview is not None
        if not await self._is_known(effect):
            try:
                preview = await effect.preview(effect.call)
            except Exception as exc:
                preview = {"problem": describe(exc)}
            effect.metadata["context"]["preview"] = preview
        answer = ask()
        return await answer if isawaitable(answer) else answer

    async def _is_known(self, effect: Ask) -> bool:
        """Return whether this question was asked before and is still in the backend."""
        found = self._find_question(FindQuestion(effect.call, effect.metadata["call_digest"]))
        try:
            known = await found if isawaitable(found) else found
        except Exception:  # asking will tell why
            return False
        return bool(getattr(known, "digest", None) == effect.metadata["digest"])

    def _await_decision(self, effect: AwaitDecision) -> Any:
        assert self._approval is not None
        if effect.park is not None and can_park(self._approval):
            asked = {"backend": self._approval, "request": effect.request}
            asked |= {"park": effect.park, "timeout": effect.timeout}
            return _pass_signals(take_or_park, effect.control_flow, asked)
        asked = {"approval_id": effect.request.approval_id, "timeout": effect.timeout}
        return _pass_signals(self._approval.wait_for_decision, effect.control_flow, asked)

    def _find_question(self, effect: FindQuestion) -> Any:
        call, backend = effect.call, self._approval
        find = getattr(backend, "find", None) if can_park(backend) else None
        return find and find(call.run_id, call.call_id, effect.call_digest)

    def _withdraw(self, effect: Withdraw) -> Any:
        withdraw = getattr(self._approval, "withdraw", None)
        return withdraw(effect.request.approval_id) if withdraw is not None else None

    def _use_approval(self, effect: UseApproval) -> Any:
        use = getattr(self._approval, "use", None)
        return use(effect.request.approval_id) if use is not None else True

    def _end_approval(self, effect: EndApproval) -> Any:
        end = getattr(self._approval, "end", None)
        return end(effect.request.approval_id, effect.started) if end is not None else None

    def take_late_answer(self, sent: Effect, result: Any) -> Any:
        """Handle an answer that came after its caller had stopped waiting.

        A failure is logged. A slot that was granted is given back: then the awaitable of that
        settlement is returned.
        """
        if type(result) is Failed:
            what, why = type(sent).__name__, describe(result.error)
            log(LEDGER_LATE, "%s was not answered in time, and then failed: %s", what, why)
        elif type(sent) is Reservation and sent.hold and type(result) is Grant and result.granted:
            return self.wiring.ledger.settle(release_of(sent))
        return None


def _pass_signals(
    method: Callable[..., Any], signals: tuple[type[BaseException], ...], asked: dict[str, Any]
) -> Any:
    """Call an approval backend; if it raises one of the framework's own exceptions, raise Pause."""
    return _ask_pausing(method, signals, asked) if signals else method(**asked)


async def _ask_pausing(
    method: Callable[..., Any], signals: tuple[type[BaseException], ...], asked: dict[str, Any]
) -> Any:
    try:
        answer = method(**asked)
        return await answer if isawaitable(answer) else answer
    except signals as signal:
        raise Pause(signal) from signal


async def _outcome_of(running: Future[Any], timeout_s: float) -> Any:
    """Return how a call in another task or thread ended; None if it has not ended in time."""
    return running.result() if await wait_done(running, max(0.0, timeout_s)) else None


def _store_artifact(effect: StoreArtifact) -> Awaitable[Any]:
    """Store in a thread: stores write to disks and networks."""
    args = (effect.session_id, effect.content, effect.tool_name)
    return call_until(effect.store.store, args, None)


def _local_recorder(wiring: Wiring) -> Handler:
    """Return the handler for a guard with the in-memory sink alone. Every call passes it twice, so
    it is kept flat.
    """
    now, take, count = wiring.clock.now, wiring.local_sink.take, wiring.figures.count_entry

    def record(entry: Entry) -> None:
        try:
            entry.at = now()
            take(entry)
        finally:
            count(entry)
        if entry.policy_error:
            _log_policy_error(entry, wiring.ledger)

    return record


def _is_value_not_judged(entry: Entry) -> bool:
    """Return whether a value of the call could not be judged, and nothing of the policy or the gate
    failed.
    """
    if entry.action not in (AuditAction.CALL_DENIED, AuditAction.CALL_WOULD_DENY):
        return False
    said, decision = entry.about or entry.decision, entry.decision
    if said.for_operators or said.source in GATE_SOURCES:
        return False
    return entry.about is not None or not (
        any(answer.verdict.for_operators for answer in decision.exceptions)
        or any(hook.policy_error for hook in decision.hooks)
    )


def _log_policy_error(entry: Entry, ledger: Ledger) -> None:
    """Log that a contract or a part of the gate failed: until it is fixed, calls are denied or
    counted as failed because of it. A value that could not be judged is only a warning.
    """
    event = entry.event()
    reason, source = event.reason or event.success_reason, event.decision_source
    # that of a postcondition was said by its warning, that of the audit when its sink began to fail
    if reason is None or source == "audit":
        return
    if source == "ledger" and getattr(ledger, "why_unavailable", None) is not None:
        return  # said when the store began to fail
    names = dict.fromkeys((source or event.success_source, event.decision_name))
    decided_by = " ".join(filter(None, names))
    text = "%s: %s of the tool %r (call %s): %s: %s"
    said = (event.action, event.tool_name, event.call_id, decided_by, reason)
    if _is_value_not_judged(entry):
        log(CALL_NOT_JUDGED, text, "not judged", *said, **name_call(entry.call))
    else:
        log(POLICY_ERROR, text, "policy error", *said, **name_call(entry.call))


def name_call(call: ToolCall) -> dict[str, Any]:
    """Return the fields by which a log record names a call."""
    return {"tool": call.tool_name, "call_id": call.call_id, "session_id": call.run_id}


class _Emission:
    """An event on its way to sinks that are awaited. A sink that fails does not stop the others."""

    __slots__ = ("failures", "figures", "waiting")

    def __init__(
        self,
        failures: list[tuple[SinkPort, BaseException]],
        waiting: deque[tuple[SinkPort, Awaitable[None]]],
        figures: Figures,
    ) -> None:
        self.failures, self.waiting, self.figures = failures, waiting, figures

    def __await__(self) -> Generator[Any, Any, None]:
        return self._await_all().__await__()

    async def _await_all(self) -> None:
        try:
            while self.waiting:
                sink, emitted = self.waiting.popleft()
                try:
                    await emitted
                except (*USER_ERRORS, asyncio.CancelledError) as exc:
                    self.failures.append((sink, exc))
                else:
                    if sink.failures:
                        sink.note_success()
        finally:
            self.close()
        _raise_required_failures(self.failures, self.figures)

    def close(self) -> None:
        while self.waiting:
            close(self.waiting.popleft()[1])


def _confirm_write(entry: Entry | AuditEvent) -> Written:
    """Return if the event was written with the step of a ledger; raise if that step was not
    answered.
    """
    if isinstance(entry, Entry) and entry.is_counted:
        return WRITTEN
    raise BackendError(
        "The event was not written: the session store did not confirm the step it belongs to."
    )


def _raise_required_failures(
    failures: list[tuple[SinkPort, BaseException]], figures: Figures
) -> None:
    for sink, exc in failures:
        figures.count_audit_failure()
        sink.note_failure(exc)
    required = [(sink, exc) for sink, exc in failures if sink.is_required]
    if required:
        text = "; ".join(f"{sink.name}: {describe(exc)}" for sink, exc in required)
        raise BackendError(text) from required[0][1]
