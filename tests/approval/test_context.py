"""What a person is told: why they are asked, what differs, what was said and done before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from edictum import (
    Edictum,
    EdictumConfigError,
    EdictumInputError,
    OperationLimits,
    Principal,
    Verdict,
    precondition,
)
from edictum.approval import ApprovalPending, ApprovalQueue, QueuedApproval, open_approvals
from edictum.approval._context import list_differences
from edictum.harness import ModelReply, ToolCallRequest, run_turn, tool
from support.guards import approval_contract

SECRET = "sk-live-4f9d2c7b1a8e3f6058d1"
TOOLS = {"show_branch": {"side_effect": "read"}}


@pytest.fixture
async def queue(tmp_path: Path) -> AsyncIterator[ApprovalQueue]:
    opened = open_approvals(f"sqlite:///{tmp_path / 'approvals.db'}")
    yield opened
    await opened.close()


@precondition("delete_branch", effect="approve", timeout=60)
def ask_to_delete(call: Any) -> Verdict:
    return Verdict.fail(f"Delete {call.args['name']}?")


def delete_branch(name: str, force: bool = False) -> str:
    return f"{name} is gone"


def show_branch(name: str) -> str:
    return f"{name}: 3 commits, token {SECRET}"


def make_guard(queue: ApprovalQueue, **options: Any) -> Edictum:
    return Edictum(**{"contracts": [ask_to_delete], "approval_backend": queue, **options})


async def next_request(queue: ApprovalQueue) -> QueuedApproval:
    async with asyncio.timeout(60):
        while not (pending := await queue.pending(limit=1)):  # noqa: ASYNC110 - a store
            await asyncio.sleep(0.005)
    return pending[0]


async def ask(guard: Edictum, answer: bool = False, **options: Any) -> QueuedApproval:
    """Return the request that a call has made, and answer it."""
    args = options.pop("args", {"name": "old"})
    call = guard.dispatch("delete_branch", args, delete_branch, **options)
    running = asyncio.ensure_future(call)
    request = await next_request(guard.approvals)
    await guard.approvals.answer(request.approval_id, answer, approver="ann")
    await running
    return request


# --- Why ------------------------------------------------------------------------------------------


async def test_every_asker_is_named_with_its_message(queue: ApprovalQueue) -> None:
    """Contracts with what they say, and how bad the tool is."""
    other = approval_contract("delete_*", f"Is it backed up? {SECRET}", id="backed-up", timeout=60)
    request = await ask(make_guard(queue, contracts=[ask_to_delete, other]))
    assert [it["name"] for it in request.context["asked_by"]] == ["ask_to_delete", "backed-up"]
    assert request.context["asked_by"][0]["message"] == "Delete old?"
    assert SECRET not in str(request.context)
    assert request.context["side_effect"] == "irreversible"


async def test_a_limit_that_asks_is_named(queue: ApprovalQueue) -> None:
    """As a contract is, with the message of the question."""
    bundle = """
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: limits}
contracts:
  - id: two-deletions
    type: session
    limits: {max_calls_per_tool: {delete_branch: 1}}
    then: {effect: approve, message: "One is enough?", timeout: 60s}
