"""What a turn is given is checked here, before it begins: errors say what was given and what is
wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from edictum.core.jsonable import show
from edictum.core.redaction import shorten
from edictum.errors import EdictumConfigError, EdictumInputError
from edictum.guard import Edictum
from edictum.harness.tool_registry import ToolRegistry, as_registry
from edictum.harness.tool_spec import ToolSpec
from edictum.harness.turn_budget import TurnBudget
from edictum.harness.turn_state import TurnState

ORDER = "The order is: model, messages, tools, guard, budget."


def check_parts(
    *, model: Any, guard: Any, budget: Any, state: Any, scheduler: Any, on_outcome: Any
) -> None:
    """The parts of ``run_turn`` that have a type of their own."""
    if not callable(model):
        raise _wrong(
            "model",
            model,
            f"Pass a function model(messages, tools), or openai_model(client, model=...). {ORDER}",
        )
    check_guard(guard)
    if not isinstance(budget, (TurnBudget, type(None))):
        raise _wrong("budget", budget, f"Pass TurnBudget.create(timeout_s=...), or None. {ORDER}")
    if not isinstance(state, (TurnState, type(None))):
        raise _wrong("state", state, "Pass a TurnState, or None.")
    if scheduler is not None and not callable(getattr(scheduler, "schedule", None)):
        raise _wrong("scheduler", scheduler, "Pass a ToolScheduler, or None.")
    if on_outcome is not None and not callable(on_outcome):
        raise _wrong(
            "on_outcome", on_outcome, "Pass a function on_outcome(call, outcome), or None."
        )


def check_guard(guard: Any) -> None:
    if not isinstance(guard, (Edictum, type(None))):
        raise _wrong("guard", guard, f"Pass an Edictum, or None. {ORDER}")


def check_store(store: Any) -> None:
    if store is not None and not callable(getattr(store, "store", None)):
        raise _wrong("artifact_store", store, "Pass ArtifactStore(...), or None.")


def check_cap(seconds: Any) -> None:
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, (int, float))
        or not 0 < seconds < float("inf")
    ):
        raise _wrong(
            "tool_timeout_cap_s",
            seconds,
            "Pass seconds, more than 0; the turn's own budget holds in any case.",
        )


def tools_of(tools: Any) -> ToolRegistry:
    """The registry of what was passed as tools."""
    if isinstance(tools, ToolRegistry):
        return as_registry(tools)
    if (
        isinstance(tools, ToolSpec)
        or not isinstance(tools, Iterable)
        or isinstance(tools, (str, bytes, Mapping))
    ):
        raise _wrong(
            "tools",
            tools,
            "Pass a list of tools: functions, or what @tool made of them; or an"
            " edictum.harness.ToolRegistry.",
        )
    listed = list(tools)
    for number, each in enumerate(listed):
        if not isinstance(each, ToolSpec) and not callable(each):
            raise _wrong(
                f"tools[{number}]", each, "Pass a typed function, or what @tool made of one."
            )
    return as_registry(listed)


def messages_of(messages: Any) -> list[Any]:
    """The conversation so far, as a list of its own."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
        raise EdictumInputError(
            f"messages is {_shown(messages)}, not a list.",
            hint="Pass a list of messages: [{'role': 'user', 'content': '...'}].",
        )
    listed = list(messages)
    for number, message in enumerate(listed):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise EdictumInputError(
                f"messages[{number}] is {_shown(message)}.",
                hint="A message is a dict such as {'role': 'user', 'content': '...'}.",
            )
    return listed


def _wrong(name: str, value: Any, hint: str) -> EdictumConfigError:
    return EdictumConfigError(f"{name} is {_shown(value)}.", hint=hint)


def _shown(value: Any) -> str:
    """What was given, with its type where the text does not tell: an object of the wrong class
    often looks like nothing at all.
    """
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return f"{shorten(show(value), 80)} (of type {kind})"
