"""The Responses API of OpenAI."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edictum.errors import ModelError
from edictum.harness.attachments import to_responses_content
from edictum.harness.messages import (
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
from edictum.harness.models._contents import (
    CallNames,
    drop_content,
    drop_trailing,
    find_content,
    list_call_ids,
)
from edictum.harness.models._settings import choose_tools
from edictum.harness.tool_executor import ToolCallRequest
from edictum.harness.tool_spec import ToolSpec

RESPONSES_API = "openai_responses"
RESPONSES_CALL_ID = re.compile(r"(?s).{1,64}")
RESPONSES_USAGE: dict[str, tuple[str, ...]] = {
    "input_tokens": ("input_tokens",),
    "output_tokens": ("output_tokens",),
    "cache_read_tokens": ("input_tokens_details.cached_tokens",),
    "cache_creation_tokens": ("input_tokens_details.cache_write_tokens",),
    "reasoning_tokens": ("output_tokens_details.reasoning_tokens",),
}
DELTA_EVENTS: dict[str, type[TextDelta | ReasoningDelta | RefusalDelta]] = {
    "response.output_text.delta": TextDelta,
    "response.refusal.delta": RefusalDelta,
    "response.reasoning_text.delta": ReasoningDelta,
    "response.reasoning_summary_text.delta": ReasoningDelta,
}
# items that the host of a model is to answer, and for which a turn has nothing
UNSUPPORTED_CALLS = frozenset(
    {
        *("mcp_approval_request", "computer_call", "custom_tool_call"),
        *("local_shell_call", "shell_call", "apply_patch_call"),
    }
)
FINAL_EVENTS = ("response.completed", "response.incomplete", "response.failed")


@dataclass(frozen=True, slots=True)
class ResponsesApi:
    """``responses.create`` of a client."""

    model: str
    settings: Mapping[str, Any]
    always_streams: bool
    answer_type: AnswerType | None
    source: str = ""
    stream_options: Mapping[str, Any] = field(default_factory=dict)

    def write(self, messages: list[ChatMessage], tools: Sequence[ToolSpec]) -> dict[str, Any]:
        options = choose_tools(self.settings, [_to_function(spec) for spec in tools], messages)
        if self.answer_type is not None:
            given = options.get("text") or {}
            options["text"] = {**given, "format": self.answer_type.for_responses()}
        is_stored = options.get("store") is not False
        names = [spec.name for spec in tools]
        sent = to_responses(messages, is_stored, names, self.source)
        return {"model": self.model, "input": sent, **options}

    def must_stream(self, request: Mapping[str, Any]) -> bool:
        return self.always_streams

    def start_answer(self) -> ResponsesStream:
        return ResponsesStream()

    def read(self, answer: dict[str, Any]) -> ModelReply:
        items = answer.get("output")
        if answer.get("status") not in ("completed", "incomplete", None) or not items:
            status = answer.get("status") or "no status"
            message = f"The model's provider answered without a reply (status: {status})."
            raise ModelError(message, hint="Requests in the background are not supported.")
        _check_calls(items)
        parts = [part for item in items for part in _list_parts(item)]
        refusal = "".join(part.get("refusal") or "" for part in parts)
        stop = _read_stop(answer)
        return ModelReply(
            "".join(part["text"] for part in parts if part.get("type") == "output_text"),
            tuple(_read_item(item) for item in items if item.get("type") == "function_call"),
            read_usage(answer.get("usage"), RESPONSES_USAGE),
            stop_reason="refused" if refusal and stop == "end" else stop,
            refusal=refusal,
            content=items,
            api=RESPONSES_API,
            source=self.source,
            model=answer.get("model") or "",
            response_id=answer.get("id") or "",
        )


def _to_function(spec: ToolSpec) -> dict[str, Any]:
    # strict unless it says otherwise, and then most schemas are refused
    return {"type": "function", **spec.to_openai_schema()["function"], "strict": False}


def _check_calls(items: Sequence[Mapping[str, Any]]) -> None:
    """Raise if a tool of the provider waits for an answer of its host."""
    answered = {item.get("call_id") for item in items if str(item.get("type")).endswith("_output")}
    for item in items:
        kind = item.get("type")
        if kind in UNSUPPORTED_CALLS and item.get("call_id", item.get("id")) not in answered:
            raise make_unsupported_error(str(kind))


def _list_parts(item: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return item.get("content") or () if item.get("type") == "message" else ()


def _read_item(item: Mapping[str, Any]) -> ToolCallRequest:
    return ToolCallRequest(item.get("call_id") or "", item.get("name") or "", item.get("arguments"))


def _read_stop(answer: Mapping[str, Any]) -> StopReason:
    if answer.get("status") != "incomplete":
        calls = [item for item in answer["output"] if item.get("type") == "function_call"]
        is_whole = all(item.get("status") in ("completed", None) for item in calls)
        return "end" if is_whole else "length"
    reason = get_path(answer, "incomplete_details", "reason")
    return "content_filter" if reason == "content_filter" else "length"


# --- Requests -------------------------------------------------------------------------------------


def to_responses(
    messages: Sequence[ChatMessage],
    is_stored: bool = True,
    declared: Collection[str] = (),
    source: str = "",
) -> list[dict[str, Any]]:
    """Return messages as items of the Responses API; replies of this ``source`` as the items they
    came as.

    ``is_stored``: whether the provider keeps earlier items, so that an id is enough.
    """
    items: list[dict[str, Any]] = []
    names = CallNames(RESPONSES_CALL_ID, declared)
    known = [each if names.accepts(each) else drop_content(each) for each in messages]
    for message in names.adapt(known, RESPONSES_API, source):
        items += _to_items(message, is_stored, source)
    return items


def _to_items(message: ChatMessage, is_stored: bool, source: str) -> list[dict[str, Any]]:
    role, content = message["role"], message.get("content")
    if role == "tool":
        output = to_responses_content(content)
        answered = {"type": "function_call_output", "call_id": message["tool_call_id"]}
        return [{**answered, "output": "" if output is None else output}]
    if role != "assistant":
        return [{"role": role, "content": to_responses_content(content)}] if content else []
    kept = find_content(message, RESPONSES_API, source)
    if kept is not None:
        return _return_items(kept, set(list_call_ids(message)), is_stored)
    said = [{"role": role, "content": to_responses_content(content, "output_text")}]
    return [*(said if content else ()), *map(_to_call_item, message.get("tool_calls") or ())]


def _return_items(
    items: list[dict[str, Any]], sent: set[str], is_stored: bool
) -> list[dict[str, Any]]:
    """Return the items of a reply, without calls that are not sent and without reasoning that the
    provider can no longer read. The item behind such reasoning is sent without its id, which would
    require the reasoning.
    """
    kept = [
        item for item in items if item.get("type") != "function_call" or item["call_id"] in sent
    ]
    kept = drop_trailing(kept, ("reasoning",))
    if is_stored or all(item.get("encrypted_content") for item in kept if _is_reasoning(item)):
        return kept
    return [
        {name: value for name, value in item.items() if name != "id"}
        for item in kept
        if not _is_reasoning(item)
    ]


def _is_reasoning(item: Mapping[str, Any]) -> bool:
    return item.get("type") == "reasoning"


def _to_call_item(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    name, arguments = function["name"], function["arguments"]
    return {"type": "function_call", "call_id": call["id"], "name": name, "arguments": arguments}


# --- Streams --------------------------------------------------------------------------------------


@dataclass(slots=True)
class ResponsesStream:
    """The answer at the end of a stream, and the items before it."""

    answer: dict[str, Any] | None = None
    items: list[dict[str, Any]] = field(default_factory=list)
    calls: dict[int, int] = field(default_factory=dict)  # index of an item: number of the call

    def add(self, event: dict[str, Any]) -> Iterator[ModelEvent]:
        kind, index = event.get("type") or "", event.get("output_index")
        if kind in DELTA_EVENTS:
            yield DELTA_EVENTS[kind](event.get("delta") or "")
        elif kind == "response.output_item.added":
            yield from self._start_item(index or 0, event["item"])
        elif kind == "response.function_call_arguments.delta" and index in self.calls:
            yield ToolCallDelta(self.calls[index], event.get("delta") or "")
        elif kind == "response.output_item.done":
            self.items.append(event["item"])
        elif kind in FINAL_EVENTS:
            self.answer = event["response"]
        elif kind == "error":
            raise make_provider_error(event.get("error") or event)

    def _start_item(self, index: int, item: Mapping[str, Any]) -> Iterator[ModelEvent]:
        if item.get("type") == "function_call":
            self.calls[index] = len(self.calls)
            call = _read_item(item)
            yield ToolCallStarted(self.calls[index], call.id, call.name)

    def finish(self) -> dict[str, Any]:
        if self.answer is None:
            raise make_cut_error()
        return {**self.answer, "output": self.answer.get("output") or self.items}
