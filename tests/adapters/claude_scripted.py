"""A scripted claude CLI: speaks the SDK's control protocol, asks the hooks and runs the tools as
the real one was measured to.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
from claude_agent_sdk import Transport

SERVER = "t"


class ScriptedCLI(Transport):
    """``turns`` are lists of (tool, args, id). ``builtin`` are tools of the CLI itself; all others
    are the SDK server's.
    """

    def __init__(self, turns: Any, builtin: Any = None, session_id: str = "s") -> None:
        self.turns, self.builtin, self.session_id = turns, builtin or {}, session_id
        self.out, self.inp = anyio.create_memory_object_stream[Any](1000)
        self.waiting: dict[str, asyncio.Future[Any]] = {}
        self.hooks: dict[str, Any] = {}
        self.read: list[Any] = []  # the tool_result blocks that the model was given
        self.stopped: str | None = None
        self.deferred: Any = None  # the call that is made again when the session is resumed
        self.asked = 0
        self.playing: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        pass

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        pass

    async def close(self) -> None:
        if self.playing is not None:
            self.playing.cancel()
        self.out.close()

    async def read_messages(self) -> AsyncIterator[Any]:
        async for message in self.inp:
            yield message

    async def write(self, data: str) -> None:
        message = json.loads(data)
        if message["type"] == "control_request":
            self.hooks = message["request"].get("hooks") or self.hooks
            answer = {
                "subtype": "success",
                "request_id": message["request_id"],
                "response": {"hook_on_failure_supported": True},
            }
            await self.out.send({"type": "control_response", "response": answer})
        elif message["type"] == "control_response":
            self.waiting.pop(message["response"]["request_id"]).set_result(message["response"])
        elif message["type"] == "user":
            self.playing = asyncio.create_task(self.play())

    async def ask(self, **request: Any) -> Any:
        self.asked += 1
        name = f"cli_{self.asked}"
        self.waiting[name] = asyncio.get_running_loop().create_future()
        await self.out.send({"type": "control_request", "request_id": name, "request": request})
        return await self.waiting[name]

    async def hook(
        self, event: str, call_id: str | None = None, **told: Any
    ) -> list[dict[str, Any]]:
        """What the hooks say; one that failed says nothing, unless it was wired to block."""
        said = []
        for matcher in self.hooks.get(event) or []:
            for callback in matcher["hookCallbackIds"]:
                asked = {
                    "session_id": self.session_id,
                    "cwd": "/",
                    "hook_event_name": event,
                    "tool_use_id": call_id,
                    **told,
                }
                answer = await self.ask(
                    subtype="hook_callback", callback_id=callback, tool_use_id=call_id, input=asked
                )
                failed = answer["subtype"] == "error" or answer.get("response") is None
                blocked = {
                    "hookSpecificOutput": {
                        "permissionDecision": "deny",
                        "permissionDecisionReason": "a hook failed",
                    }
                }
                said.append(
                    (blocked if matcher.get("onFailure") == "block" else {})
                    if failed
                    else answer["response"]
                )
        return said

    async def call(self, name: str, args: Any, call_id: str) -> dict[str, Any]:
        full = name if name in self.builtin else f"mcp__{SERVER}__{name}"
        for said in await self.hook("PreToolUse", call_id, tool_name=full, tool_input=args):
            decision = said.get("hookSpecificOutput") or {}
            if decision.get("permissionDecision") == "defer":
                self.deferred, self.stopped = (name, args, call_id), "tool_deferred"
                return {}
            if decision.get("permissionDecision") == "deny":
                return {
                    "content": (
                        f"PreToolUse:{full} hook error: {decision['permissionDecisionReason']}"
                    ),
                    "is_error": True,
                }
            args = decision.get("updatedInput", args)
        try:
            output = (
                self.builtin[name](**args)
                if name in self.builtin
                else await self.mcp("tools/call", name=name, arguments=args)
            )
        except Exception as exc:
            output = {"isError": True, "content": [{"type": "text", "text": str(exc)}]}
        if isinstance(output, dict) and output.get("isError"):
            text = output["content"][0]["text"]
            await self.hook(
                "PostToolUseFailure", call_id, tool_name=full, tool_input=args, error=text
            )  # its answer changes nothing
            return {"content": text, "is_error": True}
        output = output if name in self.builtin else output["content"]
        return {"content": await self.shown(call_id, full, args, output)}

    async def shown(self, call_id: str, full: str, args: Any, output: Any) -> Any:
        for said in await self.hook(
            "PostToolUse", call_id, tool_name=full, tool_input=args, tool_response=output
        ):
            if said.get("continue") is False:
                self.stopped = said["stopReason"]
            updated = (said.get("hookSpecificOutput") or {}).get("updatedToolOutput", output)
            fits = not full.startswith("mcp__") and isinstance(output, dict)
            output = (
                updated
                if not fits or (isinstance(updated, dict) and updated.keys() == output.keys())
                else output
            )
        return output if isinstance(output, (str, list)) else json.dumps(output)

    async def mcp(self, method: str, **params: Any) -> Any:
        message = {"jsonrpc": "2.0", "id": self.asked, "method": method, "params": params}
        answer = (await self.ask(subtype="mcp_message", server_name=SERVER, message=message))[
            "response"
        ]["mcp_response"]
        return answer.get("result") or {
            "isError": True,
            "content": [{"type": "text", "text": str(answer.get("error"))}],
        }

    async def play(self) -> None:
        await self.mcp(
            "initialize",
            protocolVersion="2025-06-18",
            capabilities={},
            clientInfo={"name": "scripted", "version": "0"},
        )
        for calls in self.turns:
            blocks = await asyncio.gather(*(self.call(*call) for call in calls))
            if self.stopped is not None:
                break
            self.read += [
                {"type": "tool_result", "tool_use_id": call[2], **block}
                for call, block in zip(calls, blocks, strict=True)
            ]
            await self.out.send(
                {
                    "type": "user",
                    "session_id": self.session_id,
                    "message": {"role": "user", "content": self.read[-len(calls) or None :]},
                }
            )
        await self.hook("Stop")
        ended = {
            "subtype": "success",
            "duration_ms": 1,
            "duration_api_ms": 1,
            "is_error": False,
            "num_turns": 1,
            "session_id": self.session_id,
        }
        await self.out.send({"type": "result", **ended, "total_cost_usd": 0.0, "result": "done"})
