"""Start: the last step before the tool runs, or the end of a call that is refused."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from edictum.core.config import LifecycleConfig
from edictum.core.effects import Effect, Notify, RunTool
from edictum.core.lifecycle.admission import Admission
from edictum.core.lifecycle.approval import use_approvals
from edictum.core.lifecycle.conclusion import refuse, release_unstarted
from edictum.core.policy import Plan
from edictum.core.turn import CallInTurn, Refusal, TurnOver
from edictum.outcomes import ToolOutcome


def start_or_refuse(
    admission: Admission, plan: Plan, config: LifecycleConfig, turn: CallInTurn | None
) -> Generator[Effect, Any, RunTool | ToolOutcome]:
    """Return the RunTool of an allowed call, whose approvals are used from here on, or the outcome
    of a call that is refused.
    """
    if admission.decision.effect != "allow":
        return (yield from refuse(admission, plan, config))
    if config.on_allow is not None:
        yield Notify(config.on_allow, (admission.call,), "on_allow")
    if admission.approvals:
        refused = yield from use_approvals(admission, config)
        if refused is not None:
            return (yield from refuse(refused, plan, config))
    start = admission.run if turn is None else turn.start(admission.run)
    if isinstance(start, Refusal):
        return (yield from release_unstarted(admission, TurnOver(start), plan, config))
    return start
