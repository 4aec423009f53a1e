"""What an adapter adds to a tool call, next to what the framework itself takes for that call.

    python benchmarks/bench_adapters.py

Every framework runs in its own venv, in a process of its own (see adapter_runs.py), so one that
fails leaves the others alone. A figure is what one call costs in the framework's real loop with a
model that takes no time; bare and governed runs take turns, and what is added is the median of the
differences of such pairs. Next to it stands what a hook that does nothing adds: the framework's
share of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tables import Sample, by_median, print_table
from venvs import NotMeasured, ask, frameworks

ADAPTERS = Path(__file__).parents[1] / "src" / "edictum" / "adapters"
SECONDS = 1.5  # per framework and way
CPU, WALL = 0, 1
KINDS = {
    "turn": "A tool call and the turn that asks for it",
    "call": "The tool call alone: a further one in the same turn",
}
HEADINGS = (
    "framework",
    "its own cost",
    "with Edictum",
    "added",
    "ratio",
    "an empty hook adds",
    "added on the wall",
)
WAYS = {"async": "", "sync": ", plain function"}


@dataclass(frozen=True)
class Line:
    """One framework, run in one way."""

    title: str
    figures: dict[str, dict[str, list[tuple[float, float]]]]  # as adapter_runs.py gives them

    def cost(self, who: str, kind: str, clock: int = CPU) -> Sample:
        return Sample([seconds[clock] for seconds in self.figures[who][kind]])

    def added(self, who: str, kind: str, clock: int = CPU) -> str:
        return (
            self.cost(who, kind, clock).minus(self.cost("bare", kind, clock)).middle()
            if who in self.figures
            else "-"
        )

    def cells(self, kind: str) -> tuple[str, ...]:
        own, governed = self.cost("bare", kind), self.cost("governed", kind)
        added = (
            self.added("governed", kind),
            by_median(governed, own, digits=2),
            self.added("empty hook", kind),
        )
        return (
            self.title,
            own.middle(),
            governed.middle(),
            *added,
            self.added("governed", kind, WALL),
        )


def lines_of(found: dict[str, Any]) -> list[Line]:
    return [
        Line(f"{found['framework']} {found['version']}{WAYS[way]}", figures)
        for way, figures in found["ways"].items()
    ]


def measure(names: dict[str, str], seconds: float) -> tuple[list[Line], dict[str, str]]:
    """The lines of all frameworks, and why there is none for some."""
    lines: list[Line] = []
    missing: dict[str, str] = {}
    for number, (name, venv) in enumerate(names.items()):
        print(
            f"\r{f'{number + 1} of {len(names)}: {name}':<40}", end="", file=sys.stderr, flush=True
        )
        try:
            lines += lines_of(ask(venv, "adapter_runs.py", name, str(seconds)))
        except NotMeasured as exc:
            missing[name] = str(exc)
    print(f"\r{'':<40}\r", end="", file=sys.stderr, flush=True)
    return lines, missing


def report(lines: Sequence[Line], missing: dict[str, str]) -> None:
    print(
        "Adapters, in the frameworks' real loops. CPU time per call in microseconds: median"
        " (quartiles)."
    )
    for kind, title in KINDS.items():
        print(f"\n{title}")
        print_table(
            [
                HEADINGS,
                *(line.cells(kind) for line in lines),
                *((name, "NOT MEASURED", *["-"] * 5) for name in missing),
            ]
        )
    for name, why in missing.items():
        print(f"{name}: NOT MEASURED, {why}")
    print(NOTE.rstrip())


NOTE = """
One Python contract, counters and audit in memory, a tool that returns a text. Asynchronous runs with an asynchronous tool; "plain function"
is a synchronous run with a plain one, where the framework has that. The model is scripted and takes no time: a real turn is longer by the
seconds that a model takes. "An empty hook" does nothing, in the place of ours: the framework's share of what is added. Garbage is
collected between the runs. Claude Agent SDK: with a scripted CLI in the same process. Nanobot counts bytes instead of tokens.
"""


def measured() -> dict[str, str]:
    """Test module -> venv of everything that has an adapter; the proxy is a process and has a
    benchmark of its own.
    """
    adapters = {path.stem for path in ADAPTERS.glob("[!_]*.py")}
    return {name: venv for name, venv in frameworks().items() if name in adapters}


def main() -> None:
    report(*measure(measured(), 0.0 if "--quick" in sys.argv else SECONDS))


if __name__ == "__main__":
    main()
