"""Ready-made models for ``run_turn``. The client object is passed in; no SDK is imported.

``openai_model`` takes any client with ``chat.completions.create``, ``anthropic_model`` any with
``messages.create``; synchronous or asynchronous. Further keywords go to the client as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from edictum.harness.messages import ChatMessage, ModelReply, Usage, get_path, to_object
from edictum.harness.model_events import OnModelEvent
from edictum.harness.tool_executor import ToolCallRequest
from edictum.harness.tool_spec import ToolSpec

Model = Callable[..., Any]

OUR_KEYS = ("is_error", "provider_content")
INSTRUCTION_ROLES = ("system", "developer")
TOOL_SETTINGS = ("tool_choice", "parallel_tool_calls")  # refused in a request without tools
# where answers have what Usage counts
OPENAI_TOKENS = ("prompt_tokens", "completion_tokens", "prompt_tokens_details.cached_tokens")
ANTHROPIC_TOKENS = (
    *("input_tokens", "output_tokens"),
    *("cache_read_input_tokens", "cache_creation_input_tokens"),
)


def openai_model(client: Any, *, model: str, **settings: Any) -> Model:
    """Return a model behind an OpenAI-style client."""

    def write(messages: list[ChatMessage], tools: Sequence[ToolSpec]) -> dict[str, Any]:
        options = _make_options(settings, [spec.to_openai_schema() for spec in tools])
        return {"model": model, "messages": to_openai(messages), **options}

    return _make_model(client.chat.completions, write, _from_openai)


def anthropic_model(client: Any, *, model: str, max_tokens: int = 4096, **settings: Any) -> Model:
    """Return a model behind an Anthropic-style client."""

    def write(messages: list[ChatMessage], tools: Sequence[ToolSpec]) -> dict[str, Any]:
        system, turns = to_anthropic(messages)
        options = _make_options(settings, [spec.to_anthropic_schema() for spec in tools])
        if not tools and (called := _list_called_tools(turns)):
            # earlier calls are refused unless their tools are declared
            options |= {"tools": called, "tool_choice": {"type": "none"}}
        if system:
            options["system"] = system
        return {"model": model, "max_tokens": max_tokens, "messages": turns, **options}

    return _make_model(client.messages, write, _from_anthropic)


def _make_options(settings: dict[str, Any], tools: list[dict[str, Any]]) -> dict[str, Any]:
    if tools:
        return {"tools": tools, **settings}
    return {name: value for name, value in settings.items() if name not in TOOL_SETTINGS}


def _make_model(api: Any, write: Model, read: Callable[[Any], ModelReply]) -> Model:
    """Say on the model whether it blocks: ``run_turn`` then calls it in a thread."""

    def call(
        messages: list[ChatMessage],
        tools: Sequence[ToolSpec],
        *,
        on_event: OnModelEvent | None = None,
    ) -> Any:
        answer = api.create(**write(messages, tools))

        async def read_later() -> ModelReply:
            return read(await answer)

        return read_later() if inspect.isawaitable(answer) else read(answer)

    vars(call)["blocks"] = not inspect.iscoroutinefunction(api.create)
    return call


def can_stream(model: Any) -> bool:
    """Whether a model can be called with ``on_event=``, a function that gets each ModelEvent while
    the reply is received. If the function raises, the reply is broken off and its error is raised.

    ``on_event`` is called where the model runs: in a thread if the model blocks.
    """
    try:
        parameters = inspect.signature(model).parameters
    except (TypeError, ValueError):  # of a builtin
        return False
    return "on_event" in parameters


def _read_usage(answer: Any, paths: Sequence[str]) -> Usage:
    counts = (get_path(answer, "usage", *path.split(".")) for path in paths)
    return Usage(*(count or 0 for count in counts))


# --- OpenAI ---------------------------------------------------------------------------------------


def _from_openai(answer: Any) -> ModelReply:
    message = get_path(answer, "choices", 0, "message")
    calls = tuple(
        ToolCallRequest(
            get_path(call, "id"),
            get_path(call, "function", "name"),
            get_path(call, "function", "arguments"),
        )
        for call in get_path(message, "tool_calls") or ()
    )
    text = get_path(message, "content") or ""
    return ModelReply(text, calls, _read_usage(answer, OPENAI_TOKENS))


def to_openai(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return messages without our own keys and without empty ones, which providers refuse."""
    plain = ({name: value for name, value in m.items() if name not in OUR_KEYS} for m in messages)
    return [
        message
        for message in plain
        if message["role"] not in (*INSTRUCTION_ROLES, "assistant")
        or any(message[name] for name in message.keys() - {"role", "name"})
    ]


