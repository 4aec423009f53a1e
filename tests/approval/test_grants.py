"""A yes for further calls: bound to session or principal, tool, policy, contract and arguments."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edictum import (
    Edictum,
    EdictumInputError,
    Principal,
    ScopedLimits,
    ToolDenied,
    ToolExecutionResult,
    Verdict,
    precondition,
)
from edictum.approval import ApprovalQueue, GrantTerms, open_approvals
from edictum.approval._sqlite_queue import SqliteApprovalStore
from edictum.approval.grants import matches
from support.bundles import make_asking_bundle
from support.effort import effort
from support.guards import approval_contract, count_calls, list_actions
from support.queues import answer_next, is_asked

EVE = Principal(user_id="eve")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'approvals.db'}"


def make_guard(backend: Any, *contracts: Any, **options: Any) -> Edictum:
    asking = [approval_contract("t", timeout=60), *contracts]
    return Edictum(contracts=asking, approval_backend=backend, principal=EVE, **options)


async def call(guard: Edictum, args: Any = None, **options: Any) -> Any:
    options = {"session_id": "s", **options}
    return await guard.dispatch("t", args or {}, lambda **args: "ran", **options)


async def call_with_grant(guard: Edictum, terms: GrantTerms, args: Any = None) -> None:
    running = asyncio.ensure_future(call(guard, args))
    await answer_next(guard.approvals, grant=terms)
    assert isinstance(await running, ToolExecutionResult)


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


# --- Use ------------------------------------------------------------------------------------------


async def test_further_calls_of_the_session_are_not_asked_about(url: str) -> None:
    """The audit says which grant covered them, and whose it is."""
    guard = make_guard(url)
    await call_with_grant(guard, GrantTerms())
    (grant,) = await guard.approvals.grants()
    granted = guard.local_sink.filter("call_approval_granted")[0]
    assert granted.reason == f"It gives the grant {grant.grant_id} for further calls."
    assert isinstance(await call(guard), ToolExecutionResult)
    assert list_actions(guard)[-2:] == ["call_grant_used", "call_executed"]
    used = guard.local_sink.filter("call_grant_used")[0]
    assert (used.approval_id, used.approver) == (grant.grant_id, "ann")
    assert list_actions(guard).count("call_approval_requested") == 1
    assert count_calls(guard, "s") == (2, 2, 0, 0)


async def test_the_other_contracts_judge_a_covered_call(url: str) -> None:
    """A grant is a yes to one question, not to the call."""

    @precondition("t")
    def small(call: Any) -> Verdict:
        return Verdict.pass_() if call.args["x"] < 10 else Verdict.fail("too large")

    guard = make_guard(url, small)
    await call_with_grant(guard, GrantTerms(other_args="any"), {"x": 1})
    assert isinstance(await call(guard, {"x": 2}), ToolExecutionResult)
    outcome = await call(guard, {"x": 11})
    assert outcome.details == "too large"


@pytest.mark.parametrize("terms", [GrantTerms(), GrantTerms(args={"cc": "nobody"})])
async def test_a_grant_is_not_for_another_default(url: str, terms: GrantTerms) -> None:
    """An argument that a call leaves out is that of the code which runs."""
    guard = make_guard(url)

    def send(guard: Edictum, default: str) -> Any:
        return guard.dispatch("t", {}, lambda cc=default: cc, session_id="s")

    running = asyncio.ensure_future(send(guard, "nobody"))
    assert (await answer_next(guard.approvals, grant=terms)).tool_args == {"cc": "nobody"}
    await running
    assert not await is_asked(guard.approvals, send(guard, "nobody"))
    assert await is_asked(guard.approvals, send(guard, "all"))


async def test_another_contract_s_question_is_asked(url: str) -> None:
    """Alone, and together with the one that the grant answers."""

    @precondition("t", effect="approve", timeout=60)
    def large(call: Any) -> Verdict:
        return Verdict.fail("large?") if call.args["x"] >= 10 else Verdict.pass_()

    guard = make_guard(url, large)
    await call_with_grant(guard, GrantTerms(other_args="any"), {"x": 1})
    assert await is_asked(guard.approvals, call(guard, {"x": 10}))
    assert not await is_asked(guard.approvals, call(guard, {"x": 2}))


async def test_contracts_of_one_name_are_told_apart(url: str) -> None:
    """Their ids are the same, their questions are not."""

    @precondition("t", id="ask", effect="approve", timeout=60)
    def large(call: Any) -> Verdict:
        return Verdict.fail("large?") if call.args["x"] >= 10 else Verdict.pass_()

    @precondition("t", id="ask", effect="approve", timeout=60)
    def small(call: Any) -> Verdict:
        return Verdict.fail("small?") if call.args["x"] < 10 else Verdict.pass_()

    guard = Edictum(contracts=[large, small], approval_backend=url, principal=EVE)
    await call_with_grant(guard, GrantTerms(other_args="any"), {"x": 1})
    assert await is_asked(guard.approvals, call(guard, {"x": 10}))
    assert not await is_asked(guard.approvals, call(guard, {"x": 2}))


async def test_a_grant_waives_the_limit_that_asked(url: str) -> None:
    """And no other bound of the same contract."""
    limits = ScopedLimits(
        id="few", max_tool_calls=1, max_calls_per_tool={"t": 3}, effect="approve", timeout=60
    )
    guard = Edictum(limits=[limits], approval_backend=url, principal=EVE)
    assert isinstance(await call(guard), ToolExecutionResult)
    await call_with_grant(guard, GrantTerms())
    assert isinstance(await call(guard), ToolExecutionResult)
    assert await is_asked(guard.approvals, call(guard))


async def test_a_revoked_grant_stops_a_call_that_has_claimed_it(url: str) -> None:
    """Between claim and start; the tool does not run."""
    person, ran = open_approvals(url), list[int]()

    class RevokedBeforeUse(ApprovalQueue):
        async def use(self, approval_id: str) -> bool:
            for grant in await person.grants():
                await person.revoke_grant(grant.grant_id, approver="bob")
            return await super().use(approval_id)

    await call_with_grant(make_guard(url), GrantTerms())
    guard = make_guard(RevokedBeforeUse(SqliteApprovalStore(url.removeprefix("sqlite:///"))))
    outcome = await guard.dispatch("t", {}, lambda: ran.append(1), session_id="s")
    assert isinstance(outcome, ToolDenied)
    assert (ran, list_actions(guard)) == ([], ["call_grant_used", "call_approval_void"])
    assert count_calls(guard, "s") == (0, 0, 0, 0)
    assert await is_asked(guard.approvals, call(guard))


async def test_a_grant_counts_until_its_time(url: str) -> None:
    """By the clock of the store, and not in the call that starts then."""
    now = [datetime.now(UTC).timestamp()]
    path = url.removeprefix("sqlite:///")
    queue = ApprovalQueue(SqliteApprovalStore(path, clock=lambda: now[0]))
    guard = make_guard(queue)
    await call_with_grant(guard, GrantTerms(until=in_an_hour()))
    now[0] += 3_000
    assert not await is_asked(guard.approvals, call(guard))
    now[0] += 1_000
    assert await is_asked(guard.approvals, call(guard))
    assert await queue.grants() == []


async def test_a_grant_that_expires_between_claim_and_start_stops_the_call(url: str) -> None:
    """The time is looked at once more before the tool."""
    now = [datetime.now(UTC).timestamp()]

    class Slow(ApprovalQueue):
        async def use(self, approval_id: str) -> bool:
            now[0] += step
            return await super().use(approval_id)

    step = 0
    path = url.removeprefix("sqlite:///")
    guard = make_guard(Slow(SqliteApprovalStore(path, clock=lambda: now[0])))
    await call_with_grant(guard, GrantTerms(until=in_an_hour()))
    step = 4_000
    assert isinstance(await call(guard), ToolDenied)
    assert list_actions(guard)[-1] == "call_approval_void"


async def test_a_session_grant_that_says_no_time_counts_for_a_day(url: str) -> None:
    """No grant counts for ever."""
    now = [1_000.0]
    path = url.removeprefix("sqlite:///")
    guard = make_guard(ApprovalQueue(SqliteApprovalStore(path, clock=lambda: now[0])))
    await call_with_grant(guard, GrantTerms())
    now[0] += 86_399
    assert not await is_asked(guard.approvals, call(guard))
    now[0] += 1
    assert await is_asked(guard.approvals, call(guard))


async def test_a_pending_call_that_is_made_again_finds_the_grant(url: str) -> None:
    """Its process was gone before the grant was given."""

    class Killed(ApprovalQueue):
        async def wait_for_decision(self, approval_id: str, timeout: float | None = None) -> Any:
            raise ConnectionError("killed")

        async def withdraw(self, approval_id: str) -> None:
            return None

    store = SqliteApprovalStore(url.removeprefix("sqlite:///"))
    await call(make_guard(Killed(store, lease_s=0.001)), {"x": 1}, call_id="c-1")
    guard = make_guard(url)
    (left,) = await guard.approvals.pending()
    running = asyncio.ensure_future(call(guard, {"x": 2}))
    pending = [left]
    while len(pending) < 2:
        pending = await guard.approvals.pending()
        await asyncio.sleep(0)
    second = pending[-1].approval_id
    grant = GrantTerms(other_args="any")
    await guard.approvals.answer(second, True, approver="ann", grant=grant)
    assert isinstance(await running, ToolExecutionResult)
    assert isinstance(await call(guard, {"x": 1}, call_id="c-1"), ToolExecutionResult)
    found = await guard.approvals.get(left.approval_id)
    assert found is not None
    (given_grant,) = await guard.approvals.grants()
    assert (found.status, found.grant_id) == ("done", given_grant.grant_id)


# --- Bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ({"scope": "everyone"}, "scope is 'everyone'"),
        ({"other_args": "some"}, "other_args is 'some'"),
        ({"args": ["x"]}, "args is not a mapping"),
        ({"args": {1: "x"}}, "args is not a mapping"),
        ({"args": {"x": {"at_most": "9"}}}, "bounds are not numbers"),
        ({"args": {"x": [{"at_least": True}]}}, "bounds are not numbers"),
        ({"until": datetime(2040, 1, 1)}, "a datetime with a time zone"),  # noqa: DTZ001 - that is the point
        ({"until": 5}, "a datetime with a time zone"),
        ({"scope": "principal"}, "until when"),
    ],
)
def test_terms_that_cannot_be_meant(terms: dict[str, Any], problem: str) -> None:
    """A mistake is found before the store is asked."""
    with pytest.raises(EdictumInputError, match=problem):
        GrantTerms(**terms)


async def test_answers_that_cannot_have_a_grant(url: str) -> None:
    """The question stays pending."""
    guard = make_guard(url)
    running = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1, principal=None))
    wrong: list[tuple[Any, str]] = [
        ({"grant": "session"}, "grant is str"),
        ({"grant": GrantTerms(), "args": {}}, "args and grant cannot be combined"),
        ({"grant": GrantTerms(scope="principal", until=in_an_hour())}, "its principal"),
    ]
    for said, problem in wrong:
        with pytest.raises(EdictumInputError, match=problem):
            await answer_next(guard.approvals, **said)
    with pytest.raises(EdictumInputError, match="need approved=True"):
        await answer_next(guard.approvals, False, grant=GrantTerms())
    await answer_next(guard.approvals)
    assert isinstance(await running, ToolExecutionResult)


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        (
            "/srv/*",
            ["/srv/", "/srv/a/b"],
            ["/srv", "/etc/srv/", "/srv/../etc", "/srv/a\nb", 1, None],
        ),
        ("git log *", ["git log -1"], ["git log", "git log; ls", "git log $(ls)", "git log `ls`"]),
        ("*.txt", ["a.txt"], ["a.txt.sh", "..", "../a.txt", "a\\..\\b.txt"]),
        ("a*b*c", ["abc", "axbxc", "abbc"], ["ac", "acb", "ab", "abcx"]),
        ("a*a", ["aa", "aba"], ["a"]),
        ("x", ["x"], ["xx", "X", 1]),
        ({"at_most": 5}, [5, -1, 4.5], [6, "5", True, float("nan"), None]),
        ({"at_least": 1, "at_most": 2}, [1, 2], [0, 3]),
        (["a", {"at_most": 1}], ["a", 0], ["b", 2]),
        (5, [5], [5.0, "5", True]),
        ({"k": 1}, [{"k": 1}], [{"k": 2}, {}, {"k": 1, "l": 2}]),
        ({}, [{}], [{"a": 1}, [], None]),
    ],
)
def test_patterns(pattern: Any, fits: list[Any], fails: list[Any]) -> None:
    """What fits, and what looks as if it did."""
    assert [matches(pattern, value) for value in fits] == [True] * len(fits)
    assert [matches(pattern, value) for value in fails] == [False] * len(fails)


@given(pattern=st.text(alphabet="ab*", max_size=6), text=st.text(alphabet="ab", max_size=8))
def test_a_text_fits_as_a_plain_model_says(pattern: str, text: str) -> None:
    """A matcher that tries everything says the same."""

    def fit(pattern: str, text: str) -> bool:
        if not pattern or not text:
            return set(pattern) <= {"*"} and not text
        if pattern[0] == "*":
            return fit(pattern[1:], text) or fit(pattern, text[1:])
        return pattern[0] == text[0] and fit(pattern[1:], text[1:])

    assert matches(pattern, text) == fit(pattern, text)


# --- Which call a grant is for --------------------------------------------------------------------

CALLS = st.fixed_dictionaries(
    {
        "tool": st.sampled_from(["t", "u"]),
        "args": st.fixed_dictionaries(
            {"x": st.sampled_from([1, 2, 3, True, "1"])},
            optional={"y": st.sampled_from(["a", "b"])},
        ),
        "principal": st.sampled_from(
            [Principal(user_id="u"), Principal(user_id="v"), Principal(user_id="u", role="sre")]
        ),
        "message": st.sampled_from(["sure?", "very sure?"]),
        "session_id": st.sampled_from(["s-1", "s-2"]),
        "default": st.sampled_from(["a", "b"]),  # of y
    }
)
PATTERNS = st.dictionaries(
    st.sampled_from(["x", "y"]), st.sampled_from([{"at_most": 2}, "*", "a", [1, "1"]]), max_size=2
)
SCOPES: Any = st.sampled_from(["session", "principal"])
OTHERS: Any = st.sampled_from(["same", "any"])
_comments = itertools.count()


def covers(asked: dict[str, Any], made: dict[str, Any], terms: GrantTerms) -> bool:
    """Say by plain comparisons whether a grant that was given for a call is for another one."""
    bound = ["tool", "principal", "message"]
    bound += ["session_id"] if terms.scope == "session" else []
    if any(asked[name] != made[name] for name in bound):
        return False
    allowed: dict[str, Any] = {
        "x": {"{'at_most': 2}": [1, 2], "*": ["1"], "a": [], "[1, '1']": [1, "1"]},
        "y": {"{'at_most': 2}": [], "*": ["a", "b"], "a": ["a"], "[1, '1']": []},
    }
    asked_args, made_args = ({"y": one["default"], **one["args"]} for one in (asked, made))
    for name, pattern in terms.args.items():
        fitting = [repr(value) for value in allowed[name][str(pattern)]]
        if repr(made_args[name]) not in fitting:
            return False
    if terms.other_args == "any":
        return True
    others = [
        sorted(repr(item) for item in args.items() if item[0] not in terms.args)
        for args in (asked_args, made_args)
    ]
    return others[0] == others[1]


async def make_call(url: str, described: dict[str, Any], grant: GrantTerms | None) -> bool:
    """Make a call, say yes with the grant if a person is asked, and return whether one was."""
    bundle = make_asking_bundle(described["message"], "t", "u", comment=next(_comments))
    async with Edictum.from_yaml_string(bundle, approval_backend=url) as guard:
        options = {name: described[name] for name in ("principal", "session_id")}
        tool, args, default = (described[name] for name in ("tool", "args", "default"))
        calling = guard.dispatch(tool, args, lambda x, y=default: "ran", **options)
        if grant is None:
            return await is_asked(guard.approvals, calling)
        running = asyncio.ensure_future(calling)
        await answer_next(guard.approvals, grant=grant)
        assert isinstance(await running, ToolExecutionResult)
        return True


@pytest.mark.soak
@settings(max_examples=effort(25, 1_000), deadline=None)
@given(
    asked=CALLS,
    changes=st.sets(
        st.sampled_from(["tool", "args", "principal", "message", "session_id", "default"]),
        max_size=2,
    ),
    made=CALLS,
    scope=SCOPES,
    args=PATTERNS,
    other_args=OTHERS,
)
def test_a_grant_is_never_used_for_another_call(
    tmp_path_factory: pytest.TempPathFactory,
    asked: dict[str, Any],
    changes: set[str],
    made: dict[str, Any],
    scope: Any,
    args: dict[str, Any],
    other_args: Any,
) -> None:
    """Not for another tool, other arguments or other defaults of those that were left out, another
    principal, another policy or another session, and always for those it was given for; a comment
    in the bundle changes nothing.
    """
    made = {name: (made if name in changes else asked)[name] for name in asked}
    terms = GrantTerms(scope=scope, args=args, other_args=other_args, until=in_an_hour())
    url = f"sqlite:///{tmp_path_factory.mktemp('queue') / 'approvals.db'}"

    async def main() -> bool:
        await make_call(url, asked, terms)
        return await make_call(url, made, None)

    assert asyncio.run(main()) == (not covers(asked, made, terms))
