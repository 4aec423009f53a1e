"""The span of a call, and what its tool does inside it, wherever the tool runs: the same tree."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("celery")

import celery_bodies as bodies
from execution_helpers import CeleryWorker
from opentelemetry import propagate, trace
from opentelemetry.propagators.textmap import TextMapPropagator

from edictum import Edictum, InMemoryApprovalBackend
from edictum.execution.celery import CeleryEngine
from edictum.execution.trace_context import enter_context
from support.guards import approval_contract, denying
from support.otlp import Application, Span, observed

CASES: dict[str, dict[str, Any]] = {
    "allow": {"outcome": "executed", "error": None},
    "deny": {"outcome": "denied", "error": "contract"},
    "approve": {"outcome": "executed", "error": None},
    "fail": {"outcome": "failed", "error": "ValueError"},
    "timeout": {"outcome": "timeout", "error": "timeout"},
}
WHERE = ["inline", "thread", "process", "celery"]


@pytest.fixture(scope="module")
def engine(valkey: str, start_worker: Callable[[], CeleryWorker]) -> Iterator[CeleryEngine]:
    engine = CeleryEngine(valkey.replace("redis", "celery", 1))
    start_worker()
    Edictum(execution=engine).run_sync("add", {"a": 1, "b": 1}, bodies.add, timeout_s=60)
    yield engine
    engine.close()


@pytest.fixture
def app() -> Iterator[Application]:
    with observed() as running:
        yield running


def make_guard(case: str) -> Edictum:
    contracts = {"deny": [denying("no")], "approve": [approval_contract()]}.get(case, [])
    return Edictum(contracts=contracts, approval_backend=InMemoryApprovalBackend(answer=True))


def make_options(where: str, case: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    engine = request.getfixturevalue("engine") if where == "celery" else where
    # a new process may take a while to import what sends the span
    return {"run_in": engine, "timeout_s": 3 if case == "timeout" else 60}


def check_tree(app: Application, tool: str, step: Span, case: str) -> None:
    """Compare what the receiver got: the step, the call inside it, the work inside that."""
    span = app.receiver.tool_span(tool)
    assert (span.trace_id, span.parent_id) == (step.trace_id, step.span_id)
    assert span.attributes["edictum.outcome"] == CASES[case]["outcome"]
    assert span.attributes.get("error.type") == CASES[case]["error"]
    work = [inner for inner in app.receiver.spans("work") if inner.trace_id == span.trace_id]
    assert [inner.parent_id for inner in work] == ([] if case == "deny" else [span.span_id])
    events = [name for name, _ in span.events]
    approved = ["edictum.call_approval_requested", "edictum.call_approval_granted"]
    assert events == (approved if case == "approve" else [])


def check_metrics(app: Application, tool: str, case: str) -> None:
    receiver, expected = app.collect(), CASES[case]
    (calls,) = receiver.points("edictum.calls", tool=tool)
    assert (calls.value, calls.attributes["edictum.outcome"]) == (1, expected["outcome"])
    (duration,) = receiver.points("gen_ai.execute_tool.duration", tool=tool)
    assert duration.count == 1
    assert duration.attributes.get("error.type") == expected["error"]
    assert duration.value == pytest.approx(receiver.tool_span(tool).seconds, abs=1e-6)
    approvals = receiver.points("edictum.approvals", tool=tool)
    results = {point.attributes["edictum.approval.result"]: point.value for point in approvals}
    assert results == ({"requested": 1, "granted": 1} if case == "approve" else {})


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("how", ["sync", "async"])
async def test_the_tree_is_the_same_everywhere(
    app: Application, request: pytest.FixtureRequest, where: str, how: str, case: str
) -> None:
    """A step of an agent, the call, what the tool does; and the metrics of the call."""
    tool = f"{where}-{how}-{case}"
    guard, options = make_guard(case), make_options(where, case, request)
    hows = {"fail": "fail", "timeout": "hang"}
    args = {"endpoint": f"{app.receiver.url}/v1/traces", "how": hows.get(case, "end")}
    with app.tracer.start_as_current_span(f"step of {tool}"):
        if how == "sync":
            outcome = guard.dispatch_sync(tool, args, bodies.work, **options)
        else:
            outcome = await guard.dispatch(tool, args, bodies.work, **options)
    (step,) = app.receiver.spans(f"step of {tool}")
    check_tree(app, tool, step, case)
    check_metrics(app, tool, case)
    if case == "allow":
        assert (outcome.value == str(os.getpid())) is (where in ("inline", "thread"))


@pytest.mark.parametrize("where", ["process", "celery"])
def test_a_call_outside_a_trace_gets_none_of_the_call_before(
    app: Application, request: pytest.FixtureRequest, where: str
) -> None:
    """Workers serve many calls, one after the other; spans of each are its own."""
    guard, tool = Edictum(), f"again-{where}"
    args = {"endpoint": f"{app.receiver.url}/v1/traces"}
    for _ in range(3):
        guard.run_sync(tool, args, bodies.work, **make_options(where, "allow", request))
    spans = app.receiver.spans(f"execute_tool {tool}")
    traces = {span.trace_id for span in spans}
    assert len(traces) == 3
    work = {span.parent_id for span in app.receiver.spans("work") if span.trace_id in traces}
    assert work == {span.span_id for span in spans}


class BrokenPropagator(TextMapPropagator):
    """Raises whenever it is used, as one of an application may."""

    def extract(self, *args: Any, **options: Any) -> Any:
        raise RuntimeError("no context today")

    def inject(self, *args: Any, **options: Any) -> None:
        raise RuntimeError("no context today")

    fields = frozenset[str]()


def test_a_propagator_that_raises_changes_nothing_for_calls(app: Application) -> None:
    usual = propagate.get_global_textmap()
    propagate.set_global_textmap(BrokenPropagator())
    try:
        assert Edictum().run_sync("add", {"a": 1, "b": 2}, bodies.add, run_in="process") == 3
        with enter_context({"traceparent": "x"}):
            assert not trace.get_current_span().get_span_context().is_valid
    finally:
        propagate.set_global_textmap(usual)
