"""Providers that send spans and metrics by OTLP, for applications that have none of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

from opentelemetry import metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.sdk import metrics as sdk_metrics
from opentelemetry.sdk import trace as sdk_trace
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import ProxyTracerProvider, TracerProvider

from edictum._optional import import_optional
from edictum._version import __version__
from edictum.core._records import record
from edictum.errors import EdictumConfigError

DEFAULT_ENDPOINTS = {"grpc": "http://localhost:4317", "http": "http://localhost:4318"}
PROTOCOLS = {"grpc": "grpc", "http": "http", "http/protobuf": "http"}
SIGNAL_PATHS = ("/v1/traces", "/v1/metrics")
FLUSH_MS = 5_000
_MADE: list[Any] = []  # providers made here, to be shut down here
_CLOSED: WeakSet[Any] = WeakSet()


@record
class Target:
    """Where spans and metrics are sent, and how they describe this program."""

    endpoint: str
    protocol: str
    insecure: bool
    resource: Resource


def read_target(
    service_name: str,
    endpoint: str | None,
    protocol: str,
    resource_attributes: Mapping[str, str] | None,
    edictum_version: str | None,
    insecure: bool,
) -> Target:
    """Return the target that the environment names, with the arguments as defaults."""
    stated = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or protocol
    if stated not in PROTOCOLS:
        hint = "Write 'grpc' or 'http'."
        raise EdictumConfigError(f"configure_otel: the protocol is {stated!r}.", hint=hint)
    chosen = PROTOCOLS[stated]
    url = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or endpoint or DEFAULT_ENDPOINTS[chosen]
    given = {
        **(resource_attributes or {}),
        "service.name": os.environ.get("OTEL_SERVICE_NAME") or service_name,
        "edictum.version": edictum_version or __version__,
    }
    resource = Resource.create(given).merge(OTELResourceDetector().detect())
    return Target(_strip_path(url), chosen, insecure, resource)


def _strip_path(url: str) -> str:
    """Return the address of the collector: the path of one signal may stand behind it."""
    url = url.rstrip("/")
    for path in SIGNAL_PATHS:
        url = url.removesuffix(path)
    return url


def choose_providers(
    target: Target,
    tracers: TracerProvider | None,
    meters: MeterProvider | None,
    force: bool,
) -> tuple[TracerProvider, MeterProvider]:
    """Return the providers that were given, those of the application, or new ones."""
    theirs, is_given = _find_application_providers(), tracers is not None or meters is not None
    if is_given or (any(theirs) and not force):
        return tracers or trace.get_tracer_provider(), meters or metrics.get_meter_provider()
    made = _make_tracer_provider(target), _make_meter_provider(target)
    _MADE.extend(made)
    if not any(theirs) and not _CLOSED:
        trace.set_tracer_provider(made[0])
        metrics.set_meter_provider(made[1])
    return made


def _find_application_providers() -> tuple[bool, bool]:
    """Return whether the application has set a provider, of spans and of metrics."""
    tracers, meters = trace.get_tracer_provider(), metrics.get_meter_provider()
    return (
        not isinstance(tracers, ProxyTracerProvider) and tracers not in _CLOSED,
        isinstance(meters, sdk_metrics.MeterProvider) and meters not in _CLOSED,
    )


def _make_tracer_provider(target: Target) -> sdk_trace.TracerProvider:
    provider = sdk_trace.TracerProvider(resource=target.resource)
    exporter = _make_exporter(target, "trace_exporter", "OTLPSpanExporter", SIGNAL_PATHS[0])
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _make_meter_provider(target: Target) -> sdk_metrics.MeterProvider:
    exporter = _make_exporter(target, "metric_exporter", "OTLPMetricExporter", SIGNAL_PATHS[1])
    return sdk_metrics.MeterProvider([PeriodicExportingMetricReader(exporter)], target.resource)


def _make_exporter(target: Target, module: str, name: str, path: str) -> Any:
    package = f"opentelemetry.exporter.otlp.proto.{target.protocol}"
    found = import_optional(f"{package}.{module}", "otel")
    if target.protocol == "grpc":
        return getattr(found, name)(endpoint=target.endpoint, insecure=target.insecure)
    return getattr(found, name)(endpoint=f"{target.endpoint}{path}")


def close_providers() -> None:
    """Send what is left, and shut down the providers that were made here."""
    while _MADE:
        provider = _MADE.pop()
        _CLOSED.add(provider)
        provider.force_flush(FLUSH_MS)
        provider.shutdown()
