"""Session: the counters of one session, read from a ledger."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar, cast

from edictum.core.call import check_session_id
from edictum.core.limits import (
    GLOBAL,
    WHOLE_SESSION,
    Counters,
    Grant,
    Reservation,
    SessionSnapshot,
    Settlement,
)
from edictum.core.scopes import EVERYONE, scope_key
from edictum.core.session import SessionReading
from edictum.execution.body import needs_await
from edictum.execution.portal import PORTAL
from edictum.sessions._four_verb_ledger import StorageBackend
from edictum.sessions._urls import as_ledger
from edictum.sessions.ledger import Ledger

_T = TypeVar("_T")


class Session(SessionReading):
    """The counters of one session. Attributes read the ledger now; ``snapshot()`` reads all
    counters of one moment.
    """

    def __init__(self, session_id: str, backend: Ledger | StorageBackend) -> None:
        check_session_id(session_id)
        self.session_id = session_id
        self._ledger = as_ledger(backend)
        self._own_calls = 0

    @classmethod
    def of_scope(cls, scope: str, value: object, backend: Ledger | StorageBackend) -> Session:
        """Return the counters of a scope; their ``session_id`` is a key that no session can
        have.
        """
        found = cls("scope", backend)
        found.session_id = scope_key(scope, EVERYONE if scope == GLOBAL else value)
        return found

    def snapshot(self) -> SessionSnapshot:
        return _now(self._ledger.snapshot(self.session_id))

    def reset(self) -> None:
        """Forget this session's counters. Calls in flight still count when they end."""
        _now(self._ledger.reset(self.session_id))

    def _totals(self) -> Counters:
        return self.snapshot().totals

    def _tools(self) -> Mapping[str, Counters]:
        return self.snapshot().per_tool

    # What the older library's users call when they drive a session themselves.

    async def increment_attempts(self) -> int:
        grant: Grant = await _soon(
            self._ledger.reserve(Reservation(self.session_id, "", (WHOLE_SESSION,), (), hold=False))
        )
        return grant.counters.attempts

    async def record_execution(self, tool_name: str, success: bool) -> None:
        self._own_calls += 1
        call_id, tools = f"{id(self):x}-{self._own_calls}", (WHOLE_SESSION, tool_name)
        await _soon(
            self._ledger.reserve(
                Reservation(self.session_id, call_id, tools, (), count_attempt=False)
            )
        )
        await _soon(
            self._ledger.settle(
                Settlement(self.session_id, call_id, tools, (), "success" if success else "failure")
            )
        )


def _now(answer: _T | Awaitable[_T]) -> _T:
    return PORTAL.run(cast("Awaitable[_T]", answer)) if needs_await(answer) else cast("_T", answer)


async def _soon(answer: Any) -> Any:
    return await answer if needs_await(answer) else answer
