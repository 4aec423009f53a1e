"""GovernancePipeline: how adapters written for the older library ask about a call.

New code uses ``guard.begin()``, whose ticket reserves the call's slot: after ``pre_execute``, which
reserves nothing, other calls can pass the same limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edictum._dry_run import Judged
from edictum._logs import CALLBACK_FAILED, log
from edictum.core.call import ToolCall
from edictum.core.decide import as_answer, decide_after, describe
from edictum.core.decision import USER_ERRORS, Failed
from edictum.execution.body import needs_await

if TYPE_CHECKING:
    from edictum.guard import Edictum
    from edictum.sessions.session import Session


@dataclass
class PreDecision:
    """What would be decided about a call: "allow", "deny" or "pending_approval"."""

    action: str
    reason: str | None = None
    decision_source: str | None = None
    decision_name: str | None = None
    hooks_evaluated: list[dict[str, Any]] = field(default_factory=list)
    contracts_evaluated: list[dict[str, Any]] = field(default_factory=list)
    observed: bool = False
    policy_error: bool = False
    shadow_results: list[dict[str, Any]] = field(default_factory=list)
    approval_timeout: float = 300
    approval_timeout_effect: str = "deny"
    approval_message: str | None = None


@dataclass
class PostDecision:
    """What postconditions said; ``redacted_response`` is None when the response may be shown."""

    tool_success: bool
    postconditions_passed: bool
    warnings: list[str] = field(default_factory=list)
    contracts_evaluated: list[dict[str, Any]] = field(default_factory=list)
    policy_error: bool = False
    redacted_response: Any = None
    output_suppressed: bool = False


class GovernancePipeline:
    """Asks the contracts of a guard. It counts nothing, records nothing and runs nothing."""

    def __init__(self, guard: Edictum) -> None:
        self._guard = guard

    async def pre_execute(self, envelope: ToolCall, session: Session) -> PreDecision:
        """Return the decision of a dry run, which reserves nothing in the session."""
        stated: Any = {
            "session_id": session.session_id,
            "environment": envelope.environment,
            "metadata": envelope.metadata or None,
            "principal": envelope.principal,
        }
        stated = {name: value for name, value in stated.items() if value is not None}
        tool, args = envelope.tool_name, envelope.args
        run, dry_run = self._guard._dry_run("pre_execute", tool, args, stated)
        return _describe(dry_run._judge(run))

    async def post_execute(
        self, envelope: ToolCall, tool_response: Any, tool_success: bool
    ) -> PostDecision:
        """Ask the postconditions about a response, and call the hooks that follow a tool."""
        guard = self._guard
        plan = guard.policy.plan(envelope.tool_name)
        answers = [
            as_answer(contract, await _settle(raw), guard._state.config.mode)
            for contract, raw in plan.ask_after(envelope, tool_response)
        ]
        redact = guard.redaction.redact_value
        shown, after = decide_after(plan.after, answers, envelope, tool_response, redact)
        for hook in guard.get_hooks("after", envelope):
            await _notify(hook.name, hook.callback, envelope, tool_response)
        return PostDecision(
            tool_success=tool_success,
            postconditions_passed=after.passed,
            warnings=list(after.warnings),
            contracts_evaluated=[answer.as_record() for answer in after.all_answers()],
            policy_error=after.policy_error,
            redacted_response=shown if after.has_withheld else None,
            output_suppressed=after.suppressed,
        )


def _describe(judged: Judged) -> PreDecision:
    """Return a judged call in the older form."""
    decision = judged.decision
    asks = decision.effect == "approve"
    records = [(answer, answer.as_record()) for answer in decision.answers()]
    return PreDecision(
        action="pending_approval" if asks else decision.effect,
        reason=decision.reason,
        decision_source=decision.source,
        decision_name=decision.name,
        hooks_evaluated=[hook.as_record() for hook in decision.hooks],
        contracts_evaluated=[it for answer, it in records if not answer.contract.shadow],
        observed=decision.effect == "allow" and bool(decision.waived),
        policy_error=decision.policy_error or judged.ledger_failed,
        shadow_results=[it for answer, it in records if answer.contract.shadow],
        approval_timeout=decision.timeout,
        approval_timeout_effect=decision.timeout_effect,
        approval_message=decision.reason if asks else None,
    )


async def _settle(raw: Any) -> Any:
    """Await an answer if it needs it; an exception is returned as Failed."""
    try:
        return await raw if needs_await(raw) else raw
    except USER_ERRORS as exc:
        return Failed(exc)


async def _notify(name: str, callback: Any, *args: Any) -> None:
    try:
        answer = await _settle(callback(*args))
    except USER_ERRORS as exc:
        answer = Failed(exc)
    if isinstance(answer, Failed):
        log(CALLBACK_FAILED, "after-hook %s failed: %s", name, describe(answer.error))
