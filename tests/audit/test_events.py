"""What stands in the audit: every field that can be known is filled in."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import platform
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edictum import (
    AuditAction,
    AuditEvent,
    Edictum,
    InMemoryApprovalBackend,
    OperationLimits,
    Principal,
    RedactionPolicy,
    ToolTimeout,
    Verdict,
    postcondition,
    precondition,
)
from edictum.execution.process_identity import THIS_PROCESS
from edictum.testing import FakeClock
from support.guards import approval_contract
from support.processes import run_python
from support.waiting import wait_in_loop

SPEC_FIELDS = [
    "schema_version",
    "timestamp",
    "run_id",
    "call_id",
    "call_index",
    "parent_call_id",
    "tool_name",
    "tool_args",
    "side_effect",
    "environment",
    "principal",
    "action",
    "decision_source",
    "decision_name",
    "reason",
    "hooks_evaluated",
    "contracts_evaluated",
    "tool_success",
    "postconditions_passed",
    "duration_ms",
    "error",
    "result_summary",
    "session_attempt_count",
    "session_execution_count",
    "mode",
    "policy_version",
    "policy_error",
]
OUR_FIELDS = [
    "session_id",
    "outcome",
    "success_source",
    "success_reason",
    "approval_id",
    "approver",
    "policy_digest",
    "host",
    "pid",
    "instance_id",
]
SPEC_ACTIONS = [
    "call_denied",
    "call_would_deny",
    "call_allowed",
    "call_executed",
    "call_failed",
    "postcondition_warning",
    "call_approval_requested",
    "call_approval_granted",
    "call_approval_denied",
    "call_approval_timeout",
]


def test_the_field_names_are_those_people_query_by() -> None:
    """In the spec's order, ours behind them."""
    names = [field.name for field in dataclasses.fields(AuditEvent)]
    assert names[: len(SPEC_FIELDS)] == SPEC_FIELDS
    assert set(names[len(SPEC_FIELDS) :]) >= set(OUR_FIELDS)


def test_the_action_values_are_those_people_query_by() -> None:
    """And one more: withdrawn."""
    assert {action.value for action in AuditAction} >= set(SPEC_ACTIONS)
    assert AuditAction.CALL_APPROVAL_WITHDRAWN == "call_approval_withdrawn"


def test_a_closing_event_says_everything_about_its_call() -> None:
    """Including what the older library left empty."""
    clock = FakeClock(datetime(2024, 2, 29, tzinfo=UTC).timestamp())
    guard = Edictum(
        clock=clock,
        tools={"send": {"side_effect": "write"}},
        environment="staging",
        policy_version="v7",
        principal=Principal(user_id="u"),
        contracts=[precondition("send", id="pre")(lambda call: Verdict.pass_())],
    )
    guard.dispatch_sync(
        "send",
        {"to": "x"},
        lambda to: {"sent": to},
        session_id="s",
        call_id="c-1",
        parent_call_id="c-0",
        call_index=3,
    )
    event = guard.local_sink.last()
    assert event.to_dict() | {"duration_ms": 0} == {
        "schema_version": "0.6.0",
        "timestamp": "2024-02-29T00:00:00+00:00",
        "run_id": "s",
        "call_id": "c-1",
        "call_index": 3,
        "parent_call_id": "c-0",
        "tool_name": "send",
        "tool_args": {"to": "x"},
        "side_effect": "write",
        "environment": "staging",
        "principal": {
            "user_id": "u",
            "service_id": None,
            "org_id": None,
            "role": None,
            "ticket_ref": None,
            "claims": {},
        },
        "action": "call_executed",
        "decision_source": None,
        "decision_name": None,
        "reason": None,
        "hooks_evaluated": [],
        "contracts_evaluated": [
            {"name": "pre", "type": "precondition", "passed": True, "message": None}
        ],
        "tool_success": True,
        "postconditions_passed": None,
        "duration_ms": 0,
        "error": None,
        "result_summary": '{"sent": "x"}',
        "session_attempt_count": 1,
        "session_execution_count": 1,
        "mode": "enforce",
        "policy_version": "v7",
        "policy_error": False,
        "session_id": "s",
        "outcome": "executed",
        "success_source": "default",
        "success_reason": None,
        "approval_id": None,
        "approver": None,
        "policy_digest": guard.policy_digest,
        "host": platform.node(),
        "pid": os.getpid(),
        "instance_id": THIS_PROCESS.origin.instance_id,
    } | dict.fromkeys(set(event.to_dict()) - {*SPEC_FIELDS, *OUR_FIELDS})


