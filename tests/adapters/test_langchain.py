"""LangChain and LangGraph, in their real loops with a scripted model."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.s1  # needs langchain

from faults import PlantedFaults
from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from edictum.adapters import LangChainAdapter
from edictum.testing.adapter import AdapterConformance, Answer, ControlFlow


class ScriptedModel(BaseChatModel):
    """Plays a list of turns, and keeps what it was shown."""

    script: list[Any] = []
    seen: list[Any] = []

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        self.seen.append(list(messages))
        message = self.script[len(self.seen) - 1] if len(self.seen) <= len(self.script) else AIMessage("done")
        return ChatResult(generations=[ChatGeneration(message=message)])


def turn(calls: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": call.tool, "args": call.args, "id": call.id, "type": "tool_call"} for call in calls])


def as_tool(function: Any) -> Any:
    import inspect

    if isinstance(function, StructuredTool):
        return function
    kind = "coroutine" if inspect.iscoroutinefunction(function) else "func"
    return StructuredTool.from_function(**{kind: function}, name=function.__name__, description="A tool.")


class Agent:
    """A LangChain agent, its model, and what the last run gave."""

    def __init__(self, tools: Any, script: Any, middleware: Any) -> None:
        self.model = ScriptedModel(script=[turn(calls) for calls in script], seen=[])
        self.graph = create_agent(self.model, [as_tool(item) for item in tools], middleware=middleware, checkpointer=InMemorySaver())
        self.config = {"configurable": {"thread_id": "1"}}
        self.start = {"messages": [HumanMessage("go")]}
        self.state: Any = None


class TestLangChain(AdapterConformance):
    framework, distribution = "LangChain", "langchain"

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return LangChainAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Agent:
        return Agent(tools, script, [] if adapter is None else [adapter.as_middleware(on_warn)])

    def run(self, agent: Agent) -> None:
        agent.state = agent.graph.invoke(agent.start, agent.config)

    async def arun(self, agent: Agent) -> None:
        agent.state = await agent.graph.ainvoke(agent.start, agent.config)

    def stream(self, agent: Agent) -> str:
        import asyncio

        async def collect() -> str:
            modes = ["updates", "values", "messages", "custom"]
            return str([part async for part in agent.graph.astream(agent.start, agent.config, stream_mode=modes)])

        return asyncio.run(collect())

    def replies(self, agent: Agent) -> list[Answer]:
        read = agent.model.seen[-1]
        assert all(message.type in ("human", "ai", "tool") for message in read)
        found = [message for message in read[1:] if message.type != "ai"]
        assert all(isinstance(message, ToolMessage) for message in found), f"not a ToolMessage: {found}"
        return [Answer(m.tool_call_id, f"{m.text} {m.artifact or ''}", m.status == "error") for m in found]

    def failing_tool(self) -> Any:
        def report(key: str) -> str:
            raise ToolException("there is no such key")

        async def areport(key: str) -> str:
            raise ToolException("there is no such key")

        return StructuredTool.from_function(report, areport, name="report", description="A tool.", handle_tool_error=True)

    def control_flow(self) -> list[ControlFlow]:
        @tool
        def steer(key: str) -> str:
            """Ask a person."""
            return f"the person said {interrupt('may I?')}"

        return [ControlFlow("interrupt()", steer)]

    def ending(self, agent: Agent) -> Any:
        return [item.value for item in agent.state.get("__interrupt__", ())], len(agent.model.seen)

    def target(self, agent: Agent) -> Any:
        return agent.graph


class TestFaults(PlantedFaults):
    suite = TestLangChain
    adapter = LangChainAdapter
