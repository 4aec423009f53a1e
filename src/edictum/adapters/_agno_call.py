"""A call in Agno's terms: what runs behind a hook, and what the tool returned."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from copy import deepcopy
from inspect import isgenerator
from typing import Any

from edictum.adapters._reply import OnWarn, ToolReply, to_text
from edictum.core._records import record
from edictum.core.parameters import ReadLater

TEXT_EVENTS = ("RunContent", "TeamRunContent", "WorkflowCompleted")


@record
class Pieces:
    """What a generator yielded, read to its end so that all of it is judged before any is shown."""

    items: list[Any]
    asynchronous: bool = False

    def join(self) -> str:
        return "".join(map(_piece_text, self.items))

    def replay(self, items: list[Any] | None = None) -> Any:
        """Return a generator of the same kind, over the same items or over others."""
        chosen = self.items if items is None else items
        return _ayield(chosen) if self.asynchronous else (item for item in chosen)


async def _ayield(items: list[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


def _piece_text(item: Any) -> str:
    """Return the text that Agno adds to the tool's message for a piece: only some events carry
    output.
    """
    event = getattr(item, "event", "CustomEvent")
    if event == "CustomEvent":
        return str(item)
    return str(item.content or "") if event in TEXT_EVENTS else ""


class AgnoExchange:
    """One tool call: what Agno gave a hook to continue it with, and what the tool returned."""

    def __init__(
        self,
        name: str,
        following: Callable[..., Any],
        args: dict[str, Any],
        on_warn: OnWarn,
        context: Any,
    ) -> None:
        self.name, self.args, self._following = name, args, following
        # Agno made ``following``; the FunctionCall that made it knows the call id.
        self.made_by = _get_closure_value(_get_closure_value(following, "inner_func"), "self")
        self._returned: Any = None
        self.details: dict[str, Any] = {
            "call_id": getattr(self.made_by, "call_id", None),
            "flag": _find_mcp_error,
            "on_warn": on_warn,
            "context": context,
            "parameters": find_parameters(getattr(self.made_by, "function", None)),
            "is_plain": lambda: not _is_tool_result(self._returned),
        }

    def run(self, checked: dict[str, Any]) -> Any:
        """Run the tool with a copy of the checked arguments, since hooks may change theirs in
        place.

        Agno takes the arguments of its FunctionCall, whatever a hook passes on.
        """
        if self.made_by is not None:
            self.made_by.arguments = deepcopy(checked)
        return self._following(**checked)

    def take(self, returned: Any) -> Any:
        """Return what the guard judges: all that the model will read."""
        self._returned = Pieces(list(returned)) if isgenerator(returned) else returned
        if isinstance(self._returned, Pieces):
            return self._returned.join()
        if not _is_tool_result(returned) or returned.metadata is None:
            return returned.content if _is_tool_result(returned) else returned
        return {"content": returned.content, "metadata": returned.metadata}

    def answer(self, reply: ToolReply) -> Any:
        """Return the tool's result, with its parts replaced where the guard changed something."""
        value, returned = reply.get_whole(), self._returned
        if isinstance(returned, Pieces):
            shown = reply.get()
            return returned.replay(None if shown == returned.join() else [shown])
        if reply.text is not None or not _is_tool_result(returned):
            return reply.get()
        made = self._rebuild(value)
        return made.model_copy(update={"content": reply.limit.fit(made.content)})

    def _rebuild(self, value: Any) -> Any:
        """Return the tool's ToolResult with the value as the guard has redacted it."""
        returned = self._returned
        parts = {"content": to_text(value), "metadata": None}
        has_parts = isinstance(value, dict) and value.keys() == parts.keys()
        if returned.metadata is not None and has_parts:
            parts = value
        return returned.model_copy(update=parts)


def find_parameters(function: Any) -> ReadLater:
    """Return the source of a tool's defaults: its function, or else its schema."""
    names = ("entrypoint", "parameters")
    return ReadLater(lambda: tuple(getattr(function, name, None) for name in names))


def _get_closure_value(function: Any, name: str) -> Any:
    """Return the variable of this name that a function captured from its enclosing function, or
    None.
    """
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return function.__closure__[names.index(name)].cell_contents if name in names else None


def _is_tool_result(value: Any) -> bool:
    return type(value).__name__ == "ToolResult" and hasattr(value, "model_copy")


def _find_mcp_error(value: Any) -> str | None:
    """Return the failure flag of an MCP result, which Agno writes into the text."""
    text = value.get("content") if isinstance(value, dict) else value
    is_error = isinstance(text, str) and text.startswith("Error from MCP tool '")
    return "isError is set" if is_error else None
