"""The options of the contract decorators, for type checkers; a test keeps them equal to the fields
of Contract.

A module of its own, because the decorators need it only for type checking and a TypedDict takes
time to create.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar, overload

from edictum.core.approvers import Approvers
from edictum.core.call import ToolCall
from edictum.core.contract import Contract, Mode, Verdict
from edictum.core.session import SessionReading, SessionView

Says: TypeAlias = Verdict | Awaitable[Verdict]
PreCheck: TypeAlias = Callable[[ToolCall], Says]
PostCheck: TypeAlias = Callable[[ToolCall, Any], Says]
SessionCheck: TypeAlias = Callable[[SessionView], Says]
When: TypeAlias = Callable[[ToolCall], bool]
Reading = TypeVar("Reading", bound=SessionReading)


class ContractOptions(TypedDict, total=False):
    """The options of every contract."""

    id: str
    mode: Mode | None
    tags: Collection[str]
    metadata: Mapping[str, Any]


class PreOptions(ContractOptions, total=False):
    effect: Literal["deny", "approve"]
    timeout: float
    timeout_effect: Literal["deny", "allow"]
    approvers: Approvers | None


class PostOptions(ContractOptions, total=False):
    effect: Literal["warn", "redact", "deny"]
    redact: Callable[[Any], Any] | None


class SessionOptions(ContractOptions, total=False):
    effect: Literal["deny"]


class SessionDecorator(Protocol):
    """``@session_contract(...)``. A function annotated with ``session: Session``, as in the older
    library, is accepted too.
    """

    @overload
    def __call__(self, function: SessionCheck, /) -> Contract: ...
    @overload
    def __call__(self, function: Callable[[Reading], Says], /) -> Contract: ...
