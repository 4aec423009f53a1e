"""examples/turn runs offline and shows what it says."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from edictum.outcomes import ToolArtifactReference, ToolDenied, ToolExecutionResult, ToolTimeout

EXAMPLE = Path(__file__).parents[2] / "examples" / "turn" / "turn.py"


async def test_the_example_turn(capsys: Any) -> None:
    result = await runpy.run_path(str(EXAMPLE))["main"]()
    ok, no = ToolExecutionResult, ToolDenied
    assert [type(outcome) for outcome in result.outcomes] == [
        ok,
        ok,
        no,
        no,
        ok,
        ok,
        ToolTimeout,
        no,
        no,
        ToolArtifactReference,
        ok,
        no,
    ]
    reasons = [outcome.reason for outcome in result.outcomes if isinstance(outcome, ToolDenied)]
    assert reasons == ["duplicate", "contract", "unknown_tool", "validation", "duplicate"]
    assert result.outcomes[1].was_coerced
    assert "Answer: Apples now cost 5." in capsys.readouterr().out
