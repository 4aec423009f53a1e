"""Samples of seconds, and tables of them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field


@dataclass
class Sample:
    """The seconds that a case took, one figure per repetition."""

    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)

    def text(self, unit: float = 1e6) -> str:
        """Median (smallest..largest), in microseconds unless told otherwise."""
        if not self.seconds:
            return "-"
        median, low, high = (_number(value * unit) for value in (self.median, self.best, max(self.seconds)))
        return f"{median} ({low}..{high})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def by_median(over: Sample | None, under: Sample | None) -> str:
    """The median of the ratios, each of two figures that were taken one right after the other."""
    if over is None or under is None:
        return "-"
    pairs = [high / low for high, low in zip(over.seconds, under.seconds, strict=False) if low > 0]
    return f"{statistics.median(pairs):.1f}x" if pairs else "-"


def by_best(over: Sample | None, under: Sample | None) -> str:
    """The ratio of the smallest figures."""
    if over is None or under is None or not over.seconds or not under.seconds or under.best <= 0:
        return "-"
    return f"{over.best / under.best:.1f}x"


def print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
