"""Charges: the parent sessions in which a call counts too, and the amounts that it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from edictum.core._records import record, replace
from edictum.core.call import ToolCall
from edictum.core.decide import describe
from edictum.core.decision import Failed
from edictum.core.limits import NO_AMOUNTS, amounts_in_millionths
from edictum.errors import EdictumInputError

Actual: TypeAlias = Callable[[Any], Mapping[str, float]]


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
    note: str = ""  # why the amounts after the call are still the estimate


NO_CHARGES = Charges()


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


def measure_charges(charges: Charges, actual: Actual, value: Any) -> Charges:
    """Compute what a call used from its result; a failure leaves the estimate and a ``note``."""
    try:
        used = amounts_in_millionths("actual_amounts", actual(value))
    except Exception as exc:
        note = f"actual_amounts gave no answer, so the estimate was counted: {describe(exc)}"
        return replace(charges, note=note)
    return replace(charges, amounts={**charges.amounts, **used})
