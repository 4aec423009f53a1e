"""Calls that were allowed and whose tool is not started: they are denied and give their slot back."""

from __future__ import annotations

import threading

from edictum import Edictum, ToolDenied, ToolTimeout
from edictum.core._records import replace
from edictum.core.limits import Grant, Reservation
from edictum.sessions import MemoryLedger
from support.guards import count_calls


class LateLedger(MemoryLedger):
    """Answers when the lease of the call has ended."""

    def reserve(self, reservation: Reservation) -> Grant:
        return replace(super().reserve(reservation), is_late=True)


def test_a_grant_that_comes_after_its_lease_is_given_back() -> None:
    """Another call may have the slot by then."""
    ran: list[int] = []
    guard = Edictum(backend=LateLedger())
    outcome = guard.dispatch_sync("t", {}, lambda: ran.append(1))
    assert isinstance(outcome, ToolDenied)
    assert (outcome.reason, outcome.decision_source, ran) == ("policy_error", "ledger", [])
    assert count_calls(guard) == (0, 0, 0, 0)


def test_a_call_that_no_thread_is_free_for_is_denied() -> None:
    """It is not a failure of the tool."""
    release, guard = threading.Event(), Edictum(max_hung_threads=1)
    try:
        hung = guard.dispatch_sync("t", {}, lambda: release.wait(60), timeout_s=0.05)
        assert isinstance(hung, ToolTimeout)
        outcome = guard.dispatch_sync("t", {}, lambda: 1, run_in="thread")
    finally:
        release.set()
    assert isinstance(outcome, ToolDenied)
    assert (outcome.reason, outcome.decision_source) == ("capacity", "execution")
    assert count_calls(guard) == (1, 0, 1, 0)