"""
    guard = Edictum.from_yaml_string(bundle, approval_backend=queue)
    await guard.dispatch("delete_branch", {"name": "a"}, delete_branch)
    request = await ask(guard)
    assert [it["name"] for it in request.context["asked_by"]] == [request.contract]
    assert request.context["asked_by"][0]["message"] == request.message


# --- What was there before ------------------------------------------------------------------------


async def test_the_last_calls_of_the_session(queue: ApprovalQueue) -> None:
    """The newest first, without secrets, and none of other sessions."""
    guard = make_guard(queue)
    await guard.dispatch("look", {"api_key": SECRET}, lambda api_key: 1, session_id="a")
    await guard.dispatch("look", {"text": "x" * 20_000}, lambda text: 1, session_id="a")
    await guard.dispatch("other", {}, lambda: 1, session_id="b")
    for number in range(3):
        await guard.dispatch("fail", {"n": number}, lambda n: 1 / 0, session_id="a")
    request = await ask(guard, session_id="a")
    calls = request.context["last_calls"]
    assert [(it["tool_name"], it["outcome"]) for it in calls] == [
        *[("fail", "failed")] * 3,
        *[("look", "executed")] * 2,
    ]
    assert calls[0]["tool_args"] == '{"n": 2}'
    assert len(calls[3]["tool_args"]) <= 300
    assert SECRET not in str(calls)
    guard.local_sink.events  # noqa: B018 - reading moves them to another list
    again = await ask(guard, session_id="a")
    assert len(again.context["last_calls"]) == 5


async def test_arguments_beside_those_that_were_approved_last(queue: ApprovalQueue) -> None:
    """By the same tool, contract and principal; what was refused is not a precedent."""
    guard = make_guard(queue)
    ann, bob = Principal("ann"), Principal("bob")
    assert (await ask(guard, principal=ann)).precedent is None
    assert (await ask(guard, answer=True, principal=ann)).precedent is None
    args = {"name": "new", "force": True}
    request = await ask(guard, answer=True, principal=ann, args=args)
    assert request.precedent == {"name": "old", "force": False}  # what the tool ran with
    changes = list_differences(request.precedent, request.tool_args)
    assert [(it.name, it.before, it.now) for it in changes] == [
        ("name", "old", "new"),
        ("force", "false", "true"),
    ]
    assert (await ask(guard, principal=ann)).precedent == args
    assert (await ask(guard, principal=bob)).precedent is None


async def test_a_precedent_is_what_the_person_has_made_of_it(queue: ApprovalQueue) -> None:
    """Changed arguments are those that were approved."""
    guard = make_guard(queue)
    args = {"name": "old"}
    running = asyncio.ensure_future(guard.dispatch("delete_branch", args, delete_branch))
    request = await next_request(queue)
    said = {"args": {"name": "older"}, "approver": "ann"}
    await queue.answer(request.approval_id, True, **said)
    await running
    assert (await ask(guard)).precedent == {"name": "older"}


def test_changes_inside_of_arguments() -> None:
    """Each part has a path."""
    before = {"to": ["a", "b"], "deep": {"x": 1, "y": []}, "gone": None}
    now = {"to": ["a", "c", "d"], "deep": {"x": 1, "y": []}}
    changes = {it.name: (it.before, it.now) for it in list_differences(before, now)}
    assert changes == {
        "to[0]": ("a", "a"),
        "to[1]": ("b", "c"),
        "to[2]": (None, "d"),
        "deep.x": ("1", "1"),
        "deep.y": ("[]", "[]"),
        "gone": ("null", None),
    }
    assert len(list_differences(None, {str(n): n for n in range(10_000)})) == 200


# --- The prompt -----------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["Clean up {}!", [{"type": "text", "text": "Clean up {}!"}]])
async def test_the_prompt_of_a_turn(queue: ApprovalQueue, content: Any) -> None:
    """What the user has said last, without secrets."""
    shown = (
        content.format(SECRET) if isinstance(content, str) else [{"text": f"Clean up {SECRET}!"}]
    )
    replies = [
        ModelReply("", [ToolCallRequest("1", "delete_branch", {"name": "old"})]),
        ModelReply("done"),
    ]
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": shown},
        {"role": "assistant", "content": "Wait."},
    ]
    guard = make_guard(queue)
    running = asyncio.ensure_future(
        run_turn(lambda *_: replies.pop(0), messages, [delete_branch], guard)
    )
    request = await next_request(queue)
    await queue.answer(request.approval_id, True, approver="ann")
    assert (await running).text == "done"
    assert request.context["prompt"] == "Clean up [REDACTED]!"


# --- Previews -------------------------------------------------------------------------------------


async def test_a_preview_is_a_governed_call(queue: ApprovalQueue) -> None:
    """It is counted and recorded, with the call it is for as its parent, and has no secret."""
    tools = {"delete_branch": {"preview": show_branch}, **TOOLS}
    guard = make_guard(queue, tools=tools)
    request = await ask(guard, args={"name": "old", "force": True}, call_id="c")
    assert request.context["preview"] == {
        "tool": "show_branch",
        "result": "old: 3 commits, token [REDACTED]",
    }
    preview = list(guard.audit.query(tool="show_branch"))[-1]
    assert (preview["outcome"], preview["parent_call_id"]) == ("executed", "c")
    assert guard.session().executions == 1


async def test_a_question_that_is_asked_again_has_its_preview(queue: ApprovalQueue) -> None:
    """A call that goes on does not run the preview again, which would count in its session."""
    tools = {"delete_branch": {"preview": show_branch}, **TOOLS}
    previews = []
    for _ in range(3):
        guard = make_guard(queue, tools=tools)
        about: Any = {"session_id": "s", "call_id": "c", "park": True}
        with pytest.raises(ApprovalPending) as pending:
            await guard.dispatch("delete_branch", {"name": "old"}, delete_branch, **about)
        previews.append(len(guard.local_sink.filter("call_executed")))
    assert previews == [1, 0, 0]
    found = await queue.get(pending.value.request.approval_id)
    assert found is not None
    assert found.context["preview"]["tool"] == "show_branch"


async def test_a_preview_in_a_turn_is_one_of_its_tools(queue: ApprovalQueue) -> None:
    """A bundle names it; the turn has the function."""
    bundle = """
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: previews}
tools:
  delete_branch: {preview: show_branch}
