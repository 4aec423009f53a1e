"""Event streams behind ``edictum mcp-proxy``: kept alive, closed with their clients, and resumed."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from mcp_processes import read_answer
from mcp_raw_server import Asked, gateway_before, make_result, raw_server

from edictum import Edictum, OperationLimits
from edictum.adapters.mcp import MCPAdapter
from edictum.cli._mcp_application import StreamTimes
from edictum.cli._mcp_direct import DirectClient
from edictum.cli._mcp_http import ServerUrl
from edictum.cli._mcp_tokens import TokenVerifier
from edictum.testing.adapter import SECRET, no_secret, without_secret
from support.waiting import wait_in_loop

pytestmark = pytest.mark.s1  # needs mcp

CALL = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "tools/call",
    "params": {"name": "look", "arguments": {}},
}
LIST = {"jsonrpc": "2.0", "id": 7, "method": "tools/list"}
NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}
ACCEPT = {"accept": "application/json, text/event-stream"}
MINE = {**ACCEPT, "mcp-session-id": "mine", "authorization": "Bearer me"}


def make_adapter() -> MCPAdapter:
    return MCPAdapter(Edictum(contracts=[no_secret("redact", redact=without_secret)]))


async def listen_for_ever(asked: Asked) -> None:
    asked.head()
    await asked.until_closed()


# --- Kept alive -----------------------------------------------------------------------------------


async def answer_when_told(asked: Asked, told: asyncio.Event) -> None:
    asked.head()
    asked.say(": ping of the server\n\n")
    await told.wait()
    asked.event(asked.result("late"))
    asked.end()


@pytest.mark.parametrize("message", [CALL, LIST, None])
async def test_a_silent_stream_begins_at_once_and_says_that_it_is_there(message: Any) -> None:
    told, method = asyncio.Event(), "GET" if message is None else "POST"

    async def serve(asked: Asked) -> None:
        if message is None:
            await listen_for_ever(asked)
        else:
            await answer_when_told(asked, told)

    times = StreamTimes(silence_s=0.02)
    async with (
        raw_server(serve) as (server, _),
        gateway_before(server, make_adapter(), times) as (url, _),
        httpx.AsyncClient() as client,
        client.stream(method, url, json=message, headers=ACCEPT) as response,
    ):
        assert (response.status_code, told.is_set()) == (200, False)
        read = b""
        async for part in response.aiter_bytes():
            read += part
            if read.count(b": keep-alive\n\n") >= 3:
                break
        told.set()
    assert read.count(b": keep-alive\n\n") >= 3


async def test_comments_of_the_server_pass() -> None:
    async def serve(asked: Asked) -> None:
        asked.head()
        for _ in range(5):
            asked.say(": ping\n\n")
        await asked.until_closed()

    async with (
        raw_server(serve) as (server, _),
        gateway_before(server, make_adapter()) as (url, _),
        httpx.AsyncClient() as client,
        client.stream("GET", url, headers=ACCEPT) as response,
    ):
        read = b""
        async for part in response.aiter_bytes():
            read += part
            if read.count(b": keep-alive\n\n") == 5:
                break
    assert read == b": keep-alive\n\n" * 5


# --- Closed with their clients --------------------------------------------------------------------


async def test_a_thousand_clients_that_come_and_go_leave_nothing_open() -> None:
    async def serve(asked: Asked) -> None:
        if asked.method == "GET":
            await listen_for_ever(asked)
            return
        asked.head()
        asked.event(NOTE, "1" if asked.headers.get("mcp-session-id") else None)
        await asked.until_closed()

    async def come_and_go(client: httpx.AsyncClient, number: int, url: str) -> None:
        headers = {**ACCEPT, "mcp-session-id": str(number)} if number % 2 else ACCEPT
        method, message = [("GET", None), ("POST", CALL), ("POST", LIST)][number % 3]
        async with client.stream(method, url, json=message, headers=headers) as response:
            assert response.status_code == 200

    unlimited = OperationLimits(max_tool_calls=None, max_attempts=None)
    adapter, times = MCPAdapter(Edictum(limits=unlimited)), StreamTimes(return_s=0.05)
    async with (
        raw_server(serve) as (server, talking),
        gateway_before(server, adapter, times) as (url, gateway),
        httpx.AsyncClient(limits=httpx.Limits(), timeout=60) as client,
    ):
        before = len(asyncio.all_tasks())
        for start in range(0, 1000, 50):
            await asyncio.gather(*(come_and_go(client, start + each, url) for each in range(50)))
        assert len(talking.asked) == 1000
        await wait_in_loop(lambda: talking.open == 0)
        await wait_in_loop(lambda: len(asyncio.all_tasks()) <= before)
        assert len(gateway._streams) == 0
    actions = {event.action for event in adapter.guard.local_sink.events}
    assert actions == {"call_allowed", "call_failed"}


@pytest.mark.parametrize("message", [CALL, None])
async def test_a_proxy_that_is_stopped_records_open_calls(message: Any) -> None:
    """A signal ends the web server, which closes the gateway (`serve_port`)."""
    adapter, method = make_adapter(), "GET" if message is None else "POST"
    said: list[str] = []

    async def send(told: Any) -> None:
        said.append(told["type"])

    async with (
        raw_server(listen_for_ever) as (server, talking),
        gateway_before(server, adapter) as (url, gateway),
        httpx.AsyncClient() as client,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(client.request(method, url, json=message, headers=ACCEPT))
        await wait_in_loop(lambda: talking.open == 1)
        wanted = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

        async def receive() -> Any:
            return wanted.pop(0)

        await gateway({"type": "lifespan"}, receive, send)
        await wait_in_loop(lambda: talking.open == 0)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    actions = [event.action for event in adapter.guard.local_sink.events]
    assert actions == ([] if message is None else ["call_allowed", "call_failed"])


# --- Resumed --------------------------------------------------------------------------------------


async def close_early(asked: Asked) -> None:
    """Close the stream of a request, and answer on one that goes on with it."""
    asked.head(more="mcp-session-id: mine\r\n" if asked.method == "POST" else "")
    if asked.method == "POST":
        asked.say("id: a\nretry: 10\ndata: \n\n")
    elif asked.headers["last-event-id"] == "a":
        asked.event(NOTE, "b")
    else:
        asked.event(make_result(7, f"it is {SECRET}"), "c")
    asked.end()


@pytest.mark.parametrize("message", [CALL, LIST])
async def test_a_stream_that_the_server_closes_early_is_resumed(message: Any) -> None:
    adapter = make_adapter()
    async with (
        raw_server(close_early) as (server, talking),
        gateway_before(server, adapter) as (url, _),
        httpx.AsyncClient() as client,
    ):
        read = await client.post(url, json=message, headers=MINE)
    assert (read.status_code, read_answer(read.content)["id"]) == (200, 7)
    assert (SECRET in read.text) == (message is LIST), "only calls are judged"
    resumed = [asked.headers for asked in talking.asked[1:]]
    assert [asked["last-event-id"] for asked in resumed] == ["a", "b"]
    assert {asked["authorization"] for asked in resumed} == {"Bearer me"}


async def test_over_stdio_a_stream_that_the_server_closes_early_is_resumed() -> None:
    told: asyncio.Queue[Any] = asyncio.Queue()
    async with raw_server(close_early) as (server, _):
        link = ServerUrl(server, {}, told.put)
        await link.send(LIST)
        assert [await told.get(), (await told.get())["id"]] == [NOTE, 7]
        await link.stop()


async def test_a_server_that_does_not_resume_its_stream_has_failed() -> None:
    async def serve(asked: Asked) -> None:
        if asked.method == "GET":
            asked.head("404 Not Found", "text/plain")
        else:
            asked.head()
            asked.say("id: a\nretry: 1\ndata: \n\n")
        asked.end()

    adapter = make_adapter()
    async with (
        raw_server(serve) as (server, _),
        gateway_before(server, adapter) as (url, _),
        httpx.AsyncClient() as client,
    ):
        read = await client.post(url, json=CALL, headers=MINE)
    assert "does not resume" in read_answer(read.content)["error"]["message"]
    assert adapter.guard.local_sink.last().action == "call_failed"


class Leaving:
    """A call whose client leaves its stream after the first event."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        self.calls = 0

    async def serve(self, asked: Asked) -> None:
        if asked.method == "GET":
            asked.head("405 Method Not Allowed", "text/plain")
            asked.end()
            return
        self.calls += 1
        asked.head()
        asked.event(NOTE, "a")
        await asked.writer.drain()
        closed = asyncio.create_task(asked.until_closed())
        waiting = asyncio.create_task(self.told.wait())
        await asyncio.wait({closed, waiting}, return_when=asyncio.FIRST_COMPLETED)
        asked.event(asked.result(f"it is {SECRET}"), "b")
        asked.end()
        closed.cancel()
        waiting.cancel()

    async def leave(self, client: httpx.AsyncClient, url: str) -> None:
        async with client.stream("POST", url, json=CALL, headers=MINE) as response:
            async for part in response.aiter_bytes():
                if b"id: a\n" in part:
                    break

    async def come_back(self, client: httpx.AsyncClient, url: str, **other: str) -> httpx.Response:
        return await client.get(url, headers={**MINE, "last-event-id": "a", **other})


