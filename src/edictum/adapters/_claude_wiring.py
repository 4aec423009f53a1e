"""Which hooks and permission functions of the Claude Agent SDK an adapter has wrapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from edictum.errors import EdictumConfigError

BEFORE, PERMISSION, AFTER = "PreToolUse", "PermissionRequest", "PostToolUse"
ADAPTER_MARK = "edictum_adapter"


def mark(adapter: object, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, marked as one in which this adapter judges what a tool is given."""
    setattr(function, ADAPTER_MARK, adapter)
    return function


def _is_marked(adapter: object, function: Callable[..., Any]) -> bool:
    return getattr(function, ADAPTER_MARK, None) is adapter


def _list_hooks(hooks: Mapping[str, Sequence[Any]], *events: str) -> Iterator[tuple[str, Any]]:
    for event in events:
        for matcher in hooks.get(event) or ():
            for hook in matcher.hooks:
                yield event, hook


def check_hooks(adapter: object, hooks: Mapping[str, Sequence[Any]]) -> None:
    """Raise if the hooks that are to be wrapped have the adapter's own among them."""
    if any(_is_marked(adapter, hook) for _, hook in _list_hooks(hooks, *hooks)):
        raise EdictumConfigError(
            "wrap_hooks: the adapter's own hooks are among those to be wrapped.",
            hint="Pass your hooks alone; those of to_sdk_hooks() are added.",
        )


def check_wiring(
    adapter: object, hooks: Mapping[str, Sequence[Any]] | None, can_use_tool: Any
) -> None:
    """Raise for what can change a call, or its output, after the guard has checked it."""
    name = type(adapter).__name__
    if can_use_tool is not None and not _is_marked(adapter, can_use_tool):
        raise EdictumConfigError(
            f"{name}: can_use_tool is not wrapped, so input that it changes is not checked.",
            hint="Pass can_use_tool=adapter.wrap_can_use_tool(...).",
        )
    for event, hook in _list_hooks(hooks or {}, BEFORE, PERMISSION, AFTER):
        if not _is_marked(adapter, hook):
            what = "output" if event == AFTER else "input"
            raise EdictumConfigError(
                f"{name}: the {event} hook {getattr(hook, '__qualname__', hook)!r} is not wrapped,"
                f" so {what} that it changes is not checked.",
                hint="Pass hooks=adapter.wrap_hooks(...) with all of your hooks.",
            )
