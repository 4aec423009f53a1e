"""The fast path: the usual call as plain functions, at half the cost of the lifecycle.

It takes calls whose ledger lives in this process and whose sinks write at once, for as long as
nothing unusual happens: contracts pass or deny at once, no limit is full, the tool returns or
raises without being awaited or stopped. Anything else is handed to the lifecycle at the point that
the call has reached.

Deleting this module changes only how long a call takes: the guard imports it if it exists.
"""

from __future__ import annotations

from typing import Any, Final

from edictum.core._records import record
from edictum.core.charges import NO_CHARGES
from edictum.core.config import FailureFlag, Flow, LifecycleConfig
from edictum.core.contract import Verdict
from edictum.core.decide import as_answer, decide_before
from edictum.core.decision import USER_ERRORS, Failed
from edictum.core.effects import Ran, RunTool
from edictum.core.events import (
    CALL_ALLOWED,
    CALL_DENIED,
    CALL_EXECUTED,
    CALL_FAILED,
    Closing,
    Entry,
)
from edictum.core.freeze import FlatDict, is_large
from edictum.core.lifecycle import lifecycle
from edictum.core.lifecycle.admission import (
    Admission,
    Admitting,
    RawAnswers,
    admit,
    with_estimate,
)
from edictum.core.lifecycle.conclusion import NOT_REVIEWED, NOT_WRITTEN, make_denied_outcome
from edictum.core.lifecycle.verdict import (
    closing_fields,
    failed_outcome,
    find_verdict,
    succeeded_outcome,
    with_note,
)
from edictum.core.limits import Counters
from edictum.core.policy import Plan
from edictum.execution.body import NOT_AWAITABLE, Running, start_inline
from edictum.outcomes import ToolOutcome
from edictum.runtime.drive import CallDriver, Suspended, suspend_or_end
from edictum.runtime.figures import EXECUTED, FAILED, Figures, ToolTally
from edictum.runtime.handlers import EffectHandlers
from edictum.sessions.memory import MemoryLedger, ReservationTemplate, reservation_template
from edictum.success import LAZY_TYPES, SUCCEEDED_BY_DEFAULT, default_problem, error_key

MEMO: Final = "fast path"
LONG_S: Final = (
    1.0  # a call that took longer is settled by ``settle``, which keeps its session alive
)


def make_fast_path(config: LifecycleConfig, handlers: EffectHandlers) -> FastPath | None:
    """Return the fast path of a guard, or None when its ports may have to be waited for."""
    ledger = handlers.wiring.ledger
    if type(ledger) is not MemoryLedger or ledger.default_lease_s is not None:
        return None
    if not handlers.records_at_once or config.on_allow is not None:
        return None
    return FastPath(config, handlers, ledger)


