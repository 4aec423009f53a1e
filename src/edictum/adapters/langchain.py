"""LangChain and LangGraph: a middleware for ``create_agent``, or wrappers for a ``ToolNode``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from edictum.adapters._base import CANARY, Adapter, OnWarn, Reply, as_text
from edictum.adapters._langchain_parts import answered, each, is_message, judged, pieces, rewritten
from edictum.execution.portal import PORTAL

NOTHING = object()


class LangChainAdapter(Adapter):
    """Governs the tools of an agent: ``create_agent(model, tools,
    middleware=[LangChainAdapter(guard).as_middleware()])``.
    """

    requires: ClassVar = {"langchain": ("1.3", "2"), "langgraph": ("1.2", "2")}

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return (self.load("langgraph.errors").GraphBubbleUp,)

    def as_middleware(self, on_postcondition_warn: OnWarn | None = None) -> Any:
        """For ``create_agent``: synchronous, asynchronous and streaming runs. Put it first, so that
        no middleware runs around it.
        """
        wrap, awrap = (
            self.as_tool_wrapper(on_postcondition_warn),
            self.as_async_tool_wrapper(on_postcondition_warn),
        )

        class EdictumMiddleware(self.load("langchain.agents.middleware").AgentMiddleware):  # type: ignore[misc]
            name = self.label  # LangChain takes two of one name for the same

            def wrap_tool_call(self, request: Any, handler: Any) -> Any:
                return wrap(request, handler)

            async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
                return await awrap(request, handler)

        return EdictumMiddleware()

    def as_tool_node(
        self, tools: Sequence[Any], on_postcondition_warn: OnWarn | None = None, **options: Any
    ) -> Any:
        """A LangGraph ``ToolNode`` that is governed in synchronous and in asynchronous runs."""
        wrap, awrap = (
            self.as_tool_wrapper(on_postcondition_warn),
            self.as_async_tool_wrapper(on_postcondition_warn),
        )
        return self.load("langgraph.prebuilt").ToolNode(
            tools, wrap_tool_call=wrap, awrap_tool_call=awrap, **options
        )

    def as_tool_wrapper(
        self, on_postcondition_warn: OnWarn | None = None
    ) -> Callable[[Any, Any], Any]:
        """For ``ToolNode(tools, wrap_tool_call=...)``, in synchronous runs; asynchronous ones need
        the other wrapper as well.
        """
        message = self.load("langchain_core.messages").ToolMessage

        def wrap(request: Any, handler: Any) -> Any:
            call = Exchange(request, message, on_postcondition_warn)
            return call.answer(
                self.call(
                    call.name,
                    call.args,
                    lambda args: call.take(handler(call.request(args))),
                    **call.options,
                )
            )

        return wrap

    def as_async_tool_wrapper(
        self, on_postcondition_warn: OnWarn | None = None
    ) -> Callable[[Any, Any], Any]:
        """For ``ToolNode(tools, awrap_tool_call=...)``: asynchronous runs."""
        message = self.load("langchain_core.messages").ToolMessage

        async def wrap(request: Any, handler: Any) -> Any:
            call = Exchange(request, message, on_postcondition_warn)

            async def body(args: dict[str, Any]) -> Any:
                return call.take(await handler(call.request(args)))

            return call.answer(await self.acall(call.name, call.args, body, **call.options))

        return wrap

    def _probe(self, target: Any, tool: Callable[..., Any]) -> str:
        """Every tool node of the target is asked, in a synchronous and in an asynchronous run; the
        worst answer counts.
        """
        graph, prebuilt, core = (
            self.load(name) for name in ("langgraph.graph", "langgraph.prebuilt", "langchain_core")
        )
        made = self.load("langchain_core.tools").StructuredTool.from_function(
            tool, name=CANARY, description="Must not run."
        )
        wired = self.as_tool_node([made]) if target is None else target
        ask = {
            "messages": [
                core.messages.AIMessage(
                    "", tool_calls=[{"name": CANARY, "args": {}, "id": CANARY, "type": "tool_call"}]
                )
            ]
        }
        inside = (
            [wired]
            if isinstance(wired, prebuilt.ToolNode)
            else [node.data for node in wired.get_graph(xray=True).nodes.values()]
        )
        texts = []
        for node in (node for node in inside if isinstance(node, prebuilt.ToolNode)):
            alone = (
                graph.StateGraph(graph.MessagesState)
                .add_node("tools", node)
                .add_edge(graph.START, "tools")
                .compile()
            )
            texts += [
                str(state["messages"][-1].content)
                for state in (alone.invoke(ask), PORTAL.run(alone.ainvoke(ask)))
            ]
        return min(
            texts, key=lambda text: self._canary_text in text, default="no tool node was found"
        )


class Exchange:
    """One tool call in LangChain's terms."""

    def __init__(self, request: Any, message: Any, on_warn: OnWarn | None) -> None:
        self._asked, self._new_message = request, message
        self._raw = self._result = self._shown = (
            NOTHING  # what the tool returned, LangChain made of it, and the guard judged
        )
        # the ToolMessage that answers this call: the result itself, or one in a Command or a list
        self._message: Any = None
        self.name, self.args, self.id = (request.tool_call[key] for key in ("name", "args", "id"))
        self.options: dict[str, Any] = {"call_id": self.id, "flag": self._flag, "on_warn": on_warn}

    def request(self, args: dict[str, Any]) -> Any:
        """The request with the checked arguments, and with a copy of the tool that lets us see what
        it returns.
        """
        tool, tool_call = self._asked.tool, {**self._asked.tool_call, "args": args}
        return self._asked.override(
            tool_call=tool_call, tool=tool if tool is None else self._tapped(tool)
        )

    def _tapped(self, tool: Any) -> Any:
        @functools.wraps(tool._run)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._raw = tool._run(*args, **kwargs)
            return self._raw

        @functools.wraps(tool._arun)
        async def arun(*args: Any, **kwargs: Any) -> Any:
            self._raw = await tool._arun(*args, **kwargs)
            return self._raw

        getattr(
            tool, "_injected_args_keys", None
        )  # kept in a tool once it was looked for; copies of one without it would all look again
        copy = tool.model_copy()
        vars(copy).update(_run=run, _arun=arun)  # pydantic would refuse them as attributes
        return copy

    def take(self, result: Any) -> Any:
        """What the guard judges: the tool's own value where LangChain made a message of it, else
        all that the tool wrote.
        """
        self._result = result
        self._message = next(
            (piece for piece in pieces(result) if is_message(piece) and self._answers(piece)), None
        )
        made = self._message is result and self._raw is not NOTHING and self._flag(None) is None
        made = made and not any(is_message(piece) for piece in pieces(self._raw))
        self._shown = self._raw if made else judged(result)
        return self._shown

    def _answers(self, message: Any) -> bool:
        return bool(message.type == "tool" and message.tool_call_id == self.id)

    def _flag(self, value: Any) -> str | None:
        return "status is error" if getattr(self._message, "status", None) == "error" else None

    def answer(self, reply: Reply) -> Any:
        """The result as LangChain made it, with its parts exchanged where the guard changed
        something.
        """
        value, message = reply.get(), self._message
        labels: dict[str, Any] = {"status": "error"} if reply.failed else {}
        if value is self._shown:
            marked = message and message.model_copy(update=labels)
            return (
                each(self._result, lambda piece: marked if piece is message else piece)
                if labels
                else self._result
            )
        if message is None and (reply.text is not None or self._result is NOTHING):
            return self._new_message(
                content=as_text(value), tool_call_id=self.id, name=self.name, **labels
            )
        if self._shown is not self._raw:
            return answered(self._result, message, value, **labels)
        pair = getattr(
            self._asked.tool, "response_format", ""
        ) == "content_and_artifact" and isinstance(value, tuple)
        content, artifact = value if pair else (value, None)
        return rewritten(message, content, artifact=artifact, **labels)
