"""ApprovalConformance: what every approval backend must do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from edictum.approval.port import ApprovalBackend, ApprovalDecision, ApprovalRequest, ApprovalStatus

ARGS = {"path": "/srv/data", "options": {"force": True}}
SOON = 0.05
LATER = 30.0


class ApprovalConformance:
    """Subclass it, say how a backend is made and how a person answers, and run it as tests."""

    def make_backend(self) -> Any:
        """Return a fresh backend without open requests."""
        raise NotImplementedError

    async def answer(self, backend: Any, request: ApprovalRequest, approved: bool) -> None:
        """Answer an open request as a person would. Called while ``wait_for_decision`` waits."""
        raise NotImplementedError

    async def _ask(self, backend: Any, **options: Any) -> ApprovalRequest:
        request: ApprovalRequest = await backend.request_approval(
            tool_name="delete",
            tool_args=ARGS,
            message="Really?",
            session_id="s-1",
            metadata={"digest": "d-1"},
            **options,
        )
        return request

    async def _decide(
        self, backend: Any, request: ApprovalRequest, approved: bool
    ) -> ApprovalDecision:
        waiting = asyncio.ensure_future(
            backend.wait_for_decision(approval_id=request.approval_id, timeout=LATER)
        )
        await asyncio.sleep(SOON)
        await self.answer(backend, request, approved)
        decision: ApprovalDecision = await waiting
        return decision

    def test_it_is_an_approval_backend(self) -> None:
        """Fail if a verb of the port is missing."""
        assert isinstance(self.make_backend(), ApprovalBackend)

    def test_a_request_repeats_the_question(self) -> None:
        """Fail if a person is shown, or the answer is bound to, something else than the call."""
        request = _run(
            lambda: self._ask(
                self.make_backend(), timeout=7, timeout_effect="allow", principal={"user_id": "u"}
            )
        )
        assert (request.tool_name, dict(request.tool_args), request.message) == (
            "delete",
            ARGS,
            "Really?",
        )
        assert (request.timeout, request.timeout_effect, request.session_id) == (7, "allow", "s-1")
        assert request.principal == {"user_id": "u"}
        assert request.digest == "d-1"

    def test_every_request_has_an_id_of_its_own(self) -> None:
        """Fail if one answer can be taken for another call."""

        async def ids() -> set[str]:
            backend = self.make_backend()
            return {(await self._ask(backend)).approval_id for _ in range(5)}

        assert len(_run(ids)) == 5

    def test_yes_approves(self) -> None:
        """Fail if an approved call would be denied."""
        decision = _run(lambda: self._exchange(True))
        assert decision.approved is True
        assert decision.status is ApprovalStatus.APPROVED

    def test_no_denies(self) -> None:
        """Fail if a denied call would run."""
        decision = _run(lambda: self._exchange(False))
        assert decision.approved is False
        assert decision.status is ApprovalStatus.DENIED

    async def _exchange(self, approved: bool) -> ApprovalDecision:
        backend = self.make_backend()
        return await self._decide(backend, await self._ask(backend), approved)

    def test_no_answer_in_time_is_a_timeout(self) -> None:
        """Fail if silence is taken for an answer, or waiting never ends."""

        async def silence() -> ApprovalDecision:
            backend = self.make_backend()
            request = await self._ask(backend)
            decision: ApprovalDecision = await backend.wait_for_decision(
                approval_id=request.approval_id, timeout=SOON
            )
            return decision

        decision = _run(silence)
        assert decision.status is ApprovalStatus.TIMEOUT
        assert decision.approved is False

    def test_a_request_that_timed_out_does_not_take_the_next_answer(self) -> None:
        """Fail if the answer to one question is lost to an older one."""

        async def next_answer() -> ApprovalDecision:
            backend = self.make_backend()
            late = await self._ask(backend)
            await backend.wait_for_decision(approval_id=late.approval_id, timeout=SOON)
            return await self._decide(backend, await self._ask(backend), True)

        assert _run(next_answer).status is ApprovalStatus.APPROVED

    def test_a_cancelled_wait_leaves_the_backend_usable(self) -> None:
        """Fail if one caller that gave up blocks all others."""

        async def after_cancel() -> ApprovalDecision:
            backend = self.make_backend()
            request = await self._ask(backend)
            waiting = asyncio.ensure_future(
                backend.wait_for_decision(approval_id=request.approval_id, timeout=LATER)
            )
            await asyncio.sleep(SOON)
            waiting.cancel()
            await asyncio.wait([waiting])
            return await self._decide(backend, await self._ask(backend), False)

        assert _run(after_cancel).status is ApprovalStatus.DENIED


def _run(ask: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await ask()

    return asyncio.run(main())