async def test_a_client_that_returns_reads_the_judged_answer() -> None:
    adapter, call = make_adapter(), Leaving()
    async with (
        raw_server(call.serve) as (server, _),
        gateway_before(server, adapter) as (url, _),
        httpx.AsyncClient() as client,
    ):
        await call.leave(client, url)
        coming = asyncio.create_task(call.come_back(client, url))
        call.told.set()
        answers = [read_answer((await coming).content)]
        answers.append(read_answer((await call.come_back(client, url)).content))
        stranger = await call.come_back(client, url, authorization="Bearer other")
    assert [answer["id"] for answer in answers] == [7, 7]
    assert SECRET not in str(answers) and "[GONE]" in str(answers)
    assert stranger.status_code == 405, "who has another token is not the same client"
    assert call.calls == 1
    assert adapter.guard.session(str(adapter.session_id)).executions == 1


async def test_a_call_whose_client_does_not_return_is_given_up() -> None:
    adapter, call = make_adapter(), Leaving()
    async with (
        raw_server(call.serve) as (server, talking),
        gateway_before(server, adapter, StreamTimes(return_s=0.05)) as (url, gateway),
        httpx.AsyncClient() as client,
    ):
        await call.leave(client, url)
        await wait_in_loop(lambda: talking.open == 0)
        await wait_in_loop(lambda: len(gateway._streams) == 0)
    assert adapter.guard.local_sink.last().action == "call_failed"


