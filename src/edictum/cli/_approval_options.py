"""What the subcommands of ``edictum approvals`` share: the store, the approver, the output."""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from edictum.approval import (
    ApprovalGrant,
    ApprovalQueue,
    ApprovalStatus,
    QueuedApproval,
    open_approvals,
)
from edictum.approval._context import describe_yes, list_differences
from edictum.audit._report_tables import escape_hidden
from edictum.core.values import dumps
from edictum.errors import EdictumConfigError
from edictum.execution.portal import PORTAL
from edictum.sessions._urls import read_scheme, read_sqlite_path

Shown: TypeAlias = QueuedApproval | ApprovalGrant
R = TypeVar("R", QueuedApproval, ApprovalGrant)
PAGE = 100
ANSWERED = (  # by the approver; others were withdrawn, or are void, after that
    *(ApprovalStatus.APPROVED, ApprovalStatus.CLAIMED, ApprovalStatus.USED, ApprovalStatus.DONE),
    ApprovalStatus.DENIED,
)


def open_store(url: str | None) -> ApprovalQueue:
    """Return the queue of a URL. A missing file is a mistake, not a new queue."""
    if url is None:
        hint = "Add --store URL, or name requests by their links."
        raise EdictumConfigError("The approval store is not named.", hint=hint)
    if read_scheme(url) == "sqlite":
        path = read_sqlite_path(url.partition("?")[0])
        if not Path(path).exists():
            hint = "Name the file that the agents use."
            raise EdictumConfigError(f"The file {path!r} does not exist.", hint=hint)
    return open_approvals(url)


def add_row_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--session", metavar="ID", help="of this session")
    parser.add_argument("--tool", metavar="NAME", help="of this tool")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="JSON, one line each")


def add_approver(parser: argparse.ArgumentParser) -> None:
    what = "who answers; the default is the user of the operating system"
    parser.add_argument("--approver", metavar="NAME", help=what)


def read_approver(options: argparse.Namespace) -> str:
    """Return the name under which an answer is given."""
    if options.approver:
        return str(options.approver)
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError) as exc:
        hint = "Use --approver NAME."
        raise EdictumConfigError("The operating system does not name its user.", hint=hint) from exc


def list_all(
    listed: Callable[..., Coroutine[Any, Any, Sequence[R]]], *, after: str | None, **wanted: Any
) -> list[R]:
    """Return all requests, or grants, asked for page by page."""
    found: list[R] = []
    while page := PORTAL.run(listed(**wanted, limit=PAGE, after=after)):
        found += page
        after = get_id(page[-1])
    return found


def get_id(row: Shown) -> str:
    return row.approval_id if isinstance(row, QueuedApproval) else row.grant_id


def to_json_line(row: Shown) -> str:
    """Return a request or a grant as JSON."""
    return dumps({it.name: _to_plain(getattr(row, it.name)) for it in fields(row)})


def _to_plain(value: Any) -> Any:
    """Return plain data: times as ISO 8601, tuples as lists, dataclasses as dicts."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple):
        return [_to_plain(it) for it in value]
    if hasattr(value, "__dataclass_fields__"):
        return {it.name: _to_plain(getattr(value, it.name)) for it in fields(value)}
    return value


def format_moment(moment: datetime) -> str:
    """Return a time as local time."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def format_request(row: QueuedApproval) -> str:
    """Return everything that a person should know of a request, one line each. Text of a model
    cannot begin a line, or repaint the screen.
    """
    lines = [f"{name:<10} {escape_hidden(text)}" for name, text in _list_facts(row) if text]
    return "\n".join(lines)


def _list_context(row: QueuedApproval) -> Iterator[tuple[str, str]]:
    """Yield the context of a request, in the words of its page."""
    yield from _list_news(row)
    for asker in row.context.get("asked_by") or ():
        yield "asked by", f"{asker['type']} {asker['name']}: {asker['message']}"
    preview = row.context.get("preview") or {}
    said = preview.get("result") or f"(none: {preview.get('problem')})"
    yield "preview", f"{preview['tool']}: {said}" if preview else ""
    yield "user said", row.context.get("prompt") or ""
    for call in row.context.get("last_calls") or ():
        yield "call", f"{call['outcome']}  {call['tool_name']} {call['tool_args']}"
    yield "a yes", describe_yes(row) if row.status is ApprovalStatus.PENDING else ""


def _list_news(row: QueuedApproval) -> Iterator[tuple[str, str]]:
    """Yield the arguments that differ from those that were approved last."""
    for change in list_differences(row.precedent, row.tool_args) if row.precedent else ():
        if change.before != change.now:
            was, now = (it or "(nothing)" for it in (change.before, change.now))
            yield "new", f"{change.name}: {now}; approved last: {was}"


def _list_facts(row: QueuedApproval) -> Iterator[tuple[str, str]]:
    yield "request", row.approval_id
    yield "question", row.message
    yield "tool", row.tool_name
    yield "arguments", dumps(row.tool_args)
    yield from _list_context(row)
    yield "principal", dumps(row.principal) if row.principal else ""
    yield "session", row.session_id or ""
    yield "contract", row.contract or ""
    yield "asked", format_moment(row.asked_at)
    silence = "runs" if row.timeout_effect == "allow" else "is denied"
    yield "until", f"{format_moment(row.expires_at)}; without an answer the call {silence}"
    yield "approvers", "; ".join(dumps(terms) for terms in row.approvers)
    by = f" by {row.approver}" if row.approver and row.status in ANSWERED else ""
    yield "status", f"{row.status}{by}"
    yield "reason", row.reason or ""
    for answer in row.answers:
        yield "yes", f"{answer.approver}, {format_moment(answer.at)}"
    yield "changed to", dumps(row.changed_args) if row.changed_args is not None else ""
    yield "grant", row.grant_id or ""
