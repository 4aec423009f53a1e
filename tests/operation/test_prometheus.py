"""The figures of guards as Prometheus scrapes them."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request

import pytest

from edictum import Edictum, EdictumConfigError
from edictum.prometheus import CONTENT_TYPE, render_metrics, serve_metrics
from support.guards import denying

LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? ([0-9.e+-]+)')


def read(text: str) -> dict[tuple[str, str], float]:
    """Return the samples of a page; every line is one, or a comment."""
    found = {}
    for line in text.splitlines():
        if not line.startswith(("# HELP edictum_", "# TYPE edictum_")):
            match = LINE.fullmatch(line)
            assert match, line
            name, labels, value = match.groups()
            assert (name, labels or "") not in found, line
            found[name, labels or ""] = float(value)
    return found


def test_calls_of_all_guards_are_added_up() -> None:
    guards = [Edictum(), Edictum(), Edictum(contracts=[denying("no")])]
    for guard in guards:
        guard.dispatch_sync("search", {}, lambda: "found")
        guard.dispatch_sync("divide", {}, lambda: 1 / 0)
    found = read(render_metrics(*guards))
    calls = {labels: n for (name, labels), n in found.items() if name == "edictum_calls_total"}
    ran = 'decision="allow",source="",outcome='
    denied = 'decision="deny",source="precondition",outcome="denied"'
    assert calls == {
        f'tool="search",{ran}"executed"': 2,
        f'tool="divide",{ran}"failed"': 2,
        f'tool="search",{denied}': 1,
        f'tool="divide",{denied}': 1,
    }
    assert found["edictum_sessions", ""] == 3


def test_buckets_count_upwards_and_end_with_all() -> None:
    guards = [Edictum(), Edictum()]
    for number in range(40):
        guards[number % 2].run_sync("wait", {}, lambda: sum(range(20_000)))
    found = read(render_metrics(*guards))
    buckets = [
        n
        for (name, labels), n in found.items()
        if name == "edictum_tool_duration_seconds_bucket" and 'tool="wait"' in labels
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 40
    assert found["edictum_tool_duration_seconds_count", 'tool="wait"'] == 40
    assert found["edictum_tool_duration_seconds_bucket", 'tool="wait",le="+Inf"'] == 40
    took = sum(guard.stats().tool_latency["wait"].total_s for guard in guards)
    assert found["edictum_tool_duration_seconds_sum", 'tool="wait"'] == took


def test_a_name_that_a_model_made_up_cannot_break_the_page() -> None:
    name = 'a"} 1 # {x="'
    guard = Edictum()
    guard.run_sync(name, {}, lambda: None)
    labels = [labels for _, labels in read(render_metrics(guard)) if "tool=" in labels]
    assert labels
    assert all(label.startswith('tool="a\\"} 1 # {x=\\""') for label in labels)


def test_no_guard_has_no_calls() -> None:
    assert read(render_metrics()) == {}


def test_a_port_serves_the_page_until_it_is_closed() -> None:
    guard = Edictum()
    with serve_metrics(guard, port=0) as server:
        url = f"http://127.0.0.1:{server.port}"
        guard.run_sync("search", {}, lambda: None)
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            assert answer.headers["Content-Type"] == CONTENT_TYPE
            assert answer.read().decode() == render_metrics(guard)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/")
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/metrics")


def test_a_port_that_is_taken_is_said_clearly() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EdictumConfigError, match=f"served at 127.0.0.1:{port}"):
            serve_metrics(Edictum(), port=port)
