"""Who may approve: what a contract says is kept by the queue, and nothing else may answer."""

from __future__ import annotations

import asyncio
import io
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edictum import (
    Edictum,
    EdictumConfigError,
    EdictumInputError,
    InMemoryApprovalBackend,
    LocalApprovalBackend,
    Principal,
    ScopedLimits,
    ToolDenied,
    ToolExecutionResult,
    Verdict,
    precondition,
)
from edictum.approval import ApprovalQueue, Approvers
from edictum.approval._rows import RequestRow
from edictum.approval._sqlite_queue import SqliteApprovalStore
from edictum.approval._steps import Answering, Asking, take_step
from edictum.approval.approvers import read_person
from support.guards import approval_contract, count_calls
from support.queues import answer_next, next_request

ANN = Principal(user_id="ann", role="ops")
BOB = Principal(user_id="bob", role="ops")
EVE = Principal(user_id="eve", role="ops")  # who requests
BUNDLE = """
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: deploys}
defaults: {mode: enforce}
contracts:
  - id: four-eyes
    type: pre
    tool: deploy
    then:
      effect: approve
      message: Deploy?
      timeout: 1m
      approvers: {roles: [ops], not: requester, count: 2, escalate: {after: 15m, to: [leads]}}
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'approvals.db'}"


def make_guard(backend: Any, **options: Any) -> Edictum:
    return Edictum.from_yaml_string(BUNDLE, approval_backend=backend, principal=EVE, **options)


def deploy(guard: Edictum) -> asyncio.Future[Any]:
    return asyncio.ensure_future(guard.dispatch("deploy", {}, lambda: "deployed"))


# --- Two approvers --------------------------------------------------------------------------------


async def test_two_persons_approve(url: str) -> None:
    """The requester's yes counts for nothing, the same person twice counts once."""
    guard = make_guard(url)
    running = deploy(guard)
    with pytest.raises(EdictumInputError, match="the requester may not answer"):
        await answer_next(guard.approvals, approver=EVE)
    for _ in range(3):
        answered = await answer_next(guard.approvals, approver=ANN)
        assert answered.status == "pending"
    await answer_next(guard.approvals, approver=BOB)
    assert isinstance(await running, ToolExecutionResult)
    assert guard.local_sink.filter("call_approval_granted")[0].approver == "ann, bob"


async def test_a_person_who_is_spelled_otherwise_is_the_same(url: str) -> None:
    """A login may write a name in other letters than the agent does."""
    guard = make_guard(url)
    running = deploy(guard)
    for name in ("EVE", " eve", "\uff45\uff56\uff45"):  # the last one in full width
        with pytest.raises(EdictumInputError, match="the requester may not answer"):
            await answer_next(guard.approvals, approver=Principal(user_id=name, role="ops"))
    for name in ("ann", "Ann"):
        person = Principal(user_id=name, role="ops")
        answered = await answer_next(guard.approvals, approver=person)
        assert (answered.status, len(answered.answers)) == ("pending", 1)
    await answer_next(guard.approvals, False, approver=BOB)
    assert isinstance(await running, ToolDenied)


async def test_a_plain_name_is_refused(url: str) -> None:
    """The error says what to pass; the question stays."""
    guard = make_guard(url)
    running = deploy(guard)
    with pytest.raises(EdictumInputError, match=r"'ann' is a plain name\. Pass the verified"):
        await answer_next(guard.approvals, approver="ann")
    await answer_next(guard.approvals, False, approver=ANN)
    outcome = await running
    assert isinstance(outcome, ToolDenied)
    assert guard.local_sink.last().action == "call_approval_denied"


