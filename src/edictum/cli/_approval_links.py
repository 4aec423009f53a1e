"""Answer requests by their links: the program that serves the pages identifies the approver and
takes the answer.

So a person whom a contract's ``approvers`` name can answer in a terminal that reaches neither the
store nor the key of the links.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from edictum.approval import ApprovalStatus, GrantTerms, QueuedApproval
from edictum.approval.grants import SESSION_GRANT_S
from edictum.core.values import dumps
from edictum.errors import EdictumInputError

LINK_TIMEOUT_S = 30.0
MAX_REPLY_BYTES = 1_000_000


def is_link(text: str) -> bool:
    """Return whether this is a link of a request, and not its id."""
    return text.startswith(("https://", "http://"))


class LinkedRequests:
    """Replaces the queue where requests are named by their links."""

    async def get(self, link: str) -> QueuedApproval:
        return await asyncio.to_thread(_open, link, {})

    async def answer(self, link: str, approved: bool, **said: Any) -> QueuedApproval:
        """Submit the form of the page; the approver is that of the link."""
        form = {"answer": "approve" if approved else "deny", "reason": said["reason"] or ""}
        if said.get("args") is not None:
            form |= {"answer": "change", "args": dumps(said["args"])}
        if said.get("grant") is not None:
            form |= _write_grant(said["grant"])
        return await asyncio.to_thread(_open, link, form)

    async def close(self) -> None:
        return None


def _write_grant(terms: GrantTerms) -> dict[str, str]:
    """Return the fields of the form for a grant."""
    if terms.args:
        hint = "Leave --match out, or answer with --store."
        raise EdictumInputError("--match cannot be combined with an approval link.", hint=hint)
    until = terms.until
    for_s = SESSION_GRANT_S if until is None else (until - datetime.now(UTC)).total_seconds()
    return {"grant": terms.scope, "grant_args": terms.other_args, "grant_for": str(for_s)}


def _open(link: str, form: Mapping[str, str]) -> QueuedApproval:
    """Return the request of a link, after submitting its form if there are fields.

    Raises EdictumInputError for an unknown request, and when the answer is refused.
    """
    request = Request(link, urlencode(form).encode() or None)  # noqa: S310 - see is_link
    request.add_header("Accept", "application/json")
    try:
        with urlopen(request, timeout=LINK_TIMEOUT_S) as reply:  # noqa: S310 - see is_link
            said = _read_reply(reply)
    except HTTPError as exc:
        with exc:
            said = {"error": str(exc), **_read_reply(exc)}
        raise EdictumInputError(said.get("notice") or said["error"]) from exc
    except OSError as exc:
        hint = "Open it in a browser."
        raise EdictumInputError(f"The link could not be opened: {exc}.", hint=hint) from exc
    try:
        if form and not said["notice"]:
            raise ValueError("the form was not read")
        return _read_request(said)
    except (KeyError, TypeError, ValueError) as exc:  # a page of something else
        hint = "Open it in a browser."
        raise EdictumInputError("This is not an approval link.", hint=hint) from exc


def _read_reply(reply: Any) -> dict[str, Any]:
    try:
        said = json.loads(reply.read(MAX_REPLY_BYTES))
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _read_request(said: Mapping[str, Any]) -> QueuedApproval:
    given = {it.name: said[it.name] for it in fields(QueuedApproval) if it.name in said}
    times = {name: datetime.fromisoformat(said[name]) for name in ("asked_at", "expires_at")}
    given |= {**times, "status": ApprovalStatus(said["status"]), "answers": ()}
    return QueuedApproval(**{**given, "digest": "", "answered_at": None})
