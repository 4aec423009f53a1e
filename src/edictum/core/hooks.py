"""Hooks: functions that watch calls, and may deny a call or rewrite its arguments before it
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from inspect import iscoroutinefunction
from typing import Any, Literal

from edictum.core.contract import shorten_message
from edictum.core.signatures import check_takes
from edictum.errors import EdictumConfigError


class HookResult(Enum):
    ALLOW = "allow"
    DENY = "deny"
    REWRITE = "rewrite"


@dataclass(frozen=True, slots=True)
class HookDecision:
    """A before-hook's answer. ``args`` are the rewritten arguments."""

    result: HookResult
    reason: str | None = None
    args: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "result", HookResult(self.result))  # "deny" means deny
        object.__setattr__(
            self, "reason", None if self.reason is None else shorten_message(self.reason)
        )

    @classmethod
    def allow(cls) -> HookDecision:
        return ALLOW

    @classmethod
    def deny(cls, reason: str) -> HookDecision:
        return cls(HookResult.DENY, reason)

    @classmethod
    def rewrite(cls, args: Mapping[str, Any], reason: str | None = None) -> HookDecision:
        """Replace all arguments of the call. Everything after the hook sees the new ones."""
        return cls(HookResult.REWRITE, reason, args)


ALLOW = HookDecision(HookResult.ALLOW)


@dataclass(frozen=True, slots=True)
class HookRegistration:
    """``callback(call) -> HookDecision`` before a tool, or ``callback(call, result)`` after it."""

    phase: Literal["before", "after"]
    tool: str
    callback: Callable[..., Any]
    when: Callable[[Any], bool] | None = None

    def __post_init__(self) -> None:
        if self.phase not in ("before", "after"):
            raise EdictumConfigError(
                f"hook {self.name!r}: phase is {self.phase!r}.", hint="Use 'before' or 'after'."
            )
        if not isinstance(self.tool, str) or not self.tool:
            raise EdictumConfigError(
                f"hook {self.name!r}: tool is {self.tool!r}.",
                hint="Use a tool's name, a glob, or '*'.",
            )
        if not callable(self.callback):
            raise EdictumConfigError(
                f"hook for {self.tool!r}: callback is not callable: {self.callback!r}.",
                hint="Pass a function.",
            )
        if self.when is not None and (not callable(self.when) or iscoroutinefunction(self.when)):
            hint = "Pass a function of the call that is not async."
            raise EdictumConfigError(
                f"hook {self.name!r}: `when` is not an ordinary function: {self.when!r}.", hint=hint
            )
        check_takes(
            f"hook {self.name!r}: its callback",
            self.callback,
            *(("call",) if self.phase == "before" else ("call", "result")),
        )
        if self.when is not None:
            check_takes(f"hook {self.name!r}: `when`", self.when, "call")

    @property
    def name(self) -> str:
        return getattr(self.callback, "__name__", "anonymous")
