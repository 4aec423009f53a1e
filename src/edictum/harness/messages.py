"""What goes to a model and what comes back, in one shape: that of OpenAI-style messages. Ready-made
models translate from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from edictum.core.jsonable import dumps
from edictum.errors import EdictumInputError
from edictum.harness.tool_executor import ToolCallRequest
from edictum.harness.turn_call import NOT_A_NAME

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_creation_tokens: int = 0


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class ModelReply:
    """What a model said: text, and the calls it asks for."""

    text: str = ""
    tool_calls: tuple[ToolCallRequest, ...] = ()
    usage: Usage = field(default=NO_USAGE)


def as_reply(answer: Any) -> ModelReply:
    """What a model callable returned: a ModelReply, a text, a pair of text and calls, or a dict
    with ``text`` and ``tool_calls``.
    """
    if isinstance(answer, ModelReply):
        return ModelReply(_text(answer.text), _requests(answer.tool_calls), _usage(answer.usage))
    if answer is None or isinstance(answer, str):
        return ModelReply(_text(answer))
    if isinstance(answer, Mapping):
        answer = (answer.get("text") or answer.get("content") or "", answer.get("tool_calls") or ())
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[0], (str, type(None))):
        return ModelReply(_text(answer[0]), _requests(answer[1]))
    raise EdictumInputError(
        f"The model returned {type(answer).__name__}.",
        hint="Return a ModelReply, a text, or (text, tool_calls).",
    )


def _text(text: Any) -> str:
    if isinstance(text, (str, type(None))):
        return whole(text or "")
    raise EdictumInputError(
        f"The text of a ModelReply is {type(text).__name__}.", hint="Pass a str."
    )


def _requests(calls: Any) -> tuple[ToolCallRequest, ...]:
    return tuple(as_request(call, number) for number, call in enumerate(calls or ()))


def _usage(usage: Any) -> Usage:
    """The tokens, from a Usage or something alike; what is not counted counts as nothing."""
    counts = [read(usage, each.name) for each in fields(Usage)]
    return Usage(*(count if isinstance(count, int) else 0 for count in counts))


def as_request(call: Any, number: int = 0) -> ToolCallRequest:
    """One call as models write it: a ToolCallRequest, or a dict, flat or OpenAI-style. Without an
    id it gets its number.

    It is a new one in any case, so that a call which is asked for twice is two calls.
    """
    if isinstance(call, ToolCallRequest):
        return ToolCallRequest(_id(call.id, number), _name(call.name), call.arguments)
    if not isinstance(call, Mapping):
        raise EdictumInputError(
            f"A tool call is {type(call).__name__}.",
            hint="Return ToolCallRequest(id, name, arguments).",
        )
    function = call.get("function")
    inner = function if isinstance(function, Mapping) else call
    arguments = inner.get("arguments", inner.get("args", inner.get("input")))
    return ToolCallRequest(_id(call.get("id"), number), _name(inner.get("name")), arguments)


def _id(given: Any, number: int) -> str:
    return whole(str(given)) if isinstance(given, (str, int)) and given != "" else f"call_{number}"


def _name(given: Any) -> str:
    """The name, if it is one; otherwise a word that providers take in a message, and that no tool
    has.
    """
    return given if isinstance(given, str) and given else NOT_A_NAME


def assistant_message(reply: ModelReply) -> Message:
    message: Message = {"role": "assistant", "content": reply.text}
    if reply.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": whole(call.name), "arguments": _as_text(call.arguments)},
            }
            for call in reply.tool_calls
        ]
    return message


def tool_message(call_id: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def note(text: str) -> Message:
    """Something the harness tells the model."""
    return {"role": "system", "content": whole(text)}


def _as_text(arguments: Any) -> str:
    return (
        whole(arguments)
        if isinstance(arguments, str)
        else dumps(arguments if arguments is not None else {})
    )


def whole(text: str) -> str:
    """The text without halves of characters (lone surrogates). A model can write them, and no
    client can send them back to it.
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def parsed(arguments: Any) -> dict[str, Any]:
    """Arguments as an object, for providers that take no other; what is none is shown under one
    name.
    """
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        value = json.loads(whole(json.dumps(value, ensure_ascii=False)))
    except TypeError:  # no JSON, and so from nobody's model
        pass
    except (ValueError, RecursionError):
        value = None
    return dict(value) if isinstance(value, Mapping) else {"arguments": arguments}


def read(source: Any, *path: str | int) -> Any:
    """A value of a provider's answer, by attribute or key; None when it is not there."""
    for step in path:
        if isinstance(source, Mapping):
            source = source.get(step)
        elif isinstance(step, int):
            source = source[step] if isinstance(source, Sequence) and len(source) > step else None
        else:
            source = getattr(source, step, None)
    return source
