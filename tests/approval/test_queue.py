"""Approvals in a store: asked by one process, answered by another, and used once."""

from __future__ import annotations

import asyncio
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from edictum import (
    BackendError,
    Edictum,
    EdictumConfigError,
    EdictumInputError,
    OperationLimits,
    Principal,
    ToolDenied,
    ToolExecutionResult,
)
from edictum.approval import ApprovalDecision, ApprovalQueue, open_approvals
from edictum.approval._sqlite_queue import SqliteApprovals, SqliteApprovalStore
from edictum.testing import ApprovalQueueConformance
from support.bundles import make_asking_bundle
from support.databases import open_sqlite
from support.guards import approval_contract, list_actions
from support.queues import answer_next, is_asked, next_request

LONG = 60.0
_numbers = itertools.count()


class TestSqlite(ApprovalQueueConformance):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.path = tmp_path / "approvals.db"

    def open_queue(self, lease_s: float = LONG) -> ApprovalQueue:
        return open_approvals(f"sqlite:///{self.path}?lease={lease_s}&wait={LONG}")


class TestValkey(ApprovalQueueConformance):
    @pytest.fixture(autouse=True)
    def _empty(self, valkey_url: str) -> None:
        self.url = valkey_url
        with redis.Redis.from_url(valkey_url) as client:
            client.flushdb()

    def open_queue(self, lease_s: float = LONG) -> ApprovalQueue:
        return open_approvals(f"{self.url}?lease={lease_s}&wait={LONG}")


class TestPostgres(ApprovalQueueConformance):
    @pytest.fixture(autouse=True)
    def _empty(self, postgres_url: str) -> None:
        self.url = f"{postgres_url}?schema=approvals_{next(_numbers)}"

    def open_queue(self, lease_s: float = LONG) -> ApprovalQueue:
        return open_approvals(f"{self.url}&lease={lease_s}&wait={LONG}")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'approvals.db'}"


def make_guard(url: str, **options: Any) -> Edictum:
    options.setdefault("contracts", [approval_contract(timeout=LONG)])
    return Edictum(**{"approval_backend": url, **options})


def open_store(url: str) -> SqliteApprovalStore:
    return SqliteApprovalStore(url.removeprefix("sqlite:///"))


# --- A guard --------------------------------------------------------------------------------------


async def test_a_yes_from_another_guard(url: str) -> None:
    """The call runs, the audit names the person, and the request is done."""
    guard, other = make_guard(url), make_guard(url)
    running = asyncio.ensure_future(guard.dispatch("t", {"x": 1}, lambda x: x))
    answered = await answer_next(other.approvals)
    assert isinstance(await running, ToolExecutionResult)
    assert list_actions(guard) == [
        "call_approval_requested",
        "call_approval_granted",
        "call_executed",
    ]
    assert guard.local_sink.events[1].approver == "ann"
    done = await other.approvals.get(answered.approval_id)
    assert done is not None
    assert done.status == "done"


async def test_a_no_with_a_reason(url: str) -> None:
    """The person's words reach the model."""
    guard = make_guard(url)
    running = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
    await answer_next(guard.approvals, False, reason="not on a Friday")
    outcome = await running
    assert isinstance(outcome, ToolDenied)
    assert (outcome.reason, outcome.details) == ("write_denied", "not on a Friday")
    assert list_actions(guard)[-1] == "call_approval_denied"


def test_a_synchronous_caller_waits_too(url: str) -> None:
    """Without an event loop of its own."""
    guard = make_guard(url, contracts=[approval_contract(timeout=0.2)])
    assert isinstance(guard.dispatch_sync("t", {}, lambda: 1), ToolDenied)
    assert list_actions(guard)[-1] == "call_approval_timeout"


async def test_a_request_that_ran_out_of_time_is_expired(url: str) -> None:
    """It is not listed any more, and says so."""
    guard = make_guard(url, contracts=[approval_contract(timeout=0.05)])
    assert isinstance(await guard.dispatch("t", {}, lambda: 1), ToolDenied)
    asked = guard.local_sink.events[0].approval_id
    found = await guard.approvals.get(str(asked))
    assert found is not None
    assert found.status == "timeout"
    assert await guard.approvals.pending() == []


async def test_silence_as_consent_still_runs(url: str) -> None:
    """There is no yes to use, and none is needed."""
    contract = approval_contract(timeout=0.05, timeout_effect="allow")
    guard = make_guard(url, contracts=[contract])
    assert isinstance(await guard.dispatch("t", {}, lambda: 1), ToolExecutionResult)


async def test_a_cancelled_caller_withdraws_its_request(url: str) -> None:
    """Nobody is asked for a call that is not waited for."""
    guard = make_guard(url)
    running = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
    request = await next_request(guard.approvals)
    async with asyncio.timeout(LONG):
        while "call_approval_requested" not in list_actions(guard):  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    found = await guard.approvals.get(request.approval_id)
    assert found is not None
    assert found.status == "withdrawn"
    assert list_actions(guard)[-1] == "call_approval_withdrawn"


