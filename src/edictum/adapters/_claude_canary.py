"""Stands in for the claude CLI, for one call: asks the hooks that are wired, as the CLI would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from edictum.adapters._canary import CANARY
from edictum.adapters._claude_user_hooks import is_matching

NEEDED_EVENTS = ("PreToolUse", "PostToolUse", "PostToolUseFailure")


async def ask_claude_hooks(sdk: Any, hooks: Any, tool: Callable[[], str]) -> str:
    """Return what the model would read of the canary, if these hooks were in its way."""
    to_sdk: asyncio.Queue[Any] = asyncio.Queue()
    from_hooks: asyncio.Queue[Any] = asyncio.Queue()
    wired: dict[str, Any] = {}

    class CanaryCLI(sdk.Transport):  # type: ignore[misc]  # the base is known at run time only
        async def connect(self) -> None:
            pass

        def is_ready(self) -> bool:
            return True

        async def end_input(self) -> None:
            pass

        async def close(self) -> None:
            to_sdk.put_nowait(None)

        async def write(self, data: str) -> None:
            message = json.loads(data)
            if message["type"] == "control_response":
                from_hooks.put_nowait(message["response"])
                return
            wired.update(message["request"].get("hooks") or {})
            able = {"hook_on_failure_supported": True}
            about = {"request_id": message["request_id"], "response": able}
            answer = {"type": "control_response", "response": {"subtype": "success", **about}}
            to_sdk.put_nowait(answer)

        async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
            while (message := await to_sdk.get()) is not None:
                yield message

    options = sdk.ClaudeAgentOptions(hooks=hooks)
    async with sdk.ClaudeSDKClient(options=options, transport=CanaryCLI()):
        callbacks = {event: _find_callbacks(wired.get(event) or []) for event in NEEDED_EVENTS}
        if missing := [event for event in NEEDED_EVENTS if not callbacks[event]]:
            return f"no hook for {' and '.join(missing)}"
        for callback in callbacks["PreToolUse"]:
            to_sdk.put_nowait(_make_request(callback))
            answer = (await from_hooks.get()).get("response") or {}
            output = answer.get("hookSpecificOutput") or {}
            if output.get("permissionDecision") == "deny":
                return str(output.get("permissionDecisionReason"))
        return tool()


def _make_request(callback: str) -> dict[str, Any]:
    use = {"tool_name": CANARY, "tool_input": {}, "tool_use_id": CANARY}
    request = {
        "subtype": "hook_callback",
        "callback_id": callback,
        "tool_use_id": CANARY,
        "input": {"hook_event_name": "PreToolUse", **use},
    }
    return {"type": "control_request", "request_id": f"canary {callback}", "request": request}


def _find_callbacks(matchers: list[dict[str, Any]]) -> list[str]:
    """Return the callbacks that the CLI would ask about the canary."""
    return [
        callback
        for one in matchers
        if is_matching(one.get("matcher"), CANARY)
        for callback in one["hookCallbackIds"]
    ]
