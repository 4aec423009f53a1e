"""Chat completions, as OpenAI and many other providers have them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edictum.errors import ModelError
from edictum.harness.attachments import list_attachments, split_parts
from edictum.harness.messages import (
    CHAT_API,
    CHAT_CALL_KEYS,
    CHAT_KEYS,
    ChatMessage,
    ModelReply,
    StopReason,
    get_path,
    read_usage,
)
from edictum.harness.model_events import (
    ModelEvent,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from edictum.harness.models._answer_types import AnswerType
from edictum.harness.models._client_model import (
    make_cut_error,
    make_provider_error,
    make_unsupported_error,
)
from edictum.harness.models._contents import CallNames, is_foreign
from edictum.harness.models._settings import INSTRUCTION_ROLES, choose_tools
from edictum.harness.tool_executor import ToolCallRequest
from edictum.harness.tool_spec import ToolSpec

CHAT_CALL_ID = re.compile(r"(?s).{1,40}")
KEYS_NOT_SENT = ("is_error", "provider_content", "annotations")
SAYING = ("content", "tool_calls", "function_call", "refusal", "audio")
# the names of each field of Usage in an answer; the first that is present counts
CHAT_USAGE: dict[str, tuple[str, ...]] = {
    "input_tokens": ("prompt_tokens",),
    "output_tokens": ("completion_tokens",),
    "cache_read_tokens": ("prompt_tokens_details.cached_tokens", "prompt_cache_hit_tokens"),
    "cache_creation_tokens": ("prompt_tokens_details.cache_write_tokens",),
    "reasoning_tokens": ("completion_tokens_details.reasoning_tokens",),
}
# those of other providers too, behind addresses that speak like OpenAI
# Words of several providers. One that is not among them may mean that the reply was cut.
CHAT_STOPS: dict[str, StopReason] = {
    **dict.fromkeys(("stop", "tool_calls", "function_call", "none", ""), "end"),
    **dict.fromkeys(("eos", "eos_token", "stop_sequence", "end_turn", "tool_use"), "end"),
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "recitation": "content_filter",
}
# of a streamed message: text that comes whole and may come twice, not in pieces
WHOLE_TEXTS = ("id", "type", "role", "name", "format", "signature", "thought_signature")


@dataclass(frozen=True, slots=True)
class ChatApi:
    """``chat.completions.create`` of a client."""

    model: str
    settings: Mapping[str, Any]
    stream_options: Mapping[str, Any]
    always_streams: bool
    answer_type: AnswerType | None
    source: str = ""
    system_first: bool = False

    def write(self, messages: list[ChatMessage], tools: Sequence[ToolSpec]) -> dict[str, Any]:
        specs = [spec.to_openai_schema() for spec in tools]
        options = choose_tools(self.settings, specs, messages)
        if self.answer_type is not None:
            options |= {"response_format": self.answer_type.for_chat()}
        given = _put_system_first(messages) if self.system_first else messages
        sent = to_openai(given, [spec.name for spec in tools], self.source)
        return {"model": self.model, "messages": sent, **options}

    def must_stream(self, request: Mapping[str, Any]) -> bool:
        return self.always_streams

    def start_answer(self) -> ChatStream:
        return ChatStream()

    def read(self, answer: dict[str, Any]) -> ModelReply:
        choice = get_path(answer, "choices", 0)
        message = get_path(choice, "message")
        if error := get_path(choice, "error"):
            raise make_provider_error(error)
        if not isinstance(message, dict) or choice.get("finish_reason") == "error":
            hint = "Look at the answer of the provider; it may be out of service."
            raise ModelError("The model's provider answered without a reply.", hint=hint)
        refusal = message.get("refusal") or ""
        stop = CHAT_STOPS.get(str(choice.get("finish_reason")).lower(), "length")
        return ModelReply(
            _read_text(message.get("content")),
            tuple(map(_read_call, message.get("tool_calls") or ())),
            read_usage(answer.get("usage"), CHAT_USAGE),
            stop_reason="refused" if refusal and stop == "end" else stop,
            refusal=refusal,
            content=_clean_message(message),
            api=CHAT_API,
            source=self.source,
            model=answer.get("model") or "",
            response_id=answer.get("id") or "",
        )


def _read_text(content: Any) -> str:
    """Return the text of a message; some providers answer in parts, thinking among them."""
    if not isinstance(content, list):
        return content or ""
    return "".join(part.get("text") or "" for part in content if part.get("type") == "text")


def _read_call(call: dict[str, Any]) -> ToolCallRequest:
    if call.get("custom"):
        raise make_unsupported_error("custom tool call")
    function = call.get("function") or {}
    return ToolCallRequest(
        call.get("id") or "", function.get("name") or "", function.get("arguments")
    )


def _clean_message(message: dict[str, Any]) -> ChatMessage:
    """Return the message as it can be sent back: without empty fields, and with audio by its id."""
    kept = {name: value for name, value in message.items() if value not in (None, [], {})}
    if "audio" in kept:
        kept["audio"] = {"id": kept["audio"].get("id")}
    return {"role": "assistant", **kept}


# --- Requests -------------------------------------------------------------------------------------


def to_openai(
    messages: Sequence[ChatMessage], declared: Collection[str] = (), source: str = ""
) -> list[ChatMessage]:
    """Return messages as chat completions take them: without our own keys and empty messages, and
    with the images of tool results in a user message behind the results.

    Keys that not every provider knows are sent only to the ``source`` that the message came from.
    """
    sent: list[ChatMessage] = []
    attached: list[dict[str, Any]] = []
    for message in CallNames(CHAT_CALL_ID, declared).adapt(messages, CHAT_API):
        if message["role"] != "tool" and attached:
            sent.append({"role": "user", "content": attached})
            attached = []
        known = _keep_common(message) if is_foreign(message, source) else message
        plain = {name: value for name, value in known.items() if name not in KEYS_NOT_SENT}
        if message["role"] == "tool" and list_attachments(plain.get("content")):
            plain["content"], parts = split_parts(plain["content"], plain["tool_call_id"])
            attached = [*attached, *parts]
        if _says_something(plain):
            sent.append(plain)
    return [*sent, {"role": "user", "content": attached}] if attached else sent


def _put_system_first(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return messages in which only the first ones are system messages; later ones become the
    user's, for servers that refuse them there.
    """
    roles = [message["role"] in INSTRUCTION_ROLES for message in messages]
    leading = roles.index(False) if False in roles else len(roles)
    return [
        {**message, "role": "user"} if is_system and number >= leading else message
        for number, (message, is_system) in enumerate(zip(messages, roles, strict=True))
    ]


