"""What both examples share: a tool that takes its time, a rule, and a model that needs no network.

A real model takes the place of ``write_reply``:
``openai_model(AsyncOpenAI(), model=...)`` or ``anthropic_model(AsyncAnthropic(), model=...)``.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from edictum import Edictum, Verdict, precondition
from edictum.harness import ModelReply, TextDelta, ToolCallRequest, tool

SECONDS = float(os.environ.get("ARCHIVE_SECONDS", "1.5"))
FILES = ["letters", "photos", "taxes", "secrets"]
archived: list[str] = []


@tool(side_effect="write", resource_keys=["archive"])
async def archive(name: str) -> str:
    """Move a file to the archive, which is slow."""
    await asyncio.sleep(SECONDS)
    archived.append(name)
    return f"{name} is in the archive"


@precondition("archive")
def keep_secrets(call: Any) -> Verdict:
    is_secret = call.args["name"] == "secrets"
    return Verdict.fail("Secrets stay where they are.") if is_secret else Verdict.pass_()


def make_guard() -> Edictum:
    return Edictum(contracts=[keep_secrets])


# --- The model ------------------------------------------------------------------------------------


async def write_reply(
    messages: list[dict[str, Any]],
    tools: Sequence[Any],
    *,
    on_event: Callable[[TextDelta], Any] | None = None,
) -> ModelReply:
    """Archive all files when asked to, and say at any time what became of them, word by word."""
    said = str(messages[-1]["content"])
    calls: tuple[ToolCallRequest, ...] = ()
    if messages[-1]["role"] == "user" and "archive" in said.lower():
        text = "I will archive all files, one after the other."
        number = len(messages)
        calls = tuple(
            ToolCallRequest(f"call_{number}_{name}", "archive", {"name": name}) for name in FILES
        )
    else:
        text = f"This is what I know. {summarize(messages)}"
    for word in text.split():
        await asyncio.sleep(0.02)
        if on_event is not None:
            on_event(TextDelta(f"{word} "))
    return ModelReply(f"{' '.join(text.split())} ", calls)


def summarize(messages: list[dict[str, Any]]) -> str:
    """Return the results of all calls in the conversation, as the model has read them."""
    lines = []
    for message in messages:
        if message["role"] == "tool":
            name = message["tool_call_id"].rsplit("_", 1)[-1]
            result = json.loads(message["content"])
            lines.append(f"{name}: {result.get('result') or result['error']}")
    return " ".join(lines) or "Nothing was done."
