"""The approval pages: a link says who answers; everything else is refused, logged, and told nothing."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from edictum import (
    CollectingAuditSink,
    Edictum,
    EdictumInputError,
    Principal,
    ToolDenied,
    ToolExecutionResult,
)
from edictum.approval import (
    ApprovalLinks,
    ApprovalQueue,
    Approvers,
    QueuedApproval,
    open_approvals,
)
from edictum.approval.asgi import ApprovalApp
from support.asgi import Reply, call_app
from support.guards import approval_contract

KEY = "k" * 32
ANN = Principal("ann", role="ops", claims={"team": "red"})
FORM = {"content-type": "application/x-www-form-urlencoded"}
JSON = {"content-type": "application/json"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e"


class Clock:
    def __init__(self) -> None:
        self.offset = 0.0

    def __call__(self) -> float:
        import time

        return time.time() + self.offset


class Site:
    """A queue with requests, its pages, and a guard that asks."""

    def __init__(self, queue: ApprovalQueue, links: ApprovalLinks, clock: Clock) -> None:
        self.queue, self.links, self.clock = queue, links, clock
        self.app = ApprovalApp(queue, links)
        self.guard = Edictum(contracts=[approval_contract(timeout=600)], approval_backend=queue)

    async def ask(self, **args: Any) -> QueuedApproval:
        """Return a request of which a call is not waiting."""
        asked = await self.queue.request_approval("t", args, "sure?", session_id="s")
        found = await self.queue.get(asked.approval_id)
        assert found is not None
        return found

    def path(self, request: QueuedApproval, who: Principal = ANN) -> str:
        return f"/t/{self.links.make_token(request, who)}"

    async def get(self, path: str, **options: Any) -> Reply:
        return await call_app(options.pop("app", self.app), "GET", path, **options)

    async def post(self, path: str, **fields: str) -> Reply:
        return await call_app(self.app, "POST", path, headers=FORM, body=urlencode(fields).encode())

    async def read(self, request: QueuedApproval) -> QueuedApproval:
        found = await self.queue.get(request.approval_id)
        assert found is not None
        return found


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    clock = Clock()
    links = ApprovalLinks("https://ops.example/approvals/", key=KEY, clock=clock)
    queue = open_approvals(f"sqlite:///{tmp_path / 'approvals.db'}")
    yield Site(queue, links, clock)
    await queue.close()


@pytest.fixture
def refused(caplog: pytest.LogCaptureFixture) -> Any:
    """Return the reasons of what was refused, as the log has them."""
    caplog.set_level(logging.INFO, "edictum")

    def read() -> list[str]:
        found = [
            it for it in caplog.records if it.__dict__.get("edictum_event") == "approval.refused"
        ]
        assert all(it.__dict__["client"] == "192.0.2.1" for it in found)
        return [it.__dict__["reason"] for it in found]

    return read


class Page(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.words = ""
        self.feed(reply.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.append(dict(attrs))

    def handle_data(self, data: str) -> None:
        self.words += data


# --- Answers --------------------------------------------------------------------------------------


async def test_a_yes_by_the_page_runs_the_call(site: Site) -> None:
    """The audit names the person whom the link was made for."""
    running = asyncio.ensure_future(site.guard.dispatch("t", {"x": 1}, lambda x: x))
    while not (pending := await site.queue.pending()):  # noqa: ASYNC110 - a store
        await asyncio.sleep(0.005)
    page = await site.get(site.path(pending[0]))
    assert page.status == 200
    assert "You answer as ann." in Page(page).words
    reply = await site.post(site.path(pending[0]), answer="approve", reason="fine")
    assert reply.status == 200
    assert "Your answer is recorded." in Page(reply).words
    assert isinstance(await running, ToolExecutionResult)
    assert site.guard.local_sink.events[1].approver == "ann"


async def test_a_no_by_the_page_has_its_reason(site: Site) -> None:
    """The agent is told what the person has written."""
    running = asyncio.ensure_future(site.guard.dispatch("t", {}, lambda: 1))
    while not (pending := await site.queue.pending()):  # noqa: ASYNC110 - a store
        await asyncio.sleep(0.005)
    await site.post(site.path(pending[0]), answer="deny", reason="not on a Friday")
    outcome = await running
    assert isinstance(outcome, ToolDenied)
    assert outcome.details == "not on a Friday"


async def test_looking_changes_nothing(site: Site) -> None:
    """Programs that preview links open them too."""
    request = await site.ask()
    for method in ("GET", "HEAD"):
        reply = await call_app(site.app, method, site.path(request))
        assert reply.status == 200
        assert bool(reply.body) == (method == "GET")
    assert (await site.read(request)).status == "pending"


async def test_the_app_below_a_mount(site: Site) -> None:
    """The form leads back to where the app is mounted, whether or not the path is cut off."""
    request = await site.ask()
    page = Page(await site.get(site.path(request), root_path="/ops/approvals"))
    action = next(it["action"] for it in page.attributes if "action" in it)
    assert str(action).startswith("/ops/approvals/t/")
    assert site.links.make_link(request, ANN).startswith("https://ops.example/approvals/t/")


async def ask_two(site: Site) -> QueuedApproval:
    """Return a request that two persons of the role ops must approve."""
    approvers = Approvers(roles=["ops"], count=2).as_dict()
    metadata = {"digest": "d", "call_id": "c", "askers": ["ask"], "approvers": [approvers]}
    asked = await site.queue.request_approval(
        "t", {"x": 1}, "sure?", metadata=metadata, session_id="s"
    )
    found = await site.queue.get(asked.approval_id)
    assert found is not None
    return found


async def test_a_link_answers_once_even_where_more_answers_are_wanted(
    site: Site, refused: Any
) -> None:
    """A link that was read by another cannot change what its owner has said with it."""
    request = await ask_two(site)
    mine = site.path(request)
    page = await site.post(mine, answer="approve")
    assert "2 persons must say yes; so far: ann." in Page(page).words
    for answer in ({"answer": "deny"}, {"answer": "change", "args": '{"x": 2}'}):
        reply = await site.post(mine, **answer)
        assert reply.status == 409
        assert "answered by this link before" in Page(reply).words
    new = site.path(request)  # a new link lets ann say it again, and that counts once
    assert (await site.post(new, answer="approve")).status == 200
    assert (await site.read(request)).status == "pending"
    assert (await site.post(mine, answer="deny")).status == 409
    guest = await site.post(site.path(request, Principal("eve", role="guest")), answer="approve")
    assert guest.status == 409
    bob = site.path(request, Principal("bob", role="ops"))
    assert (await site.post(bob, answer="approve")).status == 200
    ended = await site.read(request)
    assert (ended.status, ended.approver) == ("approved", "ann, bob")
    assert refused() == ["answer"] * 4


async def test_a_grant_by_the_page(site: Site) -> None:
    """The next call is not asked about; the JSON API gives one too."""
    for number, send in enumerate(("page", "api")):
        session = f"session-{number}"
        call = {"x": 1, "y": "a"}
        running = asyncio.ensure_future(
            site.guard.dispatch("t", call, lambda **_: 1, session_id=session)
        )
        while not (pending := await site.queue.pending()):  # noqa: ASYNC110 - a store
            await asyncio.sleep(0.005)
        if send == "page":
            fields = {"grant": "session", "grant_args": "any", "grant_for": "900"}
            reply = await site.post(site.path(pending[0]), answer="approve", **fields)
        else:
            token = site.links.make_token(pending[0], ANN)
            grant = {"scope": "session", "args": {"y": "*"}, "for_s": 60}
            reply = await send_answers(site.app, {"token": token, "approved": True, "grant": grant})
        assert reply.status == 200, reply.text
        await running
        again = await site.guard.dispatch(
            "t", {"x": 1, "y": "b"}, lambda **_: 2, session_id=session
        )
        assert isinstance(again, ToolExecutionResult)
        assert len(await site.queue.grants(session_id=session)) == 1
    assert site.guard.stats().prompts == 2


async def test_changed_arguments_by_the_page(site: Site) -> None:
    """The tool gets what the person has written; secrets that were not shown stay."""
    call = {"amount": 480, "password": "hunter2-hunter2"}
    running = asyncio.ensure_future(site.guard.dispatch("t", call, lambda **given: given))
    while not (pending := await site.queue.pending()):  # noqa: ASYNC110 - a store
        await asyncio.sleep(0.005)
    page = await site.get(site.path(pending[0]))
    assert "hunter2" not in page.text
    args = json.dumps({"amount": 48, "password": "[REDACTED]"})
    reply = await site.post(site.path(pending[0]), answer="change", args=args)
    assert reply.status == 200
    outcome = await running
    assert isinstance(outcome, ToolExecutionResult)
    changed = next(it for it in site.guard.local_sink.events if it.action == "call_executed")
    assert changed.tool_args["amount"] == 48


# --- Links that do not count ----------------------------------------------------------------------


def forge(token: str) -> list[str]:
    """Return tokens that somebody may try."""
    body, _, signature = token.partition(".")
    said = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    said["who"]["user_id"] = "eve"
    other = base64.urlsafe_b64encode(json.dumps(said).encode()).rstrip(b"=").decode()
    stranger = ApprovalLinks("https://x.example", key="j" * 32)
    return [
        f"{other}.{signature}",
        f"{body}.",
        body,
        "",
        f"{body}.{signature[:-2]}",
        f"{body}.{signature}=",
        f"{token}.x",
        f"{body}é.{signature}",
        "a" * 100_000,
        f"{body}.{stranger.make_token.__name__}",
    ]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_forged_expired_and_unknown_links_look_the_same(
    site: Site, refused: Any, method: str, tmp_path: Path
) -> None:
    """One answer for all, so that it cannot be told what exists."""
    request = await site.ask()
    genuine = site.links.make_token(request, ANN)
    elsewhere = open_approvals(f"sqlite:///{tmp_path / 'other.db'}")
    unknown = await elsewhere.request_approval("t", {}, "?")
    found = await elsewhere.get(unknown.approval_id)
    assert found is not None
    forged = forge(genuine)
    tokens = [*forged, site.links.make_token(found, ANN)]
    body = urlencode({"answer": "approve"}).encode()
    replies = [
        await call_app(site.app, method, f"/t/{token}", headers=FORM, body=body) for token in tokens
    ]
    site.clock.offset = 700.0
    replies.append(await call_app(site.app, method, f"/t/{genuine}", headers=FORM, body=body))
    assert {reply.status for reply in replies} == {404}
    assert len({reply.body for reply in replies}) == 1
    assert len({tuple(reply.headers.items()) for reply in replies}) == 1
    assert refused() == ["forged"] * len(forged) + ["unknown", "expired"]
    assert (await site.read(request)).status == "pending"
    await elsewhere.close()


async def test_a_link_ends_with_its_time(tmp_path: Path) -> None:
    """Or with that of its request, if that is shorter."""
    clock = Clock()
    links = ApprovalLinks("https://ops.example", key=KEY, valid_s=60, clock=clock)
    queue = open_approvals(f"sqlite:///{tmp_path / 'approvals.db'}")
    for timeout, end in [(600.0, 60.0), (20.0, 20.0)]:
        asked = await queue.request_approval("t", {}, "?", timeout=timeout)
        found = await queue.get(asked.approval_id)
        assert found is not None
        token = links.read_token(links.make_token(found, ANN))
        assert token.expires_at == pytest.approx(clock() + end, abs=30)
        assert token.expires_at <= clock() + end
    await queue.close()


async def test_a_replayed_answer_is_refused(site: Site, refused: Any) -> None:
    """By the same link and by another one; the first answer stands."""
    request = await site.ask()
    path = site.path(request)
    assert (await site.post(path, answer="approve")).status == 200
    for again in (path, path, site.path(request, Principal("bob"))):
        reply = await site.post(again, answer="deny")
        assert reply.status == 409
        assert "not pending any more" in Page(reply).words
    assert refused() == ["answer"] * 3
    ended = await site.read(request)
    assert (ended.status, ended.approver) == ("approved", "ann")


async def test_links_are_for_people(site: Site) -> None:
    """With an identity, and one that fits into a link."""
    request = await site.ask()
    for who in (Principal(), Principal(service_id="ci"), "ann"):
        with pytest.raises(EdictumInputError, match="not a Principal with a user_id"):
            site.links.make_token(request, who)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(EdictumInputError, match="fewer claims"):
        site.links.make_token(request, Principal("ann", claims={"x": "y" * 5_000}))
    with pytest.raises(EdictumInputError, match="cannot be put into a link"):
        site.links.make_token(request, Principal("ann", claims={"x": {1, 2}}))
    assert site.links.read_token(site.links.make_token(request, ANN)).approver == ANN


async def test_refusals_are_in_the_audit(site: Site) -> None:
    """With the request, and who it was where that is known; a sink that fails changes nothing."""
    sink = CollectingAuditSink()
    app = ApprovalApp(site.queue, site.links, audit_sink=sink)
    request = await ask_two(site)
    eve = site.links.make_token(request, Principal("eve", role="guest"))
    body = urlencode({"answer": "approve"}).encode()
    await call_app(app, "POST", f"/t/{eve}", headers=FORM, body=body)
    await send_answers(app, {"token": eve, "approved": True}, {"token": "x", "approved": True})
    await call_app(app, "GET", "/t/forged")
    events = [(it.action, it.approval_id, it.approver) for it in sink.events]
    known = ("approval_refused", request.approval_id, "eve")
    assert events == [known, known, *[("approval_refused", None, None)] * 2]
    assert "forged" in str(sink.last().reason)
    assert "192.0.2.1" in str(sink.last().reason)

    class Broken:
        is_broken = True

        async def emit(self, event: Any) -> None:
            if self.is_broken:
                raise OSError("disk full")

    broken = Broken()
    app, guard = ApprovalApp(site.queue, site.links, audit_sink=broken), Edictum(audit_sink=broken)
    assert (await call_app(app, "GET", "/t/forged")).status == 404
    assert not (await guard.check())["audit"].ok
    broken.is_broken = False
    await call_app(app, "GET", "/t/forged")
    assert (await guard.check())["audit"].ok


# --- Requests that are not well formed ------------------------------------------------------------


async def test_large_bodies_are_not_read(site: Site, refused: Any) -> None:
    """10 MB with a length: not a byte is read. Without one: no more than shows that it is large."""
    request = await site.ask()
    chunk = b"x" * 10_000
    stated = await call_app(
        site.app, "POST", site.path(request), headers={**FORM, "content-length": "10000000"}
    )
    streamed = await call_app(
        site.app, "POST", site.path(request), headers=FORM, chunks=[chunk] * 1_000
    )
    api = await call_app(site.app, "POST", "/api/answers", headers=JSON, chunks=[chunk] * 1_000)
    assert (stated.status, stated.chunks_read) == (413, 0)
    assert (streamed.status, streamed.chunks_read) == (413, 7)
    assert (api.status, api.chunks_read) == (413, 7)
    assert refused() == ["too large"] * 3
    assert (await site.read(request)).status == "pending"


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (FORM, b"", 400),
        (FORM, b"answer=maybe", 400),
        (FORM, b"answer=deny&answer=approve", 400),
        (FORM, b"answer=change&args=not+json", 400),
        (FORM, b"answer=change&args=5", 400),
        (FORM, b"answer=change&args=" + b"%5B" * 10_000, 400),
        (FORM, b"answer=approve&grant=everything", 400),
        (FORM, b"answer=approve&grant=session&grant_for=soon", 400),
        (FORM, b"answer=approve&grant=session&grant_for=1e999", 400),
        (FORM, b"answer=approve&approver=eve", 400),
        (FORM, b"answer=approve&reason=" + b"x" * 1_001, 400),
        (FORM, b"\xff\xfe", 400),
        (FORM, b"&".join(b"a=1" for _ in range(30)), 400),
        (JSON, b'{"answer": "approve"}', 415),
        ({}, b"answer=approve", 415),
        ({**FORM, "content-length": "many"}, b"answer=approve", 413),
        ({**FORM, "content-length": "9" * 10_000}, b"answer=approve", 413),
    ],
)
async def test_forms_that_cannot_be_read(
    site: Site, headers: dict[str, str], body: bytes, status: int
) -> None:
    """Nothing is answered."""
    request = await site.ask()
    reply = await call_app(site.app, "POST", site.path(request), headers=headers, body=body)
    assert reply.status == status
    assert (await site.read(request)).status == "pending"


async def test_a_form_that_breaks_off_is_not_an_answer(site: Site) -> None:
    """Not even if what came of it could be read."""
    request = await site.ask()
    reply = await call_app(
        site.app,
        "POST",
        site.path(request),
        headers=FORM,
        chunks=[b"answer=approve"],
        disconnects=True,
    )
    assert reply.status == 400
    assert (await site.read(request)).status == "pending"


@pytest.mark.parametrize(
    "path", ["/", "/t", "/nothing", "/requests/x", "/api", "/api/x", "/../t/x"]
)
async def test_other_paths_tell_nothing(site: Site, path: str) -> None:
    """Without a link or an identity there is nothing to see."""
    reply = await site.get(path)
    assert reply.status in (401, 404)


async def test_other_methods_are_refused(site: Site) -> None:
    """Only looking and posting are known."""
    for method in ("PUT", "DELETE", "OPTIONS"):
        assert (await call_app(site.app, method, "/t/x")).status == 405


async def test_a_store_that_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A page says so, and nothing of why."""
    (tmp_path / "folder").mkdir()
    queue = open_approvals(f"sqlite:///{tmp_path / 'folder'}?wait=0.1")
    app = ApprovalApp(queue, ApprovalLinks("https://x.example", key=KEY), identify=lambda _: ANN)
    reply = await call_app(app, "GET", "/api/requests")
    assert reply.status == 503
    assert str(tmp_path) not in reply.text
    reply = await send_answers(app, {"approval_id": "x", "approved": True})
    assert "cannot be reached" in reply.json["results"][0]["error"]
    assert "approval.page_failed" in [it.__dict__.get("edictum_event") for it in caplog.records]
    await queue.close()


