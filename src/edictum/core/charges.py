"""Charges: the parent sessions in which a call counts too, and the amounts that it uses.

Few calls state any, so the lifecycle knows nothing of them. ``charge`` passes on the effects of a
lifecycle and adds the charges to what goes to the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias, TypeVar

from edictum.core._records import record, replace
from edictum.core.call import ToolCall
from edictum.core.decide import describe
from edictum.core.decision import Failed
from edictum.core.effects import Effect, Ran, Rewritten, Within
from edictum.core.limits import (
    NO_AMOUNTS,
    Grant,
    Reservation,
    Settlement,
    amounts_in_millionths,
    with_amounts,
)
from edictum.core.relay import relay
from edictum.errors import EdictumInputError

Actual: TypeAlias = Callable[[Any], Mapping[str, float]]
_T = TypeVar("_T")


@record
class Charges:
    """What one call states: parent sessions, nearest first, and amounts in millionths.

    ``estimate`` computes the amounts from the call, ``actual`` from its result.
    """

    parents: tuple[str, ...] = ()
    amounts: Mapping[str, int] = NO_AMOUNTS
    actual: Actual | None = None
    estimate: Callable[[ToolCall], Mapping[str, float]] | None = None
    problem: Failed | None = None  # why the amounts are not known


NO_CHARGES = Charges()


def charge(flow: Generator[Effect, Any, _T], charges: Charges) -> Generator[Effect, Any, _T]:
    """Pass on the effects of a lifecycle, or of an admission, with its charges."""
    charging = _Charging(charges)
    return relay(flow, charging.state, charging.read, charging.add_note)


class _Charging:
    """The charges of one call while it is governed."""

    def __init__(self, charges: Charges) -> None:
        self._charges = charges
        self._used = charges.amounts
        self._note = ""

    def state(self, effect: Any) -> Effect:
        """Return an effect for the ledger with the charges, any other effect as it is."""
        charges, kind = self._charges, type(effect)
        if kind is Within:
            return Within(self.state(effect.effect), effect.timeout_s)
        if kind is Reservation:
            # with a problem the call is refused, and its attempt counts
            hold = effect.hold and charges.problem is None
            return _reservation(effect, charges, hold)
        if kind is Settlement:
            amounts = NO_AMOUNTS if effect.result == "release" else self._used
            return _settlement(effect, amounts, charges.parents)
        if kind is Rewritten:
            self._charges = estimate_charges(charges, effect.call)
            self._used = self._charges.amounts
            return Rewritten(effect.call, self._charges.problem)
        return effect  # type: ignore[no-any-return]  # of Any: one of the other effects

    def read(self, answer: Any) -> Any:
        """Return an answer as the lifecycle gets it."""
        charges = self._charges
        if isinstance(answer, Grant):
            return charges.problem or with_amounts(answer, charges.amounts)
        if isinstance(answer, Ran) and charges.actual is not None:
            self._used, self._note = _amounts_used(answer, charges, charges.actual)
        return answer

    def add_note(self, result: Any) -> Any:
        return replace(result, notes=(*result.notes, self._note)) if self._note else result


def _reservation(asked: Reservation, charges: Charges, hold: bool) -> Reservation:
    return Reservation(
        asked.session_id,
        asked.call_id,
        asked.scopes,
        asked.limits,
        asked.count_attempt,
        hold,
        asked.enforce,
        asked.lease_s,
        asked.expiry_counts,
        charges.amounts,
        charges.parents,
        asked.per_tool,
    )


def _settlement(
    asked: Settlement, amounts: Mapping[str, int], parents: tuple[str, ...]
) -> Settlement:
    return Settlement(
        asked.session_id,
        asked.call_id,
        asked.scopes,
        asked.limits,
        asked.result,
        amounts,
        parents,
    )


def estimate_charges(charges: Charges, call: ToolCall) -> Charges:
    """Compute amounts that depend on the call's arguments; a failure becomes ``problem``."""
    if charges.estimate is None:
        return charges
    try:
        amounts = amounts_in_millionths("amounts", charges.estimate(call))
    except Exception as exc:
        problem = EdictumInputError(
            f"the amounts of the call could not be told: {type(exc).__name__}: {describe(exc)}"
        )
        return replace(charges, amounts=NO_AMOUNTS, problem=Failed(problem))
    return replace(charges, amounts=amounts, problem=None)


def _amounts_used(ran: Ran, charges: Charges, actual: Actual) -> tuple[Mapping[str, int], str]:
    """Return what the call used, and a note when that is only the estimate."""
    if ran.error is not None or ran.deadline_s is not None:
        return charges.amounts, ""
    try:
        used = amounts_in_millionths("actual_amounts", actual(ran.value))
    except Exception as exc:
        note = f"actual_amounts gave no answer, so the estimate was counted: {describe(exc)}"
        return charges.amounts, note
    return {**charges.amounts, **used}, ""
