"""A span for every governed call, as a real OTLP receiver gets it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import NoOpTracer, NoOpTracerProvider

from edictum import (
    Edictum,
    EdictumDenied,
    EdictumToolError,
    OperationLimits,
    Principal,
    SideEffect,
    TicketError,
    ToolCall,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    Verdict,
    postcondition,
    precondition,
)
from edictum.approval import ApprovalDecision
from edictum.harness import ToolSpec, Turn
from edictum.otel import configure_otel, disable_otel
from edictum.testing import FailingLedger, ScriptedApprovalBackend
from support.guards import approval_contract, denying
from support.otlp import Application, Span, application

INTERNAL, ERROR, UNSET = 1, 2, 0


def search(query: str) -> str:
    """Search the index.

    More is not said.
    """
    return f"found {query}"


# --- What a span says -----------------------------------------------------------------------------


def test_an_allowed_call_has_the_attributes_of_the_conventions(app: Application, tool: str) -> None:
    guard = Edictum(policy_version="v7", environment="staging")
    guard.run_sync(tool, {"query": "x"}, search, session_id="s-1", call_id="c-1")
    span = app.receiver.tool_span(tool)
    assert (span.kind, span.status) == (INTERNAL, UNSET)
    assert span.attributes == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c-1",
        "gen_ai.tool.description": "Search the index.",
        "gen_ai.conversation.id": "s-1",
        "langfuse.observation.type": "tool",
        "session.id": "s-1",
        "openinference.span.kind": "TOOL",
        "tool.name": tool,
        "tool.description": "Search the index.",
        "edictum.mode": "enforce",
        "edictum.environment": "staging",
        "edictum.side_effect": "irreversible",
        "edictum.policy.version": "v7",
        "edictum.decision": "allow",
        "edictum.outcome": "executed",
    }


def test_a_refused_call_has_a_span_with_its_reason(app: Application, tool: str) -> None:
    guard = Edictum(contracts=[denying("no-way")])
    outcome = guard.dispatch_sync(tool, {"query": "x"}, search)
    assert isinstance(outcome, ToolDenied)
    span = app.receiver.tool_span(tool)
    assert span.status == ERROR
    assert span.description == "no-way says no"
    assert span.attributes["error.type"] == "contract"
    assert span.attributes["edictum.outcome"] == "denied"
    assert span.attributes["edictum.decision"] == "deny"
    assert span.attributes["edictum.decision.name"] == "no-way"
    assert span.attributes["edictum.decision.reason"] == "no-way says no"


def test_the_reason_of_a_refusal_is_redacted(app: Application, tool: str) -> None:
    secret = "ghp_" + "a1B2" * 9

    @precondition("*")
    def quote(call: ToolCall) -> Verdict:
        return Verdict.fail(f"not with {call.args['query']}")

    Edictum(contracts=[quote]).dispatch_sync(tool, {"query": secret}, search)
    span = app.receiver.tool_span(tool)
    assert span.description.startswith("not with [REDACTED")
    assert secret not in repr(span)


@pytest.mark.parametrize(
    ("limits", "error"), [(OperationLimits(max_tool_calls=0), "limit"), (None, "policy_error")]
)
def test_refusals_are_told_apart(
    app: Application, tool: str, limits: OperationLimits | None, error: str
) -> None:
    """A limit that is full, and a ledger that fails."""
    backend = FailingLedger(on=["reserve"]) if limits is None else None
    Edictum(limits=limits, backend=backend).dispatch_sync(tool, {"query": "x"}, search)
    assert app.receiver.tool_span(tool).attributes["error.type"] == error


class SearchError(Exception):
    """An exception of a tool."""


@pytest.mark.parametrize(
    ("raised", "error"), [(ValueError, "ValueError"), (SearchError, "test_spans.SearchError")]
)
def test_a_failed_call_names_its_exception_and_not_its_text(
    app: Application, tool: str, raised: type[Exception], error: str
) -> None:
    def fail() -> None:
        raise raised("customer 17 is unknown")

    with pytest.raises(EdictumToolError):
        Edictum().run_sync(tool, {}, fail)
    span = app.receiver.tool_span(tool)
    assert (span.status, span.attributes["error.type"]) == (ERROR, error)
    assert span.attributes["edictum.outcome"] == "failed"
    assert "customer" not in repr(span)


def test_a_result_that_counts_as_failed_names_what_judged_it(app: Application, tool: str) -> None:
    outcome = Edictum().dispatch_sync(tool, {}, lambda: {"error": "no such file"})
    assert isinstance(outcome, ToolFailure)
    span = app.receiver.tool_span(tool)
    assert (span.status, span.attributes["error.type"]) == (ERROR, outcome.success_source)


def test_a_timeout_is_told(app: Application, tool: str) -> None:
    never = threading.Event()
    Edictum().dispatch_sync(tool, {}, lambda: never.wait(5), timeout_s=0.02)
    never.set()
    span = app.receiver.tool_span(tool)
    assert span.attributes["error.type"] == span.attributes["edictum.outcome"] == "timeout"
    assert span.attributes["edictum.effect_unknown"] is True
    assert span.status == ERROR


@pytest.mark.parametrize("approved", [True, False])
def test_an_approval_is_told_by_events(app: Application, tool: str, approved: bool) -> None:
    decision = ApprovalDecision(approved=approved, approver="ann")
    backend = ScriptedApprovalBackend(decision=decision)
    guard = Edictum(contracts=[approval_contract()], approval_backend=backend)
    guard.dispatch_sync(tool, {"query": "x"}, search)
    span = app.receiver.tool_span(tool)
    end = "granted" if approved else "denied"
    assert [name for name, _ in span.events] == [
        "edictum.call_approval_requested",
        f"edictum.call_approval_{end}",
    ]
    said = span.events[1][1]
    assert said["edictum.approval.approver"] == "ann"
    assert said["edictum.approval.id"]
    assert span.attributes.get("error.type") == (None if approved else "write_denied")


def test_what_a_postcondition_says_is_an_event(app: Application, tool: str) -> None:
    @postcondition("*", id="too-short")
    def judge(call: ToolCall, output: Any) -> Verdict:
        return Verdict.fail("too short")

    Edictum(contracts=[judge]).run_sync(tool, {"query": "x"}, search)
    name, said = app.receiver.tool_span(tool).events[0]
    assert name == "edictum.postcondition_warning"
    assert said["edictum.decision.name"] == "too-short"


def test_the_principal_is_told_even_when_a_resolver_found_it(app: Application, tool: str) -> None:
    def resolve(name: str, args: Any) -> Principal:
        return Principal(user_id="u-1", role="clerk", org_id="acme")

    Edictum(principal_resolver=resolve).run_sync(tool, {"query": "x"}, search)
    attributes = app.receiver.tool_span(tool).attributes
    assert attributes["user.id"] == "u-1"
    assert attributes["edictum.principal.role"] == "clerk"
    assert attributes["edictum.principal.org_id"] == "acme"


def test_arguments_and_results_are_left_out_unless_they_are_asked_for(
    app: Application, tool: str
) -> None:
    Edictum().run_sync(tool, {"query": "blue whale"}, search)
    assert "blue whale" not in repr(app.receiver.tool_span(tool))


def test_arguments_and_results_are_redacted(app: Application, tool: str) -> None:
    configure_otel(record_content=True)
    secret = "ghp_" + "a1B2" * 9
    args = {"query": "whale", "password": "hunter2"}

    def look_up(query: str, password: str) -> dict[str, str]:
        return {"answer": query, "key": secret}

    Edictum().run_sync(tool, args, look_up)
    attributes = app.receiver.tool_span(tool).attributes
    assert '"whale"' in attributes["gen_ai.tool.call.arguments"]
    assert '"whale"' in attributes["gen_ai.tool.call.result"]
    assert "hunter2" not in repr(attributes)
    assert secret not in repr(attributes)
    for ours, theirs in (("arguments", "input"), ("result", "output")):
        assert attributes[f"{theirs}.value"] == attributes[f"gen_ai.tool.call.{ours}"]
        assert attributes[f"{theirs}.mime_type"] == "application/json"


# --- Every way to make a call ---------------------------------------------------------------------


def run_sync(guard: Edictum, tool: str) -> None:
    guard.run_sync(tool, {"query": "x"}, search)


def run_async(guard: Edictum, tool: str) -> None:
    asyncio.run(guard.run(tool, {"query": "x"}, search))


def run_coroutine_function(guard: Edictum, tool: str) -> None:
    async def search_later(query: str) -> str:
        await asyncio.sleep(0)
        return query

    asyncio.run(guard.run(tool, {"query": "x"}, search_later))


def run_in_thread(guard: Edictum, tool: str) -> None:
    guard.run_sync(tool, {"query": "x"}, search, run_in="thread")


def open_ticket(guard: Edictum, tool: str) -> None:
    ticket = guard.begin_sync(tool, {"query": "x"})
    ticket.finish_sync(search(**ticket.args))


def dispatch_in_turn(guard: Edictum, tool: str) -> None:
    schema = {"type": "object", "properties": {"query": {"type": "string"}}}
    spec = ToolSpec(name=tool, description="Search, in a turn.", parameters=schema, function=search)
    asyncio.run(guard.dispatch(tool, {"query": "x"}, turn=Turn(tools=[spec])))


WAYS = [
    run_sync,
    run_async,
    run_coroutine_function,
    run_in_thread,
    open_ticket,
    dispatch_in_turn,
]


@pytest.mark.parametrize("make_call", WAYS)
@pytest.mark.parametrize("is_denied", [False, True])
def test_every_way_to_make_a_call_makes_one_span(
    app: Application, tool: str, make_call: Callable[[Edictum, str], None], is_denied: bool
) -> None:
    """Below the span that is current where the call is made."""
    guard = Edictum(contracts=[denying("no")] if is_denied else [])
    with app.tracer.start_as_current_span(f"step of {tool}") as step:
        with suppress(EdictumDenied, TicketError):
            make_call(guard, tool)
        assert trace.get_current_span() is step
    span = app.receiver.tool_span(tool)
    assert span.attributes["edictum.outcome"] == ("denied" if is_denied else "executed")
    if make_call is dispatch_in_turn:
        assert span.attributes["gen_ai.tool.description"] == "Search, in a turn."
    assert span.parent_id == step.get_span_context().span_id.to_bytes(8, "big")


def test_a_guard_made_before_is_seen_and_one_after_the_end_is_not(tool: str) -> None:
    running, guard = application(), Edictum()
    guard.run_sync(f"{tool}-1", {"query": "x"}, search)
    configure_otel()
    try:
        guard.run_sync(f"{tool}-2", {"query": "x"}, search)
    finally:
        disable_otel()
    guard.run_sync(f"{tool}-3", {"query": "x"}, search)
    names = {span.name for span in running.receiver.spans()}
    assert [f"execute_tool {tool}-{number}" in names for number in (1, 2, 3)] == [
        False,
        True,
        False,
    ]


# --- Context --------------------------------------------------------------------------------------


def is_inside(span: Span, outer: Span) -> bool:
    return (span.trace_id, span.parent_id) == (outer.trace_id, outer.span_id)


@pytest.mark.parametrize("run_in", ["inline", "thread"])
@pytest.mark.parametrize("timeout_s", [None, 5])
async def test_what_a_tool_does_is_inside_its_span(
    app: Application, tool: str, run_in: str, timeout_s: float | None
) -> None:
    """From asynchronous and from synchronous code, ordinary functions and coroutines."""
    guard = Edictum()

    def work() -> None:
        with app.tracer.start_as_current_span(f"work of {tool}"):
            pass

    async def work_later() -> None:
        await asyncio.sleep(0)
        work()

    options: Any = {"run_in": run_in, "timeout_s": timeout_s}
    await guard.run(tool, {}, work, **options)
    await guard.run(tool, {}, work_later, **options)
    guard.run_sync(tool, {}, work, **options)
    guard.run_sync(tool, {}, work_later, **options)
    inner = app.receiver.spans(f"work of {tool}")
    outer = {span.span_id: span for span in app.receiver.spans(f"execute_tool {tool}")}
    assert len(inner) == len(outer) == 4
    assert {span.parent_id for span in inner} == set(outer)


async def test_calls_at_the_same_time_keep_their_spans_apart(app: Application, tool: str) -> None:
    guard = Edictum()

    async def work(number: int) -> None:
        await asyncio.sleep(0.001 * (5 - number % 5))
        with app.tracer.start_as_current_span(f"work {number} of {tool}"):
            await asyncio.sleep(0.001)

    async def call(number: int) -> None:
        with app.tracer.start_as_current_span(f"step {number} of {tool}"):
            await guard.run(f"{tool}-{number}", {"number": number}, work)

    await asyncio.gather(*(call(number) for number in range(20)))
    for number in range(20):
        (step,) = app.receiver.spans(f"step {number} of {tool}")
        (inner,) = app.receiver.spans(f"work {number} of {tool}")
        span = app.receiver.tool_span(f"{tool}-{number}")
        assert is_inside(span, step)
        assert is_inside(inner, span)


async def test_a_cancelled_call_ends_its_span(app: Application, tool: str) -> None:
    task = asyncio.create_task(Edictum().run(tool, {}, lambda: asyncio.sleep(60)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    span = app.receiver.tool_span(tool)
    assert span.attributes["error.type"] == "asyncio.exceptions.CancelledError"
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_a_dropped_ticket_ends_its_span(app: Application, tool: str) -> None:
    ticket = Edictum().begin_sync(tool, {"query": "x"})
    assert app.receiver.spans(f"execute_tool {tool}") == []
    del ticket
    assert app.receiver.tool_span(tool).attributes["error.type"] == "abandoned"


def test_a_retried_call_is_one_span(app: Application, tool: str) -> None:
    failures = [ConnectionError("once")]

    def flaky() -> str:
        if failures:
            raise failures.pop()
        return "done"

    spec = ToolSpec(name=tool, function=flaky, side_effect=SideEffect.READ, max_retries=2)
    outcome = Edictum().dispatch_sync(tool, {}, turn=Turn(tools=[spec]))
    assert isinstance(outcome, ToolExecutionResult)
    span = app.receiver.tool_span(tool)
    assert span.attributes["edictum.attempts"] == 2
    assert span.status == UNSET


# --- What goes wrong in it ------------------------------------------------------------------------


class BrokenProcessor(SpanProcessor):
    """Raises for every span, as a processor of an application may."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise RuntimeError("no span today")

    def on_end(self, span: Any) -> None:
        raise RuntimeError("no span today")


