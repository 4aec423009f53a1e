"""The CLI's own pause: a PreToolUse hook that says "defer" ends a run, and ``resume=`` continues
it.

A CLI that continues makes the deferred call at once, perhaps before the SDK has told it of any
hook. A wrapped tool of this process is safe from that: its handler runs nothing that no hook was
asked about. Any other tool would run unjudged, so calls of it are not deferred.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from edictum.adapters._claude_calls import get_run
from edictum.runtime.ticket import MAX_OPEN

CLI_TOOLS_WAIT = (
    "the CLI makes a deferred call without asking its hooks first. Only tools of this process can"
    " pause: wrap_tools(tools, server=...), with the name of their server in mcp_servers"
)
NOT_DEFERRED = (
    "A hook deferred this call. The CLI would make it without asking the guard when it goes on:"
    " only tools of wrap_tools(tools, server=...) can be deferred."
)
ANOTHER_WAITS = (
    "A person must approve this call, and this run waits for the approval of another one. Make the"
    " call again after that."
)
OTHER_CHARS = re.compile(r"[^a-zA-Z0-9_-]")  # which the CLI replaces in names


class CallDeferred(Exception):
    """A call waits for a person; the CLI makes it again when its session is resumed."""


def defer_call(request: Any) -> Any:
    """Park a call."""
    raise CallDeferred(request.approval_id)


def name_in_cli(server: str, tool: str) -> str:
    """Return the name that the CLI, and so the guard, has for a tool of a server."""
    return "__".join(("mcp", OTHER_CHARS.sub("_", server), OTHER_CHARS.sub("_", tool)))


class DeferredCalls:
    """The call that each run waits for: the CLI continues with only one, and forgets all others."""

    def __init__(self) -> None:
        self._keys: dict[tuple[Any, Any], Any] = {}

    def claim(self, asked: Mapping[str, Any]) -> bool:
        """Return whether a run may wait for this call, because it waits for none or for this."""
        if len(self._keys) >= MAX_OPEN:
            del self._keys[next(iter(self._keys))]
        key = asked.get("tool_use_id")
        return bool(self._keys.setdefault(get_run(asked), key) == key)

    def release(self, asked: Mapping[str, Any]) -> None:
        """Note that the run does not wait for a call."""
        if (get_run(asked), asked.get("tool_use_id")) in self._keys.items():
            del self._keys[get_run(asked)]
