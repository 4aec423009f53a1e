"""What the subcommands of ``edictum audit`` share: files, filters, progress, tables."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from typing import Any

from edictum.audit import LogReading
from edictum.audit._filters import EventData, FilterOptions
from edictum.audit._report_tables import ReportTable, find_numeric, format_cell, write_table

FILTERS = {
    "session": "events of this session",
    "principal": "of this user, service or organization",
    "tool": "of this tool",
    "action": "of this action, such as call_denied",
    "contract": "that this contract decided, or objected to",
    "outcome": "of calls that ended so: executed, artifact, failed, timeout, denied",
}
COLUMNS = ("time", "session", "tool", "action", "outcome", "decided by", "reason")
BAR_WIDTH = 30


def add_files(parser: argparse.ArgumentParser) -> None:
    what = (
        "JSON lines, plain, gzip or zstd, with the rotated files beside it; or the URL of a"
        " database, such as sqlite:///audit.db; - is what comes by a pipe"
    )
    parser.add_argument("files", nargs="+", metavar="FILE", type=_name_file, help=what)


def _name_file(name: str) -> str:
    return "/dev/stdin" if name == "-" else name


def read_count(text: str) -> int:
    """Return a number of events that an option was given."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add the options that select events."""
    group = parser.add_argument_group(
        "filters",
        "An option may be given several times; names of sessions, tools ... may be globs.",
    )
    when = "ISO 8601, or a length of time before now such as 24h"
    group.add_argument("--since", metavar="TIME", help=f"events from then on: {when}")
    group.add_argument("--until", metavar="TIME", help="events before then")
    for name, what in FILTERS.items():
        group.add_argument(f"--{name}", action="append", metavar=name.upper(), help=what)
    group.add_argument("--text", help="with this text in any value, in upper or lower case")


def read_filter_options(options: argparse.Namespace) -> FilterOptions:
    """Return the filters of a command line as keywords of ``query``."""
    given: Any = {name: getattr(options, name) for name in ("since", "until", "text", *FILTERS)}
    filters: FilterOptions = given
    return filters


def tell_problems(reading: LogReading) -> int:
    """Print what could not be read to stderr; return 1 if there was anything."""
    for what, count in reading.problems.items():
        print(f"edictum audit: {count:,} could not be read: {what}.", file=sys.stderr)
    for example in reading.examples:
        print(f"  {format_cell(example)}", file=sys.stderr)
    return 1 if reading.problems else 0


class ProgressBar:
    """A bar on stderr while a log is read, if stderr is a terminal."""

    def __init__(self) -> None:
        self._started = self._shown = time.monotonic()
        self._is_visible = sys.stderr.isatty()

    def __call__(self, reading: LogReading) -> None:
        now = time.monotonic()
        if self._is_visible and now - self._shown >= 0.1:
            self._shown = now
            print(f"\r{self._draw(reading, now)}", end="", file=sys.stderr, flush=True)

    def _draw(self, reading: LogReading, now: float) -> str:
        share = min(reading.bytes_read / reading.bytes_total, 1) if reading.bytes_total else 1
        bar = "#" * round(share * BAR_WIDTH)
        speed = reading.bytes_read / 1e6 / max(now - self._started, 0.001)
        return f"[{bar:<{BAR_WIDTH}}] {share:4.0%}  {speed:,.0f} MB/s"

    def clear(self) -> None:
        """Remove the bar."""
        if self._is_visible:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def make_row(event: EventData) -> tuple[str, ...]:
    """Return an event as a row of a table."""
    decided = event.get("decision_name") or event.get("decision_source") or ""
    why = event.get("reason") or event.get("success_reason") or event.get("error") or ""
    return (
        event["timestamp"][:19].replace("T", " "),
        str(event.get("session_id") or ""),
        str(event.get("tool_name") or ""),
        event["action"],
        str(event.get("outcome") or ""),
        str(decided),
        str(why),
    )


def print_tables(tables: Iterable[ReportTable]) -> None:
    """Print tables: with rich on a terminal if it is installed, else as plain text."""
    console = _open_console()
    for table in tables:
        if console is None:
            print(write_table(table))
        else:
            console.print(_make_rich_table(table))


def _open_console() -> Any:
    if not sys.stdout.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console()


def _make_rich_table(table: ReportTable) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    right = find_numeric(table)
    made = Table(title=Text(table.title, style="bold"), title_justify="left", box=SIMPLE_HEAD)
    if table.note:
        made.caption, made.caption_justify = Text(format_cell(table.note), style="dim"), "left"
    for index, name in enumerate(table.columns):
        is_last = index == len(table.columns) - 1  # the one that may be a long text
        made.add_column(
            name,
            justify="right" if index in right else "left",
            no_wrap=not is_last,
            overflow="fold" if is_last else "ellipsis",
        )
    for row in table.rows:
        made.add_row(*(Text(format_cell(cell)) for cell in row))
    return made