# --- What a page is -------------------------------------------------------------------------------


async def test_everything_is_escaped(site: Site) -> None:
    """Whatever the model writes, it stays text."""
    asked = await site.queue.request_approval(
        HOSTILE,
        {HOSTILE: [HOSTILE, {"a": HOSTILE}]},
        HOSTILE,
        principal={"user_id": HOSTILE},
        session_id="s",
        metadata={"contract": HOSTILE, "call_id": HOSTILE},
    )
    request = await site.queue.get(asked.approval_id)
    assert request is not None
    who = Principal(HOSTILE)
    pages = [await site.get(site.path(request, who))]
    pages.append(await site.post(site.path(request, who), answer="deny", reason=HOSTILE))
    pages.append(await site.get(site.path(request, who)))
    for reply in pages:
        page = Page(reply)
        assert not {"script", "img"} & set(page.tags)
        assert not any(name.startswith("on") for each in page.attributes for name in each)
        assert "\u202e" not in reply.text
        assert "alert(1)" in page.words


async def test_headers_are_strict(site: Site) -> None:
    """No script, no frame, no cache, no referrer, on every answer."""
    request = await site.ask()
    for path in (site.path(request), "/t/x", "/api/requests"):
        headers = (await site.get(path)).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"


# --- The API --------------------------------------------------------------------------------------


