"""``edictum audit tail|query|report|export|verify|evidence|keygen``: an audit log."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

from edictum.errors import EdictumConfigError

# Subcommand: module and summary. A module has add_arguments(parser) and run(options, rest) -> code.
AUDIT_COMMANDS = {
    "tail": ("edictum.cli._audit_tail", "Print the newest events, and go on with --follow."),
    "query": ("edictum.cli._audit_query", "Print the events that match."),
    "report": (
        "edictum.cli._audit_report",
        "Add events up: tools, failures, denials, contracts, sessions; as a page with --html.",
    ),
    "export": ("edictum.cli._audit_export", "Write events as JSON lines, CSV or CloudEvents."),
    "verify": ("edictum.cli._audit_verify", "Find what was changed, removed or added in a log."),
    "evidence": (
        "edictum.cli._audit_evidence",
        "Write events with what proves them, to be verified on another machine.",
    ),
    "keygen": ("edictum.cli._audit_keygen", "Make the key that signs the heads of a log."),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    subcommands = parser.add_subparsers(dest="subcommand", metavar="subcommand", required=True)
    for name, (module, what) in AUDIT_COMMANDS.items():
        subcommand = subcommands.add_parser(name, help=what, description=what)
        import_module(module).add_arguments(subcommand)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Run a subcommand; return 1 if it found something wrong."""
    if rest:
        hint = "Put files and options before it."
        raise EdictumConfigError(f"Unexpected argument {rest[0]!r} after --.", hint=hint)
    try:
        code: int = import_module(AUDIT_COMMANDS[options.subcommand][0]).run(options, rest)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has enough, as ``head`` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
