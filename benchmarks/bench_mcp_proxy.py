"""What ``edictum mcp-proxy`` adds to a tools/call of the official clients, over stdio and over
streamable HTTP.

    python benchmarks/bench_mcp_proxy.py

An ordinary server is called directly and through the proxy, one call after the other in turns (see
proxy_calls.py), so a busy moment hits both. All are processes that wait for each other: the figures
are the time on the wall.
"""

from __future__ import annotations

import sys
from typing import Any

from tables import Sample, by_best, by_median, print_table
from venvs import NotMeasured, ask

MS = 1e3
CALLS = 200
CLIENTS = {"s1": "mcp 2", "s3": "mcp 1"}  # venv -> the generation of the client and of the server
TRANSPORTS = {"stdio": "stdio", "http": "streamable HTTP"}
HEADINGS = (
    "client and transport",
    "bare p50",
    "p99",
    "by proxy p50",
    "p99",
    "added",
    "ratio",
    "of the best",
)


def row(title: str, found: dict[str, Any]) -> tuple[str, ...]:
    bare, governed = (Sample(found["seconds"][who]) for who in ("bare", "governed"))
    figures = [
        f"{value * MS:.2f}"
        for sample in (bare, governed)
        for value in (sample.median, sample.quantile(0.99))
    ]
    return (
        title,
        *figures,
        governed.minus(bare).middle(MS),
        by_median(governed, bare),
        by_best(governed, bare),
    )


def measure(calls: int) -> tuple[list[tuple[str, ...]], dict[str, str]]:
    """The rows that could be measured, and why others could not."""
    rows: list[tuple[str, ...]] = []
    missing: dict[str, str] = {}
    for venv, generation in CLIENTS.items():
        for transport, name in TRANSPORTS.items():
            try:
                found = ask(venv, "proxy_calls.py", transport, str(calls))
                rows.append(row(f"mcp {found['version']}, {name}", found))
            except NotMeasured as exc:
                missing[f"{generation}, {name}"] = str(exc)
    return rows, missing


def report(rows: list[tuple[str, ...]], missing: dict[str, str]) -> None:
    print(
        "edictum mcp-proxy: latency of one tools/call in milliseconds; added: median (quartiles) of"
        " the differences of pairs."
    )
    print_table([HEADINGS, *rows, *((name, "NOT MEASURED", *["-"] * 6) for name in missing)])
    for name, why in missing.items():
        print(f"{name}: NOT MEASURED, {why}")
    print(
        "One YAML contract, counters and audit in memory. The proxy is one more process, and over"
        " HTTP one more hop, on the same machine."
    )


def main() -> None:
    report(*measure(10 if "--quick" in sys.argv else CALLS))


if __name__ == "__main__":
    main()