def fail() -> None:
    raise ValueError("boom")


@pytest.mark.parametrize(
    ("options", "fn", "expected"),
    [
        (
            {},
            lambda: "fine",
            {
                "outcome": "executed",
                "error": None,
                "result_summary": '"fine"',
                "tool_success": True,
            },
        ),
        ({}, lambda: None, {"outcome": "executed", "result_summary": "null"}),
        (
            {},
            fail,
            {"outcome": "failed", "error": "boom", "result_summary": None, "tool_success": False},
        ),
        (
            {},
            lambda: "Error: x",
            {"outcome": "failed", "error": "Error: x", "result_summary": '"Error: x"'},
        ),
        (
            {},
            lambda: {"error": "x", "id": 5},
            {"outcome": "failed", "error": "x", "result_summary": '{"error": "x", "id": 5}'},
        ),
        (
            {"contracts": [precondition("*")(lambda call: Verdict.fail("no"))]},
            fail,
            {
                "outcome": "denied",
                "error": None,
                "result_summary": None,
                "tool_success": None,
                "reason": "no",
            },
        ),
        (
            {"limits": OperationLimits(max_tool_calls=0)},
            fail,
            {"outcome": "denied", "decision_name": "max_tool_calls"},
        ),
    ],
)
def test_error_summary_and_outcome_are_filled_in(
    options: dict[str, Any], fn: Any, expected: dict[str, Any]
) -> None:
    """For each way a call can end."""
    guard = Edictum(**options)
    guard.dispatch_sync("t", {}, fn)
    event = guard.local_sink.last()
    assert {name: getattr(event, name) for name in expected} == expected


async def test_a_timeouts_event_says_how_long_it_took() -> None:
    """In words and as a number."""
    guard = Edictum()
    outcome = await guard.dispatch("t", {}, asyncio.Event().wait, timeout_s=0.02)
    event = guard.local_sink.last()
    assert isinstance(outcome, ToolTimeout)
    assert (event.outcome, event.error, event.duration_ms) == (
        "timeout",
        f"timed out after {outcome.elapsed_ms} ms",
        outcome.elapsed_ms,
    )
    assert event.action == "call_failed"


def test_counters_are_those_of_the_moment() -> None:
    """Attempts when the call came, executions when it had ended."""
    guard = Edictum()
    for _ in range(2):
        guard.dispatch_sync("t", {}, lambda: 1)
    counts = [
        (event.action.value, event.session_attempt_count, event.session_execution_count)
        for event in guard.local_sink.events
    ]
    assert counts == [
        ("call_allowed", 1, 0),
        ("call_executed", 1, 1),
        ("call_allowed", 2, 1),
        ("call_executed", 2, 2),
    ]


def test_an_approval_is_named_in_its_events() -> None:
    """Which request, who decided, and why."""
    backend = InMemoryApprovalBackend()
    guard = Edictum(
        contracts=[approval_contract(message="sure?")],
        approval_backend=backend,
    )

    async def call() -> None:
        task = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
        await wait_in_loop(lambda: backend.pending)
        backend.decide(backend.pending[0].approval_id, False, approver="ann", reason="too risky")
        await task

    asyncio.run(call())
    requested, denied = guard.local_sink.events
    assert requested.approval_id == denied.approval_id == backend.requests[0].approval_id
    assert (requested.reason, requested.approver, denied.reason, denied.approver) == (
        "sure?",
        None,
        "too risky",
        "ann",
    )


def object_to(text: str, **options: Any) -> Any:
    return postcondition("*", id=text, **options)(lambda call, result: Verdict.fail(f"{text}!"))


def test_a_warning_of_a_postcondition_is_an_event_with_the_result() -> None:
    """Before the closing one."""
    guard = Edictum(contracts=[object_to("odd")])
    guard.dispatch_sync("t", {}, lambda: "value")
    warning = guard.local_sink.filter(AuditAction.POSTCONDITION_WARNING)[0]
    assert (
        warning.postconditions_passed,
        warning.result_summary,
        warning.contracts_evaluated[-1]["name"],
    ) == (False, '"value"', "odd")


