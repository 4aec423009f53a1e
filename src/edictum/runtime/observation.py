"""Observation: what sees the calls of all guards in this process, such as OpenTelemetry.

An observer wraps the lifecycle of a call: a generator around a generator, which passes everything
on and sees the effects, the outcome and what is raised. While there is none, calls pay nothing;
with one they do not take the fast path.
"""

from __future__ import annotations

import threading
from typing import Protocol
from weakref import WeakSet

from edictum.core.config import Flow
from edictum.core.effects import RunTool
from edictum.core.events import Context
from edictum.execution.forks import protect
from edictum.stats import Stats


class Observer(Protocol):
    """Sees calls; whatever goes wrong in it, the call goes on."""

    def observe(self, flow: Flow, run: RunTool, context: Context, description: str) -> Flow:
        """Return the lifecycle of a call, as it will be driven. ``description`` is what the tool is
        said to be for, empty where only its function could tell.
        """
        ...


class ObservedGuard(Protocol):
    """A guard, as far as an observer is concerned."""

    def _renew_state(self) -> None: ...

    def stats(self) -> Stats: ...


class Observation:
    """The observer of this process, and the guards whose calls it sees; these are held weakly."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        protect(self)
        self._guards: WeakSet[ObservedGuard] = WeakSet()
        self.observer: Observer | None = None

    def add_guard(self, guard: ObservedGuard) -> None:
        with self._lock:
            self._guards.add(guard)

    def list_guards(self) -> list[ObservedGuard]:
        with self._lock:
            return list(self._guards)

    def set_observer(self, observer: Observer | None) -> None:
        """Have this observer see calls from now on, those of existing guards as well."""
        self.observer = observer
        for guard in self.list_guards():
            guard._renew_state()


OBSERVATION = Observation()
