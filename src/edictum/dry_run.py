"""A dry run: what would be decided about a call, without counting, recording or running
anything.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Sequence
from typing import Any

from edictum.core._records import record, replace
from edictum.core.call import Principal, ToolCall, with_principal
from edictum.core.charges import Charges, estimate_charges
from edictum.core.contract import Contract
from edictum.core.decide import as_answer, decide_before, describe
from edictum.core.decision import USER_ERRORS, Answer, Failed, HookAnswer, all_answers
from edictum.core.hooks import HookResult
from edictum.core.limits import Reservation, SessionSnapshot, with_amounts
from edictum.core.policy import Plan
from edictum.core.session import SessionView
from edictum.core.user_code import ask_hooks
from edictum.evaluation import NOT_GIVEN, ContractResult, EvaluationResult, allowed
from edictum.execution.body import needs_await
from edictum.execution.portal import PORTAL
from edictum.explanation import ContractExplanation, Explanation
from edictum.runtime.wiring import Wiring

STOPS = (
    *USER_ERRORS,
    CancelledError,
)  # what does not leave a dry run, as it does not leave a call: nobody cancels a synchronous caller


def dry_run(
    call: ToolCall,
    plan: Plan,
    wiring: Wiring,
    *,
    output: Any,
    account: Charges | None,
    resolve: bool,
) -> EvaluationResult:
    """Ask hooks and contracts as ``run`` would, and, with an account, read its sessions without
    touching them.
    """
    identified = identify(call, wiring, resolve)
    if isinstance(identified, EvaluationResult):
        return identified
    call, hooks = _hooked(identified, plan, wiring) if plan.hooks_before else (identified, [])
    special = plan.ask_before(call)
    if not special and account is None and output is NOT_GIVEN and not plan.hooks_before:
        return allowed(call.tool_name, _all_passed(plan).copy())
    before = _answers(plan.before, special, wiring)
    if account is not None and call is not identified:
        account = estimate_charges(account, call)
    session = _look(call, plan, wiring, account) if account is not None else NOT_LOOKED
    after = (
        _answers(plan.after, plan.ask_after(call, output), wiring)
        if output is not NOT_GIVEN
        else []
    )
    result = _result(call, wiring, hooks, [*before, *session.answers], session.full, after)
    return replace(result, policy_error=True) if session.failed else result


def identify(call: ToolCall, wiring: Wiring, resolve: bool) -> ToolCall | EvaluationResult:
    """The call with its principal, or the refusal because there is none."""
    if not resolve or wiring.principal_resolver is None:
        return call
    try:
        principal = _settled(wiring.principal_resolver(call.tool_name, call.args))
        if principal is not None and not isinstance(principal, Principal):
            raise TypeError(f"it answered with {type(principal).__name__}")
        return with_principal(call, principal)
    except STOPS as exc:
        reason = f"The principal could not be resolved: {describe(exc)}"
        return EvaluationResult("deny", call.tool_name, deny_reasons=[reason], policy_error=True)


def _hooked(call: ToolCall, plan: Plan, wiring: Wiring) -> tuple[ToolCall, list[HookAnswer]]:
    """The call with the arguments that the before-hooks would leave it, and what they say."""
    asking, answer = ask_hooks(plan.hooks_before, call, wiring.mode), None
    try:
        while True:  # outside of a turn they ask for nothing but to settle what they returned
            answer = _settled(asking.send(answer).awaitable, keep_errors=True)  # type: ignore[union-attr]
    except StopIteration as end:
        settled: tuple[ToolCall, list[HookAnswer]] = end.value
        return settled


def _all_passed(plan: Plan) -> list[ContractResult]:
    """The results when every contract agrees, made once per plan."""
    passed: list[ContractResult] | None = plan.memo.get("passed")
    if passed is None:
        passed = plan.memo["passed"] = [
            ContractResult.of(answer) for answer in all_answers(plan.before, ())
        ]
    return passed


def _result(
    call: ToolCall,
    wiring: Wiring,
    hooks: list[HookAnswer],
    answers: list[Answer],
    full: list[str],
    after: list[Answer],
) -> EvaluationResult:
    decision = decide_before(
        (), [answer for answer in answers if not answer.verdict.passed], hooks, wiring.mode
    )
    refused = [
        hook.decision.reason or ""
        for hook in hooks
        if hook.decision.result is HookResult.DENY and wiring.mode == "enforce"
    ]
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
        policy_error=any(answer.verdict.policy_error for answer in every)
        or any(hook.policy_error for hook in hooks),
        needs_approval=decision.effect == "approve" and not full,
    )


def _objections(answers: Sequence[Answer]) -> list[str]:
    return [
        answer.verdict.message or ""
        for answer in answers
        if not answer.verdict.passed and not answer.observed
    ]


@record
class _Session:
    """What a look at the session found: the session contracts' answers, and the limits that are
    full.
    """

    answers: list[Answer]
    full: list[str]
    failed: bool = False  # the ledger gave no answer, so the call would be refused


NOT_LOOKED = _Session([], [])


def _look(call: ToolCall, plan: Plan, wiring: Wiring, account: Charges) -> _Session:
    """Ask the ledger as a call would, but count no attempt and hold no slot."""
    if account.problem is not None:
        return _Session(
            [],
            [f"The session ledger could not be asked: {describe(account.problem.error)}"],
            failed=True,
        )
    look = Reservation(
        call.run_id,
        call.call_id,
        plan.scopes,
        plan.limits,
        count_attempt=False,
        hold=False,
        amounts=account.amounts,
        parents=account.parents,
    )
    try:
        grant = with_amounts(_settled(wiring.ledger.reserve(look)), account.amounts)
        snapshot = _settled(wiring.ledger.snapshot(call.run_id))
    except STOPS as exc:
        return _Session(
            [], [f"The session ledger could not be asked: {describe(exc)}"], failed=True
        )
    full = [
        breach.reason
        for breach in grant.breaches
        if breach.limit.enforce and wiring.mode == "enforce"
    ]
    return _Session(_answers(plan.session, plan.ask_session(_seen(snapshot, call)), wiring), full)


def _seen(snapshot: SessionSnapshot, call: ToolCall) -> SessionView:
    """The session as its contracts see it when the call is made: its attempt is counted then."""
    totals = replace(snapshot.totals, attempts=snapshot.totals.attempts + 1)
    return SessionView(replace(snapshot, totals=totals), None, call)


def session_view(call: ToolCall, wiring: Wiring) -> SessionView:
    """The session as its contracts would see it now."""
    return _seen(_settled(wiring.ledger.snapshot(call.run_id)), call)


def _answers(
    contracts: tuple[Contract, ...], raw: Sequence[tuple[Contract, Any]], wiring: Wiring
) -> list[Answer]:
    return all_answers(
        contracts,
        tuple(as_answer(contract, answer, wiring.mode) for contract, answer in _settle(raw)),
    )


def _settle(raw: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return [(asked, _settled(answer, keep_errors=True)) for asked, answer in raw]


def _settled(answer: Any, *, keep_errors: bool = False) -> Any:
    if not needs_await(answer):
        return answer
    try:
        return PORTAL.run(answer)
    except STOPS as exc:
        if keep_errors:
            return Failed(exc)
        raise


def explain_evaluation(
    evaluation: EvaluationResult,
    call: ToolCall,
    plan: Plan,
    wiring: Wiring,
    *,
    output: Any,
    resolve: bool,
) -> Explanation:
    """The evaluation with the conditions of its contracts. A check that can explain itself has
    ``explain(call, result, session)``.
    """
    identified = identify(call, wiring, resolve)
    if isinstance(identified, EvaluationResult):
        return Explanation(evaluation, ())
    call, _ = _hooked(identified, plan, wiring)
    contracts: dict[
        str, list[Contract]
    ] = {}  # several may have one id; they stand in the order in which they were asked
    for contract in (*plan.before, *plan.session, *plan.after):
        contracts.setdefault(contract.id, []).append(contract)
    asked = {result.contract_id for result in evaluation.contracts}
    view = (
        session_view(call, wiring)
        if any(contract.id in asked for contract in plan.session)
        else None
    )
    result_of = None if output is NOT_GIVEN else output
    parts = []
    for result in evaluation.contracts:
        named = contracts[result.contract_id]
        explain = getattr((named.pop(0) if len(named) > 1 else named[0]).check, "explain", None)
        parts.append(
            ContractExplanation(
                result, explain(call, result_of, view) if explain is not None else None
            )
        )
    return Explanation(evaluation, tuple(parts))
