"""Success detection: did a call that returned actually succeed?

Session contracts are only as right as the counts they enforce against. A ``success_check(tool_name,
result) -> bool`` given to the guard replaces everything else; without one, the policy's success
rules are asked, then the framework's own failure flag, then ``default_success_check``. A tool that
raised has failed in any case.

The checkers here can be given to the guard as they are, or combined::

    Edictum(success_check=all_of(http_status, ok_flag, no_traceback))
    Edictum(success_check=per_tool({"http_*": http_status, "query_users": non_empty}))
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import isawaitable, iscoroutinefunction
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from edictum.core._records import record
from edictum.core.redaction import shorten_without_secrets
from edictum.core.values import show
from edictum.errors import EdictumConfigError

SuccessCheck = Callable[[str, Any], Any]
FindProblem = Callable[[str, Any], str | None]

STATUS_KEYS = ("status", "status_code", "statusCode")
EXIT_KEYS = ("exit_code", "exitCode", "returncode", "return_code")
ROW_KEYS = ("rows", "results", "items", "records", "matches", "data")


@record
class SuccessVerdict:
    """Whether a call succeeded, by which judge, and why not.

    ``retryable`` None: as the tool's entry says. ``for_model``: a rule states the reason, which the
    model reads instead of the result.
    """

    success: bool
    source: str
    reason: str = ""
    policy_error: bool = False
    retryable: bool | None = None
    for_model: bool = False


SUCCEEDED_BY_DEFAULT = SuccessVerdict(True, "default")


class Checker:
    """A success check that can say why: ``problem(tool_name, result)`` is a reason or None."""

    def __init__(self, problem: FindProblem, name: str | None = None) -> None:
        self.problem = problem
        self.__name__ = name or getattr(problem, "__name__", "checker")
        self.__doc__ = problem.__doc__

    def __call__(self, tool_name: str, result: Any) -> bool:
        return self.problem(tool_name, result) is None

    def __repr__(self) -> str:
        return f"<success check {self.__name__}>"


def default_success_check(tool_name: str, result: Any) -> bool:
    """Fail on a dict with ``is_error``, and on text that starts with "Error:" or "fatal:"."""
    return default_problem(result) is None


LAZY_TYPES: Mapping[type, str] = {
    GeneratorType: "a generator",
    AsyncGeneratorType: "an async generator",
    map: "a map",
    filter: "a filter",
}


class NotCollected(str):
    """Stands for a result whose computation has not run, and says what is wrong with it."""

    __slots__ = ()


def default_problem(result: Any) -> str | None:
    """Return what the default heuristic objects to, or None."""
    if isinstance(result, dict):
        return "is_error is set" if result.get("is_error") else None
    if isinstance(result, str) and result.startswith(("Error:", "fatal:")):
        return "the text starts with 'Error:' or 'fatal:'"
    return None if type(result) is str else explain_lazy_result(result)


def explain_lazy_result(result: Any) -> str | None:
    """Return what is wrong with a result whose computation has not run, such as a generator; None
    for any other.
    """
    kind = type(result)
    if kind is NotCollected:
        return str(result)
    if kind not in LAZY_TYPES:
        return None
    returned = f"The tool returned {LAZY_TYPES[kind]}, whose body has not run."
    return f"{returned} It must return a list, or what it has found."


def close_lazy_result(result: Any) -> Any:
    """Close a result whose computation has not run, and return what stands for it; return any
    other result as it is.

    An asynchronous generator has nothing to close until it is iterated.
    """
    if type(result) not in LAZY_TYPES:
        return result
    if isinstance(result, GeneratorType):
        with suppress(Exception):  # what the tool's own code raises on its way out
            result.close()
    return NotCollected(explain_lazy_result(result))


def _field(result: Any, names: tuple[str, ...]) -> tuple[str, Any]:
    """Return the first of the names that a dict has as a key, or an object as an attribute."""
    for name in names:
        if isinstance(result, Mapping):
            if name in result:
                return name, result[name]
        elif not isinstance(result, str) and hasattr(result, name):
            return name, getattr(result, name)
    return "", None


def _number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


@Checker
def http_status(tool_name: str, result: Any) -> str | None:
    """Fail on an HTTP status of 400 or more in ``status``, ``status_code`` or ``statusCode``."""
    name, value = _field(result, STATUS_KEYS)
    status = _number(value)
    return f"{name} is {value}" if status is not None and status >= 400 else None


@Checker
def ok_flag(tool_name: str, result: Any) -> str | None:
    """Fail on ``ok: false`` or ``success: false``."""
    for flag in ("ok", "success"):
        if _field(result, (flag,))[1] is False:
            return f"{flag} is false"
    return None


@Checker
def no_traceback(tool_name: str, result: Any) -> str | None:
    """Fail on text that contains a Python traceback."""
    found = isinstance(result, str) and "Traceback" in result
    return "the text contains a traceback" if found else None


@Checker
def not_none(tool_name: str, result: Any) -> str | None:
    """Fail on None."""
    return "the result is None" if result is None else None


@Checker
def non_empty(tool_name: str, result: Any) -> str | None:
    """Fail on None, an empty text or collection, or a dict whose rows, results, items, records,
    matches or data are empty.
    """
    name, value = _field(result, ROW_KEYS) if isinstance(result, Mapping) else ("", None)
    if name:
        return None if value else f"{name} is empty"
    if result is None or (hasattr(result, "__len__") and len(result) == 0):
        return "the result is empty"
    return None


@Checker
def exit_code(tool_name: str, result: Any) -> str | None:
    """Fail on a non-zero ``exit_code`` or ``returncode``, in a dict or as an attribute."""
    name, value = _field(result, EXIT_KEYS)
    code = _number(value)
    return f"{name} is {value}" if code else None


@Checker
def mcp_error(tool_name: str, result: Any) -> str | None:
    """Fail on MCP's ``isError`` (or ``is_error``), in a dict or as an attribute."""
    name, value = _field(result, ("isError", "is_error"))
    return f"{name} is true" if value else None


