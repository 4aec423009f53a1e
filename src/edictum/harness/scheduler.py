"""ToolScheduler: put the calls of one step into waves, which run one after the other.

Two calls share a wave only when no resource of one conflicts with a resource of the other, and at
most one of them writes: writes keep their order, and no read moves across a write. An unknown tool
runs alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from edictum.errors import EdictumConfigError
from edictum.harness.arg_validator import Malformed, ToolArgValidator, Valid, parse_arguments
from edictum.harness.tool_registry import ToolRegistry
from edictum.harness.tool_spec import ResourceKey

MAX_WIDTH = 8
_VALIDATOR = ToolArgValidator()


class ScheduledCall(Protocol):
    """What a scheduler must know about a call."""

    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class ToolWave:
    """Calls that may run together, in the order in which the model asked for them."""

    calls: tuple[Any, ...]

    @property
    def parallel(self) -> bool:
        return len(self.calls) > 1


@dataclass(slots=True)
class _OpenWave:
    calls: list[Any] = field(default_factory=list)
    keys: list[ResourceKey] = field(default_factory=list)
    writes: bool = False
    closed: bool = False

    def can_take(self, keys: Sequence[ResourceKey], writes: bool) -> bool:
        return (
            not self.closed
            and not (self.writes and writes)
            and not any(a.conflicts_with(b) for a in keys for b in self.keys)
        )


class ToolScheduler:
    """Puts calls into waves of at most ``max_width``."""

    def __init__(self, max_width: int = MAX_WIDTH) -> None:
        if isinstance(max_width, bool) or not isinstance(max_width, int) or max_width < 1:
            message = f"ToolScheduler: max_width is {max_width!r}."
            raise EdictumConfigError(message, hint="Use a whole number of 1 or more.")
        self._max_width = max_width

    def schedule(
        self, calls: Sequence[ScheduledCall], tools: ToolRegistry, parallel_enabled: bool = True
    ) -> list[ToolWave]:
        waves: list[_OpenWave] = []
        for call in calls:
            spec, arguments = tools.get(call.name), parse_arguments(call.arguments)
            if spec is None or isinstance(arguments, Malformed) or not parallel_enabled:
                waves.append(_OpenWave([call], closed=True))
                continue
            keys, writes = spec.widest_keys(), not spec.is_read
            with suppress(Exception):  # a wrong schema; the validation gate says so
                checked = _VALIDATOR.validate(spec, arguments)
                if isinstance(checked, Valid):  # those that will run: repaired, with defaults
                    keys = spec.keys_for(checked.arguments)
            last = waves[-1] if waves else _OpenWave(closed=True)
            if len(last.calls) >= self._max_width or not last.can_take(keys, writes):
                waves.append(last := _OpenWave())
            last.calls.append(call)
            last.keys.extend(keys)
            last.writes = last.writes or writes
        return [ToolWave(tuple(wave.calls)) for wave in waves]
