"""Ready-made models for ``run_turn``: the client object is passed in, and nothing is imported.

``openai_model`` takes any client with ``chat.completions.create``, ``anthropic_model`` any with ``messages.create``; synchronous or
asynchronous. Further keywords go to the client as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from edictum.harness.messages import Message, ModelReply, Usage, parsed, read
from edictum.harness.tool_executor import ToolCallRequest
from edictum.harness.tool_spec import ToolSpec

Model = Callable[[list[Message], Sequence[ToolSpec]], Any]


def openai_model(client: Any, *, model: str, **settings: Any) -> Model:
    """A model behind an OpenAI-style client."""

    def call(messages: list[Message], tools: Sequence[ToolSpec]) -> Any:
        offered = {"tools": [spec.to_openai_schema() for spec in tools]} if tools else {}
        sent = [{name: value for name, value in message.items() if name != "is_error"} for message in messages]
        return _then(client.chat.completions.create(model=model, messages=sent, **offered, **settings), _from_openai)

    return _marked(call, client.chat.completions.create)


def anthropic_model(client: Any, *, model: str, max_tokens: int = 4096, **settings: Any) -> Model:
    """A model behind an Anthropic-style client."""

    def call(messages: list[Message], tools: Sequence[ToolSpec]) -> Any:
        system, turns = to_anthropic(messages)
        offered: dict[str, Any] = {"tools": [spec.to_anthropic_schema() for spec in tools]} if tools else {}
        if system:
            offered["system"] = system
        return _then(client.messages.create(model=model, max_tokens=max_tokens, messages=turns, **offered, **settings), _from_anthropic)

    return _marked(call, client.messages.create)


def _marked(call: Model, create: Any) -> Model:
    """An asynchronous client needs no thread; a synchronous one blocks, and gets one."""
    call.blocks = not inspect.iscoroutinefunction(create)  # type: ignore[attr-defined]
    return call


def _then(answer: Any, translate: Callable[[Any], ModelReply]) -> Any:
    async def later() -> ModelReply:
        return translate(await answer)

    return later() if inspect.isawaitable(answer) else translate(answer)


def _from_openai(answer: Any) -> ModelReply:
    message = read(answer, "choices", 0, "message")
    calls = tuple(
        ToolCallRequest(read(call, "id"), read(call, "function", "name"), read(call, "function", "arguments"))
        for call in read(message, "tool_calls") or ()
    )
    usage = Usage(
        read(answer, "usage", "prompt_tokens") or 0,
        read(answer, "usage", "completion_tokens") or 0,
        read(answer, "usage", "prompt_tokens_details", "cached_tokens") or 0,
    )
    return ModelReply(read(message, "content") or "", calls, usage)


def _from_anthropic(answer: Any) -> ModelReply:
    blocks = read(answer, "content") or ()
    text = "".join(read(block, "text") or "" for block in blocks if read(block, "type") == "text")
    calls = tuple(
        ToolCallRequest(read(block, "id"), read(block, "name"), read(block, "input"))
        for block in blocks
        if read(block, "type") == "tool_use"
    )
    usage = Usage(*(read(answer, "usage", name) or 0 for name in
                    ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")))  # fmt: skip
    return ModelReply(text, calls, usage)


def to_anthropic(messages: Sequence[Message]) -> tuple[str, list[Message]]:
    """Messages in Anthropic's shape: the leading system texts apart, neighbours of one role joined, results as blocks."""
    leading = 0
    while leading < len(messages) and messages[leading]["role"] == "system":
        leading += 1
    turns: list[Message] = []
    for message in messages[leading:]:
        role = "assistant" if message["role"] == "assistant" else "user"
        if not turns or turns[-1]["role"] != role:
            turns.append({"role": role, "content": []})
        turns[-1]["content"] += _blocks(message)
    return "\n\n".join(str(message["content"]) for message in messages[:leading]), turns


def _blocks(message: Message) -> list[dict[str, Any]]:
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": message["content"]}
        return [{**result, "is_error": True}] if message.get("is_error") else [result]
    content = message.get("content")
    blocks = list(content) if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": parsed(function["arguments"])})
    return blocks
