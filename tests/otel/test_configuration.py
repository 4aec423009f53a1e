"""Turning OpenTelemetry on: for a program without providers, from a bundle, and without the
packages.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_service
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_service
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from edictum import Edictum, EdictumConfigError, configure_otel, has_otel
from support.otlp import Receiver

PROGRAM = """
from edictum import Edictum, configure_otel
configure_otel(**OPTIONS)
from opentelemetry import trace
with trace.get_tracer("app").start_as_current_span("step"):
    Edictum().run_sync("search", {"query": "x"}, lambda query: query)
"""
BUNDLE = """
from edictum import Edictum
guard = Edictum.from_yaml_string('''
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: example}
defaults: {mode: enforce}
observability: {otel: {enabled: true, endpoint: "${COLLECTOR}", protocol: http, service_name: from-bundle}}
contracts:
  - {id: no-x, type: pre, tool: search, when: {args.query: {equals: x}}, then: {effect: deny, message: "No."}}
''')
guard.dispatch_sync("search", {"query": "x"}, lambda query: query)
"""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def run_program(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_program_without_providers_gets_some(receiver: Receiver) -> None:
    """They are the application's too, and what is left is sent when the program ends."""
    options = {"endpoint": receiver.url, "protocol": "http", "service_name": "bot"}
    options["resource_attributes"] = {"team": "search"}  # type: ignore[assignment]
    run_program(f"OPTIONS = {options!r}\n{PROGRAM}")
    span, (step,) = receiver.tool_span("search"), receiver.spans("step")
    assert (span.trace_id, span.parent_id) == (step.trace_id, step.span_id)
    assert span.service == step.service == "bot"
    (point,) = receiver.points("edictum.calls", tool="search")
    assert point.value == 1


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
def test_the_environment_goes_before_the_arguments(receiver: Receiver, path: str) -> None:
    options = {"endpoint": "http://127.0.0.1:1", "service_name": "from arguments"}
    run_program(
        f"OPTIONS = {options!r}\n{PROGRAM}",
        OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url + path,
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        OTEL_SERVICE_NAME="from environment",
        OTEL_RESOURCE_ATTRIBUTES="team=search",
    )
    assert receiver.tool_span("search").service == "from environment"
    assert receiver.points("edictum.calls", tool="search")


def test_a_bundle_turns_it_on(receiver: Receiver) -> None:
    run_program(BUNDLE, COLLECTOR=receiver.url)
    span = receiver.tool_span("search")
    assert span.service == "from-bundle"
    assert span.attributes["edictum.decision.name"] == "no-x"


class GrpcReceiver(trace_service.TraceServiceServicer, metrics_service.MetricsServiceServicer):
    """Both services of OTLP over gRPC: they share the name of their method."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.arrived = threading.Event()

    def Export(self, request: Any, context: Any) -> Any:
        if hasattr(request, "resource_spans"):
            scopes = [scope for each in request.resource_spans for scope in each.scope_spans]
            self.names |= {span.name for scope in scopes for span in scope.spans}
            return ExportTraceServiceResponse()
        scopes = [scope for each in request.resource_metrics for scope in each.scope_metrics]
        self.names |= {metric.name for scope in scopes for metric in scope.metrics}
        return ExportMetricsServiceResponse()


def test_grpc_is_the_default() -> None:
    service = GrpcReceiver()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service.add_TraceServiceServicer_to_server(service, server)
    metrics_service.add_MetricsServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    options = {"endpoint": f"http://127.0.0.1:{port}"}
    run_program(f"OPTIONS = {options!r}\n{PROGRAM}")
    server.stop(None)
    assert {"execute_tool search", "step", "gen_ai.execute_tool.duration"} <= service.names


def test_a_protocol_that_is_not_known_is_refused() -> None:
    with pytest.raises(EdictumConfigError, match="the protocol is 'carrier pigeon'"):
        configure_otel(protocol="carrier pigeon")  # type: ignore[arg-type]


def test_a_collector_that_is_away_changes_nothing_for_calls() -> None:
    options = {"endpoint": "http://127.0.0.1:1", "protocol": "http"}
    code = f"OPTIONS = {options!r}\n{PROGRAM}\nprint('ran')"
    told = run_program(code, OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert "ran" in told


def test_the_packages_are_here() -> None:
    assert has_otel()


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from edictum import Edictum, EdictumConfigError, configure_otel, has_otel
assert not has_otel()
try:
    configure_otel()
except EdictumConfigError as exc:
    print(exc)
print(Edictum().run_sync("t", {}, lambda: "ran"))
"""


def test_without_the_packages_it_says_which_extra_to_install() -> None:
    told = run_program(WITHOUT)
    assert "pip install '.[otel]'" in told
    assert told.rstrip().endswith("ran")


UNUSED = """
import json, sys
from edictum import Edictum
from edictum.runtime.fast_path import FastPath
guard = Edictum()
guard.run_sync("t", {}, dict)
loaded = [name for name in sys.modules if name.startswith(("opentelemetry", "edictum.otel"))]
print(json.dumps([loaded, type(guard._state.fast_path) is FastPath]))
"""


def test_nothing_is_loaded_and_calls_take_the_fast_path_while_it_is_off() -> None:
    assert json.loads(run_program(UNUSED)) == [[], True]


def test_calls_take_the_fast_path_again_once_it_is_turned_off(app: Any) -> None:
    from edictum.otel import disable_otel

    guard = Edictum()
    assert guard._state.fast_path is None
    disable_otel()
    assert guard._state.fast_path is not None
