"""Pydantic AI, in its real loop with a scripted model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from faults import PlantedFaults
from pages import ExampleAndPage
from pydantic_ai import Agent, DeferredToolRequests, Tool
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from edictum.adapters import PydanticAIAdapter
from edictum.testing.adapter import AdapterConformance, Answer, ControlFlow

pytestmark = pytest.mark.s1  # needs pydantic_ai


class Scripted:
    """An agent, the model that plays its script, and what the model was shown."""

    def __init__(self, tools: Any, script: Any, capabilities: Any) -> None:
        self.seen: list[Any] = []
        self.script = script
        self.output: Any = None
        model = FunctionModel(self.answer, stream_function=self.stream)
        self.agent: Agent[None, Any] = Agent(
            model, tools=[Tool(tool) for tool in tools], capabilities=capabilities, output_type=[str, DeferredToolRequests]
        )

    def turn(self, messages: Any) -> Any:
        self.seen.append(list(messages))
        return self.script[len(self.seen) - 1] if len(self.seen) <= len(self.script) else ()

    def answer(self, messages: Any, info: Any) -> ModelResponse:
        calls = self.turn(messages)
        parts = [ToolCallPart(call.tool, call.args, tool_call_id=call.id) for call in calls]
        return ModelResponse(parts=parts or [TextPart("done")])

    async def stream(self, messages: Any, info: Any) -> Any:
        calls = self.turn(messages)
        for number, call in enumerate(calls):
            yield {number: DeltaToolCall(call.tool, json.dumps(call.args), tool_call_id=call.id)}
        if not calls:
            yield "done"


class TestPydanticAI(AdapterConformance):
    framework, distribution = "Pydantic AI", "pydantic-ai-slim"
    ways = (("sync", "sync"), ("sync", "async"), ("async", "sync"), ("async", "async"))

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return PydanticAIAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Scripted:
        return Scripted(tools, script, [] if adapter is None else [adapter.as_capability(on_warn)])

    def run(self, agent: Scripted) -> None:
        loop = asyncio.new_event_loop()  # run_sync uses the thread's loop
        asyncio.set_event_loop(loop)
        try:
            agent.output = agent.agent.run_sync("go").output
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    async def arun(self, agent: Scripted) -> None:
        agent.output = (await agent.agent.run("go")).output

    def stream(self, agent: Scripted) -> str:
        async def collect() -> str:
            async with agent.agent.run_stream_events("go") as events:
                return str([event async for event in events])

        return asyncio.run(collect())

    def replies(self, agent: Scripted) -> list[Answer]:
        parts = [part for message in agent.seen[-1] for part in message.parts if part.part_kind in ("tool-return", "retry-prompt")]
        assert all(isinstance(part, ToolReturnPart) for part in parts), parts
        return [Answer(part.tool_call_id, part.model_response_str(), None if part.outcome == "success" else True) for part in parts]

    def failing_tool(self) -> Any:
        def report(key: str) -> str:
            raise ToolFailed("there is no such key")

        return report

    def control_flow(self) -> list[ControlFlow]:
        def raising(error: type[Exception], *args: Any) -> Any:
            def steer(key: str) -> str:
                raise error(*args)

            return steer

        return [
            ControlFlow("CallDeferred", raising(CallDeferred)),
            ControlFlow("ApprovalRequired", raising(ApprovalRequired)),
            ControlFlow("ModelRetry", raising(ModelRetry, "use another key"), paused=False),
        ]

    def ending(self, agent: Scripted) -> Any:
        deferred = agent.output if isinstance(agent.output, DeferredToolRequests) else None
        return [call.tool_call_id for call in (deferred.calls + deferred.approvals if deferred else ())], self.replies(agent)

    def target(self, agent: Scripted) -> Any:
        return agent.agent


class TestFaults(PlantedFaults):
    suite = TestPydanticAI
    adapter = PydanticAIAdapter


class TestExample(ExampleAndPage):
    name = "pydantic_ai"
