"""LangChain and LangGraph: a middleware for ``create_agent``, or wrappers for a ``ToolNode``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from edictum.adapters._base import Adapter
from edictum.adapters._canary import CANARY
from edictum.adapters._identity import Identity
from edictum.adapters._langchain_call import LangChainExchange, read_parameters
from edictum.adapters._langchain_parking import (
    NO_CHECKPOINTER,
    SHARED_TASK,
    LangGraphPark,
    find_checkpointer,
    has_siblings,
    is_resumed,
)
from edictum.adapters._reply import OnWarn
from edictum.core.parking import WAIT, Park
from edictum.execution.portal import PORTAL


class LangChainAdapter(Adapter):
    """Governs an agent: ``create_agent(middleware=[LangChainAdapter(guard).as_middleware()])``."""

    requires: ClassVar = {"langchain": ("1.3", "2"), "langgraph": ("1.2", "2")}

    context_name: ClassVar = "LangChain's ToolCallRequest"
    session_hint: ClassVar = "Run the agent with a thread_id. "

    def identify(self, context: Any) -> Identity:
        config = getattr(context.runtime, "config", None) or {}
        return Identity((config.get("configurable") or {}).get("thread_id"))

    def control_flow(self) -> tuple[type[BaseException], ...]:
        return (self.load("langgraph.errors").GraphBubbleUp,)

    def make_park(self, context: Any) -> Park | str:
        if find_checkpointer(context) is None:
            return NO_CHECKPOINTER
        interrupt = self.load("langgraph.types").interrupt
        return LangGraphPark(interrupt, goes_on=is_resumed(context))

    def as_middleware(self, on_postcondition_warn: OnWarn = None) -> Any:
        """Return a middleware for ``create_agent``. Put it first: no other may run around it."""
        wrap = self._make_wrapper(on_postcondition_warn, in_node=False)
        awrap = self._make_async_wrapper(on_postcondition_warn, in_node=False)
        base: Any = self.load("langchain.agents.middleware").AgentMiddleware
        make = self.load("langchain_core.tools").StructuredTool.from_function
        readers = self._make_readers(make)

        class EdictumMiddleware(base):  # type: ignore[misc]  # the base is known at run time only
            name = self.label  # LangChain takes two of one name for the same
            tools = readers

            def wrap_tool_call(self, request: Any, handler: Any) -> Any:
                return wrap(request, handler)

            async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
                return await awrap(request, handler)

        return EdictumMiddleware()

    def as_tool_node(
        self, tools: Sequence[Any], on_postcondition_warn: OnWarn = None, **options: Any
    ) -> Any:
        """Return a LangGraph ``ToolNode`` that is governed in all runs."""
        known = (tool for tool in tools if hasattr(tool, "args_schema"))
        self.check_tools({tool.name: read_parameters(tool) for tool in known})
        return self.load("langgraph.prebuilt").ToolNode(
            tools,
            wrap_tool_call=self.as_tool_wrapper(on_postcondition_warn),
            awrap_tool_call=self.as_async_tool_wrapper(on_postcondition_warn),
            **options,
        )

    def as_tool_wrapper(self, on_postcondition_warn: OnWarn = None) -> Callable[[Any, Any], Any]:
        """Return ``ToolNode(tools, wrap_tool_call=...)``, for synchronous runs only."""
        return self._make_wrapper(on_postcondition_warn, in_node=True)

    def as_async_tool_wrapper(
        self, on_postcondition_warn: OnWarn = None
    ) -> Callable[[Any, Any], Any]:
        """Return ``ToolNode(tools, awrap_tool_call=...)``, for asynchronous runs."""
        return self._make_async_wrapper(on_postcondition_warn, in_node=True)

    def _make_wrapper(self, on_warn: OnWarn, *, in_node: bool) -> Callable[[Any, Any], Any]:
        message = self.load("langchain_core.messages").ToolMessage

        def wrap(request: Any, handler: Any) -> Any:
            call = LangChainExchange(request, message, on_warn)
            if in_node:
                self._let_wait(call, request)

            def body(args: dict[str, Any]) -> Any:
                return call.take(handler(call.make_request(args)))

            return call.answer(self.call(call.name, call.args, body, **call.details))

        return wrap

    def _make_async_wrapper(self, on_warn: OnWarn, *, in_node: bool) -> Callable[[Any, Any], Any]:
        message = self.load("langchain_core.messages").ToolMessage

        async def wrap(request: Any, handler: Any) -> Any:
            call = LangChainExchange(request, message, on_warn)
            if in_node:
                self._let_wait(call, request)

            async def body(args: dict[str, Any]) -> Any:
                return call.take(await handler(call.make_request(args)))

            return call.answer(await self.acall(call.name, call.args, body, **call.details))

        return wrap

    def _let_wait(self, call: LangChainExchange, request: Any) -> None:
        """Have a call wait for a person if a pause would run others of its ToolNode again."""
        if self.can_pause(call.name) and has_siblings(request):
            self.say_waits(SHARED_TASK)
            call.details["park"] = lambda _: WAIT

    def _probe(self, target: Any, tool: Callable[..., Any]) -> str:
        about = {"name": CANARY, "description": "Must not run."}
        made = self.load("langchain_core.tools").StructuredTool.from_function(tool, **about)
        wired = self.as_tool_node([made]) if target is None else target
        return self._find_worst(self._ask(wired), none="no tool node was found")

    def _ask(self, wired: Any) -> Iterator[str]:
        """Ask every tool node, in a synchronous and in an asynchronous run."""
        graph, kind = self.load("langgraph.graph"), self.load("langgraph.prebuilt").ToolNode
        is_node = isinstance(wired, kind)
        inside = [] if is_node else wired.get_graph(xray=True).nodes.values()
        nodes = [wired] if is_node else [node.data for node in inside]
        call = {"name": CANARY, "args": {}, "id": CANARY, "type": "tool_call"}
        message = self.load("langchain_core.messages").AIMessage("", tool_calls=[call])
        for node in (node for node in nodes if isinstance(node, kind)):
            builder = graph.StateGraph(graph.MessagesState).add_node("tools", node)
            alone = builder.add_edge(graph.START, "tools").compile()
            start = {"messages": [message]}
            for state in (alone.invoke(start), PORTAL.run(alone.ainvoke(start))):
                yield str(state["messages"][-1].content)
