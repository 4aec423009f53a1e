"""``edictum mcp-proxy`` in front of a URL whose server answers as it should not: with a status, in
lists, twice, not at all.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp_processes import free_port, read_answer

from edictum import Edictum
from edictum.adapters.mcp import MCPAdapter
from edictum.cli._mcp_application import parse_request_body
from edictum.cli._mcp_gateway import Gateway
from edictum.cli._mcp_http import ServerUrl
from edictum.cli._mcp_relay import Relay
from edictum.testing.adapter import SECRET, no_secret, without_secret

pytestmark = pytest.mark.s1  # needs httpx

CALL = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "tools/call",
    "params": {"name": "look", "arguments": {}},
}
PING = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
PONG = {"jsonrpc": "2.0", "id": 7, "result": {}}
ANSWER = {
    "jsonrpc": "2.0",
    "id": 7,
    "result": {"content": [{"type": "text", "text": f"it is {SECRET}"}]},
}
ERROR = {"jsonrpc": "2.0", "id": 7, "error": {"code": -1, "message": f"it is {SECRET}"}}
NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "on the way"}}
Respond = tuple[int, str, bytes]


def as_json(said: Any, status: int = 200, kind: str = "application/json") -> Respond:
    return status, kind, json.dumps(said).encode()


def as_events(*said: Any, letters: bool = False) -> Respond:
    return (
        200,
        "text/event-stream",
        "".join(
            f"data: {json.dumps(each, ensure_ascii=not letters)}\n\n" for each in said
        ).encode(),
    )


@asynccontextmanager
async def server(respond: Respond, *headers: str, port: int = 0) -> AsyncIterator[str]:
    """Answers every request with the same, and hangs up."""
    status, kind, body = respond
    serving: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        ]
        await reader.readexactly(sum(lengths))
        ours = "".join(
            f"{each}\r\n"
            for each in (
                f"content-type: {kind}",
                f"content-length: {len(body)}",
                "connection: close",
                *headers,
            )
        )
        writer.write(f"HTTP/1.1 {status} X\r\n{ours}\r\n".encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", port) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"
        await asyncio.gather(*serving, return_exceptions=True)


class Read:
    """What a client of the gateway reads, and what the guard saw."""

    def __init__(self) -> None:
        self.guard = Edictum(contracts=[no_secret("redact", redact=without_secret)])
        self.sent: list[Any] = []

    async def ask(self, url: str, message: Any, method: str = "POST") -> Read:
        gateway = Gateway(MCPAdapter(self.guard), url, {})
        inbox: asyncio.Queue[Any] = asyncio.Queue()
        inbox.put_nowait(
            {
                "type": "http.request",
                "body": json.dumps(message).encode() if message is not None else b"",
            }
        )
        scope = {
            "type": "http",
            "method": method,
            "path": "/mcp",
            "query_string": b"",
            "headers": [],
        }

        async def send(part: Any) -> None:
            self.sent.append(part)

        await gateway(scope, inbox.get, send)
        await asyncio.gather(*gateway._tasks, return_exceptions=True)
        await gateway._client.aclose()
        return self

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> str:
        return b"".join(part.get("body", b"") for part in self.sent).decode()

    @property
    def ending(self) -> str:
        return str(self.guard.local_sink.last().action)


async def through_gateway(
    respond: Respond, message: Any = CALL, *headers: str, method: str = "POST"
) -> Read:
    async with server(respond, *headers) as url:
        return await Read().ask(url, message, method)


ODD = {
    "201": as_json(ANSWER, 201),
    "400": as_json(ANSWER, 400),
    "400 with an error": as_json(ERROR, 400),
    "list": as_json([ANSWER]),
    "list of events": as_events([ANSWER]),
    "twice": as_events(ANSWER, ANSWER),
    "id as text": as_events({**ANSWER, "id": "7"}),
    "id of nobody": as_json({**ERROR, "id": "server-error"}, 400),
    "case": as_json(ANSWER, kind="Application/JSON; charset=utf-8"),
    "letters": as_events(
        {**ANSWER, "result": {"content": [{"type": "text", "text": f"\u2028\u0085 {SECRET}"}]}},
        letters=True,
    ),
}


@pytest.mark.parametrize("respond", ODD.values(), ids=ODD)
async def test_behind_a_port_an_answer_is_judged_in_whatever_form_it_comes(
    respond: Respond,
) -> None:
    read = await through_gateway(respond)
    answer = read_answer(read.body.encode())
    assert (read.status, answer["id"], SECRET in read.body) == (respond[0], 7, False)
    assert "[GONE]" in read.body
    assert read.ending == ("call_failed" if "error" in answer else "call_executed")


@pytest.mark.parametrize("status", [302, 401, 404, 500])
@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
async def test_a_refusal_without_an_answer_keeps_its_status_and_headers_and_no_body(
    status: int, kind: str
) -> None:
    read = await through_gateway(
        (status, kind, f"Traceback: {SECRET}".encode()),
        CALL,
        "www-authenticate: Bearer",
        f"x-result: {SECRET}",
    )
    assert (read.status, read.body, read.headers) == (status, "", {b"www-authenticate": b"Bearer"})
    assert read.ending == "call_failed"


async def test_a_success_without_an_answer_is_an_error_that_ends_the_waiting() -> None:
    read = await through_gateway((202, "text/plain", b""))
    assert (read.status, "gave no answer" in json.loads(read.body)["error"]["message"]) == (
        200,
        True,
    )


@pytest.mark.parametrize("place", ["https://elsewhere.example/mcp", "//elsewhere.example/mcp"])
async def test_a_call_is_not_led_to_another_server(place: str) -> None:
    assert (
        b"location"
        not in (await through_gateway((307, "text/plain", b""), CALL, f"location: {place}")).headers
    )


@pytest.mark.parametrize("message", [CALL, PING])
async def test_a_redirect_of_the_server_to_itself_leads_back_to_the_proxy(message: Any) -> None:
    port = free_port()
    async with server(
        (307, "text/plain", b""), f"location: HTTP://127.0.0.1:{port}/other?a=b", port=port
    ) as url:
        assert (await Read().ask(url, message)).headers[b"location"] == b"/other?a=b"


@pytest.mark.parametrize(
    ("method", "message", "passes"), [("GET", None, [NOTE]), ("POST", PING, [NOTE, PONG])]
)
async def test_an_answer_does_not_pass_on_the_stream_of_another_request(
    method: str, message: Any, passes: list[Any]
) -> None:
    read = await through_gateway(
        as_events([{**ANSWER, "id": 8}, NOTE], {**ANSWER, "id": 9}, PONG), message, method=method
    )
    assert [
        json.loads(line[6:]) for line in read.body.splitlines() if line.startswith("data: ")
    ] == passes


async def test_a_server_that_is_down_is_said_in_one_answer() -> None:
    read = await Read().ask("http://127.0.0.1:9/mcp", PING)
    assert (read.status, json.loads(read.body)["id"]) == (502, 7)
    assert json.loads(read.body)["error"]["message"].startswith("The server cannot be reached (")


async def test_a_call_of_a_server_that_is_down_does_not_tell_its_address() -> None:
    read = await Read().ask("http://127.0.0.1:9/mcp", CALL)
    message = json.loads(read.body)["error"]["message"]
    assert message == "The server cannot be reached (ConnectionRefusedError)."


@pytest.mark.parametrize(
    ("body", "passes"),
    [
        (b"grant_type=client_credentials&scope=%7B", True),
        (b"token=1", True),
        (b'{"n":' + b"9" * 5000 + b"}", False),
        (b' \n[{"n":"\x01"}]', False),
        (b'{"n":"\xff"}', False),
        ('{"n":'.encode("utf-16"), False),
        (b"[" * 100_000, False),
    ],
    ids=["form", "short form", "large", "control", "no utf-8", "utf-16", "deep"],
)
def test_a_form_passes_unless_another_reader_may_find_a_message_there(
    body: bytes, passes: bool
) -> None:
    scope = {"method": "POST", "headers": [(b"content-type", b"application/x-www-form-urlencoded")]}
    assert (parse_request_body(scope, body) is None) == passes


# --- A client on our stdin ------------------------------------------------------------------------


async def over_stdio(url: str, *messages: Any, until: Callable[[list[Any]], bool]) -> list[Any]:
    """What the client reads of a proxy in front of a URL, until it has read enough."""
    client: list[Any] = []
    told = asyncio.Event()

    async def to_client(message: Any) -> None:
        client.append(message)
        told.set()

    async def deliver(said: Any) -> None:
        await relay.from_server(said)

    link = ServerUrl(url, {}, deliver)
    relay = Relay(
        MCPAdapter(Edictum(contracts=[no_secret("redact", redact=without_secret)])),
        to_client,
        link.send,
    )
    for message in messages:
        await relay.from_client(message)
    while not until(client):
        told.clear()
        await asyncio.wait_for(told.wait(), 30)
    await asyncio.gather(*link._posts.values())
    await relay.close()
    await link.stop()
    return client


@pytest.mark.parametrize("respond", ODD.values(), ids=ODD)
async def test_over_stdio_an_answer_is_judged_in_whatever_form_it_comes(respond: Respond) -> None:
    async with server(respond) as url:
        (answer,) = await over_stdio(url, CALL, until=bool)
    assert (answer["id"], SECRET in json.dumps(answer)) == (7, False)
    assert "[GONE]" in json.dumps(answer)


async def test_a_message_that_the_server_does_not_take_ends_nothing() -> None:
    told = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed", "params": "odd"}
    async with server((400, "text/plain", b"")) as url:
        answers = await over_stdio(url, told, PING, until=bool)
    assert (answers[0]["id"], "status 400" in answers[0]["error"]["message"]) == (7, True)
    answers = await over_stdio("http://127.0.0.1:9/mcp", told, PING, until=bool)
    assert answers[0]["id"] == 7
