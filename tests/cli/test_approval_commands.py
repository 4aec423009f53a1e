"""``edictum approvals`` as people type it, while a call waits in another place."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from edictum import Approvers, Edictum, Principal, ToolDenied, ToolExecutionResult
from edictum.approval import ApprovalLinks, ApprovalQueue, QueuedApproval, open_approvals
from edictum.approval.asgi import ApprovalApp
from edictum.cli.main import main
from support.asgi import serve_app
from support.guards import approval_contract
from support.waiting import wait_until

LONG = 60.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'approvals.db'}?wait={LONG}"


@pytest.fixture
async def guard(url: str) -> AsyncIterator[Edictum]:
    made = Edictum(contracts=[approval_contract(timeout=LONG)], approval_backend=url)
    yield made
    await made.close()


def start(guard: Edictum, amount: int = 10, **options: Any) -> asyncio.Future[Any]:
    """Make a call that asks."""
    call = guard.dispatch("refund", {"amount": amount}, lambda amount: amount, **options)
    return asyncio.ensure_future(call)


async def next_request(queue: ApprovalQueue, count: int = 1) -> QueuedApproval:
    """Return the newest of so many requests, as soon as they are there."""
    async with asyncio.timeout(LONG):
        while len(pending := await queue.pending()) < count:  # noqa: ASYNC110 - in a store
            await asyncio.sleep(0.01)
    return pending[-1]


async def run_command(url: str, name: str, *arguments: str) -> int:
    return await asyncio.to_thread(main, ["approvals", name, *arguments, "--store", url])


def read_lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# --- By links -------------------------------------------------------------------------------------


ANN = Principal("ann", role="ops")


@dataclass
class Pages:
    """The pages of a queue, and the links to them."""

    queue: ApprovalQueue
    links: ApprovalLinks
    url: str

    async def link(self, approver: Principal = ANN, count: int = 1) -> str:
        """Return the link of the newest of so many requests."""
        request = await next_request(self.queue, count)
        return f"{self.url}/t/{self.links.make_token(request, approver)}"


@pytest.fixture
async def pages(url: str) -> AsyncIterator[Pages]:
    queue = open_approvals(url)
    links = ApprovalLinks("https://ops.example", key="a key of 24 bytes or more")
    async with serve_app(ApprovalApp(queue, links)) as address:
        yield Pages(queue, links, address)
    await queue.close()


@pytest.fixture
async def strict(url: str) -> AsyncIterator[Edictum]:
    """A guard whose calls want a person of a role."""
    asking = approval_contract(timeout=LONG, approvers=Approvers(roles=("ops",)))
    made = Edictum(contracts=[asking], approval_backend=url)
    yield made
    await made.close()


async def run_by_link(name: str, *arguments: str) -> int:
    return await asyncio.to_thread(main, ["approvals", name, *arguments])


async def test_a_verified_person_answers_by_a_link(
    strict: Edictum, pages: Pages, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name does not count there, and the link needs no store."""
    running = start(strict)
    request = await next_request(pages.queue)
    assert await run_command(url, "approve", request.approval_id, "--approver", "ann") == 1
    assert "is a plain name" in capsys.readouterr().err
    link = await pages.link()
    assert await run_by_link("show", link) == 0
    shown = capsys.readouterr().out
    assert '{"amount": 10}' in shown
    assert "without an answer the call is denied" in shown
    assert await run_by_link("approve", link, "--reason", "It is due.") == 0
    assert capsys.readouterr().out == f"{request.approval_id}  approved\n"
    assert isinstance(await running, ToolExecutionResult)
    granted = strict.local_sink.filter("call_approval_granted")[0]
    assert (granted.approver, granted.reason) == ("ann", "It is due.")


async def test_no_changes_and_grants_by_links(
    strict: Edictum, pages: Pages, capsys: pytest.CaptureFixture[str]
) -> None:
    running = start(strict, session_id="s")
    assert await run_by_link("edit", await pages.link(), "--set", "amount=5") == 0
    assert (await running).value == 5
    running = start(strict, session_id="s")
    assert await run_by_link("deny", await pages.link(), "--reason", "no") == 0
    assert (await running).details == "no"
    running = start(strict, session_id="s")
    capsys.readouterr()
    assert await run_by_link("approve", await pages.link(), "--grant", "session", "--json") == 0
    assert isinstance(await running, ToolExecutionResult)
    assert read_lines(capsys)[-1]["status"] == "approved"
    assert isinstance(await start(strict, session_id="s"), ToolExecutionResult)


