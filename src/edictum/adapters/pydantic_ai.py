"""Pydantic AI: a capability that goes around every function tool of an agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from edictum.adapters._base import AROUND, Adapter
from edictum.adapters._canary import CANARY
from edictum.adapters._identity import Identity
from edictum.adapters._pydantic_ai_parking import has_output, make_deferring_park
from edictum.adapters._reply import OnWarn, ToolReply
from edictum.core.parking import Park
from edictum.execution.portal import PORTAL

# What a ToolReturn may hold beside its value: more for the model, and what the application reads.
BESIDE = ("content", "metadata")


class PydanticAIAdapter(Adapter):
    """Governs an agent: ``Agent(capabilities=[PydanticAIAdapter(guard).as_capability()])``."""

    requires: ClassVar = {"pydantic-ai-slim": ("2.60", "3")}

    context_name: ClassVar = "Pydantic AI's RunContext"

    def identify(self, context: Any) -> Identity:
        return Identity(context.conversation_id)  # never run_id: each run has another

    def control_flow(self) -> tuple[type[BaseException], ...]:
        """Return the exceptions that defer a call. ModelRetry and ToolFailed are not among them: by
        these a tool says that it failed.
        """
        return self._exceptions.CallDeferred, self._exceptions.ApprovalRequired

    def make_park(self, context: Any) -> Park | str:
        """Return what raises ApprovalRequired, if the agent's output types have a place for it."""
        requests = self.load("pydantic_ai").DeferredToolRequests
        if not has_output(getattr(context.agent, "output_type", None), requests):
            return "DeferredToolRequests is not among the output types of its agent"
        return make_deferring_park(self._exceptions.ApprovalRequired, context)

    @cached_property
    def _exceptions(self) -> Any:
        return self.load("pydantic_ai.exceptions")

    def with_redacted_text(self, error: BaseException, text: str) -> BaseException:
        """Replace the exceptions whose text the model reads from the part that they carry."""
        exceptions = self._exceptions
        kinds = {
            exceptions.ToolRetryError: exceptions.ModelRetry,
            exceptions.ToolFailedError: exceptions.ToolFailed,
        }
        kind: Callable[[str], BaseException] | None = kinds.get(type(error))
        return super().with_redacted_text(error, text) if kind is None else kind(text)

    def as_capability(self, on_postcondition_warn: OnWarn = None) -> Any:
        """Return a capability for ``Agent``: all tools, toolsets and MCP servers, in all runs."""
        adapter = self
        base: Any = self.load("pydantic_ai.capabilities").AbstractCapability
        wrapper: Any = self.load("pydantic_ai.toolsets").WrapperToolset
        readers = self.load("pydantic_ai").FunctionToolset(self._make_readers(lambda each: each))

        class HeldToolset(wrapper):  # type: ignore[misc]  # the base is known at run time only
            """Inside of all capabilities: what they make of a call must have been judged."""

            async def call_tool(self, name: str, tool_args: Any, ctx: Any, tool: Any) -> Any:
                adapter._check_call(ctx.tool_call_id, tool_args)
                return await super().call_tool(name, tool_args, ctx, tool)

        class EdictumCapability(base):  # type: ignore[misc]  # the base is known at run time only
            def get_toolset(self) -> Any:
                return readers

            def get_wrapper_toolset(self, toolset: Any) -> Any:
                return HeldToolset(toolset)

            async def wrap_tool_execute(
                self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any
            ) -> Any:
                details = {"on_warn": on_postcondition_warn, "context": ctx}
                details["parameters"] = tool_def.parameters_json_schema
                return await adapter._govern(call, args, handler, details)

        return EdictumCapability()

    async def _govern(
        self, call: Any, args: dict[str, Any], handler: Any, details: dict[str, Any]
    ) -> Any:
        if self.is_around(call, args):
            return await handler(args)
        returned: Any = None
        shown: Any = None

        async def body(checked: dict[str, Any]) -> Any:
            nonlocal returned, shown
            try:
                with self.around(call, checked):
                    returned = await handler(checked)
            except self._exceptions.SkipToolExecution as skip:
                returned = skip.result  # another capability's, in place of the tool's
            shown = _to_judge(returned)
            return shown

        details |= {"call_id": call.tool_call_id, "is_plain": lambda: shown is returned}
        reply = await self.acall(call.tool_name, args, body, **details)
        if reply.text is not None and reply.failed:
            raise self._exceptions.ToolFailed(reply.text)
        return _answer(returned, reply, shown)

    def _check_call(self, call_id: str | None, args: dict[str, Any]) -> None:
        """Deny the call with this id, if it is governed and its arguments were changed."""
        for adapter, call, checked in reversed(AROUND.get()):
            if adapter is self and getattr(call, "tool_call_id", None) == call_id:
                self.hold_to_checked_args(args, checked)
                return

    def _probe(self, target: Any, tool: Callable[..., Any]) -> str:
        agents, messages, models = (
            self.load(f"pydantic_ai{name}") for name in ("", ".messages", ".models.function")
        )
        read: list[str] = []

        def play(history: list[Any], info: Any) -> Any:
            part = messages.ToolCallPart(CANARY, {}, tool_call_id=CANARY)
            if len(history) > 1:
                read.append(str(history[-1].parts))
                part = messages.TextPart("done")
            return messages.ModelResponse(parts=[part])

        def canary() -> Any:
            """Prove that calls are governed."""
            return tool()

        agent = agents.Agent(capabilities=[self.as_capability()]) if target is None else target
        tools = [agents.FunctionToolset([agents.Tool(canary, name=CANARY)])]
        model = models.FunctionModel(play)
        PORTAL.run(agent.run("canary", model=model, toolsets=tools, output_type=str))
        return "".join(read)


def _to_judge(returned: Any) -> Any:
    """Return what the guard judges: all that the tool gave, even beside its value."""
    if getattr(returned, "kind", None) != "tool-return" or not hasattr(returned, "return_value"):
        return returned
    parts = {"return_value": returned.return_value} | {
        name: getattr(returned, name) for name in BESIDE if getattr(returned, name) is not None
    }
    return parts if len(parts) > 1 else returned.return_value


def _answer(returned: Any, reply: ToolReply, shown: Any) -> Any:
    """Return the tool's result, with its parts replaced where the guard changed something."""
    if shown is returned or reply.text is not None:
        return reply.get()
    made = returned if reply.get_whole() is shown else _rebuild(returned, reply.value, shown)
    read = {name: reply.limit.fit(getattr(made, name)) for name in ("return_value", "content")}
    return replace(made, **read)


def _rebuild(returned: Any, value: Any, shown: Any) -> Any:
    """Return the tool's ToolReturn with the value as the guard has redacted it."""
    has_parts = any(getattr(returned, name) is not None for name in BESIDE)
    if has_parts and isinstance(value, dict) and value.keys() == shown.keys():
        parts = value
    else:  # a suppressed result has no parts any more
        parts = {"return_value": value}
    return replace(returned, **{**dict.fromkeys(BESIDE), **parts})