def _problem_of(check: SuccessCheck) -> FindProblem:
    """Return the problem function of a synchronous check."""
    if not callable(check):
        raise EdictumConfigError(
            f"{check!r} is not a success check.",
            hint="Pass a function (tool_name, result) -> bool.",
        )
    if iscoroutinefunction(check):
        name = getattr(check, "__name__", "?")
        raise EdictumConfigError(
            f"{name} is asynchronous and cannot be combined.",
            hint="Give it to the guard alone, or make it synchronous.",
        )
    if isinstance(check, Checker):
        return check.problem

    def problem(tool_name: str, result: Any) -> str | None:
        return None if truth(check(tool_name, result)) else _describe_refusal(check)

    return problem


def _describe_refusal(check: SuccessCheck) -> str:
    return f"{getattr(check, '__name__', 'success_check')} returned False"


def truth(answer: Any) -> bool:
    """Return the truth value of a checker's answer; raise TypeError if it has none."""
    if answer is None:
        raise TypeError("it returned None; return True or False")
    if isawaitable(answer):  # an asynchronous check inside a combination
        if hasattr(answer, "close"):
            answer.close()
        raise TypeError(
            "it returned something to await; give an asynchronous check to the guard alone"
        )
    return bool(answer)


def all_of(*checks: SuccessCheck) -> Checker:
    """Return a check that succeeds when all do; the reason is that of the first that does not."""
    problems = [_problem_of(check) for check in checks]
    _require(checks, "all_of")
    return Checker(
        lambda tool, result: next(
            (why for problem in problems if (why := problem(tool, result)) is not None), None
        ),
        "all_of",
    )


def any_of(*checks: SuccessCheck) -> Checker:
    """Return a check that succeeds when at least one does."""
    problems = [_problem_of(check) for check in checks]
    _require(checks, "any_of")

    def problem(tool_name: str, result: Any) -> str | None:
        reasons = [check(tool_name, result) for check in problems]
        return None if None in reasons else "; ".join(filter(None, reasons))

    return Checker(problem, "any_of")


def per_tool(
    checks: Mapping[str, SuccessCheck], default: SuccessCheck = default_success_check
) -> Checker:
    """Return a check per tool: by exact name, else by glob in order, else ``default``."""
    _require(checks, "per_tool")
    problems = {pattern: _problem_of(check) for pattern, check in checks.items()}
    fallback = _problem_of(default)

    def problem(tool_name: str, result: Any) -> str | None:
        chosen = problems.get(tool_name) or next(
            (p for glob, p in problems.items() if fnmatch.fnmatchcase(tool_name, glob)), fallback
        )
        return chosen(tool_name, result)

    return Checker(problem, "per_tool")


def _require(checks: Any, name: str) -> None:
    if not checks:
        raise EdictumConfigError(
            f"{name} needs at least one check.", hint=f"Write for example {name}(http_status)."
        )


class SchemaMismatch(str):
    """The reason of a failure: the result does not fit the tool's schema, so it is not known what
    the tool has done.
    """

    __slots__ = ()


def error_key(result: Any) -> str | None:
    """Return the reason why a dict whose ``error`` is set is a failure; ``{"error": None}`` is
    not.
    """
    if isinstance(result, dict) and (error := result.get("error")):
        return f"error is {shorten_without_secrets(show(error), 200)}"
    return None


def verdict_from_check(check: SuccessCheck, tool_name: str, answer: Any) -> SuccessVerdict:
    """Return the verdict of a custom check from what it returned."""
    passed = truth(answer)
    return SuccessVerdict(passed, "success_check", "" if passed else _describe_refusal(check))


def verdict_from_problem(problem: Any) -> SuccessVerdict:
    """Return the verdict of a ``Checker`` from the problem it found."""
    if problem is None:
        return SuccessVerdict(True, "success_check")
    if not isinstance(problem, str):
        raise TypeError(
            f"the problem it found is {type(problem).__name__}; it must be a text, or None when all"
            " is well"
        )
    return SuccessVerdict(False, "success_check", problem)
