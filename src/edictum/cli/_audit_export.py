"""``edictum audit export FILE ... --to FILE``: events for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from edictum.audit import export, query
from edictum.audit._export import ExportFormat
from edictum.audit._reading import is_part_of
from edictum.cli._audit_options import (
    ProgressBar,
    add_files,
    add_filters,
    read_filter_options,
    tell_problems,
)
from edictum.errors import EdictumConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_files(parser)
    add_filters(parser)
    what = "the file to write; .gz and .zst compress it"
    parser.add_argument("--to", required=True, metavar="FILE", help=what)
    formats = get_args(ExportFormat)
    told = "by default csv if the name says so, else jsonl"
    parser.add_argument("--format", choices=formats, help=told)
    parser.add_argument("--json", action="store_true", help="say what was written as JSON")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Write the file; return 1 if something in the log could not be read."""
    _check_target(options.files, options.to)
    progress = ProgressBar()
    events = query(options.files, on_progress=progress, **read_filter_options(options))
    usual: ExportFormat = "csv" if ".csv" in Path(options.to).suffixes else "jsonl"
    count = export(events, options.to, format=options.format or usual)
    progress.clear()
    if options.json:
        print(f'{{"events": {count}, "unreadable": {events.reading.problems.total()}}}')
    else:
        print(f"{count:,} events: {options.to}")
    return tell_problems(events.reading)


def _check_target(files: list[str], target: str) -> None:
    """Raise if an export would replace a log that it reads, or be read as a part of it."""
    if any(is_part_of(Path(target), Path(file)) for file in files):
        raise EdictumConfigError(
            f"The export {target} would replace, or be read as, a part of a log that it reads.",
            hint="Choose another name.",
        )
