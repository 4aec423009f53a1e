"""The fast path: the usual call as plain functions, at half the cost of the lifecycle.

It takes calls whose ledger, sink and clock live in this process, for as long as nothing unusual
happens: no contract objects, no limit is full, the tool returns and its result is a success.
Anything else is handed to the lifecycle at the point where the call stands. Deleting this module
changes only how long a call takes; the guard imports it if it is there.
"""

from __future__ import annotations

from typing import Any, Final

from edictum.core.config import FailureFlag, Flow, LifecycleConfig
from edictum.core.effects import Ran, RunTool, ran_to_end
from edictum.core.events import CALL_ALLOWED, CALL_EXECUTED
from edictum.core.freeze import FlatDict, thaw_args
from edictum.core.lifecycle import lifecycle
from edictum.core.lifecycle.admission import Admission, Admitting, admit_answered
from edictum.core.lifecycle.verdict import find_verdict
from edictum.core.limits import Counters
from edictum.core.policy import Plan
from edictum.execution.body import PLAIN, clock, ended_by, needs_await
from edictum.outcomes import ToolOutcome, execution_result
from edictum.runtime.clock import SYSTEM
from edictum.runtime.drive import Rest, walk_on
from edictum.runtime.perform import Ports
from edictum.sessions.memory import MemoryLedger, ReservationTemplate, reservation_template
from edictum.success import SUCCEEDED_BY_DEFAULT, error_key

MEMO: Final = "fast path"
NEVER: Final = "never"  # every call of the tool takes the lifecycle


def make_fast_path(config: LifecycleConfig, ports: Ports) -> FastPath | None:
    """Return the fast path of a guard, or None when its ports do not all live in this process."""
    wiring, ledger = ports.wiring, ports.wiring.ledger
    if type(ledger) is not MemoryLedger or ledger.default_lease_s is not None:
        return None
    if wiring.sinks or wiring.clock is not SYSTEM or config.on_allow is not None:
        return None
    return FastPath(config, ports, ledger)


class FastPath:
    """Governs the usual calls of one guard."""

    def __init__(self, config: LifecycleConfig, ports: Ports, ledger: MemoryLedger) -> None:
        self._config, self._ports, self._ledger = config, ports, ledger
        self._resolves = config.principal_resolver is not None
        self._now = SYSTEM.now
        self._append = ports.wiring.local_sink.append
        self._append_last = ports.wiring.local_sink.take

    def govern(
        self, run: RunTool, plan: Plan, failure_flag: FailureFlag | None
    ) -> ToolOutcome | Rest | None:
        """Govern a call as far as it needs no waiting. None: nothing was done."""
        template = plan.memo.get(MEMO) or _prepare(plan)
        if template is NEVER or run.timeout_s is not None or run.run_in != "inline":
            return None
        if self._resolves and not run.identified:
            return None
        call, config = run.call, self._config
        try:
            answers = plan.ask_before(call)
            counted = None if answers else self._ledger.try_reserve(call.run_id, run.key, template)
            if counted is not None:
                return self._run(run, plan, failure_flag, template, counted)
        except BaseException as exc:
            flow = lifecycle(run, plan, config, failure_flag, None, _interrupt(exc))
            return Rest(flow, self._ports, flow.send(None))
        admitting = admit_answered(run, plan, config, answers)
        return walk_on(lifecycle(run, plan, config, failure_flag, None, admitting), self._ports)

    def _run(
        self,
        run: RunTool,
        plan: Plan,
        failure_flag: FailureFlag | None,
        template: ReservationTemplate,
        counted: tuple[int, int],
    ) -> ToolOutcome | Rest:
        call, started, ran = run.call, None, None
        try:
            context = self._config.context
            self._append((self._now(), context, CALL_ALLOWED, call, plan.passed, *counted))
            args, started = call.args, clock()
            try:
                value = run.body(**(args if type(args) is FlatDict else thaw_args(args)))  # type: ignore[misc]  # what runs has a body
                waits = type(value) not in PLAIN and needs_await(value)
            except BaseException as exc:
                ran = ended_by(exc, clock() - started)
            else:
                if waits:
                    flow = self._flow_at_tool(run, plan, failure_flag, counted)
                    return Rest(flow, self._ports, run, running=value, started=started)
                ran = ran_to_end(value, None, clock() - started)
                outcome = self._conclude(run, plan, failure_flag, template, ran)
                if outcome is not None:
                    return outcome
            flow = self._flow_at_tool(run, plan, failure_flag, counted)
            return Rest(flow, self._ports, run, ran)
        except BaseException as exc:
            if started is None:  # ``govern`` sees to it
                raise
            flow = self._flow_at_tool(run, plan, failure_flag, counted)
            return Rest(flow, self._ports, flow.throw(exc))

    def _conclude(
        self,
        run: RunTool,
        plan: Plan,
        failure_flag: FailureFlag | None,
        template: ReservationTemplate,
        ran: Ran,
    ) -> ToolOutcome | None:
        """Commit and record a success. None: the call is still to be concluded."""
        if plan.after or plan.hooks_after or plan.success_rules:
            return None
        if failure_flag is not None and failure_flag is not error_key:
            return None  # the lifecycle asks it, once
        call, value, config = run.call, ran.value, self._config
        verdict = find_verdict(call, plan, ran, failure_flag, config.success_check)
        if verdict is not SUCCEEDED_BY_DEFAULT:
            return None
        counted = self._ledger.try_commit(call.run_id, run.key, template)
        if counted is None:
            return None
        elapsed_ms = int(ran.elapsed_s * 1000)
        outcome = execution_result(call.call_id, call.tool_name, value, elapsed_ms)
        summary = config.context.redaction.sketch(value)
        closing = ("executed", verdict, None, elapsed_ms, None, summary)
        event = (self._now(), config.context, CALL_EXECUTED, call, plan.passed, *counted, *closing)
        self._append_last(event)
        return outcome

    def _flow_at_tool(
        self,
        run: RunTool,
        plan: Plan,
        failure_flag: FailureFlag | None,
        counted: tuple[int, int],
    ) -> Flow:
        """Return the lifecycle of an admitted call, waiting for what its tool does."""
        admission = Admission(run, plan.passed, Counters(*counted), holds=True)
        flow = lifecycle(run, plan, self._config, failure_flag, None, _admitted(admission))
        flow.send(None)
        return flow


def _prepare(plan: Plan) -> Any:
    """Work out what calls of a tool reserve, once per plan; NEVER for tools with other gates."""
    template = None
    if not plan.hooks_before and not plan.session:
        template = reservation_template(plan.scopes, plan.limits)
    plan.memo[MEMO] = template or NEVER
    return plan.memo[MEMO]


def _admitted(admission: Admission) -> Admitting:
    yield from ()
    return admission


def _interrupt(error: BaseException) -> Admitting:
    yield from ()
    raise error
