"""What a lifecycle can ask for. It says what it needs; a driver goes and gets it.

Each effect is answered with a value, or with ``Raised`` when getting it failed: an error is data, and the lifecycle decides
what follows from it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias

from edictum.core._draft import record
from edictum.core.call import ToolCall
from edictum.core.decision import Decision
from edictum.core.events import Entry
from edictum.core.limits import Reservation, Settlement


@record
class Settle:
    """Await what a contract, hook, checker or resolver returned. Answered with its value."""

    awaitable: Awaitable[Any]


@record
class ReadSession:
    """All counters of a session. Answered with a SessionSnapshot."""

    session_id: str


@record
class Ask:
    """Ask a person for approval. Answered with an ApprovalRequest."""

    call: ToolCall
    decision: Decision
    digest: str


@record
class AwaitDecision:
    """Wait for the person. Answered with an ApprovalDecision."""

    request: Any
    timeout: int


@record
class Withdraw:
    """Nobody waits for this approval any more. Answered with None."""

    request: Any


@record
class Notify:
    """Tell a callback of the user. Its answer and its errors change nothing."""

    callback: Callable[..., Any]
    args: tuple[Any, ...]
    what: str


@record
class RunTool:
    """Run the tool's body with a fresh copy of the checked arguments. Answered with a Ran.

    ``key`` names the reservation. It is the guard's own, because a call id that comes from a framework or a model may be used
    twice, and two calls must never share a slot.
    """

    call: ToolCall
    key: str
    body: Callable[..., Any] | None
    timeout_s: float | None
    run_in: Literal["inline", "thread"]
    identified: bool = False  # the principal came with the call, and nobody is asked for it


@record
class Ran:
    """How a tool's body ended: with a value, an exception, at its deadline, or because its caller was cancelled."""

    value: Any = None
    error: BaseException | None = None
    elapsed_s: float = 0.0
    deadline_s: float | None = None
    cancelled: bool = False
    body_may_be_running: bool = False


Effect: TypeAlias = Settle | ReadSession | Reservation | Settlement | Ask | AwaitDecision | Withdraw | Notify | RunTool | Entry
