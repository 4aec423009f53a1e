"""The calls of the Claude Agent SDK: those that are open, and how the CLI takes an output."""

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
        self.asked, self.name = asked, asked.get("tool_name", "")
        self.owner = (asked.get("session_id"), asked.get("agent_id"))
        self.args: dict[str, Any] = {}
        self.is_handed_on = False  # the CLI was given args, which it completes
        self.is_error = False

    def flag(self, value: Any) -> str | None:
        if self.is_error:
            return "is_error is set"
        interrupted = isinstance(value, dict) and value.get("interrupted") is True
        return "interrupted is set" if interrupted else None


Ended = Literal["open", "judged", "refused", "unknown"]


class OpenCalls:
    """Open calls by tool_use_id. Handlers are not given the id: equal calls are interchangeable."""

    def __init__(self) -> None:
        self._asked: dict[str, ClaudeCall] = {}  # until the CLI says that they have ended
        self._waiting: dict[str, ClaudeCall] = {}  # until a handler claims them, or they have ended
        # What handlers have judged, until the CLI says that one like it has ended.
        self._judged: list[ClaudeCall] = []
        self._refused: list[tuple[str, dict[str, Any]]] = []  # what handlers did not run

    def add(self, key: str, call: ClaudeCall) -> None:
        self._asked[key] = self._waiting[key] = call
        if len(self._asked) > MAX_OPEN:  # the CLI never said that they have ended
            oldest = next(iter(self._asked))
            del self._asked[oldest]
            self._waiting.pop(oldest, None)

    def claim(self, name: str, args: dict[str, Any]) -> tuple[str, ClaudeCall | None]:
        """Return the newest equal call: an older one that is still open was refused elsewhere."""
        for key, call in reversed(list(self._waiting.items())):
            if is_tool_of_server(call.name, name) and call.args == args:
                return key, self._waiting.pop(key)
        self._refused = [*self._refused[-MAX_OPEN:], (name, args)]
        return "", None

    def find_waiting(self, key: str | None) -> ClaudeCall | None:
        """Return a call whose tool has not begun, as far as is known."""
        return None if key is None else self._waiting.get(key)

    def remove(self, key: str) -> None:
        self._asked.pop(key, None)
        self._waiting.pop(key, None)

    def remember_judgement(self, call: ClaudeCall) -> None:
        self._judged = [*self._judged[-MAX_OPEN:], call]

    def end(self, key: str, args: Any = None) -> Ended:
        """Return whether an ended call must be closed, was judged already, or is unknown.

        ``args`` are those that it ran with. Without them it cannot be known whether a handler
        refused it.
        """
        call = self._asked.pop(key, None)
        if call is None:
            return "unknown"
        for refused in self._refused:
            if is_tool_of_server(call.name, refused[0]) and refused[1] == args != call.args:
                self._refused.remove(refused)
                return "unknown" if self._waiting.pop(key, None) is None else "refused"
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


class StoppedRuns:
    """Runs in which something ran that was not checked: nothing more of them is allowed.

    A run is what follows one prompt; sub-agents belong to it.
    """

    def __init__(self) -> None:
        self._reasons: dict[tuple[Any, Any], str] = {}

    def stop(self, asked: Mapping[str, Any], reason: str) -> dict[str, Any]:
        """Remember the run, and return a hook's output that ends it."""
        if len(self._reasons) >= MAX_OPEN:
            del self._reasons[next(iter(self._reasons))]
        self._reasons[get_run(asked)] = reason
        return self.answer(asked)

    def find(self, asked: Mapping[str, Any]) -> str | None:
        return self._reasons.get(get_run(asked))

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return a hook's output that ends a stopped run; an empty one for any other."""
        reason = self.find(asked)
        return {} if reason is None else {"continue_": False, "stopReason": reason}


def get_run(asked: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the key of a run: the session and the prompt."""
    return asked.get("session_id"), asked.get("prompt_id")


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


def is_tool_of_server(full_name: str, name: str) -> bool:
    """Return whether the CLI knows a tool as mcp__server__name."""
    return full_name.startswith("mcp__") and full_name.endswith(f"__{name}")


def make_hook_output(event: str, **output: Any) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": event, **output}}


def make_error(text: str) -> dict[str, Any]:
    return {"content": [make_text(text)], "is_error": True}
