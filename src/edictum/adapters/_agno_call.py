"""The FunctionCall of Agno behind a hook: what Agno gives a hook to go on with was made by it."""

from __future__ import annotations

from typing import Any

from edictum.adapters._wire import enclosed, same


def called(following: Any) -> Any:
    return enclosed(enclosed(following, "inner_func"), "self")


def hand_on(following: Any, args: dict[str, Any], checked: dict[str, Any]) -> Any:
    """Agno runs the tool with the arguments of its FunctionCall, whatever a hook goes on with."""
    if not same(checked, args):
        called(following).arguments = checked
    return following


def call_id(following: Any) -> str | None:
    """Agno does not tell hooks the call id. What it gives them to go on with was made by the
    FunctionCall, which knows it.
    """
    return getattr(called(following), "call_id", None)