class FastPath:
    """Governs the usual calls of one guard."""

    def __init__(
        self, config: LifecycleConfig, handlers: EffectHandlers, ledger: MemoryLedger
    ) -> None:
        self._config, self._handlers, self._ledger = config, handlers, ledger
        self._resolves = config.principal_resolver is not None
        self._judges_by_default = config.success_check is None
        self._now = handlers.wiring.clock.now
        self._append = handlers.wiring.local_sink.append
        self._append_last = handlers.wiring.local_sink.take
        self._figures = handlers.figures
        self._record = handlers.by_kind[Entry] if handlers.wiring.sinks else None

    def govern(
        self, run: RunTool, plan: Plan, failure_flag: FailureFlag | None
    ) -> ToolOutcome | Suspended | None:
        """Govern a call as long as it needs no waiting. Returns None if nothing was done."""
        prepared = plan.memo.get(MEMO) or _prepare(plan, self._figures)
        if not prepared.is_usual or run.timeout_s is not None or run.run_in != "inline":
            return None
        if self._resolves and not run.identified:
            return None
        charges = stated = run.charges
        if charges is not NO_CHARGES and (charges.parents or charges.is_measured):
            return None
        call, driver, counted, started = run.call, None, (0, 0), False
        # what the fast path records is kept as it is
        if type(call.args) is not FlatDict and is_large(call.args):
            return None
        try:
            if charges is not NO_CHARGES:
                run = with_estimate(run)
                charges = run.charges
            answers = plan.ask_before(call)
            reserved = None
            if answers:
                refused = self._refuse(run, plan, prepared, answers)
                if refused is not None:
                    return refused
            elif not charges.problem:
                reserved = self._ledger.try_reserve(
                    call.run_id, run.key, prepared.template, charges.amounts
                )
            if reserved is None:
                admitting = admit(run, plan, self._config, None, answers, stated)
                driver = self._driver(run, plan, failure_flag, admitting)
                return suspend_or_end(driver, driver.advance())
            counted, context = reserved, self._config.context
            try:
                if self._record is None:
                    now = self._now()
                    attempts, executions = counted  # quicker than *counted in a tuple
                    self._append(
                        (now, context, CALL_ALLOWED, call, plan.passed, attempts, executions)
                    )
                    if not call.call_index & 63:  # SAMPLED
                        self._figures.add_sample(now - call.started_at)
                else:
                    counters = Counters(*counted)
                    self._record(Entry(context, CALL_ALLOWED, call, plan.passed, counters))
            except BaseException as exc:
                return self._refuse_unrecorded_call(run, plan, counted, exc)
            started = True
            # no variable of this frame may hold the end of the tool: see ``start_inline``
            return self._conclude(run, plan, failure_flag, prepared, counted, start_inline(run))
        except BaseException as exc:  # such as KeyboardInterrupt in a contract
            if not started and driver is None:
                driver = self._driver(run, plan, failure_flag, _interrupt(exc))
                return suspend_or_end(driver, driver.advance())
            driver = driver or self._driver_at_tool(run, plan, failure_flag, counted)
            return suspend_or_end(driver, driver.abort(exc))

    def _refuse(
        self, run: RunTool, plan: Plan, prepared: Prepared, answers: RawAnswers
    ) -> ToolOutcome | Suspended | None:
        """Deny a call to which contracts object. Returns None if the lifecycle must decide about
        it.
        """
        config, call = self._config, run.call
        if config.on_deny is not None or config.mode != "enforce" or run.charges is not NO_CHARGES:
            return None
        judged = []
        for contract, raw in answers:
            if type(raw) is not Verdict:
                return None
            judged.append(as_answer(contract, raw, "enforce"))
        decision = decide_before(plan.before, judged, (), "enforce")
        if decision.effect != "deny" or decision.policy_error or decision.waived:
            return None
        counted = self._ledger.try_refuse(call.run_id, prepared.template)
        if counted is None:
            return None
        context = config.context
        try:
            now = None if self._record is not None else self._now()
        except USER_ERRORS:
            now = None
        if now is None:  # the lifecycle records it, as far as it can be recorded
            admission = Admission(run, decision, Counters(*counted))
            driver = self._driver(run, plan, None, _resume_admission(admission))
            return Suspended(driver, driver.advance())
        attempts, executions = counted
        self._append_last(
            (now, context, CALL_DENIED, call, decision, attempts, executions, "denied")
        )
        if not call.call_index & 63:  # SAMPLED
            self._figures.add_sample(now - call.started_at)
        prepared.tally.add((decision.effect, decision.source, "denied"))
        return make_denied_outcome(call, decision, context)

    def _conclude(
        self,
        run: RunTool,
        plan: Plan,
        failure_flag: FailureFlag | None,
        prepared: Prepared,
        reserved: tuple[int, int],
        ran: Ran | Running,
    ) -> ToolOutcome | Suspended:
        """Commit and record how a call ended, or let the lifecycle do so."""
        if isinstance(ran, Running):
            return Suspended(self._driver_at_tool(run, plan, failure_flag, reserved), ran)
        call, config, value, verdict = run.call, self._config, ran.value, None
        is_usual = not (prepared.is_reviewed or ran.cancelled or ran.elapsed_s > LONG_S)
        if (
            is_usual
            and ran.error is None
            and failure_flag is None
            and self._judges_by_default
            and type(value) in NOT_AWAITABLE
            and default_problem(value) is None
        ):
            verdict = SUCCEEDED_BY_DEFAULT  # as ``find_verdict`` would say
        elif is_usual and (failure_flag is None or failure_flag is error_key):  # asked once
            verdict = find_verdict(call, plan, ran, failure_flag, config.success_check)
            if verdict is not None and not verdict.success and type(value) in LAZY_TYPES:
                verdict = None
        if verdict is None:
            return Suspended(self._driver_at_tool(run, plan, failure_flag, reserved), ran)
        context = config.context
        outcome: ToolOutcome
        closing: tuple[Any, ...]
        if verdict.success:
            outcome = succeeded_outcome(call, ran, value)
            summary = context.redaction.summarize(value)
            closing = ("executed", verdict, None, outcome.elapsed_ms, None, summary)
        else:
            outcome = failed_outcome(call, plan, context, ran, verdict, value, NOT_REVIEWED)
            closing = closing_fields(plan, context, ran, verdict, value, NOT_REVIEWED, outcome)
        counted = self._ledger.try_commit(call.run_id, run.key, prepared.template, verdict.success)
        if counted is None:
            return Suspended(self._driver_at_tool(run, plan, failure_flag, reserved), ran)
        action = CALL_EXECUTED if verdict.success else CALL_FAILED
        if self._record is not None:
            made = Entry(context, action, call, plan.passed, Counters(*counted), Closing(*closing))
            return self._record_end(outcome, made)
        if closing[3] or not verdict.success:  # the milliseconds
            prepared.tally.add(EXECUTED if verdict.success else FAILED, closing[3])
        else:
            prepared.tally.executed_at_once += 1
        try:
            now = self._now()
        except USER_ERRORS as exc:
            return with_note(outcome, context, NOT_WRITTEN, Failed(exc))
        attempts, executions = counted
        self._append_last((now, context, action, call, plan.passed, attempts, executions, *closing))
        return outcome

    def _record_end(self, outcome: ToolOutcome, entry: Entry) -> ToolOutcome | Suspended:
        """Record how a call ended that has been counted, and return its outcome."""
        assert self._record is not None
        try:
            self._record(entry)
        except USER_ERRORS as exc:
            return with_note(outcome, entry.context, NOT_WRITTEN, Failed(exc))
        except BaseException as exc:  # the call is over: nothing is left but to raise it
            driver = CallDriver(_end_with(outcome), self._handlers)
            driver.interrupt(exc)
            return Suspended(driver, outcome)
        return outcome

    def _refuse_unrecorded_call(
        self, run: RunTool, plan: Plan, counted: tuple[int, int], error: BaseException
    ) -> Suspended:
        """End a call that has taken its slots but whose opening event cannot be written."""
        admission = Admission(run, plan.passed, Counters(*counted), holds=True)
        refused = admission.deny_for_audit_failure(Failed(error))
        driver = self._driver(run, plan, None, _resume_admission(refused))
        if not isinstance(error, USER_ERRORS):
            driver.interrupt(error)
        return Suspended(driver, driver.advance())

    def _driver(
        self, run: RunTool, plan: Plan, failure_flag: FailureFlag | None, admitting: Admitting
    ) -> CallDriver:
        flow = lifecycle(run, plan, self._config, failure_flag, None, admitting)
        return CallDriver(flow, self._handlers)

    def _driver_at_tool(
        self,
        run: RunTool,
        plan: Plan,
        failure_flag: FailureFlag | None,
        counted: tuple[int, int],
    ) -> CallDriver:
        """Return a driver that has admitted the call and waits for how its tool ends."""
        admission = Admission(run, plan.passed, Counters(*counted), holds=True)
        flow = lifecycle(run, plan, self._config, failure_flag, None, _resume_admission(admission))
        flow.send(None)
        return CallDriver(flow, self._handlers)


