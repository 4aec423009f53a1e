"""``edictum audit query FILE ...``: the events that match, as a table, JSON lines or CSV."""

from __future__ import annotations

import argparse
import sys
from itertools import islice

from edictum.audit import query
from edictum.audit._export import write_events
from edictum.audit._report_tables import ReportTable
from edictum.cli._audit_options import (
    COLUMNS,
    ProgressBar,
    add_files,
    add_filters,
    make_row,
    print_tables,
    read_count,
    read_filter_options,
    tell_problems,
)

MAX_QUERY_ROWS = 1_000  # a table is held in memory; JSON and CSV are not


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_files(parser)
    add_filters(parser)
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="the events as JSON lines")
    formats.add_argument("--csv", action="store_true", help="the events as CSV")
    what = f"at most so many events (a table has at most {MAX_QUERY_ROWS:,})"
    parser.add_argument("--limit", type=read_count, metavar="N", help=what)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Print the events; return 1 if something in the log could not be read."""
    progress = ProgressBar()
    events = query(options.files, on_progress=progress, **read_filter_options(options))
    limited = islice(events, options.limit)
    if options.json or options.csv:
        write_events(limited, sys.stdout.buffer, "csv" if options.csv else "jsonl")
        progress.clear()
    else:
        rows = tuple(make_row(event) for event in islice(limited, MAX_QUERY_ROWS))
        is_cut = next(limited, None) is not None
        progress.clear()
        note = f"These are the first {MAX_QUERY_ROWS:,}; see all with --json or --csv."
        title = f"{len(rows):,} events"
        print_tables([ReportTable(title, COLUMNS, rows, note if is_cut else "")])
    return tell_problems(events.reading)
