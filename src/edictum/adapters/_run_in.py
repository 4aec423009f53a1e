"""Where tools run: an adapter cannot run a tool elsewhere, because its framework runs it here.

A tool of a framework is more than a function: it gets injected state, callbacks and the context of
the run, none of which can be sent to another process. So a policy that wants a tool to run in a
process or by an engine cannot be fulfilled, and calls of the tool are denied.
"""

from __future__ import annotations

from typing import Any

from edictum.core.tool_entry import RUN_IN
from edictum.core.turn import TurnPort
from edictum.errors import EdictumConfigError
from edictum.guard import Edictum

RUNS_HERE = RUN_IN[:2]  # inline, or in a thread


def find_run_in(guard: Edictum, tool: str, turn: TurnPort | None = None) -> Any:
    """Return where the guard, or the turn's spec of a tool, wants the tool to run."""
    policy, tools = guard.policy, getattr(turn, "tools", None)
    known = tools.resolve(policy, tool) if tools is not None else None
    entry = policy.plan(tool).entry if known is None else known.plan.entry
    return entry.run_in or guard.execution


def explain_run_in(owner: str, where: Any, tool: str = "") -> str:
    """Return why an adapter cannot have a tool, or all tools, run elsewhere, and what to do."""
    place = where if isinstance(where, str) else type(where).__name__
    what = f"run_in: {place} of {tool!r}" if tool else f"execution={place!r} of the guard"
    return (
        f"{owner}: {what} cannot be kept, because the framework runs its tools itself. Leave it"
        " out, and inside of the tool call guard.run(..., run_in=...) under another name, or run"
        " the tool with run_turn."
    )


def check_execution(owner: str, guard: Edictum) -> None:
    """Raise EdictumConfigError for a guard that would have all tools run elsewhere."""
    entries = guard.policy.tools.values()
    if guard.execution not in RUNS_HERE and all(it.run_in not in RUNS_HERE for it in entries):
        raise EdictumConfigError(explain_run_in(owner, guard.execution))


def check_tool_table(owner: str, guard: Edictum) -> None:
    """Raise EdictumConfigError for a tool whose calls would be denied for where it runs."""
    for tool, entry in guard.policy.tools.items():
        if entry.run_in not in (None, *RUNS_HERE):
            raise EdictumConfigError(explain_run_in(owner, entry.run_in, tool))
