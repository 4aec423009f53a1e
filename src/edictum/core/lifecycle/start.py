"""Start: the last step before the tool runs, or the end of a call that is denied."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from edictum.core.config import LifecycleConfig
from edictum.core.decide import explain_failure
from edictum.core.decision import Failed
from edictum.core.effects import Effect, Notify, RunTool
from edictum.core.lifecycle.admission import Admission
from edictum.core.lifecycle.approval import use_approvals
from edictum.core.lifecycle.conclusion import refuse, release_unstarted_call
from edictum.core.policy import Plan
from edictum.core.turn import CallInTurn, Refusal, TurnOver
from edictum.core.user_code import call_user_code
from edictum.outcomes import ToolOutcome


def start_or_refuse(
    admission: Admission, plan: Plan, config: LifecycleConfig, turn: CallInTurn | None
) -> Generator[Effect, Any, RunTool | ToolOutcome]:
    """Return the RunTool of an allowed call and mark its approvals as used; or, for a denied call,
    the outcome.
    """
    if admission.decision.effect != "allow":
        return (yield from refuse(admission, plan, config))
    if config.on_allow is not None:
        yield Notify(
            config.on_allow, (admission.call,), "on_allow", config.context.redaction.redact_text
        )
    refused = None
    if admission.approvals and config.records_starts:
        refused = yield from use_approvals(admission, config)
    elif turn is not None and turn.keep_start is not None:
        refused = yield from _store_start(admission, turn.keep_start)
    if refused is not None:
        return (yield from refuse(refused, plan, config))
    start = admission.run if turn is None else turn.start(admission.run)
    if isinstance(start, Refusal):
        return (yield from release_unstarted_call(admission, TurnOver(start), plan, config))
    return start


def _store_start(
    admission: Admission, keep_start: Callable[[], Any]
) -> Generator[Effect, Any, Admission | None]:
    """Store that a call is started, if no approval backend records it. Returns None, or the denied
    admission if that failed.
    """
    stored = yield from call_user_code(keep_start, (), in_turn=True)
    if not isinstance(stored, Failed):
        return None
    problem = f"That the call is started could not be stored: {explain_failure(stored)}"
    return admission.deny(admission.decision.fail("turn", problem, "keep"), "policy_error")