async def test_another_role_is_refused_until_it_is_escalated(url: str) -> None:
    """The time is worked out when the answer comes; there is no timer."""
    now = [1_000.0]
    store = SqliteApprovalStore(url.removeprefix("sqlite:///"), clock=lambda: now[0])
    bundle = BUNDLE.replace("timeout: 1m", "timeout: 1h").replace("count: 2, ", "")
    guard = Edictum.from_yaml_string(bundle, approval_backend=ApprovalQueue(store), principal=EVE)
    running, lead = deploy(guard), Principal(user_id="lee", role="leads")
    with pytest.raises(EdictumInputError, match=r"roles ops \(from 00:31:40 UTC on leads too\)"):
        await answer_next(guard.approvals, approver=lead)
    now[0] += 899.0
    with pytest.raises(EdictumInputError, match="may not answer"):
        await answer_next(guard.approvals, approver=lead)
    now[0] += 1.0
    await answer_next(guard.approvals, approver=lead)
    assert isinstance(await running, ToolExecutionResult)


async def test_a_revocation_between_claim_and_start_stops_the_call(url: str) -> None:
    """Two have said yes, the call has taken that; one of them takes it back in time."""
    ran: list[int] = []
    person = ApprovalQueue(SqliteApprovalStore(url.removeprefix("sqlite:///")))

    class RevokedBeforeUse(ApprovalQueue):
        async def use(self, approval_id: str) -> bool:
            await person.revoke(approval_id, approver=BOB)
            return await super().use(approval_id)

    store = SqliteApprovalStore(url.removeprefix("sqlite:///"))
    guard = make_guard(RevokedBeforeUse(store))
    running = asyncio.ensure_future(guard.dispatch("deploy", {}, lambda: ran.append(1)))
    for approver in (ANN, BOB):
        await answer_next(person, approver=approver)
    outcome = await running
    assert isinstance(outcome, ToolDenied)
    assert (ran, guard.local_sink.last().action.value) == ([], "call_approval_void")
    assert count_calls(guard) == (0, 0, 0, 0)


async def test_a_call_without_a_principal_has_no_requester_to_exclude(url: str) -> None:
    """So it is not asked about at all."""
    guard = Edictum.from_yaml_string(BUNDLE, approval_backend=url)
    outcome = await deploy(guard)
    assert isinstance(outcome, ToolDenied)
    assert (outcome.reason, outcome.policy_error) == ("write_denied", False)
    assert outcome.details.startswith("Approval must not come from the requester, but the call")
    assert await guard.approvals.pending() == []


async def test_an_agent_may_not_approve_for_the_user_it_acts_for(url: str) -> None:
    """A principal is known by its user and by its service."""
    guard = make_guard(url)
    both = Principal(user_id="eve", service_id="agent-7")
    running = asyncio.ensure_future(guard.dispatch("deploy", {}, lambda: 1, principal=both))
    agent = Principal(service_id="agent-7", role="ops")
    with pytest.raises(EdictumInputError, match="the requester may not answer"):
        await answer_next(guard.approvals, approver=agent)
    await answer_next(guard.approvals, False, approver=ANN)
    await running


# --- Where it is said -----------------------------------------------------------------------------


async def test_a_limit_says_who_may_waive_it(url: str) -> None:
    """In Python and in a bundle."""
    limits = ScopedLimits(
        id="one", max_tool_calls=0, effect="approve", approvers=Approvers(roles=("ops",))
    )
    guard = Edictum(limits=[limits], approval_backend=url)
    running = deploy(guard)
    with pytest.raises(EdictumInputError, match="plain name"):
        await answer_next(guard.approvals)
    await answer_next(guard.approvals, approver=ANN)
    assert isinstance(await running, ToolExecutionResult)


LIMIT = """
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: deploys}
defaults: {mode: enforce}
contracts:
  - {id: none, type: session, limits: {max_tool_calls: 0},
     then: {effect: approve, message: One more?, approvers: {count: 1}}}
  - {id: inside, type: sandbox, tool: read, within: [/srv], outside: approve, message: Outside?,
     approvers: {not: requester}}
"""


