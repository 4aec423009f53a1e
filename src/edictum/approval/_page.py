"""The page of a request: one HTML page without a script, in which every text is escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from edictum.approval._context import describe_yes, list_changes
from edictum.approval.port import ApprovalStatus
from edictum.approval.queue import QueuedApproval
from edictum.audit._report import format_time
from edictum.audit._report_tables import escape_hidden
from edictum.core.call import Principal
from edictum.core.values import dumps

MAX_SHOWN_CHARS = 10_000
ENDS = {
    ApprovalStatus.APPROVED: "Approved",
    ApprovalStatus.CLAIMED: "Approved; the call has taken the answer",
    ApprovalStatus.USED: "Approved; the tool was started",
    ApprovalStatus.DONE: "Approved; the tool has run",
    ApprovalStatus.DENIED: "Denied",
    ApprovalStatus.TIMEOUT: "Expired without an answer",
    ApprovalStatus.WITHDRAWN: "Withdrawn: the call does not wait any more",
    ApprovalStatus.VOID: "Void: the answer does not count any more",
}


@cache
def read_style() -> str:
    return resources.files("edictum.approval").joinpath("page.css").read_text(encoding="utf-8")


@cache
def make_style_policy() -> str:
    """Return what the content security policy allows of styles: this one, by its hash."""
    digest = hashlib.sha256(read_style().encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def write_page(title: str, parts: Iterable[str]) -> str:
    """Return a whole page."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="robots" content="noindex">\n'
        f"<title>{_escape(title)}</title>\n<style>{read_style()}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def write_request_page(
    request: QueuedApproval,
    approver: Principal,
    action: str,
    *,
    before: Mapping[str, Any] | None = None,
    notice: str = "",
) -> str:
    """Return the page of a request, with a form while it is pending.

    ``action`` is where the form is posted to, ``before`` the arguments that were approved last.
    """
    is_open = request.status is ApprovalStatus.PENDING
    return write_page(
        f"{request.tool_name}: approval",
        [
            f"<h1>May <code>{_escape(request.tool_name)}</code> run?</h1>",
            f'<p class="status">{_escape(notice)}</p>' if notice else "",
            "" if is_open else _write_end(request),
            f'<p class="message">{_escape(request.message)}</p>',
            _write_arguments(request, before),
            _write_facts(request),
            _write_form(request, approver, action) if is_open else "",
        ],
    )


def write_notice_page(title: str, text: str) -> str:
    """Return a page that says one thing, and nothing of any request."""
    return write_page(title, [f"<h1>{_escape(title)}</h1>", f"<p>{_escape(text)}</p>"])


def _escape(text: Any) -> str:
    shown = str(text)[:MAX_SHOWN_CHARS]
    return escape("\n".join(escape_hidden(line) for line in shown.split("\n")))


def _write_end(request: QueuedApproval) -> str:
    by = f" by {request.approver}" if request.approver else ""
    reason = f": {request.reason}" if request.reason else ""
    ended = ENDS.get(request.status, str(request.status))
    return f'<p class="status">{_escape(ended + by + reason)}</p>'


def _write_arguments(request: QueuedApproval, before: Mapping[str, Any] | None) -> str:
    changes = list_changes(before, request.tool_args)
    if not changes:
        return "<h2>Arguments</h2><p>None.</p>"
    rows = "".join(
        f'<tr><th scope="row">{_escape(change.name)}</th><td class="value">'
        + (f"<del>{_escape(change.before)}</del> " if change.is_gone or change.is_other else "")
        + (f"<ins>{_escape(change.now)}</ins>" if change.is_new or change.is_other else "")
        + (_escape(change.now) if change.is_same else "")
        + "</td></tr>"
        for change in changes
    )
    compared = "" if before is None else ", beside those that were approved last"
    return f"<h2>Arguments{compared}</h2><table>{rows}</table>"


def _write_facts(request: QueuedApproval) -> str:
    principal = {key: it for key, it in (request.principal or {}).items() if it}
    facts = {
        "asked by contract": request.contract,
        "on behalf of": ", ".join(f"{key} {_show(it)}" for key, it in principal.items()),
        "session": request.session_id,
        "asked at": format_time(request.asked_at),
        "expires at": format_time(request.expires_at),
    }
    rows = "".join(
        f'<tr><th scope="row">{name}</th><td>{_escape(value)}</td></tr>'
        for name, value in facts.items()
        if value
    )
    return f"<h2>Why, and for whom</h2><table>{rows}</table>"


def _show(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def _write_form(request: QueuedApproval, approver: Principal, action: str) -> str:
    return (
        f"<h2>Your answer</h2><p>{_escape(describe_yes(request))}</p>"
        f'<form method="post" action="{escape(action)}">'
        '<label>Reason <input name="reason" maxlength="1000" autocomplete="off"></label>'
        '<div class="buttons">'
        '<button class="yes" name="answer" value="approve">Approve</button>'
        '<button class="no" name="answer" value="deny">Deny</button></div></form>'
        f'<p class="quiet">You answer as {_escape(approver.user_id)}.</p>'
    )


def write_json(value: Any) -> str:
    """Return JSON for a person to read and change."""
    return json.dumps(json.loads(dumps(value)), indent=2, ensure_ascii=False)
