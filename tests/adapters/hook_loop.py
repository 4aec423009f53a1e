"""A small agent loop with a hook before each tool and one after it, its adapter, and its driver.

The loop is ours, so this runs everywhere. It is also the shortest example of a driver: copy it to
see what the suite wants.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from edictum.adapters._base import Adapter
from edictum.adapters._canary import CANARY
from edictum.adapters._identity import Identity
from edictum.adapters._reply import OnWarn, ToolReply
from edictum.runtime.ticket import Ticket
from edictum.testing.adapter import (
    AdapterConformance,
    ControlFlow,
    ScriptedCall,
    ScriptPlayer,
    ToolAnswer,
    get_conversation,
)


class Later(Exception):
    """How this loop puts a call off."""


class Loop:
    """Plays a script for a user. ``before(id, name, args, user)`` may answer in the tool's place;
    ``after(id, value, error, args)`` may replace the result.
    """

    def __init__(self, tools: Any, script: Any, hooks: Any = None, change: Any = None) -> None:
        self.tools = {tool.__name__: tool for tool in tools}
        self.player, self.hooks = ScriptPlayer(script), hooks
        self.change = change or (lambda args: args)  # what the tool is given after the first hook
        self.read: list[ToolAnswer] = []

    def run(self, user: str = "") -> None:
        while turn := self.player.next_turn(user):
            with ThreadPoolExecutor(8) as pool:
                self.read += list(pool.map(lambda call: self.call(call, user), turn))

    async def arun(self, user: str = "") -> None:
        while turn := self.player.next_turn(user):
            self.read += await asyncio.gather(*(self.acall(call, user) for call in turn))

    def call(self, call: ScriptedCall, user: str) -> ToolAnswer:
        said = self.hooks.before(call.id, call.tool, call.args, user) if self.hooks else None
        if said is not None:
            return ToolAnswer(call.id, said, failed=True)
        value, error, args = None, None, self.change(call.args)
        try:
            value = self.tools[call.tool](**args)
        except Exception as exc:
            error = exc
        hooks = self.hooks
        value = hooks.after(call.id, value, error, args) if hooks else _settled(value, error)
        return ToolAnswer(call.id, _text(value), _failed(value))

    async def acall(self, call: ScriptedCall, user: str) -> ToolAnswer:
        hooks = self.hooks
        said = await hooks.abefore(call.id, call.tool, call.args, user) if hooks else None
        if said is not None:
            return ToolAnswer(call.id, said, failed=True)
        value, error, args = None, None, self.change(call.args)
        try:
            tool = self.tools[call.tool]
            value = await (
                tool(**args)
                if inspect.iscoroutinefunction(tool)
                else asyncio.to_thread(tool, **args)
            )
        except (Exception, asyncio.CancelledError) as exc:
            error = exc
        if hooks:
            value = await hooks.aafter(call.id, value, error, args)
        else:
            value = _settled(value, error)
        return ToolAnswer(call.id, _text(value), _failed(value))


def _settled(value: Any, error: BaseException | None) -> Any:
    if error is not None:
        raise error
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _failed(value: Any) -> bool:
    return isinstance(value, dict) and value.get("loop_status") == "bad"


def flag(value: Any) -> str | None:
    return "loop_status is bad" if _failed(value) else None


class LoopAdapter(Adapter):
    """What an adapter for a framework of this kind looks like."""

    requires: ClassVar = {"pytest": ("1", "1000")}
    context_name: ClassVar = "the name of the user"
    can_store: ClassVar = False  # the reader has to run inside of a call

    def identify(self, context: str) -> Identity:
        return Identity(get_conversation(context), context) if context else Identity()

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return (Later,)

    def as_hooks(self, on_postcondition_warn: OnWarn | None = None) -> Any:
        adapter = self

        class Hooks:
            def before(self, call_id: str, name: str, args: Any, user: str) -> str | None:
                about: Any = {"call_id": call_id, "flag": flag, "context": user}
                return _refusal(adapter.before(call_id, name, args, **about))

            async def abefore(self, call_id: str, name: str, args: Any, user: str) -> str | None:
                about: Any = {"call_id": call_id, "flag": flag, "context": user}
                return _refusal(await adapter.abefore(call_id, name, args, **about))

            def after(
                self, call_id: str, value: Any, error: BaseException | None, args: Any = None
            ) -> Any:
                told: Any = {"on_warn": on_postcondition_warn, "args": args}
                reply = adapter.after(call_id, value, error, **told)
                return _settled(value, error) if reply is None else reply.get()

            async def aafter(
                self, call_id: str, value: Any, error: BaseException | None, args: Any = None
            ) -> Any:
                told: Any = {"on_warn": on_postcondition_warn, "args": args}
                reply = await adapter.aafter(call_id, value, error, **told)
                return _settled(value, error) if reply is None else reply.get()

        return Hooks()

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        loop = Loop([], [], self.as_hooks()) if target is None else target
        alone = Loop([], [[ScriptedCall(CANARY, {}, CANARY)]], loop.hooks)
        alone.tools = {CANARY: tool}
        alone.run()
        return alone.read[0].text


def _refusal(opened: ToolReply | Ticket) -> str | None:
    return opened.text if isinstance(opened, ToolReply) else None


class HookLoopConformance(AdapterConformance):
    framework = "a loop with hooks"
    hands_on_args = False
    cannot = {
        "pauses": "the loop cannot leave a run and go on with it later",
        "timeout": "the loop runs the tool, and offers no way to stop it",
        "turn": "the loop runs the tool, and cannot stop it at a deadline",
        "streaming": "the loop does not stream",
        "defaults": "the hooks of the loop are told a tool's name, and not its parameters",
    }

    def get_results(self, point: str) -> dict[str, str]:
        return {}

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return LoopAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Loop:
        return Loop(tools, script, None if adapter is None else adapter.as_hooks(on_warn))

    def build_changing(self, adapter: Any, tools: Any, script: Any) -> Loop:
        hooks = None if adapter is None else adapter.as_hooks()
        return Loop(tools, script, hooks, lambda args: {**args, "key": "forbidden"})

    def run(self, agent: Loop) -> None:
        agent.run()

    async def arun(self, agent: Loop) -> None:
        await agent.arun()

    def run_as(self, agent: Loop, user: str) -> None:
        agent.run(user)

    async def arun_as(self, agent: Loop, user: str) -> None:
        await agent.arun(user)

    def replies(self, agent: Loop) -> list[ToolAnswer]:
        return agent.read

    def failing_tool(self) -> Any:
        def report(key: str) -> Any:
            return {"loop_status": "bad"}

        return report

    def control_flow(self) -> list[ControlFlow]:
        def steer(key: str) -> Any:
            raise Later("come back")

        return [ControlFlow("Later", steer)]
