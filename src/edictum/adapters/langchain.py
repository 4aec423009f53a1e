"""LangChain and LangGraph: a middleware for ``create_agent``, or wrappers for a ``ToolNode``."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from edictum.adapters._base import CANARY, Adapter, OnWarn, Reply
from edictum.errors import EdictumConfigError
from edictum.runtime.portal import PORTAL

NOTHING = object()


class LangChainAdapter(Adapter):
    """Governs the tools of an agent: ``create_agent(model, tools, middleware=[LangChainAdapter(guard).as_middleware()])``."""

    requires = {"langchain": ("1.1", "2"), "langgraph": ("1.0.3", "2")}

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return (self.load("langgraph.errors").GraphBubbleUp,)

    def as_middleware(self, on_postcondition_warn: OnWarn | None = None) -> Any:
        """For ``create_agent``: serves synchronous, asynchronous and streaming runs. Put it first, so that nothing runs around it."""
        wrap, awrap = self.as_tool_wrapper(on_postcondition_warn), self.as_async_tool_wrapper(on_postcondition_warn)

        class EdictumMiddleware(self.load("langchain.agents.middleware").AgentMiddleware):  # type: ignore[misc]
            def wrap_tool_call(self, request: Any, handler: Any) -> Any:
                return wrap(request, handler)

            async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
                return await awrap(request, handler)

        return EdictumMiddleware()

    def as_tool_node(self, tools: Sequence[Any], on_postcondition_warn: OnWarn | None = None, **options: Any) -> Any:
        """A LangGraph ``ToolNode`` whose calls are governed in synchronous and asynchronous runs."""
        wrap, awrap = self.as_tool_wrapper(on_postcondition_warn), self.as_async_tool_wrapper(on_postcondition_warn)
        return self.load("langgraph.prebuilt").ToolNode(tools, wrap_tool_call=wrap, awrap_tool_call=awrap, **options)

    def as_tool_wrapper(self, on_postcondition_warn: OnWarn | None = None) -> Callable[[Any, Any], Any]:
        """For ``ToolNode(tools, wrap_tool_call=...)``: synchronous runs. Give ``awrap_tool_call`` the other one as well."""
        self.control_flow()  # a version that is not supported is reported here, not in the first call

        def wrap(request: Any, handler: Any) -> Any:
            call = Exchange(request)
            reply = self.call(
                call.name, call.args, lambda args: call.take(handler(call.request(args))), on_warn=on_postcondition_warn, **call.options
            )
            return call.answer(reply)

        return wrap

    def as_async_tool_wrapper(self, on_postcondition_warn: OnWarn | None = None) -> Callable[[Any, Any], Any]:
        """For ``ToolNode(tools, awrap_tool_call=...)``: asynchronous runs."""
        self.control_flow()

        async def wrap(request: Any, handler: Any) -> Any:
            call = Exchange(request)

            async def body(args: dict[str, Any]) -> Any:
                return call.take(await handler(call.request(args)))

            return call.answer(await self.acall(call.name, call.args, body, on_warn=on_postcondition_warn, **call.options))

        return wrap

    def _probe(self, target: Any, tool: Callable[..., Any]) -> str:
        tool_node = self.load("langgraph.prebuilt").ToolNode
        if target is None:
            made = self.load("langchain_core.tools").StructuredTool.from_function(lambda: tool(), name=CANARY, description="Must not run.")
            nodes = [self.as_tool_node([made])]
        else:
            nodes = [node for node in _runnables(target) if isinstance(node, tool_node)]
        if not nodes:
            raise EdictumConfigError(f"No tool node was found in {target!r:.120}.", hint="Pass the agent or the ToolNode that was wired.")
        texts = [text for node in nodes for text in _ask(self, node)]
        return min(texts, key=lambda text: self._canary_text in text)


class Exchange:
    """One tool call in LangChain's terms: the request as it came, the tool's raw value, and the message made of it."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._raw: Any = NOTHING
        self._result: Any = None
        self._shown: Any = None  # what the guard was shown
        self.name, self.args, self.id = (request.tool_call[key] for key in ("name", "args", "id"))
        self.options = {"call_id": self.id, "flag": self._flag}

    def request(self, args: dict[str, Any]) -> Any:
        """The request with the checked arguments, and with a copy of the tool that lets us see what it returns."""
        changes = {"tool_call": {**self._request.tool_call, "args": args}}
        if self._request.tool is not None:
            changes["tool"] = self._tapped(self._request.tool)
        return self._request.override(**changes)

    def _tapped(self, tool: Any) -> Any:
        copy = tool.model_copy()

        @functools.wraps(tool._run)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._raw = type(tool)._run(copy, *args, **kwargs)
            return self._raw

        @functools.wraps(tool._arun)
        async def arun(*args: Any, **kwargs: Any) -> Any:
            self._raw = await type(tool)._arun(copy, *args, **kwargs)
            return self._raw

        vars(copy).update(_run=run, _arun=arun)  # pydantic would refuse them as attributes
        return copy

    def take(self, result: Any) -> Any:
        """What the guard judges: the tool's own value where there is one, else the content that LangChain put in its place."""
        self._result = result
        message = self._message()
        if self._raw is NOTHING or message is None or self._flag(None) or _is_messages(self._raw):
            self._shown = result if message is None else message.content
        else:
            self._shown = self._raw
        return self._shown

    def _flag(self, value: Any) -> str | None:
        message = self._message()
        return "status is error" if message is not None and message.status == "error" else None

    def _message(self) -> Any:
        """The ToolMessage that answers this call: the result itself, or one in a Command or a list."""
        return next((found for found in _messages(self._result) if found.tool_call_id == self.id), None)

    def answer(self, reply: Reply) -> Any:
        """The result as LangChain made it, with the message replaced where the guard changed something."""
        value = reply.get()
        message = self._message()
        unchanged = reply.text is None and value is self._shown
        if message is None:
            return self._result if unchanged and self._result is not None else self._new_message(value, reply)
        changes: dict[str, Any] = {"status": "error"} if reply.failed else {}
        if not unchanged:
            changes |= self._content(value)
        return _with_message(self._result, message, message.model_copy(update=changes)) if changes else self._result

    def _content(self, value: Any) -> dict[str, Any]:
        if self._shown is self._raw and isinstance(self._raw, tuple) and getattr(self._request.tool, "response_format", "") != "content":
            content, artifact = value if isinstance(value, tuple) else (value, None)
            return {"content": _text(content), "artifact": artifact}
        return {"content": _text(value)}

    def _new_message(self, value: Any, reply: Reply) -> Any:
        from langchain_core.messages import ToolMessage

        status = "error" if reply.failed else "success"
        return ToolMessage(content=_text(value), tool_call_id=self.id, name=self.name, status=status)


