"""Agno: one hook for agents, teams and single tools, in ``run`` and in ``arun``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from inspect import isasyncgen, iscoroutinefunction, isgenerator
from typing import Any, ClassVar

from edictum.adapters._base import CANARY, Adapter, OnWarn, Reply
from edictum.errors import EdictumToolError
from edictum.execution.portal import PORTAL

CARRIED = ("user_message", "agent_message", "messages")  # what an AgentRunException brings to the model beside its text


class AgnoAdapter(Adapter):
    """Governs the tools of an agent: ``Agent(model=..., tools=[...], tool_hooks=[AgnoAdapter(guard).as_tool_hook()])``.

    RetryAgentRun and StopAgentRun steer the run and go on as the same objects. They are recorded as failures: the tool did run, and a
    call that is given its slot back for them could be repeated without end.
    """

    requires: ClassVar = {"agno": ("3.1", "4")}

    def retold(self, error: BaseException, text: str) -> BaseException:
        for name in (name for name in CARRIED if getattr(error, name, None) is not None):
            setattr(error, name, None)  # written by the same tool, and read by the same model
        return super().retold(error, text)

    def as_tool_hook(self, on_postcondition_warn: OnWarn | None = None) -> Callable[..., Any]:
        """For ``tool_hooks=[...]``; put it first. It is no coroutine function: Agno leaves those out of synchronous runs."""
        self.load("agno")

        def edictum_hook(function_name: str, function_call: Callable[..., Any], arguments: dict[str, Any]) -> Any:
            run = self._ahook if iscoroutinefunction(function_call) else self._hook
            return run(function_name, function_call, arguments or {}, on_postcondition_warn)

        return edictum_hook

    def _hook(self, name: str, following: Callable[..., Any], args: dict[str, Any], on_warn: OnWarn | None) -> Any:
        returned: Any = None

        def body(checked: dict[str, Any]) -> Any:
            nonlocal returned
            returned = following(**checked)
            returned = Pieces(list(returned)) if isgenerator(returned) else returned
            return _shown(returned)

        return _answer(returned, self.call(name, args, body, call_id=_call_id(following), flag=_flag_of(lambda: returned), on_warn=on_warn))

    async def _ahook(self, name: str, following: Callable[..., Any], args: dict[str, Any], on_warn: OnWarn | None) -> Any:
        returned: Any = None

        async def body(checked: dict[str, Any]) -> Any:
            nonlocal returned
            returned = await following(**checked)
            returned = Pieces(list(returned)) if isgenerator(returned) else returned
            returned = APieces([piece async for piece in returned]) if isasyncgen(returned) else returned
            return _shown(returned)

        flag = _flag_of(lambda: returned)
        return _answer(returned, await self.acall(name, args, body, call_id=_call_id(following), flag=flag, on_warn=on_warn))

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        """The hooks of the agent, or of each of its tools, and of each member of a team; synchronous and asynchronous."""
        found = [[self.as_tool_hook()]] if target is None else [hooks for agent in _tree(target) for hooks in _hooks(agent)]
        texts = [read for hooks in found for read in (self._ask(tool, hooks, "run"), self._ask(tool, hooks, "arun"))]
        return min(texts, key=lambda text: self._canary_text in text, default="no tool was found")

    def _ask(self, tool: Callable[[], str], hooks: Any, way: str) -> str:
        models, response, read = self.load("agno.models.base"), self.load("agno.models.response").ModelResponse, list[str]()

        def turn(messages: Any) -> Any:
            read.append(str([message.content for message in messages if message.role == "tool"]))
            call = {"id": CANARY, "type": "function", "function": {"name": CANARY, "arguments": "{}"}}
            return response(role="assistant", tool_calls=[call]) if len(read) == 1 else response(role="assistant", content="done")

        class CanaryModel(models.Model):  # type: ignore[misc, name-defined]
            def invoke(self, messages: Any, *_: Any, **__: Any) -> Any:
                return turn(messages)

            async def ainvoke(self, messages: Any, *_: Any, **__: Any) -> Any:
                return turn(messages)

            invoke_stream = ainvoke_stream = _parse_provider_response = _parse_provider_response_delta = invoke

        made = self.load("agno.tools.function").Function(name=CANARY, entrypoint=tool)
        agent = self.load("agno.agent").Agent(model=CanaryModel(id=CANARY), tools=[made], tool_hooks=hooks, telemetry=False)
        said = agent.run("canary") if way == "run" else PORTAL.run(agent.arun("canary"))
        return f"{read[-1]} {said.status}"


class Pieces(list[Any], Iterator[Any]):
    """What a generator yielded. It ran to its end inside of the guard; Agno goes through its pieces afterwards."""

    def __next__(self) -> Any:
        if not self:
            raise StopIteration
        return self.pop(0)


class APieces(list[Any], AsyncIterator[Any]):
    async def __anext__(self) -> Any:
        if not self:
            raise StopAsyncIteration
        return self.pop(0)
