"""LangGraph's own pause: ``interrupt`` ends a run, and ``Command(resume=...)`` continues it.

A node is run again from its start when its run continues, and every ``interrupt`` in it returns the
value of its turn once more. A value does not say which question it answers, so it must name the
approval; anything else only wakes the run, which then looks for the answer in the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from edictum.core.parking import HostAnswer

# in the configuration of a run; the second has the values that it was resumed with
CHECKPOINTER, SCRATCHPAD = "__pregel_checkpointer", "__pregel_scratchpad"
NO_CHECKPOINTER = "its graph has no checkpointer"
SHARED_TASK = (
    "a ToolNode that goes on runs all calls of its message again, even those that have run. With"
    " create_agent, where each call has a task of its own, runs can pause"
)


def find_checkpointer(context: Any) -> Any:
    """Return the checkpointer of the run that makes a call; None if it has none."""
    return _read_configurable(context).get(CHECKPOINTER)


def is_resumed(context: Any) -> bool:
    """Return whether the run that makes a call goes on after a pause."""
    pad = _read_configurable(context).get(SCRATCHPAD)
    return pad is not None and bool(pad.resume or pad.get_null_resume() is not None)


def _read_configurable(context: Any) -> Mapping[str, Any]:
    config = getattr(getattr(context, "runtime", None), "config", None) or {}
    return config.get("configurable") or {}


def has_siblings(request: Any) -> bool:
    """Return whether a ToolNode makes other calls in the task of this one, as far as its input
    shows: a message with several calls, or a list of calls.
    """
    batches = _list_batches(request.state)
    own = [batch for batch in batches if any(it["id"] == request.tool_call["id"] for it in batch)]
    return not own or len(own[-1]) > 1


def _list_batches(state: Any) -> list[list[Any]]:
    """Return the calls that a state holds: those that stand alone, and those of each message."""
    known = state if isinstance(state, Mapping) else getattr(state, "__dict__", {"": state})
    parts = [part for value in known.values() if isinstance(value, list) for part in value]
    calls = [
        part for part in parts if isinstance(part, Mapping) and part.get("type") == "tool_call"
    ]
    return [calls, *(getattr(part, "tool_calls", None) or [] for part in parts)]


class LangGraphPark:
    """Interrupts a graph with an open request. The tool's own ``interrupt`` must not get a value
    that was meant for this one, so all values of earlier pauses are taken.
    """

    replays = True

    def __init__(self, interrupt: Callable[[Any], Any], *, goes_on: bool) -> None:
        self._interrupt, self.goes_on = interrupt, goes_on

    def __call__(self, request: Any) -> list[HostAnswer]:
        return list(_read_answers(self._interrupt(describe_interrupt(request))))


def describe_interrupt(request: Any) -> dict[str, Any]:
    """Return what is shown to the person who resumes a run, without secrets."""
    return {
        "approval_id": request.approval_id,
        "tool_name": request.tool_name,
        "tool_args": dict(request.tool_args),
        "message": request.message,
        "session_id": request.session_id,
    }


def _read_answers(value: Any) -> Iterator[HostAnswer]:
    """Yield the answers in a resume value: a mapping, or a list of them."""
    for said in value if isinstance(value, (list, tuple)) else (value,):
        if not isinstance(said, Mapping) or not isinstance(said.get("approved"), bool):
            continue
        if isinstance(approval_id := said.get("approval_id"), str):
            approver, args = str(said.get("approver") or "LangGraph"), said.get("args")
            yield HostAnswer(approval_id, said["approved"], approver, said.get("reason"), args)
