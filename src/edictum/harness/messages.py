"""Messages to a model and replies from it, in the shape of OpenAI-style chat messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal, TypeAlias, get_args

from edictum.core.values import dumps, show
from edictum.errors import EdictumInputError
from edictum.harness.attachments import find_attachments
from edictum.harness.tool_executor import ToolCallRequest
from edictum.harness.turn_call import NOT_A_NAME
from edictum.outcomes import (
    ToolDenied,
    ToolExecutionResult,
    ToolOutcome,
    outcome_is_error,
    outcome_to_model_content,
)

ChatMessage = dict[str, Any]
CHAT_API = "openai"  # replies of chat completions: their messages are chat messages already
# what an assistant's message, and a call in it, have with every provider
CHAT_KEYS = frozenset({"role", "content", "tool_calls", "refusal", "name"})
CHAT_CALL_KEYS = frozenset({"id", "type", "function"})


StopReason: TypeAlias = Literal[
    "end", "tool_calls", "length", "refused", "content_filter", "paused"
]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call, as its provider counts them.

    OpenAI's ``input_tokens`` include those that were read from a cache, Anthropic's do not.
    ``reasoning_tokens`` are part of ``output_tokens``.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What a model said: text, and the calls it asks for.

    ``stop_reason`` says why it ended. "length" and "content_filter": it was cut, and so may be the
    arguments of its calls; "refused": the model declined, ``refusal`` is what it said; "paused":
    the provider wants to be asked again with this reply, to continue it.

    ``content`` is the reply in the shape of the API that ``api`` names, with what only that API
    knows: thinking, signatures, tools of the provider. It is sent back unchanged, to the ``source``
    that it came from: the host of the provider. ``parsed`` is the answer as the type that was asked
    for; ``parse_error`` says why it is not of that type.
    """

    text: str = ""
    tool_calls: tuple[ToolCallRequest, ...] = ()
    usage: Usage = field(default=Usage())
    stop_reason: StopReason = field(default="end", kw_only=True)
    refusal: str = field(default="", kw_only=True)
    content: Any = field(default=None, kw_only=True)
    api: str = field(default="", kw_only=True)
    source: str = field(default="", kw_only=True)
    model: str = field(default="", kw_only=True)
    response_id: str = field(default="", kw_only=True)
    parsed: Any = field(default=None, kw_only=True)
    parse_error: str = field(default="", kw_only=True)

    @property
    def is_cut(self) -> bool:
        """Whether the reply broke off before its end: its calls must not run."""
        return self.stop_reason in ("length", "refused", "content_filter")


# --- Replies --------------------------------------------------------------------------------------


def to_reply(answer: Any) -> ModelReply:
    """Read what a model callable returned: a ModelReply, a text, a pair of text and calls, or a
    dict with ``text`` and ``tool_calls``.
    """
    if isinstance(answer, ModelReply):
        return _check_reply(answer)
    if answer is None or isinstance(answer, str):
        return _check_reply(ModelReply(_to_text(answer)))
    if isinstance(answer, Mapping):
        answer = (answer.get("text") or answer.get("content") or "", answer.get("tool_calls"))
    match answer:
        case tuple((str() | None as text, calls)):
            return _check_reply(ModelReply(_to_text(text), _to_requests(calls)))
    message = f"The model returned {type(answer).__name__}."
    raise EdictumInputError(message, hint="Return a ModelReply, a text, or (text, tool_calls).")


def _check_reply(reply: ModelReply) -> ModelReply:
    """Return the reply with its parts read, and a stop reason that fits its calls."""
    calls = _to_requests(reply.tool_calls)
    stop_reason = reply.stop_reason
    if stop_reason not in get_args(StopReason):
        message = f"The stop_reason of a ModelReply is {show(stop_reason)}."
        raise EdictumInputError(message, hint=f"Pass one of {', '.join(get_args(StopReason))}.")
    if stop_reason in ("end", "tool_calls"):
        stop_reason = "tool_calls" if calls else "end"
    return replace(
        reply,
        text=_to_text(reply.text),
        tool_calls=calls,
        usage=_to_usage(reply.usage),
        stop_reason=stop_reason,
        content=_to_content(reply.content),
    )


def _to_content(content: Any) -> Any:
    """Return the content of a reply as plain data that can be stored and sent back."""
    try:
        return None if content is None else without_surrogates(to_plain_answer(content))
    except (TypeError, ValueError, RecursionError) as exc:
        message = f"The content of a ModelReply is not JSON: {exc}."
        raise EdictumInputError(message, hint="Pass what the provider answered.") from exc


def _to_usage(usage: Any) -> Usage:
    return read_usage(usage, {each.name: (each.name,) for each in fields(Usage)})


def read_usage(usage: Any, paths: Mapping[str, Sequence[str]]) -> Usage:
    """Return the counts of a reply, each from the first path that has a number; else 0."""
    counts = {}
    for name, known in paths.items():
        found = (get_path(usage, *path.split(".")) for path in known)
        counts[name] = next((count for count in found if isinstance(count, int)), 0)
    return Usage(**counts)


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
    """Return the name, or a placeholder that no tool has and that providers accept."""
    return given if isinstance(given, str) and given else NOT_A_NAME


# --- Messages -------------------------------------------------------------------------------------


IS_ERROR: Final = "edictum_is_error"  # in a text; in a message it is an attribute


class ToolMessage(dict[str, Any]):
    """The result of a call, as a chat message. ``is_error`` is an attribute and not a key, because
    only some providers take it and the others refuse it.
    """

    is_error: bool = False


