"""``edictum audit verify FILE``: check whether a chained log was changed."""

from __future__ import annotations

import argparse
import json

from edictum.audit import Verification, verify
from edictum.audit._report_tables import format_cell
from edictum.cli._audit_options import ProgressBar

MAX_TOLD = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = (
        "a chained log, or the URL of one (sqlite:///audit.db); rotated files and the file of heads"
        " beside it are read as well"
    )
    parser.add_argument("file", metavar="FILE", help=what)
    key = "the public key that all heads must be signed with"
    parser.add_argument("--public-key", metavar="FILE", help=key)
    parser.add_argument("--heads", metavar="FILE", help="heads that were kept elsewhere")
    ledger = "the URL of the session store of the same calls: what only one of the two has is a gap"
    parser.add_argument("--ledger", metavar="URL", help=ledger)
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Print what was found; return 1 if something is wrong."""
    progress = ProgressBar()
    found = verify(
        options.file,
        public_key=options.public_key,
        heads=options.heads,
        ledger=options.ledger,
        on_progress=progress,
    )
    progress.clear()
    if options.json:
        print(json.dumps(found.to_dict()))
    else:
        _print_result(found)
    return 0 if found.ok else 1


def _print_result(found: Verification) -> None:
    for problem in found.problems[:MAX_TOLD]:
        print(format_cell(str(problem)))
    if (left := found.counts.total() - MAX_TOLD) > 0:
        print(f"... and {left:,} more; see them with --json.")
    for note in found.notes[:MAX_TOLD]:
        print(f"note: {format_cell(note)}")
    told = ", ".join(f"{count:,} {kind}" for kind, count in found.counts.items())
    print(f"{'OK' if found.ok else f'WRONG ({told})'}: {_describe_read(found)}")


def _describe_read(found: Verification) -> str:
    """Return what was verified, in one sentence, and what was compared with a ledger."""
    compared = f"{found.compared:,} events compared with the ledger"
    compared += f", {found.in_doubt:,} calls in doubt." if found.in_doubt else "."
    if found.compared and not (found.records or found.heads):
        return compared
    records = (
        f"{found.records:,} records of {found.writers:,} writers, {found.heads:,} heads"
        f" ({f'signed, key {found.key}' if found.key else 'signatures not checked'}),"
        f" {found.unlisted:,} records that no head lists, {found.deleted:,} deleted."
    )
    return f"{records} {compared}" if found.compared else records
