"""ToolScheduler: waves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turns import request

from edictum import EdictumConfigError
from edictum.harness import ToolCallRequest, ToolRegistry, ToolScheduler, ToolSpec

TOOLS = ToolRegistry(
    [
        ToolSpec(name="read_vault", side_effect="read", resource_keys=["vault"]),  # type: ignore[arg-type]
        ToolSpec(name="read_web", side_effect="read", resource_keys=["web"]),  # type: ignore[arg-type]
        ToolSpec(name="read_any", side_effect="read"),  # type: ignore[arg-type]
        ToolSpec(name="write_vault", side_effect="write", resource_keys=["vault"]),  # type: ignore[arg-type]
        ToolSpec(name="write_log", side_effect="write", resource_keys=["log"]),  # type: ignore[arg-type]
        ToolSpec(name="edit", side_effect="write", resource_keys=["file:{path}"]),  # type: ignore[arg-type]
        ToolSpec(name="view", side_effect="read", resource_keys=["file:{path}"]),  # type: ignore[arg-type]
        ToolSpec(name="send"),
        ToolSpec(name="add", side_effect="pure"),  # type: ignore[arg-type]
    ]
)


def waves(*calls: Any, width: int = 8, parallel: bool = True) -> list[list[str]]:
    requests = [call if isinstance(call, ToolCallRequest) else request(call) for call in calls]
    return [
        [call.name for call in wave.calls]
        for wave in ToolScheduler(width).schedule(requests, TOOLS, parallel)
    ]


def test_reads_run_together_also_of_one_resource() -> None:
    assert waves("read_vault", "read_vault", "read_web", "add") == [
        ["read_vault", "read_vault", "read_web", "add"]
    ]


def test_a_write_runs_beside_reads_of_other_resources_only() -> None:
    assert waves("read_web", "write_vault", "read_vault") == [
        ["read_web", "write_vault"],
        ["read_vault"],
    ]
    assert waves("write_vault", "read_any") == [["write_vault"], ["read_any"]]


def test_writes_keep_their_order() -> None:
    assert waves("write_vault", "write_log", "write_vault") == [
        ["write_vault"],
        ["write_log"],
        ["write_vault"],
    ]


def test_no_read_moves_across_a_write() -> None:
    assert waves("read_vault", "write_vault", "read_vault") == [
        ["read_vault"],
        ["write_vault"],
        ["read_vault"],
    ]


def test_keys_are_computed_from_arguments_also_from_json_text() -> None:
    edit, same, other = (
        request("edit", {"path": "a"}),
        request("view", '{"path": "a"}'),
        request("view", {"path": "b"}),
    )
    assert waves(edit, same) == [["edit"], ["view"]]
    assert waves(edit, other) == [["edit", "view"]]


def test_what_is_unknown_runs_alone() -> None:
    assert waves("add", "no_such_tool", "add") == [["add"], ["no_such_tool"], ["add"]]
    assert waves("add", request("add", "{broken"), "add") == [["add"], ["add"], ["add"]]
    assert waves("add", "send", "add") == [["add", "send", "add"]], (
        "a pure tool touches nothing that could conflict"
    )
    assert waves("read_any", "send", "read_any") == [["read_any"], ["send"], ["read_any"]]


def test_the_width_is_bounded_and_can_be_one() -> None:
    assert [len(wave) for wave in waves(*["add"] * 7, width=3)] == [3, 3, 1]
    assert [len(wave) for wave in waves(*["add"] * 3, parallel=False)] == [1, 1, 1]
    assert waves() == []
    with pytest.raises(EdictumConfigError, match="max_width"):
        ToolScheduler(0)


@given(st.lists(st.sampled_from([*TOOLS.names(), "no_such_tool"])), st.integers(1, 5))
def test_every_call_is_in_exactly_one_wave_in_order_with_at_most_one_write(
    names: list[str], width: int
) -> None:
    requests = [ToolCallRequest(str(number), name) for number, name in enumerate(names)]
    scheduled = ToolScheduler(width).schedule(requests, TOOLS)
    assert [call.id for wave in scheduled for call in wave.calls] == [call.id for call in requests]
    for wave in scheduled:
        specs = [TOOLS.get(call.name) for call in wave.calls]
        assert len(wave.calls) <= width
        assert sum(1 for spec in specs if spec is not None and not spec.is_read) <= 1
        assert wave.parallel == (len(wave.calls) > 1)
