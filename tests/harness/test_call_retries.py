"""A call of which nobody knows whether it took effect is not made again by itself, whoever says
that it may be repeated.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from turns import Bench, new_guard

from edictum.errors import EdictumConfigError
from edictum.execution.failures import Lost
from edictum.harness import ToolSpec, tool
from edictum.outcomes import ToolExecutionResult, ToolFailure, ToolTimeout


class Slow:
    """A tool that hangs at its first attempt, and answers at the second."""

    def __init__(self, **settings: Any) -> None:
        self.ran = 0

        @tool(name="slow", timeout_s=0.05, max_retries=2, **settings)
        async def slow() -> dict[str, int]:
            self.ran += 1
            if self.ran == 1:
                await asyncio.Event().wait()
            return {"ran": self.ran}

        self.tool = slow


@pytest.mark.parametrize(
    "settings", [{"side_effect": "read"}, {"side_effect": "write", "idempotent": True}]
)
async def test_what_is_safe_to_repeat_is_tried_again_after_a_timeout(
    settings: dict[str, Any],
) -> None:
    slow = Slow(**settings)
    outcome = await Bench(slow.tool).call("slow")
    assert isinstance(outcome, ToolExecutionResult)
    assert (slow.ran, outcome.turn.attempts) == (2, 2)


@pytest.mark.parametrize("stated", [{}, {"retry_on_timeout": True}])
@pytest.mark.parametrize("effect", ["write", "irreversible"])
async def test_the_guard_knows_that_a_tool_has_effects_and_it_is_not_run_again(
    effect: str, stated: dict[str, Any]
) -> None:
    """The spec calls it a read; the more careful of the two counts."""
    slow = Slow(side_effect="read")
    bench = Bench(slow.tool, guard=new_guard(tools={"slow": {"side_effect": effect, **stated}}))
    outcome = await bench.call("slow")
    assert isinstance(outcome, ToolTimeout)
    assert (slow.ran, outcome.effect_unknown) == (1, True)
    assert outcome.retryable is bool(stated), (
        "whether the model may try is another question, and can be stated"
    )
    assert ("slow" in bench.state.blocked_tool_names) is not bool(stated)


def test_a_tool_with_effects_cannot_be_given_retries() -> None:
    for effect in ("write", "irreversible"):
        with pytest.raises(EdictumConfigError, match="Only reads and idempotent tools"):
            ToolSpec(name="t", side_effect=effect, max_retries=1, retry_on_timeout=True)  # type: ignore[arg-type]


class LosingEngine:
    """Loses every call, as an engine whose worker dies."""

    def __init__(self) -> None:
        self.ran = 0

    async def run(self, effect: Any) -> Any:
        from edictum.core.effects import Ran

        self.ran += 1
        return Ran(None, Lost("the worker died"), lost="the worker died")

    def run_sync(self, effect: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("effect", "attempts", "retryable"), [("read", 3, True), ("irreversible", 1, False)]
)
async def test_a_lost_call_is_made_again_only_if_it_changed_nothing(
    effect: str, attempts: int, retryable: bool
) -> None:
    engine = LosingEngine()
    spec = ToolSpec(name="t", function=lambda: 1, side_effect="read", max_retries=2)  # type: ignore[arg-type]
    outcome = await Bench(
        spec, guard=new_guard(execution=engine, tools={"t": {"side_effect": effect}})
    ).call("t")
    assert isinstance(outcome, ToolFailure)
    assert (engine.ran, outcome.retryable, outcome.effect_unknown) == (
        attempts,
        retryable,
        not retryable,
    )
