"""Trace context of OpenTelemetry, carried to where a tool's body runs.

It is sent as the text that the application's propagators write: ``traceparent`` and ``baggage`` by
default. Where OpenTelemetry is not in use nothing is imported, and nothing is sent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress


def write_context() -> dict[str, str]:
    """Return the current trace context; empty where no span is current."""
    carrier: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:
        with suppress(Exception):  # a propagator that fails changes nothing for the call
            from opentelemetry import propagate

            propagate.inject(carrier)
    return carrier


@contextmanager
def enter_context(carrier: Mapping[str, str]) -> Iterator[None]:
    """Make this trace context the current one, where OpenTelemetry is installed and can read it."""
    token = None
    with suppress(Exception):
        from opentelemetry import context, propagate

        token = context.attach(propagate.extract(carrier))
    try:
        yield
    finally:
        if token is not None:
            context.detach(token)