def _keep_common(message: ChatMessage) -> ChatMessage:
    """Return an assistant's message with what every provider knows."""
    common = {name: value for name, value in message.items() if name in CHAT_KEYS}
    common["content"] = _read_text(message.get("content"))
    if "tool_calls" in common:
        common["tool_calls"] = [
            {name: value for name, value in call.items() if name in CHAT_CALL_KEYS}
            for call in common["tool_calls"]
        ]
    return common


def _says_something(message: ChatMessage) -> bool:
    """Return whether a message has more than reasoning: providers refuse reasoning alone."""
    may_be_empty = message["role"] in (*INSTRUCTION_ROLES, "assistant")
    return not may_be_empty or any(message.get(name) for name in SAYING)


# --- Streams --------------------------------------------------------------------------------------


@dataclass(slots=True)
class ChatStream:
    """The answer that the chunks of a stream make."""

    answer: dict[str, Any] = field(default_factory=dict)
    message: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    started: set[int] = field(default_factory=set)

    def add(self, event: dict[str, Any]) -> Iterator[ModelEvent]:
        if error := event.get("error") or get_path(event, "choices", 0, "error"):
            raise make_provider_error(error)
        self.answer |= {name: event[name] for name in ("id", "model", "usage") if event.get(name)}
        for choice in event.get("choices") or ():
            if not choice.get("index"):
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
                yield from self._add_delta(choice.get("delta") or {})

    def _add_delta(self, delta: dict[str, Any]) -> Iterator[ModelEvent]:
        calls = delta.pop("tool_calls", None) or ()
        merge_delta(self.message, delta)
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            yield ReasoningDelta(thought if isinstance(thought, str) else "")
        if text := _read_text(delta.get("content")):
            yield TextDelta(text)
        if refusal := delta.get("refusal"):
            yield RefusalDelta(refusal)
        for call in calls:
            yield from self._add_call(call)

    def _add_call(self, delta: dict[str, Any]) -> Iterator[ModelEvent]:
        calls = self.message.setdefault("tool_calls", [])
        number = _find_call(calls, delta)
        if number == len(calls):
            calls.append({})
        merge_delta(calls[number], delta)
        call = _read_call(calls[number])
        if call.name and number not in self.started:
            self.started.add(number)
            yield ToolCallStarted(number, call.id, call.name)
        if piece := _read_call(delta).arguments:
            yield ToolCallDelta(number, piece)

    def finish(self) -> dict[str, Any]:
        if self.finish_reason is None:
            raise make_cut_error()
        for call in self.message.get("tool_calls") or ():
            call.pop("index", None)  # of the stream: refused in a request
        choice = {"message": self.message, "finish_reason": self.finish_reason}
        return {**self.answer, "choices": [choice]}


def _find_call(calls: list[dict[str, Any]], delta: dict[str, Any]) -> int:
    """Return where a piece of a call belongs. Some servers give no index, or each call the same
    one; a new id is a new call.
    """
    index, given = delta.get("index"), delta.get("id")
    for number in reversed(range(len(calls))):
        known = calls[number]
        if (index is None or known.get("index") == index) and given in (None, "", known.get("id")):
            return number
    return len(calls)


def merge_delta(whole: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add a piece of streamed data: texts and lists grow, objects are merged by their keys."""
    for name, piece in delta.items():
        known = whole.get(name)
        if isinstance(piece, list):
            whole[name] = _merge_items(known or [], piece)
        elif isinstance(piece, Mapping) and isinstance(known, dict):
            merge_delta(known, piece)
        elif isinstance(piece, str) and isinstance(known, str) and name not in WHOLE_TEXTS:
            whole[name] = known + piece
        elif piece is not None and (piece != "" or known is None):
            whole[name] = piece


def _merge_items(known: list[Any], pieces: list[Any]) -> list[Any]:
    by_index = {item["index"]: item for item in known if isinstance(item, dict) and "index" in item}
    for piece in pieces:
        index = piece.get("index") if isinstance(piece, dict) else None
        if index is not None and index in by_index:
            merge_delta(by_index[index], piece)
        else:
            known.append(piece)
            if index is not None:
                by_index[index] = piece
    return known
