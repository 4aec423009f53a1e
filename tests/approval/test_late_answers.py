"""A backend that does not keep to the time it was given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edictum import (
    ApprovalDecision,
    ApprovalRequest,
    ApprovalStatus,
    Edictum,
    EdictumConfigError,
    ToolDenied,
    ToolExecutionResult,
)
from support.guards import approval_contract

ask = approval_contract(timeout=0.1)


class Slow:
    """Says yes at once, or nothing at all."""

    late_answer_s = 0.0

    def __init__(self, *, silent: bool) -> None:
        self.silent = silent

    async def request_approval(
        self, tool_name: str, tool_args: Any, message: str, **more: Any
    ) -> ApprovalRequest:
        return ApprovalRequest("1", tool_name, tool_args, message, more["timeout"])

    async def wait_for_decision(self, approval_id: str, timeout: Any = None) -> ApprovalDecision:
        if self.silent:
            await asyncio.Event().wait()
        return ApprovalDecision(True, "bob", None, ApprovalStatus.APPROVED)


@pytest.mark.parametrize("driven", ["async", "sync"])
async def test_it_is_not_waited_for_without_end(driven: str) -> None:
    """It gets its time and a little more; then the answer is no, and the audit says so."""
    guard = Edictum(contracts=[ask], approval_backend=Slow(silent=True))  # type: ignore[arg-type]
    ran: list[int] = []
    if driven == "async":
        outcome = await guard.dispatch("t", {}, lambda: ran.append(1))
    else:
        outcome = guard.dispatch_sync("t", {}, lambda: ran.append(1))
    assert isinstance(outcome, ToolDenied)
    assert ran == []
    assert outcome.policy_error
    assert "The approval backend" in outcome.details
    assert guard.session().in_flight == 0


@pytest.mark.parametrize("late_s", [-1, True, "5"])
def test_how_late_it_may_be_is_a_number_of_seconds(late_s: Any) -> None:
    """Anything else is refused when the guard is made."""
    backend: Any = Slow(silent=True)
    backend.late_answer_s = late_s
    with pytest.raises(EdictumConfigError, match="approval_backend: late_answer_s is"):
        Edictum(approval_backend=backend)


async def test_one_that_answers_is_believed() -> None:
    """The counterpart, so that the bound is what makes the difference above."""
    guard = Edictum(contracts=[ask], approval_backend=Slow(silent=False))  # type: ignore[arg-type]
    assert isinstance(await guard.dispatch("t", {}, lambda: 1), ToolExecutionResult)
