"""``make bench``: this library, the public edictum 0.19.0 and a guard written by hand, in one run,
as ratios.

The systems run in processes of their own and take turns: every repetition times each system once on
each case, one right after the other, in CPU time. A ratio is the median of the ratios of these
pairs, and beside it the ratio of the best figures; so a machine that is busy with something else
moves the figures a little and the ratios hardly.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from peers import Worker, peer_python
from tables import Sample, by_best, by_median, print_table

MS = 1e3
BASELINE_IMPORTS = "import asyncio, dataclasses, json, uuid"


@dataclass(frozen=True)
class Row:
    """One case: its name in the workers, what it is called in the table, and how many iterations
    each system does per turn.
    """

    case: str
    title: str
    ours: int
    theirs: int = 0
    turns: int = 99  # what takes the peer seconds is timed less often


CALLS = (
    Row("run 0", "run, no contract", 3_000, 400),
    Row("run 1", "run, 1 Python contract", 3_000, 400),
    Row("run 100", "run, 100 matching Python contracts", 500, 60),
    Row("functions 100", "the functions of these 100, called by no guard", 500, 300),
    Row("run 1 + 10,000 other", "run, 1 matching + 10,000 for other tools", 3_000, 8),
    Row("evaluate 1", "evaluate, 1 Python contract", 3_000, 400),
    Row("evaluate 100", "evaluate, 100 matching Python contracts", 300, 60),
    Row("run yaml 1", "run, 1 YAML contract", 3_000, 400),
    Row("run yaml 10", "run, 10 matching YAML contracts", 2_000, 200),
    Row("run yaml 100", "run, 100 matching YAML contracts", 1_000, 60),
    Row("run yaml 1 + 10,000 other", "run, 1 YAML + 10,000 for other tools", 3_000, 8),
    Row("evaluate yaml 1", "evaluate, 1 YAML contract", 3_000, 400),
    Row("evaluate yaml 10", "evaluate, 10 matching YAML contracts", 1_000, 200),
    Row("evaluate yaml 100", "evaluate, 100 matching YAML contracts", 500, 60),
    Row("evaluate yaml 1 + 10,000 other", "evaluate, 1 YAML + 10,000 for other tools", 3_000, 8),
)
TEXTS = (
    Row("load 1,000", "load 1,000 YAML contracts", 1, 1, turns=4),
    Row("nested 22", "^(a+)+$ on 22 letters and a !", 500, 1, turns=5),
    Row("nested 100,000", "^(a+)+$ on 100,000 letters and a !", 20),
    Row("patterns 10,000", "200 patterns on 10,000 characters", 50, 2),
    Row("patterns 1,000,000", "200 patterns on 1,000,000 characters", 2),
)


@dataclass
class Systems:
    """The workers, by name; the peer may be missing."""

    ours: Worker
    by_hand: Worker
    theirs: Worker | None

    @classmethod
    def start(cls, peer: Path | None) -> Systems:
        python = Path(sys.executable)
        return cls(
            Worker(python, "cases_ours.py"),
            Worker(python, "cases_by_hand.py"),
            Worker(peer, "cases_theirs.py") if peer else None,
        )

    def close(self) -> None:
        for worker in (self.ours, self.by_hand, self.theirs):
            if worker is not None:
                worker.close()


Timings = dict[tuple[str, str], Sample]


def measure(systems: Systems, repetitions: int, scale: float) -> Timings:
    """Seconds per iteration of every case of every system, less what the bare tool call costs where
    a tool is called.
    """
    timings: Timings = {}
    for turn in range(repetitions):
        _report_progress(turn, repetitions)
        bare = systems.ours.seconds("call", _times(3_000, scale))
        for row in (*CALLS, *TEXTS):
            if turn < row.turns:
                _measure_row(
                    systems, row, scale, bare if row.case.startswith("run") else 0.0, timings
                )
        for case in ("run", "barest"):
            _add(
                timings, "by hand", case, systems.by_hand.seconds(case, _times(3_000, scale)) - bare
            )
    return timings


def _times(iterations: int, scale: float) -> int:
    return max(1, int(iterations * scale))


def _report_progress(turn: int, repetitions: int) -> None:
    print(
        f"\rrepetition {turn + 1} of {repetitions}",
        end="" if turn + 1 < repetitions else "\n",
        file=sys.stderr,
        flush=True,
    )


def _measure_row(systems: Systems, row: Row, scale: float, bare: float, timings: Timings) -> None:
    _add(timings, "ours", row.case, systems.ours.seconds(row.case, _times(row.ours, scale)) - bare)
    if systems.theirs is not None and row.theirs:
        _add(
            timings,
            "theirs",
            row.case,
            systems.theirs.seconds(row.case, _times(row.theirs, scale)) - bare,
        )


def _add(timings: Timings, system: str, case: str, seconds: float) -> None:
    timings.setdefault((system, case), Sample()).seconds.append(seconds)


# --- Import time ----------------------------------------------------------------------------------

OUR_IMPORTS = ("import edictum", "from edictum import Edictum")


def measure_imports(peer: Path | None, repetitions: int) -> dict[tuple[str, str], Sample]:
    """The CPU time of an import statement in a fresh interpreter, once per repetition and in turn;
    from bytecode on both sides.
    """
    wanted = [("ours", sys.executable, statement) for statement in (BASELINE_IMPORTS, *OUR_IMPORTS)]
    if peer is not None:
        wanted += [("theirs", str(peer), statement) for statement in OUR_IMPORTS]
    samples = {(who, statement): Sample() for who, _, statement in wanted}
    with tempfile.TemporaryDirectory() as bytecode:
        for turn in range(repetitions + 1):
            for who, python, statement in wanted:
                seconds = _import_seconds(python, statement, bytecode)
                samples[(who, statement)].seconds += (
                    [seconds] if turn else []
                )  # the first one compiles
    return samples


def _import_seconds(python: str, statement: str, bytecode: str) -> float:
    code = f"import time; t = time.process_time(); {statement}; print(time.process_time() - t)"
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    environment["PYTHONPYCACHEPREFIX"] = bytecode
    return float(
        subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=True, env=environment
        ).stdout
    )


# --- Printing -------------------------------------------------------------------------------------

HEADINGS = ("this library", "edictum 0.19.0", "theirs / ours", "of the best")


def report_rows(title: str, rows: tuple[Row, ...], timings: Timings, unit: float) -> None:
    print(title)
    table: list[tuple[str, ...]] = [("case", *HEADINGS)]
    for row in rows:
        ours, theirs = timings[("ours", row.case)], timings.get(("theirs", row.case))
        table.append(
            (
                row.title,
                ours.text(unit),
                theirs.text(unit) if theirs else "-",
                by_median(theirs, ours),
                by_best(theirs, ours),
            )
        )
    print_table(table)


def report_functions(timings: Timings) -> None:
    print(
        "\nrun with 100 Python contracts less their functions, which are the user's, as the tool"
        " is: what the guard adds. Microseconds."
    )
    ours, theirs = (_beyond_functions(timings, who) for who in ("ours", "theirs"))
    assert ours is not None
    figures = (
        ours.text(),
        theirs.text() if theirs else "-",
        by_median(theirs, ours),
        by_best(theirs, ours),
    )
    print_table([("case", *HEADINGS), ("run, 100 matching Python contracts", *figures)])


def _beyond_functions(timings: Timings, who: str) -> Sample | None:
    whole = timings.get((who, "run 100"))
    return whole.minus(timings[(who, "functions 100")]) if whole else None


def report_by_hand(timings: Timings) -> None:
    print(
        "\nAgainst a guard written by hand: a check, a counter, two events. Microseconds as above."
    )
    ours, rows = timings[("ours", "run 1")], [("guard", "per call", "ours / it", "of the best")]
    rows.append(("this library, 1 Python contract", ours.text(), "1.0x", "1.0x"))
    for case, title in (
        ("run", "by hand: events with id, time, arguments"),
        ("barest", "by hand, barest: events are bare tuples"),
    ):
        sample = timings[("by hand", case)]
        rows.append((title, sample.text(), by_median(ours, sample), by_best(ours, sample)))
    print_table(rows)


def report_index(timings: Timings) -> None:
    print("\nCost of 10,000 contracts for other tools: a call with them, against a call without.")
    rows: list[tuple[str, ...]] = [("call", "this library", "edictum 0.19.0")]
    for kind, name in (
        ("run", "run, Python"),
        ("run yaml", "run, YAML"),
        ("evaluate yaml", "evaluate, YAML"),
    ):
        pairs = [
            (timings.get((who, f"{kind} 1 + 10,000 other")), timings.get((who, f"{kind} 1")))
            for who in ("ours", "theirs")
        ]
        rows.append((name, *(by_median(*pair) for pair in pairs)))
    print_table(rows)


def report_imports(samples: dict[tuple[str, str], Sample]) -> None:
    print(
        "\nImport in a fresh interpreter, CPU time in microseconds: median (min..max). The first"
        " line is what any such library imports."
    )
    table: list[tuple[str, ...]] = [("statement", *HEADINGS[:3], "ours / first line")]
    first = samples[("ours", BASELINE_IMPORTS)]
    for statement in (BASELINE_IMPORTS, *OUR_IMPORTS):
        ours, theirs = samples[("ours", statement)], samples.get(("theirs", statement))
        table.append(
            (
                statement,
                ours.text(),
                theirs.text() if theirs else "-",
                by_median(theirs, ours),
                by_median(ours, first),
            )
        )
    print_table(table)
    print(
        "Names are loaded when they are first used: `import edictum` loads none, `from edictum"
        " import Edictum` what a guard needs."
    )


FACTS = {
    "parallel": "limit of 3 calls, 50 at once: bodies that ran",
    "attempts": "max_attempts of 3, 10 at once: bodies that ran",
}


def report_facts(systems: Systems) -> None:
    print("\nFacts")
    rows: list[tuple[str, ...]] = [("what", "this library", "edictum 0.19.0")]
    for name, title in FACTS.items():
        rows.append(
            (
                title,
                str(systems.ours.fact(name)),
                str(systems.theirs.fact(name)) if systems.theirs else "-",
            )
        )
    print_table(rows)


NOTE = """
What is compared: `run` is guard.run(tool, arguments, function) with in-memory counters and the default in-memory audit, limits
far away. Contracts look at two things each and object to nothing. Both libraries get the same contracts and the same YAML text;
the peer is the package from the registry in a venv of its own, used through its documented API. It looks at the first 10,000
characters of a text only, and `^(a+)+$` takes it twice as long with each letter, so those rows have the size that it can bear, and ours
at full size below. All figures above are CPU time of single processes, taken in turns; the ratios are what to read.
"""


# Benchmarks that live beside this one and are run after it; the first one has a short form.
OTHERS = (
    "bench_deployed",
    "bench_stats",
    "bench_otel",
    "bench_audit",
    "bench_secrets",
    "bench_sessions",
    "bench_harness",
    "bench_adapters",
    "bench_mcp_proxy",
)


def run_others(names: tuple[str, ...]) -> None:
    for name in names:
        print(flush=True)
        importlib.import_module(name).main()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one short repetition, without the peer: does it run at all?",
    )
    options = parser.parse_args()
    repetitions, scale = (1, 0.02) if options.quick else (options.repetitions, 1.0)
    peer = None if options.quick else peer_python()
    report(peer, repetitions, scale)
    run_others(OTHERS[:1] if options.quick else OTHERS)


def report(peer: Path | None, repetitions: int, scale: float) -> None:
    systems = Systems.start(peer)
    try:
        timings = measure(systems, repetitions, scale)
        report_rows(
            "Overhead per call in microseconds: median (min..max). The tool itself is subtracted.",
            CALLS,
            timings,
            1e6,
        )
        report_functions(timings)
        report_by_hand(timings)
        report_index(timings)
        report_rows(
            "\nLoading and searching, in milliseconds: median (min..max).", TEXTS, timings, MS
        )
        report_imports(measure_imports(peer, repetitions))
        report_facts(systems)
    finally:
        systems.close()
    print(NOTE.rstrip())


if __name__ == "__main__":
    main()
