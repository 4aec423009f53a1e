"""One model for all APIs: write the request, call the client, receive the answer, read it.

An API says how its requests are written and its answers are read; here is how a client is called,
blocking or asynchronous, for a whole answer or for a stream.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from edictum.core.values import dumps
from edictum.errors import ModelError
from edictum.harness.messages import ChatMessage, ModelReply, to_plain_answer
from edictum.harness.model_events import (
    ModelEvent,
    OnModelEvent,
    RefusalDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from edictum.harness.models._answer_types import AnswerType
from edictum.harness.tool_spec import ToolSpec

PlainAnswer = dict[str, Any]


class StreamedAnswer(Protocol):
    """An answer that is assembled from the events of a stream."""

    def add(self, event: PlainAnswer) -> Iterator[ModelEvent]:
        """Add an event of the API, and yield the model events that it stands for."""
        ...

    def finish(self) -> PlainAnswer:
        """Return the answer as if it had come whole; raise ModelError if it broke off."""
        ...


class ModelApi(Protocol):
    """An API of a provider, with the settings that each request has."""

    @property
    def answer_type(self) -> AnswerType | None: ...
    @property
    def stream_options(self) -> Mapping[str, Any]: ...
    def write(self, messages: list[ChatMessage], tools: Sequence[ToolSpec]) -> dict[str, Any]: ...
    def must_stream(self, request: Mapping[str, Any]) -> bool: ...
    def read(self, answer: PlainAnswer) -> ModelReply: ...
    def start_answer(self) -> StreamedAnswer: ...


@dataclass(frozen=True, slots=True, eq=False)
class ClientModel:
    """A model behind a client. ``blocks``: it is to be called in a thread."""

    create: Callable[..., Any]
    api: ModelApi

    @property
    def blocks(self) -> bool:
        return not inspect.iscoroutinefunction(inspect.unwrap(self.create))

    def __call__(
        self,
        messages: list[ChatMessage],
        tools: Sequence[ToolSpec] = (),
        *,
        on_event: OnModelEvent | None = None,
    ) -> Any:
        """Return the ModelReply, or an awaitable of it if the client is asynchronous.

        With ``on_event`` the answer is streamed, and each ModelEvent is passed to the function. If
        the function raises, the stream is closed and its error is raised.
        """
        request = self.api.write(messages, tools)
        if on_event is not None or self.api.must_stream(request):
            request |= {"stream": True, **self.api.stream_options}
        answer = self.create(**request)
        if inspect.isawaitable(answer):
            return self._receive_later(answer, on_event)
        return self._receive(answer, on_event)

    def _receive(self, answer: Any, on_event: OnModelEvent | None) -> ModelReply:
        if not hasattr(answer, "__next__"):
            return self._read_whole(answer, on_event)
        received = self.api.start_answer()
        try:
            for event in answer:
                _pass_on(received.add(to_plain_answer(event)), on_event)
        finally:
            if hasattr(answer, "close"):
                answer.close()
        return self._read(received.finish())

    async def _receive_later(self, awaited: Any, on_event: OnModelEvent | None) -> ModelReply:
        answer = await awaited
        if not hasattr(answer, "__anext__"):
            return self._read_whole(answer, on_event)
        received = self.api.start_answer()
        try:
            async for event in answer:
                _pass_on(received.add(to_plain_answer(event)), on_event)
        finally:  # even when the task is cancelled: the provider stops writing
            close = getattr(answer, "close", None) or getattr(answer, "aclose", None)
            if close is not None:
                await close()
        return self._read(received.finish())

    def _read_whole(self, answer: Any, on_event: OnModelEvent | None) -> ModelReply:
        """Read an answer that is not a stream; some servers and fakes never stream."""
        reply = self._read(to_plain_answer(answer))
        _pass_on(_list_events(reply), on_event)
        return reply

    def _read(self, answer: Any) -> ModelReply:
        if not isinstance(answer, dict):
            message = f"The model's client returned {type(answer).__name__}, not an answer."
            raise ModelError(message, hint="Is base_url the address of the API?")
        if error := answer.get("error"):
            raise make_provider_error(error)
        reply = self.api.read(answer)
        return reply if self.api.answer_type is None else self.api.answer_type.parse(reply)


def _pass_on(events: Iterator[ModelEvent], on_event: OnModelEvent | None) -> None:
    for event in events:
        if on_event is not None:
            on_event(event)


def _list_events(reply: ModelReply) -> Iterator[ModelEvent]:
    """Yield the events of a reply that came whole."""
    if reply.text:
        yield TextDelta(reply.text)
    if reply.refusal:
        yield RefusalDelta(reply.refusal)
    for index, call in enumerate(reply.tool_calls):
        yield ToolCallStarted(index, call.id, call.name)
        arguments = call.arguments
        yield ToolCallDelta(index, arguments if isinstance(arguments, str) else dumps(arguments))


def can_stream(model: Any) -> bool:
    """Return whether a model can be called with ``on_event=``.

    That is a function that gets each ModelEvent while the reply is received. If it raises, the
    reply is broken off and its error is raised.
    """
    try:
        parameters = inspect.signature(model).parameters
    except (TypeError, ValueError):  # of a builtin
        return False
    return "on_event" in parameters


def make_provider_error(error: Any) -> ModelError:
    """Return the error that an answer contains in place of a reply."""
    text = error.get("message") if isinstance(error, Mapping) else error
    return ModelError(f"The model's provider answered with an error: {text or error}")


def make_unsupported_error(kind: str) -> ModelError:
    hint = "Offer functions, and tools that the provider runs itself; for tools of MCP servers"
    hint += ' set {"require_approval": "never"}.'
    return ModelError(f"The model asks for a {kind}, which a turn cannot make.", hint=hint)


def make_cut_error() -> ModelError:
    return ModelError("The stream of the model ended before its reply did.")
