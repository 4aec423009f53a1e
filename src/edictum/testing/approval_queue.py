"""ApprovalQueueConformance: what every store of an approval queue must do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from edictum.approval.grants import GrantTerms
from edictum.approval.port import ApprovalDecision, ApprovalRequest, ApprovalStatus
from edictum.core.approvers import Approvers
from edictum.core.call import Principal
from edictum.core.freeze import EMPTY
from edictum.errors import EdictumInputError
from edictum.testing.approval import ARGS, LATER, SOON, ApprovalConformance, _in_loop

AT_ONCE = 0.001  # a lease that is over when the next question is asked
WAITERS = 200
ANN, BOB = Principal(user_id="ann", role="ops"), Principal(user_id="bob", role="ops")
EVE = Principal(user_id="eve", role="sales", claims={"roles": ["leads"]})


def _restrict(**terms: Any) -> dict[str, Any]:
    """Return metadata of a call of eve that only some may approve."""
    terms = {"roles": ["ops"], **terms}
    return {"approvers": [Approvers(**terms).as_dict()], "requester": ["user:eve"]}


def _bind(
    session: str = "s-1", principal: str = "eve", askers: tuple[str, ...] = ("ask",)
) -> dict[str, Any]:
    """Return metadata by which grants are bound, as a guard makes digests of them."""
    bindings = {"session": f"{session} of {principal}", "principal": f"all of {principal}"}
    return {"bindings": bindings, "askers": list(askers)}


class ApprovalQueueConformance(ApprovalConformance):
    """Subclass it, say how a queue is opened, and run it as tests.

    ``open_queue`` opens the same store each time within a test, and an empty one for each test.
    """

    def open_queue(self, lease_s: float = LATER) -> Any:
        """Return a queue on the store of this test, as a process of its own would open it."""
        raise NotImplementedError

    def make_backend(self) -> Any:
        return self.open_queue()

    async def answer(self, backend: Any, request: ApprovalRequest, approved: bool) -> None:
        await backend.answer(request.approval_id, approved, approver="ann")

    @staticmethod
    async def _ask_for(
        queue: Any,
        call_id: str | None = "c-1",
        digest: str = "d-1",
        session_id: str = "s-1",
        more: Mapping[str, Any] = EMPTY,
        **options: Any,
    ) -> ApprovalRequest:
        metadata = {"digest": digest, "call_id": call_id, "contract": "ask", **more}
        asked: dict[str, Any] = {
            "tool_name": "delete",
            "tool_args": ARGS,
            "message": "Really?",
            "session_id": session_id,
            "metadata": metadata,
        }
        request: ApprovalRequest = await queue.request_approval(**{**asked, **options})
        return request

    @staticmethod
    async def _wait(queue: Any, request: ApprovalRequest, timeout: float) -> ApprovalDecision:
        decision: ApprovalDecision = await queue.wait_for_decision(
            approval_id=request.approval_id, timeout=timeout
        )
        return decision

    async def _ask_and_claim(self, queue: Any, call_id: str = "c-1") -> ApprovalRequest:
        """Ask, say yes, and take the yes, as a call does before it starts."""
        request = await self._ask_for(queue, call_id)
        await queue.answer(request.approval_id, True, approver="ann")
        assert (await self._wait(queue, request, LATER)).approved
        return request

    async def _expect_rejection(self, answering: Any) -> None:
        try:
            await answering
        except EdictumInputError:
            return
        raise AssertionError("an answer that cannot count was taken")

    # --- Listing ----------------------------------------------------------------------------------

    @_in_loop
    async def test_another_process_lists_what_is_pending(self) -> None:
        """Fail if a person cannot see what is asked, or sees something else."""
        request = await self._ask_for(self.open_queue(), principal={"user_id": "u"})
        (listed,) = await self.open_queue().pending()
        assert (listed.approval_id, listed.status) == (request.approval_id, "pending")
        assert (listed.tool_name, listed.tool_args, listed.message) == ("delete", ARGS, "Really?")
        assert (listed.session_id, listed.call_id, listed.contract) == ("s-1", "c-1", "ask")
        assert (listed.principal, listed.digest) == ({"user_id": "u"}, "d-1")

    @_in_loop
    async def test_pending_requests_have_filters_and_pages(self) -> None:
        """Fail if a page repeats or leaves out a request."""
        queue, asked = self.open_queue(), []
        for number in range(5):
            tool = "odd" if number % 2 else "even"
            request = await self._ask_for(queue, f"c-{number}", tool_name=tool)
            asked.append(request.approval_id)
        await self._ask_for(queue, "c-9", session_id="s-2", tool_name="odd")
        pages, after = [], None
        while page := await queue.pending(session_id="s-1", limit=2, after=after):
            pages += [it.approval_id for it in page]
            after = pages[-1]
        assert pages == asked
        odd = await queue.pending(tool_name="odd")
        assert [it.call_id for it in odd] == ["c-1", "c-3", "c-9"]

    @_in_loop
    async def test_only_what_waits_for_an_answer_is_pending(self) -> None:
        queue = self.open_queue()
        answered, withdrawn = [await self._ask_for(queue, call_id) for call_id in ("c-1", "c-2")]
        await self._ask_for(queue, "c-3", timeout=AT_ONCE)
        await queue.answer(answered.approval_id, False, approver="ann")
        await queue.withdraw(withdrawn.approval_id)
        await asyncio.sleep(SOON)
        assert await queue.pending() == []

    @_in_loop
    async def test_arguments_may_be_of_any_kind(self) -> None:
        """Fail if a call cannot be asked about because of what its arguments are."""
        args = {"text": 'a"\x00\ud800ü', "number": float("inf"), "raw": b"\xff", "set": {1}}
        queue = self.open_queue()
        await self._ask_for(queue, tool_args=args)
        (listed,) = await queue.pending()
        assert set(listed.tool_args) == set(args)

    # --- Answers ----------------------------------------------------------------------------------

    @_in_loop
    async def test_an_answer_from_another_process_reaches_the_call(self) -> None:
        queue = self.open_queue()
        request = await self._ask_for(queue)
        waiting = await self._start_waiting(queue, request)
        await self.open_queue().answer(request.approval_id, False, approver="ann", reason="no")
        decision = await waiting
        told = (decision.status, decision.approver, decision.reason, decision.digest)
        assert told == (ApprovalStatus.DENIED, "ann", "no", "d-1")

    @_in_loop
    async def test_the_first_answer_counts(self) -> None:
        queue = self.open_queue()
        request = await self._ask_for(queue)
        await queue.answer(request.approval_id, False, approver="ann")
        await self._expect_rejection(queue.answer(request.approval_id, True, approver="bob"))
        assert not (await self._wait(queue, request, LATER)).approved

    @_in_loop
    async def test_only_a_pending_request_takes_an_answer(self) -> None:
        queue = self.open_queue()
        late = await self._ask_for(queue, "c-1", timeout=AT_ONCE)
        given_up = await self._ask_for(queue, "c-2")
        await queue.withdraw(given_up.approval_id)
        unanswered = await self._ask_for(queue, "c-3")
        assert (await self._wait(queue, unanswered, SOON)).status == ApprovalStatus.TIMEOUT
        for request in (late, given_up, unanswered):
            await self._expect_rejection(queue.answer(request.approval_id, True, approver="ann"))
        await self._expect_rejection(queue.answer("unknown", True, approver="ann"))
        assert await queue.get("unknown") is None

    @_in_loop
    async def test_many_calls_wait_without_a_thread_each(self) -> None:
        queue = self.open_queue()
        requests = [await self._ask_for(queue, f"c-{number}") for number in range(WAITERS)]
        before = threading.active_count()
        waiting = [asyncio.ensure_future(self._wait(queue, it, LATER)) for it in requests]
        await asyncio.sleep(SOON)
        assert threading.active_count() <= before + 3
        other = self.open_queue()
        for request in requests:
            await other.answer(request.approval_id, True, approver="ann")
        assert all(decision.approved for decision in await asyncio.gather(*waiting))

    # --- The same question ------------------------------------------------------------------------

    @_in_loop
    async def test_the_same_call_asks_the_same_question(self) -> None:
        """Fail if a restart loses a question, or the answer that came meanwhile."""
        first = await self._ask_for(self.open_queue())
        other = self.open_queue()
        again = await self._ask_for(other)
        assert again.approval_id == first.approval_id
        await other.answer(first.approval_id, True, approver="ann")
        resumed = self.open_queue()
        third = await self._ask_for(resumed)
        assert third.approval_id == first.approval_id
        assert (await self._wait(resumed, third, LATER)).approved

    @_in_loop
    async def test_an_equal_call_asks_the_same_question_once_the_asker_is_gone(self) -> None:
        first = await self._ask_for(self.open_queue(AT_ONCE), "c-1")
        await asyncio.sleep(SOON)
        assert (await self._ask_for(self.open_queue(), "c-2")).approval_id == first.approval_id

    @_in_loop
    async def test_two_live_equal_calls_are_two_questions(self) -> None:
        """Fail if one answer can be taken for two calls."""
        queue = self.open_queue()
        ids = {(await self._ask_for(queue, call_id)).approval_id for call_id in ("c-1", "c-2")}
        assert len(ids) == 2

    @_in_loop
    async def test_a_process_that_waits_stays_alive_longer_than_its_lease(self) -> None:
        queue = self.open_queue(lease_s=1.0)
        waiting = await self._start_waiting(queue, await self._ask_for(queue, "c-1"))
        await asyncio.sleep(1.5)
        second = await self._ask_for(self.open_queue(), "c-2")
        assert second.approval_id not in {it.approval_id for it in await queue.pending(limit=1)}
        waiting.cancel()
        await asyncio.wait([waiting])

    @_in_loop
    async def test_another_call_never_finds_the_answer(self) -> None:
        """Fail if a yes is given to other arguments, or in another session."""
        queue = self.open_queue(AT_ONCE)
        request = await self._ask_for(queue)
        await queue.answer(request.approval_id, True, approver="ann")
        await asyncio.sleep(SOON)
        other_call = await self._ask_for(queue, digest="d-2")
        other_session = await self._ask_for(queue, session_id="s-2")
        unbound = [await self._ask_for(queue, digest="", call_id=None) for _ in range(2)]
        asked = [request, other_call, other_session, *unbound]
        assert len({it.approval_id for it in asked}) == 5
        for it in asked[1:]:
            assert (await self._wait(queue, it, AT_ONCE)).status == ApprovalStatus.TIMEOUT

    # --- Calls that do not wait -------------------------------------------------------------------

    @_in_loop
    async def test_a_question_can_be_left_and_asked_again(self) -> None:
        """Fail if a call that was parked does not find its question, or another call does."""
        queue, more = self.open_queue(), {"call_digest": "what"}
        first = await self._ask_for(queue, more=more)
        assert await queue.take(first.approval_id) is None
        await queue.park(first.approval_id)
        other = await self._ask_for(self.open_queue(), "c-2", more=more)
        assert other.approval_id != first.approval_id
        later = self.open_queue()
        again = await self._ask_for(later, more=more)
        assert (again.approval_id, again.parks) == (first.approval_id, 1)
        await self.open_queue().answer(first.approval_id, True, approver="ann")
        taken = await later.take(first.approval_id)
        assert taken is not None
        assert taken.approved
        assert await later.use(first.approval_id) is True

    @_in_loop
    async def test_the_question_about_a_call_can_be_looked_up(self) -> None:
        """Fail if a no is not found, even under another policy, or is found for another call."""
        queue = self.open_queue()
        request = await self._ask_for(queue, more={"call_digest": "what"})
        await queue.answer(request.approval_id, False, approver="ann")
        later = self.open_queue()
        found = await later.find("s-1", "c-1", "what")
        assert found is not None
        assert (found.approval_id, found.status) == (request.approval_id, "denied")
        for other in (("s-2", "c-1", "what"), ("s-1", "c-2", "what"), ("s-1", "c-1", "else")):
            assert await later.find(*other) is None

    @_in_loop
    async def test_a_process_hears_of_answers_to_questions_of_others(self) -> None:
        """Fail if a paused run is not woken, or if waking it claims its answer."""
        queue = self.open_queue()
        asked = [await self._ask_for(queue, f"c-{number}") for number in range(3)]
        ids = [it.approval_id for it in asked]
        for approval_id in ids:
            await queue.park(approval_id)
        worker = self.open_queue()
        assert await worker.wait_for_answers(ids, timeout=SOON) == []
        for approval_id, approved in ((ids[1], True), (ids[0], False)):
            waiting = asyncio.ensure_future(worker.wait_for_answers(ids, timeout=LATER))
            await asyncio.sleep(SOON)
            assert not waiting.done()
            await self.open_queue().answer(approval_id, approved, approver="ann")
            assert await waiting == [approval_id]
            ids.remove(approval_id)
        assert await worker.wait_for_answers(["unknown", *ids], timeout=LATER) == ["unknown"]
        taken = await queue.take(asked[1].approval_id)
        assert taken is not None
        assert taken.approved

    @_in_loop
    async def test_a_process_hears_when_the_time_of_a_question_is_over(self) -> None:
        queue = self.open_queue()
        request = await self._ask_for(queue, timeout=5 * SOON)
        await queue.park(request.approval_id)
        ids = [request.approval_id]
        assert await self.open_queue().wait_for_answers(ids, timeout=LATER) == ids

    @_in_loop
    async def test_who_only_hears_of_answers_holds_no_question(self) -> None:
        """Fail if a question whose asker is gone is not handed over to the same call."""
        first = await self._ask_for(self.open_queue(AT_ONCE), "c-1")
        worker = self.open_queue(lease_s=1.0)
        await worker.wait_for_answers([first.approval_id], timeout=1.5)
        assert (await self._ask_for(self.open_queue(), "c-2")).approval_id == first.approval_id

    # --- Used once --------------------------------------------------------------------------------

    @_in_loop
    async def test_a_yes_is_used_once(self) -> None:
        """Fail if two processes that make the same call both start it."""
        queues = [self.open_queue(), self.open_queue()]
        requests = [await self._ask_for(queue) for queue in queues]
        await queues[0].answer(requests[0].approval_id, True, approver="ann")
        first = await self._wait(queues[0], requests[0], LATER)
        assert first.approved
        second = asyncio.ensure_future(self._wait(queues[1], requests[1], LATER))
        assert await queues[0].use(requests[0].approval_id) is True
        assert await queues[0].use(requests[0].approval_id) is False
        assert (await second).status == ApprovalStatus.VOID
        assert await queues[1].use(requests[1].approval_id) is False

    @_in_loop
    async def test_a_yes_that_was_not_used_is_there_for_the_same_call(self) -> None:
        """Fail if a kill between the answer and the start of the tool loses the answer."""
        await self._ask_and_claim(self.open_queue(AT_ONCE))
        await asyncio.sleep(SOON)
        queue = self.open_queue()
        request = await self._ask_for(queue)
        assert (await self._wait(queue, request, LATER)).approved
        assert await queue.use(request.approval_id) is True

    @_in_loop
    async def test_a_call_that_was_started_is_not_started_again(self) -> None:
        """Fail if a kill while the tool runs leads to a second run with the same yes."""
        killed = self.open_queue(AT_ONCE)
        request = await self._ask_and_claim(killed)
        assert await killed.use(request.approval_id) is True
        await asyncio.sleep(SOON)
        queue = self.open_queue()
        again = await self._ask_for(queue)
        decision = await self._wait(queue, again, LATER)
        assert (decision.approved, decision.status) == (False, ApprovalStatus.VOID)
        equal = await self._ask_for(queue, "c-2")
        assert equal.approval_id != request.approval_id
        assert request.approval_id in equal.message  # the person is told that it was started

    @_in_loop
    async def test_a_call_that_has_run_is_not_started_again(self) -> None:
        """Fail if the same call runs twice; an equal one of another id is a new question."""
        queue = self.open_queue()
        request = await self._ask_and_claim(queue)
        await queue.use(request.approval_id)
        await queue.end(request.approval_id, True)
        decision = await self._wait(queue, await self._ask_for(queue), LATER)
        assert (decision.approved, decision.status) == (False, ApprovalStatus.VOID)
        equal = await self._ask_for(queue, "c-2")
        assert (equal.approval_id != request.approval_id, equal.message) == (True, "Really?")

    @_in_loop
    async def test_a_yes_whose_tool_did_not_start_is_free_again(self) -> None:
        queue = self.open_queue()
        request = await self._ask_and_claim(queue)
        await queue.use(request.approval_id)
        await queue.end(request.approval_id, False)
        again = await self._ask_for(queue, "c-2")
        assert again.approval_id == request.approval_id
        assert (await self._wait(queue, again, LATER)).approved

    @_in_loop
    async def test_a_revoked_yes_stops_the_call(self) -> None:
        """Fail if a revoked yes starts a tool, even when the call had claimed it before."""
        queue = self.open_queue()
        request = await self._ask_and_claim(queue)
        await self.open_queue().revoke(request.approval_id, approver="ann")
        assert await queue.use(request.approval_id) is False
        used = await self._ask_and_claim(queue, "c-2")
        assert await queue.use(used.approval_id) is True
        await self._expect_rejection(queue.revoke(used.approval_id, approver="ann"))

    # --- Who may answer ---------------------------------------------------------------------------

    @_in_loop
    async def test_as_many_persons_as_are_wanted_must_say_yes(self) -> None:
        """Fail if one person can stand for two."""
        queue = self.open_queue()
        request = await self._ask_for(queue, more=_restrict(count=2))
        for _ in range(2):
            answered = await self.open_queue().answer(request.approval_id, True, approver=ANN)
            assert answered.status == ApprovalStatus.PENDING
            assert [it.approver for it in answered.answers] == ["ann"]
        answered = await queue.answer(request.approval_id, True, approver=BOB)
        assert answered.status == ApprovalStatus.APPROVED
        decision = await self._wait(queue, request, LATER)
        assert (decision.approved, decision.approver) == (True, "ann, bob")

    @_in_loop
    async def test_the_requester_may_not_answer(self) -> None:
        queue = self.open_queue()
        request = await self._ask_for(queue, more=_restrict(roles=["sales"], not_requester=True))
        other_name = Principal(user_id="ev", service_id="agent", role="sales")
        await self._expect_rejection(queue.answer(request.approval_id, True, approver=EVE))
        await self._expect_rejection(queue.answer(request.approval_id, False, approver=EVE))
        assert (await queue.answer(request.approval_id, True, approver=other_name)).answers

    @_in_loop
    async def test_only_verified_persons_with_a_role_may_answer(self) -> None:
        """Fail if a name in a text, or a person of another role, counts."""
        queue = self.open_queue()
        request = await self._ask_for(queue, more=_restrict())
        for approver in ("ann", EVE, Principal(user_id="ann")):
            await self._expect_rejection(queue.answer(request.approval_id, True, approver=approver))
        assert [it.approval_id for it in await queue.pending()] == [request.approval_id]
        by_claim = await self._ask_for(queue, "c-2", more=_restrict(roles=["leads"]))
        answered = await queue.answer(by_claim.approval_id, True, approver=EVE)
        assert answered.status == ApprovalStatus.APPROVED

    @_in_loop
    async def test_the_no_of_one_person_denies(self) -> None:
        queue = self.open_queue()
        request = await self._ask_for(queue, more=_restrict(count=2))
        await queue.answer(request.approval_id, True, approver=ANN)
        await queue.answer(request.approval_id, False, approver=BOB, reason="no")
        decision = await self._wait(queue, request, LATER)
        assert (decision.status, decision.approver) == (ApprovalStatus.DENIED, "bob")

    @_in_loop
    async def test_all_askers_must_be_content(self) -> None:
        """Fail if the approvers of one contract can approve for another one."""
        queue = self.open_queue()
        terms = [Approvers(roles=(role,)).as_dict() for role in ("ops", "leads")]
        request = await self._ask_for(queue, more={"approvers": terms, "requester": []})
        answered = await queue.answer(request.approval_id, True, approver=ANN)
        assert answered.status == ApprovalStatus.PENDING
        answered = await queue.answer(request.approval_id, True, approver=EVE)
        assert answered.status == ApprovalStatus.APPROVED

    @_in_loop
    async def test_escalation_lets_others_answer(self) -> None:
        queue = self.open_queue()
        later = _restrict(escalate_after_s=3600, escalate_to=["leads"])
        request = await self._ask_for(queue, "c-1", more=later)
        await self._expect_rejection(queue.answer(request.approval_id, True, approver=EVE))
        at_once = _restrict(escalate_after_s=AT_ONCE, escalate_to=["leads"])
        request = await self._ask_for(queue, "c-2", more=at_once)
        await asyncio.sleep(SOON)
        answered = await queue.answer(request.approval_id, True, approver=EVE)
        assert answered.status == ApprovalStatus.APPROVED

    @_in_loop
    async def test_persons_must_say_the_same_yes(self) -> None:
        """Fail if a yes to some arguments counts for others, or for a grant."""
        queue = self.open_queue()
        request = await self._ask_for(queue, more={**_restrict(count=2), **_bind()})
        changed = {**ARGS, "path": "/srv/less"}
        for said in ({}, {"grant": GrantTerms()}):
            await queue.answer(request.approval_id, True, approver=ANN, **said)
            answered = await queue.answer(request.approval_id, True, approver=BOB, args=changed)
            assert answered.status == ApprovalStatus.PENDING
        answered = await queue.answer(request.approval_id, True, approver=ANN, args=changed)
        assert (answered.status, answered.changed_args) == (ApprovalStatus.APPROVED, changed)
        assert (await self._wait(queue, request, LATER)).args == changed
        assert await queue.grants() == []

    # --- Grants -----------------------------------------------------------------------------------

    async def _grant(self, queue: Any, terms: GrantTerms, **asked: Any) -> str:
        """Ask, say yes with a grant, run that call, and return the id of the grant."""
        request = await self._ask_for(queue, **{"more": _bind(), **asked})
        await queue.answer(request.approval_id, True, approver="ann", grant=terms)
        assert (await self._wait(queue, request, LATER)).approved
        await queue.use(request.approval_id)
        await queue.end(request.approval_id, True)
        (grant,) = await queue.grants()
        return str(grant.grant_id)

    @_in_loop
    async def test_a_grant_answers_further_calls(self) -> None:
        """Fail if a person is asked again, or the call does not learn whose yes it was."""
        queue = self.open_queue()
        grant_id = await self._grant(queue, GrantTerms())
        other = self.open_queue()
        request = await self._ask_for(other, "c-2", more=_bind())
        assert request.grant_id == grant_id
        assert await other.pending() == []
        decision = await self._wait(other, request, LATER)
        assert (decision.approved, decision.approver) == (True, "ann")
        assert await other.use(request.approval_id) is True

    @_in_loop
    async def test_the_list_of_grants_and_their_revocation(self) -> None:
        queue = self.open_queue()
        until = datetime.now(UTC) + timedelta(hours=1)
        grant_id = await self._grant(queue, GrantTerms(scope="principal", until=until))
        (grant,) = await self.open_queue().grants(tool_name="delete")
        assert (grant.grant_id, grant.approver, grant.session_id) == (grant_id, "ann", None)
        assert (grant.askers, grant.status, grant.until) == (("ask",), "active", until)
        assert await queue.grants(tool_name="other") == []
        for _ in range(2):
            revoked = await self.open_queue().revoke_grant(grant_id, approver="bob")
            assert (revoked.status, revoked.revoked_by) == ("revoked", "bob")
        assert await queue.grants() == []
        assert (await self._ask_for(queue, "c-2", more=_bind())).grant_id is None
        await self._expect_rejection(queue.revoke_grant("unknown", approver="bob"))

    @_in_loop
    async def test_a_grant_that_is_revoked_between_claim_and_start_stops_the_call(self) -> None:
        queue = self.open_queue()
        grant_id = await self._grant(queue, GrantTerms())
        request = await self._ask_for(queue, "c-2", more=_bind())
        assert (await self._wait(queue, request, LATER)).approved
        await self.open_queue().revoke_grant(grant_id, approver="bob")
        assert await queue.use(request.approval_id) is False
        found = await queue.get(request.approval_id)
        assert found.status == ApprovalStatus.VOID

    @_in_loop
    async def test_a_grant_is_for_its_session_principal_and_contract(self) -> None:
        """Fail if it answers another session, another principal, another contract, or a question
        that another contract asks as well.
        """
        queue = self.open_queue()
        await self._grant(queue, GrantTerms(other_args="any"))
        others = [
            ("s-2", _bind("s-2")),
            ("s-1", _bind("s-1", "bob")),
            ("s-1", _bind(askers=("other",))),
            ("s-1", _bind(askers=("ask", "other"))),
            ("s-1", _bind(askers=())),
        ]
        for number, (session_id, more) in enumerate(others):
            asked = await self._ask_for(queue, f"o-{number}", session_id=session_id, more=more)
            assert asked.grant_id is None

    @_in_loop
    async def test_a_grant_for_a_principal_counts_in_other_sessions(self) -> None:
        queue = self.open_queue()
        until = datetime.now(UTC) + timedelta(hours=1)
        grant_id = await self._grant(queue, GrantTerms(scope="principal", until=until))
        asked = await self._ask_for(queue, "c-2", session_id="s-2", more=_bind("s-2"))
        assert asked.grant_id == grant_id

    @_in_loop
    async def test_a_grant_is_for_its_arguments(self) -> None:
        """Fail if it answers for arguments that neither are the same nor fit its patterns."""
        queue = self.open_queue()
        await self._grant(queue, GrantTerms(args={"path": "/srv/*"}))
        options = ARGS["options"]
        fits = [{"path": "/srv/other", "options": options}]
        others: list[dict[str, Any]] = [
            {"path": "/etc/passwd", "options": options},
            {"path": "/srv/../etc/passwd", "options": options},
            {"path": "/srv/a; rm -rf /", "options": options},
            {"path": "/srv/a", "options": {"force": False}},
            {"path": "/srv/a", "options": options, "more": 1},
            {"path": "/srv/a"},
            {"options": options},
        ]
        for number, args in enumerate([*fits, *others]):
            asked = await self._ask_for(queue, f"o-{number}", tool_args=args, more=_bind())
            assert (asked.grant_id is not None) == (args in fits), args

    @_in_loop
    async def test_grants_match_the_arguments_and_not_what_is_shown_of_them(self) -> None:
        """Fail if a call with another secret counts as the same, since both are shown alike."""
        queue = self.open_queue()
        hidden: dict[str, Any] = {"tool_args": {"token": "[REDACTED]"}}
        await self._grant(queue, GrantTerms(), raw_args={"token": "a"}, **hidden)
        same = await self._ask_for(queue, "c-2", raw_args={"token": "a"}, more=_bind(), **hidden)
        other = await self._ask_for(queue, "c-3", raw_args={"token": "b"}, more=_bind(), **hidden)
        assert (same.grant_id is not None, other.grant_id is not None) == (True, False)

    @_in_loop
    async def test_a_grant_that_cannot_be_given_is_an_error(self) -> None:
        """Fail if the error loses the question."""
        queue = self.open_queue()
        request = await self._ask_for(queue)  # a grant needs metadata to bind it
        past = datetime.now(UTC) - timedelta(hours=1)
        bound = await self._ask_for(queue, "c-2", more=_bind())
        for asked, terms in ((request, GrantTerms()), (bound, GrantTerms(until=past))):
            answering = queue.answer(asked.approval_id, True, approver="ann", grant=terms)
            await self._expect_rejection(answering)
        assert len(await queue.pending()) == 2

    # --- Changed arguments ------------------------------------------------------------------------

    @_in_loop
    async def test_changed_arguments_reach_the_call(self) -> None:
        """Fail if they are lost by a restart."""
        first = await self._ask_for(self.open_queue())
        changed = {"path": "/srv/less", "count": 1.0}
        await self.open_queue().answer(first.approval_id, True, approver="ann", args=changed)
        queue = self.open_queue()
        decision = await self._wait(queue, await self._ask_for(queue), LATER)
        assert (decision.approved, decision.args) == (True, changed)

    @_in_loop
    async def test_changed_arguments_may_not_hold_the_mark_of_a_secret(self) -> None:
        queue = self.open_queue()
        request = await self._ask_for(queue, tool_args={"a": "[REDACTED]", "b": 1})
        for args in ({"a": "x[REDACTED]"}, {"b": "[REDACTED]"}):
            answering = queue.answer(request.approval_id, True, approver="ann", args=args)
            await self._expect_rejection(answering)
        kept = {"a": "[REDACTED]", "b": 2}
        answered = await queue.answer(request.approval_id, True, approver="ann", args=kept)
        assert answered.changed_args == kept

    # --- What a person is told --------------------------------------------------------------------

    @_in_loop
    async def test_what_was_approved_last_and_the_context_come_with_a_request(self) -> None:
        """Fail if a person cannot compare, or sees what was approved for another principal."""
        queue, mia = self.open_queue(), {"user_id": "mia", "claims": {"teams": ["a", "b"]}}
        context = {"asked_by": [{"name": "ask", "type": "contract", "message": "Really?"}]}
        first = await self._ask_for(queue, "c-1", principal=mia, more={"context": context})
        await queue.answer(first.approval_id, True, approver="ann")
        await self._ask_for(queue, "c-2", "d-2", principal=mia)
        await self._ask_for(queue, "c-3", "d-3", principal={"user_id": "bob"})
        asked = {it.call_id: it for it in await self.open_queue().pending()}
        assert (asked["c-2"].precedent, asked["c-3"].precedent) == (ARGS, None)
        answered = await self.open_queue().get(first.approval_id)
        assert (answered.precedent, answered.context) == (None, context)

    @_in_loop
    async def test_only_one_answer_per_nonce_counts(self) -> None:
        """Fail if a link could answer twice where several persons must agree."""
        queue = self.open_queue()
        two = {"approvers": [Approvers(count=2).as_dict()], "askers": ["ask"]}
        request = await self._ask_for(queue, more=two)
        ann = Principal(user_id="ann")
        await queue.answer(request.approval_id, True, approver=ann, nonce="n-1")
        other = self.open_queue()
        await self._expect_rejection(
            other.answer(request.approval_id, False, approver=ann, nonce="n-1")
        )
        listed = await other.get(request.approval_id)
        assert (listed.status, len(listed.answers)) == ("pending", 1)
