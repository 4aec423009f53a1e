"""A report as tables: for the terminal, for CSV and for the page."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from edictum.audit._report import BoundedTable, CallTally, Report, format_time

MAX_CELL_CHARS = 80
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


class Share(float):
    """A number from 0 to 1, shown in percent."""


class Spent(float):
    """An amount, shown with all its digits."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Rows of texts and numbers, with a title and, if needed, a note below."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    note: str = ""

    def shorten(self, most: int) -> ReportTable:
        """Return the first rows, with a note of how many are left out."""
        left = len(self.rows) - most
        if left <= 0:
            return self
        note = f"{self.note} {left:,} more rows are not shown.".strip()
        return ReportTable(self.title, self.columns, self.rows[:most], note)


def list_tables(report: Report) -> list[ReportTable]:
    """Return the tables of a report, without empty ones."""
    tables = (
        _tabulate_summary(report),
        _tabulate_tools(report),
        _tabulate_denials(report),
        _tabulate_contracts(report),
        _tabulate_slowest(report),
        _tabulate_tallies("What each session spent", "session", report.sessions),
        _tabulate_amounts(report),
        _tabulate_tallies("On whose behalf", "principal", report.principals),
        _tabulate_problems(report),
    )
    return [table for table in tables if table.rows]


def _tabulate_summary(report: Report) -> ReportTable:
    total = report.total
    prompts = report.prompts_per_100
    rows: list[tuple[str, str]] = [
        ("time", format_period(report)),
        ("events", f"{report.events:,}"),
        ("calls", f"{report.calls:,}"),
        *((name, f"{count:,}") for name, count in report.outcomes.items()),
        ("failure rate", format_share(total.failure_rate)),
        ("share denied", _format_denials(report)),
        ("consequential calls", f"{report.consequential_calls:,}"),
        ("prompts per 100 of these", "-" if prompts is None else f"{prompts:.1f}"),
        *((f"approvals {name}", f"{count:,}") for name, count in report.approvals.items()),
        ("policy errors", f"{report.policy_errors:,}"),
        ("policies", f"{len(report.policies):,}"),
    ]
    return ReportTable("Summary", ("what", "value"), tuple(rows))


def format_period(report: Report) -> str:
    """Return the period that the events cover."""
    if report.first is None:
        return "There are no events."
    return f"{format_time(report.first)} to {format_time(report.last)}"


def _format_denials(report: Report) -> str:
    return format_share(report.total.outcomes["denied"] / report.calls if report.calls else None)


def _tabulate_tools(report: Report) -> ReportTable:
    columns = (
        *("tool", "calls", "succeeded", "failed", "timed out", "denied", "failure rate"),
        *("p50 ms", "p95 ms"),
    )
    rows = tuple(
        (
            tool,
            tally.calls,
            count_successes(tally),
            tally.outcomes["failed"],
            tally.outcomes["timeout"],
            tally.outcomes["denied"],
            None if tally.failure_rate is None else Share(tally.failure_rate),
            tally.find_percentile(50),
            tally.find_percentile(95),
        )
        for tool, tally in report.tools.sort()
    )
    return ReportTable("Tools", columns, rows, _name_others(report.tools))


def _tabulate_denials(report: Report) -> ReportTable:
    rows = tuple(
        (source, name, row.count, row.reason) for (source, name), row in report.denials.sort()
    )
    note = _name_others(report.denials)
    return ReportTable(
        "Why calls were denied", ("what decided", "name", "calls", "a reason"), rows, note
    )


def _tabulate_contracts(report: Report) -> ReportTable:
    never = set(report.never_fired)
    rows = [
        (name, use.asked, use.fired, use.observed, "never fired" if name in never else "")
        for name, use in report.contracts.sort()
    ]
    silent = [name for name in report.never_fired if name not in report.contracts.rows]
    rows += [(name, 0, 0, 0, "never asked") for name in silent]
    note = "" if report.has_contracts else "Give the bundle to see which contracts never fired."
    columns = ("contract", "asked", "objected", "observed only", "note")
    return ReportTable("Contracts", columns, tuple(rows), note)


def _tabulate_slowest(report: Report) -> ReportTable:
    ran = [(tool, tally) for tool, tally in report.tools.sort() if tally.ran]
    ran.sort(key=lambda item: (-(item[1].find_percentile(95) or 0), -item[1].max_ms))
    rows = tuple(
        (tool, tally.find_percentile(50), tally.find_percentile(95), tally.max_ms, tally.total_ms)
        for tool, tally in ran[:10]
    )
    return ReportTable(
        "Slowest tools", ("tool", "p50 ms", "p95 ms", "longest ms", "all together ms"), rows
    )


