"""Renewals: the leases of calls that are running are kept alive, for as long as their process lives.

One thread per guard, which exists only while calls run that have a lease. A call that ends within a third of its lease is never
renewed, so a short call costs the ledger nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import weakref
from typing import Any

from edictum.core.decide import describe
from edictum.core.effects import RunTool
from edictum.execution.body import needs_await
from edictum.execution.failures import NotStarted
from edictum.execution.portal import PORTAL
from edictum.execution.threads import begin

logger = logging.getLogger("edictum")


class Held:
    """A running call whose lease is renewed until it is let go."""

    __slots__ = ("__weakref__", "key", "session_id", "since")

    def __init__(self, run: RunTool) -> None:
        self.session_id = run.call.run_id
        self.key = run.key
        self.since = time.monotonic()


class Renewals:
    """Renews leases of one ledger. Who holds a ``Held`` keeps its lease alive; dropping it, or forgetting it, lets it run out."""

    def __init__(self, ledger: Any, lease_s: float) -> None:
        self._ledger = ledger
        self._lease_s = lease_s
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._held: weakref.WeakSet[Held] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def hold(self, run: RunTool) -> Held:
        if self._pid != os.getpid():  # a fork: these calls are the parent's
            self._forget()
        held = Held(run)
        with self._lock:
            self._held.add(held)
            if self._thread is None:
                self._thread = self._new_thread()
        return held

    def _new_thread(self) -> threading.Thread | None:
        """None when the machine has no thread left: the next call tries again, and a lease that runs out is told of."""
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
            time.sleep(self._lease_s / 3)
            with self._lock:
                if not self._held:
                    self._thread = None
                    return
                young = time.monotonic() - self._lease_s / 3
                due = [held for held in self._held if held.since <= young]
            PORTAL.run(self._renew(due))
            del due  # it would keep forgotten calls alive

    async def _renew(self, due: list[Held]) -> None:
        await asyncio.gather(*(self._renew_one(held) for held in due))

    async def _renew_one(self, held: Held) -> None:
        try:
            renewed = self._ledger.renew(held.session_id, held.key, self._lease_s)
            if needs_await(renewed):
                renewed = await renewed
        except Exception as exc:
            logger.warning("The lease of a running call could not be renewed: %s", describe(exc))
            return
        if renewed is False:
            with self._lock:
                still = held in self._held
                self._held.discard(held)
            if still:
                logger.warning("The lease of call %s ran out while it was running; it is counted when it ends.", held.key)


def renewals_for(ledger: Any) -> Renewals | None:
    """The renewals of a ledger; None when its leases do not run out."""
    lease_s: float | None = getattr(ledger, "default_lease_s", None)
    return None if lease_s is None else Renewals(ledger, lease_s)
