"""What the requests of all APIs have in common: tools, the choice of a tool, streaming."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any
from urllib.parse import urlsplit

from edictum.errors import EdictumConfigError
from edictum.harness.messages import ChatMessage, get_path

INSTRUCTION_ROLES = ("system", "developer")
TOOL_SETTINGS = ("tool_choice", "parallel_tool_calls")  # refused in a request without tools
NOT_FORCED = ("auto", "none")
BY_THE_TURN = ("messages", "input", "previous_response_id", "conversation")


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise for settings that would be ignored or would replace what the turn sends."""
    for name in BY_THE_TURN:
        if settings.get(name) is not None:
            message = f"{name} is not a setting of a model: the turn sends the whole conversation,"
            raise EdictumConfigError(f"{message} and reads one reply.", hint="Leave it out.")
    tools = settings.get("tools")
    if tools is not None and (isinstance(tools, (str, Mapping)) or not isinstance(tools, Sequence)):
        hint = "Pass a list of the provider's own tools; those of the turn are added to it."
        raise EdictumConfigError("tools is not a list.", hint=hint)


def find_source(client: Any) -> str:
    """Return the host of a client's provider, without any password; empty if it is not known."""
    try:
        return urlsplit(str(getattr(client, "base_url", ""))).netloc.rpartition("@")[2]
    except ValueError:
        return ""


def find_method(client: Any, path: str) -> Any:
    """Return a method of a client, as in ``responses.create``; raise for what has none."""
    try:
        return attrgetter(path)(client)
    except AttributeError as exc:
        problem = f"The client of a model is {type(client).__name__}, which has no {path}."
        hint = "Pass the client itself, such as AsyncOpenAI() or AsyncAnthropic()."
        raise EdictumConfigError(problem, hint=hint) from exc


def choose_tools(
    settings: Mapping[str, Any], tools: list[dict[str, Any]], messages: Sequence[ChatMessage]
) -> dict[str, Any]:
    """Return the settings of a request, with the provider's tools beside those of the turn.

    A tool that both declare is declared as in the settings, and called by the turn. A choice that
    forces a call holds for the first request of a turn: with it, later ones would never end in an
    answer. When the turn asks for its last answer, nothing is offered.
    """
    options = dict(settings)
    given = options.pop("tools", None) or ()
    declared = {find_name(each) for each in given}
    offered = [*given, *(each for each in tools if find_name(each) not in declared)]
    if not tools and has_called_tools(messages):
        offered = []
    if not offered:
        return {name: value for name, value in options.items() if name not in TOOL_SETTINGS}
    choice = options.get("tool_choice")
    if choice is not None and _is_forced(choice) and not is_first_step(messages):
        options |= {"tool_choice": _relax(choice)}
        options = {name: value for name, value in options.items() if value is not None}
    return {"tools": offered, **options}


def find_name(declaration: Any) -> Any:
    """Return the name by which a model calls a tool; None for tools that it does not call."""
    for path in ("name", "function.name", "custom.name"):
        if isinstance(name := get_path(declaration, *path.split(".")), str):
            return name
    return None


def _is_forced(choice: Any) -> bool:
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    if kind == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        return bool(allowed.get("mode") == "required")
    return kind not in NOT_FORCED


def _relax(choice: Any) -> Any:
    """Return the choice that lets the model decide, or None for the API's default."""
    if not isinstance(choice, Mapping):
        return None
    if choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools")
        if inner is None:
            return {**choice, "mode": "auto"}
        return {**choice, "allowed_tools": {**inner, "mode": "auto"}}
    if "disable_parallel_tool_use" in choice:
        same = choice["disable_parallel_tool_use"]
        return {"type": "auto", "disable_parallel_tool_use": same}
    return None


def is_first_step(messages: Sequence[ChatMessage]) -> bool:
    """Return whether no model has answered since the user's last message."""
    roles = [message["role"] for message in messages[len(messages) - count_since_user(messages) :]]
    return not {"assistant", "tool"}.intersection(roles)


def has_called_tools(messages: Sequence[ChatMessage]) -> bool:
    """Return whether tools of the turn were called since the user's last message."""
    since = messages[len(messages) - count_since_user(messages) :]
    return any(message["role"] == "tool" for message in since)


def count_since_user(messages: Sequence[ChatMessage]) -> int:
    """Return how many messages stand behind the user's last one."""
    roles = [message["role"] for message in messages]
    return roles[::-1].index("user") if "user" in roles else len(roles)
