"""Who is calling: what an adapter or a turn tells the guard of its calls, found anew for each.

Each option is a value, or a function of the context of the run: the framework's own object, or the
``ToolCallRequest`` of a turn. What cannot be told denies the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, TypeAlias, TypedDict

from edictum._checks import check_callables, check_principal
from edictum._options import check_parents, read_fields
from edictum.core._records import record
from edictum.core.call import Principal
from edictum.core.charges import Actual
from edictum.core.decide import describe
from edictum.core.limits import amounts_in_millionths
from edictum.core.signatures import check_takes
from edictum.errors import EdictumConfigError
from edictum.execution.portal import PORTAL

FromContext: TypeAlias = Callable[..., Any]


class CallerOptions(TypedDict, total=False):
    """What is told of all calls of an adapter or a turn. None means not told."""

    session_id: str | FromContext | None
    parent_session_id: str | Sequence[str] | FromContext | None
    principal: Principal | FromContext | None
    metadata: Mapping[str, Any] | FromContext | None
    amounts: Mapping[str, float] | FromContext | None
    actual_amounts: Actual | None


@record
class Told:
    """What was found for one call; ``problem`` says what could not be, and the call is denied."""

    options: dict[str, Any]
    problem: str = ""


class Caller:
    """Finds for each call what it was given for all of them."""

    def __init__(self, owner: str, given: CallerOptions) -> None:
        self._values: dict[str, Any] = {}
        self._functions: dict[str, FromContext] = {}
        # Amounts that depend on the call: on its arguments as hooks leave them.
        self._amounts_of_call: FromContext | None = None
        for name, value in given.items():
            self._take(owner, name, value)

    def _take(self, owner: str, name: str, value: Any) -> None:
        if name == "actual_amounts":
            check_callables(actual_amounts=value)
        elif callable(value):
            if name == "amounts" and _takes_call(value):
                self._amounts_of_call = value
            else:
                check_takes(f"{owner}: {name}", value, "context")
                self._functions[name] = value
            return
        elif value is not None:
            check_told(name, value)
        if value is not None:
            self._values[name] = value

    def set_principal(self, principal: Principal | None) -> None:
        check_principal(principal)
        self._functions.pop("principal", None)
        self._values.pop("principal", None)
        if principal is not None:
            self._values["principal"] = principal

    def read(self, context: Any) -> Told:
        """Return what is told of a call; asynchronous functions are awaited in another thread."""
        found, problems = self._begin(context), list[str]()
        for name, function in self._functions.items():
            try:
                value = function(context)
                _keep(found, name, PORTAL.run(value) if isawaitable(value) else value)
            except Exception as exc:
                problems.append(_explain(name, exc))
        return Told(found, " ".join(problems))

    async def aread(self, context: Any) -> Told:
        """Do as ``read`` does, for asynchronous callers."""
        found, problems = self._begin(context), list[str]()
        for name, function in self._functions.items():
            try:
                value = function(context)
                _keep(found, name, await value if isawaitable(value) else value)
            except Exception as exc:
                problems.append(_explain(name, exc))
        return Told(found, " ".join(problems))

    def _begin(self, context: Any) -> dict[str, Any]:
        found = dict(self._values)
        if (amounts := self._amounts_of_call) is not None:
            found["amounts"] = lambda call: amounts(context, call)
        return found


def _keep(found: dict[str, Any], name: str, value: Any) -> None:
    """Keep what a function told. None is not told, but for a principal: it means no principal."""
    if value is not None or name == "principal":
        check_told(name, value)
        found[name] = value


def check_told(name: str, value: Any) -> None:
    """Raise for a value that the guard would not take as this option of a call."""
    if name == "amounts":
        amounts_in_millionths(name, value)
    elif name == "parent_session_id":
        check_parents("", value)
    else:
        read_fields({name: value})


def _takes_call(function: FromContext) -> bool:
    """Return whether a function wants the call too, beside the context."""
    try:
        check_takes("amounts", function, "context")
    except EdictumConfigError:
        check_takes("amounts", function, "context", "call")
        return True
    return False


def _explain(name: str, exc: Exception) -> str:
    return f"The {name} of this call could not be told: {type(exc).__name__}: {describe(exc)}"
