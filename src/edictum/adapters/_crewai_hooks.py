"""The hooks that CrewAI calls before a tool: govern it, note the call's id, bypass the cache.

CrewAI passes the model's call id to no hook, event, context variable or tool. But where it runs a
native tool call, the id is a local variable of the hooks' caller. Where it is not (a call that the
model wrote as text, another CrewAI), nothing is noted and the guard makes an id.

What CrewAI's cache of results answers reaches neither the tool nor the guard in it. The cache is
read right after the hooks, in the same context: it has nothing for a call that is governed. Once
the hooks are cleared it cannot be told which agent calls: it has nothing for the names of governed
tools.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from importlib import import_module
from inspect import currentframe
from typing import TYPE_CHECKING, Any

from edictum._logs import ADAPTER_FAILED, log
from edictum.adapters._call_ids import note_call_id
from edictum.adapters._reply import OnWarn

if TYPE_CHECKING:
    from edictum.adapters.crewai import CrewAIAdapter

FUNCTIONS = ("func", "_run", "_arun")  # where a tool of CrewAI keeps what it does
HOOK_RUNNER, ID_VARIABLE = "run_before_tool_call_hooks", "call_id"
# Whether the call that CrewAI is about to make in this context is governed.
IS_GOVERNED: ContextVar[bool] = ContextVar("edictum_crewai_governed", default=False)
GOVERNED_NAMES: set[str] = set()  # of tools, as models know them


def govern_for_owner(context: Any) -> bool | None:
    """Govern what an agent or crew of ``wrap_tools`` calls; copies are known by their tools."""
    tools = getattr(context.agent, "tools", None) or ()
    functions = [function for tool in tools for function in get_functions(tool)]
    owners = (context.agent, context.crew, *functions)
    return govern_next(context, [mark for owner in owners for mark in get_marks(owner)])


vars(govern_for_owner)["governs_next"] = True


def govern_next(context: Any, marks: list[Any]) -> bool | None:
    """Govern the tool of the next call. Only False blocks it: CrewAI swallows exceptions."""
    try:
        note_crewai_id(context)
        both = (context.tool, getattr(context.tool, "_original_tool", None))
        tools = [tool for tool in both if tool is not None]
        for adapter, on_warn in marks:
            for tool in tools:
                adapter._govern(tool, on_warn)
        _bypass_cache(
            context, any(get_marks(work) for tool in tools for work in get_functions(tool))
        )
        return None if tools or not marks else False
    except Exception:
        tool_name = getattr(context, "tool_name", None)
        log(
            ADAPTER_FAILED,
            "the tool %r could not be governed, its call is blocked",
            tool_name,
            exc_info=True,
            tool=tool_name,
        )
        return False


def _has_hooks() -> bool:
    """Return whether a hook of ours was called for the current call."""
    hooks = import_module("crewai.hooks").get_before_tool_call_hooks()
    return any(hasattr(hook, "governs_next") for hook in hooks)


def get_functions(tool: Any) -> list[Any]:
    return [getattr(tool, name, None) for name in FUNCTIONS]


def get_marks(thing: Any) -> tuple[tuple[CrewAIAdapter, OnWarn], ...]:
    """Return the adapters that govern a function, an agent or a crew."""
    return tuple(getattr(thing, "edictum", ()))


def note_crewai_id(context: Any) -> None:
    """Note the id of the call for which a hook was called."""
    frame = currentframe()
    while frame is not None and frame.f_code.co_name != HOOK_RUNNER:
        frame = frame.f_back
    caller = frame.f_back if frame is not None else None
    found = caller.f_locals.get(ID_VARIABLE) if caller is not None else None
    call_id = found if isinstance(found, str) and found else None
    note_call_id(context.tool_name, call_id, context)


def _bypass_cache(context: Any, governed: bool) -> None:
    """Make the tool run even if its result is cached, unless the call is not governed."""
    IS_GOVERNED.set(governed)
    cache = getattr(getattr(context.agent, "tools_handler", None), "cache", None)
    if cache is not None:
        hide_from_governed_calls(type(cache))


def hide_from_governed_calls(kind: Any) -> None:
    """Make the caches of this class find nothing for governed calls."""
    read = kind.read
    if hasattr(read, "heeds_guard"):
        return

    @functools.wraps(read)
    def read_unless_hidden(self: Any, tool: str, input: str) -> Any:
        is_hidden = IS_GOVERNED.get() if _has_hooks() else tool in GOVERNED_NAMES
        return None if is_hidden else read(self, tool, input)

    vars(read_unless_hidden)["heeds_guard"] = True
    kind.read = read_unless_hidden
