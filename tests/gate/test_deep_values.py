"""Deeply nested values: replaced where they are shown, refused where they would decide."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from edictum import (
    Edictum,
    EdictumInputError,
    InMemoryApprovalBackend,
    ToolCall,
    ToolDenied,
    ToolFailure,
    outcome_to_model_content,
)
from edictum.core.lifecycle.approval import approval_digest
from support.guards import approval_contract
from support.values import nest, wrap_in_dict, wrap_in_list

SECRET = "ghp_" + "a1B2" * 9


def find_text(value: Any) -> str:
    while isinstance(value, (list, dict)):
        value = value[0] if isinstance(value, list) else value["x"]
    return str(value)


@pytest.mark.parametrize("wrap", [wrap_in_list, wrap_in_dict])
@pytest.mark.parametrize("levels", [49, 50, 51, 52, 80, 120, 199, 200, 201, 300])
def test_a_failures_value_is_redacted_at_every_level(levels: int, wrap: Any) -> None:
    """Or replaced, beyond the limit."""
    guard = Edictum(success_check=lambda tool, result: False)
    outcome = guard.dispatch_sync("t", {}, lambda: nest(levels, SECRET, wrap))
    assert isinstance(outcome, ToolFailure)
    assert SECRET not in find_text(outcome.value)
    assert SECRET not in outcome.error
    assert SECRET not in outcome_to_model_content(outcome)
    assert SECRET not in json.dumps([event.to_dict() for event in guard.local_sink.events])


@pytest.mark.parametrize("levels", [99, 100, 101, 120, 150, 198])
def test_calls_that_differ_at_any_level_have_other_digests(levels: int) -> None:
    """An approval is for one call."""
    one, other = (ToolCall("t", {"x": nest(levels, bottom)}) for bottom in (1, 2))
    assert approval_digest(one, None) != approval_digest(other, None)


def test_arguments_that_are_too_deep_are_refused() -> None:
    """With the limit in the message."""
    with pytest.raises(EdictumInputError, match="nested more than 200 levels deep"):
        ToolCall("t", {"x": nest(250, 1)})


@dataclass
class Tree:
    below: Any


def test_an_object_that_is_too_deep_is_not_put_to_a_person() -> None:
    """The approval could not be bound to it."""
    backend = InMemoryApprovalBackend(answer=True)
    guard = Edictum(
        contracts=[approval_contract()],
        approval_backend=backend,
    )
    bottom: Any = 1
    for _ in range(150):
        bottom = Tree(bottom)
    outcome = guard.dispatch_sync("t", {"tree": bottom}, lambda tree: "ran")
    assert isinstance(outcome, ToolDenied)
    assert outcome.policy_error
    assert "nested more than" in outcome.details
    assert backend.requests == []


def test_bytes_and_their_base64_have_other_digests() -> None:
    """JSON would write both alike."""
    one, other = (ToolCall("t", {"x": raw}) for raw in (b"\xff", b"/w=="))
    assert approval_digest(one, None) != approval_digest(other, None)


def test_the_limit_holds_far_down_the_stack() -> None:
    """A framework may call from hundreds of frames deep: never a RecursionError."""
    args = {"x": nest(198, SECRET)}
    guard = Edictum(success_check=lambda tool, result: False)

    def below(frames: int) -> Any:
        if frames:
            return below(frames - 1)
        return guard.dispatch_sync("t", args, lambda x: x)

    for frames in (0, 300, 500, sys.getrecursionlimit() - 250):
        try:
            outcome = below(frames)
        except EdictumInputError as exc:
            assert "nested" in str(exc)  # noqa: PT017
        else:
            assert SECRET not in find_text(outcome.value)
    assert SECRET not in json.dumps([event.to_dict() for event in guard.local_sink.events])


def test_the_limit_holds_in_a_running_loop() -> None:
    """And nothing below it is cut."""
    guard = Edictum()
    outcome = asyncio.run(guard.dispatch("t", {"x": nest(198, 1)}, lambda x: x))
    assert json.loads(outcome_to_model_content(outcome)) == {"result": nest(198, 1)}
