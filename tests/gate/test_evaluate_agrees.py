"""``evaluate`` with a session says what ``run`` then does: for all kinds of limits, with windows,
budgets, parents, and calls in flight.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edictum import Edictum, OperationLimits, ToolDenied, Verdict, session_contract
from edictum.core.limits import Grant
from edictum.execution.portal import PORTAL
from edictum.sessions import MemoryLedger
from edictum.sessions._remote_ledger import RemoteLedger
from edictum.sessions._sqlite import SqliteStore
from support.effort import effort

SMALL = st.integers(1, 4)
SESSION_LIMITS = (
    "max_attempts",
    "max_tool_calls",
    "max_successes",
    "max_failures",
    "max_consecutive_failures",
)
BOUNDS = st.one_of(
    st.tuples(st.sampled_from(SESSION_LIMITS), SMALL),
    st.tuples(
        st.sampled_from(["max_calls_per_tool", "max_successes_per_tool"]),
        st.dictionaries(st.sampled_from(["a", "[ab]"]), SMALL, min_size=1),
    ),
    st.tuples(st.just("max_cost"), st.sampled_from([0.5, 1.0])),
)
CONTRACTS = st.lists(
    st.tuples(
        BOUNDS, st.sampled_from([None, "5s", "10s"]), st.sampled_from(["enforce", "observe"])
    ),
    max_size=4,
)
PYTHON = st.builds(
    OperationLimits, st.none() | SMALL, st.none() | SMALL, max_cost=st.sampled_from([None, 0.7])
)
# A pause, the tool, how the call ends ("held": it is still running when the next one comes), its
# cost, and whether it has a parent.
STEPS = st.tuples(
    st.sampled_from([0.0, 0.0, 3.0, 7.0]),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["good", "good", "bad", "held"]),
    st.sampled_from([None, None, 0.0, 0.3]),
    st.booleans(),
)


def bundle(contracts: list[Any], attempts: int) -> str:
    """One session contract for each limit, and a condition on the session's own counter of
    attempts.
    """
    made: list[dict[str, Any]] = [
        {
            "id": f"s{number}",
            "type": "session",
            "mode": mode,
            "limits": {name: value, **({"per": per} if per else {})},
            "then": {"effect": "deny", "message": "full"},
        }
        for number, ((name, value), per, mode) in enumerate(contracts)
    ]
    made.append(
        {
            "id": "asked",
            "type": "pre",
            "tool": "b",
            "when": {"session.attempts": {"gt": attempts}},
            "then": {"effect": "deny", "message": "asked"},
        }
    )
    return json.dumps(
        {
            "apiVersion": "edictum/v1",
            "kind": "ContractBundle",
            "metadata": {"name": "p"},
            "contracts": made,
        }
    )


def memory(clock: Callable[[], float], _: Path) -> Any:
    return MemoryLedger(clock=clock)


def sqlite(clock: Callable[[], float], directory: Path) -> Any:
    return RemoteLedger(SqliteStore(directory / "s.db", clock=clock))


def answer(end: str) -> str:
    if end == "bad":
        raise RuntimeError("boom")
    return end


@pytest.mark.soak
@pytest.mark.parametrize(
    ("make", "examples"), [(memory, effort(100, soak=2_000)), (sqlite, effort(15, soak=200))]
)
def test_evaluate_says_what_run_then_does(make: Callable[..., Any], examples: int) -> None:
    """And looking changes no counter."""
    seen: set[bool] = set()

    @settings(max_examples=examples, deadline=None)
    @given(CONTRACTS, st.none() | PYTHON, st.integers(3, 9), st.lists(STEPS, max_size=12))
    def agrees(
        contracts: list[Any], limits: OperationLimits | None, attempts: int, steps: list[Any]
    ) -> None:
        with TemporaryDirectory() as directory:
            now = [1_000.0]
            guard = Edictum.from_yaml_string(
                bundle(contracts, attempts),
                limits=limits,
                backend=make(lambda: now[0], Path(directory)),
                environment="test",
            )
            for pause, tool, end, cost, has_parent in steps:
                now[0] += pause
                stated = {
                    **({"amounts": {"cost": cost}} if cost is not None else {}),
                    **({"parent_session_id": "root"} if has_parent else {}),
                }
                before = guard.session("s").snapshot()
                said = guard.evaluate(tool, {"end": end}, session_id="s", **stated)
                assert counted(guard.session("s").snapshot()) == counted(before)
                denied = carried_out(guard, tool, end, stated)
                assert (said.verdict == "deny") is denied, said
                seen.add(denied)
            PORTAL.run(guard.close())

    agrees()
    assert seen == {True, False}


def counted(snapshot: Any) -> Any:
    return snapshot.totals.attempts, snapshot.totals.executions, snapshot.totals.in_flight


def carried_out(guard: Edictum, tool: str, end: str, stated: dict[str, Any]) -> bool:
    """Make the call, or start it and leave it running; whether it was denied."""
    if end != "held":
        return isinstance(
            guard.dispatch_sync(tool, {"end": end}, answer, session_id="s", **stated), ToolDenied
        )
    ticket = guard.begin_sync(tool, {"end": end}, session_id="s", **stated)
    return ticket.denied is not None


class Broken(MemoryLedger):
    """A ledger that cannot be asked."""

    def reserve(self, reservation: Any) -> Grant:
        raise ConnectionError("no answer")


def test_a_ledger_that_cannot_be_asked_denies_in_both() -> None:
    """With the same reason."""
    guard = Edictum(backend=Broken())
    said = guard.evaluate("t", {}, session_id="s")
    assert (said.verdict, said.policy_error) == ("deny", True)
    assert said.deny_reasons == ["The session ledger could not be asked: no answer"]
    assert guard.evaluate("t", {}).verdict == "deny"  # the guard's own session counts too
    assert isinstance(guard.dispatch_sync("t", {}, lambda: 1, session_id="s"), ToolDenied)
    assert "no answer" in str(guard.explain("t", {}, session_id="s"))


def test_an_evaluation_may_state_metadata_amounts_and_parents() -> None:
    """As a call may."""
    text = """
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: p}
contracts:
  - {id: late, type: pre, tool: t, when: {metadata.hour: {gt: 20}}, then: {effect: deny, message: too late}}
