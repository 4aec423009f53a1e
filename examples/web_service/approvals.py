"""Approvals in a SQLite file, so that a person may answer by any worker of the service."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
import uuid
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from edictum import ApprovalDecision, ApprovalRequest, ApprovalStatus

TABLE = """
create table if not exists approvals (
    id text primary key, tool text, args text, message text, digest text, user text,
    expires real, approved integer, approver text
)
"""
POLL_S = 0.1


class SqliteApprovals:
    """An approval backend of its own: a table, and workers that look into it.

    A question belongs to the request that waits for it. It is not listed any more when its time is
    over, nor when the caller has gone.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._execute(TABLE)

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
        digest, user = (metadata or {}).get("digest", ""), (principal or {}).get("user_id")
        request = ApprovalRequest(
            approval_id=str(uuid.uuid4()),
            tool_name=tool_name,
            tool_args=tool_args,
            message=message,
            timeout=timeout,
            timeout_effect=timeout_effect,
            principal=principal,
            session_id=session_id,
            digest=digest,
        )
        row = (request.approval_id, tool_name, json.dumps(dict(tool_args)), message, digest, user)
        await asyncio.to_thread(
            self._execute,
            "insert into approvals values (?, ?, ?, ?, ?, ?, ?, null, null)",
            *row,
            time.time() + timeout,
        )
        return request

    async def wait_for_decision(
        self, approval_id: str, timeout: float | None = None
    ) -> ApprovalDecision:
        try:
            async with asyncio.timeout(timeout):
                return await self._poll(approval_id)
        except TimeoutError:
            return ApprovalDecision(False, status=ApprovalStatus.TIMEOUT)

    async def _poll(self, approval_id: str) -> ApprovalDecision:
        while True:
            found = await asyncio.to_thread(self._find_answer, approval_id)
            if found is not None:
                return found
            await asyncio.sleep(POLL_S)  # the answer comes by another process: nothing to await

    async def withdraw(self, approval_id: str) -> None:
        await asyncio.to_thread(self._execute, "delete from approvals where id = ?", approval_id)

    def list_pending(self) -> list[dict[str, Any]]:
        rows = self._execute(
            "select id, tool, args, message, user from approvals"
            " where approved is null and expires > ?",
            time.time(),
        )
        names = ("id", "tool", "args", "message", "user")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def answer(self, approval_id: str, approved: bool, approver: str) -> bool:
        """Keep the answer; return False when no such question waits for one."""
        return bool(
            self._execute(
                "update approvals set approved = ?, approver = ?"
                " where id = ? and approved is null and expires > ? returning id",
                approved,
                approver,
                approval_id,
                time.time(),
            )
        )

    def _find_answer(self, approval_id: str) -> ApprovalDecision | None:
        rows = self._execute(
            "select approved, approver, digest from approvals where id = ?", approval_id
        )
        if not rows:
            return ApprovalDecision(False, status=ApprovalStatus.WITHDRAWN)
        approved, approver, digest = rows[0]
        if approved is None:
            return None
        status = ApprovalStatus.APPROVED if approved else ApprovalStatus.DENIED
        return ApprovalDecision(bool(approved), approver, status=status, digest=digest)

    def _execute(self, statement: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self._path, timeout=10)) as connection, connection:
            return connection.execute(statement, values).fetchall()
