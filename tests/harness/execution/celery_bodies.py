"""What a Celery worker of the tests runs: well-behaved tools, and others."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

from edictum.execution.celery import worker_app
from edictum.harness import tool


def add(a: int, b: int) -> int:
    return a + b


async def add_later(a: int, b: int) -> int:
    return a + b


@tool(side_effect="read")
def weekday(day: date) -> str:
    return day.strftime("%A")


def fail(text: str) -> None:
    raise ValueError(text)


def leave() -> None:
    sys.exit(3)


def spin() -> None:
    while True:
        pass


def crash() -> None:
    os._exit(7)


def pid() -> int:
    return os.getpid()


def append(path: str, text: str, then_sleep: float = 0.0) -> str:
    """A side effect: one line in a file, then perhaps a long sleep."""
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()} {text}\n")
    time.sleep(then_sleep)
    return text


def hold(begun: str, go_on: str) -> None:
    Path(begun).touch()
    while not Path(go_on).exists():
        time.sleep(0.01)


def start_child(path: str) -> None:
    child = subprocess.Popen(["sleep", "600"])
    Path(path).write_text(str(child.pid))
    time.sleep(600)


def work(endpoint: str, how: str = "end") -> str:
    """Make a span, and end, fail or hang inside it."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    with provider.get_tracer("tool").start_as_current_span("work"):
        pass  # sent at its end
    if how == "fail":
        raise ValueError("it fails")
    if how == "hang":
        time.sleep(60)
    return str(os.getpid())


def odd() -> Any:
    return object()


if "EDICTUM_TEST_BROKER" in os.environ:
    app = worker_app(os.environ["EDICTUM_TEST_BROKER"], sys.modules[__name__])
