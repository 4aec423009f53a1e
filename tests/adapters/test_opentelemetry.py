"""Spans of calls inside those that frameworks make themselves, as an OTLP receiver gets them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import logfire
import pytest
from agents import Agent as OpenAIAgent
from agents import Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from pydantic_ai import Agent
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from edictum import Edictum, InMemoryApprovalBackend, Verdict, precondition
from edictum.adapters import OpenAIAgentsAdapter, PydanticAIAdapter
from support.otlp import Application, Span, application, observed

pytestmark = pytest.mark.s1  # needs pydantic_ai

TIMEOUT_S = 2
OUTCOMES = {
    "allowed": "executed",
    "approved": "executed",
    "denied": "denied",
    "slow": "timeout",
    "failing": "failed",  # the last: a framework may pass the exception on
}
QUERIES = tuple(OUTCOMES)


def refuse(query: str) -> Any:
    return lambda call: Verdict.fail(query) if call.args["query"] == query else Verdict.pass_()


CONTRACTS = [
    precondition("search", id="no-denied")(refuse("denied")),
    precondition("search", id="ask", effect="approve")(refuse("approved")),
]


async def search(query: str) -> str:
    """Search the index."""
    with application().tracer.start_as_current_span(f"work on {query}"):
        if query == "failing":
            raise ValueError("it fails")
        await asyncio.sleep(60 if query == "slow" else 0)
        return f"found {query}"


@pytest.fixture
def app() -> Iterator[Application]:
    with observed() as running:
        yield running


async def run_pydantic_ai(guard: Edictum, app: Application) -> None:
    replies = [[ToolCallPart("search", {"query": query}, tool_call_id=query)] for query in QUERIES]

    def answer(messages: Any, info: Any) -> ModelResponse:
        return ModelResponse(parts=replies.pop(0) if replies else [TextPart("done")])

    capabilities = [Instrumentation(), PydanticAIAdapter(guard).as_capability()]
    agent = Agent(FunctionModel(answer), tools=[search], capabilities=capabilities, retries=5)
    with suppress(ValueError):  # of the tool: the framework passes it on
        await agent.run("go")


async def run_openai_agents(guard: Edictum, app: Application) -> None:
    exporter = OTLPSpanExporter(endpoint=f"{app.receiver.url}/v1/traces")
    instance = logfire.configure(
        local=True,
        send_to_logfire=False,
        console=False,
        additional_span_processors=[SimpleSpanProcessor(exporter)],
    )
    instance.instrument_openai_agents()
    turns = [[function_call("search", {"query": query}, call_id=query)] for query in QUERIES]
    model = ScriptedModel([*turns, [assistant_message("done")]])
    agent = OpenAIAgent("helper", tools=[function_tool(search)], model=model)
    await Runner.run(OpenAIAgentsAdapter(guard).govern(agent), "go")


def make_guard() -> Edictum:
    return Edictum(
        contracts=CONTRACTS,
        approval_backend=InMemoryApprovalBackend(answer=True),
        tools={"search": {"timeout_s": TIMEOUT_S}},
    )


def find_ancestors(span: Span, spans: list[Span]) -> list[Span]:
    by_id = {each.span_id: each for each in spans}
    found = []
    while (parent := by_id.get(span.parent_id)) is not None:
        found.append(span := parent)
    return found


@pytest.mark.parametrize("run", [run_pydantic_ai, run_openai_agents])
async def test_calls_are_inside_the_spans_of_the_framework(
    app: Application, run: Callable[[Edictum, Application], Any]
) -> None:
    """One span for each call, below the framework's own; what the tool does is inside it."""
    with app.tracer.start_as_current_span(f"request for {run.__name__}") as request:
        await run(make_guard(), app)
    trace_id = request.get_span_context().trace_id.to_bytes(16, "big")
    spans = [span for span in app.receiver.spans() if span.trace_id == trace_id]
    ours = {
        span.attributes["gen_ai.tool.call.id"]: span
        for span in spans
        if "edictum.outcome" in span.attributes
    }
    told = {call_id: span.attributes["edictum.outcome"] for call_id, span in ours.items()}
    assert told == OUTCOMES
    for span in ours.values():
        names = [each.name for each in find_ancestors(span, spans)]
        assert names[-1] == f"request for {run.__name__}"
        assert any("agent" in name.lower() for name in names[1:-1])  # spans of the framework
    work = {span.name: span.parent_id for span in spans if span.name.startswith("work on")}
    assert work == {f"work on {it}": ours[it].span_id for it in QUERIES if it != "denied"}
    assert [name for name, _ in ours["approved"].events] == [
        "edictum.call_approval_requested",
        "edictum.call_approval_granted",
    ]
