"""Read what a browser or a program sends to the approval pages, and write what it gets back."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from urllib.parse import parse_qs, urlsplit

from edictum.approval._page import make_style_policy, write_notice_page
from edictum.approval.grants import GrantTerms
from edictum.core._records import record
from edictum.core.values import dumps
from edictum.errors import EdictumInputError

MAX_BODY_BYTES = 65_536
MAX_ANSWERS = 100
MAX_ANSWER_REASON = 1_000
MAX_PAGE = 1_000
HTML, JSON = "text/html; charset=utf-8", "application/json"

Scope: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]


@record
class RefusedAnswer:
    """Why an answer was refused, for the log and the audit, with the request and the person if
    known.
    """

    reason: str
    approval_id: str | None = None
    approver: str | None = None


@record
class PageResponse:
    """What is sent back. ``refused`` is not sent."""

    status: int
    content_type: str
    text: str
    refused: RefusedAnswer | None = None


class HttpRefusal(Exception):
    """An HTTP request that is not served. ``reason`` is for the log, ``text`` for the client."""

    def __init__(self, status: int, text: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.text, self.reason = status, text, reason


class PageExchange:
    """One request over HTTP, and how to read it."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope, self._receive = scope, receive
        self.method: str = scope["method"]
        self._root: str = scope.get("root_path", "")
        self.path = _strip_root(scope["path"], self._root)
        self.query = scope.get("query_string", b"").decode("latin-1")

    @property
    def route(self) -> str:
        """The first part of the path: the rest may be a token, which is not written to a log."""
        return "/" + self.path.strip("/").partition("/")[0]

    @property
    def client(self) -> str | None:
        client = self.scope.get("client")
        return str(client[0]) if client else None

    @property
    def wants_json(self) -> bool:
        """Whether the client is a program, at the API or by a link, and not a person in a
        browser.
        """
        return self.route == "/api" or self.get_header(b"accept") == JSON

    def link(self, token: str) -> str:
        """Return the path that the form of a page is posted to."""
        return f"{self._root.rstrip('/')}/t/{token}"

    def get_header(self, name: bytes) -> str | None:
        found = [value for key, value in self.scope["headers"] if key.lower() == name]
        return found[0].decode("latin-1") if found else None

    def check_origin(self) -> None:
        """Refuse requests that a page of another site makes a browser send."""
        site = self.get_header(b"sec-fetch-site")
        if site is None:  # an old browser, or none; behind a proxy the host may be another
            origin = urlsplit(self.get_header(b"origin") or "").netloc
            site = "cross-site" if origin not in ("", self.get_header(b"host")) else "none"
        if site not in ("same-origin", "none"):
            raise HttpRefusal(403, "Pages of other sites may not do this.", "origin")

    async def read_body(self, content_type: str) -> bytes:
        """Return the body. One that is too large is refused before it is read, or as soon as that
        is known.
        """
        given = (self.get_header(b"content-type") or "").partition(";")[0].strip().lower()
        if given != content_type:
            raise HttpRefusal(415, f"Send {content_type}.", "content type")
        length = self.get_header(b"content-length")
        if length is not None and not _is_small(length):
            raise HttpRefusal(413, "That is too large.", "too large")
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":  # what came until then is not an answer
                raise HttpRefusal(400, "The request was broken off.", "broken off")
            body += message.get("body", b"")
            if len(body) > MAX_BODY_BYTES:
                raise HttpRefusal(413, "That is too large.", "too large")
            if not message.get("more_body", False):
                return bytes(body)

    def refuse(self, status: int, text: str, refused: RefusedAnswer | None = None) -> PageResponse:
        if self.wants_json:
            return PageResponse(status, JSON, dumps({"error": text}), refused)
        page = write_notice_page("Not possible", text)
        return PageResponse(status, HTML, page, refused)


def _is_small(length: str) -> bool:
    """Return whether a stated length is small enough to read; a number of many digits is not."""
    is_number = length.isascii() and length.isdigit() and len(length) < 10
    return is_number and int(length) <= MAX_BODY_BYTES


def _strip_root(path: str, root: str) -> str:
    """Return the path below the mount point of the app; servers differ in whether they remove
    it.
    """
    root = root.rstrip("/")
    return path[len(root) :] if root and (path + "/").startswith(root + "/") else path


# --- Reading --------------------------------------------------------------------------------------


@record
class GivenForm:
    """An answer as it was sent: to which request, or by which link, what, and on which terms."""

    approved: bool
    approval_id: str | None = None
    token: str | None = None
    reason: str | None = None
    args: Mapping[str, Any] | None = None
    grant: GrantTerms | None = None


