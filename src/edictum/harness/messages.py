"""Messages to a model and replies from it, in the shape of OpenAI-style chat messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from edictum.core.values import dumps
from edictum.errors import EdictumInputError
from edictum.harness.tool_executor import ToolCallRequest
from edictum.harness.turn_call import NOT_A_NAME
from edictum.outcomes import ToolOutcome, outcome_is_error, outcome_to_model_content

ChatMessage = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What a model said: text, and the calls it asks for."""

    text: str = ""
    tool_calls: tuple[ToolCallRequest, ...] = ()
    usage: Usage = field(default=Usage())


# --- Replies --------------------------------------------------------------------------------------


def to_reply(answer: Any) -> ModelReply:
    """Read what a model callable returned: a ModelReply, a text, a pair of text and calls, or a
    dict with ``text`` and ``tool_calls``.
    """
    if isinstance(answer, ModelReply):
        usage = _to_usage(answer.usage)
        return ModelReply(_to_text(answer.text), _to_requests(answer.tool_calls), usage)
    if answer is None or isinstance(answer, str):
        return ModelReply(_to_text(answer))
    if isinstance(answer, Mapping):
        answer = (answer.get("text") or answer.get("content") or "", answer.get("tool_calls"))
    match answer:
        case tuple((str() | None as text, calls)):
            return ModelReply(_to_text(text), _to_requests(calls))
    message = f"The model returned {type(answer).__name__}."
    raise EdictumInputError(message, hint="Return a ModelReply, a text, or (text, tool_calls).")


def _to_usage(usage: Any) -> Usage:
    """Return the counts of a reply; what is not a number counts as 0."""
    counts = [get_path(usage, each.name) for each in fields(Usage)]
    return Usage(*(count if isinstance(count, int) else 0 for count in counts))


def _to_text(text: Any) -> str:
    if isinstance(text, (str, type(None))):
        return replace_surrogates(text or "")
    message = f"The text of a ModelReply is {type(text).__name__}."
    raise EdictumInputError(message, hint="Pass a str.")


def _to_requests(calls: Any) -> tuple[ToolCallRequest, ...]:
    return tuple(to_request(call, number) for number, call in enumerate(calls or ()))


def to_request(call: Any, number: int = 0) -> ToolCallRequest:
    """Read one call: a ToolCallRequest, or a dict, flat or OpenAI-style.

    Without an id it gets its number. The result is always a new object, so that a call which is
    asked for twice is two calls.
    """
    if isinstance(call, ToolCallRequest):
        return ToolCallRequest(_to_id(call.id, number), _to_name(call.name), call.arguments)
    if not isinstance(call, Mapping):
        message = f"A tool call is {type(call).__name__}."
        raise EdictumInputError(message, hint="Return ToolCallRequest(id, name, arguments).")
    function = call.get("function")
    inner = function if isinstance(function, Mapping) else call
    arguments = inner.get("arguments", inner.get("args", inner.get("input")))
    return ToolCallRequest(_to_id(call.get("id"), number), _to_name(inner.get("name")), arguments)


def _to_id(given: Any, number: int) -> str:
    if isinstance(given, (str, int)) and given != "":
        return replace_surrogates(str(given))
    return f"call_{number}"


def _to_name(given: Any) -> str:
    """Return the name, or a word that no tool has and that providers accept."""
    return given if isinstance(given, str) and given else NOT_A_NAME


# --- Messages -------------------------------------------------------------------------------------


def make_assistant_message(reply: ModelReply, most: int | None = None) -> ChatMessage:
    """Return the message of a reply, with at most so many of its calls."""
    message: ChatMessage = {"role": "assistant", "content": reply.text}
    if reply.tool_calls:
        message["tool_calls"] = []
        add_calls(message, reply.tool_calls[:most])
    return message


def add_calls(message: ChatMessage, calls: Sequence[ToolCallRequest]) -> None:
    message["tool_calls"] += [_write_call(call) for call in calls]


def _write_call(call: ToolCallRequest) -> dict[str, Any]:
    arguments = {} if call.arguments is None else call.arguments
    text = arguments if isinstance(arguments, str) else dumps(arguments)
    function = {"name": replace_surrogates(call.name), "arguments": replace_surrogates(text)}
    return {"id": call.id, "type": "function", "function": function}


def make_tool_message(call_id: str, outcome: ToolOutcome) -> ChatMessage:
    content = outcome_to_model_content(outcome)
    message = {"role": "tool", "tool_call_id": call_id, "content": content}
    return {**message, "is_error": True} if outcome_is_error(outcome) else message


def make_system_message(text: str) -> ChatMessage:
    return {"role": "system", "content": replace_surrogates(text)}


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates: a model can write them, and no client can send them back."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def to_object(arguments: Any) -> dict[str, Any]:
    """Return arguments as an object, for providers that accept nothing else."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        value = json.loads(replace_surrogates(json.dumps(value, ensure_ascii=False)))
    except TypeError:  # not JSON, so it did not come from a model
        pass
    except (ValueError, RecursionError):
        value = None
    return dict(value) if isinstance(value, Mapping) else {"arguments": arguments}


def get_path(source: Any, *path: str | int) -> Any:
    """Return a value of a provider's answer, by attribute or key; None if it is missing."""
    for step in path:
        if isinstance(source, Mapping):
            source = source.get(step)
        elif isinstance(step, int):
            source = source[step] if isinstance(source, Sequence) and len(source) > step else None
        else:
            source = getattr(source, step, None)
    return source
