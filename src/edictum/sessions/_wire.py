"""Operations, answers and leases as JSON, for stores that count by themselves and for SQLite.

Times are whole microseconds and amounts whole millionths, so that no store and no language rounds
them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from edictum.core.limits import (
    MILLION,
    WHOLE_SESSION,
    Account,
    Amount,
    Breach,
    Counters,
    Grant,
    Limit,
    Metric,
    Reservation,
    SessionSnapshot,
    Settlement,
    has_mark,
    windows_of,
)
from edictum.sessions._accounts import name_in_account
from edictum.sessions._batching import Operation, OperationKind

MAX_CACHED = 1_000
_limits_cache: dict[int, tuple[tuple[Limit, ...], dict[str, Any]]] = {}
_terms_cache: dict[tuple[Any, ...], tuple[tuple[Limit, ...], str]] = {}
_row = attrgetter(*Counters.__match_args__)


def microseconds(seconds: float | None) -> int:
    """Return whole microseconds, 0 for no lease and no window."""
    return 0 if seconds is None else max(1, round(seconds * MILLION))


def compact_json(value: Any) -> str:
    """Return JSON without spaces; raise for text that is not valid Unicode."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    text.encode()
    return text


def _limits(limits: tuple[Limit, ...]) -> dict[str, Any]:
    """Return a plan's limits and windows, remembered by the identity of the plan's tuple."""
    known = _limits_cache.get(id(limits))
    if known is not None and known[0] is limits:
        return known[1]
    if len(_limits_cache) >= MAX_CACHED:
        _limits_cache.clear()
    made = {
        "limits": [
            [
                it.tally,
                it.counter,
                it.maximum,
                microseconds(it.window_s),
                it.enforce,
                it.reserved,
                it.amount or "",
            ]
            for it in limits
        ],
        "windows": [
            [it.tool, it.counter, it.keep, microseconds(it.span_s)] for it in windows_of(limits)
        ],
    }
    _limits_cache[id(limits)] = (limits, made)
    return made


def _account(account: Account) -> dict[str, Any]:
    return {"sid": account.key, "tools": account.tools, **_limits(account.limits)}


def _call(step: Reservation | Settlement) -> dict[str, Any]:
    return {
        "sid": step.session_id,
        "call": step.call_id,
        "name": name_in_account(step.session_id, step.call_id),
        "accounts": [_account(account) for account in step.accounts],
        "tools": step.tools,
        "amounts": {name: str(amount) for name, amount in step.amounts.items()},
    }


def _reservation(step: Reservation) -> dict[str, Any]:
    return {
        **_call(step),
        **_limits(step.limits),
        "attempt": step.count_attempt,
        "hold": step.hold,
        "enforce": step.enforce,
        "lease": microseconds(step.lease_s),
        "counts": step.expiry_counts,
        "per_tool": step.per_tool,
    }


def _settlement(step: Settlement) -> dict[str, Any]:
    windows = _limits(step.limits)["windows"]
    return {**_call(step), "windows": windows, "result": step.result}


def _grant(answer: Mapping[str, Any], step: Reservation) -> Grant:
    """Read ``breaches``, [number of the limit, used, in flight], and ``tallies``, [tool, six
    counters ...]. Limits are numbered from the session's on through those of all accounts. Numbers
    may come as text from languages without 64-bit integers.
    """
    limits = [*step.limits, *(limit for account in step.accounts for limit in account.limits)]
    breaches = tuple(
        Breach(limits[int(index)], int(used), int(held))
        for index, used, held in answer.get("breaches") or ()
    )
    per_tool = _tallies(answer["tallies"]) if "tallies" in answer else None
    if per_tool is not None:
        per_tool.pop(WHOLE_SESSION, None)
    return Grant(answer["granted"] is True, _counters(answer["counters"]), breaches, per_tool)


def _tallies(rows: Any) -> dict[str, Counters]:
    return {tool: _counters(values) for tool, *values in rows or () if not has_mark(tool)}


def _counters(values: Sequence[Any]) -> Counters:
    """Read attempts, executions, successes, failures, consecutive failures, in flight."""
    if len(values) != 6:
        raise ValueError(f"{len(values)} counters instead of 6")
    return Counters(*(int(value) for value in values))


