"""Webhook: notify a chat service, or a program of your own, that a person is asked.

Messages are signed as Standard Webhooks says (standardwebhooks.com): HMAC-SHA256 over id, timestamp
and body. They are sent by one event loop in the background, so a target that hangs delays no call.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import random
import re
import ssl
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edictum._logs import APPROVAL_NOT_NOTIFIED, log
from edictum.approval._https import AllowedHosts, BadReply, RefusedAddress, make_target, post
from edictum.approval._keys import read_key, sign
from edictum.approval.links import ApprovalLinks
from edictum.approval.queue import QueuedApproval
from edictum.core._records import record
from edictum.core.call import Principal
from edictum.core.values import dumps
from edictum.errors import EdictumConfigError, EdictumInputError
from edictum.execution.failures import NotStarted
from edictum.execution.forks import call_in_child
from edictum.execution.portal import Portal

MAX_UNSENT = 1_000  # messages of one webhook; a target that hangs must not fill the memory
MAX_AT_ONCE = 4
MAX_FILLED_CHARS = 1_000  # of a value that is filled into a template
FIRST_DELAY_S, MAX_DELAY_S = 1.0, 60.0
TOLERANCE_S = 300.0
TRY_AGAIN = frozenset({408, 425, 429})  # and all from 500 on
MESSAGE_TYPE = "approval.requested"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_HEADER = re.compile(r"[A-Za-z0-9-]+")
_SENDERS = Portal()  # of its own, so that looking up names delays nothing else


@record
class WebhookMessage:
    """What is sent for a request. The id is that of the request, even when it is sent again."""

    id: str
    body: bytes
    useful_until: float


class Webhook:
    """Posts each new request to a URL.

    ``allowed_hosts`` are the names, addresses and networks that may be sent to. With ``links`` and
    an ``approver`` the message has a link by which this person, who alone must be able to read what
    is posted there, can answer. ``body`` is a template: JSON in which ``{tool_name}``, ``{link}``
    and other names in braces are filled in.
    """

    def __init__(
        self,
        url: str,
        *,
        allowed_hosts: Sequence[str],
        key: bytes | str | None = None,
        key_file: str | Path | None = None,
        links: ApprovalLinks | None = None,
        approver: Principal | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 5.0,
        attempts: int = 6,
        first_delay_s: float = FIRST_DELAY_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if (links is None) != (approver is None):
            raise EdictumConfigError(
                "Webhook: links and approver belong together.",
                hint='Use links=ApprovalLinks(...), approver=Principal("ann").',
            )
        self._target = make_target(url, AllowedHosts(allowed_hosts), tls)
        self._key = read_key("Webhook", key, key_file)
        self._links, self._approver = links, approver
        self._template = body
        self._headers = _check_headers(headers or {})
        self._timeout_s, self._attempts, self._first_delay_s = timeout_s, attempts, first_delay_s
        _check_template(body, has_link=links is not None)
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Begin anew: in a forked child the messages are the parent's."""
        self._lock = threading.Lock()
        self._waiting: deque[WebhookMessage] = deque()
        self._undelivered: dict[int, WebhookMessage] = {}  # that senders have taken
        self._resting = 0  # senders that will try again later
        self._senders = 0

    def notify(self, request: QueuedApproval) -> None:
        """Queue a message about a request, and return at once."""
        message = WebhookMessage(
            request.approval_id, self._write(request), request.expires_at.timestamp()
        )
        with self._lock:
            is_full = len(self._waiting) >= MAX_UNSENT
            needs_sender = not is_full and self._senders < MAX_AT_ONCE
            self._senders += needs_sender
            if not is_full:
                self._waiting.append(message)
        if is_full:
            self._log_loss(message, f"{MAX_UNSENT} messages wait for it")
        if needs_sender:
            self._start_sender(message)

    def _start_sender(self, message: WebhookMessage) -> None:
        try:
            _SENDERS.start(self._send_all())
        except NotStarted as exc:  # the message waits for the next one
            with self._lock:
                self._senders -= 1
            self._log_loss(message, str(exc))

    async def close(self) -> None:
        """Wait for attempts that are being made, for as long as one may take. What was not
        delivered then is logged, and not tried again.
        """
        deadline = time.monotonic() + self._timeout_s
        while self._is_sending() and time.monotonic() < deadline:  # noqa: ASYNC110 - elsewhere
            await asyncio.sleep(0.01)
        with self._lock:
            self._undelivered.update((id(it), it) for it in self._waiting)
            self._waiting.clear()
            left = list(self._undelivered.values())
        for message in left:
            self._give_up(message, "the queue was closed before it was delivered")

    def _is_sending(self) -> bool:
        """Return whether an attempt is being made."""
        return self._senders > self._resting

    def _write(self, request: QueuedApproval) -> bytes:
        told = describe_request(request)
        if self._links is not None and self._approver is not None:
            told["link"] = self._links.make_link(request, self._approver)
        if self._template is not None:
            return dumps(_fill_in(self._template, told)).encode()
        return dumps({"type": MESSAGE_TYPE, "timestamp": told["asked_at"], "data": told}).encode()

    async def _send_all(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._senders -= 1
                    return
                message = self._waiting.popleft()
                self._undelivered[id(message)] = message
            try:
                await self._deliver(message)
            except Exception as exc:
                self._give_up(message, "sending it failed", exc)
            self._undelivered.pop(id(message), None)

    async def _deliver(self, message: WebhookMessage) -> None:
        """Try until the target accepts the message, or the message has become useless."""
        problem = ""
        for attempt in range(self._attempts):
            if attempt:
                await self._rest(min(self._first_delay_s * 2 ** (attempt - 1), MAX_DELAY_S))
            if id(message) not in self._undelivered:  # given up meanwhile
                return None
            if time.time() > message.useful_until:
                return self._give_up(message, f"its request has expired{problem}")
            status, reason = await self._try_once(message)
            if status is not None and 200 <= status < 300:
                return None
            problem = f"; {reason}"
            if status is not None and status < 500 and status not in TRY_AGAIN:
                return self._give_up(message, reason)
        return self._give_up(message, f"{self._attempts} attempts failed{problem}")

    async def _rest(self, delay_s: float) -> None:
        with self._lock:
            self._resting += 1
        try:
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.5))  # noqa: S311 - not a secret
        finally:
            with self._lock:
                self._resting -= 1

    def _give_up(self, message: WebhookMessage, reason: str, exc: Exception | None = None) -> None:
        """Log that a message is not delivered, once."""
        if self._undelivered.pop(id(message), None) is not None:
            self._log_loss(message, reason, exc)

    async def _try_once(self, message: WebhookMessage) -> tuple[int | None, str]:
        """Return the status of the target's answer, if there was one, and what is wrong."""
        try:
            async with asyncio.timeout(self._timeout_s):
                status = await post(self._target, self._sign(message), message.body)
        except RefusedAddress as exc:
            return 0, str(exc)
        except TimeoutError:
            return None, "it did not answer in time"
        except (OSError, BadReply, ssl.SSLError) as exc:
            return None, f"{type(exc).__name__}: {exc}"
        followed = " (redirects are not followed)" if 300 <= status < 400 else ""
        return status, f"it answered {status}{followed}"

    def _sign(self, message: WebhookMessage) -> dict[str, str]:
        at = str(int(time.time()))
        return {
            "Content-Type": "application/json",
            "User-Agent": "edictum",
            **self._headers,
            "webhook-id": message.id,
            "webhook-timestamp": at,
            "webhook-signature": _make_signature(self._key, message.id, at, message.body),
        }

    def _log_loss(self, message: WebhookMessage, reason: str, exc: Exception | None = None) -> None:
        host = self._target.host
        log(
            APPROVAL_NOT_NOTIFIED,
            "The webhook at %s was not told of the approval request %s: %s",
            host,
            message.id,
            reason,
            exc_info=exc,
            approval_id=message.id,
        )


