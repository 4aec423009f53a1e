"""CrewAI: ``register()`` for every tool call of the process, or ``wrap_tools(crew)`` for one crew.

CrewAI's hooks cannot do the work: an exception in one lets the tool run, and they see no exception
of a tool. So the guard stands in the tool, around its function; a hook only sees to it that a tool
is governed before it is called, also one that CrewAI made itself.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Unpack

from edictum.adapters._base import CANARY, Adapter, AdapterOptions, OnWarn, Reply, logger
from edictum.adapters._crewai_cache import pass_by_cache
from edictum.adapters._crewai_ids import forget, note, noted
from edictum.adapters._wire import settled

FUNCTIONS = ("func", "_run", "_arun")  # where a tool of CrewAI keeps what it does


class CrewAIAdapter(Adapter):
    """Governs the tools of CrewAI: ``CrewAIAdapter(guard).register()``, or
    ``CrewAIAdapter(guard).wrap_tools(crew)``.
    """

    requires: ClassVar = {"crewai": ("1.15.30", "2")}

    def __init__(self, *args: Any, **options: Unpack[AdapterOptions]) -> None:
        super().__init__(*args, **options)
        self._lock = (
            threading.RLock()
        )  # CrewAI runs parallel calls in threads; a tool must be governed once

    def register(self, on_postcondition_warn: OnWarn | None = None) -> None:
        """Govern every tool call of this process, for as long as it lives: CrewAI's hooks are
        global.
        """

        def before(context: Any) -> bool | None:
            return _seen(context, [(self, on_postcondition_warn)])

        self.load("crewai.hooks").register_before_tool_call_hook(before)

    def wrap_tools(self, target: Any, on_postcondition_warn: OnWarn | None = None) -> Any:
        """Govern a crew or an agent with all its tools, those that CrewAI makes at run time too; or
        give governed copies of tools.
        """
        hooks = self.load("crewai.hooks")
        if of_owner not in hooks.get_before_tool_call_hooks():
            hooks.register_before_tool_call_hook(of_owner)
        if isinstance(target, (list, tuple)):
            return [self._govern(self._copied(tool), on_postcondition_warn) for tool in target]
        agents = [
            agent
            for agent in (*getattr(target, "agents", ()), getattr(target, "manager_agent", None))
            if agent is not None
        ]
        for owner in (target, *agents, *getattr(target, "tasks", ())):
            vars(owner)["edictum"] = (*_marks(owner), (self, on_postcondition_warn))
            if getattr(owner, "tools", None):
                owner.tools = self.wrap_tools(owner.tools, on_postcondition_warn)
        return target

    def _copied(self, tool: Any) -> Any:
        tools = self.load("crewai.tools.base_tool")
        known = isinstance(tool, (tools.BaseTool, tools.CrewStructuredTool))
        return tool.model_copy() if known else tools.Tool.from_langchain(tool)

    def _govern(self, tool: Any, on_warn: OnWarn | None) -> Any:
        """Put the guard around the functions of a tool, unless it is there already."""
        tools = self.load("crewai.tools.base_tool")
        passed_on = (
            tools.Tool._run,
            tools.Tool._arun,
            tools.BaseTool._arun,
            tools.CrewStructuredTool._run,
        )  # they call another one
        with self._lock:
            for name in FUNCTIONS:
                function = getattr(tool, name, None)
                if (
                    function is not None
                    and getattr(function, "__func__", None) not in passed_on
                    and not self._governs(function)
                ):
                    vars(tool)[name] = self._governed(
                        function, tool, on_warn
                    )  # pydantic would refuse some of them as attributes
            vars(tool)["cache_function"] = lambda *_: (
                False
            )  # what is answered from CrewAI's cache never reaches the tool, nor the guard
        return tool

    def _governs(self, function: Any) -> bool:
        return any(adapter is self for adapter, _ in _marks(function))

    def _governed(
        self, function: Callable[..., Any], tool: Any, on_warn: OnWarn | None
    ) -> Callable[..., Any]:
        """The function as the body of a governed call, under the name by which models and hooks
        know the tool.
        """
        name = self.load("crewai.utilities.string_utils").sanitize_tool_name(tool.name)
        fields = tuple(getattr(tool.args_schema, "model_fields", ()))
        options: dict[str, Any] = {"flag": self._flag, "on_warn": on_warn}

        def governed(*args: Any, **named: Any) -> Any:
            asked = {**dict(zip(fields, args, strict=False)), **named}
            reply = self.call(
                name,
                asked,
                lambda checked: settled(function(**checked)),
                call_id=noted(name),
                **options,
            )
            return self._answer(reply, tool)

        async def agoverned(*args: Any, **named: Any) -> Any:
            asked = {**dict(zip(fields, args, strict=False)), **named}
            reply = await self.acall(
                name, asked, lambda checked: function(**checked), call_id=noted(name), **options
            )
            return self._answer(reply, tool)

        made = functools.wraps(function)(
            agoverned if inspect.iscoroutinefunction(function) else governed
        )
        vars(made)["edictum"] = (*_marks(function), (self, on_warn))
        return made

    def _flag(self, value: Any) -> str | None:
        failure = self.load("crewai.tools.tool_failure").detect_tool_failure(value)
        return None if failure is None else f"ToolFailure: {failure.as_agent_message()}"

    def _answer(self, reply: Reply, tool: Any) -> Any:
        """The tool's value, or CrewAI's own ToolFailure around what stands in its place."""
        forget()
        failure, value = self.load("crewai.tools.tool_failure").ToolFailure, reply.get()
        if not reply.failed or isinstance(value, failure):
            return value
        return failure(message=tool.format_output_for_agent(value))

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        """CrewAI is asked to run the canary for the target, as it runs what a model asks for."""
        tool.__doc__ = "Must not run."
        canary = self.load("crewai.tools.base_tool").tool(CANARY)(tool)
        if target is None or isinstance(target, (list, tuple)):
            loose = [
                tool.name
                for tool in target or ()
                if not any(self._governs(getattr(tool, name, None)) for name in FUNCTIONS)
            ]
            return (
                f"not governed: {', '.join(loose)}"
                if loose
                else self._ask(self.wrap_tools([canary])[0], None, None)
            )
        texts = [self._ask(canary, agent, target) for agent in getattr(target, "agents", [target])]
        return min(texts, key=lambda text: self._canary_text in text)

    def _ask(self, tool: Any, agent: Any, crew: Any) -> str:
        action = self.load("crewai.agents.parser").AgentAction(
            thought="", tool=CANARY, tool_input="{}", text=""
        )
        execute = self.load("crewai.utilities.tool_utils").execute_tool_and_check_finality
        return str(
            execute(
                action,
                [tool.to_structured_tool()],
                agent=agent,
                crew=crew if crew is not agent else None,
            ).result
        )


def of_owner(context: Any) -> bool | None:
    """The hook of ``wrap_tools``: what an agent or crew of ours is about to call is governed; a
    copy of an agent is known by its tools.
    """
    tools = getattr(context.agent, "tools", None) or ()
    marks = [mark for owner in (context.agent, context.crew) for mark in _marks(owner)]
    return _seen(
        context,
        marks
        + [
            mark
            for tool in tools
            for name in FUNCTIONS
            for mark in _marks(getattr(tool, name, None))
        ],
    )


def _seen(context: Any, marks: list[Any]) -> bool | None:
    """False blocks the call, and nothing else does; CrewAI would swallow an exception and run the
    tool.
    """
    try:
        note(context)
        parts = [
            part
            for part in (context.tool, getattr(context.tool, "_original_tool", None))
            if part is not None
        ]
        for adapter, on_warn in marks:
            for part in parts:
                adapter._govern(part, on_warn)
        pass_by_cache(
            context, any(_marks(getattr(part, name, None)) for part in parts for name in FUNCTIONS)
        )
        return None if parts or not marks else False
    except Exception:
        logger.exception(
            "the tool %r could not be governed, its call is blocked",
            getattr(context, "tool_name", None),
        )
        return False


def _marks(thing: Any) -> tuple[tuple[CrewAIAdapter, OnWarn | None], ...]:
    """Which adapters govern a function, an agent or a crew."""
    return tuple(getattr(thing, "edictum", ()))