async def test_a_bundle_says_it_for_limits_and_sandboxes(url: str) -> None:
    """Both ask at once, and both must be content."""
    guard = Edictum.from_yaml_string(LIMIT, approval_backend=url, principal=EVE)
    call = guard.dispatch("read", {"path": "/etc/hosts"}, lambda path: 1)
    running = asyncio.ensure_future(call)
    request = await next_request(guard.approvals)
    said = [(it["count"], it["not_requester"]) for it in request.approvers]
    assert said == [(1, True), (1, False)]
    await answer_next(guard.approvals, approver=ANN)
    assert isinstance(await running, ToolExecutionResult)


def test_who_may_approve_is_part_of_what_the_policy_says() -> None:
    """So that an answer under other terms does not count."""
    policies = [
        None,
        Approvers(roles=("ops",)),
        Approvers(roles=("ops", "leads")),
        Approvers(roles=("ops",), count=2),
        Approvers(roles=("ops",), not_requester=True),
        Approvers(roles=("ops",), escalate_after_s=1, escalate_to=("leads",)),
    ]
    contracts = [approval_contract("t", approvers=it) for it in policies]
    limits = [
        ScopedLimits(id="x", max_tool_calls=1, effect="approve", approvers=it) for it in policies
    ]
    for parts in ("contracts", contracts), ("limits", limits):
        digests = {Edictum(**{parts[0]: [it]}).policy_digest for it in parts[1]}  # type: ignore[arg-type]  # by name
        assert len(digests) == len(policies)
    bundles = [BUNDLE, BUNDLE.replace("count: 2", "count: 3"), BUNDLE.replace("15m", "16m")]
    assert len({Edictum.from_yaml_string(text).policy_digest for text in bundles}) == 3


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ({"roles": "ops"}, "roles is 'ops'"),
        ({"roles": [1]}, r"roles is \[1\]"),
        ({"count": 0}, "count is 0"),
        ({"count": True}, "count is True"),
        ({"not_requester": 1}, "not_requester is 1"),
        ({"roles": ["a"], "escalate_after_s": 0, "escalate_to": ["b"]}, "escalate_after_s is 0"),
        ({"roles": ["a"], "escalate_after_s": 1}, "belong together"),
        ({"escalate_after_s": 1, "escalate_to": ["b"]}, "has no effect without roles"),
    ],
)
def test_terms_that_cannot_be_meant(terms: dict[str, Any], problem: str) -> None:
    """A mistake is found when the terms are made."""
    with pytest.raises(EdictumConfigError, match=problem):
        Approvers(**terms)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"effect": "deny"}, "its effect is 'deny'"),
        ({"timeout_effect": "allow"}, "silence counts as a yes"),
        ({"approvers": {"roles": ["ops"]}}, "approvers is"),
    ],
)
def test_contracts_that_cannot_be_meant(options: dict[str, Any], problem: str) -> None:
    """Terms that could not be kept are refused when the contract is made."""
    given: dict[str, Any] = {"effect": "approve", "approvers": Approvers(count=2), **options}
    with pytest.raises(EdictumConfigError, match=problem):
        precondition("t", **given)(lambda call: Verdict.fail("?"))


@pytest.mark.parametrize("options", [{"effect": "deny"}, {"timeout_effect": "allow"}])
def test_limits_that_cannot_be_meant(options: dict[str, Any]) -> None:
    """They are refused when the limits are made."""
    given = {"effect": "approve", "approvers": Approvers(count=2), **options}
    with pytest.raises(EdictumConfigError, match="approvers have no effect here"):
        ScopedLimits(id="x", max_tool_calls=1, **given)
    with pytest.raises(EdictumConfigError, match="approvers is"):
        ScopedLimits(id="x", max_tool_calls=1, effect="approve", approvers="ops")  # type: ignore[arg-type]  # that is the point


# --- Backends that do not verify ------------------------------------------------------------------


