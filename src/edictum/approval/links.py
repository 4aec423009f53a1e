"""ApprovalLinks: links to the page of a request. A link is signed, ends at a time, and carries who
the approver is.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edictum.approval._keys import read_key, sign
from edictum.approval.queue import QueuedApproval
from edictum.core._records import record
from edictum.core.call import Principal
from edictum.core.freeze import thaw
from edictum.errors import EdictumConfigError, EdictumInputError

LINK_VALID_S = 86_400.0
MAX_TOKEN_CHARS = 4_096
CONTEXT = b"edictum-approval-link-1."  # no signature made for another purpose is valid


class LinkRefused(Exception):
    """A link is not valid. ``reason`` is for the log, never for the person who sent it."""

    def __init__(self, reason: str, approval_id: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.approval_id = reason, approval_id


@record
class Token:
    """The content of a link: which request, who answers, until when. ``nonce`` tells two links
    apart; None for a user of the application, who came without one.
    """

    approval_id: str
    approver: Principal
    expires_at: float
    nonce: str | None


class ApprovalLinks:
    """Makes and reads links. ``url`` is where the app of the pages is mounted.

    A link is valid for ``valid_s`` seconds, and not longer than its request. The one who makes a
    link has verified that its approver alone will get it.
    """

    def __init__(
        self,
        url: str,
        *,
        key: bytes | str | None = None,
        key_file: str | Path | None = None,
        valid_s: float = LINK_VALID_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._key = read_key("ApprovalLinks", key, key_file)
        self._url = _check_url(url)
        if not _is_positive(valid_s):
            raise EdictumConfigError(
                f"ApprovalLinks: valid_s is {valid_s!r:.80}.", hint="Use seconds, more than 0."
            )
        self._valid_s = valid_s
        self._clock = clock

    def make_link(self, request: QueuedApproval, approver: Principal) -> str:
        """Return the link by which one person may look at a request and answer it."""
        return f"{self._url}/t/{self.make_token(request, approver)}"

    def make_token(self, request: QueuedApproval, approver: Principal) -> str:
        """Return the signed part of a link."""
        if not isinstance(approver, Principal) or not approver.user_id:
            raise EdictumInputError(
                "ApprovalLinks: the approver is not a Principal with a user_id.",
                hint='Use approver=Principal("ann", role="ops").',
            )
        expires_at = min(self._clock() + self._valid_s, request.expires_at.timestamp())
        who = {name: value for name, value in approver.as_dict().items() if value}
        said = {"id": request.approval_id, "who": thaw(who), "until": expires_at}
        said["nonce"] = secrets.token_urlsafe(12)
        body = _encode(_write_json(said))
        token = f"{body}.{_encode(sign(self._key, CONTEXT + body.encode()))}"
        if len(token) > MAX_TOKEN_CHARS:
            raise EdictumInputError(
                f"ApprovalLinks: the link would be longer than {MAX_TOKEN_CHARS} characters.",
                hint="Give the approver fewer claims.",
            )
        return token

    def read_token(self, text: str) -> Token:
        """Return the content of a link. Raises LinkRefused for a link that is forged or has
        expired.
        """
        body, _, signature = text.partition(".")
        if len(text) > MAX_TOKEN_CHARS or not text.isascii():
            raise LinkRefused("forged")
        expected = _encode(sign(self._key, CONTEXT + body.encode()))
        if not hmac.compare_digest(expected, signature):
            raise LinkRefused("forged")
        said = json.loads(_decode(body))
        token = Token(said["id"], Principal(**said["who"]), said["until"], said["nonce"])
        if token.expires_at <= self._clock():
            raise LinkRefused("expired", token.approval_id)
        return token


def _check_url(url: Any) -> str:
    parts = urlsplit(url) if isinstance(url, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        hint = "Use the address at which the app is mounted, such as https://ops.example/approvals."
        raise EdictumConfigError(f"ApprovalLinks: url is {url!r:.80}.", hint=hint)
    return str(url).rstrip("/")


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _write_json(said: dict[str, Any]) -> bytes:
    try:
        return json.dumps(said, separators=(",", ":")).encode()
    except (TypeError, ValueError) as exc:
        hint = "Use texts, numbers, lists and dicts as claims."
        raise EdictumInputError(
            f"The approver cannot be put into a link: {exc}", hint=hint
        ) from exc


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
