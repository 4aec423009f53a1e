"""Agno: one hook for agents, teams and single tools, in ``run`` and in ``arun``."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isasyncgen, iscoroutinefunction, isgenerator
from typing import Any, ClassVar

from edictum.adapters._agno_call import call_id, called, hand_on
from edictum.adapters._base import CANARY, Adapter, OnWarn, Reply, as_text
from edictum.adapters._wire import Pieces
from edictum.execution.portal import PORTAL

CARRIED = (
    "user_message",
    "agent_message",
    "messages",
)  # what an AgentRunException brings to the model beside its text


class AgnoAdapter(Adapter):
    """Governs the tools of an agent: ``Agent(model=..., tools=[...],
    tool_hooks=[AgnoAdapter(guard).as_tool_hook()])``.

    RetryAgentRun and StopAgentRun steer the run and go on as the same objects. They are recorded as
    failures: the tool did run, and a call that is given its slot back for them could be repeated
    without end.
    """

    requires: ClassVar = {"agno": ("3.1", "4")}

    def retold(self, error: BaseException, text: str) -> BaseException:
        for name in (name for name in CARRIED if getattr(error, name, None) is not None):
            setattr(error, name, None)  # written by the same tool, and read by the same model
        return super().retold(error, text)

    def as_tool_hook(self, on_postcondition_warn: OnWarn | None = None) -> Callable[..., Any]:
        """For ``tool_hooks=[...]``; put it first. It is no coroutine function: Agno leaves those
        out of synchronous runs.
        """
        self.load("agno")

        def edictum_hook(
            function_name: str, function_call: Callable[..., Any], arguments: dict[str, Any]
        ) -> Any:
            args = arguments or {}
            if self.is_around(called(function_call), args):
                return function_call(**args)
            run = self._ahook if iscoroutinefunction(function_call) else self._hook
            return run(function_name, function_call, args, on_postcondition_warn)

        return edictum_hook

    def _hook(
        self, name: str, following: Callable[..., Any], args: dict[str, Any], on_warn: OnWarn | None
    ) -> Any:
        returned: Any = None

        def body(checked: dict[str, Any]) -> Any:
            nonlocal returned
            with self.around(called(following), checked):
                returned = hand_on(following, args, checked)(**checked)
            returned = Pieces(list(returned)) if isgenerator(returned) else returned
            return _shown(returned)

        reply = self.call(name, args, body, call_id=call_id(following), flag=_flag, on_warn=on_warn)
        return self._answer(returned, reply)

    async def _ahook(
        self, name: str, following: Callable[..., Any], args: dict[str, Any], on_warn: OnWarn | None
    ) -> Any:
        returned: Any = None

        async def body(checked: dict[str, Any]) -> Any:
            nonlocal returned
            with self.around(called(following), checked):
                returned = await hand_on(following, args, checked)(**checked)
            returned = Pieces(list(returned)) if isgenerator(returned) else returned
            returned = (
                Pieces([piece async for piece in returned], asynchronous=True)
                if isasyncgen(returned)
                else returned
            )
            return _shown(returned)

        reply = await self.acall(
            name, args, body, call_id=call_id(following), flag=_flag, on_warn=on_warn
        )
        return self._answer(returned, reply)

    def _answer(self, returned: Any, reply: Reply) -> Any:
        """The result as the tool gave it, with its parts exchanged where the guard changed
        something.

        A refusal is raised, so that Agno marks it as an error; as this exception, because all
        others end in the log with a traceback.
        """
        if reply.text is not None and reply.failed:
            raise self.load("agno.exceptions").AgentRunException(reply.text)
        value = reply.get()
        if isinstance(returned, Pieces):
            return returned.again() if value == returned.text(_text) else returned.again([value])
        if reply.text is not None or not _is_tool_result(returned):
            return value
        whole = (
            returned.metadata is not None
            and isinstance(value, dict)
            and value.keys() == {"content", "metadata"}
        )
        return returned.model_copy(
            update=value if whole else {"content": as_text(value), "metadata": None}
        )

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        """The hooks of the agent, or of each of its tools, and of each member of a team;
        synchronous and asynchronous.
        """
        found = (
            [[self.as_tool_hook()]]
            if target is None
            else [hooks for agent in _tree(target) for hooks in _hooks(agent)]
        )
        texts = [
            read
            for hooks in found
            for read in (self._ask(tool, hooks, "run"), self._ask(tool, hooks, "arun"))
        ]
        return min(texts, key=lambda text: self._canary_text in text, default="no tool was found")

    def _ask(self, tool: Callable[[], str], hooks: Any, way: str) -> str:
        models, response, read = (
            self.load("agno.models.base"),
            self.load("agno.models.response").ModelResponse,
            list[str](),
        )

        def turn(messages: Any) -> Any:
            read.append(str([message.content for message in messages if message.role == "tool"]))
            call = {
                "id": CANARY,
                "type": "function",
                "function": {"name": CANARY, "arguments": "{}"},
            }
            return (
                response(role="assistant", tool_calls=[call])
                if len(read) == 1
                else response(role="assistant", content="done")
            )

        class CanaryModel(models.Model):  # type: ignore[misc, name-defined]
            def invoke(self, messages: Any, *_: Any, **__: Any) -> Any:
                return turn(messages)

            async def ainvoke(self, messages: Any, *_: Any, **__: Any) -> Any:
                return turn(messages)

            invoke_stream = ainvoke_stream = _parse_provider_response = (
                _parse_provider_response_delta
            ) = invoke

        made = self.load("agno.tools.function").Function(name=CANARY, entrypoint=tool)
        agent = self.load("agno.agent").Agent(
            model=CanaryModel(id=CANARY), tools=[made], tool_hooks=hooks, telemetry=False
        )
        _ = agent.run("canary") if way == "run" else PORTAL.run(agent.arun("canary"))
        return read[-1]


def _text(item: Any) -> str:
    """What Agno puts into the tool's message for a piece: of the events, only those that carry
    output.
    """
    event = getattr(item, "event", "CustomEvent")
    if event == "CustomEvent":
        return str(item)
    return (
        str(item.content or "")
        if event in ("RunContent", "TeamRunContent", "WorkflowCompleted")
        else ""
    )


def _shown(returned: Any) -> Any:
    """What the guard judges: all that the model will read. A ToolResult may hold structured content
    beside its text.
    """
    if not _is_tool_result(returned):
        return returned.text(_text) if isinstance(returned, Pieces) else returned
    return (
        returned.content
        if returned.metadata is None
        else {"content": returned.content, "metadata": returned.metadata}
    )


def _is_tool_result(value: Any) -> bool:
    return type(value).__name__ == "ToolResult" and hasattr(value, "model_copy")


def _flag(value: Any) -> str | None:
    """Agno writes the failure flag of an MCP result into the text."""
    text = value.get("content") if isinstance(value, dict) else value
    return (
        "isError is set"
        if isinstance(text, str) and text.startswith("Error from MCP tool '")
        else None
    )


def _tree(agent: Any) -> list[Any]:
    members = getattr(agent, "members", None) or ()
    return [agent, *(inner for member in members for inner in _tree(member))]


def _hooks(agent: Any) -> list[Any]:
    """The agent's hooks go before those of its tools; without any, each tool has its own."""
    return (
        [agent.tool_hooks]
        if agent.tool_hooks is not None
        else [getattr(tool, "tool_hooks", None) for tool in agent.tools or ()]
    )
