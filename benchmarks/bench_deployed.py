"""What people deploy, next to what they would write by hand: audit files, session stores, turns.

    python benchmarks/bench_deployed.py [--quick] [--only TEXT]

This library and the guards of deployed_by_hand.py run in processes of their own and take turns: in
every repetition each makes the same calls, one after the other and then 100 at once. Two figures
come out: the CPU time of the process (all its threads, not that of a server) per call, and the calls
per second on the wall. A ratio is the median of the ratios of these pairs, in CPU time; calls per
second are those of the median. The row of the turn is compared with ``run`` of this library with its
fast path switched off, in a third process that cannot import it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from load import AT_ONCE, FOLDER, POSTGRES, VALKEY
from peers import Worker
from tables import Sample, by_median, print_table

TESTS = Path(__file__).resolve().parents[1] / "tests"
FAST_PATH = "edictum.runtime.fast_path"
REPETITIONS = 11
QUICK = 0.02
HAND, SLOW = "by hand", "run, no fast path"


@dataclass(frozen=True)
class Row:
    """One kind of call: its name in the workers and in the table, and the ratio that it may have."""

    case: str
    title: str
    most: float
    calls: tuple[int, int]  # per repetition: one after the other, 100 at once
    against: str = HAND
    server: str = ""

    @property
    def other_case(self) -> str:
        return "usual" if self.against == SLOW else self.case


ROWS = (
    Row("usual", "run, 1 contract, in memory", 2.0, (2_000, 2_000)),
    Row("denied", "  denied", 4.0, (1_000, 1_000)),
    Row("failing", "  failing tool", 4.0, (1_000, 1_000)),
    Row("clock", "  a clock of the program's own", 4.0, (1_000, 1_000)),
    Row("amounts", "  amounts", 4.0, (1_000, 1_000)),
    Row("turn", "a call in a turn, inline, in memory", 2.0, (500, 500), SLOW),
    Row("file", "JSONL audit file", 2.5, (500, 500)),
    Row("sqlite", "SQLite sessions", 3.0, (60, 500)),
    Row("sqlite, file", "SQLite sessions, JSONL audit file", 3.0, (60, 500)),
    Row("sqlite, chained", "SQLite sessions, chained audit in the same file", 2.5, (60, 500)),
    Row("valkey", "Valkey sessions", 3.0, (60, 500), server=VALKEY),
    Row("valkey, file", "Valkey sessions, JSONL audit file", 3.0, (60, 500), server=VALKEY),
    Row("postgres", "PostgreSQL sessions", 3.0, (60, 500), server=POSTGRES),
    Row("postgres, file", "PostgreSQL sessions, JSONL audit file", 3.0, (60, 500), server=POSTGRES),
)


@dataclass
class Pair:
    """What both sides took at one load: samples of CPU seconds and of seconds on the wall."""

    cpu: tuple[Sample, Sample]
    wall: tuple[Sample, Sample]

    @classmethod
    def empty(cls) -> Pair:
        return cls((Sample(), Sample()), (Sample(), Sample()))

    def add(self, side: int, seconds: list[float]) -> None:
        self.cpu[side].seconds.append(seconds[0])
        self.wall[side].seconds.append(seconds[1])


Measured = dict[tuple[str, int], Pair]


@contextmanager
def servers(wanted: set[str]) -> Iterator[dict[str, str]]:
    """Start Valkey and PostgreSQL from the test wheels; yield why one could not be started."""
    sys.path.insert(0, str(TESTS))
    from support.servers import NoServer, Postgres, Valkey

    kinds: dict[str, Any] = {VALKEY: Valkey, POSTGRES: Postgres}
    started: list[Any] = []
    missing: dict[str, str] = {}
    try:
        for name in sorted(wanted):
            try:
                started.append(kinds[name]())
                os.environ[name] = started[-1].url
            except NoServer as exc:
                missing[name] = str(exc)
        yield missing
    finally:
        for server in started:
            server.stop()


def measure(rows: list[Row], repetitions: int, scale: float) -> tuple[Measured, dict[str, int]]:
    """Time every row of every side in turns, and see whether the ledgers by hand are exact."""
    python = Path(sys.executable)
    ours = Worker(python, "deployed_ours.py")
    others = {
        HAND: Worker(python, "deployed_by_hand.py"),
        SLOW: Worker(python, "deployed_ours.py", FAST_PATH),
    }
    measured: Measured = {}
    try:
        for turn in range(repetitions):
            print(f"\rrepetition {turn + 1} of {repetitions}", end="", file=sys.stderr, flush=True)
            for row in rows:
                for at_once, calls in zip(AT_ONCE, row.calls, strict=True):
                    n = max(2, int(calls * scale))
                    pair = measured.setdefault((row.case, at_once), Pair.empty())
                    pair.add(0, ours.on_clocks(f"{row.case} @{at_once}", n))
                    other = others[row.against]
                    pair.add(1, other.on_clocks(f"{row.other_case} @{at_once}", n))
        print(file=sys.stderr)
        stores = [row.case for row in rows if row.case in others[HAND].facts]
        return measured, {store: int(others[HAND].fact(store)) for store in stores}
    finally:
        for worker in (ours, *others.values()):
            worker.close()


HEADINGS = ("call", "against", "CPU, 1", "other", "ratio", "CPU, 100", "other", "ratio", "at most")
RATES = ("call", "against", "1 at once", "other", "100 at once", "other")


def report(rows: list[Row], measured: Measured, passed: dict[str, int]) -> None:
    print("CPU time per call in microseconds: median (smallest..largest), 1 and 100 at once.")
    print_table([HEADINGS, *(_cpu_cells(row, measured) for row in rows)])
    print("\nCalls per second on the wall, 1 and 100 at once.")
    print_table([RATES, *(_rate_cells(row, measured) for row in rows)])
    counts = ", ".join(f"{store} {count}" for store, count in passed.items())
    print(f"\nThe ledgers by hand are exact: a limit of 3, 100 calls at once, bodies ran: {counts}")


def _cpu_cells(row: Row, measured: Measured) -> tuple[str, ...]:
    cells: list[str] = [row.title, row.against]
    for at_once in AT_ONCE:
        ours, other = measured[row.case, at_once].cpu
        cells += [ours.text(), other.text(), by_median(ours, other, digits=2)]
    return (*cells, f"{row.most:.1f}x")


def _rate_cells(row: Row, measured: Measured) -> tuple[str, ...]:
    rates = [
        f"{1 / sample.median:,.0f}"
        for at_once in AT_ONCE
        for sample in measured[row.case, at_once].wall
    ]
    return (row.title, row.against, *rates)


NOTE = """
By hand: benchmarks/deployed_by_hand.py and ledgers_by_hand.py. In memory both sides keep their events in a deque; with a file they write the
same two lines; chained, each event is committed with what it counts, and holds the hash of the one before it. SQLite: WAL, synchronous=FULL, a writer thread that commits what has come together. Valkey: appendfsync always, a Lua script
per step through redis.asyncio. PostgreSQL: one statement per step through an asyncpg pool. 20 sessions share the calls, limits are far away.
"""


def run(repetitions: int, scale: float, rows: list[Row]) -> None:
    with servers({row.server for row in rows if row.server}) as missing:
        there = [row for row in rows if row.server not in missing]
        with tempfile.TemporaryDirectory(prefix="edictum-bench-") as folder:
            os.environ[FOLDER] = folder
            report(there, *measure(there, repetitions, scale))
    for why in missing.values():
        print(f"NOT MEASURED: {why}")
    print(NOTE.rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description="What people deploy, next to guards by hand.")
    parser.add_argument("--quick", action="store_true", help="one short repetition, no servers")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    options, _ = parser.parse_known_args()
    rows = [row for row in ROWS if options.only in row.case]
    if options.quick:
        run(1, QUICK, [row for row in rows if not row.server])
    else:
        run(options.repetitions, 1.0, rows)


if __name__ == "__main__":
    main()
