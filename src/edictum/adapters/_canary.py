"""The canary: a call that must be denied, sent through the framework as the model's calls go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from edictum.adapters._run_in import check_tool_table
from edictum.core.contract import Verdict, precondition
from edictum.errors import EdictumConfigError
from edictum.guard import Edictum

CANARY = "edictum_canary"


def make_canary_guard(reason: str) -> Edictum:
    """Return a guard that denies even in observe mode, and counts in a session of its own."""

    @precondition(CANARY)
    def canary(call: Any) -> Verdict:
        return Verdict.fail(reason)

    return Edictum(contracts=[canary])


class SelfTest:
    """The part of an adapter that finds out whether it is wired."""

    guard: Edictum
    _canary_text: str  # the reason for which the canary is denied

    def self_test(self, target: Any = None) -> Literal["governed"]:
        """Send a call that must be denied through the framework, and check that it is denied.

        ``target`` is what was wired (the agent, the tool node, ...); without one, the adapter wires
        the smallest thing that can call a tool. Raises EdictumConfigError if the call is not
        denied, and for a policy that wants a tool to run where the framework cannot run it.
        """
        check_tool_table(type(self).__name__, self.guard)
        ran: list[bool] = []

        def canary() -> str:
            ran.append(True)
            return "the canary's tool ran"

        text = self._probe(target, canary)
        if ran or self._canary_text not in text:
            wired = target if target is not None else "its framework"
            seen = "its tool ran" if ran else f"the reply was {text[:200]!r}"
            raise EdictumConfigError(
                f"{type(self).__name__} does not govern {wired!r:.120}: a call that must be"
                f" denied was not ({seen}).",
                hint="Wire the adapter as its page in docs/adapters shows.",
            )
        return "governed"

    def _find_worst(self, texts: Iterable[str], none: str = "no tool was found") -> str:
        """Return a text that does not show the denial of the canary, if there is one."""
        return min(texts, key=lambda text: self._canary_text in text, default=none)

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        """Have the framework call the tool CANARY, and return what its model would read."""
        raise NotImplementedError(f"{type(self).__name__} has no canary")
