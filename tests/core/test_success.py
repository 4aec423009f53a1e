"""Success detection: the seed's heuristic and recipes, ready-made checkers, combinators, and
checkers that misbehave.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edictum import (
    Edictum,
    EdictumConfigError,
    EdictumToolError,
    OperationLimits,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
)
from edictum.success import (
    Checker,
    all_of,
    any_of,
    default_success_check,
    exit_code,
    http_status,
    mcp_error,
    no_traceback,
    non_empty,
    not_none,
    ok_flag,
    per_tool,
)
from support.recipes import db_success_check, http_success_check, unified_success_check

# --- The default heuristic, exactly as the seed states it -----------------------------------------

HEURISTIC: list[tuple[Any, bool]] = [
    (None, True),
    ({"is_error": True}, False),
    ({"is_error": 1}, False),
    ({"is_error": "yes"}, False),
    ({"is_error": False}, True),
    ({"is_error": None}, True),
    ({"is_error": 0}, True),
    ({}, True),
    ({"error": "boom"}, True),
    ({"status": 500}, True),
    ({"ok": False}, True),
    ("Error: boom", False),
    ("fatal: not a git repository", False),
    ("Error:", False),
    ("fatal:", False),
    ("Error boom", True),
    ("error: boom", True),
    ("Fatal: boom", True),
    (" Error: boom", True),
    ("all good, no Error: here", True),
    ("Traceback (most recent call last)", True),
    ("", True),
    (b"Error: boom", True),
    (["Error: boom"], True),
    (0, True),
    (False, True),
    (SimpleNamespace(is_error=True), True),
]


@pytest.mark.parametrize(("result", "success"), HEURISTIC)
async def test_the_default_heuristic(result: Any, success: bool) -> None:
    """None succeeds; a dict with ``is_error`` truthy and text that starts with "Error:" or "fatal:"
    fail; all else succeeds.
    """
    assert default_success_check("t", result) is success
    guard = Edictum()
    if success:
        assert await guard.run("t", {}, lambda: result) is result
    else:
        with pytest.raises(EdictumToolError) as raised:
            await guard.run("t", {}, lambda: result)
        assert raised.value.outcome.success_source == "default"
    assert guard.local_sink.last().tool_success is success


@given(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.binary(),
        st.lists(st.text()),
        st.text(),
    )
)
def test_everything_but_the_two_patterns_is_a_success(result: Any) -> None:
    """There is no third pattern."""
    expected = not (isinstance(result, str) and (result[:6] == "Error:" or result[:6] == "fatal:"))
    assert default_success_check("t", result) is expected


def test_dispatch_adds_the_seeds_error_key() -> None:
    """In the vocabulary of outcomes ``{"error": ...}`` is a failure; ``run`` keeps to the
    heuristic.
    """
    guard = Edictum()
    outcome = guard.dispatch_sync("t", {}, lambda: {"error": "no such table"})
    assert isinstance(outcome, ToolFailure)
    assert (outcome.error, outcome.success_source, outcome.success_reason) == (
        "no such table",
        "framework",
        "error is 'no such table'",
    )
    assert guard.run_sync("t", {}, lambda: {"error": "no such table"}) == {"error": "no such table"}
    assert isinstance(guard.dispatch_sync("t", {}, lambda: {"error": None}), ToolExecutionResult)


# --- The seed's three recipes ---------------------------------------------------------------------

RECIPES: list[tuple[Any, Any, str, Any, bool]] = [
    (http_success_check, http_status, "fetch", {"status": 500, "error": "..."}, False),
    (http_success_check, http_status, "fetch", {"status": 200}, True),
    (http_success_check, http_status, "fetch", {}, True),
    (db_success_check, per_tool({"query_users": non_empty}), "query_users", {"rows": []}, False),
    (db_success_check, per_tool({"query_users": non_empty}), "query_users", {"rows": [1]}, True),
    (db_success_check, per_tool({"query_users": non_empty}), "query_orders", {"rows": []}, True),
    (unified_success_check, all_of(not_none, ok_flag, no_traceback), "t", None, False),
    (
        unified_success_check,
        all_of(not_none, ok_flag, no_traceback),
        "t",
        {"ok": False, "message": "no"},
        False,
    ),
    (
        unified_success_check,
        all_of(not_none, ok_flag, no_traceback),
        "t",
        "Traceback (most recent call last):",
        False,
    ),
    (unified_success_check, all_of(not_none, ok_flag, no_traceback), "t", {"ok": True}, True),
    (
        unified_success_check,
        all_of(not_none, ok_flag, no_traceback),
        "t",
        "Error: but the recipe does not mind",
        True,
    ),
]


@pytest.mark.parametrize(("recipe", "ready_made", "tool", "result", "success"), RECIPES)
def test_the_recipes_and_their_ready_made_twins_agree(
    recipe: Any, ready_made: Any, tool: str, result: Any, success: bool
) -> None:
    """Each recipe runs as printed, and a ready-made checker gives the same answer."""
    for check in (recipe, ready_made):
        guard = Edictum(success_check=check)
        outcome = guard.dispatch_sync(tool, {}, lambda: result)
        assert isinstance(outcome, ToolExecutionResult if success else ToolFailure), check
        assert guard.local_sink.last().success_source == "success_check"


def test_the_seeds_lambda_runs() -> None:
    """The first example of the document."""
    check = lambda tool_name, result: (  # noqa: E731  # as it is published
        not (isinstance(result, dict) and result.get("status", 200) >= 400)
    )
    guard = Edictum(success_check=check)
    assert isinstance(guard.dispatch_sync("t", {}, lambda: {"status": 404}), ToolFailure)
    assert isinstance(guard.dispatch_sync("t", {}, lambda: {"status": 200}), ToolExecutionResult)


def test_right_counts_make_session_limits_fire_at_the_right_time() -> None:
    """ "Max 3 successful executions": misjudged failures use it up too early, a custom check does
    not.
    """
    answers = [
        {"status": 500},
        {"status": 500},
        {"status": 200},
        {"status": 200},
        {"status": 200},
        {"status": 200},
    ]

    def executed(guard: Edictum) -> int:
        return sum(
            not isinstance(guard.dispatch_sync("fetch", {}, lambda a=answer: a), ToolDenied)
            for answer in answers
        )

    limits = OperationLimits(max_successes=3)
    assert executed(Edictum(limits=limits)) == 3
    assert executed(Edictum(limits=limits, success_check=http_success_check)) == 5


# --- A custom check replaces everything -----------------------------------------------------------


def test_a_custom_check_replaces_the_heuristic_and_the_frameworks_flag() -> None:
    """Also where they would say "failed"."""
    guard = Edictum(success_check=lambda tool, result: True)
    for result in ("Error: boom", {"is_error": True}, {"error": "boom"}):
        assert isinstance(guard.dispatch_sync("t", {}, lambda r=result: r), ToolExecutionResult)


async def test_a_custom_check_is_not_asked_when_the_tool_raised_or_ran_out_of_time() -> None:
    """There is no result to judge; both have failed, whoever is asked."""
    asked: list[Any] = []
    guard = Edictum(success_check=lambda tool, result: asked.append(result) or True)

    def explode() -> None:
        raise ValueError("boom")

    assert isinstance(await guard.dispatch("t", {}, explode), ToolFailure)
    await guard.dispatch("t", {}, asyncio.Event().wait, timeout_s=0.01)
    assert asked == []


async def test_a_check_gets_the_tools_name_and_its_raw_value() -> None:
    """Before anything turned it into text."""
    seen: list[Any] = []
    value = object()
    guard = Edictum(success_check=lambda tool, result: seen.append((tool, result)) or True)
    await guard.run("lookup", {}, lambda: value)
    assert seen == [("lookup", value)]


@pytest.mark.parametrize("answer", [True, False])
async def test_a_check_may_be_asynchronous(answer: bool) -> None:
    """In every driving."""

    async def check(tool: str, result: Any) -> bool:
        await asyncio.sleep(0)
        return answer

    guard = Edictum(success_check=check)
    wanted = ToolExecutionResult if answer else ToolFailure
    assert isinstance(await guard.dispatch("t", {}, lambda: 1), wanted)
    assert isinstance(guard.dispatch_sync("t", {}, lambda: 1), wanted)
    assert guard.local_sink.last().success_reason == (None if answer else "check returned False")


@pytest.mark.parametrize("truthy", [1, "yes", [0]])
def test_any_value_with_a_truth_will_do(truthy: Any) -> None:
    """Checkers are written by people."""
    assert isinstance(
        Edictum(success_check=lambda tool, result: truthy).dispatch_sync("t", {}, lambda: 1),
        ToolExecutionResult,
    )
    assert isinstance(
        Edictum(success_check=lambda tool, result: 0).dispatch_sync("t", {}, lambda: 1), ToolFailure
    )


# --- Checkers that misbehave ----------------------------------------------------------------------


class NoTruth:
    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


def raising(tool: str, result: Any) -> bool:
    raise LookupError("no such status")


async def raising_async(tool: str, result: Any) -> bool:
    raise LookupError("no such status")


def exhausted(tool: str, result: Any) -> bool:
    return next(iter([]))


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (raising, "no such status"),
        (raising_async, "no such status"),
        (exhausted, "StopIteration"),
        (lambda tool, result: None, "it returned None; return True or False"),
        (lambda tool, result: NoTruth(), "ambiguous"),
        (all_of(raising), "no such status"),
        (any_of(lambda tool, result: None), "it returned None"),
        (Checker(lambda tool, result: 5), "the problem it found is int"),  # type: ignore[arg-type, return-value]
    ],
    ids=[
        "raises",
        "raises later",
        "StopIteration",
        "None",
        "no truth",
        "combined raises",
        "combined None",
        "no text",
    ],
)
async def test_a_checker_that_gives_no_answer_makes_the_call_a_failure(
    check: Any, said: str
) -> None:
    """With ``policy_error`` and a clear reason; the result stays in the audit."""
    guard = Edictum(success_check=check)
    outcome = await guard.dispatch("t", {}, lambda: {"rows": 41})
    assert isinstance(outcome, ToolFailure)
    assert outcome.policy_error
    assert outcome.value == {"rows": 41}
    event = guard.local_sink.last()
    assert (event.action, event.policy_error, event.tool_success, event.success_source) == (
        "call_failed",
        True,
        False,
        "success_check",
    )
    assert said in event.success_reason
    assert "41" in event.result_summary
    assert guard.session().failures == 1


def test_an_asynchronous_check_hidden_in_a_combination_is_a_mistake_not_a_success() -> None:
    """A coroutine is truthy; taking it for an answer would let every failure pass."""

    class Check:
        async def __call__(self, tool: str, result: Any) -> bool:
            return False

    for check in (all_of(Check()), any_of(Check()), per_tool({"t": Check()})):
        outcome = Edictum(success_check=check).dispatch_sync("t", {}, lambda: 1)
        assert isinstance(outcome, ToolFailure)
        assert outcome.policy_error


async def test_a_cancelled_check_still_leaves_the_call_counted_and_audited() -> None:
    """The tool has run; whoever cancels while its result is judged changes nothing about that."""
    waiting = asyncio.Event()

    async def check(tool: str, result: Any) -> bool:
        waiting.set()
        await asyncio.Event().wait()
        return True

    guard = Edictum(success_check=check)
    task = asyncio.ensure_future(guard.run("t", {}, lambda: 1))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (guard.session().executions, guard.session().failures, guard.session().in_flight) == (
        1,
        1,
        0,
    )
    assert [event.action for event in guard.local_sink.events] == ["call_allowed", "call_failed"]


def test_a_check_that_exits_still_leaves_the_call_counted() -> None:
    """``sys.exit()`` in a checker is a fault of the checker."""

    def check(tool: str, result: Any) -> bool:
        raise SystemExit(1)

    guard = Edictum(success_check=check)
    outcome = guard.dispatch_sync("t", {}, lambda: 1)
    assert isinstance(outcome, ToolFailure)
    assert (guard.session().executions, guard.session().in_flight) == (1, 0)


# --- Ready-made checkers --------------------------------------------------------------------------

READY_MADE: list[tuple[Checker, Any, str | None]] = [
    (http_status, {"status": 399}, None),
    (http_status, {"status": 400}, "status is 400"),
    (http_status, {"status_code": 503}, "status_code is 503"),
    (http_status, {"statusCode": "404"}, "statusCode is 404"),
    (http_status, SimpleNamespace(status_code=500), "status_code is 500"),
    (http_status, {"status": "done"}, None),
    (http_status, {"status": True}, None),
    (http_status, {"status": None}, None),
    (http_status, "status 500", None),
    (http_status, None, None),
    (ok_flag, {"ok": False}, "ok is false"),
    (ok_flag, {"success": False}, "success is false"),
    (ok_flag, SimpleNamespace(ok=False), "ok is false"),
    (ok_flag, {"ok": True, "success": False}, "success is false"),
    (ok_flag, {"ok": None}, None),
    (ok_flag, {"ok": 0}, None),
    (ok_flag, {}, None),
    (no_traceback, "Traceback (most recent call last):\n", "the text contains a traceback"),
    (no_traceback, "fine", None),
    (no_traceback, {"text": "Traceback"}, None),
    (not_none, None, "the result is None"),
    (not_none, 0, None),
    (non_empty, None, "the result is empty"),
    (non_empty, "", "the result is empty"),
    (non_empty, [], "the result is empty"),
    (non_empty, {}, "the result is empty"),
    (non_empty, {"rows": []}, "rows is empty"),
    (non_empty, {"results": None}, "results is empty"),
    (non_empty, {"rows": [1]}, None),
    (non_empty, {"other": []}, None),
    (non_empty, [0], None),
    (non_empty, 0, None),
    (exit_code, {"exit_code": 1}, "exit_code is 1"),
    (exit_code, {"returncode": "2"}, "returncode is 2"),
    (exit_code, SimpleNamespace(returncode=-9), "returncode is -9"),
    (exit_code, {"exit_code": 0}, None),
    (exit_code, {"exit_code": None}, None),
    (exit_code, {}, None),
    (mcp_error, {"isError": True}, "isError is true"),
    (mcp_error, {"is_error": True}, "is_error is true"),
    (mcp_error, SimpleNamespace(isError=True), "isError is true"),
    (mcp_error, {"isError": False}, None),
    (mcp_error, "isError", None),
]


@pytest.mark.parametrize(
    ("check", "result", "problem"), READY_MADE, ids=lambda value: str(value)[:40]
)
def test_a_ready_made_checker_says_yes_or_why_not(
    check: Checker, result: Any, problem: str | None
) -> None:
    """As a function it answers, and the guard's audit gets its reason."""
    assert check("t", result) is (problem is None)
    guard = Edictum(success_check=check)
    guard.dispatch_sync("t", {}, lambda: result)
    event = guard.local_sink.last()
    assert (event.tool_success, event.success_reason) == (problem is None, problem)


