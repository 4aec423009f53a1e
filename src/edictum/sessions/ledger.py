"""The Ledger port: where counters live, and what every ledger promises.

Each operation is atomic. ``edictum.testing.LedgerConformance`` is the executable form of this text;
a ledger that passes it can be given to a guard as ``backend=``. Methods may be ordinary or
``async`` functions, all of one kind.

* ``reserve`` counts the attempt, checks every limit and, if none that is enforced is full, takes
  the call's slots: all in one step. Nothing is taken when it refuses, and all full limits are named
  either way. Repeating it with the same call id (a retry after a lost answer) changes nothing and
  gives the same answer. One that neither counts its attempt nor holds a slot is a look: it is
  answered as a call would be now, and changes nothing. Its answer holds the session's counters of
  that moment, with the call itself; a reservation that asks ``per_tool`` gets those of each tool
  as well. Session contracts judge by them: each call must see the ones before it, and none of those
  after it.
* ``settle`` ends a held call. Success and failure count an execution; release gives every slot
  back. Repeating it changes nothing. A call whose lease has run out is still counted when it ends.
* ``renew`` extends a lease; False means that the lease is gone.
* ``snapshot`` reads all counters of a session at one moment; ``reset`` forgets the session.

A reservation with ``accounts``, of sessions above or of scopes, is judged and counted in those too,
each by its own limits, in the same step or not at all. A store that cannot do that in one step
takes slots in the last account first, and gives them back when another one refuses: no limit is
ever passed. An account that holds the call still, because only the call's own session was reset, is
left as it is when the call is reserved again. ``settle`` ends the call in all accounts that its
reservation named. Its ``amounts`` are held while the call runs; ``settle`` charges what was used
and gives back the rest. A refused reservation that is asked for again is another attempt.

Two attributes are read when they are there: ``name``, for people, and ``default_lease_s``, the
lease that calls get and that is renewed while they run; None means that leases do not run out. Two
methods are called when they are there: ``sessions(limit)``, the sessions with their counters, and
``close()``.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, runtime_checkable

from edictum.core.limits import Counters, Grant, Reservation, SessionSnapshot, Settlement


@runtime_checkable
class Ledger(Protocol):
    """Atomic counters with reservations. See the module's text for what each operation promises."""

    def reserve(self, reservation: Reservation, /) -> Grant | Awaitable[Grant]: ...

    def settle(self, settlement: Settlement, /) -> Counters | Awaitable[Counters]: ...

    def renew(self, session_id: str, call_id: str, lease_s: float, /) -> bool | Awaitable[bool]: ...

    def snapshot(self, session_id: str, /) -> SessionSnapshot | Awaitable[SessionSnapshot]: ...

    def reset(self, session_id: str, /) -> Awaitable[None] | None: ...
