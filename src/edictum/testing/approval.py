"""ApprovalConformance: what every approval backend must do."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from edictum.approval.port import ApprovalBackend, ApprovalDecision, ApprovalRequest, ApprovalStatus

ARGS = {"path": "/srv/data", "options": {"force": True}}
SOON = 0.05
LATER = 30.0


def _in_loop(test: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[[Any], None]:
    """Make an ordinary test of a coroutine, for runners that await none."""

    @functools.wraps(test)
    def run(self: Any) -> None:
        asyncio.run(test(self))

    del vars(run)["__wrapped__"]  # some runners look at it
    return run


class ApprovalConformance:
    """Subclass it, say how a backend is made and how a person answers, and run it as tests."""

    def make_backend(self) -> Any:
        """Return a fresh backend without open requests."""
        raise NotImplementedError

    async def answer(self, backend: Any, request: ApprovalRequest, approved: bool) -> None:
        """Answer an open request as a person would. Called while ``wait_for_decision`` waits."""
        raise NotImplementedError

    @staticmethod
    async def _ask(backend: Any, **options: Any) -> ApprovalRequest:
        request: ApprovalRequest = await backend.request_approval(
            tool_name="delete",
            tool_args=ARGS,
            message="Really?",
            session_id="s-1",
            metadata={"digest": "d-1"},
            **options,
        )
        return request

    @staticmethod
    async def _start_waiting(backend: Any, request: ApprovalRequest) -> asyncio.Future[Any]:
        decision = backend.wait_for_decision(approval_id=request.approval_id, timeout=LATER)
        waiting: asyncio.Future[Any] = asyncio.ensure_future(decision)
        await asyncio.sleep(SOON)
        return waiting

    @staticmethod
    async def _wait_in_vain(backend: Any) -> ApprovalDecision:
        """Ask, and wait for an answer that does not come."""
        asked = (await ApprovalConformance._ask(backend)).approval_id
        decision: ApprovalDecision = await backend.wait_for_decision(
            approval_id=asked, timeout=SOON
        )
        return decision

    async def _decide(self, backend: Any, approved: bool) -> None:
        """Ask, answer, and check that the answer is the decision."""
        request = await self._ask(backend)
        waiting = await self._start_waiting(backend, request)
        await self.answer(backend, request, approved)
        decision: ApprovalDecision = await waiting
        wanted = ApprovalStatus.APPROVED if approved else ApprovalStatus.DENIED
        assert (decision.approved, decision.status) == (approved, wanted)

    def test_it_is_an_approval_backend(self) -> None:
        assert isinstance(self.make_backend(), ApprovalBackend)

    @_in_loop
    async def test_a_request_repeats_the_question(self) -> None:
        """Fail if a person is shown, or the answer is bound to, something else than the call."""
        options: dict[str, Any] = {"timeout": 7, "timeout_effect": "allow"}
        request = await self._ask(self.make_backend(), principal={"user_id": "u"}, **options)
        asked = (request.tool_name, dict(request.tool_args), request.message)
        assert asked == ("delete", ARGS, "Really?")
        assert (request.timeout, request.timeout_effect, request.session_id) == (7, "allow", "s-1")
        assert (request.principal, request.digest) == ({"user_id": "u"}, "d-1")

    @_in_loop
    async def test_every_request_has_an_id_of_its_own(self) -> None:
        """Fail if one answer can be taken for another call."""
        backend = self.make_backend()
        assert len({(await self._ask(backend)).approval_id for _ in range(5)}) == 5

    @_in_loop
    async def test_yes_approves(self) -> None:
        await self._decide(self.make_backend(), True)

    @_in_loop
    async def test_no_denies(self) -> None:
        await self._decide(self.make_backend(), False)

    @_in_loop
    async def test_no_answer_in_time_is_a_timeout(self) -> None:
        """Fail if silence is taken for an answer, or waiting never ends."""
        decision = await self._wait_in_vain(self.make_backend())
        assert (decision.status, decision.approved) == (ApprovalStatus.TIMEOUT, False)

    @_in_loop
    async def test_a_request_that_timed_out_does_not_take_the_next_answer(self) -> None:
        backend = self.make_backend()
        await self._wait_in_vain(backend)
        await self._decide(backend, True)

    @_in_loop
    async def test_a_cancelled_wait_leaves_the_backend_usable(self) -> None:
        backend = self.make_backend()
        waiting = await self._start_waiting(backend, await self._ask(backend))
        waiting.cancel()
        await asyncio.wait([waiting])
        await self._decide(backend, False)
