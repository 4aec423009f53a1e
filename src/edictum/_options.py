"""The options of one call: read and checked before anything is counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal

from edictum._checks import check_callables, check_principal, to_tuple
from edictum._logs import POLICY_WARNING, log
from edictum.core._records import record, replace
from edictum.core.call import Principal, ToolCall, check_session_id
from edictum.core.charges import Charges, make_charges
from edictum.core.freeze import EMPTY, freeze_args
from edictum.core.limits import amounts_in_millionths
from edictum.core.parameters import ReadLater
from edictum.core.policy import Plan
from edictum.errors import EdictumInputError
from edictum.execution.engines import is_run_in

NO_FIELDS: Mapping[str, Any] = EMPTY
KNOWN_AMOUNTS = "known amounts"  # in the memo of a plan
MAX_KNOWN_AMOUNTS = 100  # a function may take names from what a model sent


def read_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a call that are fields of its ToolCall; raise for an unknown option."""
    fields: dict[str, Any] = {}
    for name, value in options.items():
        option = CALL_OPTIONS.get(name)
        if option is None:
            raise TypeError(
                f"unknown option {name!r}; known options: {', '.join(sorted(CALL_OPTIONS))}"
            )
        # an explicit None means "no principal", and of any other option that it is not stated
        if option.used_for == "call" and (value is not None or name == "principal"):
            fields[option.field] = option.read(name, value)
    return fields