def read_answer_form(body: bytes) -> GivenForm:
    """Return the answer that a form was filled in with."""
    try:
        fields = parse_qs(body.decode(), strict_parsing=bool(body), max_num_fields=20)
        said: dict[str, Any] = {name: _read_once(values) for name, values in fields.items()}
        answer = said.pop("answer", "")
        said["approved"] = {"approve": True, "change": True, "deny": False}.get(answer)
        args = said.pop("args", "{}")
        if answer == "change":
            said["args"] = json.loads(args)
        scope, kind = said.pop("grant", ""), said.pop("grant_args", "same")
        seconds = float(said.pop("grant_for", "900"))
    except (ValueError, RecursionError):
        raise HttpRefusal(400, "The form cannot be read.", "not readable") from None
    if scope and answer == "approve":
        said["grant"] = {"scope": scope, "other_args": kind, "for_s": seconds}
    return _read_answer(said)


def _read_once(values: list[str]) -> str:
    """Return the value of a field; raise if it is given twice, as it is not known which one was
    meant.
    """
    (value,) = values
    return value


def read_answers(body: bytes) -> list[GivenForm]:
    """Return the answers of ``{"answers": [{"approval_id": ..., "approved": ...}]}``."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        raise HttpRefusal(400, "Send JSON.", "not readable") from None
    answers = given.get("answers") if isinstance(given, dict) else None
    if not isinstance(answers, list) or not 1 <= len(answers) <= MAX_ANSWERS:
        text = f'Send {{"answers": [...]}}, with 1 to {MAX_ANSWERS} of them.'
        raise HttpRefusal(400, text, "not readable")
    return [_read_answer(each) for each in answers]


ANSWER_FIELDS: dict[str, tuple[type[Any], ...]] = {
    "approved": (bool,),
    "approval_id": (str,),
    "token": (str,),
    "reason": (str,),
    "args": (dict,),
    "grant": (dict,),
}


def _read_answer(said: Any) -> GivenForm:
    if not isinstance(said, dict) or not isinstance(said.get("approved"), bool):
        raise HttpRefusal(400, "An answer needs approved: true or false.", "not readable")
    for name, value in said.items():
        if name not in ANSWER_FIELDS or not isinstance(value, ANSWER_FIELDS[name]):
            text = f"{name[:80]} is not a part of an answer, or not of its type."
            raise HttpRefusal(400, text, "not readable")
    if len(said.get("reason", "")) > MAX_ANSWER_REASON:
        raise HttpRefusal(400, f"A reason has {MAX_ANSWER_REASON} characters.", "not readable")
    grant = said.get("grant")
    return GivenForm(**{**said, "grant": None if grant is None else _read_grant(grant)})


def _read_grant(given: dict[str, Any]) -> GrantTerms:
    """Return the terms of a grant; ``for_s`` says for how many seconds it counts."""
    try:
        terms = dict(given)
        until = datetime.now(UTC) + timedelta(seconds=float(terms.pop("for_s")))
        return GrantTerms(**terms, until=until)
    except (EdictumInputError, KeyError, TypeError, ValueError, OverflowError):
        text = "A grant has scope, for_s, and perhaps args and other_args."
        raise HttpRefusal(400, text, "not readable") from None


def read_query(query: str) -> dict[str, Any]:
    """Return the filters of a list: ``session_id``, ``tool_name``, ``limit``, ``after``."""
    try:
        given = {name: values[-1] for name, values in parse_qs(query, max_num_fields=20).items()}
        limit = int(given.pop("limit", "100"))
    except ValueError:
        limit = 0
    if limit < 1:
        raise HttpRefusal(400, "The limit is a number, 1 or more.", "not readable")
    if unknown := set(given) - {"session_id", "tool_name", "after"}:
        raise HttpRefusal(400, f"Unknown: {', '.join(sorted(unknown))[:200]}.", "not readable")
    return {**given, "limit": min(limit, MAX_PAGE)}


# --- Sending --------------------------------------------------------------------------------------


def make_json_response(status: int, value: Any) -> PageResponse:
    return PageResponse(status, JSON, dumps(value))


def _list_headers(response: PageResponse, length: int) -> dict[str, str]:
    policy = (
        f"default-src 'none'; style-src {make_style_policy()}; form-action 'self';"
        " frame-ancestors 'none'; base-uri 'none'"
    )
    return {
        "content-type": response.content_type,
        "content-length": str(length),
        "content-security-policy": policy,
        "cache-control": "no-store",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        **({"allow": "GET, HEAD, POST"} if response.status == 405 else {}),
    }


async def send_response(scope: Scope, response: PageResponse, send: Send) -> None:
    body = response.text.encode("utf-8", "replace")
    headers = _list_headers(response, len(body))
    await send(
        {
            "type": "http.response.start",
            "status": response.status,
            "headers": [(name.encode(), text.encode("latin-1")) for name, text in headers.items()],
        }
    )
    sent = b"" if scope["method"] == "HEAD" else body
    await send({"type": "http.response.body", "body": sent})


async def answer_lifespan(receive: Receive, send: Send) -> None:
    """Answer the start and stop events of a server that serves this app alone."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