def make_api(site: Site, who: Principal | None = ANN) -> ApprovalApp:
    async def identify(scope: Any) -> Principal | None:
        return who

    return ApprovalApp(site.queue, site.links, identify=identify)


async def send_answers(app: ApprovalApp, *answers: Any, **headers: str) -> Reply:
    body = json.dumps({"answers": answers}).encode()
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return await call_app(app, "POST", "/api/answers", headers={**JSON, **given}, body=body)


async def test_the_api_lists_and_shows(site: Site) -> None:
    """With filters and pages, for a user whom the application knows."""
    requests = [await site.ask(n=n) for n in range(3)]
    app = make_api(site)
    listed = (await site.get("/api/requests?limit=2&session_id=s", app=app)).json["requests"]
    assert [it["approval_id"] for it in listed] == [it.approval_id for it in requests[:2]]
    more = await site.get(f"/api/requests?after={requests[1].approval_id}", app=app)
    assert [it["tool_args"] for it in more.json["requests"]] == [{"n": 2}]
    one = await site.get(f"/api/requests/{requests[0].approval_id}", app=app)
    assert (one.json["status"], one.json["message"]) == ("pending", "sure?")
    assert (await site.get("/api/requests/unknown", app=app)).status == 404
    for query in ("limit=x", "limit=0", "limit=-1", "password=1"):
        assert (await site.get(f"/api/requests?{query}", app=app)).status == 400