def describe_request(request: QueuedApproval) -> dict[str, Any]:
    """Return a request as JSON-ready data; it has no secrets."""
    return {
        "approval_id": request.approval_id,
        "tool_name": request.tool_name,
        "tool_args": request.tool_args,
        "message": request.message,
        "contract": request.contract,
        "session_id": request.session_id,
        "call_id": request.call_id,
        "principal": request.principal,
        "asked_at": request.asked_at.isoformat(),
        "expires_at": request.expires_at.isoformat(),
        "precedent": request.precedent,
        "context": request.context,
    }


PLACEHOLDERS = (
    *("approval_id", "tool_name", "tool_args", "message", "contract", "session_id", "call_id"),
    *("principal", "asked_at", "expires_at", "precedent", "context", "link"),
)


def _check_template(template: Any, *, has_link: bool) -> None:
    if template is None:
        return
    if not isinstance(template, Mapping):
        hint = 'Use a mapping, such as {"text": "{tool_name}: {message}"}.'
        raise EdictumConfigError(f"Webhook: body is {type(template).__name__}.", hint=hint)
    for name in _PLACEHOLDER.findall(json.dumps(_map_texts(template, str))):
        if name not in PLACEHOLDERS:
            hint = f"Known: {', '.join(PLACEHOLDERS)}."
            raise EdictumConfigError(f"Webhook: {{{name}}} cannot be filled in.", hint=hint)
        if name == "link" and not has_link:
            hint = "Give links=ApprovalLinks(...) and an approver."
            raise EdictumConfigError("Webhook: there is no {link} to fill in.", hint=hint)


