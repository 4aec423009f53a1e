"""The table of the Claude Agent SDK's open calls; the SDK itself is not needed."""

from __future__ import annotations

import pytest

from edictum.adapters import _claude_calls
from edictum.adapters._claude_calls import ClaudeCall, OpenCalls


def test_calls_whose_end_is_never_told_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both by id and for handlers: a forgotten call cannot be claimed any more."""
    monkeypatch.setattr(_claude_calls, "MAX_OPEN", 3)
    calls = OpenCalls()
    for number in range(10):
        call = ClaudeCall({"tool_name": "mcp__tools__look"})
        call.args = {"key": number}
        calls.add(f"id_{number}", call)
    assert calls.claim("look", {"key": 0}) == ("", None)
    assert calls.claim("look", {"key": 9})[0] == "id_9"
    assert calls.end("id_0") == "unknown"
    assert len(calls._waiting) == 2