async def test_a_call_that_its_client_cancels_is_given_up() -> None:
    async def serve(asked: Asked) -> None:
        if asked.body["method"] == "tools/call":
            await listen_for_ever(asked)
        else:
            asked.head("202 Accepted", "text/plain")
            asked.end()

    cancel = {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": 7},
    }
    adapter = make_adapter()
    async with (
        raw_server(serve) as (server, talking),
        gateway_before(server, adapter) as (url, _),
        httpx.AsyncClient() as client,
    ):
        calling = asyncio.create_task(client.post(url, json=CALL, headers=MINE))
        await wait_in_loop(lambda: len(talking.asked) == 1)
        other = {**MINE, "mcp-session-id": "other"}
        for headers in (other, MINE):
            assert not calling.done()
            await client.post(url, json=cancel, headers=headers)
        read = await calling
    assert (read.status_code, b"data:" in read.content) == (200, False)
    assert adapter.guard.local_sink.last().success_source == "cancelled"


async def pass_on(source: AsyncIterator[str], parts: asyncio.Queue[str]) -> None:
    async for part in source:
        parts.put_nowait(part)


async def test_answers_that_a_server_repeats_are_not_read_raw() -> None:
    """To requests of which the proxy knows nothing any more; the client must not wait for ever.

    The stream stays open: a client that sees no result of its request opens it again otherwise.
    """

    async def serve(asked: Asked) -> None:
        asked.head()
        asked.event({"jsonrpc": "2.0", "id": 7, "result": {"content": [SECRET]}}, "b")
        asked.event(NOTE, "c")
        asked.end()

    async with (
        raw_server(serve) as (server, talking),
        gateway_before(server, make_adapter()) as (url, _),
        httpx.AsyncClient() as client,
    ):
        resuming = {**MINE, "last-event-id": "a"}
        read, parts = "", asyncio.Queue[str]()
        async with client.stream("GET", url, headers=resuming, timeout=60) as response:
            reading = asyncio.create_task(pass_on(response.aiter_text(), parts))
            while "id: c\n" not in read or not read.endswith("\n\n"):
                read += await parts.get()
            ended, _ = await asyncio.wait({reading}, timeout=0.3)
            assert not ended
            reading.cancel()
            await asyncio.wait({reading})
        fresh = await client.get(url, headers=MINE)
    assert talking.asked[0].headers["last-event-id"] == "a"
    lines = [line for line in read.splitlines() if line.startswith("data: ")]
    assert [json.loads(line[6:]).get("id") for line in lines] == [7, None]
    assert "id: b\n" in read and "id: c\n" in read
    assert SECRET not in read + fresh.text