def make_assistant_message(reply: ModelReply, most: int | None = None) -> ChatMessage:
    """Return the message of a reply, with at most ``most`` of its calls.

    Whatever else the message of a chat API had stays in it; the content of another API is kept
    under ``provider_content``. ``tool_calls`` decides which calls are sent back: without them there
    are none, whatever the content has.
    """
    message: ChatMessage = {"role": "assistant", "content": reply.text}
    source = {"source": reply.source} if reply.source else {}
    if reply.content is not None and reply.api != CHAT_API:
        message["provider_content"] = {"api": reply.api, "content": reply.content, **source}
    if reply.api == CHAT_API and isinstance(reply.content, Mapping):
        given = reply.content
        in_parts = {"content": given["content"]} if isinstance(given.get("content"), list) else {}
        message = drop_calls({**given, **message, **in_parts})
    if reply.tool_calls:
        _add_given_calls(message, reply, most)
    if source and reply.api == CHAT_API and _has_own_keys(message):
        message["provider_content"] = {"api": CHAT_API, **source}
    return message


def _add_given_calls(message: ChatMessage, reply: ModelReply, most: int | None) -> None:
    message["tool_calls"] = []
    add_calls(message, reply.tool_calls[:most])
    for written, given in zip(message["tool_calls"], _list_given_calls(reply), strict=False):
        written |= {name: value for name, value in given.items() if name not in written}


def _has_own_keys(message: ChatMessage) -> bool:
    """Return whether a chat message has keys that only its provider knows."""
    calls = message.get("tool_calls") or ()
    return (
        not CHAT_KEYS.issuperset(message)
        or isinstance(message["content"], list)
        or any(not CHAT_CALL_KEYS.issuperset(call) for call in calls)
    )


def _list_given_calls(reply: ModelReply) -> Sequence[Mapping[str, Any]]:
    """Return the calls of a chat API as they came: some have signatures that must be returned."""
    if reply.api != CHAT_API or not isinstance(reply.content, Mapping):
        return ()
    return reply.content.get("tool_calls") or ()


def add_calls(message: ChatMessage, calls: Sequence[ToolCallRequest]) -> None:
    message["tool_calls"] += [_write_call(call) for call in calls]


def drop_calls(message: ChatMessage) -> ChatMessage:
    """Return a copy of an assistant message without its calls."""
    return {name: value for name, value in message.items() if name != "tool_calls"}


def _write_call(call: ToolCallRequest) -> dict[str, Any]:
    arguments = {} if call.arguments is None else call.arguments
    text = arguments if isinstance(arguments, str) else dumps(arguments)
    function = {"name": replace_surrogates(call.name), "arguments": replace_surrogates(text)}
    return {"id": call.id, "type": "function", "function": function}


def make_tool_message(call_id: str, outcome: ToolOutcome) -> ToolMessage:
    """Return the message of an outcome, with its images and files as parts.

    A denial is an error to the model: the tool did not run.
    """
    content: Any = outcome_to_model_content(outcome)
    if isinstance(outcome, ToolExecutionResult):
        parts = [each.to_part() for each in find_attachments(outcome.output)]
        content = [{"type": "text", "text": content}, *parts] if parts else content
    message = ToolMessage(role="tool", tool_call_id=call_id, content=content)
    message.is_error = isinstance(outcome, ToolDenied) or outcome_is_error(outcome)
    return message


def is_error_message(message: ChatMessage) -> bool:
    """Return whether a tool message is about an error. A message that is not ours may say so by a
    key.
    """
    return bool(message.get("is_error") or getattr(message, "is_error", False))


def messages_to_json(messages: Sequence[ChatMessage]) -> str:
    """Return a conversation as text, including which results were errors.

    Messages keep that beside their keys, so ``json.dumps`` alone would lose it.
    """
    return dumps([write_message(message) for message in messages])


def messages_from_json(text: str) -> list[ChatMessage]:
    """Return the conversation that ``messages_to_json`` wrote."""
    return [read_message(message) for message in json.loads(text)]


def write_message(message: ChatMessage) -> ChatMessage:
    """Return a message as plain JSON data, with a key of ours if it is about an error."""
    return {**message, IS_ERROR: True} if getattr(message, "is_error", False) else message


def read_message(data: Mapping[str, Any]) -> ChatMessage:
    """Return the message that ``write_message`` wrote."""
    message = dict(data)
    if not message.pop(IS_ERROR, False):
        return message
    read = ToolMessage(message)
    read.is_error = True
    return read


def find_prompt(messages: Sequence[ChatMessage]) -> str | None:
    """Return the text that the user said last; None if there is none."""
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
            return "\n".join(text for text in texts if isinstance(text, str)) or None
    return None


def make_system_message(text: str) -> ChatMessage:
    return {"role": "system", "content": replace_surrogates(text)}


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates: a model can write them, and no client can send them back."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def to_plain_answer(answer: Any) -> Any:
    """Return a client's answer as plain data: only what was received, without defaults."""
    if isinstance(answer, Mapping):
        return {name: to_plain_answer(value) for name, value in answer.items()}
    if isinstance(answer, (list, tuple)):
        return [to_plain_answer(value) for value in answer]
    if hasattr(answer, "model_dump"):  # of pydantic, as the clients of OpenAI and Anthropic have
        return answer.model_dump(mode="json", exclude_unset=True, by_alias=True, warnings=False)
    if hasattr(answer, "__dict__"):
        return to_plain_answer(vars(answer))
    return answer


def without_surrogates(value: Any) -> Any:
    """Return a copy of JSON data in which lone surrogates are replaced."""
    return json.loads(replace_surrogates(json.dumps(value, ensure_ascii=False)))


def to_object(arguments: Any) -> dict[str, Any]:
    """Return arguments as an object, for providers that accept nothing else."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        value = without_surrogates(value)
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
