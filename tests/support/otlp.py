"""A receiver of OTLP over HTTP, and an application whose providers send to it.

What arrives is the protobuf of the real exporters, decoded by the published schema.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from edictum.otel import configure_otel, disable_otel


@dataclass(frozen=True)
class Span:
    name: str
    kind: int
    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    status: int  # 0 unset, 1 ok, 2 error
    description: str
    seconds: float
    service: str


@dataclass(frozen=True)
class Point:
    """The newest value of one time series. ``value`` of a histogram is its sum."""

    attributes: dict[str, Any]
    value: float
    count: int


class Receiver:
    """What an OTLP collector would get."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._points: dict[str, dict[tuple[Any, ...], Point]] = {}
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            self._spans.extend(_read_spans(ExportTraceServiceRequest.FromString(body)))
        elif path == "/v1/metrics":
            for name, point in _read_points(ExportMetricsServiceRequest.FromString(body)):
                series = self._points.setdefault(name, {})
                series[tuple(sorted(point.attributes.items()))] = point

    def spans(self, name: str | None = None) -> list[Span]:
        return [span for span in list(self._spans) if name is None or span.name == name]

    def tool_span(self, tool: str) -> Span:
        """Return the span of the only call of a tool."""
        (span,) = self.spans(f"execute_tool {tool}")
        return span

    def points(self, name: str, **wanted: Any) -> list[Point]:
        """Return the series of a metric with these attributes; ``tool`` is the tool's name."""
        tool = wanted.pop("tool", None)
        return [
            point
            for point in list(self._points.get(name, {}).values())
            if (tool is None or point.attributes.get("gen_ai.tool.name") == tool)
            and all(point.attributes.get(key) == value for key, value in wanted.items())
        ]

    def names(self) -> set[str]:
        return set(self._points)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _read_spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for resource in request.resource_spans:
        service = _read_attributes(resource.resource.attributes).get("service.name", "")
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    span.name,
                    span.kind,
                    span.trace_id,
                    span.span_id,
                    span.parent_span_id,
                    _read_attributes(span.attributes),
                    [(event.name, _read_attributes(event.attributes)) for event in span.events],
                    span.status.code,
                    span.status.message,
                    (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                    service,
                )


def _read_points(request: ExportMetricsServiceRequest) -> Iterator[tuple[str, Point]]:
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                for point in getattr(metric, kind).data_points:
                    attributes = _read_attributes(point.attributes)
                    if kind == "histogram":
                        yield metric.name, Point(attributes, point.sum, point.count)
                    else:
                        value = getattr(point, point.WhichOneof("value"))
                        yield metric.name, Point(attributes, value, 1)


def _read_attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


class Application:
    """A program with OpenTelemetry of its own: providers that are set for the whole process."""

    def __init__(self) -> None:
        self.receiver = Receiver()
        self._tracers = TracerProvider()
        exporter = OTLPSpanExporter(endpoint=f"{self.receiver.url}/v1/traces")
        self._tracers.add_span_processor(SimpleSpanProcessor(exporter))
        metric_exporter = OTLPMetricExporter(endpoint=f"{self.receiver.url}/v1/metrics")
        reader = PeriodicExportingMetricReader(metric_exporter, export_interval_millis=3_600_000)
        self._meters = MeterProvider([reader])
        trace.set_tracer_provider(self._tracers)
        metrics.set_meter_provider(self._meters)
        self.tracer = trace.get_tracer("application")

    def collect(self) -> Receiver:
        """Return the receiver with all metrics up to now."""
        self._meters.force_flush()
        return self.receiver


@cache
def application() -> Application:
    """Return the application of this process: a provider can be set once."""
    return Application()


@contextmanager
def observed(**options: Any) -> Iterator[Application]:
    """Have OpenTelemetry on, with the application's providers."""
    running = application()
    configure_otel(**options)
    try:
        yield running
    finally:
        disable_otel()
