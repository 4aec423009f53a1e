"""ToolScheduler: the calls of one step as waves. Calls of a wave may run side by side; waves run
one after the other.

Two calls share a wave only when no resource of one conflicts with a resource of the other, and at
most one of them writes: writes keep their order, and no read moves across a write. A tool nobody
knows runs alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from edictum.errors import EdictumConfigError
from edictum.harness.arg_validator import Malformed, ToolArgValidator, Valid, parse_arguments
from edictum.harness.tool_registry import ToolRegistry
from edictum.harness.tool_spec import ResourceKey, ToolSpec

MAX_WIDTH = 8
VALIDATOR = ToolArgValidator()


class Call(Protocol):
    """What a scheduler needs to know of a call."""

    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class ToolWave:
    """Calls that may run together, in the order in which they were asked for."""

    calls: tuple[Any, ...]

    @property
    def parallel(self) -> bool:
        return len(self.calls) > 1


@dataclass(slots=True)
class _Wave:
    """A wave being filled."""

    calls: list[Any] = field(default_factory=list)
    keys: list[ResourceKey] = field(default_factory=list)
    writes: bool = False
    closed: bool = False

    def takes(self, keys: Sequence[ResourceKey], writes: bool) -> bool:
        return (
            not self.closed
            and not (self.writes and writes)
            and not any(a.conflicts_with(b) for a in keys for b in self.keys)
        )


class ToolScheduler:
    """Puts calls into waves of at most ``max_width``."""

    def __init__(self, max_width: int = MAX_WIDTH) -> None:
        if isinstance(max_width, bool) or not isinstance(max_width, int) or max_width < 1:
            raise EdictumConfigError(
                f"ToolScheduler: max_width is {max_width!r}.",
                hint="Use a whole number of 1 or more.",
            )
        self._max_width = max_width

    def schedule(
        self, calls: Sequence[Call], tools: ToolRegistry, parallel_enabled: bool = True
    ) -> list[ToolWave]:
        waves: list[_Wave] = []
        for call in calls:
            self._place(call, tools, waves, parallel_enabled)
        return [ToolWave(tuple(wave.calls)) for wave in waves]

    def _place(self, call: Call, tools: ToolRegistry, waves: list[_Wave], parallel: bool) -> None:
        spec, arguments = tools.get(call.name), parse_arguments(call.arguments)
        if spec is None or isinstance(arguments, Malformed) or not parallel:
            waves.append(_Wave([call], closed=True))
            return
        keys, writes = _keys(spec, arguments), not spec.is_read
        if (
            not waves
            or len(waves[-1].calls) >= self._max_width
            or not waves[-1].takes(keys, writes)
        ):
            waves.append(_Wave())
        wave = waves[-1]
        wave.calls.append(call)
        wave.keys.extend(keys)
        wave.writes = wave.writes or writes


def _keys(spec: ToolSpec, arguments: Mapping[str, Any]) -> Sequence[ResourceKey]:
    """The resources of a call, by the arguments with which it will run: repaired, and with the
    defaults of those left out.
    """
    try:
        checked = VALIDATOR.validate(spec, arguments)
    except Exception:  # a schema that is none; the gate says so
        return spec.unknown_keys()
    return spec.keys_for(checked.arguments) if isinstance(checked, Valid) else spec.unknown_keys()
