"""FastMCP: the last check before a tool, and the wire forms of lists and results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from edictum.adapters._mcp_catalog import ServerTools
from edictum.core.effects import Declined
from edictum.core.freeze import copy_object

Hold = Callable[[dict[str, Any], dict[str, Any]], None]
DUMPED = {"mode": "json", "by_alias": True, "exclude_none": True}


class FastMCPCall:
    """A call of a server's tool as the guard has judged it; ``declined`` once another was made."""

    def __init__(self, server: Any, name: str, args: dict[str, Any], hold: Hold) -> None:
        self.server = server
        self._name, self._args, self._hold = name, copy_object(args), hold
        self._outer = JUDGED.get()  # another adapter's
        self.declined: Declined | None = None

    def check(self, name: str, args: dict[str, Any]) -> None:
        """Raise, before the tool runs, unless it is called as it was judged."""
        if self._outer is not None and self._outer.server is self.server:
            self._outer.check(name, args)
        try:
            self._hold({"name": name, "args": args}, {"name": self._name, "args": self._args})
        except Declined as exc:
            self.declined = exc
            raise


JUDGED: ContextVar[FastMCPCall | None] = ContextVar("edictum_fastmcp_call", default=None)


@contextmanager
def holding(judged: FastMCPCall) -> Iterator[None]:
    """Hold the server to a judged call; raise Declined even if a middleware caught it."""
    _watch(judged.server)
    token = JUDGED.set(judged)
    try:
        yield
    finally:
        JUDGED.reset(token)
        if judged.declined is not None:
            raise judged.declined


def _watch(server: Any) -> None:
    """Make a server check calls where the last middleware hands them over: in ``call_tool``."""
    call_tool = server.call_tool
    if hasattr(call_tool, "is_watched"):
        return

    @functools.wraps(call_tool)
    async def call(name: str, arguments: Any = None, **options: Any) -> Any:
        judged = JUDGED.get()
        if judged is None or judged.server is not server or options.get("run_middleware", True):
            return await call_tool(name, arguments, **options)
        arguments = copy_object(arguments or {})  # nothing else can change this one
        judged.check(name, arguments)
        token = JUDGED.set(None)  # what the tool itself calls is another matter
        try:
            return await call_tool(name, arguments, **options)
        finally:
            JUDGED.reset(token)

    vars(call)["is_watched"] = True
    server.call_tool = call


def filter_tools(catalog: ServerTools, tools: Sequence[Any]) -> list[Any]:
    """Return the tools that a client may see."""
    return [tool for tool in tools if catalog.filter_list({"tools": [_dump(tool)]})["tools"]]


async def list_tools(server: Any, message: dict[str, Any]) -> dict[str, Any]:
    """Answer ``tools/list`` as the server does."""
    return {"result": {"tools": [_dump(tool) for tool in await server.list_tools()]}}


def _dump(tool: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = tool.to_mcp_tool().model_dump(**DUMPED)
    return dumped


def find_call_id(context: Any) -> str | None:
    """Return the id of the client's request. A call that the server's own code makes has none."""
    inside = context.fastmcp_context
    has_request = inside is not None and inside.request_context is not None
    return inside.request_id if has_request else None


def to_wire(result: Any) -> dict[str, Any]:
    return {
        "content": [block.model_dump(**DUMPED) for block in result.content],
        "structuredContent": result.structured_content,
        "_meta": result.meta,
        "isError": result.is_error,
    }
