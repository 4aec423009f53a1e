"""LocalApprovalBackend: asks on the terminal."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from typing import TextIO

from edictum.approval.port import ApprovalDecision, ApprovalRequest, ApprovalStatus, RequestKeeper
from edictum.core.redaction import RedactionPolicy
from edictum.core.values import dumps
from edictum.execution.forks import call_in_child

YES = frozenset({"y", "yes", "approve"})


class LocalApprovalBackend(RequestKeeper):
    """Prints the request, arguments redacted, and reads one line: y, yes or approve approves.

    One thread reads the terminal, however many requests wait, and a line answers the request that
    was asked last before it was typed. A line that was typed for a request that has timed out is
    discarded when the next question is asked.
    """

    def __init__(
        self,
        redaction: RedactionPolicy | None = None,
        *,
        stdin: TextIO | None = None,
        stdout: TextIO | None = None,
    ) -> None:
        self._redaction = redaction or RedactionPolicy()
        self._stdin = stdin
        self._stdout = stdout
        self._pending: dict[str, ApprovalRequest] = {}
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Start anew: in a forked child the open question and the reader are the parent's."""
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._reader: threading.Thread | None = None

    def _keep(self, request: ApprovalRequest) -> None:
        self._pending[request.approval_id] = request

    async def wait_for_decision(
        self, approval_id: str, timeout: float | None = None
    ) -> ApprovalDecision:
        request = self._pending.pop(approval_id)
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        turn = self._turn
        if not await self._take(turn, deadline):
            return ApprovalDecision(False, status=ApprovalStatus.TIMEOUT)
        try:
            return await self._ask(request, deadline)
        finally:
            turn.release()

    async def _take(self, turn: threading.Lock, deadline: float | None) -> bool:
        """Wait until no other question is on the terminal; return False when time runs out."""
        while not turn.acquire(blocking=False):
            if deadline is not None and asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    async def _ask(self, request: ApprovalRequest, deadline: float | None) -> ApprovalDecision:
        self._start_reader()
        while not self._lines.empty():  # typed before this question was asked
            if self._lines.get() is None:
                self._lines.put(None)
                break
        self._show(request)
        while deadline is None or asyncio.get_running_loop().time() < deadline:
            try:
                line = self._lines.get_nowait()
            except queue.Empty:
                await asyncio.sleep(0.02)
                continue
            return self._decision(line)
        print("(no answer in time)", file=self._stdout or sys.stdout, flush=True)
        return ApprovalDecision(False, status=ApprovalStatus.TIMEOUT)

    def _decision(self, line: str | None) -> ApprovalDecision:
        if line is None:
            self._lines.put(None)  # end of input stays the end for later requests
            reason = "Standard input is closed, so the question cannot be answered."
            return ApprovalDecision(False, "local", reason, ApprovalStatus.DENIED)
        approved = line.strip().lower() in YES
        status = ApprovalStatus.APPROVED if approved else ApprovalStatus.DENIED
        return ApprovalDecision(approved, "local", None, status)

    def _show(self, request: ApprovalRequest) -> None:
        args = dumps(self._redaction.redact_args(request.tool_args))
        text = (
            f"[APPROVAL REQUIRED] {_escape(self._redaction.redact_text(request.message))}\n"
            f"  Tool: {_escape(request.tool_name)}\n"
            f"  Args: {_escape(args)}\n"
            f"  ID:   {request.approval_id}\n"
            "Approve? [y/N] "
        )
        print(text, end="", file=self._stdout or sys.stdout, flush=True)

    def _start_reader(self) -> None:
        if self._reader is None or not self._reader.is_alive():
            self._reader = threading.Thread(target=self._read, name="edictum-approval", daemon=True)
            self._reader.start()

    def _read(self) -> None:
        for line in iter((self._stdin or sys.stdin).readline, ""):
            self._lines.put(line)
        self._lines.put(None)


def _escape(text: str) -> str:
    """Escape what could start a new line, change the writing direction or repaint the screen: text
    of the model must not imitate another question.
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
