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
    """A gate says no. ``reason`` becomes ``ToolDenied.reason``."""

    reason: str
    details: str
    policy_error: bool = False


@record
class Twin:
    """The same call is running. ``outcome`` is a future of its outcome, worth waiting for
    ``timeout_s`` seconds.
    """

    outcome: Any
    timeout_s: float


@record
class Repeat:
    """The same call has been answered: this is the answer for this one, once it is clear that it
    may still be given.
    """

    outcome: ToolOutcome


@record
class Doubtful:
    """The same call was answered with something that was put away since: ``look``, which may block,
    finds it or nothing.
    """

    done: Any
    look: Callable[..., Any]
    args: tuple[Any, ...]


@record
class Once:
    """The ledger must be asked whether this call was made before, perhaps by a process that is
    gone.
    """

    reservation: Reservation


Answer: TypeAlias = Refusal | Twin | Repeat | Doubtful | Once | ToolCall | None
Gate: TypeAlias = Callable[[Any, ToolCall], Answer]
Gates: TypeAlias = Sequence[tuple[str, Gate]]


@record
class Oversized:
    """An output that does not fit a message, and the store that takes it."""

    content: str
    store: Any


class TurnOver(Exception):
    """The turn does not let an allowed call start any more."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.details)
        self.refusal = refusal


class CallInTurn(Protocol):
    """One call, as its turn sees it.

    ``gates`` are methods with their names, asked in order; None lets the call pass, a ToolCall goes
    on in its place. Where there are before-hooks, those gates that judge the arguments which will
    run are asked after them.
    """

    @property
    def attempts(self) -> int:
        """How often the body has been started."""
        ...

    def clear(self, call: ToolCall) -> bool:
        """True: certainly none of the gates has anything to say, and they need not be asked one by
        one.
        """
        ...

    @property
    def gates(self) -> Gates: ...

    @property
    def gates_before_hooks(self) -> Gates: ...

    def gates_after_hooks(self, call: ToolCall, rewritten: bool) -> tuple[Gates, Settlement | None]:
        """The gates to ask about the arguments as the hooks have left them, at this attempt.

        If they are others than at the attempt before, what was taken for those is given up: a
        reservation by this settlement.
        """
        ...

    @property
    def approvals(self) -> MutableMapping[str, Approval]:
        """What a person has approved of this call, by its digest."""
        ...

    def once(self, grant: Grant) -> Refusal | None:
        """The ledger's answer to ``Once``."""
        ...

    def again(self, outcome: ToolOutcome) -> ToolOutcome:
        """The outcome of the same call, as this one gets it. What a person has approved of that one
        is approved of this one too.
        """
        ...

    def certain(self, done: Any) -> Answer:
        """What ``Doubtful`` asked for is there."""
        ...

    def forget(self, done: Any) -> None:
        """What ``Doubtful`` asked for is gone, or cannot be found out: the call may be made
        again.
        """
        ...

    def keep(self, seconds: float) -> Renew | None:
        """Asks for the reservation of ``Once`` to be kept while a person is asked, who may take
        that long; None if there is none.
        """
        ...

    def hold(self) -> None:
        """A person is asked: the turn's clock stops."""
        ...

    def go_on(self) -> None:
        """The person has answered, or will not."""
        ...

    def patience_s(self, *, port: bool = False) -> float:
        """How long a hook, a checker or a store may take from now on; or a port of the gate, which
        gets a moment in any case.
        """
        ...

    def start(self, run: RunTool) -> RunTool | Refusal:
        """The run with the call's deadline, as of now."""
        ...

    def ran(self, ran: Ran) -> Ran:
        """How the body ended; completion and timeout exclude each other here."""
        ...

    def shape(self, outcome: ToolOutcome) -> ToolOutcome | Oversized:
        """The outcome with what the turn knows about it, or what must be stored first."""
        ...

    def stored(self, outcome: ToolOutcome, oversized: Oversized, reference: Any) -> ToolOutcome:
        """The outcome after its output was stored; or, when ``reference`` is a ``Failed``, after
        that failed.
        """
        ...

    def retry_in(self, outcome: ToolOutcome) -> float | None:
        """Seconds until the next attempt, or None when there is none, as for every call that did
        not start.
        """
        ...

    @property
    def reserved(self) -> Settlement | None:
        """The release of the reservation of ``Once``, if there is one."""
        ...

    def settlement(self, held: Settlement, outcome: ToolOutcome) -> Settlement:
        """How it ends."""
        ...

    def ended(self, outcome: ToolOutcome | None) -> None:
        """The call is over; None when it was thrown away. Said exactly once."""
        ...


class OpenedCall(CallInTurn, Protocol):
    """A call of a turn on its way to the guard: a name that can be written down, and arguments that
    are a mapping.
    """

    @property
    def tool_name(self) -> str: ...

    @property
    def body(self) -> Callable[..., Any] | None: ...

    @property
    def args(self) -> Mapping[str, Any]: ...

    @property
    def session_id(self) -> str: ...

    @property
    def plan(self) -> Plan:
        """The policy's plan for the tool, with what the turn knows of it."""
        ...

    @property
    def judge(self) -> Callable[[Any], str | None]:
        """Tells why a result is a failure: it says so itself, or it is not what the tool promised
        to return.
        """
        ...

    def malformed(self, why: str) -> None:
        """The arguments cannot be read, and the gates shall say so."""
        ...


class TurnPort(Protocol):
    """What ``guard.dispatch`` takes as ``turn``."""

    def open(
        self, tool_name: str, arguments: Any, function: Callable[..., Any] | None, policy: Policy
    ) -> OpenedCall:
        """One call of the turn. Whatever a model sent is taken; the gates say what is wrong with
        it.
        """
        ...
