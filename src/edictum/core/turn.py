"""A call inside a turn: what the lifecycle asks of the turn, and what the turn can answer.

The harness implements ``CallInTurn``. Nothing here waits or does I/O: what must be waited for is an
effect, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol, TypeAlias

from edictum.core._records import record
from edictum.core.call import ToolCall
from edictum.core.effects import Ran, Renew, RunTool
from edictum.core.events import Approval
from edictum.core.limits import Grant, Reservation, Settlement
from edictum.core.policy import Plan, Policy
from edictum.outcomes import ToolOutcome


@record
class Refusal:
    """A gate denies the call. ``reason`` becomes ``ToolDenied.reason``, and ``for_operators`` its
    ``for_operators``.
    """

    reason: str
    details: str
    policy_error: bool = False
    for_operators: bool = False


@record
class DuplicateInFlight:
    """The same call is running. ``outcome`` is a future, worth waiting for ``timeout_s``."""

    outcome: Any
    timeout_s: float


@record
class Replay:
    """The same call has been answered: this is its answer, if this call would be allowed now."""

    outcome: ToolOutcome


@record
class UncheckedReplay:
    """The same call was answered with an artifact. ``look``, which may block, returns the artifact
    or None.
    """

    done: Any
    look: Callable[..., Any]
    args: tuple[Any, ...]


@record
class OncePerWindow:
    """The ledger must say whether this call was made before, perhaps by another process."""

    reservation: Reservation


GateAnswer: TypeAlias = (
    Refusal | DuplicateInFlight | Replay | UncheckedReplay | OncePerWindow | ToolCall | None
)
Gate: TypeAlias = Callable[[Any, ToolCall], GateAnswer]
Gates: TypeAlias = Sequence[tuple[str, Gate]]


@record
class Oversized:
    """An output that does not fit a message, and the store that takes it."""

    content: str
    store: Any


class TurnOver(Exception):
    """The turn does not let an allowed call start: its time is over."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.details)
        self.refusal = refusal


class CallInTurn(Protocol):
    """One call, as its turn sees it.

    ``gates`` are methods with their names, asked in order: None lets the call pass, a ToolCall
    replaces it. Where there are before-hooks, the gates that judge the final arguments are asked
    after them.
    """

    @property
    def attempts(self) -> int:
        """How often the body has been started."""
        ...

    @property
    def prompt(self) -> str | None:
        """What the user said last, shown to a person who is asked to approve the call."""
        ...

    @property
    def keep_start(self) -> Callable[[], Any] | None:
        """The function that stores, just before the body is started, that it is; or None."""
        ...

    @property
    def gates(self) -> Gates: ...

    @property
    def gates_before_hooks(self) -> Gates: ...

    def gates_after_hooks(self, call: ToolCall, rewritten: bool) -> tuple[Gates, Settlement | None]:
        """Return the gates that judge the arguments as the hooks have left them.

        If these differ from the arguments of the earlier attempt, the settlement releases what was
        reserved for that attempt.
        """
        ...

    @property
    def approvals(self) -> MutableMapping[str, Approval]:
        """The answers of people about this call, by digest."""
        ...

    def read_grant(self, grant: Grant) -> Refusal | None:
        """Take the ledger's answer to ``OncePerWindow``."""
        ...

    def replay(self, outcome: ToolOutcome) -> ToolOutcome:
        """Return the outcome of the same call as this call gets it, and take over its approvals."""
        ...

    def confirm_replay(self, done: Any) -> GateAnswer:
        """Return the gate's answer once ``UncheckedReplay.look`` has found the artifact."""
        ...

    def forget_replay(self, done: Any) -> None:
        """Forget an answer whose artifact is gone or unreadable: the call may be made again."""
        ...

    def extend_reservation(self, seconds: float) -> Renew | None:
        """Return the effect that keeps the reservation of ``OncePerWindow`` for that much longer.

        None without such a reservation.
        """
        ...

    def pause_clock(self) -> None:
        """Stop the turn's clock: a person is asked."""
        ...

    def resume_clock(self) -> None:
        """Let the turn's clock run again."""
        ...

    def time_left_s(self, *, port: bool = False) -> float:
        """Return how long user-supplied code, or with ``port`` a port of the gate, may take."""
        ...

    def start(self, run: RunTool) -> RunTool | Refusal:
        """Return the run with its deadline as of now, or a refusal when it is too late."""
        ...

    def end_body(self, ran: Ran) -> Ran:
        """Return how the body ended. Completion and timeout exclude each other from here on."""
        ...

    def shape(self, outcome: ToolOutcome) -> ToolOutcome | Oversized:
        """Return the outcome with the turn's facts, or what must be stored first."""
        ...

    def take_reference(
        self, outcome: ToolOutcome, oversized: Oversized, reference: Any
    ) -> ToolOutcome:
        """Return the outcome after its output was stored. If that failed, ``reference`` is
        Failed.
        """
        ...

    def retry_in(self, outcome: ToolOutcome) -> float | None:
        """Return the seconds until the next attempt, or None when there is none."""
        ...

    @property
    def reserved(self) -> Settlement | None:
        """The settlement that releases the reservation of ``OncePerWindow``, if there is one."""
        ...

    def settlement(self, held: Settlement, outcome: ToolOutcome) -> Settlement:
        """Return how the reservation of ``OncePerWindow`` ends."""
        ...

    def note_end(self, outcome: ToolOutcome | None) -> None:
        """Note that the call is over, with None when it was thrown away. Called exactly once."""
        ...


class OpenedCall(CallInTurn, Protocol):
    """A call of a turn on its way to the guard, with a valid name and a mapping of arguments."""

    @property
    def tool_name(self) -> str: ...

    @property
    def body(self) -> Callable[..., Any] | None: ...

    @property
    def args(self) -> Mapping[str, Any]: ...

    @property
    def parameters(self) -> Any:
        """Declares the tool's parameters and their defaults; None leaves it to the body."""
        ...

    @property
    def description(self) -> str:
        """What the tool is for, as the turn knows it; empty for an unknown tool."""
        ...

    @property
    def session_id(self) -> str: ...

    def find_tool(self, name: str) -> Any:
        """Return another tool of the turn: its ``plan``, ``body`` and ``function``; None without
        it.
        """
        ...

    @property
    def plan(self) -> Plan:
        """The policy's plan for the tool, combined with the turn's own settings."""
        ...

    @property
    def failure_flag(self) -> Callable[[Any], str | None]:
        """Returns why a result is a failure, by its own words or by the tool's result schema; else
        None.
        """
        ...

    def reject_arguments(self, why: str) -> None:
        """Note that the arguments cannot be read; the gates will deny the call."""
        ...


class TurnPort(Protocol):
    """What ``guard.dispatch`` takes as ``turn``."""

    @property
    def session_id(self) -> str:
        """The session of its calls; an empty text leaves the choice to their caller."""
        ...

    def open(
        self, tool_name: str, arguments: Any, function: Callable[..., Any] | None, policy: Policy
    ) -> OpenedCall:
        """Open one call of the turn with whatever a model sent; the gates say what is wrong."""
        ...