async def test_over_stdio_the_stream_of_the_server_s_own_messages_is_opened_again() -> None:
    async def serve(asked: Asked) -> None:
        if asked.method == "POST":
            asked.head("202 Accepted", "text/plain")
        else:
            asked.head()
            asked.say("retry: 10\n\n")
            asked.event(NOTE, f"{len(talking.asked)}")
        asked.end()

    told: asyncio.Queue[Any] = asyncio.Queue()
    async with raw_server(serve) as (server, talking):
        link = ServerUrl(server, {}, told.put)
        await link.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert [await told.get() for _ in range(4)] == [NOTE] * 4
        await link.stop()
    gets = [asked.headers.get("last-event-id") for asked in talking.asked if asked.method == "GET"]
    assert gets[:4] == [None, "2", "3", "4"]


async def test_over_stdio_a_stream_that_the_server_does_not_offer_is_asked_for_once() -> None:
    async def serve(asked: Asked) -> None:
        asked.head("405 Method Not Allowed" if asked.method == "GET" else "202 Accepted")
        asked.end()

    async def ignore(said: Any) -> None:
        raise AssertionError(said)

    async with raw_server(serve) as (server, talking):
        link = ServerUrl(server, {}, ignore)
        await link.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        await wait_in_loop(lambda: not link._posts)
        assert len(talking.asked) == 2
        await link.stop()


