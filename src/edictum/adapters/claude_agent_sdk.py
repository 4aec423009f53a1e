"""Claude Agent SDK: hooks around every tool of the CLI, handlers around those of this process."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Unpack

from edictum.adapters._base import Adapter, AdapterOptions
from edictum.adapters._claude_calls import (
    CLOSED,
    UNKNOWN_CALL,
    ClaudeCall,
    OpenCalls,
    ToolOutput,
    make_error,
    make_hook_output,
)
from edictum.adapters._claude_canary import ask_claude_hooks
from edictum.adapters._identity import Identity
from edictum.adapters._mcp import WireResult
from edictum.adapters._reply import OnWarn, ToolReply, deny_broken_gate, to_text
from edictum.core.values import is_same
from edictum.errors import EdictumToolError
from edictum.execution.portal import PORTAL

EVENTS = {
    "PreToolUse": "pre_tool_use",
    "PostToolUse": "post_tool_use",
    "PostToolUseFailure": "post_tool_use_failure",
    "Stop": "stop",
    "SubagentStop": "stop",
}


class ClaudeAgentSDKAdapter(Adapter):
    """Governs all tools of an agent: ``ClaudeAgentOptions(hooks=adapter.to_sdk_hooks())``."""

    requires: ClassVar = {"claude-agent-sdk": ("0.2.182", "0.3")}
    hands_on_args: ClassVar = True
    context_name: ClassVar = "a hook's input"
    can_store: ClassVar = False

    def __init__(self, *args: Any, **options: Unpack[AdapterOptions]) -> None:
        super().__init__(*args, **options)
        self._open = OpenCalls()
        self._schemas: dict[str, Any] = {}  # of the tools of this process, by name

    def identify(self, context: Mapping[str, Any]) -> Identity:
        return Identity(context.get("session_id"))

    def to_sdk_hooks(
        self, on_postcondition_warn: OnWarn = None, timeout: float | None = None
    ) -> dict[str, list[Any]]:
        """Return the ``hooks`` of ClaudeAgentOptions, for all tools; one that fails blocks a call.

        ``timeout``: how many seconds the CLI waits for a hook, so for an approval (60 if None).
        """
        matcher = self.load("claude_agent_sdk").HookMatcher
        calls = self.to_hook_callables(on_postcondition_warn)
        return {
            event: [matcher(hooks=[calls[name]], timeout=timeout, on_failure="block")]
            for event, name in EVENTS.items()
        }

    def to_hook_callables(
        self, on_postcondition_warn: OnWarn = None
    ) -> dict[str, Callable[..., Any]]:
        """Return the hooks one by one; each takes the SDK's input, or the same by name."""

        async def pre_tool_use(
            tool_name: Any, tool_input: Any = None, tool_use_id: Any = None, **_: Any
        ) -> dict[str, Any]:
            by_name = {"tool_name": tool_name, "tool_input": tool_input, "tool_use_id": tool_use_id}
            return await self._open_call(tool_name if isinstance(tool_name, Mapping) else by_name)

        def make_hook(work: Callable[..., Any]) -> Callable[..., Any]:
            async def hook(asked: Any = None, *_: Any, **by_name: Any) -> Any:
                return await work(by_name if asked is None else asked, on_postcondition_warn)

            return hook

        return {
            "pre_tool_use": pre_tool_use,
            "post_tool_use": make_hook(self._finish),
            "post_tool_use_failure": make_hook(self._fail),
            "stop": make_hook(self._stop),
        }

    async def _open_call(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Say nothing about a call that may run: the permissions of the CLI still hold for it."""
        try:
            key, name, args = asked["tool_use_id"], asked["tool_name"], asked["tool_input"]
            call = ClaudeCall(asked)
            details: dict[str, Any] = {"call_id": key, "flag": call.flag, "context": asked}
            details["parameters"] = self._find_schema(str(name))
            ticket = await self.abefore(key, name, args, **details)
        except Exception as exc:
            # without on_failure="block", the CLI would take an exception for consent
            ticket = self.reply(deny_broken_gate(str(asked.get("tool_name")), exc))
        if isinstance(ticket, ToolReply):
            denial = {"permissionDecision": "deny", "permissionDecisionReason": ticket.text}
            return make_hook_output("PreToolUse", **denial)
        call.args = dict(ticket.args)
        self._open.add(key, call)
        if is_same(call.args, args):
            return {}
        return make_hook_output("PreToolUse", updatedInput=call.args)

    def _find_schema(self, name: str) -> Any:
        """Return the schema of a tool that the CLI knows as mcp__server__name, if it is ours."""
        is_mcp, known = name.startswith("mcp__"), self._schemas.items()
        return next((it for own, it in known if is_mcp and name.endswith(f"__{own}")), None)

    async def _finish(self, asked: Mapping[str, Any], on_warn: OnWarn) -> dict[str, Any]:
        output, key = ToolOutput(asked.get("tool_response")), asked["tool_use_id"]
        if (state := self._open.end(key)) == "judged":
            return {}
        is_open = state == "open"
        reply = await self.aafter(key, output.value, on_warn=on_warn) if is_open else None
        return output.answer(reply)

    async def _fail(self, asked: Mapping[str, Any], on_warn: OnWarn) -> dict[str, Any]:
        """Record the failure. The CLI lets no hook change its text."""
        key, error = asked["tool_use_id"], EdictumToolError(str(asked.get("error", "")))
        if self._open.end(key) == "open":
            cause = CancelledError() if asked.get("is_interrupt") else error
            await self.aafter(key, error=cause, on_warn=on_warn)
        return {}

    async def _stop(self, asked: Mapping[str, Any], _: OnWarn) -> dict[str, Any]:
        """Close the calls of an agent that never ran, because another hook refused them."""
        for key in self._open.give_up(ClaudeCall(asked).owner):
            await self.aafter(key, error=CancelledError())
        return {}

    def wrap_tools(self, tools: Sequence[Any], on_postcondition_warn: OnWarn = None) -> list[Any]:
        """Return tools for ``create_sdk_mcp_server``, with the texts of failures redacted."""
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
        return PORTAL.run(ask_claude_hooks(self.load("claude_agent_sdk"), hooks, tool))