def read_stated_options(what: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a dry run that are not None; raise for an unknown option."""
    if unknown := options.keys() - set(EVALUATE_OPTIONS):
        name = min(unknown)
        raise TypeError(f"{what}() got an unexpected keyword argument {name!r}")
    return {name: value for name, value in options.items() if value is not None}


def read_run(
    options: Mapping[str, Any], timeout_s: float | None, run_in: Any
) -> tuple[float | None, Any]:
    """Return the timeout of a call and where it runs; the arguments are the defaults."""
    timeout_s, run_in = options.get("timeout_s", timeout_s), options.get("run_in") or run_in
    if timeout_s is not None and (
        isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0
    ):
        raise EdictumInputError(
            f"timeout_s is {timeout_s!r}.", hint="Use seconds, more than 0, or None."
        )
    if not is_run_in(run_in):
        raise EdictumInputError(
            f"run_in is {run_in!r}.", hint="Use 'inline', 'thread', 'process', or an engine."
        )
    return timeout_s, run_in


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise EdictumInputError(f"{name} is {value!r:.80}, not text.", hint="Pass a string.")
    return value


def _session_id(name: str, value: Any) -> str:
    check_session_id(value)
    return value  # type: ignore[no-any-return]  # checked above


def _principal(name: str, value: Any) -> Principal | None:
    check_principal(value)
    return value  # type: ignore[no-any-return]  # checked above


def _metadata(name: str, value: Any) -> Mapping[str, Any]:
    """Return the caller's metadata for a call, checked and frozen."""
    if not value:
        return EMPTY
    if not isinstance(value, Mapping):
        raise EdictumInputError(
            f"metadata is {value!r:.80}, not a mapping.", hint="Pass a dict of names to values."
        )
    try:
        return freeze_args(value)
    except (ValueError, RecursionError) as exc:
        raise EdictumInputError(
            f"metadata cannot be copied: {exc}.", hint="Pass plain, finite data."
        ) from exc


def _parameters(name: str, value: Any) -> Any:
    is_described = isinstance(getattr(value, "parameters", None), Mapping)
    if isinstance(value, (Mapping, tuple, ReadLater)) or callable(value) or is_described:
        return value
    raise EdictumInputError(
        f"parameters is {value!r:.80}.",
        hint="Pass the tool's function, a ToolSpec, a pydantic model or a JSON Schema.",
    )


def _seconds(name: str, value: Any) -> float:
    if not isinstance(value, datetime):
        raise EdictumInputError(
            f"timestamp is {value!r:.80}.", hint="Pass a datetime with a time zone."
        )
    return value.timestamp()


def _index(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise EdictumInputError(f"call_index is {value!r:.80}.", hint="Pass a whole number.")
    return value


@record
class CallOption:
    """An option of one call: what it is for, and whether a dry run takes it too.

    One for the "call" is a field of its ToolCall, read by ``read``; for the "run" it says where and
    how long the tool runs, for the "charges" what counts in limits, and for the "flow" it replaces
    a setting of the guard.
    """

    used_for: Literal["call", "run", "charges", "flow"]
    field: str = ""
    read: Callable[[str, Any], Any] = _text
    is_for_evaluate: bool = False


CALL_OPTIONS: dict[str, CallOption] = {
    "session_id": CallOption("call", "run_id", _session_id, is_for_evaluate=True),
    "parent_session_id": CallOption("charges", is_for_evaluate=True),
    "environment": CallOption("call", "environment", is_for_evaluate=True),
    "metadata": CallOption("call", "metadata", _metadata, is_for_evaluate=True),
    "principal": CallOption("call", "principal", _principal, is_for_evaluate=True),
    "amounts": CallOption("charges", is_for_evaluate=True),
    "parameters": CallOption("call", "parameters", _parameters, is_for_evaluate=True),
    "call_id": CallOption("call", "call_id"),
    "parent_call_id": CallOption("call", "parent_call_id"),
    "tool_use_id": CallOption("call", "tool_use_id"),
    "call_index": CallOption("call", "call_index", _index),
    "caller": CallOption("call", "caller"),
    "timestamp": CallOption("call", "started_at", _seconds),
    "principal_resolver": CallOption("flow"),
    "control_flow": CallOption("flow"),
    "park": CallOption("flow"),
    "actual_amounts": CallOption("charges"),
    "timeout_s": CallOption("run"),
    "run_in": CallOption("run"),
}


def _names_for(use: str) -> frozenset[str]:
    return frozenset(name for name, option in CALL_OPTIONS.items() if option.used_for == use)


CHARGE_OPTIONS, RUN_OPTIONS, FLOW_OPTIONS = map(_names_for, ("charges", "run", "flow"))
EVALUATE_OPTIONS = tuple(name for name, it in CALL_OPTIONS.items() if it.is_for_evaluate)
BATCH_KEYS = ("tool", "args", "output", *EVALUATE_OPTIONS)


def read_charges(call: ToolCall, options: Mapping[str, Any], tool: Charges) -> Charges:
    """Return the parents and amounts that a call states, beside the amounts of its tool."""
    actual, amounts = options.get("actual_amounts"), options.get("amounts")
    given = options.get("parent_session_id")
    if actual is not None:
        check_callables(actual_amounts=actual)
    parents = () if given is None else check_parents(call.run_id, given)
    estimate = amounts if callable(amounts) else None
    stated = {} if estimate else amounts_in_millionths("amounts", amounts or {})
    if tool.amounts:
        stated = {**tool.amounts, **stated}
    return make_charges(parents, stated, actual, estimate, tool.sources, tool.measures)


def warn_about_unread_amounts(plan: Plan, charges: Charges) -> Charges:
    """Log the amounts of a call that no limit reads, if there are limits on others: once for each
    tool.

    Return charges whose ``estimate`` is watched in the same way.
    """
    known = plan.memo.get(KNOWN_AMOUNTS)
    if known is None:
        known = {limit.amount: True for limit in plan.limits if limit.amount is not None}
        plan.memo[KNOWN_AMOUNTS] = known
    if not known:
        return charges
    for stated in (charges.amounts, charges.sources, charges.measures):
        if stated:
            _log_unread(plan.tool, known, stated)
    estimate = charges.estimate
    if estimate is None:
        return charges

    def watch(call: ToolCall) -> Mapping[str, float]:
        stated = estimate(call)
        if isinstance(stated, Mapping):
            _log_unread(plan.tool, known, stated)
        return stated

    return replace(charges, estimate=watch)


def _log_unread(tool: str, known: dict[str, bool], stated: Mapping[str, Any]) -> None:
    """Log names that are not ``known``, and add them there: True for those that a limit reads."""
    for name in stated:
        if name not in known and len(known) < MAX_KNOWN_AMOUNTS:
            read = ", ".join(sorted(each for each, is_read in known.items() if is_read))
            known[name] = False
            log(
                POLICY_WARNING,
                "A call of %r states the amount %r, which no limit reads; the limits read: %s.",
                tool,
                name,
                read,
            )


def check_parents(session_id: str, given: Any) -> tuple[str, ...]:
    """Return the sessions above a call's own, nearest first; raise for one that is named twice."""
    parents = (given,) if isinstance(given, str) else to_tuple("parent_session_id", given)
    for parent in parents:
        check_session_id(parent)
    if len({session_id, *parents}) != len(parents) + 1:
        raise EdictumInputError(
            f"parent_session_id {given!r} names a session twice.",
            hint="Name each session above this one once.",
        )
    return parents


def batch_item(number: int, call: Any) -> dict[str, Any]:
    """Return the keywords of ``evaluate`` for one item of ``evaluate_batch``."""
    if not isinstance(call, Mapping):
        raise EdictumInputError(
            f"evaluate_batch: call {number} is {call!r:.80}.",
            hint='Pass dicts such as {"tool": "read_file", "args": {}}.',
        )
    if unknown := [name for name in call if name not in BATCH_KEYS]:
        raise EdictumInputError(
            f"evaluate_batch: call {number} has the key {unknown[0]!r}.",
            hint=f"Known keys: {', '.join(BATCH_KEYS)}.",
        )
    if "tool" not in call:
        raise KeyError(f"evaluate_batch: call {number} has no 'tool'")
    principal = call.get("principal")
    if isinstance(principal, Mapping):
        try:
            principal = Principal(**principal)
        except TypeError as exc:
            raise EdictumInputError(
                f"evaluate_batch: the principal of call {number} is invalid: {exc}.",
                hint="See Principal.",
            ) from exc
    stated = {name: value for name, value in call.items() if name not in ("tool", "args")}
    args = call.get("args") or {}
    return {**stated, "tool_name": call["tool"], "args": args, "principal": principal}