contracts:
  - id: ask
    type: pre
    tool: delete_branch
    then: {effect: approve, message: "sure?", timeout: 60s}
"""
    guard = Edictum.from_yaml_string(bundle, approval_backend=queue)
    show = tool(side_effect="read")(show_branch)
    replies = [
        ModelReply("", [ToolCallRequest("1", "delete_branch", {"name": "old"})]),
        ModelReply("done"),
    ]
    messages = [{"role": "user", "content": "Clean up!"}]
    running = asyncio.ensure_future(
        run_turn(lambda *_: replies.pop(0), messages, [delete_branch, show], guard)
    )
    request = await next_request(queue)
    assert request.context["preview"]["result"].startswith("old: 3 commits")
    await queue.answer(request.approval_id, True, approver="ann")
    await running
    outside = await ask(guard)
    assert outside.context["preview"]["problem"] == "No function is known for it."


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tools": {"show_branch": {"side_effect": "write"}}}, "not a tool that only reads"),
        (
            {"contracts": [ask_to_delete, approval_contract("show_branch", timeout=60)]},
            "Not allowed: are you sure?",
        ),
        ({"limits": OperationLimits(max_calls_per_tool={"show_branch": 0})}, "Not allowed"),
    ],
)
async def test_a_preview_that_is_not_made(
    queue: ApprovalQueue, options: dict[str, Any], problem: str
) -> None:
    """The person is asked all the same, and told why."""
    tools = {**TOOLS, **options.pop("tools", {}), "delete_branch": {"preview": show_branch}}
    guard = make_guard(queue, **options, tools=tools)
    request = await ask(guard)
    assert problem in request.context["preview"]["problem"]
    assert list(guard.audit.query(tool="show_branch")) == []


async def test_a_preview_that_fails(queue: ApprovalQueue) -> None:
    """Its failure is what it says."""

    def broken(name: str) -> str:
        raise ValueError("no such branch")

    def wants_more(name: str, remote: str) -> str:
        return name

    for function in (broken, wants_more):
        guard = make_guard(queue, tools={"delete_branch": {"preview": function}})
        request = await ask(guard)
        assert "error" in request.context["preview"]["result"]


def test_a_synchronous_call_has_a_preview_too(queue: ApprovalQueue) -> None:
    """The read tool runs before the question, in either kind of host."""
    tools = {"delete_branch": {"preview": show_branch}}
    contract = approval_contract("delete_branch", timeout=0.05)
    guard = make_guard(queue, contracts=[contract], tools=tools)
    guard.dispatch_sync("delete_branch", {"name": "old"}, delete_branch)
    assert [it.tool_name for it in guard.local_sink.filter("call_executed")] == ["show_branch"]


def test_a_preview_is_a_name_or_a_function() -> None:
    """Anything else is refused when the guard is made."""
    with pytest.raises(EdictumConfigError, match="preview"):
        Edictum(tools={"t": {"preview": 5}})


# --- Several answers ------------------------------------------------------------------------------


async def test_several_requests_answered_in_one_call(queue: ApprovalQueue) -> None:
    """Each has its own result."""
    asked = [await queue.request_approval("t", {"n": n}, "?") for n in range(3)]
    ids = [it.approval_id for it in asked]
    await queue.answer(ids[1], False, approver="bob")
    results = await queue.answer_many([*ids, "unknown", ids[0]], True, approver="ann")
    assert list(results) == [*ids, "unknown"]
    assert [getattr(it, "status", None) for it in results.values()] == [
        "approved",
        None,
        "approved",
        None,
    ]
    assert all(isinstance(results[it], EdictumInputError) for it in (ids[1], "unknown"))
