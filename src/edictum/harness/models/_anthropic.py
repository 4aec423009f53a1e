"""The Messages API of Anthropic."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edictum.errors import ModelError
from edictum.harness.attachments import to_anthropic_content
from edictum.harness.messages import (
    ChatMessage,
    ModelReply,
    StopReason,
    get_path,
    is_error_message,
    read_usage,
    to_object,
)
from edictum.harness.model_events import (
    ModelEvent,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from edictum.harness.models._answer_types import AnswerType
from edictum.harness.models._client_model import make_cut_error, make_provider_error
from edictum.harness.models._contents import (
    CallNames,
    drop_content,
    drop_trailing,
    find_content,
    is_foreign,
    list_call_ids,
    without_nulls,
)
from edictum.harness.models._settings import INSTRUCTION_ROLES, choose_tools, count_since_user
from edictum.harness.tool_executor import ToolCallRequest
from edictum.harness.tool_spec import ToolSpec

ANTHROPIC_API = "anthropic"
ANTHROPIC_CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
LONG_ANSWER = 8192  # tokens; clients refuse to wait for much longer answers without a stream
ANTHROPIC_USAGE: dict[str, tuple[str, ...]] = {
    "input_tokens": ("input_tokens",),
    "output_tokens": ("output_tokens",),
    "cache_read_tokens": ("cache_read_input_tokens",),
    "cache_creation_tokens": ("cache_creation_input_tokens",),
    "reasoning_tokens": ("output_tokens_details.thinking_tokens",),
}
# A word that is not among them may mean that the reply was cut.
ANTHROPIC_STOPS: dict[str, StopReason] = {
    **dict.fromkeys(("end_turn", "tool_use", "stop_sequence", "None"), "end"),
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
    "pause_turn": "paused",
    "compaction": "paused",
}
THINKING = ("thinking", "redacted_thinking")


@dataclass(frozen=True, slots=True)
class AnthropicApi:
    """``messages.create`` of a client."""

    model: str
    max_tokens: int
    settings: Mapping[str, Any]
    system: str | list[Any] | None
    always_streams: bool
    answer_type: AnswerType | None
    source: str = ""
    stream_options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, messages: list[ChatMessage], tools: Sequence[ToolSpec]) -> dict[str, Any]:
        names = [spec.name for spec in tools]
        system, turns = to_anthropic(messages, self.system, names, self.source)
        specs = [spec.to_anthropic_schema() for spec in tools]
        options = choose_tools(self.settings, specs, messages)
        if not tools and (called := _list_called_tools(turns)):
            options |= self._declare(called, options)
        if system:
            options["system"] = system
        if container := _find_container(messages):
            options.setdefault("container", container)
        if self.answer_type is not None:
            given = options.get("output_config") or {}
            options["output_config"] = {**given, "format": self.answer_type.for_anthropic()}
        base = {"model": self.model, "max_tokens": self.max_tokens, "messages": turns}
        return {**base, **options}

    def _declare(self, called: list[Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Return declarations of tools that were called before, without which earlier calls are
        refused. If no tools are offered, these may not be called.
        """
        if offered := options.get("tools"):
            return {"tools": [*offered, *called]}
        provided = self.settings.get("tools") or ()
        return {"tools": [*provided, *called], "tool_choice": {"type": "none"}}

    def must_stream(self, request: Mapping[str, Any]) -> bool:
        return self.always_streams or request["max_tokens"] > LONG_ANSWER

    def start_answer(self) -> AnthropicStream:
        return AnthropicStream()

    def read(self, answer: dict[str, Any]) -> ModelReply:
        if answer.get("type") == "error" or not isinstance(answer.get("content"), list):
            raise ModelError("The model's provider answered without a reply.")
        blocks = answer["content"]
        stop = ANTHROPIC_STOPS.get(str(answer.get("stop_reason")), "length")
        explanation = get_path(answer, "stop_details", "explanation") or ""
        return ModelReply(
            "".join(block.get("text") or "" for block in blocks if is_text(block)),
            tuple(_read_use(block) for block in blocks if block.get("type") == "tool_use"),
            read_usage(answer.get("usage"), ANTHROPIC_USAGE),
            stop_reason=stop,
            refusal=explanation if stop == "refused" else "",
            content=_keep_content(blocks, get_path(answer, "container", "id")),
            api=ANTHROPIC_API,
            source=self.source,
            model=answer.get("model") or "",
            response_id=answer.get("id") or "",
        )


def _read_use(block: Mapping[str, Any]) -> ToolCallRequest:
    return ToolCallRequest(block.get("id") or "", block.get("name") or "", block.get("input"))