def test_a_checker_shows_its_name() -> None:
    """In error messages and logs."""
    assert repr(http_status) == "<success check http_status>"
    assert "400" in str(http_status.__doc__)
    assert Checker(lambda tool, result: None, "mine").__name__ == "mine"
    assert repr(all_of(http_status)) == "<success check all_of>"


# --- Combinators ----------------------------------------------------------------------------------


def test_all_of_gives_the_first_reason() -> None:
    """In the order in which the checks were given."""
    check = all_of(not_none, ok_flag, http_status)
    assert check.problem("t", {"ok": False, "status": 500}) == "ok is false"
    assert check.problem("t", {"status": 500}) == "status is 500"
    assert check.problem("t", {"status": 200}) is None


def test_any_of_gives_all_reasons_when_none_agrees() -> None:
    """One that agrees is enough."""
    check = any_of(ok_flag, http_status)
    assert check.problem("t", {"ok": False, "status": 500}) == "ok is false; status is 500"
    assert check.problem("t", {"ok": False, "status": 200}) is None


def test_plain_functions_can_be_combined() -> None:
    """A function can only say that it said no."""

    def strict(tool: str, result: Any) -> bool:
        return result == 1

    assert all_of(not_none, strict).problem("t", 2) == "strict returned False"
    assert all_of(not_none, strict)("t", 1)


