"""LifecycleConfig: the settings of a guard as the lifecycle sees them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from edictum.core._records import record
from edictum.core.contract import Mode
from edictum.core.effects import Effect
from edictum.core.events import Context
from edictum.outcomes import ToolOutcome
from edictum.success import SuccessCheck

Flow: TypeAlias = Generator[Effect, Any, ToolOutcome]
FailureFlag: TypeAlias = Callable[[Any], str | None]

LATE_ANSWER_S = 5.0  # by how much an approval backend may overrun its timeout


@record
class LifecycleConfig:
    """The settings that all calls of a guard share."""

    context: Context
    success_check: SuccessCheck | None = None
    principal_resolver: Callable[..., Any] | None = None
    on_deny: Callable[..., Any] | None = None
    on_allow: Callable[..., Any] | None = None
    # exceptions by which the host of a call defers it; an approval backend may raise them
    control_flow: tuple[type[BaseException], ...] = ()
    # tells a person what a call would change: a function of the call, which makes another one
    preview: Callable[..., Any] | None = None
    # called in place of waiting for a person, if the approval backend keeps questions
    park: Callable[[Any], Any] | None = None
    lease_s: float | None = None
    late_answer_s: float = LATE_ANSWER_S
    # the approval backend records which approved calls were started
    records_starts: bool = False
    # returns the digest of the policy that new calls are judged by
    digest_in_force: Callable[[], str] | None = None

    @property
    def mode(self) -> Mode:
        return self.context.mode
