"""OpenAI Agents SDK: ``govern(agent)`` for everything that an agent can call, or guardrails for
single function tools.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from edictum.adapters._base import CANARY, Adapter, OnWarn, logger
from edictum.adapters._handoff import governed_handoff, governors_of
from edictum.adapters._wire import MCP_ERRORS, json_args, noting_errors, same
from edictum.core.jsonable import dumps
from edictum.errors import EdictumConfigError
from edictum.execution.portal import PORTAL

WRAPPING = (
    threading.RLock()
)  # guardrails put the guard into a tool that other threads may be about to use, too


class NestedApproval(Exception):
    """An agent that runs as a tool waits for a person; the SDK calls it again with the answer."""


class OpenAIAgentsAdapter(Adapter):
    """Governs an agent: ``OpenAIAgentsAdapter(guard).govern(agent)``."""

    requires: ClassVar = {"openai-agents": ("0.24", "0.25")}

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return (NestedApproval,)

    def govern(self, agent: Any, on_postcondition_warn: OnWarn | None = None) -> Any:
        """Govern this agent itself, not a copy: function tools, MCP tools, handoffs, the agents
        behind them and agents as tools.
        """
        if self in governors_of(agent):
            return agent
        adapter, kind = self, type(agent)

        class GovernedAgent(kind):  # type: ignore[misc, valid-type]
            """A class, because the SDK and its users clone agents: a clone has the class of its
            original, and is governed as well.
            """

            governors = (adapter, *governors_of(agent))

            async def get_all_tools(self, run_context: Any) -> list[Any]:
                adapter._dress(self, on_postcondition_warn)  # again, for what was added since
                return [
                    adapter._around(tool, on_postcondition_warn)
                    for tool in await super().get_all_tools(run_context)
                ]

        agent.__class__ = GovernedAgent
        self._dress(agent, on_postcondition_warn)
        return agent

    def as_guardrails(self, on_postcondition_warn: OnWarn | None = None) -> tuple[Any, Any]:
        """For ``@function_tool(tool_input_guardrails=[first], tool_output_guardrails=[second])``.

        Guardrails hear of no exception and cannot end a tool that takes too long. So the first one
        puts the guard around the tool that it is asked about, before that runs; the second one lets
        no result through that did not come from a governed tool.
        """
        rails = self.load("agents.tool_guardrails")

        def check(data: Any) -> Any:
            named = [tool for tool in data.agent.tools if tool.name == data.context.tool_name]
            found = [
                tool
                for tool in named
                if before in (getattr(tool, "tool_input_guardrails", None) or ())
            ]
            for tool in found:
                with WRAPPING:
                    self._around(tool, on_postcondition_warn, tool)
            if not found:
                what = (
                    f"{data.context.tool_name!r} is not in the tools of {data.agent.name!r}; its"
                    " guardrail cannot govern it."
                )
                raise EdictumConfigError(
                    what, hint="Use OpenAIAgentsAdapter.govern(agent), which covers MCP tools too."
                )
            return rails.ToolGuardrailFunctionOutput.allow()

        def confirm(data: Any) -> Any:
            if any(
                tool.name == data.context.tool_name and self in governors_of(tool)
                for tool in data.agent.tools
            ):
                return rails.ToolGuardrailFunctionOutput.allow()
            return rails.ToolGuardrailFunctionOutput.reject_content(
                "DENIED: The tool lacks the guard's input guardrail."
            )

        before = rails.ToolInputGuardrail(check, name="edictum_input_guardrail")
        return before, rails.ToolOutputGuardrail(confirm, name="edictum_output_guardrail")

    def _dress(self, agent: Any, on_warn: OnWarn | None) -> None:
        """Put the guard around what the agent has now. The lists stay the same objects where there
        is nothing to do.
        """
        for server in agent.mcp_servers:
            server.call_tool = noting_errors(server.call_tool)
        if any(self not in governors_of(tool) for tool in agent.tools):
            agent.tools = [self._around(tool, on_warn) for tool in agent.tools]
        handoffs = [governed_handoff(self, item, agent, on_warn) for item in agent.handoffs]
        if any(new is not old for new, old in zip(handoffs, agent.handoffs, strict=True)):
            agent.handoffs = handoffs

    def _around(self, tool: Any, on_warn: OnWarn | None, into: Any = None) -> Any:
        """The tool with the guard inside of its failure handling, so that the guard sees exceptions
        and the SDK still words them.
        """
        if self in governors_of(tool):
            return tool
        made, plain = into or copy.copy(tool), copy.copy(tool)
        if not hasattr(tool, "params_json_schema"):
            logger.warning(
                "%r is not a function tool: its calls do not pass through the guard", tool.name
            )
        elif hasattr(made.on_invoke_tool, "_invoke_tool_impl"):
            made.on_invoke_tool._invoke_tool_impl = self._invoker(
                made.on_invoke_tool._invoke_tool_impl, on_warn
            )
        else:
            plain.timeout_seconds, invoke = (
                None,
                self.load("agents.tool").invoke_function_tool,
            )  # the SDK's timeout stays outside
            made.on_invoke_tool = self._invoker(
                lambda ctx, text: invoke(function_tool=plain, context=ctx, arguments=text), on_warn
            )
        if getattr(tool, "_agent_instance", None) is not None:
            self.govern(tool._agent_instance, on_warn)
        made.governors = (self, *governors_of(tool))
        return made

    def _invoker(
        self, inner: Callable[[Any, str], Any], on_warn: OnWarn | None
    ) -> Callable[[Any, str], Any]:
        state, invalid = (
            self.load("agents.agent_tool_state"),
            self.load("agents").ModelBehaviorError,
        )
        ours = (
            self.load("agents.tool")._DEFAULT_FAILURE_HANDLED_ATTR
        )  # tells the SDK not to hold a text of ours to the output's schema

        async def invoke(ctx: Any, text: str) -> Any:
            args, errors = json_args(text), list[str]()

            async def body(checked: dict[str, Any]) -> Any:
                if (
                    args is None
                ):  # rules would see no arguments, while a lenient tool might find some
                    raise invalid(f"Invalid JSON input for tool {ctx.tool_name}")
                MCP_ERRORS.set(errors)
                value = await inner(ctx, text if same(checked, args) else dumps(checked))
                nested = state.peek_agent_tool_run_result(
                    ctx.tool_call, scope_id=state.get_agent_tool_state_scope(ctx)
                )
                if getattr(nested, "interruptions", None):
                    raise NestedApproval(value)
                return value

            asked = {"arguments": text} if args is None else args
            options: dict[str, Any] = {
                "call_id": ctx.tool_call_id,
                "flag": lambda _: errors[0] if errors else None,
            }
            try:
                reply = await self.acall(ctx.tool_name, asked, body, on_warn=on_warn, **options)
            except NestedApproval as waiting:
                return waiting.args[0]
            setattr(ctx, ours, reply.text is not None)
            return reply.get()

        vars(invoke).update(
            vars(inner)
        )  # the SDK's marks: how arguments are prepared, which function is behind the tool
        return invoke

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        """The canary takes the place of each tool and of each MCP server in turn, with their
        guardrails; the worst answer counts.
        """
        agents, testing, texts = self.load("agents"), self.load("agents.testing"), []
        agent = self.govern(agents.Agent(name="canary")) if target is None else target
        blank: dict[str, Any] = {
            key: [] for key in ("handoffs", "mcp_servers", "input_guardrails", "output_guardrails")
        }
        blank |= dict.fromkeys(("instructions", "prompt", "hooks", "output_type")) | {
            "tool_use_behavior": "run_llm_again"
        }
        for item in [*agent.tools, *agent.mcp_servers] or [None]:
            rails = {
                key: getattr(item, key, None)
                for key in ("tool_input_guardrails", "tool_output_guardrails")
            }
            canary = agents.function_tool(tool, name_override=CANARY, **rails)
            model = testing.ScriptedModel(
                [
                    [testing.function_call(CANARY, {}, call_id=CANARY)],
                    [testing.assistant_message("done")],
                ]
            )
            alone = agent.clone(**blank, model=model, tools=[canary])
            PORTAL.run(
                agents.Runner.run(
                    alone, "canary", run_config=agents.RunConfig(tracing_disabled=True)
                )
            )
            texts.append(str(model.calls[-1].input))
        return min(texts, key=lambda text: self._canary_text in text)
