"""Questions: what a person was asked before about a call that its host makes again after a pause.

A host that parks its calls makes each of them anew when it continues. By then a contract may judge
the call differently; but a call that a person refused must not run because of that.
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
from edictum.core.lifecycle.approval import approval_digest, make_call_digest, name_askers
from edictum.core.parking import NOT_AGAIN
from edictum.core.policy import Plan
from edictum.core.values import TooDeepError

ASKERS = "askers"  # in the memo of a plan
STILL_OPEN = (
    "A person was asked about this call, and has not answered; what was asked has changed since"
    " then. Call again."
)


def recall_question(
    call: ToolCall, decision: Decision, plan: Plan, config: LifecycleConfig
) -> Generator[Effect, Any, Decision]:
    """Return the decision about a call that no contract objects to, made by a host that parks.

    If a person was asked about the same call before, under this policy, the call asks again and
    finds the answer. A no counts even under another policy, and so does a yes that was used: the
    tool was started with it.
    """
    askers = list_askers(plan)
    if not askers and not getattr(config.park, "goes_on", False):
        return decision
    try:
        found = yield FindQuestion(call, make_call_digest(call))
    except TooDeepError as exc:
        found = Failed(exc)
    if found is None:
        return decision
    if isinstance(found, Failed):
        problem = f"The approval backend could not be asked: {explain_failure(found)}"
        return decision.fail("approval_backend", problem)
    known = dict(zip(name_askers(replace(decision, askers=askers)), askers, strict=True))
    asked = tuple(known[name] for name in found.askers if name in known)
    if found.digest == approval_digest(call, config.context.policy_digest, found.askers):
        again = replace(decision, effect="approve", reason=found.message, askers=asked)
        source, effect = "approval", found.timeout_effect
        return replace(again, source=source, name=found.contract, timeout_effect=effect)
    reason = _find_refusal(found)
    return decision if reason is None else decision.deny("approval", found.contract or "", reason)


def _find_refusal(found: Any) -> str | None:
    """Return why a call is denied that was asked about on other terms; None if it is not."""
    if found.status == "denied":
        return found.reason or f"A person refused: {found.message}"
    return STILL_OPEN if found.status == "pending" else NOT_AGAIN.get(found.status)


def list_askers(plan: Plan) -> tuple[Any, ...]:
    """Return all contracts and limits of a plan that can ask a person."""
    known: tuple[Any, ...] | None = plan.memo.get(ASKERS)
    if known is None:
        judges: list[Any] = [*plan.before, *plan.limits, *plan.rules]
        known = plan.memo[ASKERS] = tuple(it for it in judges if it.effect == "approve")
    return known
