"""The approval page in a real Chromium: it asks for nothing else, and its buttons answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from edictum import Edictum, Principal, ToolExecutionResult, Verdict, precondition
from edictum.approval import ApprovalLinks, ApprovalQueue, QueuedApproval, open_approvals
from edictum.approval.asgi import ApprovalApp
from support.asgi import serve_app
from support.chromium import ROOT, Browser, start_browser

SCREENSHOT = ROOT / "docs" / "guides" / "approval-page.png"
TOOLS: dict[str, Any] = {"show_order": {"side_effect": "read"}}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with start_browser() as opened:
        yield opened


@precondition("refund", effect="approve", timeout=600)
def large_refunds(call: Any) -> Verdict:
    return Verdict.fail(f"Refund {call.args['amount']} EUR for order {call.args['order']}?")


def show_order(order: str) -> str:
    return f"order {order}: 1 bicycle, 480 EUR, delivered 2026-11-03"


class Desk:
    """A guard whose calls wait, and the address of their pages."""

    def __init__(self, queue: ApprovalQueue, links: ApprovalLinks, url: str) -> None:
        self.queue, self.links, self.url = queue, links, url
        tools = {**TOOLS, "refund": {"preview": show_order}}
        self.guard = Edictum(contracts=[large_refunds], approval_backend=queue, tools=tools)

    async def ask(self, **args: Any) -> tuple[asyncio.Task[Any], QueuedApproval]:
        about: dict[str, Any] = {"principal": Principal("mia", role="support")}
        call = self.guard.dispatch("refund", args, lambda **given: given, **about, session_id="s")
        running = asyncio.ensure_future(call)
        while not (pending := await self.queue.pending()):  # noqa: ASYNC110 - a store
            await asyncio.sleep(0.005)
        return running, pending[0]

    def link(self, request: QueuedApproval) -> str:
        return f"{self.url}/t/{self.links.make_token(request, Principal('ann'))}"


@asynccontextmanager
async def open_desk(folder: Path) -> AsyncIterator[Desk]:
    queue = open_approvals(f"sqlite:///{folder / 'approvals.db'}")
    links = ApprovalLinks("http://127.0.0.1", key="k" * 32)
    async with serve_app(ApprovalApp(queue, links)) as url:
        yield Desk(queue, links, url)
    await queue.close()


def click(browser: Browser, script: str) -> None:
    """Run a script that sends the form, and wait for the page that follows."""
    browser.events.clear()
    browser.evaluate(script)
    browser.wait_for("Page.loadEventFired")


async def test_a_click_approves(browser: Browser, tmp_path: Path) -> None:
    """The page loads nothing else, breaks no rule of its own, and the call runs."""
    async with open_desk(tmp_path) as desk:
        first, request = await desk.ask(order="A-102", amount=40, reason="scratched")
        await desk.queue.answer(request.approval_id, True, approver="ann")
        await first
        running, request = await desk.ask(order="A-118", amount=480, reason="does not fit")
        link = desk.link(request)

        def visit() -> list[str]:
            browser.open(link, width=900, scheme="light")
            assert browser.list_requests() == [link]
            logged = [it for it in browser.events if it.get("method") == "Log.entryAdded"]
            assert logged == []
            assert browser.evaluate(
                "getComputedStyle(document.querySelector('del')).textDecoration"
            )
            height = browser.evaluate("document.documentElement.scrollHeight")
            image = browser.take_screenshot(900, height)
            if os.environ.get("EDICTUM_SCREENSHOT") or not SCREENSHOT.exists():
                SCREENSHOT.write_bytes(image)
            click(browser, "document.querySelector('button.yes').click()")
            return [browser.evaluate("document.body.innerText")]

        (text,) = await asyncio.to_thread(visit)
        assert "Your answer is recorded." in text
        assert isinstance(await running, ToolExecutionResult)


async def test_changed_arguments_and_the_enter_key(browser: Browser, tmp_path: Path) -> None:
    """Enter in the reason answers nothing; the JSON that the page shows can be sent back."""
    async with open_desk(tmp_path) as desk:
        strange = "a\u202eb\x7f\U000e0001 é </textarea>"
        running, request = await desk.ask(order=strange, amount=480)
        link = desk.link(request)
        edit = "document.querySelector('textarea.json').value.replace('480', '48')"

        def visit() -> None:
            browser.open(link, width=420, scheme="dark")
            assert browser.evaluate("document.documentElement.scrollWidth") == 420
            browser.evaluate("document.querySelector('textarea.reason').focus()")
            for kind in ("keyDown", "keyUp"):
                key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
                browser.send("Input.dispatchKeyEvent", type=kind, **key)
            assert browser.evaluate("document.querySelector('textarea.reason').value") == "\n"
            assert browser.evaluate("location.href") == link
            browser.evaluate(f"document.querySelector('textarea.json').value = {edit}")
            click(browser, "document.querySelector('button[value=change]').click()")

        await asyncio.to_thread(visit)
        outcome = await running
        assert outcome.value == {"order": strange, "amount": 48}