def _messages(result: Any) -> Iterator[Any]:
    """Every ToolMessage in a result."""
    if isinstance(result, list):
        for item in result:
            yield from _messages(item)
    elif getattr(result, "type", None) == "tool":
        yield result
    elif isinstance(update := getattr(result, "update", None), dict):
        yield from _messages(list(update.get("messages", ())))


def _is_messages(raw: Any) -> bool:
    return next(_messages(raw), None) is not None


def _with_message(result: Any, old: Any, new: Any) -> Any:
    """The result with one message exchanged; lists and Commands around it stay what they are."""
    if result is old:
        return new
    if isinstance(result, list):
        return [_with_message(item, old, new) for item in result]
    if isinstance(update := getattr(result, "update", None), dict) and "messages" in update:
        from dataclasses import replace

        return replace(result, update={**update, "messages": _with_message(list(update["messages"]), old, new)})
    return result


def _text(value: Any) -> str | list[Any]:
    """Content as LangChain writes it: text and content blocks as they are, everything else as JSON."""
    if isinstance(value, str) or (isinstance(value, list) and value and all(isinstance(item, dict) and "type" in item for item in value)):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def _runnables(target: Any) -> Iterator[Any]:
    """The target and every runnable inside it, subgraphs included."""
    yield target
    inner = [*getattr(target, "nodes", {}).values()] if isinstance(getattr(target, "nodes", None), dict) else []
    inner += [getattr(target, "bound", None), *getattr(target, "steps", ())]
    for item in inner:
        if item is not None and item is not target:
            yield from _runnables(item)


def _ask(adapter: Adapter, node: Any) -> list[str]:
    """What a tool node answers to the canary, in a synchronous and in an asynchronous run."""
    graph = adapter.load("langgraph.graph")
    call = {"name": CANARY, "args": {}, "id": CANARY, "type": "tool_call"}
    ask = {"messages": [adapter.load("langchain_core.messages").AIMessage("", tool_calls=[call])]}
    built = graph.StateGraph(graph.MessagesState).add_node("tools", node).add_edge(graph.START, "tools").compile()
    return [str(state["messages"][-1].content) for state in (built.invoke(ask), PORTAL.run(built.ainvoke(ask)))]