async def test_a_caller_that_is_cancelled_while_it_asks(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its question does not stay, although the store has it and the caller does not know."""
    is_asking, is_cancelled = threading.Event(), threading.Event()

    class SlowApprovals(SqliteApprovals):
        def _run(self, db: Any, ops: Any, now: float) -> list[Any]:
            done = super()._run(db, ops, now)
            is_asking.set()
            is_cancelled.wait(LONG)
            return done

    class SlowStore(SqliteApprovalStore):
        def connect(self) -> Any:
            return SlowApprovals(self)

    queue = ApprovalQueue(SlowStore(url.removeprefix("sqlite:///")), wait_s=LONG)
    guard = make_guard(url, approval_backend=queue)
    running = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
    await asyncio.to_thread(is_asking.wait, LONG)
    running.cancel()
    await asyncio.sleep(0)
    is_cancelled.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await queue.pending() == []
    assert guard.local_sink.events[-1].reason == "The caller was cancelled."
    assert "policy error" not in caplog.text
    with open_sqlite(url.removeprefix("sqlite:///")) as db:
        assert db.execute("SELECT status FROM approval").fetchall() == [("withdrawn",)]


async def test_a_revoked_yes_does_not_start_the_tool(url: str) -> None:
    """Not even when the call has taken it and has its slot: the slot is given back."""
    ran: list[int] = []
    queue = open_approvals(url)

    class RevokedBeforeUse(ApprovalQueue):
        async def use(self, approval_id: str) -> bool:
            await queue.revoke(approval_id, approver="bob", reason="wait")
            return await super().use(approval_id)

    guard = make_guard(url, approval_backend=RevokedBeforeUse(open_store(url)))
    running = asyncio.ensure_future(guard.dispatch("t", {}, lambda: ran.append(1)))
    await answer_next(queue)
    outcome = await running
    assert isinstance(outcome, ToolDenied)
    assert "revoked" in outcome.details
    assert (ran, list_actions(guard)[-1]) == ([], "call_approval_void")
    totals = guard.session().snapshot().totals
    assert (totals.executions, totals.in_flight) == (0, 0)


async def test_a_yes_stays_when_a_limit_refuses_the_call(url: str) -> None:
    """It was not used: an equal call of the session has it, without a second question."""
    policy: dict[str, Any] = {
        "contracts": [approval_contract("t", timeout=LONG)],
        "limits": OperationLimits(max_tool_calls=1),
    }
    guard = make_guard(url, **policy)
    running = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1, session_id="s"))
    request = await next_request(guard.approvals)
    assert isinstance(
        await guard.dispatch("free", {}, lambda: 1, session_id="s"), ToolExecutionResult
    )
    await guard.approvals.answer(request.approval_id, True, approver="ann")
    assert isinstance(await running, ToolDenied)
    left = await guard.approvals.get(request.approval_id)
    assert left is not None
    assert left.status == "approved"
    counts_elsewhere = make_guard(url, **policy)
    again = await counts_elsewhere.dispatch("t", {}, lambda: 1, session_id="s")
    assert isinstance(again, ToolExecutionResult)


async def test_a_tool_that_fails_has_used_the_yes(url: str) -> None:
    """The next call asks again."""
    guard = make_guard(url)

    def fail() -> None:
        raise ValueError("broken")

    running = asyncio.ensure_future(guard.dispatch("t", {}, fail))
    first = await answer_next(guard.approvals)
    await running
    again = asyncio.ensure_future(guard.dispatch("t", {}, fail))
    second = await answer_next(guard.approvals, False)
    await again
    assert first.approval_id != second.approval_id


async def test_a_store_that_is_gone_denies_the_call(url: str, tmp_path: Path) -> None:
    """The denial says which store."""
    guard = make_guard(url)
    running = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
    await next_request(guard.approvals)
    (tmp_path / "approvals.db").unlink()
    running.cancel()
    await asyncio.wait([running])
    outcome = await guard.dispatch("t", {}, lambda: 1)
    assert isinstance(outcome, ToolDenied)
    assert outcome.policy_error
    assert "approval store" in outcome.details
    with pytest.raises(BackendError, match="approval store"):
        await guard.approvals.pending()


async def test_secrets_are_not_stored(url: str, tmp_path: Path) -> None:
    """A person who reads the queue, or the file, does not get them."""
    guard = make_guard(url)
    running = asyncio.ensure_future(
        guard.dispatch("t", {"password": "hunter2-and-more"}, lambda password: 1)
    )
    await answer_next(guard.approvals)
    assert isinstance(await running, ToolExecutionResult)
    await guard.close()
    files = [path.read_bytes() for path in tmp_path.iterdir()]
    assert not any(b"hunter2-and-more" in content for content in files)


# --- Which call a yes is for ----------------------------------------------------------------------

POLICIES = ["are you sure?", "are you very sure?"]
CALLS = st.tuples(
    st.sampled_from([{"x": 1}, {"x": 2}, {"x": "1"}]),
    st.sampled_from([None, Principal(user_id="u"), Principal(user_id="u", role="sre")]),
    st.sampled_from(POLICIES),
    st.sampled_from(["s-1", "s-2"]),
    st.sampled_from([1, 2, True]),
)


class Killed(ApprovalQueue):
    """Asks, and is gone: it neither waits nor withdraws."""

    async def wait_for_decision(
        self, approval_id: str, timeout: float | None = None
    ) -> ApprovalDecision:
        raise ConnectionError("killed")

    async def withdraw(self, approval_id: str) -> None:
        return None


async def ask_about(described: Any, backend: Any, call_id: str) -> bool:
    """Make a call, and return whether a person is asked about it; then the answer is no."""
    args, principal, message, session_id, default = described
    bundle = make_asking_bundle(message, "t", comment=next(_numbers))
    async with Edictum.from_yaml_string(bundle, approval_backend=backend) as guard:
        options = {"principal": principal, "session_id": session_id, "call_id": call_id}
        calling = guard.dispatch("t", args, lambda x, y=default: "ran", **options)
        if isinstance(backend, Killed):
            return isinstance(await calling, ToolDenied)
        return await is_asked(guard.approvals, calling)


@settings(max_examples=25, deadline=None)
@given(asked=CALLS, made=CALLS)
def test_a_yes_is_for_one_call(
    tmp_path_factory: pytest.TempPathFactory, asked: Any, made: Any
) -> None:
    """Never for other arguments, another default of one that was left out, another principal,
    another policy or another session; a comment in the bundle changes nothing.
    """
    url = f"sqlite:///{tmp_path_factory.mktemp('queue') / 'approvals.db'}"

    async def main() -> bool:
        queue = Killed(open_store(url), lease_s=0.001)
        assert await ask_about(asked, queue, "c-1")
        person = open_approvals(url)
        await answer_next(person)
        was_asked = await ask_about(made, url, "c-2")
        await person.close()
        return was_asked

    assert asyncio.run(main()) == (repr(asked) != repr(made))  # 1 == True


# --- Opening --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sessions_first", [True, False])
async def test_sessions_and_approvals_share_a_file(url: str, sessions_first: bool) -> None:
    """Whichever comes first."""
    if not sessions_first:
        await open_approvals(url).close()
    guard = make_guard(url, backend=url)
    running = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
    await answer_next(guard.approvals)
    assert isinstance(await running, ToolExecutionResult)
    assert guard.session().snapshot().totals.executions == 1
    await guard.close()


def test_a_bundle_names_the_store(url: str) -> None:
    """A store in Python beats it, and where it is does not change what the policy says."""
    bundle = make_asking_bundle("sure?", "t", approvals={"store": url})
    named = Edictum.from_yaml_string(bundle)
    assert named.approvals.name == url
    plain = Edictum.from_yaml_string(make_asking_bundle("sure?", "t"))
    assert named.policy_digest == plain.policy_digest
    other = Edictum.from_yaml_string(bundle, approval_backend=f"{url}2")
    assert other.approvals.name == f"{url}2"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("ftp://x", "No approval store for 'ftp'"),
        ("sqlite:", "does not name a file"),
        ("sqlite:///a.db?colour=red", "The store sqlite:///a.db has no option colour"),
        ("sqlite:///a.db?lease=soon", "lease is 'soon'"),
        ("redis://h:99999/0", "has a host or port that cannot be read"),
        ("redis://h/0?protocol=x", "cannot be used"),
        ("postgresql://a@b@c/d", "has two '@'"),
        ("postgresql://h/d?sslrootcert=/gone", "which is not there"),
    ],
)
def test_a_url_that_names_no_store(given: str, problem: str) -> None:
    """It is refused when the guard is made, and not as one of sessions."""
    with pytest.raises(EdictumConfigError, match=problem) as refused:
        make_guard(given)
    assert "session" not in str(refused.value).partition("Write")[0]


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    """Nothing is written into it."""
    with open_sqlite(tmp_path / "other.db") as db:
        db.execute("CREATE TABLE theirs (x)")
    with pytest.raises(EdictumConfigError, match="belongs to another program"):
        open_approvals(f"sqlite:///{tmp_path / 'other.db'}")


def test_a_guard_without_a_queue_says_so() -> None:
    """And what to do."""
    with pytest.raises(EdictumConfigError, match="has no approval queue"):
        _ = Edictum().approvals


async def test_wrong_answers_are_refused(url: str) -> None:
    """Before the store is asked."""
    queue = open_approvals(url)
    with pytest.raises(EdictumInputError, match="approver does not name a person"):
        await queue.answer("a", True, approver="")
    with pytest.raises(EdictumInputError, match="approved is a bool"):
        await queue.answer("a", 1, approver="ann")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(EdictumInputError, match="limit is 0"):
        await queue.pending(limit=0)


async def test_requests_are_forgotten(tmp_path: Path) -> None:
    """After their time to live, when a process opens the store."""
    url = f"sqlite:///{tmp_path / 'approvals.db'}?ttl=1ms"
    queue = open_approvals(url)
    request = await queue.request_approval("t", {}, "?", timeout=0.001)
    await queue.close()
    await asyncio.sleep(0.05)
    assert await open_approvals(url).get(request.approval_id) is None
