"""An ASGI app for the people who answer: a page for each request, and a JSON API.

Mount it in FastAPI or Starlette, or serve it alone::

    app.mount("/approvals", ApprovalApp(queue, links))

A person comes by a link of ``ApprovalLinks``, which says who they are. ``identify`` is for an
application that knows its users itself.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, TypeAlias

from edictum._logs import APPROVAL_FAILED, APPROVAL_REFUSED, log
from edictum.approval._exchange import (
    HTML,
    JSON,
    GivenForm,
    HttpRefusal,
    PageExchange,
    PageResponse,
    Receive,
    RefusedAnswer,
    Scope,
    Send,
    answer_lifespan,
    make_json_response,
    read_answer_form,
    read_answers,
    read_query,
    send_response,
)
from edictum.approval._page import write_request_page
from edictum.approval.links import ApprovalLinks, LinkRefused, Token
from edictum.approval.queue import ApprovalQueue, QueuedApproval
from edictum.approval.webhook import describe_request
from edictum.audit._ports import PORTS
from edictum.audit.sinks import AuditSink
from edictum.core._records import replace
from edictum.core.call import Principal
from edictum.core.decision import USER_ERRORS
from edictum.core.events import refusal_event
from edictum.errors import EdictumError, EdictumInputError

NOT_FOUND = "This link is not valid. It may have expired. Ask for a new one."
UNAVAILABLE = "The approvals cannot be reached now. Try again."
FORM = "application/x-www-form-urlencoded"
Identify: TypeAlias = Callable[[Scope], Principal | Awaitable[Principal | None] | None]


class ApprovalApp:
    """Serves pages (``/t/<token>``, ``/requests/<id>``) and the API (``/api/...``). A program that
    accepts ``application/json`` gets what a page says as JSON.

    ``identify`` is a function of the ASGI scope that returns the ``Principal`` of a user whom the
    application knows, or None; without it people come by links alone. Refusals are logged, and
    recorded by an ``audit_sink`` as ``approval_refused``.
    """

    def __init__(
        self,
        queue: ApprovalQueue,
        links: ApprovalLinks,
        *,
        identify: Identify | None = None,
        audit_sink: AuditSink | None = None,
    ) -> None:
        self._queue, self._links, self._identify = queue, links, identify
        self._sink = None if audit_sink is None else PORTS.find(audit_sink)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await answer_lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            response = await self._respond(PageExchange(scope, receive))
            await send_response(scope, response, send)

    async def _respond(self, exchange: PageExchange) -> PageResponse:
        try:
            response = await self._route(exchange)
        except LinkRefused as exc:
            response = exchange.refuse(404, NOT_FOUND, RefusedAnswer(exc.reason, exc.approval_id))
        except HttpRefusal as exc:
            response = exchange.refuse(exc.status, exc.text, RefusedAnswer(exc.reason))
        except EdictumError as exc:
            log(APPROVAL_FAILED, "The approval pages failed: %s", exc, exc_info=exc)
            response = exchange.refuse(503, UNAVAILABLE)
        if response.refused is not None:
            await self._note_refusal(exchange, response.refused)
        return response

    async def _route(self, exchange: PageExchange) -> PageResponse:
        kind, _, rest = exchange.path.strip("/").partition("/")
        routes: dict[tuple[str, str], Callable[[PageExchange, str], Awaitable[PageResponse]]] = {
            ("GET", "t"): self._show_by_link,
            ("POST", "t"): self._answer_by_link,
            ("GET", "requests"): self._show_to_user,
            ("GET", "api"): self._read,
            ("POST", "api"): self._answer_many,
        }
        method = "GET" if exchange.method == "HEAD" else exchange.method
        route = routes.get((method, kind))
        if route is not None:
            return await route(exchange, rest)
        if any(name == kind for _, name in routes):
            raise HttpRefusal(405, "This method is not allowed here.", "method")
        raise HttpRefusal(404, NOT_FOUND, "path")

    # --- Pages ------------------------------------------------------------------------------------

    async def _show_by_link(self, exchange: PageExchange, token_text: str) -> PageResponse:
        token = self._links.read_token(token_text)
        request = await self._find(token.approval_id)
        return _make_page(exchange, request, token.approver, token_text)

    async def _show_to_user(self, exchange: PageExchange, approval_id: str) -> PageResponse:
        """Show a request to a user whom the application knows; the form has a link of their own."""
        approver = await self._identify_user(exchange)
        request = await self._find(approval_id)
        token = self._links.make_token(request, approver)
        return _make_page(exchange, request, approver, token)

    async def _answer_by_link(self, exchange: PageExchange, token_text: str) -> PageResponse:
        token = self._links.read_token(token_text)
        said = read_answer_form(await exchange.read_body(FORM))
        await self._find(token.approval_id)
        try:
            request, notice = await self._answer(token, said), "Your answer is recorded."
        except EdictumInputError as exc:
            request, notice = await self._find(token.approval_id), str(exc)
            page = _make_page(exchange, request, token.approver, token_text, notice)
            refused = RefusedAnswer("answer", token.approval_id, token.approver.user_id)
            return replace(page, status=409, refused=refused)
        return _make_page(exchange, request, token.approver, token_text, notice)

    async def _find(self, approval_id: str) -> QueuedApproval:
        request = await self._queue.get(approval_id)
        if request is None:
            raise LinkRefused("unknown", approval_id)
        return request

    async def _answer(self, who: Token, said: GivenForm) -> QueuedApproval:
        return await self._queue.answer(
            who.approval_id,
            said.approved,
            approver=who.approver,
            reason=said.reason,
            args=said.args,
            grant=said.grant,
            nonce=who.nonce,
        )

    # --- The API ----------------------------------------------------------------------------------

    async def _read(self, exchange: PageExchange, path: str) -> PageResponse:
        kind, _, approval_id = path.partition("/")
        if kind != "requests":
            raise HttpRefusal(404, NOT_FOUND, "path")
        await self._identify_user(exchange)
        if approval_id:
            return make_json_response(200, describe_state(await self._find(approval_id)))
        listed = await self._queue.pending(**read_query(exchange.query))
        return make_json_response(
            200, {"requests": [describe_state(request) for request in listed]}
        )

    async def _answer_many(self, exchange: PageExchange, path: str) -> PageResponse:
        """Answer several requests. Each has its own result; one that fails does not stop the
        others.
        """
        if path != "answers":
            raise HttpRefusal(404, NOT_FOUND, "path")
        exchange.check_origin()
        answers = read_answers(await exchange.read_body(JSON))
        is_linked = self._identify is None or all(it.token is not None for it in answers)
        user = None if is_linked else await self._identify_user(exchange)
        results = [await self._answer_one(exchange, user, each) for each in answers]
        return make_json_response(200, {"results": results})

    async def _answer_one(
        self, exchange: PageExchange, user: Principal | None, said: GivenForm
    ) -> dict[str, Any]:
        who = None
        try:
            who = self._find_approver(user, said)
            await self._find(who.approval_id)
            request = await self._answer(who, said)
        except LinkRefused as exc:
            refused, text = RefusedAnswer(exc.reason, exc.approval_id), NOT_FOUND
        except EdictumInputError as exc:
            assert who is not None
            refused = RefusedAnswer("answer", who.approval_id, who.approver.user_id)
            text = str(exc)
        except EdictumError as exc:
            log(APPROVAL_FAILED, "The approval pages failed: %s", exc, exc_info=exc)
            return {"approval_id": said.approval_id, "error": UNAVAILABLE}
        else:
            return {"approval_id": request.approval_id, "status": request.status}
        await self._note_refusal(exchange, refused)
        return {"approval_id": refused.approval_id or said.approval_id, "error": text}

    def _find_approver(self, user: Principal | None, said: GivenForm) -> Token:
        """Return the person who answers: that of the link, or the user of the application."""
        if said.token is not None:
            return self._links.read_token(said.token)
        if user is None or said.approval_id is None:
            raise LinkRefused("no identity", said.approval_id)
        return Token(said.approval_id, user, 0.0, None)

    async def _note_refusal(self, exchange: PageExchange, refused: RefusedAnswer) -> None:
        """Log and record a refusal. The log has it even if the audit fails."""
        reason, approval_id, approver = refused.reason, refused.approval_id, refused.approver
        where = f"{exchange.method} {exchange.route}"
        log(
            APPROVAL_REFUSED,
            "Refused at the approval pages: %s (%s)",
            reason,
            where,
            reason=reason,
            approval_id=approval_id,
            approver=approver,
            client=exchange.client,
        )
        if self._sink is None:
            return
        text = f"Refused at the approval pages: {reason} ({where}, from {exchange.client})."
        try:
            written = self._sink.emit(refusal_event(time.time(), approval_id, approver, text))
            if isawaitable(written):
                await written
        except USER_ERRORS as exc:
            self._sink.note_failure(exc)
        else:
            if self._sink.failures and not self._sink.drops:
                self._sink.note_success()

    async def _identify_user(self, exchange: PageExchange) -> Principal:
        found = self._identify(exchange.scope) if self._identify is not None else None
        user = await found if isawaitable(found) else found
        if user is None or not user.user_id:
            raise HttpRefusal(401, "Who are you? Log in, or use a link.", "no identity")
        return user


def describe_state(request: QueuedApproval) -> dict[str, Any]:
    """Return a request and its state, as JSON-ready data."""
    return {
        **describe_request(request),
        "status": request.status,
        "timeout_effect": request.timeout_effect,
        "approver": request.approver,
        "reason": request.reason,
        "approvers": request.approvers,
        "answers": [{"approver": it.approver, "reason": it.reason} for it in request.answers],
        "changed_args": request.changed_args,
        "grant_id": request.grant_id,
    }


def _make_page(
    exchange: PageExchange,
    request: QueuedApproval,
    approver: Principal,
    token: str,
    notice: str = "",
) -> PageResponse:
    if exchange.wants_json:
        return make_json_response(200, {**describe_state(request), "notice": notice})
    return PageResponse(
        200, HTML, write_request_page(request, approver, exchange.link(token), notice)
    )
