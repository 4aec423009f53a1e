"""Calls that the guard cannot take as they are: refused like others, so counted and recorded.

A turn of the harness takes whatever a model sent, finds a name for it that can be written down, and
refuses it before any rule or person is asked. This is a turn that knows no tools at all. It is
imported when it is needed, since few calls are like that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edictum.core.policy import Policy
from edictum.harness.turn_call import Turn, TurnCall


class RefusedCall(TurnCall):
    why = ""

    def _about_unknown(self) -> str:
        return self.why


class RefusingTurn(Turn):
    """Refuses every call, for this reason."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self._why = why

    def open(
        self, tool_name: str, arguments: Any, function: Callable[..., Any] | None, policy: Policy
    ) -> TurnCall:
        known = super().open(tool_name, arguments, None, policy)
        call = RefusedCall(self, known._known, arguments, None)
        call.why = self._why
        return call
