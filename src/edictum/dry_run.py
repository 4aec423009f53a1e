"""A dry run: what would be decided about a call, without counting, recording or running anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edictum.core._draft import record
from edictum.core.call import Principal, ToolCall, with_principal
from edictum.core.contract import Contract
from edictum.core.decide import as_answer, as_hook_answer, ask, ask_hooks, decide_before, describe
from edictum.core.decision import Answer, HookAnswer, Raised, all_answers
from edictum.core.hooks import HookResult
from edictum.core.limits import ATTEMPTS, Reservation
from edictum.core.policy import Plan
from edictum.core.session import SessionView
from edictum.evaluation import ContractResult, EvaluationResult
from edictum.execution.body import needs_await
from edictum.execution.portal import PORTAL
from edictum.explanation import ContractExplanation, Explanation
from edictum.runtime.wiring import Wiring


def dry_run(call: ToolCall, plan: Plan, wiring: Wiring, *, output: Any, with_session: bool, resolve: bool) -> EvaluationResult:
    """Ask hooks and contracts as ``run`` would, and read the session without touching it."""
    identified = identify(call, wiring, resolve)
    if isinstance(identified, EvaluationResult):
        return identified
    call = identified
    special = plan.ask_before(call)
    if not special and not with_session and output is None and not plan.hooks_before:
        passed = _all_passed(plan)
        return EvaluationResult("allow", call.tool_name, contracts=list(passed), contracts_evaluated=len(passed))
    hooks = [as_hook_answer(hook, raw) for hook, raw in _settle(ask_hooks(plan.hooks_before, call))]
    before = _answers(plan.before, special, wiring)
    session = _look(call, plan, wiring) if with_session else NOT_LOOKED
    after = _answers(plan.after, plan.ask_after(call, output), wiring) if output is not None else []
    return _result(call, wiring, hooks, [*before, *session.answers], session.full, after)


def identify(call: ToolCall, wiring: Wiring, resolve: bool) -> ToolCall | EvaluationResult:
    """The call with its principal, or the refusal because there is none."""
    if not resolve or wiring.principal_resolver is None:
        return call
    try:
        principal = _settled(wiring.principal_resolver(call.tool_name, call.args))
        if principal is not None and not isinstance(principal, Principal):
            raise TypeError(f"it answered with {type(principal).__name__}")
        return with_principal(call, principal)
    except Exception as exc:
        reason = f"The principal could not be resolved: {describe(exc)}"
        return EvaluationResult("deny", call.tool_name, deny_reasons=[reason], policy_error=True)


def _all_passed(plan: Plan) -> list[ContractResult]:
    """The results when every contract agrees, made once per plan."""
    if "passed" not in plan.memo:
        plan.memo["passed"] = [ContractResult.of(answer) for answer in all_answers(plan.before, ())]
    passed: list[ContractResult] = plan.memo["passed"]
    return passed


def _result(
    call: ToolCall, wiring: Wiring, hooks: list[HookAnswer], answers: list[Answer], full: list[str], after: list[Answer]
) -> EvaluationResult:
    decision = decide_before((), [answer for answer in answers if not answer.verdict.passed], hooks, wiring.mode)
    refused = [hook.decision.reason or "" for hook in hooks if hook.decision.result is HookResult.DENY and wiring.mode == "enforce"]
    reasons = [*refused, *_objections(answers), *full] if decision.effect != "allow" else full
    warnings = _objections(after)
    every = [*answers, *after]
    return EvaluationResult(
        verdict="deny" if reasons else "warn" if warnings else "allow",
        tool_name=call.tool_name,
        contracts=[ContractResult.of(answer) for answer in every],
        deny_reasons=reasons,
        warn_reasons=warnings,
        contracts_evaluated=len(every),
        policy_error=any(answer.verdict.policy_error for answer in every) or any(hook.policy_error for hook in hooks),
        needs_approval=decision.effect == "approve" and not full,
    )


def _objections(answers: Sequence[Answer]) -> list[str]:
    return [answer.verdict.message or "" for answer in answers if not answer.verdict.passed and not answer.observed]


@record
class _Session:
    """What a look at the session found: the session contracts' answers, and the limits that are full."""

    answers: list[Answer]
    full: list[str]


NOT_LOOKED = _Session([], [])


def _look(call: ToolCall, plan: Plan, wiring: Wiring) -> _Session:
    """Ask the ledger as a call would, but count no attempt and hold no slot."""
    judged = tuple(limit for limit in plan.limits if limit.metric is not ATTEMPTS)
    look = Reservation(call.run_id, call.call_id, plan.scopes, judged, count_attempt=False, hold=False)
    grant = _settled(wiring.ledger.reserve(look))
    snapshot = _settled(wiring.ledger.snapshot(call.run_id))
    full = [(breach.limit, breach.reason) for breach in grant.breaches]
    # Counting an attempt is the only way to have a ledger judge it; without that, the counter itself is judged.
    attempts = snapshot.totals.attempts
    full += [(limit, limit.reason(attempts, 0)) for limit in plan.limits if limit.metric is ATTEMPTS and attempts >= limit.maximum
             and limit.window_s is None]  # fmt: skip
    view = SessionView(snapshot, None, call)
    reasons = [reason for limit, reason in full if limit.enforce and wiring.mode == "enforce"]
    return _Session(_answers(plan.session, ask(plan.session, view), wiring), reasons)


def session_view(call: ToolCall, wiring: Wiring) -> SessionView:
    """The session as its contracts would see it now."""
    return SessionView(_settled(wiring.ledger.snapshot(call.run_id)), None, call)


def _answers(contracts: tuple[Contract, ...], raw: Sequence[tuple[Contract, Any]], wiring: Wiring) -> list[Answer]:
    return all_answers(contracts, tuple(as_answer(contract, answer, wiring.mode) for contract, answer in _settle(raw)))


def _settle(raw: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return [(asked, _settled(answer, keep_errors=True)) for asked, answer in raw]


def _settled(answer: Any, *, keep_errors: bool = False) -> Any:
    if not needs_await(answer):
        return answer
    try:
        return PORTAL.run(answer)
    except Exception as exc:
        if keep_errors:
            return Raised(exc)
        raise


def explain_evaluation(
    evaluation: EvaluationResult, call: ToolCall, plan: Plan, wiring: Wiring, *, output: Any, resolve: bool
) -> Explanation:
    """The evaluation with the conditions of its contracts. A check that can explain itself has ``explain(call, result, session)``."""
    identified = identify(call, wiring, resolve)
    if isinstance(identified, EvaluationResult):
        return Explanation(evaluation, ())
    contracts = {contract.id: contract for contract in (*plan.before, *plan.session, *plan.after)}
    view = session_view(identified, wiring) if plan.session else None
    parts = []
    for result in evaluation.contracts:
        explain = getattr(contracts[result.contract_id].check, "explain", None)
        parts.append(ContractExplanation(result, explain(identified, output, view) if explain is not None else None))
    return Explanation(evaluation, tuple(parts))