async def test_several_answers_at_once(site: Site, refused: Any) -> None:
    """Each has its own result, and one that is refused stops no other."""
    requests = [await site.ask(n=n) for n in range(3)]
    ids = [it.approval_id for it in requests]
    reply = await send_answers(
        make_api(site),
        {"approval_id": ids[0], "approved": True},
        {"approval_id": "unknown", "approved": True},
        {"approval_id": ids[1], "approved": False, "reason": "no"},
        {"approval_id": ids[0], "approved": False},
        {"token": site.links.make_token(requests[2], Principal("bob")), "approved": True},
        {"token": "forged", "approved": True},
    )
    assert reply.status == 200
    results = reply.json["results"]
    assert [it.get("status") for it in results] == [
        "approved",
        None,
        "denied",
        None,
        "approved",
        None,
    ]
    assert refused() == ["unknown", "answer", "forged"]
    ended = [await site.read(request) for request in requests]
    assert [(it.status, it.approver) for it in ended] == [
        ("approved", "ann"),
        ("denied", "ann"),
        ("approved", "bob"),
    ]


async def test_the_api_without_an_identity(site: Site) -> None:
    """Nothing is listed and nothing answered; a token is an identity of its own."""
    request = await site.ask()
    for app in (site.app, make_api(site, None), make_api(site, Principal(role="ops"))):
        assert (await site.get("/api/requests", app=app)).status == 401
        assert (await site.get(f"/api/requests/{request.approval_id}", app=app)).status == 401
        assert (await site.get(f"/requests/{request.approval_id}", app=app)).status == 401
    reply = await send_answers(site.app, {"approval_id": request.approval_id, "approved": True})
    assert "error" in reply.json["results"][0]
    assert (await site.read(request)).status == "pending"
    unknown = make_api(site, None)
    both = ({"token": "x", "approved": True}, {"approval_id": "x", "approved": True})
    assert (await send_answers(unknown, *both)).status == 401
    for app in (site.app, unknown):
        request = await site.ask()
        token = site.links.make_token(request, ANN)
        assert (await send_answers(app, {"token": token, "approved": True})).status == 200
        assert (await site.read(request)).status == "approved"


