"""The events that every guard keeps in memory: how many, how large, or none."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edictum import CollectingAuditSink, Edictum, EdictumConfigError, OperationLimits, precondition
from edictum.core.freeze import LARGE, is_large, snapshot_dict

UNLIMITED = OperationLimits(max_attempts=None, max_tool_calls=None)
CALLS = 6


@dataclass
class Report:
    body: str


@precondition("write_file")
def look_closer(call: Any) -> Any:
    raise ValueError("cannot be judged")


@pytest.mark.slow
@pytest.mark.parametrize(
    "make_args",
    [
        lambda: {"content": "x" * 1_000_000},
        lambda: {"parts": ["x" * 1_000] * 1_000},
        lambda: {"rows": [{"n": n} for n in range(4_000)]},
        lambda: {"report": Report("x" * 1_000_000)},
        lambda: {f"part{n}": "x" * 400 for n in range(200)},
    ],
    ids=["text", "list of texts", "many rows", "an object", "many arguments"],
)
@pytest.mark.parametrize("contracts", [[], [look_closer]], ids=["allowed", "denied"])
def test_large_arguments_are_not_kept(make_args: Any, contracts: list[Any]) -> None:
    """Neither by the fast path nor by the lifecycle."""
    guard = Edictum(limits=UNLIMITED, contracts=contracts)
    guard.dispatch_sync("write_file", make_args(), lambda **_: None)
    tracemalloc.start()
    try:
        for _ in range(CALLS):
            guard.dispatch_sync("write_file", make_args(), lambda **_: None)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(guard.local_sink.events) == (CALLS + 1) * (1 if contracts else 2)
    assert held < CALLS * 2 * 100_000


def test_an_event_of_a_large_call_is_the_one_that_a_file_gets() -> None:
    """Redacted, with every field, and readable in every way."""
    kept = CollectingAuditSink()
    guard = Edictum(audit_sink=kept)
    guard.run_sync("t", {"text": "x" * 5_000, "password": "hunter2"}, lambda **_: 1)
    assert [event.to_dict() for event in guard.local_sink.events] == [
        event.to_dict() for event in kept.events
    ]
    assert guard.local_sink.events[0].tool_args["password"] == "[REDACTED]"
    assert guard.local_sink.last().action == "call_executed"
    assert [event.action for event in guard.local_sink.since_mark(1)] == ["call_executed"]


def test_events_of_large_calls_are_bounded_in_bytes() -> None:
    """The oldest go first, and positions stay right."""
    guard = Edictum(limits=UNLIMITED)
    sink = guard.local_sink
    sink._max_bytes = 20_000
    for number in range(100):
        guard.run_sync("t", {"text": "x" * 5_000, "number": number}, lambda **_: 1)
        guard.run_sync("small", {}, lambda **_: 1)
    events = sink.events
    assert sum(len(event.to_json()) for event in events if event.tool_name == "t") <= 20_000
    assert events[-1].tool_name == "small"
    assert events[-3].tool_args["number"] == 99
    assert sink.mark() == 400, "dropped events count in positions"
    sink.clear()
    assert sink.events == []


def test_a_guard_keeps_as_many_events_as_it_is_told() -> None:
    """A merged guard begins with none."""
    guard = Edictum(local_events=4)
    for _ in range(3_000):
        guard.run_sync("t", {}, lambda: 1, session_id=guard.new_session_id())
    assert len(guard.local_sink.events) == 4
    assert len(Edictum.from_multiple([guard]).local_sink.events) == 0


@pytest.mark.parametrize("args", [{}, {"text": "x" * 10_000}])
def test_a_guard_can_keep_none(args: dict[str, Any]) -> None:
    """Other sinks still get every event."""
    written = CollectingAuditSink()
    for guard in (
        Edictum(local_events=0),
        Edictum(local_events=0, audit_sink=written),
        Edictum.from_multiple([Edictum(local_events=0)]),
    ):
        guard.run_sync("t", args, lambda **_: 1)
        assert guard.local_sink.events == []
    assert len(written.events) == 2


@pytest.mark.parametrize("count", [-1, True, 1.5, "10", None])
def test_a_number_of_events_that_cannot_be_is_refused(count: Any) -> None:
    """With the number."""
    with pytest.raises(EdictumConfigError, match="local_events is"):
        Edictum(local_events=count)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=700) | st.binary(max_size=700),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner, max_size=5)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(min_size=1, max_size=9), PLAIN, max_size=6))
def test_what_is_large_holds_more_than_a_bound(args: dict[str, Any]) -> None:
    """Compare with a plain count of characters: exact up to what containers and numbers add."""

    def count(value: Any) -> tuple[int, int]:
        if isinstance(value, (str, bytes)):
            return len(value), 0
        if isinstance(value, dict):
            parts = [count(part) for pair in value.items() for part in pair]
        elif isinstance(value, list):
            parts = [count(part) for part in value]
        else:
            return 0, 1
        return sum(it[0] for it in parts), 1 + sum(it[1] for it in parts)

    characters, others = count(args)
    if characters > LARGE:
        assert is_large(snapshot_dict(args))
    if characters + 20 * others <= LARGE:
        assert not is_large(snapshot_dict(args))
