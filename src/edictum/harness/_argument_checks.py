"""Check the arguments of ``run_turn`` and ``BoundedToolExecutor`` before a turn begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from edictum.core.redaction import shorten
from edictum.core.values import show
from edictum.errors import EdictumConfigError, EdictumInputError
from edictum.guard import Edictum
from edictum.harness.tool_registry import ToolRegistry, to_registry
from edictum.harness.tool_spec import ToolSpec
from edictum.harness.turn_budget import TurnBudget, is_duration
from edictum.harness.turn_state import TurnState

_ORDER = "The order is: model, messages, tools, guard, budget."


def _has_method(name: str) -> Callable[[Any], bool]:
    return lambda value: callable(getattr(value, name, None))


# what each argument must be, and what to pass instead
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": (
        callable,
        f"Pass a function model(messages, tools), or openai_model(client, model=...). {_ORDER}",
    ),
    "tool_timeout_cap_s": (
        is_duration,
        "Pass seconds, more than 0; the turn's own budget holds in any case.",
    ),
    "guard": (lambda value: isinstance(value, Edictum), f"Pass an Edictum, or None. {_ORDER}"),
    "budget": (
        lambda value: isinstance(value, TurnBudget),
        f"Pass TurnBudget.create(timeout_s=...), or None. {_ORDER}",
    ),
    "state": (lambda value: isinstance(value, TurnState), "Pass a TurnState, or None."),
    "scheduler": (_has_method("schedule"), "Pass a ToolScheduler, or None."),
    "on_outcome": (callable, "Pass a function on_outcome(call, outcome), or None."),
    "on_model_call": (callable, "Pass a function on_model_call(call), or None."),
    "on_event": (callable, "Pass a function on_event(event), or None."),
    "keep": (callable, "Pass a function keep(turn) that stores turn.to_json(), or None."),
    "artifact_store": (_has_method("store"), "Pass ArtifactStore(...), or None."),
}


def check_arguments(**arguments: Any) -> None:
    """Raise for an argument of the wrong kind; most may be None."""
    for name, value in arguments.items():
        is_right, hint = _RULES[name]
        may_be_none = name not in ("model", "tool_timeout_cap_s")
        if not (value is None and may_be_none) and not is_right(value):
            raise _wrong(name, value, hint)


def check_parking(park: Any, guard: Edictum | None) -> bool:
    """Return whether a turn may be parked; raise if it should be and its guard has no approval
    queue.
    """
    if not isinstance(park, bool):
        raise _wrong("park", park, "Pass True or False.")
    if park and (guard is None or not guard._keeps_questions):
        problem = "park=True: the guard has no approval queue, so a question would be lost."
        hint = 'Use Edictum(approval_backend="sqlite:///approvals.db"), or leave park out.'
        raise EdictumConfigError(problem, hint=hint)
    return park


def check_tools(tools: Any) -> ToolRegistry:
    """Return the registry of what was passed as tools."""
    if isinstance(tools, ToolRegistry):
        return to_registry(tools)
    if not isinstance(tools, Iterable) or isinstance(tools, (str, bytes, Mapping)):
        raise _wrong(
            "tools",
            tools,
            "Pass a list of tools: functions, or what @tool made of them; or an"
            " edictum.harness.ToolRegistry.",
        )
    listed = list(tools)
    for number, each in enumerate(listed):
        if not isinstance(each, ToolSpec) and not callable(each):
            hint = "Pass a typed function, or what @tool made of one."
            raise _wrong(f"tools[{number}]", each, hint)
    return to_registry(listed)


def check_messages(messages: Any) -> list[Any]:
    """Return a list of the conversation so far."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        hint = "Pass a list of messages: [{'role': 'user', 'content': '...'}]."
        raise EdictumInputError(f"messages is {_show_with_type(messages)}, not a list.", hint=hint)
    listed = list(messages)
    for number, message in enumerate(listed):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            hint = "A message is a dict such as {'role': 'user', 'content': '...'}."
            raise EdictumInputError(f"messages[{number}] is {_show_with_type(message)}.", hint=hint)
    return listed


def _wrong(name: str, value: Any, hint: str) -> EdictumConfigError:
    return EdictumConfigError(f"{name} is {_show_with_type(value)}.", hint=hint)


def _show_with_type(value: Any) -> str:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return f"{shorten(show(value), 80)} (of type {kind})"
