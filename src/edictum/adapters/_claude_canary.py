"""Stands in for the claude CLI, for one call: asks the hooks that are wired, as the CLI would, and
tells what they said.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

EVENTS = ("PreToolUse", "PostToolUse", "PostToolUseFailure")


async def ask_hooks(sdk: Any, hooks: Any, name: str, tool: Callable[[], str]) -> str:
    """What the model would read of a call of ``name``, if these hooks were in its way."""
    said: asyncio.Queue[Any] = asyncio.Queue()  # what we say to the SDK
    heard: asyncio.Queue[Any] = asyncio.Queue()  # what the hooks answered
    wired: dict[str, Any] = {}

    class CanaryCLI(sdk.Transport):  # type: ignore[misc]
        async def connect(self) -> None:
            pass

        def is_ready(self) -> bool:
            return True

        async def end_input(self) -> None:
            pass

        async def close(self) -> None:
            said.put_nowait(None)

        async def write(self, data: str) -> None:
            message = json.loads(data)
            if message["type"] == "control_response":
                heard.put_nowait(message["response"])
                return
            wired.update(message["request"].get("hooks") or {})
            answer = {
                "subtype": "success",
                "request_id": message["request_id"],
                "response": {"hook_on_failure_supported": True},
            }
            said.put_nowait({"type": "control_response", "response": answer})

        async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
            while (message := await said.get()) is not None:
                yield message

    async with sdk.ClaudeSDKClient(
        options=sdk.ClaudeAgentOptions(hooks=hooks), transport=CanaryCLI()
    ):
        callbacks = {event: _callbacks(wired.get(event) or [], name) for event in EVENTS}
        if missing := [event for event in EVENTS if not callbacks[event]]:
            return f"no hook for {' and '.join(missing)}"
        for callback in callbacks["PreToolUse"]:
            asked = {
                "hook_event_name": "PreToolUse",
                "tool_name": name,
                "tool_input": {},
                "tool_use_id": name,
            }
            request = {
                "subtype": "hook_callback",
                "callback_id": callback,
                "tool_use_id": name,
                "input": asked,
            }
            said.put_nowait(
                {"type": "control_request", "request_id": f"canary {callback}", "request": request}
            )
            answer = ((await heard.get()).get("response") or {}).get("hookSpecificOutput") or {}
            if answer.get("permissionDecision") == "deny":
                return str(answer.get("permissionDecisionReason"))
        return tool()


def _callbacks(matchers: list[dict[str, Any]], name: str) -> list[str]:
    """The callbacks that the CLI would ask about a tool of this name."""
    fitting = [
        one
        for one in matchers
        if one.get("matcher") in (None, "", "*") or re.fullmatch(one["matcher"], name)
    ]
    return [callback for one in fitting for callback in one["hookCallbackIds"]]
