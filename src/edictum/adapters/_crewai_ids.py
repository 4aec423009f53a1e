"""The id under which a model asked CrewAI for a call.

CrewAI has it where it runs a native tool call, and passes it on to no hook, event, context variable
or tool. But that is where the hooks are called from, so the id is one of the local variables of the
hooks' caller. Where it is not (a call that the model wrote as text, a CrewAI that was rewritten),
nothing is noted and the guard makes an id.
"""

from __future__ import annotations

from contextvars import ContextVar
from inspect import currentframe
from typing import Any

RUNS_THE_HOOKS, ITS_CALLERS_ID = "run_before_tool_call_hooks", "call_id"
NOTHING: tuple[str, str | None] = ("", None)
# The call that CrewAI is about to make in this context, as (tool, id).
CALL: ContextVar[tuple[str, str | None]] = ContextVar("edictum_crewai_call", default=NOTHING)


def note(context: Any) -> None:
    """For a hook: remember the id of the call that the hook was told about."""
    frame = currentframe()
    while frame is not None and frame.f_code.co_name != RUNS_THE_HOOKS:
        frame = frame.f_back
    asked_by = frame.f_back if frame is not None else None
    found = asked_by.f_locals.get(ITS_CALLERS_ID) if asked_by is not None else None
    CALL.set((context.tool_name, found if isinstance(found, str) and found else None))


def noted(tool: str) -> str | None:
    """For the tool: the id of its call, if a hook has noted one."""
    name, call_id = CALL.get()
    return call_id if name == tool else None


def forget() -> None:
    """The call is over: what calls the tool next, around CrewAI, is another call."""
    CALL.set(NOTHING)
