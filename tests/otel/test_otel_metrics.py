"""Metrics of governed calls, as a real OTLP receiver gets them."""

from __future__ import annotations

import threading

import pytest

from edictum import Edictum, InMemoryApprovalBackend, OperationLimits
from edictum.otel._instruments import APPROVAL_ACTIONS
from edictum.runtime.figures import MAX_COUNTED_TOOLS, OTHER_TOOLS
from support.guards import approval_contract, denying
from support.otlp import Application, Point, observed


def count_by_outcome(points: list[Point]) -> dict[tuple[str, str], float]:
    return {
        (point.attributes["edictum.decision"], point.attributes["edictum.outcome"]): point.value
        for point in points
    }


def test_calls_are_counted_by_decision_and_outcome(app: Application, tool: str) -> None:
    """As ``guard.stats()`` counts them."""
    guard = Edictum(contracts=[])
    for value in (1, 1, 0):
        guard.dispatch_sync(tool, {"value": value}, lambda value: 1 / value)
    Edictum(contracts=[denying("no")]).dispatch_sync(tool, {}, lambda: None)
    points = app.collect().points("edictum.calls", tool=tool)
    assert count_by_outcome(points) == {
        ("allow", "executed"): guard.stats().count(tool=tool, outcome="executed"),
        ("allow", "failed"): guard.stats().count(tool=tool, outcome="failed"),
        ("deny", "denied"): 1,
    }
    assert sum(point.value for point in points) == 4


def test_the_duration_is_that_of_the_span(app: Application, tool: str) -> None:
    Edictum().run_sync(tool, {}, lambda: threading.Event().wait(0.02))
    (point,) = app.collect().points("gen_ai.execute_tool.duration", tool=tool)
    assert point.count == 1
    assert point.value == pytest.approx(app.receiver.tool_span(tool).seconds, abs=1e-6)
    assert point.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
    }


def test_limits_that_refuse_are_counted(app: Application, tool: str) -> None:
    guard = Edictum(limits=OperationLimits(max_tool_calls=1))
    for _ in range(3):
        guard.dispatch_sync(tool, {}, lambda: None)
    (point,) = app.collect().points("edictum.limits.exceeded", tool=tool)
    assert point.value == 2
    assert point.attributes["edictum.decision.source"] == "operation_limit"
    assert point.attributes["edictum.decision.name"]


@pytest.mark.parametrize("answer", [True, False])
def test_approvals_are_counted(app: Application, tool: str, answer: bool) -> None:
    backend = InMemoryApprovalBackend(answer=answer)
    guard = Edictum(contracts=[approval_contract()], approval_backend=backend)
    guard.dispatch_sync(tool, {}, lambda: None)
    points = app.collect().points("edictum.approvals", tool=tool)
    results = {point.attributes["edictum.approval.result"]: point.value for point in points}
    assert results == {"requested": 1, "granted" if answer else "denied": 1}


def test_every_event_about_an_approval_is_counted() -> None:
    """A new one would go missing."""
    from edictum import AuditAction

    about = ("call_approval_", "call_grant_")
    assert set(APPROVAL_ACTIONS) == {it for it in AuditAction if it.value.startswith(about)}


def test_gauges_are_read_from_the_figures_of_live_guards(app: Application, tool: str) -> None:
    guard, never = Edictum(), threading.Event()
    before = {name: sum(p.value for p in app.collect().points(name)) for name in GAUGE_NAMES}
    guard.dispatch_sync(tool, {}, lambda: never.wait(30), timeout_s=0.01, session_id=tool)
    after = {name: sum(p.value for p in app.collect().points(name)) for name in GAUGE_NAMES}
    never.set()
    assert after["edictum.threads.left_behind"] == before["edictum.threads.left_behind"] + 1
    assert after["edictum.sessions"] == before["edictum.sessions"] + 1
    assert set(GAUGE_NAMES) <= app.receiver.names()


GAUGE_NAMES = [
    "edictum.ledger.circuits_open",
    "edictum.calls.uncounted",
    "edictum.threads.left_behind",
    "edictum.sessions",
]


def test_a_model_cannot_make_series_without_end() -> None:
    """Tools beyond a number are counted under one name."""
    with observed() as app:
        guard = Edictum(
            contracts=[denying("no")],
            limits=OperationLimits(max_attempts=None, max_tool_calls=None),
        )
        for number in range(MAX_COUNTED_TOOLS + 5):
            guard.dispatch_sync(f"invented-{number}", {}, lambda: None)
        (point,) = app.collect().points("edictum.calls", tool=OTHER_TOOLS)
    assert point.value == 5
