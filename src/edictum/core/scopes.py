"""Scopes: whose calls a limit counts together, and which limits of a plan judge one call.

The account of a scope has a key that users cannot choose as a session id. It is made of the scope
as the limit states it and the value that the call has for it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import iscoroutine
from typing import Any, Literal

from edictum.core._records import record, replace
from edictum.core.approvers import Approvers
from edictum.core.call import ToolCall
from edictum.core.decide import describe, is_for_model
from edictum.core.decision import USER_ERRORS, Objection
from edictum.core.limits import (
    GLOBAL,
    MARK,
    ORG,
    PRINCIPAL,
    SESSION_SCOPE,
    Account,
    Limit,
    OperationLimits,
    tools_for,
)
from edictum.core.policy import Plan
from edictum.errors import EdictumConfigError, EdictumInputError

SERVICE = "service"  # a principal without a user_id is counted apart from users
EVERYONE = "*"  # the value of the scope "global"
MAX_VALUE_CHARS = 120  # longer values are hashed, so that every store can keep their keys
MAX_CACHED_SELECTIONS = 1_000
SELECT_ALL = "all limits"  # in a plan's memo
_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def scope_key(scope: str, value: object) -> str:
    """Return the key of the account that a scope has for a value.

    A number and its text are the same value: a model could choose between them.
    """
    text = _value_as_text(scope, value)
    if len(text) <= MAX_VALUE_CHARS and not _ODD.search(text):
        return f"{MARK}{scope}{MARK}={text}"
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{MARK}{scope}{MARK}#{digest}"


def _value_as_text(scope: str, value: object) -> str:
    if value is None or value == "":
        problem = f"The scope {scope!r} has no value: {_field_for(scope)} is missing"
        raise EdictumInputError(problem)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, (int, float)):
        return str(value)
    kind, found = type(value).__name__, _field_for(scope)
    raise EdictumInputError(
        f"The scope {scope!r} has no value: {found} is {kind}, not text or a number"
    )


def _field_for(scope: str) -> str:
    """Return the field of a call that has the value of a scope."""
    fields = {PRINCIPAL: "principal.user_id or service_id", ORG: "principal.org_id"}
    return fields.get(scope, scope)


def account_key(limit: Limit, call: ToolCall) -> str:
    """Return the key of the account in which a limit counts a call, "" for its session. Raises
    EdictumInputError when the call does not have a value for the scope.
    """
    if limit.scope == SESSION_SCOPE:
        return ""
    if limit.scope == GLOBAL:
        return scope_key(GLOBAL, EVERYONE)
    principal = call.principal
    if limit.scope == PRINCIPAL:
        if principal is not None and not principal.user_id and principal.service_id:
            return scope_key(SERVICE, principal.service_id)
        return scope_key(PRINCIPAL, principal and principal.user_id)
    if limit.scope == ORG:
        return scope_key(ORG, principal and principal.org_id)
    assert limit.key is not None  # a selector, which was compiled into it
    return scope_key(limit.scope, limit.key(call))


# --- Which limits judge a call --------------------------------------------------------------------


@record
class Selection:
    """The limits that judge one call, and the accounts in which it counts beside its session.

    ``enforced`` and ``observed`` are the limits that could not be applied to the call.
    """

    tools: tuple[str, ...]
    limits: tuple[Limit, ...]
    accounts: tuple[Account, ...] = ()
    enforced: tuple[Objection, ...] = ()
    observed: tuple[Objection, ...] = ()

    def waive(self, limits: tuple[Limit, ...]) -> Selection:
        """Return the selection with these limits reported but not enforced."""
        accounts = [replace(it, limits=_waive(it.limits, limits)) for it in self.accounts]
        return replace(self, limits=_waive(self.limits, limits), accounts=tuple(accounts))


def _waive(limits: tuple[Limit, ...], waived: tuple[Limit, ...]) -> tuple[Limit, ...]:
    return tuple(replace(it, enforce=False) if it in waived else it for it in limits)


def select_limits(plan: Plan, call: ToolCall, parents: tuple[str, ...]) -> Selection:
    """Return what judges a call, and where it counts."""
    if not plan.rules:
        return _select_all(plan, parents)
    chosen: dict[str, list[Limit]] = {"": []}
    problems: dict[bool, list[Objection]] = {True: [], False: []}
    for limit in plan.rules:
        try:
            if limit.when is None or _holds(limit, call):
                chosen.setdefault(account_key(limit, call), []).append(limit)
        except USER_ERRORS as exc:
            problems[limit.enforce].append(_objection_to(limit, exc))
    tools, limits = _tallies_and_limits(plan, plan.limits, chosen.pop(""))
    above = [Account(parent, tools, limits) for parent in parents]
    scopes = [Account(key, *_tallies_and_limits(plan, (), own)) for key, own in chosen.items()]
    accounts = (*above, *scopes)
    return Selection(tools, limits, accounts, tuple(problems[True]), tuple(problems[False]))


def _select_all(plan: Plan, parents: tuple[str, ...]) -> Selection:
    """Return the selection of a plan without limits that depend on the call."""
    if parents:
        return Selection(plan.tools, plan.limits, parent_accounts(plan, parents))
    known: Selection | None = plan.memo.get(SELECT_ALL)
    if known is None:
        known = plan.memo[SELECT_ALL] = Selection(plan.tools, plan.limits)
    return known


def parent_accounts(plan: Plan, parents: tuple[str, ...]) -> tuple[Account, ...]:
    """Return the sessions above a call as accounts, with the limits that every call has."""
    return tuple([Account(parent, plan.tools, plan.limits) for parent in parents])


def _holds(limit: Limit, call: ToolCall) -> bool:
    assert limit.when is not None
    held = limit.when(call)
    if iscoroutine(held):
        held.close()
    if not isinstance(held, bool):
        raise TypeError(f"its condition returned {type(held).__name__}, not True or False")
    return held


def _objection_to(limit: Limit, error: BaseException) -> Objection:
    """Return why a call is refused to which a limit cannot be applied."""
    reason = f"The limit '{limit.name}' cannot be applied. {describe(error)}"
    is_error, hidden = not isinstance(error, EdictumInputError), not is_for_model(error)
    return Objection(limit.source, limit.name, reason, is_error, for_operators=hidden)


def _tallies_and_limits(
    plan: Plan, fixed: tuple[Limit, ...], more: list[Limit]
) -> tuple[tuple[str, ...], tuple[Limit, ...]]:
    """Return the tallies and limits of one account; the same objects for the same limits, since
    ledgers remember by them what they have worked out.
    """
    if not more and fixed is plan.limits:
        return plan.tools, plan.limits
    known = plan.memo.setdefault("selections", {})
    key = (len(fixed), *map(id, more))
    if key not in known:
        if len(known) >= MAX_CACHED_SELECTIONS:
            known.clear()
        limits = (*fixed, *more)
        known[key] = tools_for(plan.tool, limits), limits
    return known[key]  # type: ignore[no-any-return]  # put in above


# --- The same in Python ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopedLimits(OperationLimits):
    """Limits with a scope, a window, a condition, or that a person may waive.

    They are the Python form of a session contract in a bundle; ``id`` is its name there and in the
    audit. ``scope`` is "session", "principal", "org", "global" or a selector such as
    "args.account_id".
    """

    max_attempts: int | None = None
    max_tool_calls: int | None = None
    id: str
    scope: str = SESSION_SCOPE
    per_s: float | None = None
    when: Callable[[ToolCall], bool] | None = field(default=None, repr=False)
    effect: Literal["deny", "approve"] = "deny"
    message: str | None = None
    timeout: float = 300
    timeout_effect: Literal["deny", "allow"] = "deny"
    approvers: Approvers | None = None

    def __post_init__(self) -> None:
        OperationLimits.__post_init__(self)  # super() does not work in a class with slots=True
        for name, (is_valid, hint) in RULES.items():
            if not is_valid(value := getattr(self, name)):
                raise EdictumConfigError(f"ScopedLimits: {name} is {value!r:.80}.", hint=hint)
        if self.approvers and (self.effect, self.timeout_effect) != ("approve", "deny"):
            raise EdictumConfigError(
                "ScopedLimits: approvers have no effect here.",
                hint="Use effect='approve' and timeout_effect='deny', or remove approvers.",
            )

    def compile_with(self, key: Callable[[ToolCall], Any] | None) -> tuple[Limit, ...]:
        """Return one Limit per bound that is set; ``key`` finds the value of a selector."""
        return tuple(
            replace(
                limit,
                name=self.id,
                window_s=self.per_s,
                message=self.message,
                contract_id=self.id,
                scope=self.scope,
                effect=self.effect,
                timeout=self.timeout,
                timeout_effect=self.timeout_effect,
                approvers=self.approvers,
                key=key,
                when=self.when,
                tally="",
            )
            for limit in self.compile()
        )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and not _ODD.search(value)


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "id": (_is_text, "Use a name without control characters."),
    "scope": (_is_text, "Use 'session', 'principal', 'org', 'global' or 'args.account_id'."),
    "per_s": (lambda it: it is None or _is_positive(it), "Use seconds, more than 0, or None."),
    "when": (lambda it: it is None or callable(it), "Use a function of the call, or None."),
    "effect": (lambda it: it in ("deny", "approve"), "Use 'deny' or 'approve'."),
    "message": (lambda it: it is None or isinstance(it, str), "Use text, or None."),
    "timeout": (_is_positive, "Use seconds, more than 0."),
    "timeout_effect": (lambda it: it in ("deny", "allow"), "Use 'deny' or 'allow'."),
    "approvers": (
        lambda it: it is None or isinstance(it, Approvers),
        "Use Approvers(roles=[...]), or None.",
    ),
}