def test_a_processor_that_raises_changes_nothing_for_calls(
    tool: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(BrokenProcessor())
    application()  # of which the meters are used
    configure_otel(tracer_provider=provider)
    try:
        guard = Edictum()
        with caplog.at_level(logging.WARNING, logger="edictum"):
            assert guard.run_sync(tool, {"query": "x"}, search) == "found x"
            assert guard.run_sync(tool, {"query": "y"}, search) == "found y"
    finally:
        disable_otel()
    codes = [getattr(record, "edictum_event", None) for record in caplog.records]
    assert codes == ["telemetry.failed"]
    assert guard.session().snapshot().totals.successes == 2


class InterruptedTracers(NoOpTracerProvider):
    """Its spans are interrupted, as by Ctrl-C, when something is noted in them."""

    class Tracer(NoOpTracer):
        def start_span(self, *args: Any, **options: Any) -> Any:
            return InterruptedTracers.Span(trace.INVALID_SPAN_CONTEXT)

    class Span(trace.NonRecordingSpan):
        def add_event(self, *args: Any, **options: Any) -> None:
            raise KeyboardInterrupt

    def get_tracer(self, *args: Any, **options: Any) -> Any:
        return self.Tracer()


def test_an_interruption_while_a_span_is_written_closes_the_call(tool: str) -> None:
    """Its slots are free again, and the tool does not run."""
    application()  # of which the meters are used
    configure_otel(tracer_provider=InterruptedTracers())
    ran: list[str] = []
    try:
        guard = Edictum(contracts=[denying("watched", mode="observe")])
        with pytest.raises(KeyboardInterrupt):
            guard.run_sync(tool, {"query": "x"}, ran.append)
    finally:
        disable_otel()
    assert ran == []
    assert guard.session().snapshot().totals.in_flight == 0
    assert guard.local_sink.events[-1].action == "call_denied"