async def test_a_page_of_another_site_cannot_answer(site: Site, refused: Any) -> None:
    """Neither by a form, which cannot send JSON, nor by a script."""
    request = await site.ask()
    app, answer = make_api(site), {"approval_id": request.approval_id, "approved": True}
    assert (await send_answers(app, answer, sec_fetch_site="cross-site")).status == 403
    assert (await send_answers(app, answer, origin="http://evil.example")).status == 403
    assert (await send_answers(app, answer, content_type="text/plain")).status == 415
    assert refused() == ["origin", "origin", "content type"]
    assert (await site.read(request)).status == "pending"
    assert (await send_answers(app, answer, sec_fetch_site="same-origin")).status == 200


async def test_the_page_for_a_user_of_the_application(site: Site) -> None:
    """Its form carries a token for this user, so another site cannot post it."""
    request = await site.ask()
    page = Page(await site.get(f"/requests/{request.approval_id}", app=make_api(site)))
    action = str(next(it["action"] for it in page.attributes if "action" in it))
    assert (await site.post(action, answer="approve")).status == 200
    assert (await site.read(request)).approver == "ann"
    assert (await site.get("/requests/unknown", app=make_api(site))).status == 404


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{}",
        b'{"answers": []}',
        b'{"answers": [{"approval_id": "x"}]}',
        b'{"answers": [{"approval_id": 5, "approved": true}]}',
        b'{"answers": [{"approval_id": "x", "approved": "yes"}]}',
        b'{"answers": [5]}',
        b'{"answers": [{"approval_id": "x", "approved": true, "approver": "eve"}]}',
        b'{"answers": [{"approval_id": "x", "approved": true, "grant": {"scope": "session"}}]}',
        b'{"answers": [{"approval_id": "x", "approved": true, "grant": {"for_s": {}}}]}',
        b"not json",
        b"[" * 50_000,
        json.dumps({"answers": [{"approval_id": "x", "approved": True}] * 101}).encode(),
    ],
)
async def test_answers_that_cannot_be_read(site: Site, body: bytes) -> None:
    """All are refused together, and none is taken."""
    reply = await call_app(make_api(site), "POST", "/api/answers", headers=JSON, body=body)
    assert reply.status == 400


# --- Servers --------------------------------------------------------------------------------------


async def test_a_server_that_tells_when_it_starts_and_stops(site: Site) -> None:
    """The app answers it, and closes a websocket."""
    given = iter(["lifespan.startup", "lifespan.shutdown"])
    sent: list[str] = []

    async def receive() -> dict[str, str]:
        return {"type": next(given)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])

    await site.app({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    sent.clear()
    await site.app({"type": "websocket"}, receive, send)
    assert sent == ["websocket.close"]