@pytest.mark.parametrize(
    "backend", [InMemoryApprovalBackend(True), LocalApprovalBackend(stdin=io.StringIO("y\n"))]
)
async def test_a_backend_that_does_not_verify_cannot_approve(
    backend: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The call is denied, and loading the policy and ``check`` say so."""
    with caplog.at_level(logging.WARNING, "edictum"):
        guard = make_guard(backend)
    assert "does not verify who answers" in caplog.text
    outcome = await deploy(guard)
    assert isinstance(outcome, ToolDenied)
    assert outcome.policy_error
    assert f"{type(backend).__name__} does not verify who answers" in outcome.details
    health = await guard.check()
    assert not health.ok
    (part,) = [part for part in health.parts if not part.ok]
    assert (part.name, "does not verify" in part.message) == ("approvals", True)


async def test_a_backend_that_verifies_is_trusted() -> None:
    """It gets the terms, and is the one that keeps to them."""

    class Verifies(InMemoryApprovalBackend):
        verifies_approvers = True

    backend = Verifies(True)
    guard = make_guard(backend)
    assert isinstance(await deploy(guard), ToolExecutionResult)
    (terms,) = backend.requests[0].metadata["approvers"]
    assert (terms["roles"], terms["count"], terms["escalate_to"]) == (("ops",), 2, ("leads",))
    assert (await guard.check()).ok


async def test_other_contracts_are_asked_about_as_before() -> None:
    """Without approvers any backend will do."""
    guard = Edictum(contracts=[approval_contract()], approval_backend=InMemoryApprovalBackend(True))
    assert isinstance(await deploy(guard), ToolExecutionResult)
    assert (await guard.check()).ok


# --- Against a plain model ------------------------------------------------------------------------

ROLES = ("a", "b", "c")
PERSONS = st.builds(
    lambda name, roles: Principal(user_id=name, claims={"roles": sorted(roles)}),
    st.sampled_from(["ann", "bob", "cid", "dan"]),
    st.sets(st.sampled_from(ROLES), max_size=2),
)
TERMS = st.builds(
    lambda roles, count, excludes, after: Approvers(
        roles=sorted(roles),
        count=count,
        not_requester=excludes,
        **({"escalate_after_s": after, "escalate_to": ["c"]} if after and roles else {}),
    ),
    st.sets(st.sampled_from(["a", "b"]), max_size=2),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([None, 5]),
)


@given(
    terms=st.lists(TERMS, min_size=1, max_size=2),
    answers=st.lists(st.tuples(PERSONS, st.booleans(), st.integers(0, 4)), max_size=8),
)
def test_answers_count_as_a_plain_model_says(
    terms: list[Approvers], answers: list[tuple[Principal, bool, int]]
) -> None:
    """Approved once for each of the terms enough persons have said yes who could at the time."""
    asked = RequestRow(
        *("r", "s", "c", "d", "t", {}, "?", 1e6, "deny"),
        requester=["user:dan"],
        approvers=[it.as_dict() for it in terms],
    )
    ((row,), _) = take_step(Asking(asked, 1.0), [], 0.0)
    yeses: dict[str, tuple[set[str], float]] = {}
    expected, now = "pending", 0.0
    for number, (person, approved, later) in enumerate(answers):
        now += later
        step = Answering("r", f"k-{number}", approved, read_person(person), None)
        saved, _ = take_step(step, [row], now)
        (row,) = saved or (row,)
        roles = set(person.claims["roles"])

        def may_answer(it: Approvers, roles: set[str], at: float) -> bool:
            late = it.escalate_after_s is not None and at >= it.escalate_after_s
            wanted = {*it.roles, *(it.escalate_to if late else ())}
            return not it.roles or bool(wanted & roles)

        is_excluded = person.user_id == "dan" and any(it.not_requester for it in terms)
        may = any(may_answer(it, roles, now) for it in terms) and not is_excluded
        if expected == "pending" and may:
            if not approved:
                expected = "denied"
            else:
                yeses[str(person.user_id)] = (roles, now)
                is_enough = all(
                    sum(may_answer(it, *said) for said in yeses.values()) >= it.count
                    for it in terms
                )
                expected = "approved" if is_enough else "pending"
        assert row.status == expected
