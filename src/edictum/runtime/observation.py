"""Observation: something that sees the calls of all guards in this process, such as OpenTelemetry.

An observer wraps the lifecycle of a call: a generator around a generator, which passes everything
on and sees the effects, the outcome and what is raised. Without an observer calls pay nothing; with
one they do not take the fast path.
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
    """Observes calls. If it fails, the call continues."""

    def observe(self, flow: Flow, run: RunTool, context: Context, description: str) -> Flow:
        """Return the lifecycle of a call wrapped by the observer.

        ``description`` says what the tool is for; it is empty if only the tool's function could
        tell.
        """
        ...


class ObservedGuard(Protocol):
    """A guard, as far as an observer is concerned."""

    def _renew_state(self) -> None: ...

    def stats(self) -> Stats: ...


class Observation:
    """The observer of this process, and the guards whose calls it sees. The guards are held
    weakly.
    """

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
        """Set the observer of all calls from now on, including those of existing guards."""
        self.observer = observer
        for guard in self.list_guards():
            guard._renew_state()


OBSERVATION = Observation()
