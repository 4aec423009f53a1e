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
        median, low, high = (
            _number(value * unit) for value in (self.median, self.best, max(self.seconds))
        )
        return f"{median} ({low}..{high})"

    def quantile(self, share: float) -> float:
        """The figure that ``share`` of the others do not exceed; 0.99: what one in a hundred takes
        at least.
        """
        return sorted(self.seconds)[min(int(len(self.seconds) * share), len(self.seconds) - 1)]

    def middle(self, unit: float = 1e6) -> str:
        """Median (lower..upper quartile): for figures that are differences, whose extremes say how
        busy the machine was.
        """
        return (
            f"{_number(self.median * unit)}"
            f" ({_number(self.quantile(0.25) * unit)}..{_number(self.quantile(0.75) * unit)})"
        )

    def minus(self, other: Sample) -> Sample:
        """What each figure is above the other one that was taken right before or after it."""
        return Sample(
            [mine - theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True)]
        )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def by_median(over: Sample | None, under: Sample | None, digits: int = 1) -> str:
    """The median of the ratios, each of two figures that were taken one right after the other."""
    if over is None or under is None:
        return "-"
    pairs = [high / low for high, low in zip(over.seconds, under.seconds, strict=False) if low > 0]
    return f"{statistics.median(pairs):.{digits}f}x" if pairs else "-"


def by_best(over: Sample | None, under: Sample | None) -> str:
    """The ratio of the smallest figures."""
    if over is None or under is None or not over.seconds or not under.seconds or under.best <= 0:
        return "-"
    return f"{over.best / under.best:.1f}x"


def print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
