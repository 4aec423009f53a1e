"""Pydantic AI: a capability that goes around every function tool of an agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from edictum.adapters._base import CANARY, Adapter, OnWarn, Reply
from edictum.execution.portal import PORTAL

BESIDE = (
    "content",
    "metadata",
)  # what a ToolReturn may hold beside its value: more for the model, and what the application reads


class PydanticAIAdapter(Adapter):
    """Governs the tools of an agent: ``Agent(model, tools=[...],
    capabilities=[PydanticAIAdapter(guard).as_capability()])``.
    """

    requires: ClassVar = {"pydantic-ai-slim": ("2.60", "3")}

    def control_flow(self) -> tuple[type[BaseException], ...]:
        """A deferred call has no result yet. ModelRetry and ToolFailed are not here: by them a tool
        says that it failed.
        """
        return self._exceptions.CallDeferred, self._exceptions.ApprovalRequired

    @cached_property
    def _exceptions(self) -> Any:
        return self.load("pydantic_ai.exceptions")

    def retold(self, error: BaseException, text: str) -> BaseException:
        """The model reads the first two from the part that they carry, not from their text."""
        exceptions = self._exceptions
        kinds = {
            exceptions.ToolRetryError: exceptions.ModelRetry,
            exceptions.ToolFailedError: exceptions.ToolFailed,
        }
        kind: Callable[[str], BaseException] | None = kinds.get(type(error))
        return super().retold(error, text) if kind is None else kind(text)

    def as_capability(self, on_postcondition_warn: OnWarn | None = None) -> Any:
        """For ``Agent(capabilities=[...])``: function tools, toolsets and MCP servers, in run,
        run_sync and streaming runs.
        """
        adapter = self

        class EdictumCapability(self.load("pydantic_ai.capabilities").AbstractCapability):  # type: ignore[misc]
            async def wrap_tool_execute(
                self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any
            ) -> Any:
                return await adapter._govern(call, args, handler, on_postcondition_warn)

        return EdictumCapability()

    async def _govern(
        self, call: Any, args: dict[str, Any], handler: Any, on_warn: OnWarn | None
    ) -> Any:
        if self.is_around(call, args):
            return await handler(args)
        exceptions = self._exceptions
        returned: Any = None
        shown: Any = None

        async def body(checked: dict[str, Any]) -> Any:
            nonlocal returned, shown
            try:
                with self.around(call, checked):
                    returned = await handler(checked)
            except (
                exceptions.SkipToolExecution
            ) as skip:  # another capability put a result in the tool's place: it is judged too
                returned = skip.result
            shown = _shown(returned)
            return shown

        reply = await self.acall(
            call.tool_name, args, body, call_id=call.tool_call_id, on_warn=on_warn
        )
        if reply.text is not None and reply.failed:
            raise exceptions.ToolFailed(reply.text)
        return _answer(returned, reply, shown)

    def _probe(self, target: Any, tool: Callable[..., Any]) -> str:
        agents, messages, models = (
            self.load(f"pydantic_ai{name}") for name in ("", ".messages", ".models.function")
        )
        read: list[str] = []

        def model(history: list[Any], info: Any) -> Any:
            if len(history) == 1:
                return messages.ModelResponse(
                    parts=[messages.ToolCallPart(CANARY, {}, tool_call_id=CANARY)]
                )
            read.append(str(history[-1].parts))
            return messages.ModelResponse(parts=[messages.TextPart("done")])

        def canary() -> Any:
            """Must not run."""
            return tool()

        agent = agents.Agent(capabilities=[self.as_capability()]) if target is None else target
        extra = agents.FunctionToolset([agents.Tool(canary, name=CANARY)])
        PORTAL.run(
            agent.run(
                "canary", model=models.FunctionModel(model), toolsets=[extra], output_type=str
            )
        )
        return "".join(read)


def _shown(returned: Any) -> Any:
    """What the guard judges: all that the tool gave. A ToolReturn may hold content and metadata
    beside its value.
    """
    if getattr(returned, "kind", None) != "tool-return" or not hasattr(returned, "return_value"):
        return returned
    beside = {
        name: getattr(returned, name) for name in BESIDE if getattr(returned, name) is not None
    }
    return {"return_value": returned.return_value, **beside} if beside else returned.return_value


def _answer(returned: Any, reply: Reply, shown: Any) -> Any:
    """The result as the tool gave it, with its parts exchanged where the guard changed
    something.
    """
    value = reply.get()
    if shown is returned or reply.text is not None:
        return value
    if value is shown:
        return returned
    parted = any(getattr(returned, name) is not None for name in BESIDE)
    whole = (
        parted and isinstance(value, dict) and value.keys() == shown.keys()
    )  # a suppressed result has no parts any more
    return replace(
        returned, **{**dict.fromkeys(BESIDE), **(value if whole else {"return_value": value})}
    )
