"""examples/streaming behind FastAPI: a client that leaves in the middle, and one that comes back."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect

from support.processes import ROOT
from support.servers import free_port
from support.waiting import wait_until

pytestmark = pytest.mark.s1  # needs fastapi

EXAMPLE = ROOT / "examples" / "streaming" / "service.py"


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "ARCHIVE_SECONDS": "2"}
    command = [sys.executable, str(EXAMPLE), str(port)]
    with (
        subprocess.Popen(command, env=environment) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as found,
    ):
        try:
            wait_until(lambda: process.poll() is not None or is_up(found))
            assert process.poll() is None
            yield found
        finally:
            process.terminate()


def is_up(client: httpx.Client) -> bool:
    try:
        return client.get("/archive").status_code == 200
    except httpx.HTTPError:
        return False


def read_events(client: httpx.Client, conversation: str, text: str) -> Iterator[tuple[str, Any]]:
    path, name = f"/conversations/{conversation}", ""
    with client.stream("POST", path, json={"text": text}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


def test_a_client_that_leaves_cancels_its_turn_and_the_next_message_knows(
    client: httpx.Client,
) -> None:
    events = read_events(client, "left", "Archive everything.")
    seen = []
    for name, data in events:
        seen.append((name, data))
        if name == "ToolCallMade" and data["arguments"] == {"name": "photos"}:
            break
    events.close()  # the connection is closed while the second file is being archived
    words = "".join(data["text"] for name, data in seen if name == "TextDelta")
    assert words == "I will archive all files, one after the other. "
    assert [data["outcome"] for name, data in seen if name == "ToolCallEnded"] == ["executed"]

    answered = list(read_events(client, "left", "What did you do?"))
    assert answered[-1][0] == "TurnEnded"
    said = answered[-1][1]["text"]
    assert "letters: letters is in the archive" in said
    assert "photos: The caller was cancelled while the tool ran. Whether it took effect" in said
    assert "taxes: Blocked: The turn was cancelled before this call was made." in said
    assert client.get("/archive").json() == ["letters"]


def test_a_client_that_stays_hears_a_turn_from_the_first_word_to_the_last(
    client: httpx.Client,
) -> None:
    events = list(read_events(client, "stays", "What did you do?"))
    assert [name for name, _ in events[:-1]] == ["TextDelta"] * (len(events) - 1)
    assert events[-1] == (
        "TurnEnded",
        {"stopped_by": "answered", "text": "This is what I know. Nothing was done. "},
    )


# --- A client that cannot be written to -----------------------------------------------------------


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example in this process, behind no server."""
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    monkeypatch.setenv("ARCHIVE_SECONDS", "0.2")
    yield importlib.import_module("service")
    for name in ("service", "agent"):
        del sys.modules[name]


async def post(app: Any, text: str, spec_version: str, fails_at: str = "") -> str:
    """Send a message as a server does. Writing of a certain text hangs until the client has gone,
    or raises, as servers of ASGI 2.4 do.
    """
    body = json.dumps({"text": text}).encode()
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/conversations/1",
        "query_string": b"",
        "root_path": "",
        "asgi": {"version": "3.0", "spec_version": spec_version},
        "headers": [(b"content-type", b"application/json")],
    }
    received = [{"type": "http.request", "body": body}]
    gone, sent = asyncio.Event(), []

    async def receive() -> Any:
        if received:
            return received.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b"").decode())
        if fails_at and fails_at in sent[-1]:
            if spec_version == "2.4":
                raise OSError("the client has gone")
            gone.set()
            await asyncio.sleep(60)

    with contextlib.suppress(ClientDisconnect):
        await app(scope, receive, send)
    return "".join(sent)


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
async def test_a_client_that_cannot_be_written_to_stops_its_turn(
    service: Any, spec_version: str
) -> None:
    await post(service.app, "Archive everything.", spec_version, fails_at='"photos"')
    assert service.archived == ["letters"]
    said = await post(service.app, "What did you do?", spec_version)
    assert "letters: letters is in the archive" in said
    assert "photos: The caller was cancelled while the tool ran." in said
    assert "taxes: Blocked: The turn was cancelled before this call was made." in said
