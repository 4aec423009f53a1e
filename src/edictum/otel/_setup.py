"""Turn OpenTelemetry on and off."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from edictum._optional import import_optional
from edictum._version import __version__
from edictum.errors import EdictumConfigError
from edictum.runtime.observation import OBSERVATION

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

SCOPE_NAME = "edictum"  # the name under which spans and metrics are made
_LOCK = threading.Lock()


def has_otel() -> bool:
    """Return whether the packages of the extra ``otel`` are installed."""
    try:
        import_optional("opentelemetry.sdk.trace", "otel")
    except EdictumConfigError:
        return False
    return True


def configure_otel(
    *,
    service_name: str = "edictum-agent",
    endpoint: str | None = None,
    protocol: Literal["grpc", "http"] = "grpc",
    resource_attributes: Mapping[str, str] | None = None,
    edictum_version: str | None = None,
    force: bool = False,
    insecure: bool = True,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    record_content: bool = False,
) -> None:
    """Have every governed call of this process make a span and count in metrics, from now on.

    Where the application has set a provider, or ``tracer_provider`` or ``meter_provider`` is given,
    nothing is sent that it does not send. Else providers are made that send to ``endpoint`` by
    OTLP, and set as the application's; ``force`` makes some for these spans alone where there are
    others. The variables OTEL_SERVICE_NAME, OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_PROTOCOL and OTEL_RESOURCE_ATTRIBUTES go before the arguments. ``insecure``
    is for gRPC without TLS.

    ``record_content`` puts arguments and results into spans, redacted. Raises EdictumConfigError
    when the extra is not installed.
    """
    import_optional("opentelemetry.sdk.trace", "otel")
    from edictum.otel._exporting import choose_providers, read_target
    from edictum.otel._observer import CallObserver

    target = read_target(
        service_name, endpoint, protocol, resource_attributes, edictum_version, insecure
    )
    with _LOCK:
        tracers, meters = choose_providers(target, tracer_provider, meter_provider, force)
        tracer = tracers.get_tracer(SCOPE_NAME, __version__)
        meter = meters.get_meter(SCOPE_NAME, __version__)
        OBSERVATION.set_observer(CallObserver(tracer, meter, record_content=record_content))


def disable_otel() -> None:
    """Make no more spans, and send what is left of those that were made.

    Providers of the application are left as they are.
    """
    with _LOCK:
        OBSERVATION.set_observer(None)
        exporting = sys.modules.get("edictum.otel._exporting")
        if exporting is not None:
            exporting.close_providers()
