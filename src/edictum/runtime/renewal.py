"""Renewals: keep the leases of calls under way, for as long as their process lives.

A lease is held from its grant until it is settled, since contracts, sinks and callbacks before and
after the tool may take long too. While calls with a lease are under way there is one thread per
guard. A call that ends within a third of its lease is never renewed.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from typing import Any

from edictum._logs import LEDGER_LEASE, log
from edictum.core._records import replace
from edictum.core.decide import describe
from edictum.core.effects import Effect
from edictum.core.limits import Grant, Reservation, Settlement
from edictum.execution.body import needs_await
from edictum.execution.failures import NotStarted
from edictum.execution.forks import call_in_child, protect
from edictum.execution.portal import PORTAL
from edictum.execution.threads import start_thread


class Held:
    """A call whose lease is renewed until it is released, or until this object is garbage."""

    __slots__ = ("__weakref__", "key", "session_id", "settling", "since")

    def __init__(self, session_id: str, key: str) -> None:
        self.session_id = session_id
        self.key = key
        self.since = time.monotonic()
        self.settling = False  # its settlement is being sent, so a lost lease is not reported


class Renewals:
    """Renews the leases of one ledger, one for each ``Held`` that is still referenced."""

    def __init__(self, ledger: Any, lease_s: float) -> None:
        self._ledger = ledger
        self.lease_s = lease_s
        self._reset()
        protect(self)
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Start anew: in a forked child these calls are the parent's."""
        self._lock = threading.Lock()
        self._held: weakref.WeakSet[Held] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def hold(self, session_id: str, key: str) -> Held:
        held = Held(session_id, key)
        with self._lock:
            self._held.add(held)
            if self._thread is None:
                self._thread = self._new_thread()
        return held

    def _new_thread(self) -> threading.Thread | None:
        """Start a thread; return None when the machine has none left, so that the next call tries
        again.
        """
        thread = threading.Thread(target=self._serve, name="edictum-renewals", daemon=True)
        try:
            start_thread(thread)
        except NotStarted as exc:
            log(LEDGER_LEASE, "The leases of running calls are not renewed: %s", describe(exc))
            return None
        return thread

    def let_go(self, held: Held) -> None:
        with self._lock:
            self._held.discard(held)

    def _serve(self) -> None:
        while True:
            time.sleep(self.lease_s / 3)
            with self._lock:
                if not self._held:
                    self._thread = None
                    return
                young = time.monotonic() - self.lease_s / 3
                due = [held for held in self._held if held.since <= young]
            PORTAL.run(self._renew(due))
            del due  # it would keep the leases of dropped calls

    async def _renew(self, due: list[Held]) -> None:
        await asyncio.gather(*(self._renew_one(held) for held in due))

    async def _renew_one(self, held: Held) -> None:
        try:
            renewed = self._ledger.renew(held.session_id, held.key, self.lease_s)
            if needs_await(renewed):
                renewed = await renewed
        except Exception as exc:
            log(
                LEDGER_LEASE,
                "The lease of a running call could not be renewed: %s",
                describe(exc),
                session_id=held.session_id,
                call_key=held.key,
            )
            return
        if renewed is False:
            with self._lock:
                still = held in self._held
                self._held.discard(held)
            if still and not held.settling:
                log(
                    LEDGER_LEASE,
                    "The lease of call %s ran out while it was running; it is counted when it"
                    " ends.",
                    held.key,
                    session_id=held.session_id,
                    call_key=held.key,
                )


class CallLeases:
    """The leases of one call. They belong to it: when the call is dropped, they run out."""

    __slots__ = ("_asked_at", "_held", "_renewals")

    def __init__(self, renewals: Renewals) -> None:
        self._renewals = renewals
        self._held: dict[tuple[str, str], Held] = {}
        self._asked_at = 0.0

    def note_sending(self, effect: Effect) -> None:
        """Note that a reservation or a settlement is being sent. The lease of a reservation begins
        no earlier.
        """
        if type(effect) is Reservation:
            self._asked_at = time.monotonic()
        elif type(effect) is Settlement:
            held = self._held.get((effect.session_id, effect.call_id))
            if held is not None:
                held.settling = True

    def take_answer(self, asked: Effect, answer: Any) -> Any:
        """Hold a lease that was granted; release the one whose settlement was answered.

        Returns the answer. A grant that came after its lease had ended is marked as late.
        """
        if isinstance(asked, Settlement):
            held = self._held.pop((asked.session_id, asked.call_id), None)
            if held is not None:
                self._renewals.let_go(held)
        elif isinstance(asked, Reservation) and asked.hold and is_granted(answer):
            if asked.lease_s is not None and self._asked_at + asked.lease_s <= time.monotonic():
                return replace(answer, is_late=True)
            if asked.lease_s == self._renewals.lease_s:  # others last as long as is needed
                key = (asked.session_id, asked.call_id)
                self._held[key] = self._renewals.hold(*key)
        return answer


def is_granted(answer: Any) -> bool:
    return isinstance(answer, Grant) and answer.granted


def renewals_for(ledger: Any) -> Renewals | None:
    """Return the renewals of a ledger, or None when its leases do not run out."""
    lease_s: float | None = getattr(ledger, "default_lease_s", None)
    return None if lease_s is None else Renewals(ledger, lease_s)
