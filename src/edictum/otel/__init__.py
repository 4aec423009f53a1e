"""OpenTelemetry (extra ``otel``): a span for every governed call, and metrics.

Nothing of OpenTelemetry is imported before ``configure_otel`` is called.
"""

from edictum.otel._setup import configure_otel, disable_otel, has_otel

__all__ = ["configure_otel", "disable_otel", "has_otel"]
