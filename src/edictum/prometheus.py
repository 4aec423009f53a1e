"""The figures of guards in the text format of Prometheus: as a text, or on a port of its own."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Protocol, Self

from edictum.errors import EdictumConfigError
from edictum.stats import Histogram, Stats

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
DEFAULT_PORT: Final = 9_464  # the one that OpenTelemetry has registered for such endpoints
Labels = tuple[tuple[str, str], ...]
Sample = tuple[Labels, float]


def _count_calls(stats: Stats) -> Iterator[Sample]:
    for call in stats.calls:
        labels = (
            ("tool", call.tool),
            ("decision", call.decision),
            ("source", call.source or ""),
            ("outcome", call.outcome),
        )
        yield labels, call.count


ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
# Name, type, help, and the samples of one guard; those with the same labels are added up.
FAMILIES: Final[tuple[tuple[str, str, str, Callable[[Stats], Iterable[Sample]]], ...]] = (
    ("edictum_calls_total", "counter", "Calls by tool, decision, what decided, and outcome.",
     _count_calls),
    ("edictum_audit_failures_total", "counter", "Events that a sink did not take.",
     lambda stats: [((), stats.audit_failures)]),
    ("edictum_audit_dropped_total", "counter", "Events for which a sink had no room.",
     lambda stats: [((), stats.audit_dropped)]),
    ("edictum_prompts_total", "counter", "How often a person was asked to approve a call.",
     lambda stats: [((), stats.prompts)]),
    ("edictum_consequential_calls_total", "counter", "Calls of tools that change something.",
     lambda stats: [((), stats.consequential_calls)]),
    ("edictum_circuits_open", "gauge", "Guards whose session store is not asked: it fails.",
     lambda stats: [((), stats.circuit == "open")]),
    ("edictum_uncounted_calls", "gauge", "Calls that wait for the session store to count them.",
     lambda stats: [((), stats.uncounted_calls)]),
    ("edictum_threads_left_behind", "gauge", "Calls whose time is over and that still run.",
     lambda stats: [((("tool", tool),), n) for tool, n in stats.threads_left_behind.items()]),
    ("edictum_sessions", "gauge", "Sessions held in the memory of this process.",
     lambda stats: [] if stats.sessions is None else [((), stats.sessions)]),
)  # fmt: skip  # a table
HISTOGRAMS: Final[tuple[tuple[str, str, Callable[[Stats], dict[Labels, Histogram]]], ...]] = (
    ("edictum_tool_duration_seconds", "How long the bodies of tools ran.",
     lambda stats: {(("tool", tool),): took for tool, took in stats.tool_latency.items()}),
    ("edictum_part_duration_seconds", "How long the gate, ledger, audit and approvals took.",
     lambda stats: {(("part", part),): took for part, took in stats.latency.items()
                    if part != "tool"}),
)  # fmt: skip  # a table


class HasStats(Protocol):
    """A guard, as far as its figures are concerned."""

    def stats(self) -> Stats: ...


def render_metrics(*guards: HasStats) -> str:
    """Return the figures of guards, added up, in the text format of Prometheus."""
    all_stats = [guard.stats() for guard in guards]
    lines: list[str] = []
    for name, kind, text, read in FAMILIES:
        samples: Counter[Labels] = Counter()
        for stats in all_stats:
            for labels, value in read(stats):
                samples[labels] += int(value)
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{_write_labels(labels)} {value}" for labels, value in samples.items()]
    for name, text, histograms in HISTOGRAMS:
        lines += [f"# HELP {name} {text}", f"# TYPE {name} histogram"]
        lines += _write_histograms(name, [histograms(stats) for stats in all_stats])
    return "\n".join(lines) + "\n"


def _write_histograms(name: str, given: list[dict[Labels, Histogram]]) -> Iterator[str]:
    """Write buckets as Prometheus has them: each counts what took no longer than its bound."""
    for labels in dict.fromkeys(labels for histograms in given for labels in histograms):
        found = [histograms[labels] for histograms in given if labels in histograms]
        buckets: Counter[float] = Counter()
        for histogram in found:
            buckets.update(dict(zip(histogram.bounds_s, histogram.counts, strict=True)))
        total = 0
        for bound in sorted(buckets):
            total += buckets[bound]
            yield f"{name}_bucket{_write_labels((*labels, ('le', f'{bound:g}')))} {total}"
        yield f"{name}_bucket{_write_labels((*labels, ('le', '+Inf')))} {total}"
        total_s = sum(histogram.total_s for histogram in found)
        yield f"{name}_sum{_write_labels(labels)} {total_s!r}"
        yield f"{name}_count{_write_labels(labels)} {total}"


def _write_labels(labels: Labels) -> str:
    pairs = [f'{name}="{value.translate(ESCAPES)}"' for name, value in labels]
    return f"{{{','.join(pairs)}}}" if pairs else ""


class MetricsServer:
    """Answers ``GET /metrics`` on a port, in a thread. Also a context manager."""

    def __init__(self, guards: tuple[HasStats, ...], host: str, port: int) -> None:
        self._guards = guards
        try:
            self._server = ThreadingHTTPServer((host, port), self._make_handler())
        except (OSError, OverflowError) as exc:
            hint = "Choose a free port, or 0 for any."
            where = f"{host}:{port}"
            raise EdictumConfigError(
                f"Metrics cannot be served at {where}: {exc}", hint=hint
            ) from exc
        self._server.daemon_threads = True
        self.port: int = self._server.server_port
        threading.Thread(
            target=self._server.serve_forever, name="edictum-metrics", daemon=True
        ).start()

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        guards = self._guards

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404)
                    return
                body = render_metrics(*guards).encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Keep scrapes out of the log."""

        return Handler

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def serve_metrics(
    *guards: HasStats, port: int = DEFAULT_PORT, host: str = "127.0.0.1"
) -> MetricsServer:
    """Serve the figures of guards at ``http://host:port/metrics``, until the server is closed.

    They name tools: only the scraper should reach the port. Raises
    EdictumConfigError when the port cannot be had.
    """
    return MetricsServer(guards, host, port)