def snapshot_from_json(session_id: str, answer: Mapping[str, Any]) -> SessionSnapshot:
    """Read ``tallies``, [tool, counters ...], and ``amounts``, [tool, name, spent, reserved]."""
    tallies = _tallies(answer.get("tallies"))
    amounts: dict[str, dict[str, Amount]] = {}
    for tool, name, spent, reserved in answer.get("amounts") or ():
        if has_mark(tool):
            continue
        amounts.setdefault(tool, {})[name] = Amount(int(spent) / MILLION, int(reserved) / MILLION)
    totals = tallies.pop(WHOLE_SESSION, Counters())
    return SessionSnapshot(session_id, totals, tallies, amounts)


_WRITERS: dict[OperationKind, Callable[[Any], dict[str, Any]]] = {
    "reserve": _reservation,
    "settle": _settlement,
    "renew": lambda it: {
        "sid": it.session_id,
        "call": it.call_id,
        "lease": microseconds(it.lease_s),
    },
    "snapshot": lambda sid: {"sid": sid},
    "reset": lambda sid: {"sid": sid},
    "sessions": lambda limit: {"limit": limit},
    "ping": lambda _: {},
}
_READERS: dict[OperationKind, Callable[[Any, Any], Any]] = {
    "reserve": lambda step, answer: _grant(answer, step),
    "settle": lambda _, answer: _counters(answer["counters"]),
    "renew": lambda _, answer: answer["renewed"] is True,
    "snapshot": snapshot_from_json,
    "reset": lambda _step, _answer: None,
    "sessions": lambda _, answer: [snapshot_from_json(it["sid"], it) for it in answer or ()],
    "ping": lambda _step, _answer: None,
}


def operation_as_json(op: Operation) -> dict[str, Any]:
    return {"accounts": (), **_WRITERS[op.kind](op.step)}


def read_answer(op: Operation, answer: Any) -> Any:
    return _READERS[op.kind](op.step, answer)


# --- Leases at rest, for the ledger that counts in Python -----------------------------------------

# a file with others is refused; the functions of a limit have done their work when it is stored
LIMIT_FIELDS = [it.name for it in fields(Limit) if it.init and it.name not in ("key", "when")]
_limit_row = attrgetter(*LIMIT_FIELDS)


def _limit(row: Sequence[Any]) -> Limit:
    given = dict(zip(LIMIT_FIELDS, row, strict=True))
    return Limit(**{**given, "metric": Metric(given["metric"])})


def terms_as_text(step: Reservation | Settlement) -> str:
    """Return what must be known of a lease when it ends. The calls of a plan share the text."""
    key = (id(step.limits), step.tools, getattr(step, "expiry_counts", False))
    known, is_common = _terms_cache.get(key), not step.amounts and not step.accounts
    if known is not None and known[0] is step.limits and is_common:
        return known[1]
    accounts = [[it.key, it.tools, _windows_as_rows(it.limits)] for it in step.accounts]
    windows, amounts = _windows_as_rows(step.limits), dict(step.amounts)
    text = compact_json([accounts, step.tools, windows, key[2], amounts])
    if is_common:
        if len(_terms_cache) >= MAX_CACHED:
            _terms_cache.clear()
        _terms_cache[key] = (step.limits, text)
    return text


def _windows_as_rows(limits: tuple[Limit, ...]) -> list[Any]:
    return [_limit_row(limit) for limit in limits if limit.window_s is not None]


def answer_as_text(grant: Grant | None) -> str:
    """Return the answer to give when a reservation is repeated."""
    assert grant is not None
    counters = "[{},{},{},{},{},{}]".format(*_row(grant.counters))
    if not grant.breaches and grant.per_tool is None:
        return f"[{counters},[],null]"
    full = [[_limit_row(it.limit), it.used, it.in_flight] for it in grant.breaches]
    tools = None
    if grant.per_tool is not None:
        tools = {tool: _row(it) for tool, it in grant.per_tool.items()}
    return f"[{counters},{compact_json(full)},{compact_json(tools)}]"


def lease_from_text(
    session_id: str, call_id: str, terms: str, answer: str
) -> tuple[Reservation, Grant]:
    accounts, tools, limits, counts, amounts = json.loads(terms)
    step = Reservation(
        session_id,
        call_id,
        tuple(tools),
        tuple(map(_limit, limits)),
        expiry_counts=counts,
        amounts=amounts,
        accounts=tuple(
            Account(key, tuple(counted), tuple(map(_limit, rows)))
            for key, counted, rows in accounts
        ),
    )
    counters, breaches, per_tool = json.loads(answer)
    full = tuple(Breach(_limit(row), used, held) for row, used, held in breaches)
    told = None if per_tool is None else {tool: Counters(*row) for tool, row in per_tool.items()}
    return step, Grant(True, Counters(*counters), full, told)
