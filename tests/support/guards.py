"""Guards and contracts that many tests need."""

from __future__ import annotations

from typing import Any

from edictum import Edictum, Verdict, precondition


def approval_contract(
    tool: str = "*", message: str = "are you sure?", *, id: str = "ask", **options: Any
) -> Any:
    """Return a contract that lets every call of ``tool`` wait for a person."""
    contract = precondition(tool, id=id, effect="approve", **options)
    return contract(lambda call: Verdict.fail(message))


def denying(name: str, **options: Any) -> Any:
    """Return a precondition of every call that fails, or asks with ``effect="approve"``."""
    return precondition("*", id=name, **options)(lambda call: Verdict.fail(f"{name} says no"))


def passing(name: str, **options: Any) -> Any:
    """Return a precondition of every call that passes."""
    return precondition("*", id=name, **options)(lambda call: Verdict.pass_())


def list_actions(guard: Edictum) -> list[str]:
    """Return the actions of the guard's events, in order."""
    return [event.action.value for event in guard.local_sink.events]


def count_calls(guard: Edictum, session_id: str | None = None) -> tuple[int, int, int, int]:
    """Return executions, successes, failures and calls in flight of a session."""
    session = guard.session() if session_id is None else guard.session(session_id)
    totals = session.snapshot().totals
    return totals.executions, totals.successes, totals.failures, totals.in_flight
