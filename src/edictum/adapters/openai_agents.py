"""OpenAI Agents SDK: ``govern(agent)`` for everything that an agent can call, or guardrails for single function tools."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ClassVar

from edictum.adapters._base import CANARY, Adapter, OnWarn
from edictum.errors import EdictumConfigError
from edictum.execution.portal import PORTAL

# Where the failure flag of an MCP result goes: the SDK drops it when it makes a tool output of the result.
MCP_ERRORS: ContextVar[list[str] | None] = ContextVar("edictum_mcp_errors", default=None)


class NestedApproval(Exception):
    """An agent that runs as a tool waits for a person; the SDK calls it again with the answer."""


class OpenAIAgentsAdapter(Adapter):
    """Governs an agent: ``OpenAIAgentsAdapter(guard).govern(agent)``."""

    requires: ClassVar = {"openai-agents": ("0.24", "0.25")}

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return (NestedApproval,)

    def govern(self, agent: Any, on_postcondition_warn: OnWarn | None = None) -> Any:
        """Govern this agent itself, not a copy: function tools, MCP tools, handoffs, the agents behind them and agents as tools."""
        if self in getattr(type(agent), "governors", ()):
            return agent
        adapter, kind = self, type(agent)

        class GovernedAgent(kind):  # type: ignore[misc, valid-type]
            """A class, because the SDK and its users clone agents: a clone has the class of its original, and is governed as well."""

            governors = (adapter, *getattr(kind, "governors", ()))

            async def get_mcp_tools(self, run_context: Any) -> list[Any]:
                return [adapter._around(tool, on_postcondition_warn) for tool in await super().get_mcp_tools(run_context)]

            async def get_all_tools(self, run_context: Any) -> list[Any]:
                adapter._dress(self, on_postcondition_warn)  # again, for what was added since
                return list(await super().get_all_tools(run_context))

        agent.__class__ = GovernedAgent
        self._dress(agent, on_postcondition_warn)
        return agent

    def as_guardrails(self, on_postcondition_warn: OnWarn | None = None) -> tuple[Any, Any]:
        """For ``@function_tool(tool_input_guardrails=[first], tool_output_guardrails=[second])``.

        Guardrails hear of no exception and cannot stop a tool that takes too long. So the first one puts the guard around the tool
        that it was asked about, before that runs; the second one lets no result through that did not come from a governed tool.
        """
        rails = self.load("agents.tool_guardrails")

        def check(data: Any) -> Any:
            found = [tool for tool in data.agent.tools if before in (getattr(tool, "tool_input_guardrails", None) or ())]
            if not any([self._around(tool, on_postcondition_warn, tool) for tool in found if tool.name == data.context.tool_name]):
                what = f"{data.context.tool_name!r} is not among the tools of agent {data.agent.name!r}, so its guardrail cannot govern it."
                raise EdictumConfigError(what, hint="Use OpenAIAgentsAdapter.govern(agent), which covers MCP tools too.")
            return rails.ToolGuardrailFunctionOutput.allow()

        def confirm(data: Any) -> Any:
            mine = [tool for tool in data.agent.tools if tool.name == data.context.tool_name and self in _governors(tool)]
            text = "DENIED: The result is withheld, because the tool lacks the guard's input guardrail."
            return rails.ToolGuardrailFunctionOutput.allow() if mine else rails.ToolGuardrailFunctionOutput.reject_content(text)

        before = rails.ToolInputGuardrail(guardrail_function=check, name="edictum_input_guardrail")
        return before, rails.ToolOutputGuardrail(guardrail_function=confirm, name="edictum_output_guardrail")

    def _dress(self, agent: Any, on_warn: OnWarn | None) -> None:
        """Put the guard around what the agent has now. A list stays the same object where nothing is to be done."""
        for server in agent.mcp_servers:
            if not hasattr(server.call_tool, "notes_errors"):
                server.call_tool = _noting(server.call_tool)
        for tool in agent.tools:
            if getattr(tool, "_agent_instance", None) is not None:
                self.govern(tool._agent_instance, on_warn)
        if any(self not in _governors(tool) for tool in agent.tools if hasattr(tool, "on_invoke_tool")):
            agent.tools = [self._around(tool, on_warn) for tool in agent.tools]
        if any(self not in _governors(item) for item in agent.handoffs):
            agent.handoffs = [self._handoff(item, agent, on_warn) for item in agent.handoffs]

    def _around(self, tool: Any, on_warn: OnWarn | None, into: Any = None) -> Any:
        """The tool with the guard inside of its failure handling, so that the guard sees exceptions and the SDK still words them."""
        if self in _governors(tool) or not hasattr(tool, "on_invoke_tool"):
            return tool
        made, plain = copy.copy(tool) if into is None else into, copy.copy(tool)
        if hasattr(made.on_invoke_tool, "_invoke_tool_impl"):
            made.on_invoke_tool._invoke_tool_impl = self._invoker(made.on_invoke_tool._invoke_tool_impl, on_warn)
        else:
            plain.timeout_seconds = None  # the SDK's timeout stays outside
            invoke = self.load("agents.tool").invoke_function_tool
            made.on_invoke_tool = self._invoker(lambda ctx, text: invoke(function_tool=plain, context=ctx, arguments=text), on_warn)
        made.governors = (self, *_governors(tool))
        return made

    def _invoker(self, inner: Callable[[Any, str], Any], on_warn: OnWarn | None) -> Callable[[Any, str], Any]:
        async def invoke(ctx: Any, text: str) -> Any:
            args, errors = _parsed(text), list[str]()

            async def body(checked: dict[str, Any]) -> Any:
                if args is None:  # not to be checked as no arguments, and a lenient tool might run it
                    raise self.load("agents").ModelBehaviorError(f"Invalid JSON input for tool {ctx.tool_name}")
                MCP_ERRORS.set(errors)
                value = await inner(ctx, text if checked == args else json.dumps(checked))
                if self._waits(ctx):
                    raise NestedApproval(value)
                return value

            asked = {"arguments": text} if args is None else args
            options: dict[str, Any] = {"call_id": ctx.tool_call_id, "flag": lambda value: errors[0] if errors else None, "on_warn": on_warn}
            try:
                return (await self.acall(ctx.tool_name, asked, body, **options)).get()
            except NestedApproval as waiting:
                return waiting.args[0]

        vars(invoke).update(vars(inner))  # the SDK's marks: how arguments are prepared, which function is behind the tool
        return invoke

    def _waits(self, ctx: Any) -> bool:
        state = self.load("agents.agent_tool_state")
        result = state.peek_agent_tool_run_result(ctx.tool_call, scope_id=state.get_agent_tool_state_scope(ctx))
        return bool(getattr(result, "interruptions", ()))

    def _handoff(self, item: Any, owner: Any, on_warn: OnWarn | None) -> Any:
        """A handoff that is a governed call, and that hands over to a governed agent. If it is denied, the owner goes on."""
        made = copy.copy(item) if hasattr(item, "on_invoke_handoff") else self.load("agents").handoff(item)
        inner, kind = made.on_invoke_handoff, type(made)

        class GovernedHandoff(kind):  # type: ignore[misc, valid-type]
            governors = (self, *_governors(item))

            def get_transfer_message(self, agent: Any) -> str:
                return str(vars(agent).get("refusal") or super().get_transfer_message(agent))

        async def invoke(ctx: Any, text: str) -> Any:
            found: list[Any] = []

            async def body(checked: dict[str, Any]) -> Any:
                found.append(await inner(ctx, text))
                return {"assistant": found[0].name}

            reply = await self.acall(made.tool_name, _parsed(text) or {}, body, on_warn=on_warn)
            if reply.error is not None:
                raise reply.error
            agent = self.govern(found[0], on_warn) if reply.text is None else copy.copy(owner)
            vars(agent).update({} if reply.text is None else {"refusal": reply.text})
            return agent

        made.__class__, made.on_invoke_handoff = GovernedHandoff, invoke
        return made

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        """The canary takes the place of each tool and of each MCP server in turn, with their guardrails; the worst answer counts."""
        agents, testing = self.load("agents"), self.load("agents.testing")
        agent = self.govern(agents.Agent(name="canary")) if target is None else target
        texts = []
        for item in [*agent.tools, *agent.mcp_servers] or [None]:
            rails = {key: getattr(item, key, None) for key in ("tool_input_guardrails", "tool_output_guardrails")}
            canary = agents.function_tool(lambda: tool(), name_override=CANARY, **rails)
            model = testing.ScriptedModel([[testing.function_call(CANARY, {}, call_id=CANARY)], [testing.assistant_message("done")]])
            plain = {"instructions": None, "prompt": None, "hooks": None, "output_type": None, "tool_use_behavior": "run_llm_again"}
            none: dict[str, Any] = {"handoffs": [], "mcp_servers": [], "input_guardrails": [], "output_guardrails": []}
            alone = agent.clone(model=model, tools=[canary], **plain, **none)
            PORTAL.run(agents.Runner.run(alone, "canary", run_config=agents.RunConfig(tracing_disabled=True)))
            texts.append(str(model.calls[-1].input))
        return min(texts, key=lambda text: self._canary_text in text)


def _governors(item: Any) -> tuple[Any, ...]:
    return getattr(item, "governors", ())


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        args = json.loads(text or "{}")
    except ValueError:
        return None
    return args if isinstance(args, dict) else None


def _noting(call_tool: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call_tool)
    async def call(*args: Any, **options: Any) -> Any:
        result = await call_tool(*args, **options)
        errors = MCP_ERRORS.get()
        if errors is not None and (getattr(result, "isError", False) or getattr(result, "is_error", False)):
            errors.append("isError is set")
        return result

    vars(call)["notes_errors"] = True
    return call
