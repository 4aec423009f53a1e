"""CrewAI in its real loop with a scripted model: once with ``wrap_tools``, once with ``register``."""

from __future__ import annotations

import ast
import json
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from faults import PlantedFaults
from pages import ExampleAndPage

for name, value in {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}.items():
    os.environ[name] = value
os.environ.setdefault("CREWAI_STORAGE_DIR", tempfile.mkdtemp())

from crewai import Agent, Crew, Process, Task
from crewai.hooks import clear_before_tool_call_hooks
from crewai.llms.base_llm import BaseLLM
from crewai.tools import BaseTool, tool
from crewai.tools.tool_failure import ToolFailure
from pydantic import PrivateAttr

from edictum import Edictum, EdictumConfigError, OperationLimits
from edictum.adapters import CrewAIAdapter
from edictum.testing.adapter import (
    SECRET,
    AdapterConformance,
    Answer,
    Call,
    actions,
    last,
    no_forbidden,
    no_secret,
    without_secret,
)

pytestmark = pytest.mark.s3  # needs crewai


class ScriptedModel(BaseLLM):
    """Plays a list of turns, and keeps what it was shown."""

    _script: list[Any] = PrivateAttr(default_factory=list)
    _seen: list[Any] = PrivateAttr(default_factory=list)
    _native: bool = PrivateAttr(default=True)

    def __init__(self, script: Any, native: bool = True) -> None:
        super().__init__(model="scripted")
        self._script, self._native = list(script), native

    def supports_function_calling(self) -> bool:
        return self._native

    def supports_stop_words(self) -> bool:
        return False

    def get_context_window_size(self) -> int:
        return 100_000

    def call(self, messages: Any, *args: Any, **options: Any) -> Any:
        self._seen.append(json.loads(json.dumps(messages, default=str)))
        asked = self._script[len(self._seen) - 1] if len(self._seen) <= len(self._script) else "done"
        return asked if isinstance(asked, str) and self._native else [as_call(one) for one in asked] if self._native else as_text(asked)

    async def acall(self, messages: Any, *args: Any, **options: Any) -> Any:
        return self.call(messages)


def as_call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.tool, "arguments": json.dumps(call.args)}}


def as_text(asked: Any) -> str:
    """A turn for a model that writes its calls as text, one at a time."""
    if isinstance(asked, str):
        return f"Thought: done\nFinal Answer: {asked}"
    return f"Thought: go\nAction: {asked[0].tool}\nAction Input: {json.dumps(asked[0].args)}\n"


def as_tool(function: Any) -> Any:
    return function if isinstance(function, BaseTool) else tool(function.__name__)(function)


def agent_with(tools: Any, model: Any, role: str = "reader") -> Agent:
    return Agent(role=role, goal="g", backstory="b", llm=model, tools=[as_tool(item) for item in tools], verbose=False)


class Run:
    """A crew of one agent, and its model."""

    def __init__(self, tools: Any, script: Any, native: bool = True) -> None:
        self.model = ScriptedModel(script, native)
        self.agent = agent_with(tools, self.model)
        self.task = Task(description="d", expected_output="e", agent=self.agent)
        self.crew = Crew(agents=[self.agent], tasks=[self.task], verbose=False)


def read_as_json(content: str) -> str:
    """CrewAI shows a model str(dict); the suite reads JSON."""
    try:
        return json.dumps(ast.literal_eval(content))
    except (ValueError, SyntaxError):
        return content


class TestCrewAI(AdapterConformance):
    framework, distribution = "CrewAI", "crewai"
    has_call_ids = False
    ways = (("sync", "sync"), ("sync", "async"), ("async", "sync"), ("async", "async"))
    cannot = {
        "call id": "CrewAI hands the model's call id to no hook and to no tool; the audit has an id of its own",
        "control flow": "CrewAI has no exception by which a tool could steer: every one becomes a text that the model reads",
        "cancellation": "CrewAI runs tools in threads; a cancelled run leaves them to their end, which is what is recorded",
    }

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return CrewAIAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Run:
        made = Run(tools, script)
        if adapter is not None:
            adapter.wrap_tools(made.crew, on_warn)
        return made

    def run(self, agent: Run) -> None:
        agent.crew.kickoff()

    async def arun(self, agent: Run) -> None:
        await agent.crew.akickoff()

    def stream(self, agent: Run) -> str:
        agent.crew.stream = True
        streamed = agent.crew.kickoff()
        return str([chunk.model_dump() for chunk in streamed]) + str(streamed.result)

    def replies(self, agent: Run) -> list[Answer]:
        found = [message for message in agent.model._seen[-1] if message["role"] == "tool"]
        return [Answer(message["tool_call_id"], read_as_json(message["content"])) for message in found]

    def failing_tool(self) -> Any:
        @tool("report")
        def report(key: str) -> Any:
            """Report."""
            return ToolFailure(message="there is no such key", code="no_key")

        return report

    def target(self, agent: Run) -> Any:
        return agent.crew


class TestRegister(TestCrewAI):
    """The same with CrewAI's own hooks, as its documentation shows them."""

    framework = "CrewAI register()"
    cannot = {
        **TestCrewAI.cannot,
        "two guards": "CrewAI's hooks are global: every guard that is registered governs every call; wrap_tools keeps them apart",
    }

    @pytest.fixture(autouse=True)
    def no_hooks_are_left(self) -> Iterator[None]:
        yield
        clear_before_tool_call_hooks()

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Run:
        clear_before_tool_call_hooks()  # they are global, and the suite builds many agents in one process
        if adapter is not None:
            adapter.register(on_warn)
        return Run(tools, script)


class TestFaults(PlantedFaults):
    suite = TestCrewAI
    adapter = CrewAIAdapter
