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

from edictum.approval._context import ArgumentChange, describe_yes, list_differences
from edictum.approval.port import ApprovalStatus
from edictum.approval.queue import QueuedApproval
from edictum.audit._report import format_time
from edictum.audit._report_tables import escape_hidden
from edictum.core.call import Principal
from edictum.core.values import dumps

MAX_PAGE_TEXT = 10_000
GRANT_SCOPES = {
    "": "this call only",
    "session": "calls of this tool in this session",
    "principal": "calls of this tool for this user, in any session",
}
GRANT_ARGUMENTS = {"same": "with these arguments", "any": "with any arguments"}
GRANT_TIMES = {"900": "15 minutes", "3600": "1 hour", "28800": "8 hours", "86400": "1 day"}
STATUS_TEXTS = {
    ApprovalStatus.APPROVED: "Approved{by}",
    ApprovalStatus.CLAIMED: "Approved{by}; the call has taken the answer",
    ApprovalStatus.USED: "Approved{by}; the tool was started",
    ApprovalStatus.DONE: "Approved{by}; the tool has run",
    ApprovalStatus.DENIED: "Denied{by}",
    ApprovalStatus.TIMEOUT: "Expired without an answer",
    ApprovalStatus.WITHDRAWN: "Withdrawn: the call does not wait any more",
    ApprovalStatus.VOID: "Void: the answer does not count any more",
}


@cache
def read_style() -> str:
    return resources.files("edictum.approval").joinpath("page.css").read_text(encoding="utf-8")


@cache
def make_style_policy() -> str:
    """Return the style source of the content security policy: this style sheet, by its hash."""
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
    request: QueuedApproval, approver: Principal, action: str, notice: str = ""
) -> str:
    """Return the page of a request, with a form, posted to ``action``, while it is pending."""
    is_open = request.status is ApprovalStatus.PENDING
    return write_page(
        f"{request.tool_name}: approval",
        [
            f"<h1>May <code>{_escape(request.tool_name)}</code> run?</h1>",
            f'<p class="status" role="status">{_escape(notice)}</p>' if notice else "",
            "" if is_open else _write_end(request),
            f'<p class="message">{_escape(request.message)}</p>',
            _write_arguments(request),
            _write_preview(request.context.get("preview")),
            _write_form(request, approver, action) if is_open else "",
            _write_facts(request),
            _write_last_calls(request.context.get("last_calls") or ()),
        ],
    )


def write_notice_page(title: str, text: str) -> str:
    """Return a page with one message, and nothing about any request."""
    return write_page(title, [f"<h1>{_escape(title)}</h1>", f"<p>{_escape(text)}</p>"])


def _escape(text: Any) -> str:
    shown = str(text)[:MAX_PAGE_TEXT]
    return escape("\n".join(escape_hidden(line) for line in shown.split("\n")))


def _write_end(request: QueuedApproval) -> str:
    by = f" by {request.approver}" if request.approver else ""
    reason = f": {request.reason}" if request.reason else ""
    ended = STATUS_TEXTS[request.status].replace("{by}", by)
    return f'<p class="status">{_escape(ended + reason)}</p>'


def _write_arguments(request: QueuedApproval) -> str:
    changes = list_differences(request.precedent, request.tool_args)
    compared = "" if request.precedent is None else ", beside those that were approved last"
    if not changes:
        return "<h2>Arguments</h2><p>None.</p>"
    rows = "".join(
        f'<tr><th scope="row">{_escape(change.name)}</th>'
        f'<td class="value">{_write_change(change)}</td></tr>'
        for change in changes
    )
    return f"<h2>Arguments{compared}</h2><table>{rows}</table>"


def _write_change(change: ArgumentChange) -> str:
    if change.before == change.now:
        return _escape(change.now)
    before = "" if change.before is None else f"<del>{_escape(change.before)}</del> "
    return before + ("" if change.now is None else f"<ins>{_escape(change.now)}</ins>")


