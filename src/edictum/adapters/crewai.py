"""CrewAI: ``register()`` for every tool call of the process, or ``wrap_tools(crew)`` for one crew.

In CrewAI's hooks an exception lets the tool run, and they see no exception of a tool. So the guard
stands in the tool, around its function; a hook only makes sure that it is there before each call.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from edictum.adapters._base import Adapter
from edictum.adapters._call_ids import forget_call_id, get_call_context, get_call_id
from edictum.adapters._canary import CANARY
from edictum.adapters._crewai_hooks import (
    FUNCTIONS,
    GOVERNED_NAMES,
    get_functions,
    get_marks,
    govern_for_owner,
    govern_next,
    hide_from_governed_calls,
)
from edictum.adapters._reply import OnWarn, ToolReply
from edictum.core.parameters import ReadLater

# CrewAI runs parallel calls in threads; each tool must be wrapped once.
WRAPPING_TOOL = threading.RLock()


class CrewAIAdapter(Adapter):
    """Governs the tools of CrewAI: ``CrewAIAdapter(guard).register()`` or ``.wrap_tools(crew)``."""

    requires: ClassVar = {"crewai": ("1.15.30", "2")}

    context_name: ClassVar = "CrewAI's ToolCallHookContext"

    def register(self, on_postcondition_warn: OnWarn = None) -> None:
        """Govern every tool call of this process from now on: CrewAI's hooks are global."""

        def before(context: Any) -> bool | None:
            return govern_next(context, [(self, on_postcondition_warn)])

        vars(before)["governs_next"] = True
        self.load("crewai.hooks").register_before_tool_call_hook(before)

    def wrap_tools(self, target: Any, on_postcondition_warn: OnWarn = None) -> Any:
        """Govern a crew or an agent and all its tools, even later ones; or copies of tools."""
        hooks = self.load("crewai.hooks")
        if govern_for_owner not in hooks.get_before_tool_call_hooks():
            hooks.register_before_tool_call_hook(govern_for_owner)
        if isinstance(target, (list, tuple)):
            return [self._govern(self._copy(tool), on_postcondition_warn) for tool in target]
        agents = (*getattr(target, "agents", ()), getattr(target, "manager_agent", None))
        for owner in (target, *agents, *getattr(target, "tasks", ())):
            if owner is not None:
                vars(owner)["edictum"] = (*get_marks(owner), (self, on_postcondition_warn))
                if getattr(owner, "tools", None):
                    owner.tools = self.wrap_tools(owner.tools, on_postcondition_warn)
        return target

    def _copy(self, tool: Any) -> Any:
        tools = self.load("crewai.tools.base_tool")
        known = isinstance(tool, (tools.BaseTool, tools.CrewStructuredTool))
        return tool.model_copy() if known else tools.Tool.from_langchain(tool)

    def _govern(self, tool: Any, on_warn: OnWarn) -> Any:
        """Put the guard around the functions of a tool, unless it is there already."""
        base = self.load("crewai.tools.base_tool")
        structured = base.CrewStructuredTool._run
        delegating = (base.Tool._run, base.Tool._arun, base.BaseTool._arun, structured)
        with WRAPPING_TOOL:
            for name in FUNCTIONS:
                function = getattr(tool, name, None)
                calls_another = getattr(function, "__func__", None) in delegating
                if function is not None and not calls_another and not self._governs(function):
                    # not by setattr: pydantic would refuse some of them
                    vars(tool)[name] = self._wrap(function, tool, on_warn)
            # what CrewAI's cache answers never reaches the guard
            vars(tool)["cache_function"] = lambda *_: False
            GOVERNED_NAMES.add(self._get_name(tool))
            cache = self.load("crewai.agents.cache.cache_handler").CacheHandler
            hide_from_governed_calls(cache)
        return tool

    def _get_name(self, tool: Any) -> str:
        """Return the name that models know."""
        name: str = self.load("crewai.utilities.string_utils").sanitize_tool_name(tool.name)
        return name

    def _governs(self, function: Any) -> bool:
        return any(adapter is self for adapter, _ in get_marks(function))

    def _wrap(self, function: Callable[..., Any], tool: Any, on_warn: OnWarn) -> Callable[..., Any]:
        """Return the function as the body of a governed call, under the name that models know."""
        name = self._get_name(tool)
        fields = tuple(getattr(tool.args_schema, "model_fields", ()))

        def describe(args: Iterable[Any], named: dict[str, Any]) -> dict[str, Any]:
            asked = {**dict(zip(fields, args, strict=False)), **named}
            about = {"flag": self._find_failure, "on_warn": on_warn, "call_id": get_call_id(name)}
            context, parameters = get_call_context(name), (tool.args_schema, function)
            found = {"context": context, "parameters": ReadLater(lambda: parameters)}
            return {"name": name, "args": asked, **found, **about}

        def run(*args: Any, **named: Any) -> Any:
            def body(checked: dict[str, Any]) -> Any:
                value = function(**checked)
                return asyncio.run(value) if asyncio.iscoroutine(value) else value

            return self._answer(self.call(body=body, **describe(args, named)), tool)

        async def arun(*args: Any, **named: Any) -> Any:
            reply = await self.acall(
                body=lambda checked: function(**checked), **describe(args, named)
            )
            return self._answer(reply, tool)

        wrapper = arun if inspect.iscoroutinefunction(function) else run
        made = functools.wraps(function)(wrapper)
        vars(made)["edictum"] = (*get_marks(function), (self, on_warn))
        return made

    def _find_failure(self, value: Any) -> str | None:
        failure = self.load("crewai.tools.tool_failure").detect_tool_failure(value)
        return None if failure is None else f"ToolFailure: {failure.as_agent_message()}"

    def _answer(self, reply: ToolReply, tool: Any) -> Any:
        """Return the tool's value, or CrewAI's own ToolFailure around what stands in its place."""
        forget_call_id()
        failure, value = self.load("crewai.tools.tool_failure").ToolFailure, reply.get()
        if not reply.failed or isinstance(value, failure):
            return value
        return failure(message=tool.format_output_for_agent(value))

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        """Ask CrewAI to run the canary for the target, as it runs what a model asks for."""
        tool.__doc__ = "Must not run."
        canary = self.load("crewai.tools.base_tool").tool(CANARY)(tool)
        if target is not None and not isinstance(target, (list, tuple)):
            agents = getattr(target, "agents", [target])
            return self._find_worst(self._ask(canary, agent, target) for agent in agents)
        loose = [
            tool.name for tool in target or () if not any(map(self._governs, get_functions(tool)))
        ]
        if loose:
            return f"not governed: {', '.join(loose)}"
        return self._ask(self.wrap_tools([canary])[0], None, None)

    def _ask(self, tool: Any, agent: Any, crew: Any) -> str:
        parser = self.load("crewai.agents.parser")
        action = parser.AgentAction(thought="", tool=CANARY, tool_input="{}", text="")
        execute = self.load("crewai.utilities.tool_utils").execute_tool_and_check_finality
        crew = crew if crew is not agent else None
        return str(execute(action, [tool.to_structured_tool()], agent=agent, crew=crew).result)
