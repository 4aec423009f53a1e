"""Claude Agent SDK: calls that wait for a person while their run has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import HookMatcher, SdkMcpTool
from pause_claude_agent_sdk import CASES as PAUSE_CASES
from pausing import PauseScene, check_pauses

from edictum import Edictum, Verdict, precondition
from edictum.adapters import ClaudeAgentSDKAdapter
from edictum.adapters._claude_deferring import DeferredCalls, name_in_cli
from support.waiting import wait_in_loop

pytestmark = pytest.mark.s1  # needs claude_agent_sdk


@pytest.mark.soak
def test_a_deferred_call_is_made_by_another_process(tmp_path: Path) -> None:
    check_pauses(PauseScene("claude_agent_sdk", tmp_path), PAUSE_CASES)


class Asking:
    """An agent whose calls of ``delete`` need approval, and the hooks that the CLI would ask."""

    def __init__(self, guard: Edictum, hooks: Any = None) -> None:
        self.guard, self.ran = guard, []
        adapter = ClaudeAgentSDKAdapter(guard)
        tool = SdkMcpTool("delete", "Delete.", {"name": str}, self.delete)
        (self.tool,) = adapter.wrap_tools([tool], server="my files")
        wired = adapter.wrap_hooks({"PreToolUse": [HookMatcher(hooks=hooks or [])]})
        self._hooks = {event: matchers[0].hooks[0] for event, matchers in wired.items()}

    async def delete(self, args: Any) -> Any:
        self.ran.append(args["name"])
        return {"content": [{"type": "text", "text": "gone"}]}

    async def ask(self, key: str, name: str, tool: str = "mcp__my_files__delete") -> Any:
        """Return the decision of the hook, and its reason."""
        asked = {"tool_name": tool, "tool_input": {"name": name}, "tool_use_id": key}
        asked |= {"session_id": "s", "prompt_id": "p"}
        said = (await self._hooks["PreToolUse"](asked, key, {})).get("hookSpecificOutput") or {}
        return said.get("permissionDecision"), said.get("permissionDecisionReason")


@precondition("*", id="ask", effect="approve")
def ask(call: Any) -> Verdict:
    return Verdict.pass_() if call.args["name"] == "free" else Verdict.fail("Delete it?")


@pytest.fixture
async def guard(tmp_path: Path) -> AsyncIterator[Edictum]:
    url = f"sqlite:///{tmp_path}/approvals.db"
    async with Edictum(contracts=[ask], approval_backend=url) as made:
        yield made


async def answer(guard: Edictum, approved: bool) -> None:
    (request,) = await guard.approvals.pending()
    await guard.approvals.answer(request.approval_id, approved, approver="ann")


async def test_a_run_waits_for_one_call_only_and_is_told_to_make_others_again(
    guard: Edictum,
) -> None:
    """The CLI would forget all but the last that is deferred; no question is left behind."""
    agent = Asking(guard)
    told = await asyncio.gather(agent.ask("c1", "a"), agent.ask("c2", "b"), agent.ask("c3", "free"))
    assert sorted(str(decision) for decision, _ in told) == ["None", "defer", "deny"]
    (reason,) = [reason for decision, reason in told if decision == "deny"]
    assert "Make the call again" in reason
    (request,) = await guard.approvals.pending()
    await answer(guard, True)
    first = request.tool_args["name"]
    key = {"a": "c1", "b": "c2"}[first]
    assert await agent.ask(key, first) == (None, None)
    await agent.tool.handler({"name": first})
    assert agent.ran == [first]
    other = "b" if first == "a" else "a"
    assert await agent.ask("c4", other) == ("defer", None)


async def test_a_call_that_the_cli_makes_without_its_hooks_does_not_run(guard: Edictum) -> None:
    """As when it goes on before the SDK has told it of them."""
    agent = Asking(guard)
    assert await agent.ask("c1", "a") == ("defer", None)
    await answer(guard, True)
    said = await agent.tool.handler({"name": "a"})
    assert (said["is_error"], agent.ran) == (True, [])
    assert guard.local_sink.last().action == "call_denied"


async def test_a_person_who_says_no_is_heard_when_the_contract_does_not_ask_any_more(
    tmp_path: Path,
) -> None:
    asks = [True]

    @precondition("*", id="ask", effect="approve")
    def ask_once(call: Any) -> Verdict:
        return Verdict.fail("Delete it?") if asks else Verdict.pass_()

    url = f"sqlite:///{tmp_path}/approvals.db"
    async with Edictum(contracts=[ask_once], approval_backend=url) as guard:
        agent = Asking(guard)
        assert await agent.ask("c1", "a") == ("defer", None)
        await answer(guard, False)
        asks.clear()
        decision, _ = await agent.ask("c1", "a")
        assert decision == "deny"


@pytest.mark.parametrize("tool", ["Bash", "mcp__other__delete"])
async def test_a_tool_that_would_run_without_the_guard_is_not_deferred(
    guard: Edictum, tool: str
) -> None:
    """Not by a hook of the user either: the CLI would make the call before it asks any hook."""

    async def defer(asked: Any, call_id: Any, context: Any) -> Any:
        return {"hookSpecificOutput": {"permissionDecision": "defer"}}

    agent = Asking(guard, [defer])
    told, reason = await agent.ask("c1", "free", tool)
    assert (told, "wrap_tools" in reason) == ("deny", True)
    assert guard.local_sink.last().action == "call_denied"
    assert await agent.ask("c2", "free") == ("defer", None), "its handler is the gate"


async def test_a_tool_of_the_cli_waits_and_that_is_said_once(
    guard: Edictum, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Asking(guard)
    waiting = [asyncio.create_task(agent.ask(f"c{n}", f"{n}", "Bash")) for n in range(2)]
    sink = guard.local_sink
    await wait_in_loop(lambda: len(sink.filter("call_approval_requested")) == 2)
    for request in await guard.approvals.pending():
        await guard.approvals.answer(request.approval_id, True, approver="ann")
    assert await asyncio.gather(*waiting) == [(None, None)] * 2
    (line,) = [it for it in caplog.messages if "wait for the answer in this process" in it]
    assert "wrap_tools(tools, server=...)" in line


def test_runs_that_are_never_resumed_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edictum.adapters._claude_deferring.MAX_OPEN", 3)
    calls = DeferredCalls()
    for number in range(10):
        assert calls.claim({"session_id": f"s{number}", "tool_use_id": "c"})
    assert len(calls._keys) == 3


def test_names_are_those_of_the_cli() -> None:
    assert name_in_cli("my files", "de.lete") == "mcp__my_files__de_lete"
