"""What one call states about its counting: the sessions above its own, and the amounts it expects
to use and used.

Few calls state anything, so the lifecycle knows nothing of it. ``accounted`` walks along with one,
and adds what was stated to what it asks of the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

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
from edictum.core.terms import Flow
from edictum.errors import EdictumInputError
from edictum.outcomes import ToolOutcome

Actual: TypeAlias = Callable[[Any], Mapping[str, float]]


@record
class Account:
    """``parents`` nearest first; ``amounts`` in millionths, by ``estimate`` if they depend on the
    call; ``actual`` tells from a result what was used.
    """

    parents: tuple[str, ...] = ()
    amounts: Mapping[str, int] = NO_AMOUNTS
    actual: Actual | None = None
    estimate: Callable[[ToolCall], Mapping[str, float]] | None = None
    problem: Failed | None = None  # the amounts could not be told


NO_ACCOUNT = Account()


def accounted(flow: Flow, account: Account) -> Flow:
    """The same walk, counted in the parents as well, and with amounts."""
    answer: Any = None
    used, note, tell, broken = account.amounts, "", flow.send, False
    try:
        while True:
            try:
                effect = tell(answer)
                if isinstance(effect, Rewritten):
                    account = estimated(account, effect.call)
                    answer, used = account.problem, account.amounts
                    continue
                answer, tell = (yield _stated(effect, account, used)), flow.send
                if isinstance(answer, Grant):
                    answer = (
                        with_amounts(answer, account.amounts)
                        if account.problem is None
                        else account.problem
                    )
                elif isinstance(answer, Ran) and account.actual is not None:
                    used, note = _used(answer, account, account.actual)
            except StopIteration as end:
                outcome: ToolOutcome = end.value
                return replace(outcome, notes=(*outcome.notes, note)) if note else outcome
            except (
                BaseException
            ) as exc:  # somebody said stop: the walk has to close the call, unless it is over
                if broken or isinstance(exc, GeneratorExit):
                    raise
                answer, tell, broken = exc, flow.throw, True
    finally:
        flow.close()


def _stated(effect: Effect, account: Account, used: Mapping[str, int]) -> Effect:
    """What is asked of the ledger, with what the call states."""
    if isinstance(effect, Within):
        return Within(_stated(effect.effect, account, used), effect.timeout_s)
    if isinstance(effect, Reservation):
        hold = (
            effect.hold and account.problem is None
        )  # else the call is refused, and its attempt counts
        return replace(effect, amounts=account.amounts, parents=account.parents, hold=hold)
    if isinstance(effect, Settlement):
        return replace(
            effect,
            amounts=NO_AMOUNTS if effect.result == "release" else used,
            parents=account.parents,
        )
    return effect


def estimated(account: Account, call: ToolCall) -> Account:
    """The account of a call whose amounts depend on its arguments. Those come from a model, so what
    is wrong with them is kept.
    """
    if account.estimate is None:
        return account
    try:
        return replace(
            account, amounts=amounts_in_millionths("amounts", account.estimate(call)), problem=None
        )
    except Exception as exc:
        told = EdictumInputError(
            f"the amounts of the call could not be told: {type(exc).__name__}: {describe(exc)}"
        )
        return replace(account, amounts=NO_AMOUNTS, problem=Failed(told))


def _used(ran: Ran, account: Account, actual: Actual) -> tuple[Mapping[str, int], str]:
    """What the call used. Where that cannot be told, it used what it expected to."""
    if ran.error is not None or ran.deadline_s is not None:
        return account.amounts, ""
    try:
        return {**account.amounts, **amounts_in_millionths("actual_amounts", actual(ran.value))}, ""
    except Exception as exc:
        return (
            account.amounts,
            f"actual_amounts gave no answer, so the estimate was counted: {describe(exc)}",
        )