def _keep_content(blocks: Sequence[Mapping[str, Any]], container: str | None) -> Any:
    """Return the blocks, or None if a chat message would say the same: texts, then calls.

    If the model's code runs at the provider, keep the container in which it runs.
    """
    kept = [without_nulls(block) for block in blocks]
    for block in kept:
        if "input" in block:
            block["input"] = to_object(block["input"])
        if block.get("caller") == {"type": "direct"}:
            del block["caller"]
    kinds = [block.get("type") for block in kept]
    uses = kinds.count("tool_use")
    texts = len(kinds) - uses
    is_plain = kinds == [*["text"] * texts, *["tool_use"] * uses] and texts <= 1
    if container is not None:
        return {"content": kept, "container": container}
    return None if is_plain and not any(block.get("citations") for block in kept) else kept


def _find_container(messages: Sequence[ChatMessage]) -> str | None:
    """Return the container of the turn under way: code in it may wait for results of calls.

    In the next turn it may have expired.
    """
    since = messages[len(messages) - count_since_user(messages) :]
    found = (get_path(each, "provider_content", "content", "container") for each in reversed(since))
    return next((container for container in found if isinstance(container, str)), None)


# --- Requests -------------------------------------------------------------------------------------


def to_anthropic(
    messages: Sequence[ChatMessage],
    system: str | list[Any] | None = None,
    declared: Collection[str] = (),
    source: str = "",
) -> tuple[str | list[Any], list[ChatMessage]]:
    """Return the instructions as text or blocks, those of ``system`` first, and the other messages:
    those of one role joined, results first, empty ones left out, as the API demands.

    Replies of earlier turns that came from another ``source`` are sent without their thinking,
    whose signature might not be known.
    """
    leading = 0
    while leading < len(messages) and messages[leading]["role"] in INSTRUCTION_ROLES:
        leading += 1
    turns: list[ChatMessage] = []
    for message in _adapt_calls(messages[leading:], declared, source):
        blocks = _to_blocks(message)
        role = "assistant" if message["role"] == "assistant" else "user"
        if blocks and (not turns or turns[-1]["role"] != role):
            turns.append({"role": role, "content": []})
        if blocks:
            turns[-1]["content"] += blocks
    _order_blocks(turns)
    given = [{"role": "system", "content": system}] if system else []
    return _join_instructions([*given, *messages[:leading]]), [t for t in turns if t["content"]]


def _adapt_calls(
    messages: Sequence[ChatMessage], declared: Collection[str], source: str
) -> Iterator[ChatMessage]:
    """Yield messages with ids and names that are accepted, and without foreign content, except in
    the turn under way: there thinking is required, and other hosts of the provider accept it.
    """
    names = CallNames(ANTHROPIC_CALL_ID, declared)
    earlier = len(messages) - count_since_user(messages)
    known = [
        drop_content(message)
        if number < earlier and is_foreign(message, source)
        else _rename_blocks(message, names)
        for number, message in enumerate(messages)
    ]
    return names.adapt(known, ANTHROPIC_API)


def _rename_blocks(message: ChatMessage, names: CallNames) -> ChatMessage:
    """Return a reply's message with acceptable names in its content."""
    if names.accepts(message) or (kept := find_content(message, ANTHROPIC_API)) is None:
        return message
    blocks = [
        {**block, "name": names.adapt_name(block["name"])} if _is_use(block) else block
        for block in kept
    ]
    content = message["provider_content"]["content"]
    content = {**content, "content": blocks} if isinstance(content, Mapping) else blocks
    return {**message, "provider_content": {**message["provider_content"], "content": content}}


def _is_use(block: Any) -> bool:
    return bool(get_path(block, "type") == "tool_use")


def _join_instructions(messages: Sequence[ChatMessage]) -> str | list[Any]:
    if all(isinstance(message.get("content"), (str, type(None))) for message in messages):
        return "\n\n".join(message["content"] for message in messages if message.get("content"))
    return [block for message in messages for block in _content_blocks(message)]


def _to_blocks(message: ChatMessage) -> list[Any]:
    if message["role"] == "tool":
        result = {
            "type": "tool_result",
            "tool_use_id": message["tool_call_id"],
            "content": to_anthropic_content(message.get("content")),
        }
        return [{**result, "is_error": True}] if is_error_message(message) else [result]
    kept = find_content(message, ANTHROPIC_API)
    if kept is None:
        return [*_content_blocks(message), *map(_to_tool_use, message.get("tool_calls") or ())]
    sent = set(list_call_ids(message))
    blocks = [block for block in kept if block.get("type") != "tool_use" or block["id"] in sent]
    return drop_trailing([block for block in blocks if _is_acceptable(block)], THINKING)


