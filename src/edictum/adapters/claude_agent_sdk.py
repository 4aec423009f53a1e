"""Claude Agent SDK: hooks around every tool of the CLI, and handlers around those that run in this
process.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Unpack

from edictum.adapters._base import CANARY, Adapter, AdapterOptions, OnWarn, Reply, as_text, broken
from edictum.adapters._claude_calls import OpenCalls, Opened
from edictum.adapters._claude_canary import ask_hooks
from edictum.adapters._mcp import WireResult, alike
from edictum.adapters._wire import same
from edictum.errors import EdictumToolError
from edictum.execution.portal import PORTAL

CLOSED = "The output is not shown: its call was closed before the tool ended."
UNASKED = (
    "The guard was not asked about this call with these arguments. Its hooks, to_sdk_hooks(), go"
    " with wrap_tools()."
)


class ClaudeAgentSDKAdapter(Adapter):
    """Governs all tools of an agent:
    ``ClaudeAgentOptions(hooks=ClaudeAgentSDKAdapter(guard).to_sdk_hooks())``.
    """

    requires: ClassVar = {"claude-agent-sdk": ("0.2.182", "0.3")}
    hands_on_args: ClassVar = True

    def __init__(self, *args: Any, **options: Unpack[AdapterOptions]) -> None:
        super().__init__(*args, **options)
        self._open = OpenCalls()

    def to_sdk_hooks(
        self, on_postcondition_warn: OnWarn | None = None, timeout: float | None = None
    ) -> dict[str, list[Any]]:
        """For ``ClaudeAgentOptions(hooks=...)``: built-in tools, MCP tools and sub-agents; what
        goes wrong in a hook blocks the call.

        ``timeout`` is how many seconds the CLI waits for a hook (60 if None): the time that an
        approval may take.
        """
        matcher = self.load("claude_agent_sdk").HookMatcher
        calls = self.to_hook_callables(on_postcondition_warn)
        names = {
            "PreToolUse": "pre_tool_use",
            "PostToolUse": "post_tool_use",
            "PostToolUseFailure": "post_tool_use_failure",
        }
        names |= {"Stop": "stop", "SubagentStop": "stop"}
        return {
            event: [matcher(hooks=[calls[name]], timeout=timeout, on_failure="block")]
            for event, name in names.items()
        }

    def to_hook_callables(
        self, on_postcondition_warn: OnWarn | None = None
    ) -> dict[str, Callable[..., Any]]:
        """The hooks one by one. Each takes what the SDK passes to a hook, or the same by name, for
        hosts with a loop of their own.
        """

        async def pre_tool_use(
            tool_name: Any, tool_input: Any = None, tool_use_id: Any = None, **_: Any
        ) -> dict[str, Any]:
            by_name = {"tool_name": tool_name, "tool_input": tool_input, "tool_use_id": tool_use_id}
            return await self._pre(tool_name if isinstance(tool_name, Mapping) else by_name)

        def after(work: Callable[..., Any]) -> Callable[..., Any]:
            async def hook(asked: Any = None, *_: Any, **by_name: Any) -> Any:
                return await work(by_name if asked is None else asked, on_postcondition_warn)

            return hook

        ends = {
            "post_tool_use": after(self._post),
            "post_tool_use_failure": after(self._failed),
            "stop": after(self._stopped),
        }
        return {"pre_tool_use": pre_tool_use, **ends}

    async def _pre(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Nothing is said about a call that may run: the permissions of the CLI still hold for
        it.
        """
        try:
            key, name, args = asked["tool_use_id"], asked["tool_name"], asked["tool_input"]
            opened = Opened(asked)
            ticket = await self.abefore(key, name, args, call_id=key, flag=opened.flag)
        except (
            Exception
        ) as exc:  # without on_failure="block", the CLI would take an exception for consent
            ticket = self.reply(broken(str(asked.get("tool_name")), exc))
        if isinstance(ticket, Reply):
            return _said(
                "PreToolUse", permissionDecision="deny", permissionDecisionReason=ticket.text
            )
        opened.args = dict(ticket.args)
        self._open.add(key, opened)
        return {} if same(opened.args, args) else _said("PreToolUse", updatedInput=opened.args)

    async def _post(self, asked: Mapping[str, Any], on_warn: OnWarn | None) -> dict[str, Any]:
        """The CLI takes another output only in the tool's own form, and shows the raw one
        otherwise: then the run is stopped.
        """
        response, made = asked.get("tool_response"), WireResult()
        blocks = isinstance(response, list) and all(
            isinstance(block, Mapping) and "type" in block for block in response
        )
        value = made.take({"content": response}) if blocks else response
        ended = self._open.ended(key := asked["tool_use_id"])
        if ended == "judged":
            return {}
        reply = await self.aafter(key, value, on_warn=on_warn) if ended == "open" else None
        shown = CLOSED if reply is None else reply.get()
        if shown is value:
            return {}
        if blocks:
            shown = (
                [{"type": "text", "text": CLOSED}]
                if reply is None
                else made.answer(reply)["content"]
            )
        elif isinstance(response, dict) and "stdout" in response and not alike(response, shown):
            shown = {**response, "stdout": as_text(shown), "stderr": ""}
        elif not alike(response, shown):
            return {
                "continue_": False,
                "stopReason": f"The output cannot be shown: {as_text(shown)}",
            }
        return _said("PostToolUse", updatedToolOutput=shown)

    async def _failed(self, asked: Mapping[str, Any], on_warn: OnWarn | None) -> dict[str, Any]:
        """The failure is recorded. Its text reaches the model as it is: the CLI lets no hook change
        it.
        """
        if self._open.ended(key := asked["tool_use_id"]) == "open":
            error = (
                CancelledError()
                if asked.get("is_interrupt")
                else EdictumToolError(str(asked.get("error", "")))
            )
            await self.aafter(key, error=error, on_warn=on_warn)
        return {}

    async def _stopped(self, asked: Mapping[str, Any], _: OnWarn | None) -> dict[str, Any]:
        """Calls that were allowed and never ran, because somebody else refused them, are closed
        with the agent that asked for them.
        """
        for key in self._open.stopped(Opened(asked).owner):
            await self.aafter(key, error=CancelledError())
        return {}

    def wrap_tools(
        self, tools: Sequence[Any], on_postcondition_warn: OnWarn | None = None
    ) -> list[Any]:
        """For ``create_sdk_mcp_server(tools=...)``, beside the hooks: the texts of failures are
        redacted, too.
        """
        return [replace(tool, handler=self._wrapped(tool, on_postcondition_warn)) for tool in tools]

    def _wrapped(self, tool: Any, on_warn: OnWarn | None) -> Callable[..., Any]:
        async def handler(args: dict[str, Any]) -> Any:
            key, opened = self._open.claim(tool.name, args)
            if opened is None:
                return _error(
                    as_text((await self.areply(await self.arefuse(tool.name, args, UNASKED))).text)
                )
            try:
                return await self._handle(key, opened, tool.handler(args), on_warn)
            finally:
                self._open.left(opened)

        return handler

    async def _handle(
        self, key: str, opened: Opened, running: Awaitable[Any], on_warn: OnWarn | None
    ) -> Any:
        made = WireResult()
        try:
            result = await running
        except BaseException as exc:
            reply = await self.aafter(key, error=exc, on_warn=on_warn)
            raise exc if reply is None or reply.error is None else reply.error from exc.__cause__
        opened.is_error = result.get("is_error") is True
        reply = await self.aafter(
            key, made.take({**result, "isError": opened.is_error}), on_warn=on_warn
        )
        if reply is None:  # somebody has closed the call; then nobody has looked at this
            return _error(CLOSED)
        answer = made.answer(reply)
        return result if answer is made.result else {**answer, "is_error": answer["isError"]}

    def _probe(self, target: Any, tool: Callable[..., Any]) -> str:
        """``target`` is a ClaudeAgentOptions, or what stands in its ``hooks``."""
        hooks = self.to_sdk_hooks() if target is None else getattr(target, "hooks", target)
        return PORTAL.run(ask_hooks(self.load("claude_agent_sdk"), hooks, CANARY, tool))


def _error(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "is_error": True}


def _said(event: str, **what: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": event, **what}}
