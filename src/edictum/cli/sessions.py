"""``edictum sessions list|show|reset|migrate URL``: the counters in a session store."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from edictum.core.limits import SessionSnapshot
from edictum.core.values import to_json
from edictum.errors import EdictumConfigError
from edictum.execution.portal import PORTAL
from edictum.sessions import migrate
from edictum.sessions import open as open_ledger
from edictum.sessions._urls import check_store_exists
from edictum.sessions.session import Session

SUMMARIES = {
    "list": "Print the sessions, the most recently used first.",
    "show": "Print the counters of a session, or of a scope.",
    "reset": "Forget the counters of a session, or of a scope.",
    "migrate": "Set a PostgreSQL store up, or bring it to the version of this library.",
}
LINE = (
    "{executions:>9} ran {failures:>8} failed {attempts:>9} attempts {in_flight:>6} running  {name}"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    subcommands = parser.add_subparsers(dest="subcommand", metavar="subcommand", required=True)
    made = {
        name: subcommands.add_parser(name, help=what, description=what)
        for name, what in SUMMARIES.items()
    }
    for name, command in made.items():
        command.add_argument("url", metavar="URL", help="of the store: sqlite:///sessions.db")
        if name in ("list", "show"):
            command.add_argument("--json", action="store_true", help="print JSON")
        if name in ("show", "reset"):
            command.add_argument("name", metavar="SESSION", help="its id, or the value of a scope")
            what = "a scope instead of a session: principal, global, args.account_id"
            command.add_argument("--scope", metavar="SCOPE", help=what)
    made["list"].add_argument(
        "--limit", type=int, default=100, metavar="N", help="at most so many (100)"
    )
    for option, what in (
        ("--dry-run", "change nothing: print the statements and the rights"),
        ("--grant-to", "give this role the rights that a program needs"),
    ):
        is_flag = option == "--dry-run"
        more: dict[str, Any] = {"action": "store_true"} if is_flag else {"metavar": "ROLE"}
        made["migrate"].add_argument(option, help=what, **more)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Run a subcommand on the store that the URL names."""
    if rest:
        hint = "Put the URL and options before it."
        raise EdictumConfigError(f"{rest[0]!r} stands after --.", hint=hint)
    if options.subcommand == "migrate":
        print(migrate(options.url, dry_run=options.dry_run, grant_to=options.grant_to))
        return 0
    check_store_exists(options.url)
    ledger: Any = open_ledger(options.url)
    try:
        _RUN[options.subcommand](options, ledger)
    finally:
        if hasattr(ledger, "close"):
            PORTAL.run(ledger.close())
    return 0


def _get_fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__match_args__}


def _list(options: argparse.Namespace, ledger: Any) -> None:
    for found in PORTAL.run(ledger.sessions(limit=options.limit)):
        if options.json:
            print(json.dumps({"session_id": found.session_id, **_get_fields(found.totals)}))
        else:
            print(LINE.format(**_get_fields(found.totals), name=found.session_id))


def _find(options: argparse.Namespace, ledger: Any) -> Session:
    if options.scope is not None:
        return Session.of_scope(options.scope, options.name, ledger)
    return Session(options.name, ledger)


def _show(options: argparse.Namespace, ledger: Any) -> None:
    snapshot = _find(options, ledger).snapshot()
    if options.json:
        print(json.dumps(_to_dict(snapshot, options.name)))
        return
    print(LINE.format(**_get_fields(snapshot.totals), name="all tools"))
    for tool, counters in sorted(snapshot.per_tool.items()):
        print(LINE.format(**_get_fields(counters), name=tool))
    for tool, amounts in sorted(snapshot.amounts.items()):
        for name, amount in sorted(amounts.items()):
            print(
                f"{name} of {tool or 'all tools'}: {amount.spent:g}, {amount.reserved:g} reserved"
            )


def _to_dict(snapshot: SessionSnapshot, name: str) -> Any:
    found = {
        "session_id": name,
        "totals": _get_fields(snapshot.totals),
        "per_tool": {tool: _get_fields(counters) for tool, counters in snapshot.per_tool.items()},
        "amounts": {
            tool: {amount: _get_fields(about) for amount, about in amounts.items()}
            for tool, amounts in snapshot.amounts.items()
        },
    }
    return to_json(found)


def _reset(options: argparse.Namespace, ledger: Any) -> None:
    _find(options, ledger).reset()
    print(f"forgotten: {options.name}")


_RUN: dict[str, Callable[[argparse.Namespace, Any], None]] = {
    "list": _list,
    "show": _show,
    "reset": _reset,
}
