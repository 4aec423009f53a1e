"""The calls of the Claude Agent SDK that were allowed and have not ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Opened:
    """A call that was allowed and has not ended."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self.name, self.owner = asked.get("tool_name", ""), (asked.get("session_id"), asked.get("agent_id"))
        self.args: dict[str, Any] = {}
        self.is_error = False

    def flag(self, value: Any) -> str | None:
        if self.is_error:
            return "is_error is set"
        return "interrupted is set" if isinstance(value, dict) and value.get("interrupted") is True else None


class OpenCalls:
    """By tool_use_id. A handler is not told the id: calls with the same name and arguments stand for each other."""

    def __init__(self) -> None:
        self._waiting: dict[str, Opened] = {}
        self._running: set[str] = set()

    def add(self, key: str, opened: Opened) -> None:
        self._waiting[key] = opened

    def claim(self, name: str, args: dict[str, Any]) -> tuple[str, Opened | None]:
        """The call that a handler runs, until it says that it ``left`` it."""
        end = f"__{name}"
        for key, opened in reversed(list(self._waiting.items())):  # an older one that is still open was refused by somebody else
            if opened.args == args and opened.name.startswith("mcp__") and opened.name.endswith(end):
                self._running.add(key)
                return key, self._waiting.pop(key)
        return "", None

    def left(self, key: str) -> None:
        self._running.discard(key)

    def ended(self, key: str) -> bool:
        """The CLI says that a call has ended. False: a handler runs under its id for an equal call, and will close it; the one that
        has ended was closed by its own handler, under the id of the other.
        """
        self._waiting.pop(key, None)
        return key not in self._running

    def asked_by(self, owner: tuple[Any, Any]) -> list[str]:
        return [key for key, opened in self._waiting.items() if opened.owner == owner]
