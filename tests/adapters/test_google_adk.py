"""Google ADK, in its real loop with a scripted model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from faults import PlantedFaults
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, ToolThreadPoolConfig
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool, ToolContext
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.genai import types
from pages import ExampleAndPage

from edictum import Edictum, EdictumConfigError, OperationLimits
from edictum.adapters import GoogleADKAdapter
from edictum.testing.adapter import SECRET, AdapterConformance, Answer, Call, ControlFlow, no_forbidden, no_secret, without_secret

pytestmark = pytest.mark.s1  # needs google.adk

# Without it ADK runs plain functions on its event loop, where nothing can end them.
POOLED = RunConfig(tool_thread_pool_config=ToolThreadPoolConfig(max_workers=8))


class ScriptedModel(BaseLlm):
    """Plays a list of turns, and keeps what it was shown."""

    model: str = "scripted"
    script: list[Any] = []
    seen: list[Any] = []

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        self.seen.append([part for content in llm_request.contents for part in content.parts or ()])
        calls = self.script[len(self.seen) - 1] if len(self.seen) <= len(self.script) else ()
        parts = [types.Part(function_call=types.FunctionCall(name=call.tool, args=call.args, id=call.id)) for call in calls]
        yield LlmResponse(content=types.Content(role="model", parts=parts or [types.Part(text="done")]))


def agent_of(tools: Any, script: Any, name: str = "agent", **options: Any) -> LlmAgent:
    return LlmAgent(name=name, model=ScriptedModel(script=list(script), seen=[]), tools=list(tools), **options)


def answers(model: Any) -> list[tuple[str, Any]]:
    return [(part.function_response.id, part.function_response.response) for part in model.seen[-1] if part.function_response]


class Run:
    """A runner, its agent, and the events of the last run."""

    def __init__(self, agent: LlmAgent, plugins: Any = (), config: Any = None) -> None:
        self.agent, self.config = agent, config or RunConfig()
        self.runner = InMemoryRunner(app=App(name="app", root_agent=agent, plugins=list(plugins)))
        self.events: list[Any] = []
        self.session: Any = None

    async def play(self, said: types.Part | None = None) -> None:
        if self.session is None:
            self.session = await self.runner.session_service.create_session(app_name="app", user_id="user")
        async for event in self.runner.run_async(**self.start(said)):
            self.events.append(event)

    def start(self, said: types.Part | None = None) -> dict[str, Any]:
        message = types.Content(role="user", parts=[said or types.Part(text="go")])
        return {"user_id": "user", "session_id": self.session.id, "new_message": message, "run_config": self.config}


class TestGoogleADK(AdapterConformance):
    framework, distribution = "Google ADK", "google-adk"

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return GoogleADKAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Run:
        return Run(agent_of(tools, script), [] if adapter is None else [adapter.as_plugin(on_warn)], POOLED)

    def run(self, agent: Run) -> None:
        agent.session = agent.runner.session_service.create_session_sync(app_name="app", user_id="user")
        agent.events += list(agent.runner.run(**agent.start()))

    async def arun(self, agent: Run) -> None:
        await agent.play()

    def stream(self, agent: Run) -> str:
        agent.config = agent.config.model_copy(update={"streaming_mode": "sse"})
        asyncio.run(agent.play())
        return str(agent.events)

    def replies(self, agent: Run) -> list[Answer]:
        return [Answer(call_id, json.dumps(response), "error" in response) for call_id, response in answers(agent.agent.model)]

    def failing_tool(self) -> Any:
        def report(key: str) -> dict[str, str]:
            """A tool of Google's kind."""
            return {"status": "ERROR", "error_details": "there is no such key"}

        return report

    def control_flow(self) -> list[ControlFlow]:
        def steer(key: str, tool_context: ToolContext) -> dict[str, str]:
            """Ask a person."""
            if tool_context.tool_confirmation is None:
                tool_context.request_confirmation(hint="may I?")
                tool_context.actions.skip_summarization = True
                return {"error": "wait for a person"}
            return {"result": "the person agreed"}

        return [ControlFlow("request_confirmation()", steer)]

    def ending(self, agent: Run) -> Any:
        return [sorted(event.long_running_tool_ids or ()) != [] for event in agent.events], len(agent.agent.model.seen)

    def target(self, agent: Run) -> Any:
        return agent.runner


class TestAgentCallbacks(TestGoogleADK):
    """The same agent with callbacks of its own, and with ADK's defaults: plain functions run on the event loop."""

    framework = "Google ADK (agent callbacks)"
    cannot = dict.fromkeys(("timeout", "turn"), "without a tool_thread_pool_config ADK runs plain functions on its event loop, where nothing can end them")

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Run:
        if adapter is None:
            return Run(agent_of(tools, script))
        before, after, error = adapter.as_agent_callbacks(on_warn)
        options = {"before_tool_callback": before, "after_tool_callback": after, "on_tool_error_callback": error}
        return Run(agent_of(tools, script, **options))

    def target(self, agent: Run) -> Any:
        return agent.agent


class TestFaults(PlantedFaults):
    suite = TestGoogleADK
    adapter = GoogleADKAdapter