# --- The older transport --------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["http://127.0.0.1:9/message", "//elsewhere.example/message"])
async def test_a_client_is_not_told_to_send_to_another_server(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve(asked: Asked) -> None:
        asked.head()
        asked.say(f"event: endpoint\ndata: {place}\n\n")
        await asked.until_closed()

    async with (
        raw_server(serve) as (server, _),
        gateway_before(server, make_adapter()) as (url, _),
        httpx.AsyncClient() as client,
    ):
        read = await client.get(url, headers=ACCEPT)
    assert "elsewhere" not in read.text and "endpoint" not in read.text
    assert "broke off: ConnectionError" in caplog.text


async def test_calls_of_the_older_transport_are_judged() -> None:
    streams: list[Asked] = []

    async def serve(asked: Asked) -> None:
        if asked.method == "GET":
            streams.append(asked)
            asked.head()
            asked.say("event: endpoint\ndata: /message?id=1\n\n")
            await asked.until_closed()
            return
        asked.head("202 Accepted", "text/plain")
        asked.end()
        streams[0].event(asked.result(f"it is {SECRET}"))

    adapter = make_adapter()
    async with (
        raw_server(serve) as (server, talking),
        gateway_before(server, adapter) as (url, gateway),
        httpx.AsyncClient() as client,
    ):
        async with client.stream("GET", url, headers=ACCEPT) as response:
            parts = response.aiter_bytes()
            assert await anext(parts) == b"event: endpoint\ndata: /message?id=1\n\n"
            place = url.removesuffix("/mcp") + "/message?id=1"
            assert (await client.post(place, json=CALL)).status_code == 202
            read = b""
            while b"data: {" not in read:
                read += await anext(parts)
            answer = read_answer(read)
        await wait_in_loop(lambda: not gateway._sse)
        await wait_in_loop(lambda: talking.open <= 1)  # one is kept for the next request
    assert (answer["id"], SECRET in str(answer), "[GONE]" in str(answer)) == (7, False, True)
    assert adapter.guard.local_sink.last().action == "call_executed"


# --- What breaks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json", "text/plain"])
async def test_a_server_that_dies_in_mid_response_is_one_line_in_the_log(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve(asked: Asked) -> None:
        asked.head(kind=kind)
        asked.say("{")
        await asked.writer.drain()
        asked.writer.transport.abort()

    async with (
        raw_server(serve) as (server, _),
        gateway_before(server, make_adapter()) as (url, _),
        httpx.AsyncClient() as client,
    ):
        try:
            status = (await client.get(url, headers=ACCEPT)).status_code
        except httpx.RemoteProtocolError:
            status = 0  # the client sees that it is not whole
    assert status == {"text/event-stream": 200, "application/json": 502, "text/plain": 0}[kind]
    ours = [record for record in caplog.records if record.name.startswith("edictum.mcp")]
    assert len([each for each in ours if each.levelno == logging.WARNING]) == 1
    assert all(record.exc_info is None for record in caplog.records)


# --- OAuth ----------------------------------------------------------------------------------------


async def test_metadata_and_challenges_name_the_proxy() -> None:
    async def serve(asked: Asked) -> None:
        here = f"http://{asked.headers['host']}"
        if asked.target.startswith("/.well-known/oauth-protected-resource"):
            asked.head(kind="application/json")
            asked.say(json.dumps({"resource": f"{here}/mcp", "authorization_servers": [here]}))
        else:
            place = f'resource_metadata="{here}/.well-known/oauth-protected-resource/mcp"'
            challenge = f'www-authenticate: Bearer realm="{here}", {place}\r\n'
            asked.head("401 Unauthorized", "text/plain", challenge)
        asked.end()

    async with (
        raw_server(serve) as (server, _),
        gateway_before(server, make_adapter()) as (url, _),
        httpx.AsyncClient() as client,
    ):
        origin, real = url.removesuffix("/mcp"), server.removesuffix("/mcp")
        place = f"{origin}/.well-known/oauth-protected-resource/mcp"
        metadata = (await client.get(place)).json()
        challenges = [
            (await client.post(url, json=message)).headers["www-authenticate"]
            for message in (CALL, LIST)
        ]
    assert metadata == {"resource": url, "authorization_servers": [real]}
    assert challenges == [f'Bearer realm="{real}", resource_metadata="{place}"'] * 2


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_proxy_that_verifies_tokens_says_who_makes_them(is_known: bool) -> None:
    """Unless the server says it itself, as one that wants tokens too."""

    async def serve(asked: Asked) -> None:
        asked.head("200 OK" if is_known else "404 Not Found", "application/json")
        theirs = {"resource": f"http://{asked.headers['host']}/mcp", "scopes_supported": ["a"]}
        asked.say(json.dumps(theirs if is_known else {"error": "what?"}))
        asked.end()

    async with (
        raw_server(serve) as (server, _),
        gateway_before(server, make_adapter()) as (url, gateway),
        httpx.AsyncClient() as client,
    ):
        gateway._verifier = TokenVerifier({}.get, "https://issuer.example")
        refused = await client.post(url, json=CALL)
        place = f"{url.removesuffix('/mcp')}/.well-known/oauth-protected-resource/mcp"
        metadata = (await client.get(place)).json()
    challenge = f'Bearer error="invalid_token", resource_metadata="{place}"'
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, challenge)
    known = {"scopes_supported": ["a"]}
    ours = {"authorization_servers": ["https://issuer.example"]}
    assert metadata == {"resource": url, **(known if is_known else ours)}


# --- With and without the fast path ---------------------------------------------------------------


@pytest.fixture(params=["direct", "httpx"])
def client_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which client the gateway asks the server with: a proxy of the environment needs httpx."""
    if request.param == "httpx":
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
    return str(request.param)


async def test_cookies_of_one_client_are_not_sent_for_another(client_kind: str) -> None:
    async def serve(asked: Asked) -> None:
        asked.head(kind="application/json", more="set-cookie: who=first; Path=/\r\n")
        asked.say(json.dumps(asked.result("seen")))
        asked.end()

    async with (
        raw_server(serve) as (server, talking),
        gateway_before(server, make_adapter()) as (url, gateway),
        httpx.AsyncClient() as client,
    ):
        for _ in range(2):
            answer = await client.post(url, json=CALL, headers=ACCEPT)
            assert read_answer(answer.content)["result"]["content"][0]["text"] == "seen"
    assert isinstance(gateway._client, DirectClient) is (client_kind == "direct")
    assert ["cookie" in asked.headers for asked in talking.asked] == [False, False]


async def test_targets_headers_and_bodies_reach_the_server_as_the_client_sent_them(
    client_kind: str,
) -> None:
    async def serve(asked: Asked) -> None:
        asked.head(kind="application/json")
        asked.say(json.dumps(asked.result("ü" * 200_000)))
        asked.end()

    async with (
        raw_server(serve) as (server, talking),
        gateway_before(server, make_adapter()) as (url, _),
        httpx.AsyncClient() as client,
    ):
        target = f"{url}/a%20b?x=%C3%BC"
        sent = {**CALL, "params": {"name": "look", "arguments": {"note": "ö" * 200_000}}}
        answer = await client.post(target, json=sent, headers={**ACCEPT, "x-own": "1"})
    (asked,) = talking.asked
    assert (asked.method, asked.target) == ("POST", "/mcp/a%20b?x=%C3%BC")
    assert (asked.body, asked.headers["x-own"]) == (sent, "1")
    assert asked.headers["host"] == server.removeprefix("http://").removesuffix("/mcp")
    assert "ü" * 1_000 in json.dumps(read_answer(answer.content), ensure_ascii=False)


@pytest.mark.parametrize("method", ["tools/call", "tools/list", "prompts/list"])
async def test_a_message_in_which_readers_could_find_two_is_written_anew(method: str) -> None:
    """Of doubled names we take the last; a server may take the first."""

    async def serve(asked: Asked) -> None:
        asked.head(kind="application/json")
        asked.say(json.dumps(asked.result("seen")))
        asked.end()

    doubled = '{"jsonrpc":"2.0","id":1,"method":"tools/call","method":"%s","params":%s}'
    params = '{"name":"drop","name":"look","arguments":{"key":"forbidden","key":"a"}}'
    async with (
        raw_server(serve) as (server, talking),
        gateway_before(server, make_adapter()) as (url, _),
        httpx.AsyncClient() as client,
    ):
        json_type = {"content-type": "application/json", **ACCEPT}
        await client.post(url, content=doubled % (method, params), headers=json_type)
    (asked,) = talking.asked
    assert b"forbidden" not in asked.raw and b"drop" not in asked.raw
    assert asked.raw.count(b"method") == 1
    assert asked.body["params"] == {"name": "look", "arguments": {"key": "a"}}


async def test_a_connection_on_which_the_server_spoke_unasked_is_not_used_again() -> None:
    """What it said would be taken for the answer to the next request."""

    async def serve(asked: Asked) -> None:
        asked.head(kind="application/json")
        asked.say(json.dumps(asked.result("right")))
        asked.end()
        body = json.dumps(make_result(7, "wrong")).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        asked.writer.write(head % len(body) + body)
        await asked.until_closed()

    async with (
        raw_server(serve) as (server, talking),
        gateway_before(server, make_adapter()) as (url, _),
        httpx.AsyncClient() as client,
    ):
        for _ in range(2):
            answer = await client.post(url, json=CALL, headers=ACCEPT)
            assert read_answer(answer.content)["result"]["content"][0]["text"] == "right"
            await wait_in_loop(lambda: talking.open == 0)


RIGHT = json.dumps(make_result(7, "right")).encode()
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
LENGTH = b"content-length: %d\r\n\r\n" % len(RIGHT)
CHUNKED = b"transfer-encoding: chunked\r\n\r\n%x;name=value\r\n%s\r\n" % (len(RIGHT), RIGHT)
ZIPPED = gzip.compress(RIGHT)
WHOLE = {
    "informational": b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + JSON_HEAD + LENGTH + RIGHT,
    "until the end": JSON_HEAD + b"\r\n" + RIGHT,
    "older": JSON_HEAD.replace(b"1.1", b"1.0") + b"\r\n" + RIGHT,
    "trailers": JSON_HEAD + CHUNKED + b"0\r\nx-after: 1\r\n\r\n",
    "compressed": JSON_HEAD + b"content-encoding: gzip\r\n\r\n" + ZIPPED,
}
BROKEN = {
    "nothing": b"",
    "not HTTP": b"SSH-2.0-OpenSSH\r\n\r\n",
    "upgraded": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    "half a head": JSON_HEAD,
    "half a body": JSON_HEAD + LENGTH + RIGHT[:-9],
    "half a chunk": JSON_HEAD + CHUNKED[:-9],
    "no last chunk": JSON_HEAD + CHUNKED,
    "large head": JSON_HEAD + b"x-large: %s\r\n" % (b"x" * 200_000) + LENGTH + RIGHT,
}


@pytest.mark.parametrize("form", [*WHOLE, *BROKEN])
async def test_a_response_is_read_whole_or_is_an_error(client_kind: str, form: str) -> None:
    async def serve(asked: Asked) -> None:
        asked.writer.write({**WHOLE, **BROKEN}[form])
        asked.writer.close()

    async with (
        raw_server(serve) as (server, _),
        gateway_before(server, make_adapter()) as (url, _),
        httpx.AsyncClient() as client,
    ):
        answer = await client.post(url, json=CALL, headers=ACCEPT, timeout=10)
    said = read_answer(answer.content)
    assert ("right" in json.dumps(said)) is (form in WHOLE)
    assert ("error" in said) is (form in BROKEN)


async def test_a_response_without_a_body_ends_with_its_head(client_kind: str) -> None:
    async def serve(asked: Asked) -> None:
        asked.writer.write(JSON_HEAD + LENGTH)
        await asked.until_closed()

    async with (
        raw_server(serve) as (server, _),
        gateway_before(server, make_adapter()) as (url, _),
        httpx.AsyncClient() as client,
    ):
        answer = await client.head(url, timeout=10)
    assert (answer.status_code, answer.content) == (200, b"")