def _write_preview(preview: Any) -> str:
    if not isinstance(preview, Mapping):
        return ""
    name, problem = preview.get("tool", ""), preview.get("problem")
    said = f"No preview: {problem}" if problem else preview.get("result", "")
    return f"<h2>What {_escape(name)} says about it</h2><pre>{_escape(said)}</pre>"


def _write_facts(request: QueuedApproval) -> str:
    principal = {key: it for key, it in (request.principal or {}).items() if it}
    facts = [
        *((f"asked by {it['type']}", f"{it['name']}: {it['message']}") for it in _askers(request)),
        ("on behalf of", ", ".join(f"{key} {_show(it)}" for key, it in principal.items())),
        ("the user said", request.context.get("prompt")),
        ("session", request.session_id),
        ("asked at", format_time(request.asked_at)),
        ("expires at", format_time(request.expires_at)),
    ]
    rows = "".join(
        f'<tr><th scope="row">{_escape(name)}</th><td>{_escape(value)}</td></tr>'
        for name, value in facts
        if value
    )
    return f"<h2>Why, and for whom</h2><table>{rows}</table>"


def _askers(request: QueuedApproval) -> list[Any]:
    asked_by = request.context.get("asked_by")
    return list(asked_by or [{"name": request.contract, "type": "contract", "message": ""}])


def _write_last_calls(calls: Any) -> str:
    rows = "".join(
        f'<tr><td class="word">{_escape(call["outcome"])}</td>'
        f"<td>{_escape(call['tool_name'])}</td>"
        f'<td class="value">{_escape(call["tool_args"])}</td></tr>'
        for call in calls
    )
    return f"<h2>The last calls of the session</h2><table>{rows}</table>" if rows else ""


def _show(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def _write_form(request: QueuedApproval, approver: Principal, action: str) -> str:
    return (
        f"<h2>Your answer</h2><p>{_escape(describe_yes(request))}</p>"
        f'<form method="post" action="{escape(action)}">'
        # not an input, where the Enter key would press the first button
        '<label>Reason <textarea class="reason" name="reason" rows="2" maxlength="1000"></textarea>'
        "</label>"
        f"{_write_grant_fields()}"
        '<div class="buttons">'
        '<button class="yes" name="answer" value="approve">Approve</button>'
        '<button class="no" name="answer" value="deny">Deny</button></div>'
        "<details><summary>Approve with other arguments</summary>"
        '<label>Arguments, as JSON <textarea class="json" name="args" spellcheck="false">'
        f"{_escape(_write_json(request.tool_args))}</textarea></label>"
        '<div class="buttons">'
        '<button class="yes" name="answer" value="change">Approve with these</button></div>'
        "</details></form>"
        f'<p class="quiet">You answer as {_escape(approver.user_id)}.</p>'
    )


def _write_grant_fields() -> str:
    """Return the form fields by which a yes counts for further calls."""
    return (
        "<details><summary>Let the yes count for further calls</summary>"
        f"{_write_choice('Which calls', 'grant', GRANT_SCOPES)}"
        f"{_write_choice('With which arguments', 'grant_args', GRANT_ARGUMENTS)}"
        f"{_write_choice('For how long', 'grant_for', GRANT_TIMES)}"
        "</details>"
    )


def _write_choice(label: str, name: str, choices: Mapping[str, str]) -> str:
    options = "".join(f'<option value="{key}">{text}</option>' for key, text in choices.items())
    return f'<label>{label} <select name="{name}">{options}</select></label>'


def _write_json(value: Any) -> str:
    """Return JSON for a person to read and edit; invisible characters are written as escapes."""
    text = json.dumps(json.loads(dumps(value)), indent=2, ensure_ascii=False)
    return "".join(it if it.isprintable() or it == "\n" else _write_code(it) for it in text)


def _write_code(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x80 else json.dumps(char)[1:-1]
