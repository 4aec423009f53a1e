"""The calls of the Claude Agent SDK: those that are open, and what the CLI says of one's output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from edictum.adapters._mcp import WireResult, make_text
from edictum.adapters._reply import ToolReply, to_text
from edictum.core.values import has_same_form
from edictum.runtime.ticket import MAX_OPEN

CLOSED = "The output is not shown: its call was closed before the tool ended."
UNKNOWN_CALL = (
    "The guard was not asked about this call with these arguments. Its hooks, to_sdk_hooks(), go"
    " with wrap_tools()."
)


class ClaudeCall:
    """A call that was allowed and has not ended."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        self.name = asked.get("tool_name", "")
        self.owner = (asked.get("session_id"), asked.get("agent_id"))
        self.args: dict[str, Any] = {}
        self.is_error = False

    def flag(self, value: Any) -> str | None:
        if self.is_error:
            return "is_error is set"
        interrupted = isinstance(value, dict) and value.get("interrupted") is True
        return "interrupted is set" if interrupted else None


class OpenCalls:
    """Open calls by tool_use_id. Handlers are not told the id: equal calls stand for each other."""

    def __init__(self) -> None:
        self._asked: dict[str, ClaudeCall] = {}  # until the CLI says that they have ended
        self._waiting: dict[str, ClaudeCall] = {}  # until a handler claims them, or they have ended
        # What handlers have judged, until the CLI says that one like it has ended.
        self._judged: list[ClaudeCall] = []

    def add(self, key: str, call: ClaudeCall) -> None:
        self._asked[key] = self._waiting[key] = call
        if len(self._asked) > MAX_OPEN:  # the CLI never said that they have ended
            oldest = next(iter(self._asked))
            del self._asked[oldest]
            self._waiting.pop(oldest, None)

    def claim(self, name: str, args: dict[str, Any]) -> tuple[str, ClaudeCall | None]:
        """Return the newest equal call: an older one that is still open was refused elsewhere."""
        for key, call in reversed(list(self._waiting.items())):
            is_mcp = call.name.startswith("mcp__") and call.name.endswith(f"__{name}")
            if is_mcp and call.args == args:
                return key, self._waiting.pop(key)
        return "", None

    def remember_judgement(self, call: ClaudeCall) -> None:
        self._judged = [*self._judged[-MAX_OPEN:], call]

    def end(self, key: str) -> Literal["open", "judged", "unknown"]:
        """Say whether an ended call is to be closed, was judged already, or is not known."""
        call = self._asked.pop(key, None)
        if call is None:
            return "unknown"
        equals = (it for it in self._judged if (it.name, it.args) == (call.name, call.args))
        equal = next(equals, None)
        if equal is not None:  # if this id is still waiting, then for the handler of an equal call
            self._judged.remove(equal)
            return "judged"
        return "unknown" if self._waiting.pop(key, None) is None else "open"

    def give_up(self, owner: tuple[Any, Any]) -> list[str]:
        """Remove and return the calls of an ended agent that no handler claimed."""
        mine = [key for key, call in self._waiting.items() if call.owner == owner]
        for key in mine:
            del self._waiting[key]
            self._asked.pop(key, None)
        return mine


class ToolOutput:
    """The output of a call in the CLI. If it cannot be replaced in its own form, the run stops."""

    def __init__(self, response: Any) -> None:
        self._response, self._wire = response, WireResult()
        self._is_blocks = isinstance(response, list) and all(
            isinstance(block, Mapping) and "type" in block for block in response
        )
        self.value = self._wire.take({"content": response}) if self._is_blocks else response

    def answer(self, reply: ToolReply | None) -> dict[str, Any]:
        """Return the hook's answer; without a reply nothing may be shown."""
        shown = CLOSED if reply is None else reply.limit.fit(reply.get_whole(), keep_form=True)
        if shown is self.value:
            return {}
        output = self._make_blocks(reply) if self._is_blocks else self._fit(shown)
        if output is None:
            reason = f"The output cannot be shown: {to_text(shown)}"
            return {"continue_": False, "stopReason": reason}
        return make_hook_output("PostToolUse", updatedToolOutput=output)

    def _make_blocks(self, reply: ToolReply | None) -> Any:
        return [make_text(CLOSED)] if reply is None else self._wire.answer(reply)["content"]

    def _fit(self, shown: Any) -> Any:
        """Return what is shown in the form of the tool's own output, or None."""
        if has_same_form(self._response, shown):
            return shown
        if isinstance(self._response, dict) and "stdout" in self._response:
            return {**self._response, "stdout": to_text(shown), "stderr": ""}
        return None


def make_hook_output(event: str, **output: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": event, **output}}


def make_error(text: str) -> dict[str, Any]:
    return {"content": [make_text(text)], "is_error": True}
