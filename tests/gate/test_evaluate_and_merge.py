"""Looking without calling, and one guard made of several."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from edictum import (
    Edictum,
    HookDecision,
    HookRegistration,
    InMemoryApprovalBackend,
    OperationLimits,
    Principal,
    SideEffect,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    Verdict,
    postcondition,
    precondition,
    session_contract,
)
from edictum.testing import AsyncLedger, RecordingSink
from support.guards import denying, passing

# --- evaluate -------------------------------------------------------------------------------------


def test_nothing_is_counted_recorded_or_run() -> None:
    """A look leaves no trace."""
    guard = Edictum(contracts=[denying("no")], limits=OperationLimits(max_attempts=1))
    for _ in range(3):
        guard.evaluate("t", {"x": 1}, session_id="s")
    assert guard.session("s").attempts == 0
    assert guard.local_sink.events == []


def test_all_contracts_answer() -> None:
    """With their ids, kinds and messages."""
    guard = Edictum(
        contracts=[passing("one"), denying("two", tags=("pii",)), denying("three", mode="observe")]
    )
    result = guard.evaluate("t", {})
    assert (result.verdict, result.tool_name, result.contracts_evaluated) == ("deny", "t", 3)
    assert result.deny_reasons == ["two says no"]
    assert [(c.contract_id, c.contract_type, c.passed, c.observed) for c in result.contracts] == [
        ("one", "precondition", True, False),
        ("two", "precondition", False, False),
        ("three", "precondition", False, True),
    ]
    assert (result.contracts[1].tags, result.contracts[1].message) == (["pii"], "two says no")


def test_an_allowed_call() -> None:
    """With and without contracts."""
    assert Edictum().evaluate("t", {}).verdict == "allow"
    result = Edictum(contracts=[passing("one")]).evaluate("t", {})
    assert (result.verdict, result.deny_reasons, result.contracts[0].contract_id) == (
        "allow",
        [],
        "one",
    )


def test_a_call_that_would_ask_a_person_is_a_denial_that_says_so() -> None:
    """Nobody is asked."""
    backend = InMemoryApprovalBackend(True)
    result = Edictum(
        contracts=[denying("ask", effect="approve")], approval_backend=backend
    ).evaluate("t", {})
    assert (result.verdict, result.needs_approval) == ("deny", True)
    assert backend.requests == []
    assert (
        not Edictum(contracts=[denying("ask", effect="approve"), denying("no")])
        .evaluate("t", {})
        .needs_approval
    )


def test_hooks_count_too() -> None:
    """As they do in a run; in observe mode they do not refuse."""
    hooks = [HookRegistration("before", "*", lambda call: HookDecision.deny("hook says no"))]
    assert Edictum(hooks=hooks).evaluate("t", {}).deny_reasons == ["hook says no"]
    assert Edictum(hooks=hooks, mode="observe").evaluate("t", {}).verdict == "allow"


def test_postconditions_are_asked_about_an_output() -> None:
    """Only when there is one."""
    contract = postcondition("*", id="post")(
        lambda call, result: Verdict.fail("odd") if "secret" in str(result) else Verdict.pass_()
    )
    guard = Edictum(contracts=[contract])
    assert guard.evaluate("t", {}).contracts_evaluated == 0
    assert guard.evaluate("t", {}, output="fine").verdict == "allow"
    result = guard.evaluate("t", {}, output={"text": "secret"})
    assert (result.verdict, result.warn_reasons, result.contracts[0].effect) == (
        "warn",
        ["odd"],
        "warn",
    )


@pytest.mark.parametrize("backend", [None, AsyncLedger], ids=["memory", "async"])
def test_a_session_is_judged_when_it_is_named(backend: Any) -> None:
    """Limits and session contracts, as the next call would meet them."""
    contract = session_contract(id="few")(
        lambda session: Verdict.fail("enough") if session.executions >= 2 else Verdict.pass_()
    )
    guard = Edictum(
        contracts=[contract],
        limits=OperationLimits(max_tool_calls=1, max_attempts=1),
        backend=backend() if backend else None,
    )
    assert guard.evaluate("t", {}, session_id="s").verdict == "allow"
    guard.dispatch_sync("t", {}, lambda: 1, session_id="s")
    result = guard.evaluate("t", {}, session_id="s")
    assert result.verdict == "deny"
    assert len(result.deny_reasons) == 2
    assert guard.evaluate("t", {}, session_id="other").verdict == "allow"
    assert guard.evaluate("t", {}).verdict == "allow"


def test_the_principal_is_the_given_one_the_resolved_one_or_the_guards() -> None:
    """As in a run."""
    contract = precondition("*")(
        lambda call: (
            Verdict.pass_()
            if call.principal and call.principal.role == "admin"
            else Verdict.fail("no")
        )
    )
    admin, guest = Principal(role="admin"), Principal(role="guest")
    assert Edictum(contracts=[contract], principal=admin).evaluate("t", {}).verdict == "allow"
    assert (
        Edictum(contracts=[contract], principal=admin).evaluate("t", {}, principal=guest).verdict
        == "deny"
    )
    assert (
        Edictum(contracts=[contract], principal=guest, principal_resolver=lambda tool, args: admin)
        .evaluate("t", {})
        .verdict
        == "allow"
    )
    assert (
        Edictum(contracts=[contract], principal_resolver=lambda tool, args: guest)
        .evaluate("t", {}, principal=admin)
        .verdict
        == "allow"
    )


async def test_async_contracts_are_asked_also_inside_a_running_loop() -> None:
    """evaluate is an ordinary function."""

    async def slow(call: Any) -> Verdict:
        await asyncio.sleep(0)
        return Verdict.fail("slow no")

    assert Edictum(contracts=[precondition("*")(slow)]).evaluate("t", {}).deny_reasons == [
        "slow no"
    ]


def test_the_environment_can_be_given() -> None:
    """Contracts judge by it."""
    guard = Edictum(
        contracts=[
            precondition("*")(
                lambda call: (
                    Verdict.fail("no") if call.environment == "production" else Verdict.pass_()
                )
            )
        ]
    )
    assert guard.evaluate("t", {}).verdict == "deny"
    assert guard.evaluate("t", {}, environment="test").verdict == "allow"


def test_a_batch_is_evaluated_one_by_one() -> None:
    """From plain dicts, as a file has them."""
    guard = Edictum(
        contracts=[
            precondition("rm", id="no-rm")(
                lambda call: (
                    Verdict.pass_()
                    if call.principal and call.principal.org_id == "o"
                    else Verdict.fail("no")
                )
            )
        ]
    )
    results = guard.evaluate_batch(
        [
            {"tool": "ls"},
            {"tool": "rm", "args": {"path": "x"}},
            {"tool": "rm", "principal": {"org_id": "o", "claims": {"a": 1}}},
        ]
    )
    assert [result.verdict for result in results] == ["allow", "deny", "allow"]
    assert guard.evaluate_batch([]) == []


# --- from_multiple --------------------------------------------------------------------------------


def test_contracts_and_hooks_of_all_apply() -> None:
    """In the order of the guards."""
    hook = HookRegistration("before", "*", lambda call: HookDecision.allow())
    merged = Edictum.from_multiple(
        [Edictum(contracts=[passing("one")]), Edictum(contracts=[denying("two")], hooks=[hook])]
    )
    assert isinstance(merged.dispatch_sync("t", {}, lambda: 1), ToolDenied)
    event = merged.local_sink.last()
    assert [record["name"] for record in event.contracts_evaluated] == ["one", "two"]
    assert len(event.hooks_evaluated) == 1


def test_the_tighter_limits_apply() -> None:
    """In every respect."""
    first = OperationLimits(
        max_attempts=10, max_tool_calls=None, max_calls_per_tool={"a": 5, "b": 1}, max_failures=3
    )
    second = OperationLimits(
        max_attempts=20,
        max_tool_calls=7,
        max_calls_per_tool={"a": 2, "c": 4},
        max_successes_per_tool={"x": 1},
    )
    merged = Edictum.from_multiple([Edictum(limits=first), Edictum(limits=second)])
    assert merged.limits == OperationLimits(
        max_attempts=10,
        max_tool_calls=7,
        max_calls_per_tool={"a": 2, "b": 1, "c": 4},
        max_failures=3,
        max_successes_per_tool={"x": 1},
    )


def test_the_more_careful_description_of_a_tool_applies() -> None:
    """Worse side effect, shorter time, fewer retries."""
    seen: list[Any] = []
    look = precondition("*")(
        lambda call: seen.append((call.side_effect, call.idempotent)) or Verdict.pass_()
    )
    first = Edictum(
        contracts=[look],
        tools={
            "t": {"side_effect": "read", "idempotent": True},
            "only-first": {"side_effect": "pure"},
        },
    )
    second = Edictum(
        tools={"t": {"side_effect": "write", "idempotent": True, "retry_on_failure": False}}
    )
    merged = Edictum.from_multiple([first, second])
    outcome = merged.dispatch_sync("t", {}, lambda: 1 / 0)
    merged.dispatch_sync("only-first", {}, lambda: 1)
    assert seen == [(SideEffect.WRITE, True), (SideEffect.PURE, False)]
    assert isinstance(outcome, ToolFailure)
    assert outcome.retryable is False


def test_the_first_guards_success_check_and_options_apply() -> None:
    """As the seed says."""
    sink = RecordingSink()
    first = Edictum(
        success_check=lambda tool, result: False,
        environment="test",
        audit_sink=sink,
        policy_version="v1",
        principal=Principal(user_id="u"),
    )
    second = Edictum(
        success_check=lambda tool, result: True,
        environment="production",
        mode="observe",
        policy_version="v2",
    )
    merged = Edictum.from_multiple([first, second])
    assert isinstance(merged.dispatch_sync("t", {}, lambda: 1), ToolFailure)
    assert (merged.environment, merged.mode, merged.success_check) == (
        "test",
        "enforce",
        first.success_check,
    )
    assert sink.events[-1].principal["user_id"] == "u"
    assert first.local_sink.events == []
    assert isinstance(
        Edictum.from_multiple([second, first]).dispatch_sync("t", {}, lambda: 1),
        ToolExecutionResult,
    )


def test_a_contract_that_several_guards_share_is_asked_once_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The same object."""
    shared = passing("shared")
    with caplog.at_level(logging.WARNING, "edictum"):
        merged = Edictum.from_multiple([Edictum(contracts=[shared]), Edictum(contracts=[shared])])
    merged.dispatch_sync("t", {}, lambda: 1)
    assert [record["name"] for record in merged.local_sink.last().contracts_evaluated] == ["shared"]
    assert "'shared' is in several guards" in caplog.text


def test_different_contracts_of_one_name_are_all_kept_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Dropping one could allow what it denies."""
    with caplog.at_level(logging.WARNING, "edictum"):
        merged = Edictum.from_multiple(
            [Edictum(contracts=[passing("same")]), Edictum(contracts=[denying("same")])]
        )
    assert isinstance(merged.dispatch_sync("t", {}, lambda: 1), ToolDenied)
    assert "several contracts are called 'same'" in caplog.text


def test_merging_changes_none_of_the_guards() -> None:
    """They go on as they were, with counters and events of their own."""
    first, second = Edictum(contracts=[passing("one")]), Edictum(contracts=[denying("two")])
    merged = Edictum.from_multiple([first, second])
    merged.dispatch_sync("t", {}, lambda: 1)
    assert isinstance(first.dispatch_sync("t", {}, lambda: 1), ToolExecutionResult)
    assert len(first.local_sink.events) == 2
    assert merged.session_id != first.session_id


def test_one_guard_alone_can_be_merged() -> None:
    """And a guard that was merged can be merged again."""
    merged = Edictum.from_multiple([Edictum.from_multiple([Edictum(contracts=[denying("no")])])])
    assert isinstance(merged.dispatch_sync("t", {}, lambda: 1), ToolDenied)