def test_each_postcondition_that_objects_is_named_and_only_the_last_event_ends_the_call() -> None:
    """Events with an outcome are as many as calls."""
    fine = postcondition("*")(lambda call, result: Verdict.pass_())
    guard = Edictum(contracts=[object_to("odd"), fine, object_to("long", mode="observe")])
    guard.dispatch_sync("t", {}, lambda: "Error: value")
    told = [
        (event.action, event.decision_source, event.decision_name, event.reason, event.mode)
        for event in guard.local_sink.events[1:]
    ]
    assert told == [
        ("postcondition_warning", "postcondition", "odd", "odd!", "enforce"),
        ("postcondition_warning", "postcondition", "long", "long!", "observe"),
        ("call_failed", None, None, None, "enforce"),
    ]
    ends = [(event.outcome, event.tool_success, event.error) for event in guard.local_sink.events]
    assert ends == [(None, None, None)] * 3 + [("failed", False, "Error: value")]


def test_events_are_in_the_order_of_time() -> None:
    """The clock is read when an event is written."""
    guard = Edictum(clock=FakeClock(step=1.0))
    for _ in range(3):
        guard.dispatch_sync("t", {}, lambda: 1)
    stamps = [event.timestamp for event in guard.local_sink.events]
    assert stamps == sorted(stamps)
    assert len(set(stamps)) == 6


def test_an_event_made_by_hand_is_dated_now() -> None:
    """For applications that write events of their own."""
    before = datetime.now(UTC)
    assert before <= AuditEvent().timestamp <= datetime.now(UTC)
    assert AuditEvent().to_dict()["action"] == "call_denied"


@dataclasses.dataclass
class Order:
    number: int
    note: str


@pytest.mark.parametrize(
    ("result", "summary"),
    [
        ("it's", "it's"),
        ('say "ä"\n', 'say "ä"\n'),
        (b"ab", "ab"),
        (None, None),
        (True, True),
        (-5, -5),
        (2**70, 2**70),
        (1.5, 1.5),
        (float("nan"), "nan"),
        ([1, (2, {3})], [1, [2, [3]]]),
        ({"a": {1: None}, "token": "t-1"}, {"a": {"1": None}, "token": "[REDACTED]"}),
        (Order(1, "x"), {"number": 1, "note": "x"}),
    ],
)
def test_a_summary_is_json(result: Any, summary: Any) -> None:
    """Of any result, and not the text that Python prints."""
    guard = Edictum()
    guard.run_sync("t", {}, lambda: result)
    assert json.loads(guard.local_sink.last().result_summary or "") == summary


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.integers(min_value=1, max_value=500),
)
def test_a_long_summary_is_json_of_a_bounded_length(value: Any, times: int) -> None:
    """Its beginning as a text, when the whole does not fit."""
    redaction = RedactionPolicy()
    for result in (value, [value] * times, {"password": "hunter2", "rest": [value] * times}):
        text = redaction.write_summary(redaction.summarize(result))
        assert len(text) <= 500
        json.loads(text)
        assert "hunter2" not in text


def test_secrets_that_span_a_value_leave_json() -> None:
    """What replaces them may break the structure; then the summary is a text."""
    redaction = RedactionPolicy(custom_patterns=[(r'"b": \d+}', "?")])
    written = redaction.write_summary(redaction.summarize({"a": "x", "b": 5}))
    assert json.loads(written) == '{"a": "x", ?'


ORIGINS = """
import json, os
from edictum import Edictum

def find_origins():
    return [(event.pid, event.instance_id) for event in guard.local_sink.events]

guard, other = Edictum(), Edictum()
for made in (guard, other):
    made.dispatch_sync("t", {}, lambda: 1)
assert other.local_sink.last().instance_id == guard.local_sink.last().instance_id
read, write = os.pipe()
child = os.fork()
guard.dispatch_sync("t", {}, lambda: 1)
if not child:
    os.write(write, json.dumps([os.getpid(), find_origins()]).encode())
    os._exit(0)
os.waitpid(child, 0)
print(json.dumps([[os.getpid(), find_origins()], json.loads(os.read(read, 65536))]))
"""


def test_an_event_names_the_process_that_wrote_it() -> None:
    """A forked child is another one; what was recorded before the fork stays its parent's."""
    (parent, parents), (child, childs) = run_python(ORIGINS)
    assert {pid for pid, _ in parents} == {parent}
    assert [pid for pid, _ in childs] == [parent, parent, child, child]
    instances = [instance for _, instance in childs]
    assert instances[0] == instances[1] == parents[0][1]
    assert instances[2] == instances[3] != instances[0]
