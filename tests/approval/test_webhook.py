"""The webhook: signed, tried again, sent nowhere else, and never in the way of a call."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from edictum import Edictum, EdictumConfigError, EdictumInputError, Principal, ToolDenied
from edictum.approval import ApprovalLinks, QueuedApproval, Webhook, open_approvals, verify_webhook
from edictum.approval._https import AllowedHosts, RefusedAddress
from support.guards import approval_contract
from support.waiting import wait_in_loop, wait_until

KEY = "k" * 32
LOOPBACK = ["127.0.0.1"]
NEVER_S = 3_600.0


class Target:
    """A server that keeps what it gets and answers as it is told, the last answer for ever."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.connections = 0
        self.url = ""
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: list[asyncio.Task[Any]] = []

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers["Content-Length"]))
        self.got.append((headers, body))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer == "hang":
            await reader.read()  # until the other side gives up
        else:
            writer.write(answer.encode())
        writer.close()


@asynccontextmanager
async def serve(*answers: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Target]:
    target = Target(*(f"HTTP/1.1 {it}\r\n\r\n" if it[0].isdigit() else it for it in answers))
    server = await asyncio.start_server(target.serve, "127.0.0.1", 0, ssl=tls)
    target.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook?a=1"
    try:
        async with server:
            yield target
    finally:
        await target.close()


WEBHOOKS: list[Webhook] = []


def make_webhook(url: str, **options: Any) -> Webhook:
    options = {"allowed_hosts": LOOPBACK, "key": KEY, "first_delay_s": 0.001, **options}
    WEBHOOKS.append(Webhook(url, **options))
    return WEBHOOKS[-1]


@pytest.fixture(autouse=True)
def _end_webhooks() -> Iterator[None]:
    """Leave nothing that is tried again for the next test, and its log."""
    yield
    while WEBHOOKS:
        webhook = WEBHOOKS.pop()
        wait_until(lambda webhook=webhook: not webhook._senders)


async def ask(url: str, webhook: Any, **options: Any) -> tuple[Edictum, asyncio.Task[Any]]:
    """Start a call that a person is asked about."""
    queue = open_approvals(url, notify=webhook)
    contracts = [approval_contract(**{"timeout": 60.0, **options})]
    guard = Edictum(contracts=contracts, approval_backend=queue)
    args = {"x": 1, "password": "hunter2-hunter2"}
    return guard, asyncio.ensure_future(guard.dispatch("t", args, lambda **_: 1))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'approvals.db'}"