"""
    guard = Edictum.from_yaml_string(text, limits=OperationLimits(max_cost=1.0, max_tool_calls=1))
    assert guard.evaluate("t", {}, metadata={"hour": 22}).deny_reasons == ["too late"]
    assert guard.evaluate("t", {}, metadata={"hour": 9}).verdict == "allow"
    assert guard.evaluate("t", {}, amounts={"cost": 0.9}).verdict == "allow"
    assert guard.evaluate("t", {}, amounts={"cost": 1.1}).verdict == "deny"
    guard.dispatch_sync("t", {}, lambda: 1, session_id="root")
    assert guard.evaluate("t", {}, session_id="child").verdict == "allow"
    assert guard.evaluate("t", {}, session_id="child", parent_session_id="root").verdict == "deny"
    batch = guard.evaluate_batch(
        [
            {"tool": "t", "metadata": {"hour": 22}},
            {"tool": "t", "amounts": {"cost": 2}},
            {"tool": "t"},
        ]
    )
    assert [result.verdict for result in batch] == ["deny", "deny", "allow"]


def test_an_output_of_none_is_an_output() -> None:
    """Postconditions are asked about it; without an output they are not."""
    text = """
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: p}
contracts:
  - {id: something, type: post, tool: t, when: {result.rows: {exists: false}}, then: {effect: warn, message: nothing came}}
"""
    guard = Edictum.from_yaml_string(text)
    assert guard.evaluate("t", {}).verdict == "allow"
    assert guard.evaluate("t", {}, output=None).warn_reasons == ["nothing came"]
    assert guard.evaluate("t", {}, output={"rows": []}).verdict == "allow"
    batch = guard.evaluate_batch([{"tool": "t"}, {"tool": "t", "output": None}])
    assert [result.verdict for result in batch] == ["allow", "warn"]
    assert "does not hold" not in str(guard.explain("t", {}, output=None))
    assert guard.explain("t", {}).contracts == ()


@session_contract
def twice(session: Any) -> Verdict:
    """Allow two calls."""
    return Verdict.fail("twice") if session.executions >= 2 else Verdict.pass_()


@pytest.mark.parametrize(
    "options",
    [{"contracts": [twice]}, {"limits": OperationLimits(max_tool_calls=2)}],
    ids=["contract", "limit"],
)
def test_without_a_session_id_the_session_is_the_guards_own_as_in_run(
    options: dict[str, Any],
) -> None:
    """A rule that reads the session is asked, and explained, in every dry run."""
    guard = Edictum(**options)
    for _ in range(2):
        assert guard.evaluate("t", {}).verdict == "allow"
        guard.run_sync("t", {}, lambda: 1)
    assert guard.evaluate("t", {}).verdict == "deny"
    assert str(guard.explain("t", {})).startswith("t: deny")
    assert isinstance(guard.dispatch_sync("t", {}, lambda: 1), ToolDenied)
    assert guard.evaluate("t", {}, session_id="another").verdict == "allow"
    assert guard.session().executions == 2