def _map_texts(value: Any, change: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _map_texts(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(inner, change) for inner in value]
    return change(value) if isinstance(value, str) else value


def _fill_in(template: Mapping[str, Any], told: Mapping[str, Any]) -> Any:
    """Return the template with its names filled in. A text that is only one name becomes the value
    itself.
    """

    def fill(text: str) -> Any:
        return _PLACEHOLDER.sub(lambda found: _shorten(told[found[1]], found[1]), text)

    return _map_texts(template, fill)


def _shorten(value: Any, name: str) -> str:
    text = value if isinstance(value, str) else "" if value is None else dumps(value)
    if name == "link" or len(text) <= MAX_FILLED_CHARS:
        return text
    return f"{text[: MAX_FILLED_CHARS - 3]}..."


def _check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    for name, text in headers.items():
        if not _HEADER.fullmatch(name) or not _is_line(text):
            hint = "Use names of letters and dashes, and texts of one line."
            raise EdictumConfigError(
                f"Webhook: the header {name!r:.80} is not a valid header.", hint=hint
            )
    return dict(headers)


def _is_line(text: Any) -> bool:
    return isinstance(text, str) and text.isascii() and text.isprintable()


def _make_signature(key: bytes, message_id: str, at: str, body: bytes) -> str:
    signed = sign(key, f"{message_id}.{at}.".encode() + body)
    return f"v1,{base64.b64encode(signed).decode()}"


def verify_webhook(
    headers: Mapping[str, str],
    body: bytes,
    *,
    key: bytes | str | None = None,
    key_file: str | Path | None = None,
    tolerance_s: float = TOLERANCE_S,
) -> str:
    """Return the id of a message that a Webhook has sent: the same one may come more than once.

    Raises EdictumInputError when the signature is wrong, or older than ``tolerance_s`` seconds.
    """
    given = {name.lower(): text for name, text in headers.items()}
    message_id, at = given.get("webhook-id", ""), given.get("webhook-timestamp", "")
    expected = _make_signature(read_key("verify_webhook", key, key_file), message_id, at, body)
    signatures = given.get("webhook-signature", "").split()
    if not any(hmac.compare_digest(expected.encode(), each.encode()) for each in signatures):
        raise EdictumInputError("The signature of the webhook is wrong.", hint="Answer with 401.")
    if not at.isdigit() or abs(time.time() - int(at)) > tolerance_s:
        raise EdictumInputError("The webhook's timestamp is too old.", hint="Answer with 401.")
    return message_id
