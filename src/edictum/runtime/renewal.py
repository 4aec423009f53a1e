"""Renewals: the leases of calls under way are kept alive, for as long as their process lives.

A lease is held from its grant until it is settled: contracts, sinks and callbacks before and after
the tool may take long as well. One thread per guard, which exists only while calls are under way
that have a lease. A call that ends within a third of its lease is never renewed, so a short call
costs the ledger nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from typing import Any

from edictum.core.config import Flow
from edictum.core.decide import describe
from edictum.core.effects import Effect, Within
from edictum.core.limits import Grant, Reservation, Settlement
from edictum.execution.body import needs_await
from edictum.execution.failures import NotStarted
from edictum.execution.forks import protect
from edictum.execution.portal import PORTAL
from edictum.execution.threads import begin

logger = logging.getLogger("edictum")


class Held:
    """A call whose lease is renewed until it is let go."""

    __slots__ = ("__weakref__", "key", "session_id", "settling", "since")

    def __init__(self, session_id: str, key: str) -> None:
        self.session_id = session_id
        self.key = key
        self.since = time.monotonic()
        self.settling = (
            False  # its end is on its way: the lease may be gone before the answer is here
        )


class Renewals:
    """Renews leases of one ledger. Who holds a ``Held`` keeps its lease alive; dropping it, or
    forgetting it, lets it run out.
    """

    def __init__(self, ledger: Any, lease_s: float) -> None:
        self._ledger = ledger
        self.lease_s = lease_s
        self._forget()
        protect(self)

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._held: weakref.WeakSet[Held] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def hold(self, session_id: str, key: str) -> Held:
        if self._pid != os.getpid():  # a fork: these calls are the parent's
            self._forget()
        held = Held(session_id, key)
        with self._lock:
            self._held.add(held)
            if self._thread is None:
                self._thread = self._new_thread()
        return held

    def _new_thread(self) -> threading.Thread | None:
        """None when the machine has no thread left: the next call tries again, and a lease that
        runs out is told of.
        """
        thread = threading.Thread(target=self._serve, name="edictum-renewals", daemon=True)
        try:
            begin(thread)
        except NotStarted as exc:
            logger.warning("The leases of running calls are not renewed: %s", describe(exc))
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
            del due  # it would keep forgotten calls alive

    async def _renew(self, due: list[Held]) -> None:
        await asyncio.gather(*(self._renew_one(held) for held in due))

    async def _renew_one(self, held: Held) -> None:
        try:
            renewed = self._ledger.renew(held.session_id, held.key, self.lease_s)
            if needs_await(renewed):
                renewed = await renewed
        except Exception as exc:
            logger.warning("The lease of a running call could not be renewed: %s", describe(exc))
            return
        if renewed is False:
            with self._lock:
                still = held in self._held
                self._held.discard(held)
            if still and not held.settling:
                logger.warning(
                    "The lease of call %s ran out while it was running; it is counted when it"
                    " ends.",
                    held.key,
                )


class LeasedFlow:
    """A walk that keeps its leases alive. They are its own: a walk that is thrown away lets them
    run out.

    ``asked`` is the effect at which the walk stands, if it has begun.
    """

    __slots__ = ("_asked", "_flow", "_held", "_renewals")

    def __init__(self, flow: Flow, renewals: Renewals, asked: Effect | None = None) -> None:
        self._flow = flow
        self._renewals = renewals
        self._held: dict[tuple[str, str], Held] = {}
        self._asked: Effect | None = None
        if asked is not None:
            self._asks(asked)

    def send(self, answer: Any) -> Effect:
        self._answered(answer)
        return self._asks(self._flow.send(answer))

    def throw(self, exc: BaseException) -> Effect:
        return self._asks(self._flow.throw(exc))

    def _asks(self, effect: Effect) -> Effect:
        self._asked = wanted = effect.effect if type(effect) is Within else effect
        if (
            type(wanted) is Settlement
            and (held := self._held.get((wanted.session_id, wanted.call_id))) is not None
        ):
            held.settling = True
        return effect

    def _answered(self, answer: Any) -> None:
        asked, self._asked = self._asked, None
        if type(asked) is Settlement:
            held = self._held.pop((asked.session_id, asked.call_id), None)
            if held is not None:
                self._renewals.let_go(held)
        elif type(asked) is Reservation and self._must_be_held(asked, answer):
            self._held[asked.session_id, asked.call_id] = self._renewals.hold(
                asked.session_id, asked.call_id
            )

    def _must_be_held(self, asked: Reservation, answer: Any) -> bool:
        """Who asked for a lease of another length has chosen it to last for as long as is
        needed.
        """
        return (
            asked.hold
            and asked.lease_s == self._renewals.lease_s
            and isinstance(answer, Grant)
            and answer.granted
        )


def renewals_for(ledger: Any) -> Renewals | None:
    """The renewals of a ledger; None when its leases do not run out."""
    lease_s: float | None = getattr(ledger, "default_lease_s", None)
    return None if lease_s is None else Renewals(ledger, lease_s)
