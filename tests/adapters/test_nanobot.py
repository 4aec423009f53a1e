"""Nanobot in its real loop with a scripted model: once with ``govern``, once with ``wrap_registry``."""

from __future__ import annotations

import asyncio
import inspect
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from faults import PlantedFaults
from loguru import logger
from nanobot import Nanobot
from nanobot.agent.loop import AgentLoop
from nanobot.agent.tools.base import Tool, ToolResult
from nanobot.agent.tools.context import RequestContext, current_request_context
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.bus.events import InboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.providers.base import LLMProvider, LLMResponse, ToolCallRequest
from pages import ExampleAndPage

from edictum import Edictum, EdictumConfigError, OperationLimits
from edictum.adapters import NanobotAdapter
from edictum.testing.adapter import SECRET, AdapterConformance, Answer, Call, actions, last, no_forbidden, no_secret, without_secret

pytestmark = pytest.mark.s4  # needs nanobot
logger.remove()


@pytest.fixture(autouse=True)
def no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


class ScriptedModel(LLMProvider):
    """Plays a list of turns, and keeps what it was shown."""

    def __init__(self, script: Any) -> None:
        super().__init__(provider_name="scripted")
        self.script, self.seen = list(script), []  # type: ignore[var-annotated]

    def get_default_model(self) -> str:
        return "scripted"

    async def chat(self, messages: Any, tools: Any = None, model: Any = None, **options: Any) -> LLMResponse:
        self.seen.append([message for message in messages if message.get("role") == "tool"])
        asked = self.script[len(self.seen) - 1] if len(self.seen) <= len(self.script) else []
        calls = [ToolCallRequest(id=call.id, name=call.tool, arguments=dict(call.args)) for call in asked]
        return LLMResponse(content=None if calls else "done", tool_calls=calls, finish_reason="tool_calls" if calls else "stop")


class FunctionTool(Tool):
    """A tool made of one of the suite's functions."""

    description = "A tool."
    parameters = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}  # noqa: RUF012
    name = ""
    read_only = True

    def __init__(self, function: Any) -> None:
        self.function = function

    async def execute(self, key: str) -> Any:
        value = self.function(key=key)
        return await value if inspect.isawaitable(value) else value


def as_tool(function: Any) -> Tool:
    if isinstance(function, Tool):
        return function
    return type(function.__name__, (FunctionTool,), {"name": function.__name__})(function)


def registry_of(tools: Any) -> ToolRegistry:
    registry = ToolRegistry()
    for item in tools:
        registry.register(as_tool(item))
    return registry


class Run:
    """A loop with its tools, and its model."""

    def __init__(self, registry: Any, script: Any, hooks: Any = None) -> None:
        self.model = ScriptedModel(script)
        self.loop = AgentLoop(
            bus=MessageBus(), provider=self.model, workspace=Path(tempfile.mkdtemp()), tool_registry=registry, hooks=hooks
        )


class TestNanobot(AdapterConformance):
    framework, distribution = "Nanobot", "nanobot-ai"
    ways = (("async", "async"),)
    nested = ("async",)
    cannot = {"control flow": "Nanobot has no exception by which a tool could steer: every one becomes a text that the model reads"}

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return NanobotAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Run:
        made = Run(registry_of(tools), script)
        if adapter is not None:
            adapter.govern(made.loop, on_warn)
        return made

    async def arun(self, agent: Run) -> None:
        await agent.loop.process_direct("go")

    def stream(self, agent: Run) -> str:
        async def collect() -> str:
            stream = await Nanobot(agent.loop).run_streamed("go")
            return str([event async for event in stream.stream_events()]) + str(await stream.wait())

        return asyncio.run(collect())

    def replies(self, agent: Run) -> list[Answer]:
        return [Answer(message["tool_call_id"], read(message["content"])) for message in agent.model.seen[-1]]

    def failing_tool(self) -> Any:
        def report(key: str) -> Any:
            return ToolResult.error("there is no such key")

        return report

    def target(self, agent: Run) -> Any:
        return agent.loop


def read(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content)


class TestWrapRegistry(TestNanobot):
    """The same with a governed registry and the hook that brings the call ids."""

    framework = "Nanobot wrap_registry()"

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Run:
        if adapter is None:
            return Run(registry_of(tools), script)
        return Run(adapter.wrap_registry(registry_of(tools), on_warn), script, [adapter.as_hook()])


class TestFaults(PlantedFaults):
    suite = TestNanobot
    adapter = NanobotAdapter