# --- Anthropic ------------------------------------------------------------------------------------


def _from_anthropic(answer: Any) -> ModelReply:
    blocks = get_path(answer, "content") or ()
    calls = tuple(
        ToolCallRequest(get_path(block, "id"), get_path(block, "name"), get_path(block, "input"))
        for block in blocks
        if get_path(block, "type") == "tool_use"
    )
    texts = (get_path(block, "text") or "" for block in blocks if _is_text(block))
    return ModelReply("".join(texts), calls, _read_usage(answer, ANTHROPIC_TOKENS))


def to_anthropic(messages: Sequence[ChatMessage]) -> tuple[str | list[Any], list[ChatMessage]]:
    """Return the leading instructions as text or blocks, and the other messages: those of one role
    joined, empty ones left out, because the API refuses them.
    """
    leading = 0
    while leading < len(messages) and messages[leading]["role"] in INSTRUCTION_ROLES:
        leading += 1
    turns: list[ChatMessage] = []
    for message in messages[leading:]:
        blocks = _to_blocks(message)
        role = "assistant" if message["role"] == "assistant" else "user"
        if blocks and (not turns or turns[-1]["role"] != role):
            turns.append({"role": role, "content": []})
        if blocks:
            turns[-1]["content"] += blocks
    return _join_instructions(messages[:leading]), turns


def _join_instructions(messages: Sequence[ChatMessage]) -> str | list[Any]:
    if all(isinstance(message.get("content"), (str, type(None))) for message in messages):
        return "\n\n".join(message["content"] for message in messages if message.get("content"))
    return [block for message in messages for block in _content_blocks(message)]


def _to_blocks(message: ChatMessage) -> list[Any]:
    if message["role"] == "tool":
        content = message.get("content")
        result = {
            "type": "tool_result",
            "tool_use_id": message["tool_call_id"],
            "content": "" if content is None else content,
        }
        is_error = message.get("is_error") or getattr(message, "is_error", False)
        return [{**result, "is_error": True}] if is_error else [result]
    return [*_content_blocks(message), *map(_to_tool_use, message.get("tool_calls") or ())]


def _to_tool_use(call: dict[str, Any]) -> dict[str, Any]:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    return {"type": "tool_use", "id": call["id"], "name": name, "input": to_object(arguments)}


def _content_blocks(message: ChatMessage) -> list[Any]:
    """Return the content as blocks, which may be objects of a client, without blank texts."""
    content = message.get("content")
    given = content if isinstance(content, list) else [] if content is None else [content]
    blocks = [{"type": "text", "text": each} if isinstance(each, str) else each for each in given]
    return [
        block
        for block in blocks
        if not _is_text(block) or str(get_path(block, "text") or "").strip()
    ]


def _is_text(block: Any) -> bool:
    return bool(get_path(block, "type") == "text")


def _list_called_tools(turns: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return declarations of the tools that were called, as far as the conversation shows them."""
    blocks = (block for turn in turns for block in turn["content"])
    uses = (block for block in blocks if get_path(block, "type") == "tool_use")
    names = dict.fromkeys(get_path(block, "name") for block in uses)
    return [{"name": name, "input_schema": {"type": "object"}} for name in names]