def test_per_tool_prefers_exact_names_then_globs_in_order_then_the_default() -> None:
    """The most specific answer wins."""
    check = per_tool({"http_*": http_status, "http_head": not_none, "*_rows": non_empty})
    assert check.problem("http_get", {"status": 500}) == "status is 500"
    assert check.problem("http_head", {"status": 500}) is None
    assert check.problem("http_rows", {"rows": []}) is None
    assert check.problem("user_rows", {"rows": []}) == "rows is empty"
    assert check.problem("other", "Error: boom") == "default_success_check returned False"
    assert check.problem("other", {"status": 500}) is None
    assert (
        per_tool({"a": not_none}, default=ok_flag).problem("other", {"ok": False}) == "ok is false"
    )


def test_combinations_can_be_combined() -> None:
    """They are checkers themselves."""
    check = per_tool({"http_*": all_of(not_none, any_of(http_status, ok_flag))})
    assert check("http_get", {"ok": True, "status": 500})
    assert not check("http_get", None)


@pytest.mark.parametrize("combine", [all_of, any_of], ids=["all_of", "any_of"])
def test_a_combination_of_nothing_is_refused(combine: Any) -> None:
    """It would agree to everything, or to nothing."""
    with pytest.raises(
        EdictumConfigError, match=r"_of needs at least one check.*Write for example"
    ):
        combine()
    with pytest.raises(EdictumConfigError, match="per_tool needs at least one check"):
        per_tool({})


