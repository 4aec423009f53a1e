"""``edictum approvals``: list the requests in an approval store, and answer them."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from typing import Any

from edictum.cli._approval_links import LinkedRequests, is_link
from edictum.cli._approval_options import open_store
from edictum.errors import EdictumConfigError
from edictum.execution.portal import PORTAL

# Subcommand: module and summary. A module has add_arguments(name, parser) and
# run(queue, options) -> code, for one or more subcommands.
_LISTS, _ANSWERS = "edictum.cli._approval_lists", "edictum.cli._approval_answers"
APPROVAL_COMMANDS = {
    "list": (_LISTS, "Print the requests that wait for an answer, the oldest first."),
    "show": (_LISTS, "Print all that a request says, and what became of it."),
    "approve": (_ANSWERS, "Say yes, once or for further calls as well."),
    "deny": (_ANSWERS, "Say no."),
    "edit": (_ANSWERS, "Say yes with changed arguments."),
    "grants": (_LISTS, "Print the grants in force."),
    "revoke": (_ANSWERS, "Take back grants, or a yes whose tool was not started yet."),
    "watch": (
        "edictum.cli._approval_watch",
        "Show requests as they come, and answer them with one key.",
    ),
}

BY_LINK = ("show", "approve", "deny", "edit")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    subcommands = parser.add_subparsers(dest="subcommand", metavar="subcommand", required=True)
    for name, (module, what) in APPROVAL_COMMANDS.items():
        subcommand = subcommands.add_parser(name, help=what, description=what)
        store = "the store: sqlite:///file.db, redis://, valkey://, postgresql://; not for links"
        subcommand.add_argument("--store", metavar="URL", help=store)
        import_module(module).add_arguments(name, subcommand)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Run a subcommand; return 1 if an answer was not taken."""
    if rest:
        hint = "Put ids and options before it."
        raise EdictumConfigError(f"Unexpected argument {rest[0]!r} after --.", hint=hint)
    command = import_module(APPROVAL_COMMANDS[options.subcommand][0])
    queue: Any = LinkedRequests() if _has_links(options) else open_store(options.store)
    try:
        code: int = command.run(queue, options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has enough, as ``head`` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        PORTAL.run(queue.close())
    return code


def _has_links(options: argparse.Namespace) -> bool:
    """Return whether requests are named by links, in place of a store and their ids."""
    if options.store is not None or options.subcommand not in BY_LINK:
        return False
    named = options.ids if hasattr(options, "ids") else [options.id]
    if not all(map(is_link, named)):
        return False
    if getattr(options, "approver", None):
        raise EdictumConfigError(
            "--approver cannot be combined with an approval link.",
            hint="Leave it out: the link names the approver.",
        )
    return True
