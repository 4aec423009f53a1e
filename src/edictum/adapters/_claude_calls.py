"""The calls of the Claude Agent SDK that were allowed and have not ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from edictum.runtime.ticket import MAX_OPEN


class Opened:
    """A call that was allowed and has not ended."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self.name, self.owner = (
            asked.get("tool_name", ""),
            (asked.get("session_id"), asked.get("agent_id")),
        )
        self.args: dict[str, Any] = {}
        self.is_error = False

    def flag(self, value: Any) -> str | None:
        if self.is_error:
            return "is_error is set"
        return (
            "interrupted is set"
            if isinstance(value, dict) and value.get("interrupted") is True
            else None
        )


class OpenCalls:
    """By tool_use_id. A handler is not told the id: calls with the same name and arguments stand
    for each other.
    """

    def __init__(self) -> None:
        self._asked: dict[str, Opened] = {}  # until the CLI says that they have ended
        self._waiting: dict[str, Opened] = {}  # until a handler claims them, or they have ended
        self._judged: list[
            Opened
        ] = []  # what handlers have seen to, until the CLI says that one like it has ended

    def add(self, key: str, opened: Opened) -> None:
        self._asked[key] = self._waiting[key] = opened
        if len(self._asked) > MAX_OPEN:  # the CLI never said that they have ended
            del self._asked[next(iter(self._asked))]

    def claim(self, name: str, args: dict[str, Any]) -> tuple[str, Opened | None]:
        """The call that a handler runs, until it says that it ``left`` it."""
        end = f"__{name}"
        for key, opened in reversed(
            list(self._waiting.items())
        ):  # an older one that is still open was refused by somebody else
            if (
                opened.args == args
                and opened.name.startswith("mcp__")
                and opened.name.endswith(end)
            ):
                return key, self._waiting.pop(key)
        return "", None

    def left(self, opened: Opened) -> None:
        self._judged = [*self._judged[-MAX_OPEN:], opened]

    def ended(self, key: str) -> Literal["open", "judged", "unknown"]:
        """The CLI says that a call has ended.

        Open: it is to be closed now. Judged: its handler has closed it, or under its id an equal
        one. Unknown: nobody has let it run, or it was closed meanwhile, as when it is too old.
        """
        opened = self._asked.pop(key, None)
        if opened is None:
            return "unknown"
        equal = next(
            (one for one in self._judged if (one.name, one.args) == (opened.name, opened.args)),
            None,
        )
        if equal is not None:
            self._judged.remove(
                equal
            )  # if this id is still waiting, then for the handler of an equal call
            return "judged"
        return "unknown" if self._waiting.pop(key, None) is None else "open"

    def stopped(self, owner: tuple[Any, Any]) -> list[str]:
        """An agent has ended: those of its calls that nobody has run are given up. What runs may be
        a call that this agent was made by.
        """
        mine = [key for key, opened in self._waiting.items() if opened.owner == owner]
        for key in mine:
            del self._waiting[key]
            self._asked.pop(key, None)
        return mine
