"""``make bench``: this library, the public edictum 0.19.0 and a guard written by hand, in one run, as ratios.

The systems run in processes of their own and take turns: every repetition times each system once on each case, so that a busy
moment of the machine hits all of them. A figure is the median over the repetitions; the spread is the smallest and the largest.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from peers import PEER, Worker, peer_python

US = 1e6
BASELINE_IMPORTS = "asyncio, dataclasses, json, uuid"


@dataclass(frozen=True)
class Row:
    """One case: its name in the workers, what it is called in the table, and how many iterations each system does per turn."""

    case: str
    title: str
    ours: int
    theirs: int


ROWS = (
    Row("run 0", "run, no contract", 3_000, 400),
    Row("run 1", "run, 1 Python contract", 3_000, 400),
    Row("run 100", "run, 100 matching Python contracts", 500, 60),
    Row("run 1 + 10,000 other", "run, 1 matching + 10,000 for other tools", 3_000, 8),
    Row("evaluate 1", "evaluate, 1 Python contract", 3_000, 400),
    Row("evaluate 100", "evaluate, 100 matching Python contracts", 300, 60),
    Row("run yaml 1", "run, 1 YAML contract", 3_000, 400),
    Row("run yaml 100", "run, 100 matching YAML contracts", 1_000, 60),
    Row("run yaml 1 + 10,000 other", "run, 1 YAML + 10,000 for other tools", 3_000, 8),
    Row("evaluate yaml 1", "evaluate, 1 YAML contract", 3_000, 400),
    Row("evaluate yaml 100", "evaluate, 100 matching YAML contracts", 500, 60),
    Row("load 1,000", "load 1,000 YAML contracts", 1, 1),
)
SLOW = {"load 1,000"}  # seconds per turn for the peer: three repetitions are enough


@dataclass
class Sample:
    """The seconds that a case took, one figure per repetition."""

    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def text(self) -> str:
        if not self.seconds:
            return "-"
        low, high = min(self.seconds), max(self.seconds)
        return f"{_us(self.median)} ({_us(low)}..{_us(high)})"


def _us(seconds: float) -> str:
    value = seconds * US
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


@dataclass
class Systems:
    """The workers, by name; the peer may be missing."""

    ours: Worker
    by_hand: Worker
    theirs: Worker | None

    @classmethod
    def start(cls, peer: Path | None) -> Systems:
        python = Path(sys.executable)
        return cls(Worker(python, "cases_ours.py"), Worker(python, "cases_by_hand.py"), Worker(peer, "cases_theirs.py") if peer else None)

    def close(self) -> None:
        for worker in (self.ours, self.by_hand, self.theirs):
            if worker is not None:
                worker.close()


Timings = dict[tuple[str, str], Sample]


def measure(systems: Systems, repetitions: int, scale: float) -> Timings:
    """Seconds per iteration of every case of every system, less what the bare tool call costs where a tool is called."""
    timings: Timings = {}
    for turn in range(repetitions):
        _report_progress(turn, repetitions)
        bare = systems.ours.seconds("call", _times(3_000, scale))
        for row in ROWS:
            if row.case not in SLOW or turn < 3:
                _measure_row(systems, row, scale, bare if row.case.startswith("run") else 0.0, timings)
        for case in ("run", "barest"):
            _add(timings, "by hand", case, systems.by_hand.seconds(case, _times(3_000, scale)) - bare)
    return timings


def _times(iterations: int, scale: float) -> int:
    return max(1, int(iterations * scale))


def _report_progress(turn: int, repetitions: int) -> None:
    print(f"\rrepetition {turn + 1} of {repetitions}", end="" if turn + 1 < repetitions else "\n", file=sys.stderr, flush=True)


def _measure_row(systems: Systems, row: Row, scale: float, bare: float, timings: Timings) -> None:
    if row.case in systems.ours.names:
        _add(timings, "ours", row.case, systems.ours.seconds(row.case, _times(row.ours, scale)) - bare)
    if systems.theirs is not None:
        _add(timings, "theirs", row.case, systems.theirs.seconds(row.case, _times(row.theirs, scale)) - bare)


def _add(timings: Timings, system: str, case: str, seconds: float) -> None:
    timings.setdefault((system, case), Sample()).seconds.append(seconds)


# --- Import time ------------------------------------------------------------------------------------------------------------


def measure_imports(peer: Path | None, repetitions: int) -> dict[str, Sample]:
    """The time of an import statement in a fresh interpreter, once per repetition and in turn."""
    wanted = {"ours": (sys.executable, "edictum"), "baseline": (sys.executable, BASELINE_IMPORTS)}
    if peer is not None:
        wanted["theirs"] = (str(peer), "edictum")
    samples = {name: Sample() for name in wanted}
    for _ in range(repetitions):
        for name, (python, modules) in wanted.items():
            samples[name].seconds.append(_import_seconds(python, modules))
    return samples


def _import_seconds(python: str, modules: str) -> float:
    code = f"import time; t = time.perf_counter(); import {modules}; print(time.perf_counter() - t)"
    return float(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout)


# --- Printing ---------------------------------------------------------------------------------------------------------------


def print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        print("  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                        for column, (cell, width) in enumerate(zip(row, widths, strict=True))))  # fmt: skip
        if number == 0:
            print("  ".join("-" * width for width in widths))


def _ratio(over: Sample | None, under: Sample | None) -> str:
    if over is None or under is None or not under.seconds or under.median <= 0:
        return "-"
    return f"{over.median / under.median:.1f}x"


def report_calls(timings: Timings) -> None:
    print("Overhead per call in microseconds: median (min..max). The tool itself is subtracted.")
    rows: list[tuple[str, ...]] = [("case", "this library", "edictum 0.19.0", "theirs / ours")]
    for row in ROWS:
        ours, theirs = timings.get(("ours", row.case)), timings.get(("theirs", row.case))
        if ours is not None:
            rows.append((row.title, ours.text(), theirs.text() if theirs else "-", _ratio(theirs, ours)))
    print_table(rows)


def report_by_hand(timings: Timings) -> None:
    print("\nAgainst a guard written by hand: a check, a counter, two events. Microseconds as above.")
    ours, rows = timings[("ours", "run 1")], [("guard", "per call", "ours / it")]
    rows.append(("this library, 1 Python contract", ours.text(), "1.0x"))
    for case, title in (("run", "by hand: events with id, time, arguments"), ("barest", "by hand, barest: events are bare tuples")):
        sample = timings[("by hand", case)]
        rows.append((title, sample.text(), _ratio(ours, sample)))
    print_table(rows)


def report_index(timings: Timings) -> None:
    print("\nCost of 10,000 contracts for other tools: a call with them, against a call without.")
    rows: list[tuple[str, ...]] = [("contracts", "this library", "edictum 0.19.0")]
    for kind, name in (("run", "Python"), ("run yaml", "YAML")):
        cells = [_ratio(timings.get((who, f"{kind} 1 + 10,000 other")), timings.get((who, f"{kind} 1"))) for who in ("ours", "theirs")]
        rows.append((name, *cells))
    print_table(rows)


def report_imports(samples: dict[str, Sample]) -> None:
    print("\nImport in a fresh interpreter, in microseconds: median (min..max).")
    rows: list[tuple[str, ...]] = [("statement", "time", "to the second line")]
    titles = {"ours": "import edictum", "baseline": f"import {BASELINE_IMPORTS}", "theirs": f"import edictum  ({PEER})"}
    for name, title in titles.items():
        if name in samples:
            rows.append((title, samples[name].text(), _ratio(samples[name], samples["baseline"])))
    print_table(rows)


def report_facts(systems: Systems) -> None:
    print("\nFacts")
    rows: list[tuple[str, ...]] = [("what", "this library", "edictum 0.19.0")]
    facts: tuple[tuple[str, str, Callable[[object], str]], ...] = (
        ("parallel", "limit of 3 calls, 50 at once: bodies that ran", str),
        ("attempts", "max_attempts of 3, 10 at once: bodies that ran", str),
        ("pattern", "^(a+)+$ on letters and a !: ours 100,000 letters, theirs 22", lambda s: f"{float(s) * 1e3:.2f} ms"),  # type: ignore[arg-type]
    )
    for name, title, text in facts:
        if name in systems.ours.facts:
            rows.append((title, text(systems.ours.fact(name)), text(systems.theirs.fact(name)) if systems.theirs else "-"))
    print_table(rows)


def run_others() -> None:
    """Benchmarks that live beside this one and are run after it."""
    for name in ("bench_sessions", "bench_harness"):
        if (Path(__file__).parent / f"{name}.py").exists():
            print()
            importlib.import_module(name).main()


NOTE = """
What is compared: `run` is guard.run(tool, arguments, function) with in-memory counters and the default in-memory audit, limits
far away. Contracts look at two things each and object to nothing. Both libraries get the same contracts and the same YAML text;
the peer is the package from the registry in a venv of its own, used through its documented API. Each figure is one shared machine's;
the ratios are what to read.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="one short repetition, without the peer: does it run at all?")
    options = parser.parse_args()
    repetitions, scale = (1, 0.02) if options.quick else (options.repetitions, 1.0)
    peer = None if options.quick else peer_python()
    report(peer, repetitions, scale)
    if not options.quick:
        run_others()


def report(peer: Path | None, repetitions: int, scale: float) -> None:
    systems = Systems.start(peer)
    try:
        timings = measure(systems, repetitions, scale)
        report_calls(timings)
        report_by_hand(timings)
        report_index(timings)
        report_imports(measure_imports(peer, repetitions))
        report_facts(systems)
    finally:
        systems.close()
    print(NOTE.rstrip())


if __name__ == "__main__":
    main()
