"""A program that calls a tool by a broker that never answers, and ends."""

from __future__ import annotations

import signal
import sys

import celery_bodies as bodies
from celery import Celery

from edictum import Edictum
from edictum.execution.celery import CeleryEngine

if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # whoever runs the tests in the background has it ignored
    broker, backend, timeout_s = sys.argv[1:]
    guard = Edictum(execution=CeleryEngine(Celery("silent", broker=broker, backend=backend)))
    print(
        type(
            guard.dispatch_sync("add", {"a": 1, "b": 2}, bodies.add, timeout_s=float(timeout_s))
        ).__name__
    )
