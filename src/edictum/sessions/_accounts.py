"""Steps in accounts: what a reservation or a settlement is in one of the accounts of its call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from edictum.core._records import replace
from edictum.core.limits import Account, Breach, Grant, Reservation, Settlement, release_of

_Step = TypeVar("_Step", Reservation, Settlement)


def name_in_account(session_id: str, call_id: str) -> str:
    """Return the name of a call in its accounts; its id is unique in its own session only."""
    return f"{session_id}\x1f{call_id}"


def in_account(step: _Step, account: Account) -> _Step:
    """Return a step as it is taken in one of its accounts."""
    return replace(
        step,
        session_id=account.key,
        call_id=name_in_account(step.session_id, step.call_id),
        tools=account.tools,
        limits=account.limits,
        accounts=(),
    )


def only_looks(step: Reservation | Settlement) -> bool:
    """Return whether the step must change nothing, not even create a session."""
    return isinstance(step, Reservation) and not step.count_attempt and not step.hold


async def reserve_one_by_one(
    reservation: Reservation,
    apart: Sequence[Account],
    reserve: Callable[[Reservation], Awaitable[Grant]],
    settle: Callable[[Settlement], Awaitable[object]],
    taken: list[Settlement],
) -> Grant:
    """Reserve in the accounts ``apart``, the last one first, then in the session and the rest.

    For stores that cannot change several accounts in one step. What was taken is given back when
    one refuses, so no limit is ever exceeded; but a call may be refused because another one, which
    is refused itself, has held a slot for a moment. ``reserve`` takes one step, which leaves out
    the accounts ``apart``, and so does ``settle``. ``taken`` is filled with the settlements that
    give the slots back, for a caller that is interrupted.
    """
    granted = True
    breaches: tuple[Breach, ...] = ()
    for account in reversed(apart):
        grant = await reserve(in_account(reservation, account))
        breaches = grant.breaches + breaches
        if grant.granted and reservation.hold:
            taken.append(release_of(in_account(reservation, account)))
        elif not grant.granted:  # the others count the attempt, and say what is full
            granted, reservation = False, replace(reservation, hold=False)
    last = await reserve(reservation)
    granted = granted and last.granted
    while taken and not granted:
        await settle(taken.pop())
    return replace(last, granted=granted, breaches=last.breaches + breaches)
