"""An artifact store that somebody else has written: what it answers with may be anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from turns import Bench

from edictum.harness import tool
from edictum.outcomes import ToolArtifactReference, ToolExecutionResult


@tool(side_effect="read", max_output_chars=100)
async def big() -> str:
    return "x" * 1_000


class OwnStore:
    def __init__(self, **answer: Any) -> None:
        self._answer = SimpleNamespace(**answer)

    def store(self, *_: Any, **__: Any) -> Any:
        return self._answer


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"artifact_id": "art_1", "summary": "s"},
        {"artifact_id": 5, "summary": "s", "size_bytes": 1},
        {"artifact_id": "art_1", "summary": "s", "size_bytes": "many"},
    ],
    ids=["nothing", "no size", "no id", "a size that is none"],
)
async def test_what_is_no_reference_leaves_both_ends_in_line(answer: dict[str, Any]) -> None:
    outcome = await Bench(big, artifact_store=OwnStore(**answer)).call("big")
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.output["truncated"] is True
    assert outcome.notes == (
        "The output could not be stored, so it was cut: the store gave no reference",
    )


@pytest.mark.parametrize(("given", "shown"), [(None, ""), (["a"], "['a']"), ("text", "text")])
async def test_a_summary_is_text_whatever_it_was(given: Any, shown: str) -> None:
    outcome = await Bench(
        big, artifact_store=OwnStore(artifact_id="art_1", summary=given, size_bytes=1)
    ).call("big")
    assert isinstance(outcome, ToolArtifactReference)
    assert outcome.summary == shown
