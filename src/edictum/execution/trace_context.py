"""Trace context of OpenTelemetry, carried to where a tool's body runs.

It goes as the text that the application's propagators write, ``traceparent`` and ``baggage`` unless
they are others. Where OpenTelemetry is not in use nothing is imported, and nothing is sent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


def write_context() -> dict[str, str]:
    """Return the current trace context; empty where no span is current."""
    carrier: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import propagate

        propagate.inject(carrier)
    return carrier


@contextmanager
def enter_context(carrier: Mapping[str, str]) -> Iterator[None]:
    """Make this trace context the current one, where OpenTelemetry is installed."""
    try:
        from opentelemetry import context, propagate
    except ImportError:
        yield
        return
    token = context.attach(propagate.extract(carrier))
    try:
        yield
    finally:
        context.detach(token)
