"""Nanobot: ``NanobotAdapter(guard).govern(loop)``, or ``wrap_registry(registry)`` for a new loop.

Nanobot takes a tool out of its registry and calls ``tool.execute`` itself. So a governed registry
hands out governed tools.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Unpack

from edictum.adapters._base import Adapter, AdapterOptions
from edictum.adapters._call_ids import forget_call_id, get_call_id, note_call_id
from edictum.adapters._canary import CANARY
from edictum.adapters._identity import Identity
from edictum.adapters._reply import OnWarn, to_text
from edictum.core.call import Principal
from edictum.core.parameters import ReadLater
from edictum.execution.portal import PORTAL


class NanobotAdapter(Adapter):
    """Governs the tools of a nanobot: ``NanobotAdapter(guard).govern(loop)``."""

    requires: ClassVar = {"nanobot-ai": ("0.3.5", "0.4")}

    context_name: ClassVar = "nanobot's RequestContext"

    def __init__(self, *args: Any, **options: Unpack[AdapterOptions]) -> None:
        """Leave large results to nanobot, which stores them itself, unless told otherwise."""
        options.setdefault("max_result_chars", None)
        super().__init__(*args, **options)

    def identify(self, context: Any) -> Identity:
        return Identity(context.session_key)

    def govern(self, target: Any, on_postcondition_warn: OnWarn = None) -> Any:
        """Govern all that an ``AgentLoop`` or a ``Nanobot`` runs: turns, sub-agents, dreams."""
        loop = getattr(target, "_loop", target)
        for runner in (loop.runner, loop.subagents.runner):
            self._govern_runner(runner, on_postcondition_warn)
        return target

    def wrap_registry(self, registry: Any, on_postcondition_warn: OnWarn = None) -> Any:
        """Return a registry with the same tools, now and later, that hands them out governed."""
        self.load("nanobot.agent.tools.registry")
        if self._governs(registry):
            return registry
        made: dict[str, tuple[Any, Any]] = {}  # the tool as it is, and governed

        def get(own: Any, name: str) -> Any:
            tool = type(registry).get(own, name)
            if made.get(name, (None,))[0] is not tool:
                made[name] = (tool, self._wrap_tool(tool, on_postcondition_warn))
            return tool if tool is None else made[name][1]

        return _overlay(registry, get=get, edictum=(*_marks(registry), self))

    def as_hook(self) -> Any:
        """Return a hook that records call ids, for ``AgentLoop``, beside ``wrap_registry``."""
        return _note_call_ids(self.load("nanobot.agent.hook").AgentHook())

    @staticmethod
    def principal_from_message(message: Any) -> Principal:
        """Return the sender of a message, or of a request's context, as a principal."""
        claims = {"channel": message.channel, "channel_id": message.chat_id}
        sender = f"{message.channel}:{message.sender_id}" if message.sender_id else None
        return Principal(user_id=sender, role="user", claims=claims)

    def _governs(self, thing: Any) -> bool:
        return any(adapter is self for adapter in _marks(thing))

    def _govern_runner(self, runner: Any, on_warn: OnWarn) -> None:
        """Govern whatever registry a runner is given; a sub-agent's is made when it starts."""
        if self._governs(runner):
            return
        run = runner.run

        async def run_with_guard(spec: Any) -> Any:
            hook = _note_call_ids(spec.hook or self.as_hook())
            return await run(
                replace(spec, tools=self.wrap_registry(spec.tools, on_warn), hook=hook)
            )

        vars(runner).update(run=run_with_guard, edictum=(*_marks(runner), self))

    def _wrap_tool(self, tool: Any, on_warn: OnWarn) -> Any:
        if tool is None or self._governs(tool):
            return tool
        error = self.load("nanobot.agent.tools.base").ToolResult.error
        get_context = self.load("nanobot.agent.tools.context").current_request_context
        manager_class = self.load("nanobot.agent.subagent").SubagentManager
        for held in vars(tool).values():
            if isinstance(held, manager_class):  # the tool by which a model starts sub-agents
                self._govern_runner(held.runner, on_warn)

        async def execute(**params: Any) -> Any:
            call_id = get_call_id(tool.name)
            forget_call_id()  # what the tool itself calls is another call
            about: Any = {"call_id": call_id, "flag": _find_error, "on_warn": on_warn}
            about["parameters"] = ReadLater(lambda: (tool.execute, tool.parameters))
            about["context"] = get_context()
            reply = await self.acall(tool.name, params, lambda args: tool.execute(**args), **about)
            value = reply.get()
            return error(to_text(value)) if reply.failed and _find_error(value) is None else value

        # A property goes before what the tool may have in its own __dict__, which the two share.
        return _overlay(tool, execute=property(lambda _: execute), edictum=(*_marks(tool), self))

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        """Give each runner of the target a registry of its kind with nothing but the canary."""
        registry = self.load("nanobot.agent.tools.registry").ToolRegistry()
        loop = getattr(target, "_loop", target)
        if not hasattr(loop, "runner"):
            runner = self.load("nanobot.agent.runner").AgentRunner()
            return self._ask(runner, self.wrap_registry(registry) if loop is None else loop, tool)
        for name in loop.tools.tool_names:
            loop.tools.get(name)  # a governed registry learns of sub-agents from their tool
        pairs = [(loop.runner, loop.tools), (loop.subagents.runner, registry)]
        return self._find_worst(self._ask(runner, tools, tool) for runner, tools in pairs)

    def _ask(self, runner: Any, registry: Any, tool: Callable[[], str]) -> str:
        providers, base = self.load("nanobot.providers.base"), self.load("nanobot.agent.tools.base")

        async def execute(_: Any) -> str:
            return tool()

        async def chat(_: Any, messages: Any, *args: Any, **options: Any) -> Any:
            if messages[-1]["role"] != "user":
                return providers.LLMResponse(content="done", tool_calls=[])
            asked = providers.ToolCallRequest(id=CANARY, name=CANARY, arguments={})
            return providers.LLMResponse(content=None, tool_calls=[asked])

        about = {"name": CANARY, "description": "Must not run.", "parameters": {"type": "object"}}
        canary = type("Canary", (base.Tool,), {**about, "execute": execute})()
        play = {"chat": chat, "get_default_model": lambda _: CANARY}
        model = type("Model", (providers.LLMProvider,), play)(provider_name=CANARY)
        wired = copy.copy(registry)
        vars(wired).update(_tools={CANARY: canary}, _cached_definitions=None)
        runtime = self.load("nanobot.utils.llm_runtime").LLMRuntime.capture(
            model, CANARY, context_window_tokens=100_000
        )
        spec = self.load("nanobot.agent.runner").AgentRunSpec(
            [{"role": "user", "content": "go"}], wired, runtime, 3, 10_000
        )
        return str(PORTAL.run(runner.run(spec)).messages)


def _overlay(thing: Any, **members: Any) -> Any:
    """Return an object of the thing's type that shares its state and has some other members."""
    kind: Any = type(thing)
    made: Any = object.__new__(type(kind)(kind.__name__, (kind,), members))
    made.__dict__ = thing.__dict__
    return made


def _note_call_ids(hook: Any) -> Any:
    """Make a hook note the id of each call for the tool; return the hook."""
    before = hook.before_execute_tool
    if hasattr(before, "notes_ids"):
        return hook

    async def noting(context: Any, tool_call: Any, tool: Any, params: Any) -> None:
        note_call_id(tool_call.name, tool_call.id)
        await before(context, tool_call, tool, params)

    vars(noting)["notes_ids"] = True
    vars(hook)["before_execute_tool"] = noting
    return hook


def _find_error(value: Any) -> str | None:
    return "is_error is set" if getattr(value, "is_error", False) is True else None


def _marks(thing: Any) -> tuple[NanobotAdapter, ...]:
    return tuple(getattr(thing, "edictum", ()))
