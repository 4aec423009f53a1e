"""OpenAI Agents SDK: ``govern(agent)`` for all that it can call, or guardrails for single tools."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from edictum._logs import ADAPTER_WARNING, log
from edictum.adapters._base import Adapter
from edictum.adapters._identity import Identity
from edictum.adapters._openai_approvals import (
    GUARDRAILS_WAIT,
    NestedApproval,
    PausesRuns,
    keep_marks,
    let_pause,
)
from edictum.adapters._openai_canary import ask_openai_agent
from edictum.adapters._openai_handoffs import get_governors, govern_handoff, list_parameters
from edictum.adapters._reply import OnWarn
from edictum.adapters._wire import MCP_ERRORS, note_mcp_errors, parse_json_args
from edictum.core.values import dumps, is_same
from edictum.errors import EdictumConfigError

# Guardrails put the guard into a tool that other threads may be about to use.
WRAPPING_GUARDRAIL = threading.RLock()


class OpenAIAgentsAdapter(PausesRuns, Adapter):
    """Governs an agent: ``OpenAIAgentsAdapter(guard).govern(agent)``."""

    requires: ClassVar = {"openai-agents": ("0.24", "0.25")}
    context_name: ClassVar = "the SDK's ToolContext"
    session_hint: ClassVar = "Run the agent with RunConfig(group_id=...). "

    def identify(self, context: Any) -> Identity:
        """Return the group of the run; a run inside another one has the trace of that one."""
        found = getattr(getattr(context, "run_config", None), "group_id", None)
        trace = None if found else self.load("agents.tracing").get_current_trace()
        return Identity(found or getattr(trace, "group_id", None))

    def govern(self, agent: Any, on_postcondition_warn: OnWarn = None) -> Any:
        """Govern this agent itself, its tools and handoffs, and the agents behind them."""
        if self in get_governors(agent):
            return agent
        self.check_tools(list_parameters(agent.tools))
        adapter, readers = self, self._make_readers(self.load("agents").function_tool)
        readers = [self._wrap_tool(tool, on_postcondition_warn) for tool in readers]
        kind: Any = type(agent)

        class GovernedAgent(kind):  # type: ignore[misc]  # the base is known at run time only
            """A class, because the SDK and its users clone agents: a clone keeps the class."""

            governors = (adapter, *get_governors(agent))

            async def get_all_tools(self, run_context: Any) -> list[Any]:
                adapter._wrap_tools(self, on_postcondition_warn)  # again, for what was added since
                tools = [*await super().get_all_tools(run_context), *readers]
                wrap = adapter._wrap_tool
                return [let_pause(adapter, wrap(it, on_postcondition_warn)) for it in tools]

        agent.__class__ = GovernedAgent
        self._wrap_tools(agent, on_postcondition_warn)
        return agent

    def as_guardrails(self, on_postcondition_warn: OnWarn = None) -> tuple[Any, Any]:
        """Return ``tool_input_guardrails`` and ``tool_output_guardrails`` for ``@function_tool``.

        The first puts the guard around the tool before that runs; the second rejects a result that
        did not come from a governed tool.
        """
        rails = self.load("agents.tool_guardrails")
        self.say_waits(GUARDRAILS_WAIT)
        output = rails.ToolGuardrailFunctionOutput

        def find_tools(data: Any) -> list[Any]:
            return [tool for tool in data.agent.tools if tool.name == data.context.tool_name]

        def check(data: Any) -> Any:
            found = [
                tool
                for tool in find_tools(data)
                if before in (getattr(tool, "tool_input_guardrails", None) or ())
            ]
            if not found:
                raise EdictumConfigError(
                    f"{data.context.tool_name!r} is not in the tools of {data.agent.name!r}; its"
                    " guardrail cannot govern it.",
                    hint="Use OpenAIAgentsAdapter.govern(agent), which covers MCP tools too.",
                )
            with WRAPPING_GUARDRAIL:
                for tool in found:
                    self._wrap_tool(tool, on_postcondition_warn, tool)
            return output.allow()

        def confirm(data: Any) -> Any:
            if any(self in get_governors(tool) for tool in find_tools(data)):
                return output.allow()
            return output.reject_content("DENIED: The tool lacks the guard's input guardrail.")

        before = rails.ToolInputGuardrail(check, name="edictum_input_guardrail")
        return before, rails.ToolOutputGuardrail(confirm, name="edictum_output_guardrail")

    def _wrap_tools(self, agent: Any, on_warn: OnWarn) -> None:
        """Govern what the agent has now. A list in which nothing changes stays the same object."""
        for server in agent.mcp_servers:
            server.call_tool = note_mcp_errors(server.call_tool)
        if any(self not in get_governors(tool) for tool in agent.tools):
            agent.tools = [self._wrap_tool(tool, on_warn) for tool in agent.tools]
        handoffs = [govern_handoff(self, item, agent, on_warn) for item in agent.handoffs]
        if any(new is not old for new, old in zip(handoffs, agent.handoffs, strict=True)):
            agent.handoffs = handoffs

    def _wrap_tool(self, tool: Any, on_warn: OnWarn, into: Any = None) -> Any:
        """Return the tool with the guard inside of its failure handling: it must see exceptions."""
        if self in get_governors(tool):
            return tool
        made, plain = into or copy.copy(tool), copy.copy(tool)
        if not hasattr(tool, "params_json_schema"):
            text = "%r is not a function tool: its calls do not pass through the guard"
            log(ADAPTER_WARNING, text, tool.name, tool=tool.name)
        elif hasattr(made.on_invoke_tool, "_invoke_tool_impl"):
            inner = made.on_invoke_tool._invoke_tool_impl
            made.on_invoke_tool._invoke_tool_impl = self._wrap_invoke(inner, tool, on_warn)
        else:
            plain.timeout_seconds = None  # the SDK's timeout stays outside
            invoke = self.load("agents.tool").invoke_function_tool

            def run_plain(ctx: Any, text: str) -> Any:
                return invoke(function_tool=plain, context=ctx, arguments=text)

            made.on_invoke_tool = self._wrap_invoke(run_plain, tool, on_warn)
        if getattr(tool, "_agent_instance", None) is not None:
            self.govern(tool._agent_instance, on_warn)
        made.governors = (self, *get_governors(tool))
        return made

    def _wrap_invoke(
        self, inner: Callable[[Any, str], Any], tool: Any, on_warn: OnWarn
    ) -> Callable[[Any, str], Any]:
        state = self.load("agents.agent_tool_state")
        # tells the SDK not to hold a text of ours to the output's schema
        handled_mark = self.load("agents.tool")._DEFAULT_FAILURE_HANDLED_ATTR

        async def invoke(ctx: Any, text: str) -> Any:
            args, errors = parse_json_args(text), list[str]()
            about: Any = {"call_id": ctx.tool_call_id, "on_warn": on_warn, "context": ctx}
            if args is None:
                reply = await self.adeny_arguments(ctx.tool_name, text, **about)
                setattr(ctx, handled_mark, True)
                return reply.get()
            about["flag"] = lambda _: errors[0] if errors else None
            about["parameters"] = tool.params_json_schema

            async def body(checked: dict[str, Any]) -> Any:
                MCP_ERRORS.set(errors)
                value = await inner(ctx, text if is_same(checked, args) else dumps(checked))
                scope = state.get_agent_tool_state_scope(ctx)
                nested = state.peek_agent_tool_run_result(ctx.tool_call, scope_id=scope)
                if getattr(nested, "interruptions", None):
                    raise NestedApproval(value)
                return value

            try:
                reply = await self.acall(ctx.tool_name, args, body, **about)
            except NestedApproval as waiting:
                return waiting.args[0]
            setattr(ctx, handled_mark, reply.text is not None)
            return reply.get()

        vars(invoke).update(keep_marks(self, inner, tool))
        return invoke

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        agent = self.govern(self.load("agents").Agent(name="canary")) if target is None else target
        return self._find_worst(ask_openai_agent(self.load, agent, tool))