def _tabulate_tallies(title: str, name: str, table: BoundedTable[CallTally]) -> ReportTable:
    columns = (
        *(name, "calls", "succeeded", "failed", "denied", "time of tools ms"),
        *("prompts", "prompts per 100"),
    )
    rows = tuple(
        (
            key or "(none)",
            tally.calls,
            count_successes(tally),
            tally.failed,
            tally.outcomes["denied"],
            tally.total_ms,
            tally.prompts,
            None if tally.prompts_per_100 is None else round(tally.prompts_per_100, 1),
        )
        for key, tally in table.sort()
    )
    is_known = any(table.rows)  # the empty name alone distinguishes nothing
    return ReportTable(title, columns, rows if is_known else (), _name_others(table))


def _tabulate_amounts(report: Report) -> ReportTable:
    """Tabulate amounts, of the sessions with the most calls first."""
    spent = report.spent or {}
    rows = tuple(
        (session, name, Spent(amount))
        for session, _ in report.sessions.sort()
        for name, amount in sorted(spent.get(session, {}).items())
    )
    return ReportTable("Amounts that sessions spent", ("session", "amount", "spent"), rows)


def _tabulate_problems(report: Report) -> ReportTable:
    note = "; ".join(report.reading.examples)
    return ReportTable(
        "What could not be read", ("problem", "lines"), tuple(report.problems.items()), note
    )


def _name_others(table: BoundedTable[Any]) -> str:
    if not table.dropped:
        return ""
    return (
        f"There were more rows than a report keeps; {table.others.calls:,} calls of those with the"
        " fewest are not in this table, and figures of rare rows are lower bounds."
    )


def count_successes(tally: CallTally) -> int:
    return tally.outcomes["executed"] + tally.outcomes["artifact"]


def format_share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def format_cell(value: Any) -> str:
    """Return a cell as text: numbers with separators, and nothing that could repaint a terminal."""
    if value is None:
        return "-"
    if isinstance(value, Share):
        return format_share(value)
    if isinstance(value, Spent):
        return f"{value:,.6f}".rstrip("0").removesuffix(".")
    if isinstance(value, float):
        return f"{value:,.1f}".removesuffix(".0")
    return f"{value:,}" if isinstance(value, int) else escape_hidden(str(value))


def escape_hidden(text: str) -> str:
    """Escape what would start a new line, turn the writing direction or repaint the screen."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


# --- Texts ----------------------------------------------------------------------------------------


def write_report_text(report: Report, rows: int = 20) -> str:
    """Return all tables as plain text."""
    return "\n".join(write_table(table.shorten(rows)) for table in list_tables(report))


def write_table(table: ReportTable) -> str:
    """Return a table as plain text, with its columns aligned."""
    cells = [tuple(_cut(format_cell(value)) for value in row) for row in table.rows]
    widths = [max(map(_measure, column)) for column in zip(table.columns, *cells, strict=True)]
    right = find_numeric(table)
    lines = [table.title, "=" * len(table.title), _align(table.columns, widths, right)]
    lines.append("  ".join("-" * width for width in widths))
    lines += [_align(row, widths, right) for row in cells]
    return "\n".join([*lines, *([table.note] if table.note else []), ""])


def find_numeric(table: ReportTable) -> set[int]:
    """Return which columns hold numbers."""
    return {
        index
        for index in range(len(table.columns))
        if any(isinstance(row[index], int | float) for row in table.rows)
    }


def _align(cells: Sequence[str], widths: Sequence[int], right: set[int]) -> str:
    padded = (
        " " * (width - _measure(cell)) + cell
        if index in right
        else cell + " " * (width - _measure(cell))
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(padded).rstrip()


def _measure(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL_CHARS else f"{text[: MAX_CELL_CHARS - 1]}…"


def write_report_csv(report: Report) -> str:
    """Return all tables as CSV of four columns: table, number of the row, column, value."""
    lines = (
        (table.title, number, column, value)
        for table in list_tables(report)
        for number, row in enumerate(table.rows, 1)
        for column, value in zip(table.columns, row, strict=True)
    )
    return write_csv([("table", "row", "column", "value"), *lines])


def write_csv(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV. A text that a spreadsheet would take for a formula gets an apostrophe."""
    file = io.StringIO()
    csv.writer(file).writerows(map(disarm_formulas, rows))
    return file.getvalue()


def disarm_formulas(row: Iterable[Any]) -> list[Any]:
    """Return the cells of a row so that a spreadsheet takes none of them for a formula."""
    return [
        f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell
        for cell in row
    ]
