"""The approval pages inside FastAPI and Starlette, and served alone by uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

from edictum import Principal
from edictum.approval import ApprovalLinks, ApprovalQueue, open_approvals
from edictum.approval.asgi import ApprovalApp
from support.waiting import wait_until

pytestmark = pytest.mark.s1  # needs fastapi

LINKS = ApprovalLinks("http://app/ops/approvals", key="k" * 32)
ALONE = ApprovalLinks("http://app", key="k" * 32)


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[ApprovalQueue]:
    opened = open_approvals(f"sqlite:///{tmp_path / 'approvals.db'}")
    yield opened
    await opened.close()


async def make_link(queue: ApprovalQueue, links: ApprovalLinks) -> str:
    asked = await queue.request_approval("t", {"x": 1}, "sure?")
    request = await queue.get(asked.approval_id)
    assert request is not None
    return links.make_link(request, Principal("ann"))


def mount_in_fastapi(app: ApprovalApp) -> Any:
    outer = FastAPI()
    outer.mount("/ops/approvals", app)
    return outer


def mount_twice(app: ApprovalApp) -> Any:
    return Starlette(routes=[Mount("/ops", Starlette(routes=[Mount("/approvals", app)]))])


@pytest.mark.parametrize("mount", [mount_in_fastapi, mount_twice])
async def test_mounted_in_one_line(queue: ApprovalQueue, mount: Any) -> None:
    """The link leads to the page, and the form of the page back to the app."""
    transport = httpx.ASGITransport(mount(ApprovalApp(queue, LINKS)))
    link = await make_link(queue, LINKS)
    async with httpx.AsyncClient(transport=transport) as client:
        page = await client.get(link)
        assert page.status_code == 200
        action = page.text.split('action="')[1].split('"')[0]
        assert f"http://app{action}" == link
        answered = await client.post(link, data={"answer": "approve"})
        assert "Your answer is recorded." in answered.text
        assert (await client.post(link, data={"answer": "deny"})).status_code == 409


@contextlib.contextmanager
def serve_alone(app: ApprovalApp) -> Iterator[int]:
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="on")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)


async def test_served_alone(queue: ApprovalQueue) -> None:
    """By uvicorn; a body of 10 MB is refused, with and without a length."""
    link = await make_link(queue, ALONE)

    def talk(port: int) -> list[int]:
        address = link.replace("http://app", f"http://127.0.0.1:{port}")
        form = {"content-type": "application/x-www-form-urlencoded"}
        statuses = []
        with httpx.Client(timeout=60) as client:
            for content in (b"x" * 10_000_000, (b"x" * 65_536 for _ in range(160))):
                try:
                    reply = client.post(address, content=content, headers=form)
                    statuses.append(reply.status_code)
                except httpx.TransportError:  # the server has answered and closed
                    statuses.append(413)
            statuses.append(client.get(address).status_code)
            statuses.append(client.post(address, data={"answer": "approve"}).status_code)
        return statuses

    with serve_alone(ApprovalApp(queue, ALONE)) as port:
        assert await asyncio.to_thread(talk, port) == [413, 413, 200, 200]