async def test_links_that_do_not_count(
    strict: Edictum, pages: Pages, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forged, of a person who may not answer, of something else, and used before."""
    running = start(strict)
    link = await pages.link()
    forged = f"{link[:-2]}{'AA' if link[-2:] != 'AA' else 'BB'}"
    stranger = await pages.link(Principal("eve", role="dev"))
    for wrong, said in {
        forged: "This link is not valid",
        stranger: "'eve' may not answer it",
        f"{pages.url}/elsewhere": "This link is not valid",
        "http://127.0.0.1:1/t/x": "could not be opened",
    }.items():
        assert await run_by_link("approve", wrong) == 1
        assert said in capsys.readouterr().err
    assert await run_by_link("approve", link, link) == 1
    said = capsys.readouterr()
    assert said.out.count("approved") == 1
    assert "is approved already" in said.err or "not pending" in said.err
    assert isinstance(await running, ToolExecutionResult)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["approve", "https://x/t/y", "--approver", "ann"],
            "--approver cannot be combined with an approval link",
        ),
        (["approve", "abc"], "store is not named"),
        (["revoke", "https://x/t/y"], "store is not named"),
        (["list"], "store is not named"),
    ],
)
def test_commands_that_need_a_store(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["approvals", *words]) == 2
    assert problem in capsys.readouterr().err


async def test_a_page_of_something_else() -> None:
    async def say_hello(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    async with serve_app(say_hello) as address:
        assert await run_by_link("approve", f"{address}/t/x") == 1


async def test_what_helps_to_decide_is_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As on the page: what differs from the last yes, why, the calls before, what a yes means."""

    def show_order(amount: int) -> str:
        return f"order of {amount}"

    guard = Edictum(
        contracts=[approval_contract("refund", message="sure?", timeout=LONG)],
        approval_backend=url,
        tools={
            "refund": {"side_effect": "irreversible", "preview": show_order},
            "show_order": {"side_effect": "read"},
        },
    )
    for amount in (10, 20):
        running = start(guard, amount, session_id="s-1")
        request = await next_request(guard.approvals)
        await run_command(url, "show", request.approval_id)
        await run_command(url, "approve", request.approval_id)
        await running
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "new amount: 20; approved last: 10" in shown
    assert "asked by precondition ask: sure?" in shown
    assert "preview show_order: order of 20" in shown
    assert any(line.startswith("call ") and "refund" in line for line in shown)
    assert any(line.startswith("a yes ") and "cannot be undone" in line for line in shown)
    await guard.close()


# --- Lists ----------------------------------------------------------------------------------------


async def test_all_requests_are_listed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Page by page, unless there is a limit."""
    queue = open_approvals(url)
    for number in range(105):
        await queue.request_approval("t", {"n": number}, "?", timeout=LONG)
    await queue.close()
    assert await run_command(url, "list", "--json") == 0
    listed = read_lines(capsys)
    assert [it["tool_args"]["n"] for it in listed] == list(range(105))
    after = listed[1]["approval_id"]
    assert await run_command(url, "list", "--json", "--limit", "2", "--after", after) == 0
    assert [it["tool_args"]["n"] for it in read_lines(capsys)] == [2, 3]
    assert await run_command(url, "list", "--limit", "2") == 0
    assert f"There may be more: --after {after}" in capsys.readouterr().out
    assert await run_command(url, "list", "--limit", "0") == 2


# --- On any store ---------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "valkey", "postgres"])
def any_url(request: pytest.FixtureRequest, url: str) -> str:
    if request.param == "sqlite":
        return url
    found: str = request.getfixturevalue(f"{request.param}_url")
    if request.param == "postgres":
        return f"{found}?schema=commands_{time.time_ns()}&wait={LONG}"
    with redis.Redis.from_url(found) as client:
        client.flushdb()
    return f"{found}?wait={LONG}"


async def test_a_call_is_listed_shown_and_approved(
    any_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    guard = Edictum(contracts=[approval_contract(timeout=LONG)], approval_backend=any_url)
    running = start(guard, session_id="s-1")
    asked = (await next_request(guard.approvals)).approval_id
    assert await run_command(any_url, "list") == 0
    assert f"1 pending\n=========\nid{' ' * 34}  asked" in (printed := capsys.readouterr().out)
    assert asked in printed
    assert await run_command(any_url, "show", asked) == 0
    assert 'arguments  {"amount": 10}' in capsys.readouterr().out
    assert await run_command(any_url, "approve", asked, "--approver", "ann", "--json") == 0
    (said,) = read_lines(capsys)
    assert (said["approval_id"], said["approver"]) == (asked, "ann")
    assert isinstance(await running, ToolExecutionResult)
    await guard.close()


# --- Lists ----------------------------------------------------------------------------------------


async def test_lists_have_filters_pages_and_json(
    guard: Edictum, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []
    for number in range(3):
        calls.append(start(guard, number, session_id=f"s-{number % 2}"))
        await next_request(guard.approvals, number + 1)
    assert await run_command(url, "list", "--json", "--session", "s-0") == 0
    assert [it["tool_args"] for it in read_lines(capsys)] == [{"amount": 0}, {"amount": 2}]
    assert await run_command(url, "list", "--limit", "2") == 0
    note = capsys.readouterr().out.strip().splitlines()[-1]
    assert "There may be more: --after " in note
    assert await run_command(url, "list", "--json", "--after", note.split()[-1]) == 0
    assert [it["tool_args"] for it in read_lines(capsys)] == [{"amount": 2}]
    assert await run_command(url, "list", "--json", "--tool", "other") == 0
    assert read_lines(capsys) == []
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)


async def test_a_model_cannot_write_lines_of_its_own(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor repaint the terminal: arguments may be quoted in the question."""
    contract = approval_contract(message="x\nstatus     approved\x1b[2J", timeout=LONG)
    guard = Edictum(contracts=[contract], approval_backend=url)
    running = start(guard)
    request = await next_request(guard.approvals)
    await run_command(url, "show", request.approval_id)
    await run_command(url, "list")
    printed = capsys.readouterr().out
    assert printed.replace("\n", "").isprintable()
    assert "\nstatus     approved" not in printed
    running.cancel()
    await asyncio.wait([running])
    await guard.close()


# --- Answers --------------------------------------------------------------------------------------


async def test_several_are_denied_with_a_reason(
    guard: Edictum, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that cannot be answered does not keep the others from being answered."""
    calls = [start(guard, number) for number in range(2)]
    await next_request(guard.approvals, 2)
    ids = [it.approval_id for it in await guard.approvals.pending()]
    assert await run_command(url, "deny", ids[0], "unknown", ids[1], "--reason", "no") == 1
    shown = capsys.readouterr()
    assert shown.out == f"{ids[0]}  denied\n{ids[1]}  denied\n"
    assert "No approval request 'unknown'" in shown.err
    for outcome in await asyncio.gather(*calls):
        assert isinstance(outcome, ToolDenied)
        assert outcome.details == "no"


@pytest.mark.parametrize(
    ("options", "amount"),
    [(["--set", "amount=5"], 5), (["--args", '{"amount": 6}'], 6), ([], 7)],
)
async def test_arguments_are_changed(
    guard: Edictum,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    amount: int,
) -> None:
    """On the command line, or in an editor."""
    editor = tmp_path / "editor.py"
    editor.write_text("import sys; open(sys.argv[1], 'w').write('{\"amount\": 7}')")
    monkeypatch.setenv("VISUAL", f"{sys.executable} {editor}")
    running = start(guard)
    asked = (await next_request(guard.approvals)).approval_id
    assert await run_command(url, "edit", asked, *options) == 0
    outcome = await running
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == amount


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--args", "[1]"], "not a JSON object"),
        (["--args", "{"], "are not JSON"),
        ([], "The editor 'false' failed"),
    ],
)
async def test_arguments_that_cannot_be_read_answer_nothing(
    guard: Edictum,
    url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    problem: str,
) -> None:
    monkeypatch.setenv("VISUAL", "false")
    running = start(guard)
    asked = (await next_request(guard.approvals)).approval_id
    assert await run_command(url, "edit", asked, *options) == 1
    assert problem in capsys.readouterr().err
    assert [it.approval_id for it in await guard.approvals.pending()] == [asked]
    running.cancel()
    await asyncio.wait([running])


async def test_a_grant_is_given_listed_and_revoked(
    guard: Edictum, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until then further calls of the session are not asked about."""
    running = start(guard, session_id="s")
    asked = (await next_request(guard.approvals)).approval_id
    terms = ["--grant", "session", "--until", "8h", "--match", 'amount={"at_most": 50}']
    assert await run_command(url, "approve", asked, *terms) == 0
    assert f"{asked}  approved" in capsys.readouterr().out
    await running
    assert isinstance(await start(guard, 40, session_id="s"), ToolExecutionResult)
    assert await run_command(url, "grants", "--json") == 0
    (grant,) = read_lines(capsys)
    assert (grant["session_id"], grant["args"]) == ("s", {"amount": {"at_most": 50}})
    assert await run_command(url, "grants") == 0
    assert f"1 in force\n==========\nid{' ' * 34}  granted by" in capsys.readouterr().out
    assert await run_command(url, "revoke", grant["grant_id"]) == 0
    assert await run_command(url, "grants", "--json") == 0
    assert capsys.readouterr().out == f"{grant['grant_id']}  revoked\n"
    again = start(guard, 40, session_id="s")
    second = (await next_request(guard.approvals)).approval_id
    assert await run_command(url, "deny", second) == 0
    assert isinstance(await again, ToolDenied)


async def test_a_yes_is_revoked(
    guard: Edictum, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """While its tool was not started."""
    request = await guard.approvals.request_approval("refund", {}, "?", timeout=LONG)
    assert await run_command(url, "approve", request.approval_id) == 0
    assert await run_command(url, "revoke", request.approval_id) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{request.approval_id}  void"
    assert await run_command(url, "revoke", "unknown") == 1
    assert "No grant 'unknown'" in capsys.readouterr().err


# --- Mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["show", "unknown"], "No approval request 'unknown'"),
        (["list", "--limit", "0"], "limit is 0"),
        (["list", "--", "x"], "Unexpected argument 'x' after --"),
        (["approve", "x", "--until", "8h"], "are for grants"),
        (["approve", "x", "--grant", "session", "--until", "soon"], "--until is 'soon'"),
        (["approve", "x", "--grant", "session", "--match", "amount"], "--match is 'amount'"),
        (["approve", "x", "--grant", "principal"], "until when it counts"),
    ],
)
async def test_a_command_that_cannot_be_is_refused(
    guard: Edictum, url: str, capsys: pytest.CaptureFixture[str], command: list[str], problem: str
) -> None:
    await guard.approvals.check()
    name, *rest = command
    given = ["approvals", name, "--store", url, *rest]
    assert await asyncio.to_thread(main, given) == 2
    assert problem in capsys.readouterr().err


def test_a_file_that_is_not_there_is_not_made(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A path that is mistyped would show an empty queue."""
    assert main(["approvals", "list", "--store", url]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# --- Watching -------------------------------------------------------------------------------------


def start_process(*arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "edictum", "approvals", *arguments]
    return subprocess.Popen(command, **streams)


class Screen:
    """A terminal with ``watch`` in it."""

    def __init__(self, url: str) -> None:
        self._outer, inner = pty.openpty()
        streams = {"stdin": inner, "stdout": inner, "stderr": inner}
        self.process = start_process("watch", "--store", url, "--approver", "ann", **streams)
        os.close(inner)
        os.set_blocking(self._outer, False)
        self._shown = b""

    def has_shown(self, text: str) -> bool:
        """Return whether a text has been shown since the last one."""
        with suppress(OSError):  # nothing new, or it has ended
            self._shown += os.read(self._outer, 65_536)
        found = text.encode() in self._shown
        if found:
            self._shown = self._shown.partition(text.encode())[2]
        return found

    async def expect(self, text: str) -> None:
        await asyncio.to_thread(wait_until, lambda: self.has_shown(text))

    def type(self, keys: str) -> None:
        os.write(self._outer, keys.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._outer)


@pytest.mark.slow
async def test_requests_are_answered_with_one_key(guard: Edictum, url: str) -> None:
    """Yes, no with a reason, later, yes for the session; then q."""
    await guard.approvals.check()
    screen = Screen(url)
    try:
        await screen.expect("q quits")
        running = start(guard, 1)
        await screen.expect("[q] quit")
        screen.type("xy")  # a key that means nothing is left out
        await screen.expect("approved")
        assert isinstance(await running, ToolExecutionResult)
        running = start(guard, 2)
        await screen.expect("[q] quit")
        screen.type("n")
        await screen.expect("Why?")
        screen.type("not today\n")
        assert (await running).details == "not today"
        later = start(guard, 3)
        await screen.expect("[q] quit")
        screen.type("s")
        running = start(guard, 4, session_id="s")
        await screen.expect('"amount": 4')
        await screen.expect("[q] quit")
        screen.type("g")
        await screen.expect("approved")
        assert isinstance(await running, ToolExecutionResult)
        (grant,) = await guard.approvals.grants()
        assert (grant.session_id, grant.approver) == ("s", "ann")
        screen.type("q")
        await asyncio.to_thread(screen.process.wait, LONG)
        assert screen.process.returncode == 0
        later.cancel()
        await asyncio.wait([later])
    finally:
        screen.close()


@pytest.mark.slow
async def test_requests_are_printed_as_they_come(guard: Edictum, url: str) -> None:
    """Each once, for other programs."""
    await guard.approvals.check()
    process = start_process("watch", "--json", "--store", url, stdout=subprocess.PIPE)
    calls = []
    try:
        assert process.stdout is not None
        for amount in (1, 2):
            calls.append(start(guard, amount))
            line = await asyncio.to_thread(process.stdout.readline)
            assert json.loads(line)["tool_args"] == {"amount": amount}
    finally:
        process.kill()
        process.communicate()
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
