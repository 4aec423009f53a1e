"""``edictum audit evidence FILE --to FILE``: events, and the records that prove them."""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import asdict
from pathlib import Path

from edictum.audit import verify_evidence, write_evidence
from edictum.audit._heads import refuse_chained_log
from edictum.cli._audit_options import add_filters, read_filter_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a chained log")
    add_filters(parser)
    parser.add_argument("--to", required=True, metavar="FILE", help="the file to write")
    what = "a bundle that was in force; layers are joined by commas"
    parser.add_argument("--policy", action="append", default=[], metavar="FILES", help=what)
    parser.add_argument("--public-key", metavar="FILE", help="of the key that signed the heads")
    key = "the private key of the log: signs what the file holds, so that nothing can be taken out"
    parser.add_argument("--key", metavar="FILE", help=key)
    script = "write the program that verifies it, which needs nothing of edictum"
    parser.add_argument("--script", metavar="FILE", help=script)
    parser.add_argument("--json", action="store_true", help="say what was written as JSON")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Write the files; return 1 if some of the events are not proven yet."""
    if options.script:
        refuse_chained_log(Path(options.script))
    made = write_evidence(
        options.file,
        options.to,
        policies=[files.split(",") for files in options.policy],
        public_key=options.public_key,
        key=options.key,
        **read_filter_options(options),
    )
    if options.script:
        shutil.copyfile(Path(verify_evidence.__file__), options.script)
    if options.json:
        print(json.dumps(asdict(made)))
    else:
        print(f"{made.selected:,} events in {made.records:,} records: {options.to}")
        for version in made.unknown_policies:
            print(f"The text of the policy {version} was not given; pass it with --policy.")
        if not options.key:
            print("What the file holds is not signed; sign it with --key.")
        if made.unlisted:
            print(f"{made.unlisted:,} of them are listed by no head: nothing proves them yet.")
    return 1 if made.unlisted else 0