async def async_check(tool: str, result: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("bad", "said"), [(5, "5 is not a success check"), (async_check, "async_check is asynchronous")]
)
def test_what_cannot_be_combined_is_refused_when_it_is_combined(bad: Any, said: str) -> None:
    """Not when the first call fails."""
    for combine in (
        all_of,
        any_of,
        lambda check: per_tool({"t": check}),
        lambda check: per_tool({"t": not_none}, default=check),
    ):
        with pytest.raises(EdictumConfigError, match=said):
            combine(bad)


# --- Why it counted as a failure ------------------------------------------------------------------


def explode() -> None:
    raise ValueError("boom")


@pytest.mark.parametrize(
    ("options", "fn", "source", "reason"),
    [
        ({}, lambda: "Error: x", "default", "the text starts with 'Error:' or 'fatal:'"),
        ({}, lambda: {"is_error": True}, "default", "is_error is set"),
        ({}, lambda: {"error": "x"}, "framework", "error is 'x'"),
        ({}, explode, "exception", "ValueError: boom"),
        ({"success_check": http_status}, lambda: {"status": 500}, "success_check", "status is 500"),
        (
            {"success_check": http_success_check},
            lambda: {"status": 500},
            "success_check",
            "http_success_check returned False",
        ),
        ({}, lambda: 1, "default", None),
        ({"success_check": http_status}, lambda: 1, "success_check", None),
    ],
)
def test_the_closing_event_says_who_judged_and_why(
    options: Any, fn: Any, source: str, reason: str | None
) -> None:
    """``success_source`` and ``success_reason``."""
    guard = Edictum(**options)
    guard.dispatch_sync("t", {}, fn)
    event = guard.local_sink.last()
    assert (event.success_source, event.success_reason) == (source, reason)


async def test_a_timeout_says_so() -> None:
    """As a reason like the others."""
    guard = Edictum()
    await guard.dispatch("t", {}, asyncio.Event().wait, timeout_s=0.01)
    event = guard.local_sink.last()
    assert (event.success_source, event.success_reason) == (
        "timeout",
        "The tool did not end by its deadline.",
    )
