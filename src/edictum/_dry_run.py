"""Dry runs: drive the admission of a call without counting, recording or running anything.

The driver answers a Reservation by a look at the ledger, and stops where a call would be recorded
or a person asked.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Generator, Mapping
from typing import Any

from edictum.core._records import record, replace
from edictum.core.call import ToolCall
from edictum.core.config import LifecycleConfig
from edictum.core.contract import Contract, Mode
from edictum.core.decide import as_answer, describe
from edictum.core.decision import USER_ERRORS, Answer, Decision, Failed, all_answers
from edictum.core.effects import Ask, Await, Effect, RunTool, Within
from edictum.core.events import Entry
from edictum.core.hooks import HookResult
from edictum.core.lifecycle.admission import Admission, admit
from edictum.core.limits import (
    NO_COUNTERS,
    Counters,
    Grant,
    Reservation,
    SessionSnapshot,
    with_amounts,
)
from edictum.core.policy import Plan
from edictum.core.session import SessionView
from edictum.core.user_code import await_answers
from edictum.evaluation import NOT_GIVEN, ContractResult, EvaluationResult, make_allowed_result
from edictum.execution.body import needs_await
from edictum.execution.portal import PORTAL
from edictum.explanation import ContractExplanation, Explanation
from edictum.sessions.ledger import Ledger

# what does not leave a dry run; a synchronous caller is not cancelled
CAUGHT = (*USER_ERRORS, CancelledError)


@record
class Judged:
    """The decision about a call, and the session as its contracts would see it."""

    call: ToolCall
    decision: Decision
    full: list[str]  # why the ledger would refuse it
    ledger_failed: bool
    view: SessionView | None


class DryRun:
    """Judges one call in its session, as ``run`` would."""

    def __init__(self, plan: Plan, config: LifecycleConfig, ledger: Ledger) -> None:
        self._plan = plan
        self._config = config
        self._ledger = ledger
        self._call: ToolCall | None = None
        self._full: list[str] = []
        self._ledger_failed = False
        self._view: SessionView | None = None

    def evaluate(self, run: RunTool, output: Any) -> EvaluationResult:
        """Return the decision; with an output, also what the postconditions say about the
        output.
        """
        return self._result(self._judge(run), output)

    def explain(self, run: RunTool, output: Any) -> Explanation:
        """Return the evaluation with the conditions of its contracts.

        A check that can explain itself has ``explain(call, result, session)``.
        """
        judged = self._judge(run)
        evaluation = self._result(judged, output)
        contracts: dict[str, list[Contract]] = {}  # several may share an id, in this order
        for contract in (*self._plan.before, *self._plan.session, *self._plan.after):
            contracts.setdefault(contract.id, []).append(contract)
        shown = None if output is NOT_GIVEN else output
        parts = []
        for result in evaluation.contracts:
            same_id = contracts[result.contract_id]
            check = (same_id.pop(0) if len(same_id) > 1 else same_id[0]).check
            explain = getattr(check, "explain", None)
            condition = None if explain is None else explain(judged.call, shown, judged.view)
            parts.append(ContractExplanation(result, condition))
        return Explanation(evaluation, tuple(parts))

    def _judge(self, run: RunTool) -> Judged:
        self._call = run.call
        decision = self._drive(admit(run, self._plan, self._config))
        return Judged(self._call, decision, self._full, self._ledger_failed, self._view)

    def _drive(self, flow: Generator[Effect, Any, Any]) -> Any:
        """Return the value that a flow returns, such as the decision of an admission."""
        answer: Any = None
        try:
            while True:
                effect: Any = flow.send(answer)
                kind = type(effect)
                if kind is Within and type(effect.effect) is Ask:
                    effect, kind = effect.effect, Ask
                if kind is Entry or kind is Ask:
                    flow.close()
                    self._call = effect.call
                    return effect.decision
                answer = self._answer(effect)
        except StopIteration as end:
            if type(end.value) is not Admission:
                return end.value
            self._call = end.value.call
            return end.value.decision

    def _answer(self, effect: Any) -> Any:
        kind = type(effect)
        if kind is Reservation:
            return self._look(effect)
        if kind is Await:
            return _settle(effect.awaitable)
        raise AssertionError(f"an admission outside of a turn does not ask for {kind.__name__}")

    def _look(self, asked: Reservation) -> Grant | Failed:
        """Return the ledger's answer as if the call had reserved."""
        answer = _settle_call(self._ledger.reserve, replace(asked, count_attempt=False, hold=False))
        if not isinstance(answer, Grant):
            return self._note_failure(answer)
        if not (answer.breaches or asked.per_tool):
            return answer
        grant = _add_own_slots(with_amounts(answer, asked.amounts), asked)
        enforced = [it for it in grant.breaches if it.limit.enforce and asked.enforce]
        self._full = [breach.reason for breach in enforced]
        seen = SessionSnapshot(asked.session_id, grant.counters, grant.per_tool or {})
        own_tool = self._plan.tool if asked.hold and grant.granted else None
        self._view = SessionView(seen, own_tool, self._call)
        return grant

    def _note_failure(self, answer: Any) -> Failed:
        self._ledger_failed = True
        error = answer.error if isinstance(answer, Failed) else TypeError("no Grant")
        self._full = [f"The session ledger could not be asked: {describe(error)}"]
        return Failed(error)

    def _result(self, judged: Judged, output: Any) -> EvaluationResult:
        decision, plan = judged.decision, self._plan
        if decision is plan.passed and output is NOT_GIVEN:
            return make_allowed_result(judged.call.tool_name, _make_passing_results(plan).copy())
        before, after = decision.answers(), self._ask_after(judged.call, output)
        every = [*before, *after]
        reasons = _reasons(judged, before, self._config.mode)
        warnings = _objections(after)
        return EvaluationResult(
            verdict="deny" if reasons else "warn" if warnings else "allow",
            tool_name=judged.call.tool_name,
            contracts=[ContractResult.of(answer) for answer in every],
            deny_reasons=reasons,
            warn_reasons=warnings,
            contracts_evaluated=len(every),
            policy_error=_has_policy_error(judged, every),
            needs_approval=decision.effect == "approve",
        )

    def _ask_after(self, call: ToolCall, output: Any) -> list[Answer]:
        if output is NOT_GIVEN:
            return []
        plan, mode = self._plan, self._config.mode
        settled = self._drive(await_answers(plan.ask_after(call, output)))
        answers = tuple(as_answer(contract, raw, mode) for contract, raw in settled)
        return all_answers(plan.after, answers)


