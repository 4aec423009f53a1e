"""Charges: the parent sessions in which a call counts too, and the amounts that it uses.

An amount is stated by the caller of a call, or else by its tool: as a number, or as a function that
finds it in the call. When the call is settled, the tool's result may replace the estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from edictum.core._records import maker, record, replace
from edictum.core.call import ToolCall
from edictum.core.decide import describe, is_for_model
from edictum.core.decision import USER_ERRORS
from edictum.core.freeze import EMPTY
from edictum.core.limits import NO_AMOUNTS, amounts_in_millionths, millionths
from edictum.errors import EdictumError, EdictumInputError

Actual: TypeAlias = Callable[[Any], Mapping[str, float]]
Estimate: TypeAlias = Callable[[ToolCall], Mapping[str, float]]


@record
class AmountSource:
    """Where a tool's amount is found: ``read`` gets the call, or the result it is measured by.

    ``text`` names the place in messages.
    """

    text: str
    read: Callable[[Any], Any]


Sources: TypeAlias = Mapping[str, AmountSource]
NO_SOURCES: Sources = EMPTY


@record
class Charges:
    """What one call states: parent sessions, nearest first, and amounts in millionths.

    ``estimate`` is the caller's function of the call and ``actual`` that of its result; ``sources``
    and ``measures`` are the tool's, by the name of the amount. What the caller states wins.
    """

    parents: tuple[str, ...] = ()
    amounts: Mapping[str, int] = NO_AMOUNTS
    actual: Actual | None = None
    estimate: Estimate | None = None
    sources: Sources = NO_SOURCES
    measures: Sources = NO_SOURCES
    unknown: tuple[str, ...] = ()  # amounts of the tool that could not be found in the call
    problem: str = ""  # why not all amounts are known
    for_operators: bool = False  # the problem quotes what was raised
    note: str = ""  # why the amounts after the call are still the estimate

    @property
    def is_measured(self) -> bool:
        """Whether the amounts that the call really used are read from its result."""
        return self.actual is not None or bool(self.measures)


make_charges = maker(Charges)
NO_CHARGES = Charges()


def charges_of_tool(amounts: Mapping[str, Any], actual: Mapping[str, Any]) -> Charges:
    """Return what every call of a tool states, from numbers and sources by name."""
    if not amounts and not actual:
        return NO_CHARGES
    return Charges(
        amounts={
            name: millionths(f"amounts[{name!r}]", value)
            for name, value in amounts.items()
            if not isinstance(value, AmountSource)
        },
        sources={name: it for name, it in amounts.items() if isinstance(it, AmountSource)},
        measures={name: _as_source(value) for name, value in actual.items()},
    )


def _as_source(value: Any) -> AmountSource:
    return value if isinstance(value, AmountSource) else AmountSource(str(value), lambda _: value)


def estimate_charges(charges: Charges, call: ToolCall) -> Charges:
    """Compute the amounts that depend on the call; what cannot be computed is a ``problem``."""
    if charges.estimate is None and not charges.sources:
        return charges
    amounts, unknown, problems = dict(charges.amounts), list[str](), list[str]()
    for_operators = False
    if charges.estimate is not None:
        try:
            amounts |= amounts_in_millionths("amounts", charges.estimate(call))
        except USER_ERRORS as exc:  # it may quote what the function returned
            for_operators = True
            problems.append(f"The amounts of the call could not be determined: {_explain(exc)}")
    for name, source in charges.sources.items():
        if name in amounts:
            continue
        try:
            amounts[name] = _read_amount(source, call)
        except USER_ERRORS as exc:
            unknown.append(name)
            for_operators = for_operators or not is_for_model(exc)
            problems.append(f"The amount {name!r} of the call is not known: {_explain(exc)}")
    return replace(
        charges,
        amounts=amounts,
        estimate=None,
        sources=NO_SOURCES,
        unknown=tuple(unknown),
        problem=" ".join(problems),
        for_operators=for_operators,
    )


def _read_amount(source: AmountSource, subject: Any) -> int:
    """Return an amount in millionths; raise an error that says what is wrong with it."""
    value = source.read(subject)
    if value is None:
        raise EdictumInputError(f"{source.text} is missing.")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        is_sent = source.text.startswith(("args.", "result."))  # other values are not for a model
        shown = f"{value!r:.80}" if is_sent else f"of type {type(value).__name__}"
        raise EdictumInputError(f"{source.text} is {shown}, not a number.")
    return millionths(source.text, value)


def _explain(error: BaseException) -> str:
    own = isinstance(error, EdictumError)
    return describe(error) if own else f"{type(error).__name__}: {describe(error)}"


def measure_charges(charges: Charges, value: Any) -> Charges:
    """Compute what a call used from its result; a missing amount leaves a ``note`` and stays as
    estimated.
    """
    used, notes = dict[str, int](), list[str]()
    if charges.actual is not None:
        try:
            used = amounts_in_millionths("actual_amounts", charges.actual(value))
        except USER_ERRORS as exc:
            why = _explain(exc)
            notes.append(f"actual_amounts failed, so the estimate was counted: {why}")
    for name, source in charges.measures.items():
        if name in used:
            continue
        try:
            used[name] = _read_amount(source, value)
        except USER_ERRORS as exc:
            counted = "its estimate" if name in charges.amounts else "nothing"
            why = f"so {counted} was counted: {_explain(exc)}"
            notes.append(f"The amount {name!r} was not measured, {why}")
    return replace(charges, amounts={**charges.amounts, **used}, note=" ".join(notes))
