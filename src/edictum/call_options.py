"""The options of one call, for type checkers. ``edictum._options`` reads and checks them; a test
keeps the two equal.

A module of its own, because the guard needs it only to be type-checked and a TypedDict takes time
to make. Functions that pass options on to a guard can be declared with it: ``def governed(name:
str, **options: Unpack[CallOptions]) -> Any: ...``.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias, TypedDict

from edictum.core.call import Principal, ToolCall
from edictum.core.charges import Actual
from edictum.core.effects import Engine, RunIn

Amounts: TypeAlias = Mapping[str, float] | Callable[[ToolCall], Mapping[str, float]]


class EvaluateOptions(TypedDict, total=False):
    """Options of a call that is only evaluated. None means not stated."""

    session_id: str | None
    parent_session_id: str | Sequence[str] | None
    environment: str | None
    metadata: Mapping[str, Any] | None
    principal: Principal | None
    amounts: Amounts | None
    parameters: Any


class CallOptions(EvaluateOptions, total=False):
    """Options of a call. None means not stated, except for ``principal`` and ``principal_resolver``
    (no principal) and ``timeout_s`` (no limit).
    """

    call_id: str | None
    parent_call_id: str | None
    tool_use_id: str | None
    call_index: int | None
    caller: str | None
    timestamp: datetime | None
    principal_resolver: Callable[..., Any] | None
    control_flow: tuple[type[BaseException], ...]
    park: Callable[[Any], Any] | bool | None
    actual_amounts: Actual | None
    timeout_s: float | None
    run_in: RunIn | Engine | None
