"""What OpenTelemetry costs: a call with it off, and with it on, in turns, in CPU time.

While it is on, spans are made by the SDK, and a processor that keeps nothing takes those that are
sampled. "Off, no fast path" is a call through the lifecycle, as every call is while it is on. "By
hand" is what the SDK takes alone: a span with the attributes of a call, and the same metrics,
without any call.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from edictum import Edictum, OperationLimits, configure_otel
from edictum.otel import disable_otel

ARGS = {"path": "/tmp/notes.txt"}  # only a text here


def read_file(path: str) -> str:
    return path


def make_guard() -> Edictum:
    return Edictum(limits=OperationLimits(max_attempts=None, max_tool_calls=None))


def without_fast_path(guard: Edictum) -> Edictum:
    state = guard._state
    type(state).fast_path.__set__(state, None)  # a slot of a frozen record
    return guard


def turn_on(sampler: Any, **options: Any) -> None:
    tracers, meters = make_providers(sampler)
    configure_otel(tracer_provider=tracers, meter_provider=meters, **options)


def make_providers(sampler: Any) -> tuple[TracerProvider, MeterProvider]:
    tracers = TracerProvider(sampler=sampler)
    tracers.add_span_processor(SpanProcessor())
    return tracers, MeterProvider([InMemoryMetricReader()])


CASES: dict[str, Callable[[], None]] = {
    "off": disable_otel,
    "off, no fast path": disable_otel,
    "on, not sampled": lambda: turn_on(ALWAYS_OFF),
    "on, not sampled, with content": lambda: turn_on(ALWAYS_OFF, record_content=True),
    "on": lambda: turn_on(ALWAYS_ON),
    "on, with arguments and results": lambda: turn_on(ALWAYS_ON, record_content=True),
}
BY_HAND = {"by hand, not sampled": ALWAYS_OFF, "by hand": ALWAYS_ON}


async def time_calls(guard: Edictum, calls: int) -> float:
    started = time.process_time()
    for _ in range(calls):
        await guard.run("read_file", ARGS, read_file)
    return (time.process_time() - started) / calls


def time_by_hand(sampler: Any, calls: int) -> float:
    """Return how long the SDK alone takes for what it is given of one call."""
    tracers, meters = make_providers(sampler)
    tracer, meter = tracers.get_tracer("by hand"), meters.get_meter("by hand")
    duration = meter.create_histogram("gen_ai.execute_tool.duration", "s")
    counter = meter.create_counter("edictum.calls")
    name = {"gen_ai.tool.name": "read_file"}
    at_start = name | {f"attribute.{number}": "a text" for number in range(12)}
    at_end = {"edictum.decision": "allow", "edictum.outcome": "executed"}
    started = time.process_time()
    for _ in range(calls):
        with tracer.start_as_current_span("execute_tool read_file", attributes=at_start) as span:
            span.set_attributes(at_end)
        duration.record(0.001, {"gen_ai.operation.name": "execute_tool", **name})
        counter.add(1, {**name, **at_end})
    return (time.process_time() - started) / calls


async def measure(turns: int, calls: int) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {name: [] for name in (*CASES, *BY_HAND)}
    for _ in range(turns):
        for name, switch in CASES.items():
            switch()
            guard = make_guard()
            if name == "off, no fast path":
                guard = without_fast_path(guard)
            await time_calls(guard, calls // 10)
            took[name].append(await time_calls(guard, calls))
        for name, sampler in BY_HAND.items():
            took[name].append(time_by_hand(sampler, calls))
    disable_otel()
    return took


def main(turns: int = 15, calls: int = 2_000) -> None:
    took = asyncio.run(measure(turns, calls))
    print("OpenTelemetry: CPU time of a call in memory")
    for name, times in took.items():
        ratio = statistics.median(a / b for a, b in zip(times, took["off"], strict=True))
        print(f"  {name:32} {min(times) * 1e6:7.2f} us  {ratio:6.2f}x off")


if __name__ == "__main__":
    main()
