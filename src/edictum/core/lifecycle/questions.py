"""Questions that were asked before about a call which its host makes again, after a pause.

A host that parks its calls makes each of them anew when it goes on. A contract may judge the call
otherwise by then. What a person has refused is not run for that.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from edictum.core._records import replace
from edictum.core.call import ToolCall
from edictum.core.config import LifecycleConfig
from edictum.core.decide import explain_failure
from edictum.core.decision import Decision, Failed
from edictum.core.effects import Effect, FindQuestion
from edictum.core.lifecycle.approval import approval_digest, make_call_digest
from edictum.core.policy import Plan
from edictum.core.values import TooDeepError

ASKS = "asks"  # in the memo of a plan
CHANGED = (
    "A person was asked about this call, and has not answered; what was asked has changed since"
    " then. Call again."
)


def recall_question(
    call: ToolCall, decision: Decision, plan: Plan, config: LifecycleConfig
) -> Generator[Effect, Any, Decision]:
    """Return the decision about a call that no contract objects to, made by a host that parks.

    A person who was asked about the same call before, on the same terms, is asked again, which
    finds the answer. A no counts even on other terms.
    """
    if not _can_ask(plan):
        return decision
    try:
        found = yield FindQuestion(call, make_call_digest(call))
        same = approval_digest(call, config.context.policy_digest)
    except TooDeepError as exc:
        found, same = Failed(exc), ""
    if found is None:
        return decision
    if isinstance(found, Failed):
        problem = f"The approval backend could not be asked: {explain_failure(found)}"
        return decision.fail("approval_backend", problem)
    if found.digest == same:
        asked = replace(decision, effect="approve", reason=found.message, source="approval")
        return replace(asked, name=found.contract, timeout_effect=found.timeout_effect)
    reasons = {"denied": found.reason or f"A person refused: {found.message}", "pending": CHANGED}
    if (reason := reasons.get(found.status)) is None:
        return decision
    return decision.deny("approval", found.contract or "", reason)


def _can_ask(plan: Plan) -> bool:
    """Return whether anything in a plan can ask a person."""
    known = plan.memo.get(ASKS)
    if known is None:
        effects = [it.effect for it in plan.before] + [it.effect for it in plan.limits + plan.rules]
        known = plan.memo[ASKS] = "approve" in effects
    return bool(known)
