"""Ready-made models for ``run_turn``: the client object is passed in, and nothing is imported.

``openai_model`` takes any client with ``chat.completions.create``, ``anthropic_model`` any with
``messages.create``; synchronous or asynchronous. Further keywords go to the client as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from edictum.harness.messages import Message, ModelReply, Usage, parsed, read
from edictum.harness.tool_executor import ToolCallRequest
from edictum.harness.tool_spec import ToolSpec

Model = Callable[[list[Message], Sequence[ToolSpec]], Any]

INSTRUCTIONS = ("system", "developer")
ABOUT_TOOLS = (
    "tool_choice",
    "parallel_tool_calls",
)  # settings that are refused in a request without tools


def openai_model(client: Any, *, model: str, **settings: Any) -> Model:
    """A model behind an OpenAI-style client."""

    def call(messages: list[Message], tools: Sequence[ToolSpec]) -> Any:
        offered = (
            {"tools": [spec.to_openai_schema() for spec in tools], **settings}
            if tools
            else _without_tools(settings)
        )
        return _then(
            client.chat.completions.create(model=model, messages=to_openai(messages), **offered),
            _from_openai,
        )

    return _marked(call, client.chat.completions.create)


def anthropic_model(client: Any, *, model: str, max_tokens: int = 4096, **settings: Any) -> Model:
    """A model behind an Anthropic-style client."""

    def call(messages: list[Message], tools: Sequence[ToolSpec]) -> Any:
        system, turns = to_anthropic(messages)
        offered = (
            {"tools": [spec.to_anthropic_schema() for spec in tools], **settings}
            if tools
            else _without_tools(settings)
        )
        if not tools and (
            called := _called(turns)
        ):  # refused unless they are declared; they are not offered
            offered |= {"tools": called, "tool_choice": {"type": "none"}}
        if system:
            offered["system"] = system
        return _then(
            client.messages.create(model=model, max_tokens=max_tokens, messages=turns, **offered),
            _from_anthropic,
        )

    return _marked(call, client.messages.create)


def _without_tools(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in ABOUT_TOOLS}


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
        ToolCallRequest(
            read(call, "id"), read(call, "function", "name"), read(call, "function", "arguments")
        )
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
    usage = Usage(
        *(
            read(answer, "usage", name) or 0
            for name in (
                "input_tokens",
                "output_tokens",
                "cache_read_input_tokens",
                "cache_creation_input_tokens",
            )
        )
    )
    return ModelReply(text, calls, usage)


def to_openai(messages: Sequence[Message]) -> list[Message]:
    """Messages as OpenAI-style providers take them: without our own marks, and without instructions
    and answers that say nothing.
    """
    kept = (
        message
        for message in messages
        if message["role"] not in (*INSTRUCTIONS, "assistant") or _says_something(message)
    )
    return [
        {name: value for name, value in message.items() if name != "is_error"} for message in kept
    ]


def _says_something(message: Message) -> bool:
    return any(value for name, value in message.items() if name not in ("role", "name", "is_error"))


def to_anthropic(messages: Sequence[Message]) -> tuple[str | list[Any], list[Message]]:
    """Messages in Anthropic's shape: the leading system texts apart, neighbours of one role joined,
    results as blocks.

    The system is a text, or blocks if any of it was given as blocks. A message that says nothing is
    left out: no empty one is taken.
    """
    leading = 0
    while leading < len(messages) and messages[leading]["role"] in INSTRUCTIONS:
        leading += 1
    turns: list[Message] = []
    for message in messages[leading:]:
        role = "assistant" if message["role"] == "assistant" else "user"
        blocks = _blocks(message)
        if blocks and (not turns or turns[-1]["role"] != role):
            turns.append({"role": role, "content": []})
        if blocks:
            turns[-1]["content"] += blocks
    return _system(messages[:leading]), turns


def _system(messages: Sequence[Message]) -> str | list[Any]:
    if all(isinstance(message.get("content"), (str, type(None))) for message in messages):
        return "\n\n".join(message["content"] for message in messages if message.get("content"))
    return [block for message in messages for block in _said(message)]


def _said(message: Message) -> list[Any]:
    """The content as blocks, without texts that are blank: the API takes none. Blocks may be dicts,
    or what a client makes of them.
    """
    content = message.get("content")
    blocks = content if isinstance(content, list) else [] if content is None else [content]
    shaped = [
        {"type": "text", "text": block} if isinstance(block, str) else block for block in blocks
    ]
    return [
        block
        for block in shaped
        if read(block, "type") != "text" or str(read(block, "text") or "").strip()
    ]


def _called(turns: Sequence[Message]) -> list[dict[str, Any]]:
    """The tools that were called in a conversation, as far as they are known from it."""
    blocks = (block for turn in turns for block in turn["content"])
    names = dict.fromkeys(
        read(block, "name") for block in blocks if read(block, "type") == "tool_use"
    )
    return [{"name": name, "input_schema": {"type": "object"}} for name in names]


def _blocks(message: Message) -> list[Any]:
    if message["role"] == "tool":
        content = message.get("content")
        result = {
            "type": "tool_result",
            "tool_use_id": message["tool_call_id"],
            "content": "" if content is None else content,
        }
        return [{**result, "is_error": True}] if message.get("is_error") else [result]
    blocks = _said(message)
    for call in message.get("tool_calls") or ():
        function = call["function"]
        blocks.append(
            {
                "type": "tool_use",
                "id": call["id"],
                "name": function["name"],
                "input": parsed(function["arguments"]),
            }
        )
    return blocks
