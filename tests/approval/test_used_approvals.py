"""A backend that keeps answers is told when a call uses one, and how that ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edictum import (
    ApprovalDecision,
    ApprovalStatus,
    Edictum,
    EdictumConfigError,
    InMemoryApprovalBackend,
    OperationLimits,
    ToolDenied,
    ToolExecutionResult,
)
from edictum.core.effects import Pause
from support.guards import approval_contract
from support.waiting import wait_in_loop


class KeepsAnswers(InMemoryApprovalBackend):
    """Notes what it is told; ``use`` answers ``used``, or raises it."""

    def __init__(self, used: Any = True, answer: Any = True) -> None:
        super().__init__(answer)
        self.used = used
        self.told: list[Any] = []

    async def use(self, approval_id: str) -> Any:
        self.told.append("use")
        if isinstance(self.used, Exception):
            raise self.used
        return self.used

    async def end(self, approval_id: str, started: bool) -> None:
        self.told.append(("end", started))


def make_guard(backend: Any, **options: Any) -> Edictum:
    return Edictum(contracts=[approval_contract("t")], approval_backend=backend, **options)


def last_action(guard: Edictum) -> str:
    return guard.local_sink.last().action.value


async def test_used_before_the_tool_and_ended_after_it() -> None:
    """In this order, once each."""
    backend = KeepsAnswers()
    guard = make_guard(backend)
    await guard.run("t", {}, lambda: backend.told.append("ran"))
    assert backend.told == ["use", "ran", ("end", True)]


async def test_a_tool_that_fails_was_started() -> None:
    """Its approval is used up."""
    backend = KeepsAnswers()
    await make_guard(backend).dispatch("t", {}, lambda: 1 / 0)
    assert backend.told == ["use", ("end", True)]


@pytest.mark.parametrize(
    ("used", "action", "policy_error"),
    [
        (False, "call_approval_void", False),
        (None, "call_denied", True),
        (OSError("the disk is full"), "call_denied", True),
    ],
)
async def test_an_approval_that_cannot_be_used(used: Any, action: str, policy_error: bool) -> None:
    """The tool does not run, and its slot is free again."""
    backend, ran = KeepsAnswers(used), list[int]()
    guard = make_guard(backend)
    outcome = await guard.dispatch("t", {}, lambda: ran.append(1))
    assert isinstance(outcome, ToolDenied)
    assert (ran, outcome.reason, outcome.policy_error) == ([], "write_denied", policy_error)
    assert last_action(guard) == action
    assert backend.told == ["use", ("end", False)]
    totals = guard.session().snapshot().totals
    assert (totals.executions, totals.in_flight) == (0, 0)


async def test_an_approved_call_that_a_limit_refuses_gives_its_approval_back() -> None:
    """It was not used."""
    backend = KeepsAnswers(answer=None)
    guard = make_guard(backend, limits=OperationLimits(max_tool_calls=1))
    running = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
    await wait_in_loop(lambda: backend.pending)
    await guard.dispatch("free", {}, lambda: 1)
    backend.decide(backend.pending[0].approval_id, True)
    assert isinstance(await running, ToolDenied)
    assert backend.told == [("end", False)]


async def test_a_call_that_its_framework_defers_gives_its_approval_back() -> None:
    """The framework makes the same call again, with the same approval."""

    class Deferred(Exception):
        pass

    def defer() -> None:
        raise Pause(Deferred())

    backend = KeepsAnswers()
    with pytest.raises(Deferred):
        await make_guard(backend).run("t", {}, defer)
    assert backend.told == ["use", ("end", False)]


@pytest.mark.parametrize("answer", [False, ApprovalDecision(False, status=ApprovalStatus.TIMEOUT)])
async def test_nothing_is_used_without_a_yes(answer: Any) -> None:
    """There is nothing to give back either."""
    backend = KeepsAnswers(answer=answer)
    assert isinstance(await make_guard(backend).dispatch("t", {}, lambda: 1), ToolDenied)
    assert backend.told == []


async def test_an_answer_that_does_not_count_any_more() -> None:
    """It has an end of its own in the audit."""
    decision = ApprovalDecision(False, status=ApprovalStatus.VOID)
    guard = make_guard(InMemoryApprovalBackend(decision))
    outcome = await guard.dispatch("t", {}, lambda: 1)
    assert outcome.details == "The approval is no longer valid."  # type: ignore[union-attr]  # denied
    assert last_action(guard) == "call_approval_void"


async def test_a_backend_that_keeps_nothing() -> None:
    """It need not have the two methods."""
    guard = make_guard(InMemoryApprovalBackend(True))
    assert isinstance(await guard.dispatch("t", {}, lambda: 1), ToolExecutionResult)


@pytest.mark.parametrize("name", ["use", "end"])
def test_a_method_with_other_parameters_is_refused(name: str) -> None:
    """When the guard is made."""
    wrong = type("Wrong", (KeepsAnswers,), {name: lambda self: None})
    with pytest.raises(EdictumConfigError, match=f"approval_backend: {name} is called with"):
        make_guard(wrong())
