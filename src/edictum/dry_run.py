"""A dry run: what would be decided about a call, without counting, recording or running anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from edictum.core.call import ToolCall
from edictum.core.contract import Contract
from edictum.core.decide import as_answer, as_hook_answer, ask, ask_after, ask_hooks, decide_after, decide_before, describe
from edictum.core.decision import Answer, Decision, HookAnswer, Raised, all_answers
from edictum.core.limits import RESERVED, Counters, Limit, Metric, SessionSnapshot
from edictum.core.policy import Plan
from edictum.core.session import SessionView
from edictum.evaluation import ContractResult, EvaluationResult
from edictum.execution.body import needs_await
from edictum.runtime.portal import PORTAL
from edictum.runtime.wiring import Wiring


def dry_run(call: ToolCall, plan: Plan, wiring: Wiring, *, output: Any, with_session: bool, resolve: bool) -> EvaluationResult:
    """Ask hooks and contracts as ``run`` would, and read the session without touching it."""
    if resolve and wiring.principal_resolver is not None:
        try:
            call = replace(call, principal=_settled(wiring.principal_resolver(call.tool_name, call.args)))
        except Exception as exc:
            reason = f"The principal could not be resolved: {describe(exc)}"
            return EvaluationResult("deny", call.tool_name, deny_reasons=[reason], policy_error=True)
    hooks = [as_hook_answer(hook, raw) for hook, raw in _settle(ask_hooks(plan.hooks_before, call))]
    answers = _answers(plan.before, ask(plan.before, call), wiring)
    reasons: list[str] = []
    if with_session:
        snapshot = _settled(wiring.ledger.snapshot(call.run_id))
        answers += _answers(plan.session, ask(plan.session, SessionView(snapshot, None)), wiring)
        reasons = [reason for limit in plan.limits if (reason := _full(limit, snapshot)) and limit.enforce and wiring.mode == "enforce"]
    decision = decide_before((), [a for a in answers if not a.verdict.passed], hooks, wiring.mode)
    reasons = _deny_reasons(decision, answers, hooks, wiring) + reasons
    warnings: list[str] = []
    if output is not None:
        after = _answers(plan.after, ask_after(plan.after, call, output), wiring)
        warnings = [a.verdict.message or "" for a in after if not a.verdict.passed and not a.observed]
        decide_after(plan.after, after, call, output, wiring.redaction.redact_value)
        answers += after
    return EvaluationResult(
        verdict="deny" if reasons else "warn" if warnings else "allow",
        tool_name=call.tool_name,
        contracts=[ContractResult.of(answer) for answer in answers],
        deny_reasons=reasons,
        warn_reasons=warnings,
        contracts_evaluated=len(answers),
        policy_error=any(a.verdict.policy_error for a in answers) or any(hook.policy_error for hook in hooks),
        needs_approval=decision.effect == "approve" and len(reasons) > 0,
    )


def _deny_reasons(decision: Decision, answers: Sequence[Answer], hooks: Sequence[HookAnswer], wiring: Wiring) -> list[str]:
    if decision.effect == "allow":
        return []
    refused = [hook.decision.reason or "" for hook in hooks if hook.decision.result.value == "deny" and wiring.mode == "enforce"]
    return refused + [a.verdict.message or "" for a in answers if not a.verdict.passed and not a.observed]


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


def _full(limit: Limit, snapshot: SessionSnapshot) -> str | None:
    """Why one more call would be refused by this limit, judged by the counters alone; windows need the ledger."""
    counters = snapshot.per_tool.get(limit.scope, Counters()) if limit.scope else snapshot.totals
    used: int = getattr(counters, limit.metric)
    held = counters.in_flight if limit.metric in RESERVED else 0
    spare = 1 if limit.metric is Metric.ATTEMPTS else 0
    full = used + held >= limit.maximum + spare - spare and limit.window_s is None
    return limit.reason(used, held) if full else None
