"""LocalApprovalBackend: asks on the terminal."""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import uuid
from collections.abc import Mapping
from typing import Any, Literal, TextIO

from edictum.approval.port import ApprovalDecision, ApprovalRequest, ApprovalStatus
from edictum.core.redaction import RedactionPolicy
from edictum.core.values import dumps

YES = frozenset({"y", "yes", "approve"})


class LocalApprovalBackend:
    """Prints the request, arguments redacted, and reads one line: y, yes or approve approves.

    One thread reads the terminal, however many requests wait, and a line belongs to the request
    that was asked last before it was typed. A request that timed out is no longer listening, so it
    cannot eat the answer to the next one: a line that was typed for it is thrown away when the next
    question is put.
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
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._reader: threading.Thread | None = None

    async def request_approval(
        self,
        tool_name: str,
        tool_args: Mapping[str, Any],
        message: str,
        *,
        timeout: float = 300,
        timeout_effect: Literal["deny", "allow"] = "deny",
        principal: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        session_id: str | None = None,
    ) -> ApprovalRequest:
        metadata = metadata or {}
        request = ApprovalRequest(
            str(uuid.uuid4()),
            tool_name,
            tool_args,
            message,
            timeout,
            timeout_effect,
            principal,
            metadata,
            session_id=session_id,
            digest=metadata.get("digest", ""),
        )
        self._pending[request.approval_id] = request
        return request

    async def wait_for_decision(
        self, approval_id: str, timeout: float | None = None
    ) -> ApprovalDecision:
        request = self._pending.pop(approval_id)
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        if not await self._my_turn(deadline):
            return ApprovalDecision(False, status=ApprovalStatus.TIMEOUT)
        try:
            return await self._ask(request, deadline)
        finally:
            self._turn.release()

    async def _my_turn(self, deadline: float | None) -> bool:
        """One question at a time on the terminal; waiting for the turn is part of the request's
        time.
        """
        while not self._turn.acquire(blocking=False):
            if deadline is not None and asyncio.get_running_loop().time() >= deadline:
                return False
            await asyncio.sleep(0.02)
        return True

    async def _ask(self, request: ApprovalRequest, deadline: float | None) -> ApprovalDecision:
        self._start_reader()
        while not self._lines.empty():  # typed before this question was put
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
            return ApprovalDecision(
                False,
                "local",
                "Standard input is closed; nobody can answer.",
                ApprovalStatus.DENIED,
            )
        approved = line.strip().lower() in YES
        return ApprovalDecision(
            approved, "local", None, ApprovalStatus.APPROVED if approved else ApprovalStatus.DENIED
        )

    def _show(self, request: ApprovalRequest) -> None:
        message, args = (
            self._redaction.redact_text(request.message),
            dumps(self._redaction.redact_args(request.tool_args)),
        )
        text = (
            f"[APPROVAL REQUIRED] {_on_one_line(message)}\n  Tool:"
            f" {_on_one_line(request.tool_name)}\n  Args: {_on_one_line(args)}\n"
        )
        text += f"  ID:   {request.approval_id}\nApprove? [y/N] "
        print(text, end="", file=self._stdout or sys.stdout, flush=True)

    def _start_reader(self) -> None:
        if self._reader is None or not self._reader.is_alive():
            self._reader = threading.Thread(target=self._read, name="edictum-approval", daemon=True)
            self._reader.start()

    def _read(self) -> None:
        for line in iter((self._stdin or sys.stdin).readline, ""):
            self._lines.put(line)
        self._lines.put(None)


def _on_one_line(text: str) -> str:
    """Text that may come from the model, with everything escaped that could write a line of its
    own, turn the writing direction or repaint the screen, and so put another question in the place
    of this one.
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
