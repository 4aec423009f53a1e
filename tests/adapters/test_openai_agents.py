"""OpenAI Agents SDK, in its real loop with a scripted model."""

from __future__ import annotations

import ast
import asyncio
import json
from typing import Any

import pytest
from agents import Agent, FunctionTool, ModelBehaviorError, RunConfig, Runner, ToolExecutionConfig, function_tool, handoff
from agents.mcp import MCPServer
from agents.testing import ScriptedModel, assistant_message, function_call
from faults import PlantedFaults
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as MCPTool
from pages import ExampleAndPage
from pydantic import BaseModel

from edictum import Edictum, EdictumConfigError, OperationLimits
from edictum.adapters import OpenAIAgentsAdapter
from edictum.testing.adapter import SECRET, AdapterConformance, Answer, Call, ControlFlow, no_forbidden, no_secret, without_secret

pytestmark = pytest.mark.s1  # needs agents

QUIET = RunConfig(tracing_disabled=True)


def turn(calls: Any) -> list[Any]:
    return [function_call(call.tool, call.args, call_id=call.id) for call in calls]


def model(*turns: Any) -> ScriptedModel:
    return ScriptedModel([*(turn(calls) for calls in turns), [assistant_message("done")]])


def as_tool(function: Any, **options: Any) -> Any:
    return function if isinstance(function, FunctionTool) else function_tool(function, **options)


def outputs(agent_model: ScriptedModel) -> list[tuple[str, Any]]:
    """The answers to tool calls in the model's last input."""
    read = agent_model.calls[-1].input
    return [(item["call_id"], item["output"]) for item in read if item.get("type") == "function_call_output"]


def text_of(output: Any) -> str:
    """The SDK writes a dict as Python does; the suite reads JSON."""
    try:
        value = ast.literal_eval(output)
    except (ValueError, SyntaxError):
        return str(output)
    return json.dumps(value) if isinstance(value, dict) else str(output)


class Run:
    """An agent, its model, and how the last run ended."""

    def __init__(self, agent: Any) -> None:
        self.agent, self.result = agent, None


class Params(BaseModel):
    key: str


class TestOpenAIAgents(AdapterConformance):
    framework, distribution = "OpenAI Agents", "openai-agents"
    nested = ("async",)  # the SDK has no synchronous run inside of a running loop

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return OpenAIAgentsAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Run:
        agent = Agent(name="agent", model=model(*script), tools=[as_tool(tool) for tool in tools])
        return Run(agent if adapter is None else adapter.govern(agent, on_warn))

    def run(self, agent: Run) -> None:
        # Runner.run_sync leaves a loop of its own behind in every thread; this one is the same run.
        agent.result = asyncio.run(Runner.run(agent.agent, "go", run_config=QUIET))

    async def arun(self, agent: Run) -> None:
        agent.result = await Runner.run(agent.agent, "go", run_config=QUIET)

    def stream(self, agent: Run) -> str:
        async def collect() -> str:
            agent.result = Runner.run_streamed(agent.agent, "go", run_config=QUIET)
            return str([event async for event in agent.result.stream_events()])

        return asyncio.run(collect())

    def replies(self, agent: Run) -> list[Answer]:
        return [Answer(call_id, text_of(output)) for call_id, output in outputs(agent.agent.model)]

    def failing_tool(self) -> Any:
        def report(key: str) -> str:
            """A tool whose failures the SDK turns into a text of the user's."""
            raise ValueError("there is no such key")

        return function_tool(report, failure_error_function=lambda ctx, error: f"sorry: {error}")

    def control_flow(self) -> list[ControlFlow]:
        @function_tool(needs_approval=True)
        def ask() -> str:
            """Ask a person first."""
            return "asked"

        inner = Agent(name="inner", model=model([Call("ask", {}, "inner_1")], [Call("ask", {}, "inner_2")]), tools=[ask])
        steer = inner.as_tool("steer", "Ask another agent.", parameters=Params)
        return [ControlFlow("an agent as a tool that waits for approval", steer)]

    def ending(self, agent: Run) -> Any:
        return [item.name for item in agent.result.interruptions], len(agent.agent.model.calls)

    def target(self, agent: Run) -> Any:
        return agent.agent


class TestGuardrails(TestOpenAIAgents):
    """The same agent, wired with guardrails on each of its function tools."""

    framework = "OpenAI Agents (guardrails)"

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Run:
        if adapter is None:
            return super().build(None, tools, script)
        before, after = adapter.as_guardrails(on_warn)
        made = [as_tool(tool) for tool in tools]
        for tool in made:
            tool.tool_input_guardrails, tool.tool_output_guardrails = [before], [after]
        return Run(Agent(name="agent", model=model(*script), tools=made))


class TestFaults(PlantedFaults):
    suite = TestOpenAIAgents
    adapter = OpenAIAgentsAdapter


class TestGuardrailFaults(PlantedFaults):
    suite = TestGuardrails
    adapter = OpenAIAgentsAdapter
