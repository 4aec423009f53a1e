"""Ready-made models for ``run_turn``. The client object is passed in; no SDK is imported.

``openai_model`` takes any client with ``chat.completions.create``, ``openai_responses_model`` any
with ``responses.create``, ``anthropic_model`` any with ``messages.create``; synchronous or
asynchronous. Further keywords go to the client as they are.
"""

from __future__ import annotations

from typing import Any

from edictum.harness.models._answer_types import read_answer_type
from edictum.harness.models._anthropic import AnthropicApi, to_anthropic
from edictum.harness.models._chat import ChatApi, to_openai
from edictum.harness.models._client_model import ClientModel, can_stream
from edictum.harness.models._responses import ResponsesApi, to_responses
from edictum.harness.models._settings import check_settings, find_method, find_source

__all__ = [
    "ClientModel",
    "anthropic_model",
    "can_stream",
    "openai_model",
    "openai_responses_model",
    "to_anthropic",
    "to_openai",
    "to_responses",
]


def openai_model(
    client: Any,
    *,
    model: str,
    response_format: Any = None,
    stream: bool = False,
    system_first: bool = False,
    **settings: Any,
) -> ClientModel:
    """Return a model behind the chat completions of an OpenAI-style client. ``system_first`` sends
    system messages in the middle of a conversation, such as a turn's notes, as the user's.
    """
    check_settings(settings)
    given = settings.pop("stream_options", {"include_usage": True})
    options = {} if given is None else {"stream_options": given}
    answer_type = read_answer_type(response_format)
    source = find_source(client)
    api = ChatApi(model, settings, options, stream, answer_type, source, system_first)
    return ClientModel(find_method(client, "chat.completions.create"), api)


def openai_responses_model(
    client: Any, *, model: str, response_format: Any = None, stream: bool = False, **settings: Any
) -> ClientModel:
    """Return a model behind the Responses API of an OpenAI client.

    With ``store=False``, ask for ``include=["reasoning.encrypted_content"]``: without it, what the
    model reasoned cannot be returned to it.
    """
    check_settings(settings)
    answer_type = read_answer_type(response_format)
    api = ResponsesApi(model, settings, stream, answer_type, find_source(client))
    return ClientModel(find_method(client, "responses.create"), api)


def anthropic_model(
    client: Any,
    *,
    model: str,
    max_tokens: int = 4096,
    system: str | list[Any] | None = None,
    response_format: Any = None,
    stream: bool = False,
    **settings: Any,
) -> ClientModel:
    """Return a model behind an Anthropic-style client. ``system`` stands before the system messages
    of the conversation.
    """
    check_settings(settings)
    answer_type = read_answer_type(response_format)
    if answer_type is not None:
        answer_type.for_anthropic()  # raises for what cannot be asked for
    source = find_source(client)
    api = AnthropicApi(model, max_tokens, settings, system, stream, answer_type, source)
    return ClientModel(find_method(client, "messages.create"), api)