@pytest.fixture
def lost(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What was logged of messages that were not delivered."""
    caplog.set_level(logging.INFO, "edictum")
    code = "approval.not_notified"

    def read() -> list[str]:
        found = [it for it in caplog.records if getattr(it, "edictum_event", "") == code]
        return [it.getMessage() for it in found]

    return read


async def end(guard: Edictum, running: asyncio.Task[Any]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await guard.close()


# --- What is sent ---------------------------------------------------------------------------------


async def test_a_message_is_signed_and_has_no_secret(url: str) -> None:
    """As Standard Webhooks says, over id, timestamp and body."""
    async with serve("204 No Content") as target:
        guard, running = await ask(url, make_webhook(target.url))
        await wait_in_loop(lambda: target.got)
        headers, body = target.got[0]
        told = json.loads(body)
        assert told["type"] == "approval.requested"
        assert told["data"]["tool_name"] == "t"
        assert told["data"]["tool_args"] == {"x": 1, "password": "[REDACTED]"}
        assert headers["webhook-id"] == told["data"]["approval_id"]
        content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        signed = base64.b64encode(hmac.new(KEY.encode(), content, hashlib.sha256).digest())
        assert headers["webhook-signature"] == f"v1,{signed.decode()}"
        assert verify_webhook(headers, body, key=KEY) == headers["webhook-id"]
        await end(guard, running)


async def test_a_changed_message_is_not_verified(url: str) -> None:
    """Another body, another id, another key, an old timestamp."""
    async with serve("200 OK") as target:
        guard, running = await ask(url, make_webhook(target.url))
        await wait_in_loop(lambda: target.got)
        headers, body = target.got[0]
        await end(guard, running)
    old = {**headers, "webhook-timestamp": str(int(headers["webhook-timestamp"]) - 1_000)}
    other = {**headers, "webhook-id": "another"}
    for given, sent, key in [
        (headers, body + b" ", KEY),
        (other, body, KEY),
        (old, body, KEY),
        (headers, body, "j" * 32),
        ({}, body, KEY),
    ]:
        with pytest.raises(EdictumInputError):
            verify_webhook(given, sent, key=key)
    with pytest.raises(EdictumInputError, match="too old"):
        verify_webhook(headers, body, key=KEY, tolerance_s=-1)


async def test_a_template_is_filled_in(url: str) -> None:
    """Inside any structure; texts with quotes stay one text, long ones are cut, links are whole."""
    template = {"blocks": [{"text": "{tool_name}: {message}"}, "{link}"], "n": 1, "x": "{unset"}
    links = ApprovalLinks("https://ops.example/a", key=KEY)
    approver = Principal("ann")
    async with serve("200 OK") as target:
        webhook = make_webhook(target.url, body=template, links=links, approver=approver)
        guard, running = await ask(url, webhook, message='say "yes" \\ {link} ' + "y" * 5_000)
        await wait_in_loop(lambda: target.got)
        told = json.loads(target.got[0][1])
        await end(guard, running)
    assert told["blocks"][0]["text"].startswith('t: say "yes" \\ {link} yyy')
    assert len(told["blocks"][0]["text"]) < 1_100
    assert (told["n"], told["x"]) == (1, "{unset")
    token = links.read_token(told["blocks"][1].removeprefix("https://ops.example/a/t/"))
    assert token.approver == approver


async def test_a_question_found_again_has_the_same_id(url: str) -> None:
    """After a crash the request is told again; receivers know it by its id."""
    async with serve("200 OK") as target:
        for _ in range(2):
            queue = open_approvals(f"{url}?lease=0.001", notify=make_webhook(target.url))
            metadata = {"digest": "d", "call_id": "c"}
            await queue.request_approval("t", {}, "?", metadata=metadata, session_id="s")
            await queue.close()
        assert len({headers["webhook-id"] for headers, _ in target.got}) == 1
        assert len(target.got) == 2


# --- Targets that fail ----------------------------------------------------------------------------


async def test_a_message_is_tried_again(url: str, lost: Any) -> None:
    """After errors of the server and broken connections, with the same id."""
    async with serve("500 No", "429 Slow", "close", "not http at all\n", "200 OK") as target:
        guard, running = await ask(url, make_webhook(target.url))
        await wait_in_loop(lambda: len(target.got) == 5)
        await guard.approvals.close()  # returns when the last one is taken
        assert len({headers["webhook-id"] for headers, _ in target.got}) == 1
        assert lost() == []
        await end(guard, running)


@pytest.mark.parametrize("answer", ["400 Bad", "404 Gone", "410 Gone"])
async def test_a_refusal_is_final(url: str, lost: Any, answer: str) -> None:
    """The message is not sent again, and the log says so without the URL, which is a secret."""
    async with serve(answer) as target:
        guard, running = await ask(url, make_webhook(target.url))
        await wait_in_loop(lost)
        assert target.connections == 1
        assert f"it answered {answer[:3]}" in lost()[0]
        assert "/hook" not in lost()[0]
        assert not running.done()  # the person may still be told by others
        await end(guard, running)


async def test_a_redirect_inward_is_not_followed(url: str, lost: Any) -> None:
    """Not even to an address that is listed."""
    async with serve("200 OK") as inside:
        moved = f"302 Found\r\nLocation: {inside.url}"
        async with serve(moved) as target:
            guard, running = await ask(url, make_webhook(target.url))
            await wait_in_loop(lost)
            assert "redirects are not followed" in lost()[0]
            assert (target.connections, inside.connections) == (1, 0)
            await end(guard, running)


async def test_a_target_that_hangs_delays_no_call(url: str, lost: Any) -> None:
    """Calls are asked and answered meanwhile, and there is no thread for each."""
    async with serve("hang") as target:
        queue = open_approvals(url, notify=make_webhook(target.url, timeout_s=60, attempts=1))
        guard = Edictum(contracts=[approval_contract(timeout=60)], approval_backend=queue)
        threads = threading.active_count()
        calls = [asyncio.ensure_future(guard.dispatch("t", {"n": n}, abs)) for n in range(40)]
        for _ in calls:
            pending = await _wait_for_request(queue)
            await queue.answer(pending.approval_id, False, approver="ann")
        assert all(isinstance(it, ToolDenied) for it in await asyncio.gather(*calls))
        await wait_in_loop(lambda: target.connections)
        assert target.connections <= 4
        assert threading.active_count() - threads <= 10
        assert lost() == []


async def _wait_for_request(queue: Any) -> QueuedApproval:
    async with asyncio.timeout(60):
        while not (found := await queue.pending(limit=1)):  # noqa: ASYNC110 - a store
            await asyncio.sleep(0.005)
    return found[0]


async def test_attempts_end(url: str, lost: Any) -> None:
    """One that is never taken is given up, with the last reason."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    webhook = make_webhook(f"http://127.0.0.1:{port}/", attempts=3)
    guard, running = await ask(url, webhook)
    await wait_in_loop(lost)
    assert "3 attempts failed; ConnectionRefusedError" in lost()[0]
    await end(guard, running)


async def test_a_slow_target_is_left(url: str, lost: Any) -> None:
    """An attempt has its time; then comes the next one."""
    async with serve("hang") as target:
        guard, running = await ask(url, make_webhook(target.url, timeout_s=0.05, attempts=2))
        await wait_in_loop(lost)
        assert "2 attempts failed; it did not answer in time" in lost()[0]
        await end(guard, running)


async def test_closing_does_not_wait_for_further_attempts(url: str, lost: Any) -> None:
    """What was not delivered is told, once, and not tried again."""
    async with serve("503 Busy") as target:
        webhook = make_webhook(target.url, first_delay_s=NEVER_S)
        queue = open_approvals(url, notify=webhook)
        asked = [await queue.request_approval("t", {"n": n}, "?") for n in range(9)]
        await wait_in_loop(lambda: len(target.got) == 4)  # so many senders
        await queue.close()
        assert sorted(lost()) == sorted(
            f"The webhook at 127.0.0.1 was not told of the approval request {it.approval_id}:"
            " the queue was closed before it was delivered"
            for it in asked
        )
    WEBHOOKS.remove(webhook)  # its senders sleep


async def test_closing_waits_for_one_attempt(url: str, lost: Any) -> None:
    """All webhooks at once, and no longer."""
    async with serve("hang") as target:
        webhooks = [make_webhook(target.url, timeout_s=0.2, attempts=2) for _ in range(3)]
        queue = open_approvals(url, notify=webhooks)
        await queue.request_approval("t", {}, "?")
        await wait_in_loop(lambda: target.connections >= 3)
        await queue.close()
        assert len(lost()) == 3


async def test_a_message_for_an_expired_request_is_not_sent(url: str, lost: Any) -> None:
    """What cannot be answered any more is not told."""
    async with serve("500 No") as target:
        webhook = make_webhook(target.url, first_delay_s=0.1, attempts=1_000)
        guard, running = await ask(url, webhook, timeout=0.05)
        await running
        await wait_in_loop(lost)
        assert "its request has expired" in lost()[0]
        await guard.close()


async def test_a_full_webhook_drops_messages(
    url: str, lost: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that hangs does not fill the memory."""
    monkeypatch.setattr("edictum.approval.webhook.MAX_UNSENT", 2)
    async with serve("hang") as target:
        queue = open_approvals(url, notify=make_webhook(target.url, timeout_s=60, attempts=1))
        for number in range(4):  # each sender has one
            await queue.request_approval("t", {"n": number}, "?")
            await wait_in_loop(lambda opened=number + 1: target.connections == opened)
        for number in range(3):
            await queue.request_approval("t", {"n": number}, "?")
        assert len([it for it in lost() if "2 messages wait" in it]) == 1
    await queue.close()


async def test_a_notifier_that_raises_changes_nothing(url: str, lost: Any) -> None:
    """The question stands, and the log says what failed."""

    class Broken:
        def notify(self, request: QueuedApproval) -> None:
            raise RuntimeError("no network")

    guard, running = await ask(url, [Broken()])
    await wait_in_loop(lost)
    assert "Broken was not told" in lost()[0]
    assert await guard.approvals.pending()
    await end(guard, running)


# --- Where it may be sent -------------------------------------------------------------------------


async def test_a_name_for_an_inside_address_is_refused(url: str, lost: Any) -> None:
    """The name is listed, what it stands for is not: nothing is sent."""
    async with serve("200 OK") as target:
        named = target.url.replace("127.0.0.1", "localhost")
        guard, running = await ask(url, make_webhook(named, allowed_hosts=["localhost"]))
        await wait_in_loop(lost)
        assert "inside the network, and is not listed" in lost()[0]
        assert target.connections == 0
        await end(guard, running)


async def test_tls_is_verified_by_name(url: str, lost: Any) -> None:
    """A certificate of another name, or of an unknown issuer, is not accepted."""
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(server)
    authority.configure_trust(client)
    async with serve("200 OK", tls=server) as target:
        port = target.url.split(":")[2].split("/")[0]
        allowed = ["localhost", "127.0.0.0/8", "::1"]
        named, addressed = f"https://localhost:{port}/", f"https://127.0.0.1:{port}/"
        for address, tls in [(named, client), (addressed, client), (named, None)]:
            webhook = make_webhook(address, allowed_hosts=allowed, tls=tls, attempts=1)
            queue = open_approvals(url, notify=webhook)
            await queue.request_approval("t", {}, "?")
            await queue.close()
        assert len(target.got) == 1
        assert len([it for it in lost() if "SSLCertVerificationError" in it]) == 2


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.0.0.5", "192.168.1.1", "172.16.0.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "::1", "fe80::1", "fc00::1", "::ffff:10.0.0.5", "64:ff9b::a00:5"),
        *("2002:a00:5::1", "224.0.0.1", "255.255.255.255"),
    ],
)
def test_inside_addresses_are_refused_unless_listed(address: str) -> None:
    """Even where they are wrapped in an IPv6 address."""
    with pytest.raises(RefusedAddress, match="inside"):
        AllowedHosts(["hooks.example"]).check_address(address, encrypted=True)
    AllowedHosts(["hooks.example", address]).check_address(address, encrypted=True)


def test_plain_http_is_for_listed_addresses() -> None:
    """What is sent to the public network is encrypted."""
    allowed = AllowedHosts(["hooks.example", "10.0.0.0/8"])
    allowed.check_address("8.8.8.8", encrypted=True)
    allowed.check_address("10.1.2.3", encrypted=False)
    with pytest.raises(RefusedAddress, match="TLS"):
        allowed.check_address("8.8.8.8", encrypted=False)


# --- Configuration --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"url": "https://other.example/x"}, "'other.example' is not allowed"),
        ({"url": "ftp://hooks.example/x"}, "not valid"),
        ({"url": "https://ann:pw@hooks.example/x"}, "cannot be used"),
        ({"url": "https://hooks.example/x\r\nHost: y"}, "cannot be used"),
        ({"url": None}, "not valid"),
        ({"allowed_hosts": "hooks.example"}, "allowed_hosts is"),
        ({"allowed_hosts": []}, "allowed_hosts is"),
        ({"key": "short"}, "has 5 bytes"),
        ({"key": None}, "either key or key_file"),
        ({"key": "whsec_!!"}, "not base64"),
        ({"key": 5}, "the key is int"),
        ({"key": None, "key_file": "/nowhere/key"}, "cannot be read"),
        ({"approver": Principal("ann")}, "belong together"),
        ({"body": "text"}, "body is str"),
        ({"body": {"a": ["{nothing}"]}}, "{nothing} cannot be filled in"),
        ({"body": {"a": "{link}"}}, "no {link}"),
        ({"headers": {"X-A": "b\r\nc: d"}}, "'X-A' is not a valid header"),
        ({"headers": {"a b": "c"}}, "'a b' is not a valid header"),
    ],
)
def test_what_cannot_be_used_is_refused_at_once(options: dict[str, Any], problem: str) -> None:
    """When the webhook is made; no message repeats the URL."""
    given = {"url": "https://hooks.example/x", "allowed_hosts": ["hooks.example"], "key": KEY}
    with pytest.raises(EdictumConfigError) as caught:
        Webhook(**{**given, **options})
    assert problem in str(caught.value)
    assert "/x" not in str(caught.value)


def test_a_key_of_a_file_and_of_standard_webhooks(tmp_path: Path) -> None:
    """The same key in three forms signs the same."""
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    encoded = "whsec_" + base64.b64encode(KEY.encode()).decode()
    links = [
        ApprovalLinks("https://ops.example", key=KEY),
        ApprovalLinks("https://ops.example", key=encoded),
        ApprovalLinks("https://ops.example", key_file=file),
        ApprovalLinks("https://ops.example", key=KEY.encode()),
    ]
    assert len({each._key for each in links}) == 1


def test_a_notifier_has_notify(url: str) -> None:
    """Anything else is refused when the queue is opened."""
    with pytest.raises(EdictumConfigError, match="notify is str"):
        open_approvals(url, notify="https://hooks.example")  # type: ignore[arg-type]  # wrong


BUNDLE = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: notified}
approvals:
  store: ${STORE}
  notify:
    - url: ${HOOK}
      key: ${HOOK_KEY}
      allowed_hosts: [127.0.0.1]
      timeout: 30s
      body: {text: "{tool_name}", url: "{link}"}
      link:
        url: https://ops.example
        key: ${HOOK_KEY}
        valid: 5m
        approver: {user_id: ann, role: ops}
contracts:
  - id: ask
    type: pre
    tool: t
    then: {effect: approve, message: "sure?", timeout: 60s}
"""


async def test_a_bundle_names_webhooks(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With keys from the environment, and a link for one person."""
    async with serve("200 OK") as target:
        for name, value in [("STORE", url), ("HOOK", target.url), ("HOOK_KEY", KEY)]:
            monkeypatch.setenv(name, value)
        guard = Edictum.from_yaml_string(BUNDLE)
        running = asyncio.ensure_future(guard.dispatch("t", {}, lambda: 1))
        await wait_in_loop(lambda: target.got)
        told = json.loads(target.got[0][1])
        link = told["url"].removeprefix("https://ops.example/t/")
        token = ApprovalLinks("https://ops.example", key=KEY).read_token(link)
        assert (told["text"], token.approver) == ("t", Principal("ann", role="ops"))
        await end(guard, running)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("key: ${HOOK_KEY}\n      key_file: /x", "key"),
        ("allowed_hosts: []", "allowed_hosts"),
        ("password: x", "password"),
    ],
)
def test_a_bundle_with_a_wrong_webhook(line: str, problem: str) -> None:
    """Every problem has its place in the file."""
    text = f"""\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {{name: wrong}}
defaults: {{mode: enforce}}
approvals:
  store: sqlite:///x.db
  notify:
    - url: https://hooks.example/x
      {line}
"""
    with pytest.raises(EdictumConfigError, match=problem):
        Edictum.from_yaml_string(text)
