"""One tool call in LangChain's terms."""

from __future__ import annotations

import functools
from collections.abc import Collection
from copy import deepcopy
from typing import Any

from edictum.adapters._base import Adapter
from edictum.adapters._langchain_parts import (
    change_each,
    fit_message,
    is_message,
    list_pieces,
    put_back,
    rewrite,
    to_judge,
)
from edictum.adapters._reply import OnWarn, ToolReply, to_text
from edictum.core.effects import Declined
from edictum.core.parameters import ReadLater

_UNSET = object()


def read_parameters(tool: Any) -> Any:
    """Return the source of a tool's defaults: its model, or else its function and a JSON Schema."""
    schema = getattr(tool, "args_schema", None)
    if isinstance(schema, type):
        return schema
    known = (getattr(tool, name, None) for name in ("func", "coroutine", "_run"))
    return next((each for each in known if each is not None), None), schema


def _drop(args: Any, names: Collection[str]) -> Any:
    """Return arguments without those that LangGraph injects."""
    if not isinstance(args, dict):
        return args
    return {name: value for name, value in args.items() if name not in names}


class LangChainExchange:
    """A request of LangChain, and its result."""

    def __init__(self, request: Any, message_class: Any, on_warn: OnWarn) -> None:
        self._asked, self._message_class = request, message_class
        # what the tool returned, what LangChain made of it, and what the guard judged
        self._raw = self._result = self._judged = _UNSET
        # the ToolMessage that answers this call: the result itself, or one in a Command or a list
        self._message: Any = None
        self._declined: Declined | None = None
        self.name, self.args, self.id = (request.tool_call[key] for key in ("name", "args", "id"))
        about: dict[str, Any] = {"call_id": self.id, "flag": self._flag, "on_warn": on_warn}
        tool = request.tool  # and not the request: the audit keeps what tells the parameters
        parameters = ReadLater(lambda: read_parameters(tool))
        about |= {"context": request, "parameters": parameters, "is_plain": self._is_plain}
        self.details: dict[str, Any] = about

    def make_request(self, args: dict[str, Any]) -> Any:
        """Return the request with the checked arguments and a watched copy of the tool."""
        tool, tool_call = self._asked.tool, {**self._asked.tool_call, "args": args}
        tapped = tool if tool is None else self._tap(tool, deepcopy(args))
        return self._asked.override(tool_call=tool_call, tool=tapped)

    def _tap(self, tool: Any, checked: dict[str, Any]) -> Any:
        """Return a copy of the tool that notes its value, and runs with these arguments only."""

        def check(asked: Any) -> None:
            is_call = isinstance(asked, dict) and asked.get("type") == "tool_call"
            given = asked["args"] if is_call else asked
            try:
                Adapter.hold_to_checked_args(_drop(given, injected), _drop(checked, injected))
            except Declined as exc:
                self._declined = exc
                raise

        def invoke(asked: Any, *args: Any, **kwargs: Any) -> Any:
            check(asked)
            return type(tool).invoke(copy, asked, *args, **kwargs)

        async def ainvoke(asked: Any, *args: Any, **kwargs: Any) -> Any:
            check(asked)
            return await type(tool).ainvoke(copy, asked, *args, **kwargs)

        @functools.wraps(tool._run)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._raw = tool._run(*args, **kwargs)
            return self._raw

        @functools.wraps(tool._arun)
        async def arun(*args: Any, **kwargs: Any) -> Any:
            self._raw = await tool._arun(*args, **kwargs)
            return self._raw

        # A tool keeps this once it was looked for; copies of one without it would all look again.
        injected = getattr(tool, "_injected_args_keys", ())
        copy = tool.model_copy()
        own = {"_run": run, "_arun": arun, "invoke": invoke, "ainvoke": ainvoke}
        vars(copy).update(own)  # pydantic would refuse them as attributes
        return copy

    def take(self, result: Any) -> Any:
        """Return what is judged: the raw value, or all parts if the tool made the message."""
        if self._declined is not None:  # even if something inside has handled it
            raise self._declined
        self._result = result
        answers = (piece for piece in list_pieces(result) if self._answers(piece))
        self._message = next(answers, None)
        self._judged = self._raw if self._is_made_of_raw() else to_judge(result)
        return self._judged

    def _is_made_of_raw(self) -> bool:
        if self._message is not self._result or self._raw is _UNSET or self._flag(None) is not None:
            return False
        return not any(map(is_message, list_pieces(self._raw)))

    def _answers(self, piece: Any) -> bool:
        return is_message(piece) and piece.type == "tool" and piece.tool_call_id == self.id

    def _flag(self, value: Any) -> str | None:
        return "status is error" if getattr(self._message, "status", None) == "error" else None

    def _is_plain(self) -> bool:
        """Return whether the model reads all of the result: it has no artifact, state or message
        beside it.
        """
        form = getattr(self._asked.tool, "response_format", "")
        return self._judged is self._raw and form != "content_and_artifact"

    def answer(self, reply: ToolReply) -> Any:
        """Return the result; if it is too large for a model, only its messages are shortened."""
        if self._is_plain():
            return self._replace(reply, reply.get())
        result, limit = self._replace(reply, reply.get_whole()), reply.limit
        if all(fit_message(piece, limit) is piece for piece in list_pieces(result)):
            return result
        return change_each(result, lambda piece: fit_message(piece, limit))

    def _replace(self, reply: ToolReply, value: Any) -> Any:
        """Return the result, with its parts replaced where the guard changed something."""
        message = self._message
        labels: dict[str, Any] = {"status": "error"} if reply.failed else {}
        if value is self._judged:
            return self._label(labels) if labels else self._result
        if message is None and (reply.text is not None or self._result is _UNSET):
            about = {"tool_call_id": self.id, "name": self.name, **labels}
            return self._message_class(content=to_text(value), **about)
        if self._judged is not self._raw:
            return put_back(self._result, message, value, **labels)
        form = getattr(self._asked.tool, "response_format", "")
        is_pair = form == "content_and_artifact" and isinstance(value, tuple)
        content, artifact = value if is_pair else (value, None)
        return rewrite(message, content, artifact=artifact, **labels)

    def _label(self, labels: dict[str, Any]) -> Any:
        message = self._message
        labelled = message and message.model_copy(update=labels)
        return change_each(self._result, lambda piece: labelled if piece is message else piece)
