"""``edictum audit report FILE ...``: the events of a log, summed up."""

from __future__ import annotations

import argparse
from pathlib import Path

from edictum.audit import CollectingAuditSink, report
from edictum.audit._heads import refuse_chained_log
from edictum.audit._query import list_contract_ids
from edictum.audit._report_tables import list_tables
from edictum.cli._audit_options import (
    ProgressBar,
    add_files,
    add_filters,
    print_tables,
    read_filter_options,
    tell_problems,
)
from edictum.guard import Edictum
from edictum.sessions.memory import MemoryLedger

MAX_REPORT_ROWS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_files(parser)
    add_filters(parser)
    what = "the bundle that was in force, to tell which contracts never fired; several are layers"
    parser.add_argument("--bundle", action="append", default=[], metavar="FILE", help=what)
    ledger = "the URL of the session store of the same calls: what each session spent is read there"
    parser.add_argument("--ledger", metavar="URL", help=ledger)
    formats = parser.add_mutually_exclusive_group()
    formats.add_argument("--json", action="store_true", help="all figures as one JSON object")
    formats.add_argument("--csv", action="store_true", help="table, row, column, value")
    formats.add_argument("--html", metavar="FILE", help="write one page that needs nothing else")
    parser.add_argument("--title", default="Audit report", help="of the page")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Print or write the report; return 1 if something in the log could not be read."""
    if options.html is not None:
        refuse_chained_log(Path(options.html))
    contracts = read_contract_ids(options.bundle)
    progress = ProgressBar()
    filters = read_filter_options(options)
    made = report(
        options.files,
        contracts=contracts,
        ledger=options.ledger,
        on_progress=progress,
        **filters,
    )
    progress.clear()
    if options.html is not None:
        Path(options.html).write_text(made.to_html(options.title), encoding="utf-8")
        print(f"{made.events:,} events: {options.html}")
    elif options.json:
        print(made.to_json())
    elif options.csv:
        print(made.to_csv(), end="")
    else:
        print_tables(table.shorten(MAX_REPORT_ROWS) for table in list_tables(made))
    return tell_problems(made.reading)


def read_contract_ids(bundles: list[str]) -> list[str]:
    """Return the ids of the contracts of a bundle, without opening its store or its sinks."""
    if not bundles:
        return []
    guard = Edictum.from_yaml(*bundles, backend=MemoryLedger(), audit_sink=CollectingAuditSink())
    return list_contract_ids(guard.policy)
