"""Check what a guard is given: errors say what is wrong, where, and what to do."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from edictum.approval._urls import open_approvals
from edictum.approval.port import (
    DECISION_KEYWORDS,
    RAW_ARGS,
    REQUEST_KEYWORDS,
    ApprovalBackend,
    find_wrong_keywords,
    takes_raw_args,
)
from edictum.audit.composite import list_sinks
from edictum.audit.memory import CollectingAuditSink, NoLocalEvents
from edictum.audit.sinks import AuditSink
from edictum.audit.stores import open_audit
from edictum.core.call import Principal
from edictum.core.contract import Contract
from edictum.core.hooks import HookRegistration
from edictum.core.limits import NAMED_SCOPES, Limit, OperationLimits, tightest
from edictum.core.redaction import RedactionPolicy
from edictum.core.scopes import ScopedLimits
from edictum.core.signatures import check_takes
from edictum.core.tool_entry import ToolEntry, tool_entry
from edictum.errors import EdictumConfigError
from edictum.execution.threads import AbandonedByTool
from edictum.runtime.clock import Clock

TAKES = {
    "success_check": ("tool_name", "result"),
    "on_deny": ("call", "reason", "name"),
    "on_allow": ("call",),
    "principal_resolver": ("tool_name", "args"),
    "actual_amounts": ("result",),
    "park": ("request",),
}


def check_callables(**functions: Any) -> None:
    for name, function in functions.items():
        if function is None:
            continue
        if not callable(function):
            raise EdictumConfigError(
                f"Edictum: {name} is {function!r}, not a function.",
                hint=f"Pass a function as {name}, or None.",
            )
        check_takes(f"Edictum: {name}", function, *TAKES[name])


def check_principal(principal: Any) -> None:
    _check_kind(
        "principal",
        principal,
        Principal,
        "Pass a Principal, e.g. Principal(user_id='u1', role='sre').",
    )


def _check_kind(name: str, value: Any, kind: type, hint: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise EdictumConfigError(f"{name} is {value!r:.80}.", hint=hint)


def read_contracts(contracts: Any) -> tuple[Contract, ...]:
    hint = "Decorate the function with @precondition, @postcondition or @session_contract."
    return _read_each("contracts", contracts, Contract, "a contract", hint)


def read_hooks(hooks: Any) -> tuple[HookRegistration, ...]:
    hint = "Write HookRegistration(phase='before', tool='*', callback=...)."
    return _read_each("hooks", hooks, HookRegistration, "a HookRegistration", hint)


def _read_each(name: str, values: Any, kind: type, what: str, hint: str) -> tuple[Any, ...]:
    given = to_tuple(name, values)
    for number, item in enumerate(given):
        if not isinstance(item, kind):
            raise EdictumConfigError(f"{name}[{number}] is {item!r}, not {what}.", hint=hint)
    return given


def to_tuple(name: str, value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise EdictumConfigError(f"{name} is {type(value).__name__}.", hint="Pass a list.")
    return tuple(value)


def read_limits(limits: Any) -> tuple[OperationLimits | None, tuple[Limit, ...]]:
    """Return the limits of every session, and those with a scope, a window or a condition."""
    hint = "Pass OperationLimits(max_tool_calls=...), or a list with ScopedLimits(...) as well."
    given = (limits,) if isinstance(limits, OperationLimits) else limits
    if isinstance(given, Mapping) or (given is not None and not isinstance(given, Iterable)):
        raise EdictumConfigError(f"limits is {given!r:.80}.", hint=hint)
    every = _read_each("limits", given, OperationLimits, "OperationLimits", hint)
    scoped = [each for each in every if isinstance(each, ScopedLimits)]
    compiled = [limit for each in scoped for limit in each.compile_with(_find_key(each))]
    return tightest(each for each in every if not isinstance(each, ScopedLimits)), tuple(compiled)


def _find_key(limits: ScopedLimits) -> Any:
    """Return the function that finds the value of a scope which is a selector."""
    if limits.scope in NAMED_SCOPES:
        return None
    from edictum.contracts._scopes import compile_scope  # few guards need it
    from edictum.contracts._selectors import SelectorError

    try:
        return compile_scope(limits.scope, {})
    except SelectorError as exc:
        raise EdictumConfigError(f"ScopedLimits {limits.id!r}: {exc}.", hint=exc.hint) from exc


def read_tools(tools: Any) -> dict[str, ToolEntry]:
    if tools is None:
        return {}
    if not isinstance(tools, Mapping):
        raise EdictumConfigError(
            f"tools is {type(tools).__name__}.",
            hint='Pass a dict such as {"read_file": {"side_effect": "read"}}.',
        )
    from edictum.contracts._amounts import read_selectors  # here: `import edictum` pays for it

    return {
        name: tool_entry(name, read_selectors(f"tools[{name!r}]", settings))
        for name, settings in tools.items()
    }


def read_sinks(audit_sink: Any) -> tuple[AuditSink, ...]:
    audit_sink = _open_if_url(audit_sink)
    if isinstance(audit_sink, (str, os.PathLike)):
        hint = f'To write events to that file, pass FileAuditSink("{audit_sink}").'
        raise EdictumConfigError(f"audit_sink is {str(audit_sink)!r}, not a sink.", hint=hint)
    sinks = (
        ()
        if audit_sink is None
        else (audit_sink,)
        if hasattr(audit_sink, "emit")
        else tuple(map(_open_if_url, to_tuple("audit_sink", audit_sink)))
    )
    for number, sink in enumerate(sinks):
        if not callable(getattr(sink, "emit", None)):
            raise EdictumConfigError(
                f"audit_sink[{number}] is {sink!r}, which has no emit().",
                hint="Pass an object with emit(event).",
            )
    return tuple(inner for sink in sinks for inner in list_sinks(sink))


def _open_if_url(sink: Any) -> Any:
    return open_audit(sink) if isinstance(sink, str) and "://" in sink else sink


def read_approval_backend(backend: Any) -> ApprovalBackend | None:
    if isinstance(backend, str):
        return open_approvals(backend)
    if backend is not None and not isinstance(backend, ApprovalBackend):
        hint = (
            "An approval backend has request_approval(...) and wait_for_decision(...). Or pass the"
            " URL of a store, such as sqlite:///approvals.db."
        )
        raise EdictumConfigError(f"approval_backend is {type(backend).__name__}.", hint=hint)
    if backend is not None:
        raw = (RAW_ARGS,) if takes_raw_args(backend) else ()
        _check_keywords(backend, "request_approval", (*REQUEST_KEYWORDS, *raw))
        _check_keywords(backend, "wait_for_decision", DECISION_KEYWORDS)
        if hasattr(backend, "withdraw"):
            check_takes("approval_backend: withdraw", backend.withdraw, "approval_id")
        if hasattr(backend, "use"):
            check_takes("approval_backend: use", backend.use, "approval_id")
        if hasattr(backend, "end"):
            check_takes("approval_backend: end", backend.end, "approval_id", "started")
    late_s = getattr(backend, "late_answer_s", 0)
    if isinstance(late_s, bool) or not isinstance(late_s, (int, float)) or not late_s >= 0:
        raise EdictumConfigError(
            f"approval_backend: late_answer_s is {late_s!r:.80}.", hint="Use seconds, 0 or more."
        )
    return backend


def _check_keywords(backend: Any, method: str, keywords: tuple[str, ...]) -> None:
    """Refuse a method whose parameter names differ from the keywords that it is called with."""
    problem = find_wrong_keywords(getattr(backend, method), keywords)
    if problem is not None:
        raise EdictumConfigError(
            f"approval_backend: {type(backend).__name__}.{method} cannot be called with the"
            f" keywords of the port: {problem}.",
            hint=f"Write it as def {method}(self, {', '.join(keywords)}), or take **options.",
        ) from problem


def read_redaction(redaction: Any) -> RedactionPolicy:
    hint = "Pass RedactionPolicy(sensitive_keys=..., custom_patterns=...)."
    _check_kind("redaction", redaction, RedactionPolicy, hint)
    return RedactionPolicy() if redaction is None else redaction


def read_environment(environment: Any) -> str:
    if not isinstance(environment, str) or not environment:
        raise EdictumConfigError(
            f"environment is {environment!r:.80}.", hint="Pass its name, e.g. 'production'."
        )
    return environment


def read_clock(clock: Any) -> Clock:
    if not all(callable(getattr(clock, name, None)) for name in ("now", "new_id")):
        raise EdictumConfigError(f"clock is {clock!r:.80}.", hint="A clock has now() and new_id().")
    checked: Clock = clock
    return checked


def read_local_events(count: Any) -> CollectingAuditSink:
    _check_whole("local_events", count, at_least=0, hint="Use 0 to keep no events in memory.")
    return CollectingAuditSink(count) if count else NoLocalEvents()


def read_hung_threads(maximum: Any) -> AbandonedByTool:
    hint = "Use how many calls of one tool may hang in their threads, 1 or more."
    _check_whole("max_hung_threads", maximum, at_least=1, hint=hint)
    return AbandonedByTool(maximum)


def _check_whole(name: str, value: Any, *, at_least: int, hint: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise EdictumConfigError(f"{name} is {value!r:.80}.", hint=hint)
