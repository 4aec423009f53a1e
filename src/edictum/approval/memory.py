"""InMemoryApprovalBackend: for tests, and for programs that decide in the same process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

from edictum.approval.port import ApprovalDecision, ApprovalRequest, ApprovalStatus, RequestKeeper
from edictum.execution.forks import protect

Decided = bool | ApprovalDecision


class InMemoryApprovalBackend(RequestKeeper):
    """Keeps requests until ``decide`` is called; ``answer`` decides at once (True, False, a
    decision, or a function).
    """

    def __init__(
        self, answer: Decided | Callable[[ApprovalRequest], Decided] | None = None
    ) -> None:
        self._answer = answer
        self._lock = threading.Lock()
        protect(self)
        self._waiting: dict[str, tuple[ApprovalRequest, Future[ApprovalDecision]]] = {}
        self.requests: list[ApprovalRequest] = []
        self.withdrawn: list[str] = []

    def _keep(self, request: ApprovalRequest) -> None:
        with self._lock:
            self.requests.append(request)
            self._waiting[request.approval_id] = (request, Future())
        if self._answer is not None:
            answer = self._answer(request) if callable(self._answer) else self._answer
            self.decide(request.approval_id, answer)

    @property
    def pending(self) -> list[ApprovalRequest]:
        with self._lock:
            return [request for request, future in self._waiting.values() if not future.done()]

    def decide(
        self,
        approval_id: str,
        answer: Decided,
        *,
        approver: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Answer a pending request; KeyError when there is none of that id."""
        with self._lock:
            request, future = self._waiting[approval_id]
        if isinstance(answer, bool):
            status = ApprovalStatus.APPROVED if answer else ApprovalStatus.DENIED
            answer = ApprovalDecision(answer, approver, reason, status, digest=request.digest)
        if not future.done():
            future.set_result(answer)

    async def wait_for_decision(
        self, approval_id: str, timeout: float | None = None
    ) -> ApprovalDecision:
        with self._lock:
            _, future = self._waiting[approval_id]
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), timeout)
        except TimeoutError:
            return ApprovalDecision(False, status=ApprovalStatus.TIMEOUT)
        finally:
            with self._lock:
                self._waiting.pop(approval_id, None)

    async def withdraw(self, approval_id: str) -> None:
        with self._lock:
            self._waiting.pop(approval_id, None)
            self.withdrawn.append(approval_id)