def _is_acceptable(block: Any) -> bool:
    """Return whether the API takes a block back: no blank text, no thinking that was cut."""
    if is_text(block):
        return bool(str(get_path(block, "text") or "").strip())
    return get_path(block, "type") != "thinking" or bool(get_path(block, "signature"))


def _order_blocks(turns: list[ChatMessage]) -> None:
    """Put results first, and drop calls of the provider's own tools that were not answered, unless
    the provider will continue them: after a pause, or with results for it.
    """
    answered = {get_path(block, "tool_use_id") for turn in turns for block in turn["content"]}
    for number, turn in enumerate(turns):
        following = turns[number + 1]["content"] if number + 1 < len(turns) else []
        goes_on = number + 2 >= len(turns) and (not following or any(map(_is_result, following)))
        turn["content"] = sorted(
            (
                block
                for block in turn["content"]
                if goes_on
                or get_path(block, "type") != "server_tool_use"
                or get_path(block, "id") in answered
            ),
            key=lambda block: not _is_result(block),
        )


def _is_result(block: Any) -> bool:
    return bool(get_path(block, "type") == "tool_result")


def _to_tool_use(call: dict[str, Any]) -> dict[str, Any]:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    return {"type": "tool_use", "id": call["id"], "name": name, "input": to_object(arguments)}


def _content_blocks(message: ChatMessage) -> list[Any]:
    """Return the content as blocks, which may be objects of a client, without blank texts."""
    content = message.get("content")
    given = content if isinstance(content, list) else [] if content is None else [content]
    blocks = [{"type": "text", "text": each} if isinstance(each, str) else each for each in given]
    return [block for block in to_anthropic_content(blocks) if _is_acceptable(block)]


def is_text(block: Any) -> bool:
    return bool(get_path(block, "type") == "text")


def _list_called_tools(turns: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return declarations of the tools that were called, as far as the conversation shows them."""
    blocks = (block for turn in turns for block in turn["content"])
    uses = (block for block in blocks if get_path(block, "type") == "tool_use")
    names = dict.fromkeys(get_path(block, "name") for block in uses)
    return [{"name": name, "input_schema": {"type": "object"}} for name in names]


# --- Streams --------------------------------------------------------------------------------------


@dataclass(slots=True)
class AnthropicStream:
    """The answer that the events of a stream make."""

    answer: dict[str, Any] = field(default_factory=dict)
    blocks: dict[int, dict[str, Any]] = field(default_factory=dict)
    inputs: dict[int, str] = field(default_factory=dict)  # JSON texts, as far as received
    calls: dict[int, int] = field(default_factory=dict)  # index of a block: number of the call
    is_whole: bool = False

    def add(self, event: dict[str, Any]) -> Iterator[ModelEvent]:
        match event.get("type"):
            case "message_start":
                self.answer = event["message"]
            case "content_block_start":
                yield from self._start_block(event["index"], event["content_block"])
            case "content_block_delta":
                yield from self._add_delta(event["index"], event["delta"])
            case "message_delta":
                self.answer |= without_nulls(event.get("delta") or {})
                usage = without_nulls(event.get("usage") or {})
                self.answer["usage"] = {**(self.answer.get("usage") or {}), **usage}
            case "message_stop":
                self.is_whole = True
            case "error":
                raise make_provider_error(event.get("error"))

    def _start_block(self, index: int, block: dict[str, Any]) -> Iterator[ModelEvent]:
        self.blocks[index] = block
        if block.get("type") == "tool_use":
            self.calls[index] = len(self.calls)
            yield ToolCallStarted(self.calls[index], block["id"], block["name"])

    def _add_delta(self, index: int, delta: dict[str, Any]) -> Iterator[ModelEvent]:
        """Add a delta to its block: each key grows, whatever kind of delta it is."""
        block = self.blocks[index]
        for name, piece in delta.items():
            match name:
                case "type":
                    continue
                case "partial_json":
                    self.inputs[index] = self.inputs.get(index, "") + piece
                    if piece and index in self.calls:
                        yield ToolCallDelta(self.calls[index], piece)
                case "citation":
                    block["citations"] = [*(block.get("citations") or ()), piece]
                case _:
                    block[name] = (block.get(name) or "") + piece
                    if name == "text" and piece:
                        yield TextDelta(piece)
                    if name == "thinking" and piece:
                        yield ReasoningDelta(piece)

    def finish(self) -> dict[str, Any]:
        if not self.is_whole:
            raise make_cut_error()
        for index, text in self.inputs.items():
            if text:
                self.blocks[index]["input"] = _read_input(text)
        return {**self.answer, "content": [self.blocks[index] for index in sorted(self.blocks)]}


def _read_input(text: str) -> Any:
    """Return the input of a call. Text that is not JSON is kept: the turn refuses it."""
    try:
        return json.loads(text)
    except ValueError:
        return text
