"""Nanobot: ``NanobotAdapter(guard).govern(loop)``, or ``wrap_registry(registry)`` for a registry
that you hand to a loop.

Nanobot takes a tool out of its registry and calls ``tool.execute`` itself. So a governed registry
hands out governed tools.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, ClassVar

from edictum.adapters._base import CANARY, Adapter, OnWarn, as_text
from edictum.core.call import Principal
from edictum.execution.portal import PORTAL

# The call that is about to be made in this context, as (tool, call id): only a hook of nanobot
# learns the id.
CALL: ContextVar[tuple[str, str | None]] = ContextVar("edictum_nanobot_call", default=("", None))


class NanobotAdapter(Adapter):
    """Governs the tools of a nanobot: ``NanobotAdapter(guard).govern(loop)``."""

    requires: ClassVar = {"nanobot-ai": ("0.3.5", "0.4")}

    def govern(self, target: Any, on_postcondition_warn: OnWarn | None = None) -> Any:
        """Everything that an ``AgentLoop`` or a ``Nanobot`` runs: its turns, its sub-agents, the
        dreams of its memory.
        """
        loop = getattr(target, "_loop", target)
        for runner in (loop.runner, loop.subagents.runner):
            self._cover(runner, on_postcondition_warn)
        return target

    def wrap_registry(self, registry: Any, on_postcondition_warn: OnWarn | None = None) -> Any:
        """A registry with the same tools, now and later, that hands them out governed; ``registry``
        itself stays as it is.
        """
        self.load("nanobot.agent.tools.registry")
        if self._governs(registry):
            return registry
        made: dict[str, tuple[Any, Any]] = {}  # the tool as it is, and governed

        def get(own: Any, name: str) -> Any:
            tool = type(registry).get(own, name)
            if made.get(name, (None,))[0] is not tool:
                made[name] = (tool, self._governed(tool, on_postcondition_warn))
            return tool if tool is None else made[name][1]

        return overlay(registry, get=get, edictum=(*_marks(registry), self))

    def as_hook(self) -> Any:
        """Beside ``wrap_registry``, for ``AgentLoop(hooks=[...])``: brings the model's call ids
        into the audit.
        """
        return noting_ids(self.load("nanobot.agent.hook").AgentHook())

    @staticmethod
    def principal_from_message(message: Any) -> Principal:
        """Who sent a message of nanobot's bus; the context of a request, which tools see, will do
        as well.
        """
        claims = {"channel": message.channel, "channel_id": message.chat_id}
        return Principal(
            user_id=f"{message.channel}:{message.sender_id}", role="user", claims=claims
        )

    def _governs(self, thing: Any) -> bool:
        return any(adapter is self for adapter in _marks(thing))

    def _cover(self, runner: Any, on_warn: OnWarn | None) -> None:
        """Whatever registry a runner is given, it is governed; a sub-agent's is made when it
        starts.
        """
        if self._governs(runner):
            return
        run = runner.run

        async def governed(spec: Any) -> Any:
            return await run(
                replace(
                    spec,
                    tools=self.wrap_registry(spec.tools, on_warn),
                    hook=noting_ids(spec.hook or self.as_hook()),
                )
            )

        vars(runner).update(run=governed, edictum=(*_marks(runner), self))

    def _governed(self, tool: Any, on_warn: OnWarn | None) -> Any:
        if tool is None or self._governs(tool):
            return tool
        error, managers = (
            self.load("nanobot.agent.tools.base").ToolResult.error,
            self.load("nanobot.agent.subagent").SubagentManager,
        )
        for manager in (held for held in vars(tool).values() if isinstance(held, managers)):
            self._cover(
                manager.runner, on_warn
            )  # this is the tool by which a model starts sub-agents

        async def execute(**params: Any) -> Any:
            noted, call_id = CALL.get()
            CALL.set(("", None))  # what the tool itself calls is another call
            options: dict[str, Any] = {
                "call_id": call_id if noted == tool.name else None,
                "flag": _flag,
                "on_warn": on_warn,
            }
            reply = await self.acall(
                tool.name, params, lambda args: tool.execute(**args), **options
            )
            value = reply.get()
            return error(as_text(value)) if reply.failed and _flag(value) is None else value

        # A property goes before what the tool may have in its own __dict__, which the two share.
        return overlay(tool, execute=property(lambda _: execute), edictum=(*_marks(tool), self))

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        """Each runner of the target gets a registry of its kind with nothing but the canary, and a
        model that asks for it.
        """
        registry, runner = (
            self.load("nanobot.agent.tools.registry").ToolRegistry(),
            self.load("nanobot.agent.runner").AgentRunner(),
        )
        loop = getattr(target, "_loop", target)
        if not hasattr(loop, "runner"):
            return self._ask(
                runner, loop if loop is not None else self.wrap_registry(registry), tool
            )
        for name in loop.tools.tool_names:
            loop.tools.get(
                name
            )  # a governed registry learns of sub-agents from the tool that starts them
        texts = (
            self._ask(loop.runner, loop.tools, tool),
            self._ask(loop.subagents.runner, registry, tool),
        )
        return min(texts, key=lambda text: self._canary_text in text)

    def _ask(self, runner: Any, registry: Any, tool: Callable[[], str]) -> str:
        providers, base = self.load("nanobot.providers.base"), self.load("nanobot.agent.tools.base")

        async def execute(_: Any) -> str:
            return tool()

        async def chat(_: Any, messages: Any, *args: Any, **options: Any) -> Any:
            asked = (
                [providers.ToolCallRequest(id=CANARY, name=CANARY, arguments={})]
                if messages[-1]["role"] == "user"
                else []
            )
            return providers.LLMResponse(content=None if asked else "done", tool_calls=asked)

        about = {
            "name": CANARY,
            "description": "Must not run.",
            "parameters": {"type": "object"},
            "execute": execute,
        }
        model = type(
            "Model", (providers.LLMProvider,), {"chat": chat, "get_default_model": lambda _: CANARY}
        )(provider_name=CANARY)
        wired = copy.copy(registry)
        vars(wired).update(
            _tools={CANARY: type("Canary", (base.Tool,), about)()}, _cached_definitions=None
        )
        runtime = self.load("nanobot.utils.llm_runtime").LLMRuntime.capture(
            model, CANARY, context_window_tokens=100_000
        )
        spec = self.load("nanobot.agent.runner").AgentRunSpec(
            [{"role": "user", "content": "go"}], wired, runtime, 3, 10_000
        )
        return str(PORTAL.run(runner.run(spec)).messages)


def overlay(thing: Any, **members: Any) -> Any:
    """An object that is the thing in everything, type and state included, but for some members."""
    kind: Any = type(thing)
    made: Any = object.__new__(type(kind)(kind.__name__, (kind,), members))
    made.__dict__ = thing.__dict__
    return made


def noting_ids(hook: Any) -> Any:
    """A hook that tells the tool under which id it is called; given one of these, the same."""
    before = hook.before_execute_tool
    if hasattr(before, "notes_ids"):
        return hook

    async def noting(context: Any, tool_call: Any, tool: Any, params: Any) -> None:
        CALL.set((tool_call.name, tool_call.id))
        await before(context, tool_call, tool, params)

    vars(noting)["notes_ids"] = True
    vars(hook)["before_execute_tool"] = noting
    return hook


def _flag(value: Any) -> str | None:
    return "is_error is set" if getattr(value, "is_error", False) is True else None


def _marks(thing: Any) -> tuple[NanobotAdapter, ...]:
    return tuple(getattr(thing, "edictum", ()))
