"""Google ADK: a plugin for a runner, or callbacks for one agent.

ADK's callbacks are not told of a tool that takes too long, and a confirmation, another callback or
an exception may come between them. So the callback before the tool only marks the call: the guard
stands in ``run_async`` of the tool, the one place where ADK runs any tool, after all callbacks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar
from urllib.parse import quote

from edictum.adapters._base import Adapter, AsyncBody
from edictum.adapters._google_adk_canary import ask_adk_agents
from edictum.adapters._identity import Identity
from edictum.adapters._reply import OnWarn
from edictum.core.parameters import ReadLater
from edictum.core.parking import Park, tell_once

CONFIRM_FIRST = "This tool call requires confirmation, please approve or reject."
MARKS_ATTRIBUTE = "_edictum"  # on the context of a call: who governs the run of which tool


class InputRequested(Exception):
    """The tool asked for a confirmation or a credential; ADK runs it again with the answer."""


class GoogleADKAdapter(Adapter):
    """Governs all agents of a runner: ``App(plugins=[GoogleADKAdapter(guard).as_plugin()])``."""

    requires: ClassVar = {"google-adk": ("2.13", "3")}

    context_name: ClassVar = "ADK's ToolContext"

    def identify(self, context: Any) -> Identity:
        """Return session and user. ADK's session ids are only unique for one user."""
        user, session = context.user_id, context.session.id
        return Identity("/".join(quote(part, safe="@") for part in (user, session)), user)

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return InputRequested, self.load("google.adk.workflow._errors").NodeInterruptedError

    def make_park(self, context: Any) -> Park:
        """Return what asks for a confirmation. A call that ADK makes again tells the answer to it;
        if that does not count it waits, because ADK asks once.
        """
        if (confirmation := context.tool_confirmation) is not None:
            return tell_once(bool(confirmation.confirmed), "Google ADK")

        def park(request: Any) -> Any:
            about = {"approval_id": request.approval_id}
            context.request_confirmation(hint=request.message, payload=about)
            raise InputRequested({"error": CONFIRM_FIRST})

        return park

    def as_plugin(self, on_postcondition_warn: OnWarn = None) -> Any:
        """Return a plugin for ``App``: every agent, sub-agent and workflow node of the runner."""
        adapter = self
        base: Any = self.load("google.adk.plugins.base_plugin").BasePlugin

        class EdictumPlugin(base):  # type: ignore[misc]  # the base is known at run time only
            async def before_tool_callback(
                self, *, tool: Any, tool_args: Any, tool_context: Any
            ) -> None:
                adapter._mark(tool, tool_context, on_postcondition_warn)

        return EdictumPlugin(name=self.label)

    def as_agent_callbacks(self, on_postcondition_warn: OnWarn = None) -> tuple[Any, Any, Any]:
        """Return callbacks of an ``LlmAgent``: before, after, on error. Only the first acts."""

        def before(tool: Any, args: Any, tool_context: Any) -> None:
            self._mark(tool, tool_context, on_postcondition_warn)

        def after(tool: Any, args: Any, tool_context: Any, tool_response: Any) -> None:
            """Do nothing: the guard has judged the result."""

        def error(tool: Any, args: Any, tool_context: Any, error: BaseException) -> None:
            """Do nothing: the guard has recorded the exception."""

        return before, after, error

    def _mark(self, tool: Any, context: Any, on_warn: OnWarn) -> None:
        """Mark this run as governed; without a mark the tool is unchanged for other agents."""
        if not hasattr(type(tool), "heeds_marks"):
            kind: Any = type(tool)
            tool.__class__ = _make_class_with_marks(kind)
        marks = vars(context).setdefault(MARKS_ATTRIBUTE, {}).setdefault(id(tool), {})
        marks[self] = on_warn

    async def _run(
        self, tool: Any, args: dict[str, Any], context: Any, inner: AsyncBody, on_warn: Any
    ) -> Any:
        async def body(checked: dict[str, Any]) -> Any:
            value, actions = await inner(checked), context.actions
            asked = actions.requested_tool_confirmations.keys()
            if context.function_call_id in asked | actions.requested_auth_configs.keys():
                raise InputRequested(value)
            return value

        call_id = context.function_call_id
        try:
            reply = await self.acall(
                tool.name,
                args,
                body,
                call_id=call_id,
                flag=_find_failure,
                on_warn=on_warn,
                context=context,
                parameters=ReadLater(lambda: _read_parameters(tool)),
            )
        except InputRequested as waiting:
            return waiting.args[0]
        if reply.text is None:
            return reply.get()
        return {"error" if reply.failed else "result": reply.text}

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        plugins = [self.as_plugin()] if target is None else []
        return self._find_worst(ask_adk_agents(self.load, target, plugins, tool))


@cache
def _make_class_with_marks(kind: Any) -> Any:
    """Return the tool's class with a ``run_async`` that heeds marks, even in copies of the tool."""

    class Marked(kind):  # type: ignore[misc]  # the base is known at run time only
        heeds_marks = True

        async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> Any:
            async def plain(given: dict[str, Any]) -> Any:
                return await super(Marked, self).run_async(args=given, tool_context=tool_context)

            run: AsyncBody = plain
            marks = vars(tool_context).get(MARKS_ATTRIBUTE, {}).pop(id(self), {})
            for adapter, on_warn in marks.items():
                run = _put_around(adapter, self, tool_context, run, on_warn)
            return await run(args)

    Marked.__name__, Marked.__qualname__ = kind.__name__, kind.__qualname__
    return Marked


def _put_around(adapter: Any, tool: Any, context: Any, inner: AsyncBody, on_warn: Any) -> AsyncBody:
    return lambda args: adapter._run(tool, args, context, inner, on_warn)


def _read_parameters(tool: Any) -> Any:
    """Return the source of a tool's defaults: the function behind it, or the schema of MCP."""
    schema = getattr(getattr(tool, "_mcp_tool", None), "inputSchema", None)
    return getattr(tool, "func", None), schema


def _find_failure(value: Any) -> str | None:
    """Return the failure that ADK's own tools and MCP tools report in their results, else None."""
    if not isinstance(value, dict):
        return None
    failed = {
        "error": value.get("error"),
        "status": str(value.get("status")).lower() == "error",
        "isError": value.get("isError") is True,
    }
    return next((f"{key} is set" for key, found in failed.items() if found), None)
