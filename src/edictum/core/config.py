"""What all calls of a guard have in common, and the state of one call at the door."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias

from edictum.core._records import record
from edictum.core.call import ToolCall
from edictum.core.contract import Mode
from edictum.core.decision import Decision
from edictum.core.effects import Effect
from edictum.core.events import Context, Note
from edictum.core.limits import Counters, Seat
from edictum.outcomes import ToolOutcome
from edictum.success import SuccessCheck

Flow: TypeAlias = Generator[Effect, Any, ToolOutcome]
Flag: TypeAlias = Callable[[Any], str | None]


@record
class AtOnce:
    """Ports that are known to answer at once, and not to fail: a ledger and a sink in this memory,
    and the system's clock.

    They are asked without stopping the walk, which saves most of what stopping costs. Only the
    straight road asks them; whatever is unusual is yielded as ever. ``enter`` and ``leave`` answer
    with the attempts and executions of the session, or None when there is more to a call than a
    seat that is free.
    """

    enter: Callable[[str, str, Seat], tuple[int, int] | None]
    leave: Callable[[str, str, Seat], tuple[int, int] | None]
    now: Callable[[], float]
    note: Callable[[Note], None]
    last_note: Callable[
        [Note], None
    ]  # of a call, after which the sink may look whether it has become too long


# Nobody enters, so that the rest is never asked.
NOT_AT_ONCE = AtOnce(lambda *_: None, lambda *_: None, lambda: 0.0, lambda _: None, lambda _: None)


@record
class Terms:
    """What all calls of a guard have in common."""

    context: Context
    success_check: SuccessCheck | None = None
    principal_resolver: Callable[..., Any] | None = None
    on_deny: Callable[..., Any] | None = None
    on_allow: Callable[..., Any] | None = None
    can_ask: bool = False
    lease_s: float | None = None
    in_force: Callable[[], str | None] | None = (
        None  # the version of the policy that new calls are judged by
    )
    enforcing: bool = True
    at_once: AtOnce = NOT_AT_ONCE

    @property
    def mode(self) -> Mode:
        return self.context.mode


@record
class Admission:
    """The state of a call at the door: what was decided, and the counters it was decided by."""

    call: ToolCall
    decision: Decision
    counters: Counters
    gate: str | None = (
        None  # for denials that ToolDenied.reason names otherwise than by their source
    )
    announced: bool = False  # an event that says so is already written
    holds: bool = False  # slots are held, and must be given back if the call does not run
    answered: ToolOutcome | None = None  # a gate of the turn has ended the call: this is how
    per_tool: Mapping[str, Counters] | None = (
        None  # of the same moment as the counters, for session contracts
    )
