"""Effects: what a lifecycle can ask a driver for.

Each effect is answered with a value, or with ``Failed`` when getting it failed: an error is data,
and the lifecycle decides what follows from it. ``wait`` says how an answer may be waited for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias

from edictum.core._records import maker, record
from edictum.core.call import ToolCall
from edictum.core.charges import NO_CHARGES, Charges
from edictum.core.decision import Decision
from edictum.core.events import Entry
from edictum.core.limits import Reservation, Settlement
from edictum.core.wait_policy import OWN_BOUND, PERSON, PORT, RESERVE, SETTLE, USER_CODE


@record
class Await:
    """Await what a contract, hook, checker or resolver returned. Answered with its value."""

    wait = USER_CODE
    awaitable: Awaitable[Any]


@record
class CallUserCode:
    """Call a user-supplied function where it can be abandoned if it blocks. Answered with its
    value.
    """

    wait = USER_CODE
    function: Callable[..., Any]
    args: tuple[Any, ...]


@record
class Renew:
    """Extend a reservation. Answered with True, or False when it is gone."""

    wait = PORT
    session_id: str
    call_id: str
    lease_s: float


@record
class Ask:
    """Ask a person for approval. Answered with an ApprovalRequest.

    ``metadata`` binds the answer to the call: its digest, who asks, who may answer. ``shown``:
    arguments, message and principal without secrets. ``control_flow``: exceptions of the
    backend that are the framework's, so that the call is paused. ``preview``: a function of the
    call that finds out what it would change.
    """

    wait = PERSON
    call: ToolCall
    decision: Decision
    metadata: dict[str, Any]
    shown: dict[str, Any]
    control_flow: tuple[type[BaseException], ...] = ()
    preview: Callable[..., Any] | None = None


@record
class AwaitDecision:
    """Wait for the person. Answered with an ApprovalDecision.

    With ``park`` a backend that keeps questions is only asked whether there is an answer yet. If
    not, ``park`` is called, which raises one of ``control_flow`` to end the host's run.
    """

    wait = PERSON
    request: Any
    timeout: float
    control_flow: tuple[type[BaseException], ...] = ()
    park: Callable[[Any], Any] | None = None


@record
class FindQuestion:
    """Find what a person was asked about this call before. Answered with the request, or None.

    ``call_digest`` covers tool, arguments and principal, but not the policy.
    """

    wait = PORT
    call: ToolCall
    call_digest: str


@record
class Withdraw:
    """Withdraw an approval request that is no longer waited for. Answered with None."""

    wait = PORT
    request: Any


@record
class UseApproval:
    """Record that the tool of an approved call starts. Answered with True, or False when the
    approval is no longer valid.
    """

    wait = RESERVE
    request: Any


@record
class EndApproval:
    """Record that the tool of an approved call has ended, or was not started after all. Answered
    with None.
    """

    wait = SETTLE
    request: Any
    started: bool


@record
class AwaitDuplicate:
    """Wait for the outcome of the same call, which is running elsewhere. Answered with the outcome,
    or with None when the time is over.
    """

    wait = OWN_BOUND
    outcome: Any
    timeout_s: float


@record
class Delay:
    """Wait before the next attempt. Answered with None."""

    wait = OWN_BOUND
    seconds: float


@record
class StoreArtifact:
    """Store an output that is too large for a message. Answered with the store's reference."""

    wait = USER_CODE
    store: Any
    session_id: str
    tool_name: str
    content: str


@record
class Notify:
    """Call a user-supplied callback. Neither its answer nor its errors change anything."""

    wait = USER_CODE
    callback: Callable[..., Any]
    args: tuple[Any, ...]
    what: str
    redact: Callable[[str], str]  # for what it raises, which is logged


RunIn: TypeAlias = Literal["inline", "thread", "process"]


@record
class RunTool:
    """Run the tool's body with a fresh copy of the checked arguments. Answered with a Ran.

    ``key`` names the reservation. It is the guard's own, because a call id that comes from a
    framework or a model may be used twice, and two calls must never share a slot.
    """

    wait = OWN_BOUND
    call: ToolCall
    key: str
    body: Callable[..., Any] | None
    timeout_s: float | None
    run_in: RunIn | Engine
    identified: bool = False  # the principal came with the call, so no resolver is asked
    charges: Charges = NO_CHARGES


@record
class Ran:
    """How a tool's body ended: with a value, with an exception, at its deadline, or because its
    caller was cancelled.
    """

    value: Any = None
    error: BaseException | None = None
    elapsed_s: float = 0.0
    deadline_s: float | None = None
    cancelled: bool = False
    body_may_be_running: bool = False
    lost: str | None = None  # why what ran the body died with it; ``error`` says the same
    not_started: bool = False  # it is certain that the body did not begin


class NoCapacity(Exception):
    """The body was not started: too many earlier ones are still running."""


class NotReturned(Exception):
    """The body ran to its end, but its result cannot be sent back."""


@record
class RanChanged:
    """A host's answer to RunTool when its tool was given arguments other than the checked ones.

    ``is_completed``: the host fills in arguments (a default, an absolute path), so a difference
    that the contracts allow is not a change.
    """

    args: Mapping[str, Any]
    ran: Ran
    is_completed: bool = False


class ArgumentsChanged(Exception):
    """The tool ran with arguments other than the ones that were checked."""


run_tool = maker(RunTool)
ran_to_end = maker(Ran)


class Engine(Protocol):
    """Runs bodies elsewhere: in other processes or on other machines. Both methods return a Ran,
    whatever the body does.
    """

    async def run(self, effect: RunTool) -> Ran: ...

    def run_sync(self, effect: RunTool) -> Ran: ...


class Pause(BaseException):
    """Raised by a body, or by an approval backend, whose framework deferred the call: by an
    interrupt that asks a person, or by a deferral to another process.

    It is not an error, so it is not an Exception. The call is closed as paused and releases its
    slots, because the framework will make the same call again; then the framework's own exception,
    ``signal``, is raised unchanged.
    """

    def __init__(self, signal: BaseException) -> None:
        super().__init__(signal)
        self.signal = signal


class NoApprovalBackend(Exception):
    """The guard has no approval backend, so no person can be asked."""


class Declined(Exception):
    """The host cannot run the tool as it was checked; the text says why.

    A body may raise it as long as nothing of the tool has run.
    """


class HostRefusal(Exception):
    """The host's own permissions, or a person whom it asked, refused the call."""


@record
class Within:
    """Perform an effect, but wait at most ``timeout_s`` for it. Answered as the effect is, or with
    a TimeoutError in ``Failed``. What happens to the effect then depends on its own ``wait``.
    """

    wait = OWN_BOUND
    effect: Any
    timeout_s: float


Effect: TypeAlias = (
    Await
    | CallUserCode
    | Within
    | Reservation
    | Settlement
    | Renew
    | Ask
    | AwaitDecision
    | FindQuestion
    | Withdraw
    | UseApproval
    | EndApproval
    | Notify
    | RunTool
    | Entry
    | AwaitDuplicate
    | Delay
    | StoreArtifact
)
