"""Claude Agent SDK: hooks around every tool of the CLI, handlers around those of this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from edictum.adapters._claude_calls import CLOSED, UNKNOWN_CALL, ClaudeCall, make_error
from edictum.adapters._claude_canary import ask_claude_hooks
from edictum.adapters._claude_deferring import name_in_cli
from edictum.adapters._claude_gate import ClaudeGate
from edictum.adapters._claude_user_hooks import UserHooks
from edictum.adapters._claude_wiring import (
    AFTER,
    BEFORE,
    PERMISSION,
    check_hooks,
    check_wiring,
    mark,
)
from edictum.adapters._identity import Identity
from edictum.adapters._mcp import WireResult
from edictum.adapters._reply import OnWarn, to_text
from edictum.execution.portal import PORTAL

EVENTS = {
    "PreToolUse": "pre_tool_use",
    "PostToolUse": "post_tool_use",
    "PostToolUseFailure": "post_tool_use_failure",
    "PostToolBatch": "post_tool_batch",
    "Stop": "stop",
    "SubagentStop": "stop",
}


class ClaudeAgentSDKAdapter(ClaudeGate):
    """Governs all tools of an agent: ``ClaudeAgentOptions(hooks=adapter.to_sdk_hooks())``."""

    requires: ClassVar = {"claude-agent-sdk": ("0.2.182", "0.3")}
    hands_on_args: ClassVar = True
    context_name: ClassVar = "a hook's input"
    can_store: ClassVar = False

    def identify(self, context: Mapping[str, Any]) -> Identity:
        return Identity(context.get("session_id"))

    def to_sdk_hooks(
        self, on_postcondition_warn: OnWarn = None, timeout: float | None = None
    ) -> dict[str, list[Any]]:
        """Return the ``hooks`` of ClaudeAgentOptions, for all tools; one that fails blocks a call.

        ``timeout``: how many seconds the CLI waits for a hook, so for an approval (60 if None).
        """
        return self.wrap_hooks({}, on_postcondition_warn, timeout)

    def wrap_hooks(
        self,
        hooks: Mapping[str, Sequence[Any]],
        on_postcondition_warn: OnWarn = None,
        timeout: float | None = None,
    ) -> dict[str, list[Any]]:
        """Return ``to_sdk_hooks()`` with hooks of yours inside, so that what they change is judged.

        Those of PreToolUse and PostToolUse are asked first, each with its matcher and its timeout;
        then the guard judges the input, or the output, that they leave.
        """
        check_hooks(self, hooks)
        matcher = self.load("claude_agent_sdk").HookMatcher
        before, after = (UserHooks(hooks.get(event, ())) for event in (BEFORE, AFTER))
        calls = self._make_hooks(on_postcondition_warn, before, after)
        wired = {
            event: [matcher(hooks=[calls[name]], timeout=timeout, on_failure="block")]
            for event, name in EVENTS.items()
        }
        wired[BEFORE][0].timeout = before.add_time(timeout)
        wired[AFTER][0].timeout = after.add_time(timeout)
        for event, matchers in hooks.items():
            if event not in (BEFORE, AFTER):
                yours = matchers if event != PERMISSION else map(self._wrap_permissions, matchers)
                wired[event] = [*wired.get(event, ()), *yours]
        return wired

    def _wrap_permissions(self, matcher: Any) -> Any:
        wrapped = [mark(self, self._wrap_permission_hook(hook)) for hook in matcher.hooks]
        return replace(matcher, hooks=wrapped)

    def wrap_can_use_tool(self, can_use_tool: Callable[..., Any]) -> Callable[..., Any]:
        """Return your ``can_use_tool`` with its answers judged.

        Another input is judged again before it runs. A call that it refuses gives its slot back.
        """
        return mark(self, self._wrap_permission(can_use_tool))

    def to_hook_callables(
        self, on_postcondition_warn: OnWarn = None
    ) -> dict[str, Callable[..., Any]]:
        """Return the hooks one by one; each takes the SDK's input, or the same by name."""
        return self._make_hooks(on_postcondition_warn, UserHooks(), UserHooks())

    def _make_hooks(
        self, on_warn: OnWarn, before: UserHooks, after: UserHooks
    ) -> dict[str, Callable[..., Any]]:
        async def pre_tool_use(
            tool_name: Any, tool_input: Any = None, tool_use_id: Any = None, **_: Any
        ) -> dict[str, Any]:
            if isinstance(tool_name, Mapping):  # as the SDK calls it: input, id, context
                return await self._open_call(tool_name, before, tool_input, tool_use_id)
            use = {"tool_name": tool_name, "tool_input": tool_input, "tool_use_id": tool_use_id}
            return await self._open_call(use, before, tool_use_id, {})

        def make_hook(work: Callable[..., Any]) -> Callable[..., Any]:
            async def hook(asked: Any = None, *_: Any, **by_name: Any) -> Any:
                return await work(by_name if asked is None else asked, on_warn)

            return hook

        async def post_tool_use(asked: Any = None, *told: Any, **by_name: Any) -> dict[str, Any]:
            return await self._finish(by_name if asked is None else asked, on_warn, after, *told)

        return {
            "pre_tool_use": mark(self, pre_tool_use),
            "post_tool_use": mark(self, post_tool_use),
            "post_tool_use_failure": make_hook(self._fail),
            "post_tool_batch": make_hook(self._end_batch),
            "stop": make_hook(self._stop),
        }

    def wrap_tools(
        self, tools: Sequence[Any], on_postcondition_warn: OnWarn = None, *, server: str = ""
    ) -> list[Any]:
        """Return tools for ``create_sdk_mcp_server``, with the texts of failures redacted.

        ``server``: its name in ``mcp_servers``. Then runs can pause while a person is asked.
        """
        if server:
            self._deferrable.update(name_in_cli(server, tool.name) for tool in tools)
        for tool in tools:
            schema = tool.input_schema
            is_schema = isinstance(schema, type) or schema.get("type") == "object"
            self._schemas[tool.name] = schema if is_schema else None
        return [replace(tool, handler=self._wrap(tool, on_postcondition_warn)) for tool in tools]

    def _wrap(self, tool: Any, on_warn: OnWarn) -> Callable[..., Any]:
        async def handler(args: dict[str, Any]) -> Any:
            key, call = self._open.claim(tool.name, args)
            if call is None:
                reply = await self.adeny(tool.name, args, UNKNOWN_CALL)
                return make_error(to_text(reply.text))
            try:
                return await self._handle(key, call, tool.handler(args), on_warn)
            finally:
                self._open.remember_judgement(call)

        return handler

    async def _handle(
        self, key: str, call: ClaudeCall, running: Awaitable[Any], on_warn: OnWarn
    ) -> Any:
        wire = WireResult()
        try:
            result = await running
        except BaseException as exc:
            reply = await self.aafter(key, error=exc, on_warn=on_warn)
            raise exc if reply is None or reply.error is None else reply.error from exc.__cause__
        call.is_error = result.get("is_error") is True
        value = wire.take({**result, "isError": call.is_error})
        reply = await self.aafter(key, value, on_warn=on_warn)
        if reply is None:  # the call was closed meanwhile, and this result was not judged
            return make_error(CLOSED)
        answer = wire.answer(reply)
        return result if answer is wire.result else {**answer, "is_error": answer["isError"]}

    def _probe(self, target: Any, tool: Callable[..., Any]) -> str:
        """Ask the hooks of a ClaudeAgentOptions, or what stands in its ``hooks``."""
        hooks = self.to_sdk_hooks() if target is None else getattr(target, "hooks", target)
        check_wiring(self, hooks, getattr(target, "can_use_tool", None))
        return PORTAL.run(ask_claude_hooks(self.load("claude_agent_sdk"), hooks, tool))