@record
class Prepared:
    """What is the same for all calls of a tool, computed once per plan."""

    is_usual: bool  # False: every call takes the lifecycle
    template: ReservationTemplate
    tally: ToolTally
    is_reviewed: bool  # contracts, hooks or rules judge its results, which the lifecycle asks


def _prepare(plan: Plan, figures: Figures) -> Prepared:
    """Compute what calls of a tool reserve and where they are counted for ``stats``.

    Tools with before-hooks, session contracts, a preview, or limits that have a window or depend on
    the call take the lifecycle.
    """
    has_gates = plan.hooks_before or plan.session or plan.rules or plan.entry.preview is not None
    template = None if has_gates else reservation_template(plan.tools, plan.limits)
    tally = figures.tallies[plan.tool]
    tally.side_effect = plan.entry.side_effect
    is_reviewed = bool(plan.after or plan.hooks_after or plan.success_rules)
    unused = ReservationTemplate(plan.tools, ())
    prepared = Prepared(template is not None, template or unused, tally, is_reviewed)
    plan.memo[MEMO] = prepared
    return prepared


def _resume_admission(admission: Admission) -> Admitting:
    yield from ()
    return admission


def _end_with(outcome: ToolOutcome) -> Flow:
    yield from ()
    return outcome


def _interrupt(error: BaseException) -> Admitting:
    yield from ()
    raise error
