"""Artifacts in a turn: a large output becomes a reference that can be read, or, when it cannot be
stored, both of its ends.
"""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from turns import USER, new_guard

from edictum import ToolArtifactReference, ToolExecutionResult, outcome_to_model_content
from edictum.harness import (
    ArtifactStore,
    BoundedToolExecutor,
    ModelReply,
    ToolCallRequest,
    TurnBudget,
    TurnState,
    run_turn,
    tool,
)
from edictum.harness.artifact_reader import make_reader
from edictum.outcomes import TOOL_MESSAGE_MAX_CHARS
from support.waiting import wait_in_loop


@tool("Text of a size.", side_effect="read")
def text(size: int) -> str:
    return "x" * size


def execute(
    store: Any, *tools: Any, name: str, arguments: dict[str, Any], session: str = "s-1"
) -> Any:
    executor = BoundedToolExecutor([text, *tools], artifact_store=store)
    state = TurnState(session_id=session, budget=TurnBudget.create(timeout_s=60))
    return executor.execute(ToolCallRequest("c-1", name, arguments), state)


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


@pytest.mark.parametrize("session", ["s-1", "../../etc/passwd"])
def test_ten_megabytes_become_a_reference_that_can_be_read(
    store: ArtifactStore, session: str
) -> None:
    outcome = execute(store, name="text", arguments={"size": 10_000_000}, session=session)
    assert isinstance(outcome, ToolArtifactReference)
    assert len(outcome.summary) <= 200
    assert outcome.size_bytes == 10_000_000
    assert len(outcome_to_model_content(outcome)) < 1_000
    read = tool("Read part of a stored output.", side_effect="read")(make_reader(store, session))
    arguments = {"artifact_id": outcome.artifact_id, "offset": 9_999_000, "limit": 1_000_000}
    answer = execute(store, read, name="read_artifact", arguments=arguments, session=session)
    assert isinstance(answer, ToolExecutionResult)
    assert answer.output["content"] == "x" * 1_000


def test_the_model_is_told_of_the_reader_that_is_there(store: ArtifactStore) -> None:
    read = tool("Read part of a stored output.", side_effect="read")(make_reader(store, "s-1"))
    for tools, reader in (((), None), ((read,), "read_artifact")):
        outcome = execute(store, *tools, name="text", arguments={"size": 100_000})
        assert isinstance(outcome, ToolArtifactReference)
        assert outcome.reader == reader
        assert (reader or "read_file") in json.loads(outcome_to_model_content(outcome))["hint"]


async def test_in_the_turn_loop_the_reference_names_a_tool_that_the_model_has(
    store: ArtifactStore,
) -> None:
    read: list[Any] = []

    def model(messages: Any, tools: Any) -> ModelReply:
        said = [json.loads(message["content"]) for message in messages if message["role"] == "tool"]
        if not said:
            return ModelReply("", (ToolCallRequest("c-1", "text", {"size": 100_000}),))
        if len(said) == 1:
            (name,) = (spec.name for spec in tools if spec.name in said[0]["hint"])
            return ModelReply(
                "",
                (
                    ToolCallRequest(
                        "c-2", name, {"artifact_id": said[0]["artifact_reference"], "limit": 10}
                    ),
                ),
            )
        read.append(said[1]["content"])
        return ModelReply("done")

    await run_turn(model, [], [text], artifact_store=store)
    assert read == ["x" * 10]


async def test_turns_that_are_told_of_no_session_share_nothing(store: ArtifactStore) -> None:
    def asks(name: str, **arguments: Any) -> Any:
        return lambda messages, _tools: (
            ("", [ToolCallRequest("c-1", name, arguments)]) if not messages else "done"
        )

    first = await run_turn(asks("text", size=100_000), [], [text], artifact_store=store)
    (kept,) = first.outcomes
    assert isinstance(kept, ToolArtifactReference)
    second = await run_turn(
        asks("read_artifact", artifact_id=kept.artifact_id), [], [], artifact_store=store
    )
    assert "No artifact" in outcome_to_model_content(second.outcomes[0])
    assert first.state.session_id != second.state.session_id


def test_reading_never_makes_another_artifact(store: ArtifactStore) -> None:
    outcome = execute(store, name="text", arguments={"size": 100_000})
    read = tool("Read part of a stored output.", side_effect="read")(make_reader(store, "s-1"))
    answer = execute(
        store,
        read,
        name="read_artifact",
        arguments={"artifact_id": outcome.artifact_id, "limit": 100_000},
    )
    assert isinstance(answer, ToolExecutionResult)
    assert len(outcome_to_model_content(answer)) <= TOOL_MESSAGE_MAX_CHARS


def test_an_output_of_exactly_the_limit_stays_in_line(store: ArtifactStore) -> None:
    around = len(json.dumps({"result": ""}))
    assert isinstance(
        execute(store, name="text", arguments={"size": TOOL_MESSAGE_MAX_CHARS - around}),
        ToolExecutionResult,
    )
    assert isinstance(
        execute(store, name="text", arguments={"size": TOOL_MESSAGE_MAX_CHARS - around + 1}),
        ToolArtifactReference,
    )


def test_an_output_that_cannot_be_stored_is_shown_in_line_at_both_ends(tmp_path: Path) -> None:
    """Here the quota is full; nobody gets a reference to nothing."""
    full = ArtifactStore(tmp_path / "artifacts", max_session_bytes=1_000)
    outcome = execute(full, name="text", arguments={"size": 100_000})
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.output["truncated"]
    assert outcome.output["head"]
    assert outcome.output["tail"]
    assert "ArtifactError" in outcome.notes[0]
    assert list((tmp_path / "artifacts").rglob("art_*")) == []


# --- Results that take long to write --------------------------------------------------------------


class Held:
    """A value whose text is there when it is let go."""

    def __init__(self) -> None:
        self.asked, self.released = threading.Event(), threading.Event()

    def __repr__(self) -> str:
        self.asked.set()
        self.released.wait(60)
        return "held"


def make_large_tool(held: Held) -> Any:
    @tool("Many values.", side_effect="read", returns=None)
    async def list_all() -> list[Any]:
        return [*range(20_000), held]

    return list_all


def ask_once(messages: Any, tools: Any) -> ModelReply:
    asked = messages[-1]["role"] == "user"
    return ModelReply("", (ToolCallRequest("a", "list_all", {}),)) if asked else ModelReply("done")


async def test_a_large_result_is_written_beside_the_event_loop() -> None:
    held = Held()
    turn = asyncio.ensure_future(run_turn(ask_once, USER, [make_large_tool(held)], new_guard()))
    await wait_in_loop(held.asked.is_set)  # the loop goes on while the result is written
    held.released.set()
    result = await turn
    (outcome,) = result.outcomes
    assert isinstance(outcome, ToolExecutionResult)
    assert (outcome.output["truncated"], len(outcome.value)) == (True, 20_001)
    assert "held" in result.messages[2]["content"]


async def test_a_result_that_cannot_be_written_in_time_is_not_shown() -> None:
    held = Held()
    budget = TurnBudget.create(1, reserve_s=0.5)
    result = await run_turn(ask_once, USER, [make_large_tool(held)], new_guard(), budget)
    held.released.set()
    (outcome,) = result.outcomes
    assert isinstance(outcome, ToolExecutionResult)
    assert "too large to be shown in the time" in result.messages[2]["content"]
    assert (result.text, result.stopped_by) == ("done", "answered")
