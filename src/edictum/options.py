"""The options of one call: read and checked before anything is counted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from edictum.checks import check_callables, check_principal, items
from edictum.core._draft import record
from edictum.core.account import Account
from edictum.core.call import Principal, ToolCall, check_session_id
from edictum.core.freeze import freeze_args
from edictum.core.limits import amounts_in_millionths
from edictum.errors import EdictumInputError
from edictum.execution.engines import is_run_in

TEXT_OPTIONS = ("call_id", "parent_call_id", "environment", "caller", "tool_use_id")
ACCOUNT_OPTIONS = frozenset({"parent_session_id", "amounts", "actual_amounts"})
OTHER_OPTIONS = frozenset({"principal", "principal_resolver", "session_id", "metadata", "timestamp", "call_index", "timeout_s", "run_in"})
KNOWN_OPTIONS = ACCOUNT_OPTIONS | OTHER_OPTIONS | set(TEXT_OPTIONS)


@record
class CallOptions:
    """What was stated about one call: fields of its ToolCall, and how to run it."""

    fields: dict[str, Any]
    timeout_s: float | None
    run_in: Any
    identified: bool


def read_options(options: Mapping[str, Any], timeout_s: float | None, run_in: Any) -> CallOptions:
    """The options of a call; ``timeout_s`` and ``run_in`` are what holds when nothing else is stated."""
    if unknown := options.keys() - KNOWN_OPTIONS:
        raise TypeError(f"unknown option {min(unknown)!r}; known options: {', '.join(sorted(KNOWN_OPTIONS))}")
    fields: dict[str, Any] = {name: _text(name, options[name]) for name in TEXT_OPTIONS if options.get(name) is not None}
    if options.get("session_id") is not None:
        check_session_id(options["session_id"])
        fields["session_id"] = options["session_id"]
    if "principal" in options:
        check_principal(options["principal"])
        fields["principal"] = options["principal"]
    if options.get("metadata"):
        fields["metadata"] = _metadata(options["metadata"])
    if options.get("timestamp") is not None:
        fields["started_at"] = _seconds(options["timestamp"])
    if options.get("call_index") is not None:
        fields["call_index"] = _index(options["call_index"])
    timeout_s, run_in = options.get("timeout_s", timeout_s), options.get("run_in") or run_in
    _check_run(timeout_s, run_in)
    return CallOptions(fields, timeout_s, run_in, "principal" in options)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise EdictumInputError(f"{name} is {value!r:.80}, not text.", hint="Pass a string.")
    return value


def _metadata(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise EdictumInputError(f"metadata is {value!r:.80}, not a mapping.", hint="Pass a dict of names to values.")
    try:
        return freeze_args(value)
    except (ValueError, RecursionError) as exc:
        raise EdictumInputError(f"metadata cannot be copied: {exc}.", hint="Pass plain, finite data.") from exc


def _seconds(value: Any) -> float:
    if not isinstance(value, datetime):
        raise EdictumInputError(f"timestamp is {value!r:.80}.", hint="Pass a datetime with a time zone.")
    return value.timestamp()


def _index(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise EdictumInputError(f"call_index is {value!r:.80}.", hint="Pass a whole number.")
    return value


def _check_run(timeout_s: Any, run_in: Any) -> None:
    if timeout_s is not None and (isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0):
        raise EdictumInputError(f"timeout_s is {timeout_s!r}.", hint="Use seconds, more than 0, or None.")
    if not is_run_in(run_in):
        raise EdictumInputError(f"run_in is {run_in!r}.", hint="Use 'inline', 'thread', 'process', or an engine.")


def read_account(call: ToolCall, options: Mapping[str, Any]) -> Account | None:
    """The parents and amounts that a call states, or None when it states none."""
    if ACCOUNT_OPTIONS.isdisjoint(options):
        return None
    actual = options.get("actual_amounts")
    check_callables(actual_amounts=actual)
    amounts = options.get("amounts")
    stated = amounts_in_millionths("amounts", amounts(call) if callable(amounts) else amounts or {})
    return Account(_parents(call.run_id, options.get("parent_session_id")), stated, actual)


def _parents(session_id: str, given: Any) -> tuple[str, ...]:
    """The sessions above a call's own, nearest first."""
    parents = () if given is None else (given,) if isinstance(given, str) else items("parent_session_id", given)
    for parent in parents:
        check_session_id(parent)
    if len({session_id, *parents}) != len(parents) + 1:
        raise EdictumInputError(f"parent_session_id {given!r} names a session twice.", hint="Name each session above this one once.")
    return parents


def batch_item(number: int, call: Any) -> dict[str, Any]:
    """One item of ``evaluate_batch`` as the keywords of ``evaluate``."""
    if not isinstance(call, Mapping):
        raise EdictumInputError(
            f"evaluate_batch: call {number} is {call!r:.80}.", hint='Pass dicts such as {"tool": "read_file", "args": {}}.'
        )
    if "tool" not in call:
        raise KeyError(f"evaluate_batch: call {number} has no 'tool'")
    principal = call.get("principal")
    if isinstance(principal, Mapping):
        try:
            principal = Principal(**principal)
        except TypeError as exc:
            raise EdictumInputError(f"evaluate_batch: call {number} has a principal that is none: {exc}.", hint="See Principal.") from exc
    return {"tool_name": call["tool"], "args": call.get("args") or {}, "principal": principal,
            "output": call.get("output"), "environment": call.get("environment"), "session_id": call.get("session_id")}  # fmt: skip
