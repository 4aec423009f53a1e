"""Callers: session, principal, metadata and amounts of the calls of an adapter or a turn.

Each option is a value, or a function of the context of the run: the framework's own object, or the
``ToolCallRequest`` of a turn. Functions are called for every call. If one fails or returns a value
that the guard would refuse, the call is denied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, TypeAlias, TypedDict

from edictum._checks import check_callables, check_principal
from edictum._options import check_parents, read_fields
from edictum.core.call import Principal
from edictum.core.charges import Actual
from edictum.core.decide import describe
from edictum.core.decision import USER_ERRORS
from edictum.core.limits import amounts_in_millionths
from edictum.core.signatures import check_takes
from edictum.errors import EdictumConfigError
from edictum.execution.portal import PORTAL
from edictum.execution.waiting import call_until

FromContext: TypeAlias = Callable[..., Any]


class CallerOptions(TypedDict, total=False):
    """The options that describe the caller of all calls of an adapter or a turn."""

    session_id: str | FromContext | None
    parent_session_id: str | Sequence[str] | FromContext | None
    principal: Principal | FromContext | None
    metadata: Mapping[str, Any] | FromContext | None
    amounts: Mapping[str, float] | FromContext | None
    actual_amounts: Actual | None


class ResolvedCaller:
    """The caller of one call, as options of the guard. With a ``problem`` the call is denied."""

    __slots__ = ("options", "problem")

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.problem = ""

    def add(self, name: str, value: Any) -> None:
        """Add what a function returned. None adds nothing, except for a principal, where it means
        "no principal".
        """
        if value is not None or name == "principal":
            check_caller_option(name, value)
            self.options[name] = value

    def fail(self, name: str, error: BaseException) -> None:
        """Note that an option could not be determined; the first problem is kept."""
        why = f"{type(error).__name__}: {describe(error)}"
        self.problem = self.problem or f"The {name} of this call could not be determined: {why}"

    def choose_session(self, session_id: str) -> None:
        """Set the session. Parents that name the same session are a problem, and are dropped."""
        self.options["session_id"] = session_id
        if (parents := self.options.get("parent_session_id")) is not None:
            try:
                check_parents(session_id, parents)
            except Exception as exc:
                del self.options["parent_session_id"]
                self.fail("parent_session_id", exc)


class CallerResolver:
    """Holds the options that describe callers, and resolves them for each call."""

    def __init__(self, owner: str, given: CallerOptions) -> None:
        self._values: dict[str, Any] = {}
        self._functions: dict[str, FromContext] = {}
        # Amounts that depend on the call: on its arguments as hooks leave them.
        self._amounts_of_call: FromContext | None = None
        for name, value in given.items():
            self._add(owner, name, value)

    def _add(self, owner: str, name: str, value: Any) -> None:
        if name not in CallerOptions.__annotations__:
            hint = f"Options about the caller are: {', '.join(CallerOptions.__annotations__)}."
            raise EdictumConfigError(f"{owner} has no option {name!r}.", hint=hint)
        if value is None:
            return
        if name == "actual_amounts":
            check_callables(actual_amounts=value)
        elif not callable(value):
            check_caller_option(name, value)
        elif name == "amounts" and _takes_call(owner, value):
            self._amounts_of_call = value
            return
        else:
            check_takes(f"{owner}: {name}", value, "context")
            self._functions[name] = value
            return
        self._values[name] = value

    @property
    def has_functions(self) -> bool:
        return bool(self._functions)

    def set_principal(self, principal: Principal | None) -> None:
        """Replace the principal, a value or a function; None leaves the choice to the framework and
        the guard.
        """
        check_principal(principal)
        # New dicts, because other threads may be reading the old ones; the value first, so that
        # there is a principal at every moment.
        values = {key: value for key, value in self._values.items() if key != "principal"}
        if principal is not None:
            values["principal"] = principal
        self._values = values
        self._functions = {key: it for key, it in self._functions.items() if key != "principal"}

    def resolve(self, context: Any) -> ResolvedCaller:
        """Return the caller of a call; asynchronous functions are awaited in another thread."""
        caller = self._start(context)
        for name, function in self._functions.items():
            try:
                value = function(context)
                caller.add(name, PORTAL.run(value) if isawaitable(value) else value)
            except USER_ERRORS as exc:
                caller.fail(name, exc)
        return caller

    async def aresolve(self, context: Any, timeout_s: float | None = None) -> ResolvedCaller:
        """Return the caller of a call; with ``timeout_s`` no function is awaited for longer than
        that.
        """
        caller = self._start(context)
        for name, function in self._functions.items():
            try:
                if timeout_s is not None:
                    value = await call_until(function, (context,), timeout_s)
                elif isawaitable(value := function(context)):
                    value = await value
                caller.add(name, value)
            except USER_ERRORS as exc:
                caller.fail(name, exc)
        return caller

    def _start(self, context: Any) -> ResolvedCaller:
        options = dict(self._values)
        if (amounts := self._amounts_of_call) is not None:
            options["amounts"] = lambda call: amounts(context, call)
        return ResolvedCaller(options)


def check_caller_option(name: str, value: Any) -> None:
    """Raise for a value that the guard would not take as this option of a call."""
    if name == "amounts":
        amounts_in_millionths(name, value)
    elif name == "parent_session_id":
        check_parents("", value)
    else:
        read_fields({name: value})


def _takes_call(owner: str, function: FromContext) -> bool:
    """Return whether a function of amounts takes the call besides the context."""
    try:
        check_takes(f"{owner}: amounts", function, "context")
    except EdictumConfigError:
        check_takes(f"{owner}: amounts", function, "context", "call")
        return True
    return False
