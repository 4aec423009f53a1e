"""``edictum approvals list|show|grants``: what is asked, and what was granted."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from edictum.approval import ApprovalGrant, ApprovalQueue, QueuedApproval
from edictum.audit._report_tables import ReportTable
from edictum.cli._approval_options import (
    Shown,
    add_json,
    add_row_filters,
    format_moment,
    format_request,
    list_all,
    to_json_line,
)
from edictum.cli._audit_options import print_tables
from edictum.core.values import dumps
from edictum.errors import EdictumInputError
from edictum.execution.portal import PORTAL

REQUEST_COLUMNS = ("id", "asked", "until", "session", "tool", "arguments", "question")
GRANT_COLUMNS = ("id", "granted by", "until", "session", "tool", "arguments", "other arguments")


def add_arguments(name: str, parser: argparse.ArgumentParser) -> None:
    if name == "show":
        parser.add_argument("id", metavar="ID", help="of a request; or its link")
    else:
        add_row_filters(parser)
        parser.add_argument("--limit", type=int, metavar="N", help="at most so many; all without")
        parser.add_argument("--after", metavar="ID", help="those after this one: the next page")
    add_json(parser)


def run(queue: ApprovalQueue, options: argparse.Namespace) -> int:
    """Print requests, one request, or grants."""
    if options.subcommand == "show":
        return _show(queue, options)
    listed: Any = queue.pending if options.subcommand == "list" else queue.grants
    wanted = {"session_id": options.session, "tool_name": options.tool}
    if options.limit is None:
        _print_rows(list_all(listed, after=options.after, **wanted), options)
    else:
        page = listed(**wanted, limit=options.limit, after=options.after)
        _print_rows(PORTAL.run(page), options)
    return 0


def _show(queue: ApprovalQueue, options: argparse.Namespace) -> int:
    row = PORTAL.run(queue.get(options.id))
    if row is None:
        hint = "It is in another store, or was forgotten."
        raise EdictumInputError(f"No approval request {options.id!r:.80}.", hint=hint)
    print(to_json_line(row) if options.json else format_request(row))
    return 0


def _print_rows(rows: Sequence[Shown], options: argparse.Namespace) -> None:
    if options.json:
        for row in rows:
            print(to_json_line(row))
        return
    is_list = options.subcommand == "list"
    columns = REQUEST_COLUMNS if is_list else GRANT_COLUMNS
    title = f"{len(rows):,} {'pending' if is_list else 'in force'}"
    cells = tuple(_make_cells(row) for row in rows)
    is_full = len(rows) == options.limit
    note = f"There may be more: --after {cells[-1][0]}" if is_full else ""
    print_tables([ReportTable(title, columns, cells, note)])


def _make_cells(row: Shown) -> tuple[Any, ...]:
    if isinstance(row, QueuedApproval):
        when = (format_moment(row.asked_at), format_moment(row.expires_at))
        what = (row.session_id or "", row.tool_name, dumps(row.tool_args), row.message)
        return (row.approval_id, *when, *what)
    return _make_grant_cells(row)


def _make_grant_cells(row: ApprovalGrant) -> tuple[Any, ...]:
    who = (row.approver, format_moment(row.until), row.session_id or "any")
    return (row.grant_id, *who, row.tool_name, dumps(row.args), row.other_args)