def _has_policy_error(judged: Judged, answers: list[Answer]) -> bool:
    return (
        judged.ledger_failed
        or judged.decision.policy_error
        or any(answer.verdict.policy_error for answer in answers)
        or any(hook.policy_error for hook in judged.decision.hooks)
    )


def _reasons(judged: Judged, answers: list[Answer], mode: Mode) -> list[str]:
    """Return every reason against the call, not only the first."""
    decision = judged.decision
    if decision.effect == "allow":
        return judged.full
    denied = [hook for hook in decision.hooks if hook.decision.result is HookResult.DENY]
    hooks = [hook.decision.reason or "" for hook in denied if mode == "enforce"]
    reasons = [*hooks, *_objections(answers), *judged.full]
    if decision.effect == "deny" and (not reasons or decision.reason not in reasons):
        reasons.append(decision.reason or "")  # a limit cannot be applied, or the gate has failed
    return reasons


def _objections(answers: list[Answer]) -> list[str]:
    return [
        answer.verdict.message or ""
        for answer in answers
        if not answer.verdict.passed and not answer.observed
    ]


def _add_own_slots(grant: Grant, asked: Reservation) -> Grant:
    """Add the call's own attempt and slots, which a look does not count."""
    attempts, held = int(asked.count_attempt), int(asked.hold and grant.granted)
    per_tool: Mapping[str, Counters] | None = grant.per_tool
    if per_tool is not None and held:
        tools = {tool: per_tool.get(tool, NO_COUNTERS) for tool in asked.tools if tool}
        own = {tool: _add(counters, 0, held) for tool, counters in tools.items()}
        per_tool = {**per_tool, **own}
    return replace(grant, counters=_add(grant.counters, attempts, held), per_tool=per_tool)


def _add(counters: Counters, attempts: int, held: int) -> Counters:
    return replace(
        counters, attempts=counters.attempts + attempts, in_flight=counters.in_flight + held
    )


def _make_passing_results(plan: Plan) -> list[ContractResult]:
    """Return the results when every contract passes, made once per plan."""
    if "all passed" not in plan.memo:
        answers = all_answers(plan.before, ())
        plan.memo["all passed"] = [ContractResult.of(answer) for answer in answers]
    return plan.memo["all passed"]  # type: ignore[no-any-return]  # put in above


def _settle_call(function: Any, *args: Any) -> Any:
    try:
        answer = function(*args)
    except CAUGHT as exc:
        return Failed(exc)
    return answer if type(answer) is Grant else _settle(answer)


def _settle(value: Any) -> Any:
    """Await a value if it needs it; an exception is returned as Failed."""
    if not needs_await(value):
        return value
    try:
        return PORTAL.run(value)
    except CAUGHT as exc:
        return Failed(exc)
