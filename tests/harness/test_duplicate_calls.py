"""The same call in a turn: who shares a body with whom, whose result is given again, and as
what.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import tempfile
import threading
from typing import Any

import pytest
from turns import (
    Bench,
    Clerk,
    ask_first,
    expect_result,
    new_guard,
    new_state,
    request,
    wait_for_duplicate,
)

from edictum import ApprovalDecision, Edictum, InMemoryApprovalBackend, Principal
from edictum.harness import ArtifactStore, ReplayControl, ToolSpec, tool
from edictum.outcomes import (
    ToolArtifactReference,
    ToolDenied,
    ToolExecutionResult,
    outcome_to_model_content,
)

WHO = contextvars.ContextVar("WHO", default="alice")


def resolve(tool_name: str, args: Any) -> Principal:
    return Principal(user_id=WHO.get())


# --- Writes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("isolation", ["async", "thread"])
async def test_two_identical_writes_at_once_run_one_body(isolation: Any) -> None:
    ran: list[int] = []
    go_on = threading.Event()

    def write(x: int) -> dict[str, Any]:
        ran.append(x)
        go_on.wait(30)
        return {"ok": True}

    async def write_async(x: int) -> dict[str, Any]:
        ran.append(x)
        await asyncio.to_thread(go_on.wait, 30)
        return {"ok": True}

    body = write if isolation == "thread" else write_async
    bench = Bench(tool(name="put", side_effect="write", idempotent=True, isolation=isolation)(body))
    calls = [asyncio.create_task(bench.call("put", {"x": 1}, call_id)) for call_id in "ab"]
    await wait_for_duplicate(bench)
    go_on.set()
    assert [expect_result(outcome).turn.replayed for outcome in await asyncio.gather(*calls)] == [
        False,
        True,
    ]
    assert ran == [1]
    third = await bench.call("put", {"x": 1}, "c")
    assert isinstance(third, ToolDenied)
    assert third.reason == "duplicate"


def test_what_a_write_has_done_holds_until_something_else_is_written_there() -> None:
    replay = ReplayControl()
    put = ToolSpec(name="put", side_effect="write", idempotent=True, resource_keys=["a"])  # type: ignore[arg-type]
    replay.record_success("put", {"v": 1}, put)
    assert replay.should_skip("put", {"v": 1}, put)[0]
    replay.record_write(put, {"v": 2})
    assert not replay.should_skip("put", {"v": 1}, put)[0]


def test_what_was_read_under_one_policy_is_not_done_as_a_write_under_another() -> None:
    replay = ReplayControl()
    as_read = ToolSpec(name="sync", side_effect="read", idempotent=True)  # type: ignore[arg-type]
    as_write = ToolSpec(name="sync", side_effect="write", idempotent=True)  # type: ignore[arg-type]
    replay.record_success("sync", {}, as_read)
    assert not replay.should_skip("sync", {}, as_write)[0]


def test_the_user_s_function_for_resources_is_not_called_under_the_lock() -> None:
    state = new_state()
    asked = threading.Event()

    @tool(side_effect="read", idempotent=True)
    def lookup() -> dict[str, Any]:
        return {}

    def keys(args: Any) -> list[str]:
        state.replay.record_success("lookup", {}, lookup)
        asked.set()
        return ["x"]

    put = tool(name="put", side_effect="write", idempotent=True, resource_keys=keys)(
        lambda: {"done": True}
    )
    bench = Bench(lookup, put, state=state)
    calling = threading.Thread(
        target=lambda: [bench.executor.execute(request("put"), state) for _ in range(2)],
        daemon=True,
    )
    calling.start()
    calling.join(30)
    assert asked.is_set()
    assert not calling.is_alive()


# --- On whose behalf ------------------------------------------------------------------------------


async def test_nobody_gets_the_result_of_another_principal() -> None:
    @tool(side_effect="read", idempotent=True)
    async def inbox() -> dict[str, str]:
        return {"of": WHO.get()}

    bench = Bench(inbox, guard=new_guard(principal_resolver=resolve), on_duplicate="replay")
    outputs = []
    for who in ("alice", "bob", "alice"):
        WHO.set(who)
        outputs.append(expect_result(await bench.call("inbox")).output)
    assert outputs == [{"of": "alice"}, {"of": "bob"}, {"of": "alice", "replayed": True}]


async def test_a_window_is_each_principal_s_own() -> None:
    paid: list[str] = []

    @tool(side_effect="irreversible", window_s=600)
    async def pay(amount: int) -> dict[str, int]:
        paid.append(WHO.get())
        return {"paid": amount}

    bench = Bench(pay, guard=new_guard(principal_resolver=resolve))
    for who in ("alice", "bob", "bob"):
        WHO.set(who)
        outcome = await bench.call("pay", {"amount": 5})
    assert paid == ["alice", "bob"]
    assert isinstance(outcome, ToolDenied)
    assert outcome.reason == "duplicate"


async def test_a_retry_on_behalf_of_somebody_else_is_another_call() -> None:
    who = iter(["alice", "bob"])

    @tool(side_effect="read", idempotent=True, max_retries=1)
    async def flaky() -> dict[str, int]:
        ran.append(1)
        if len(ran) == 1:
            raise OSError("not yet")
        return {}

    ran: list[int] = []
    guard = new_guard(principal_resolver=lambda name, args: Principal(user_id=next(who)))
    bench = Bench(flaky, guard=guard)
    expect_result(await bench.call("flaky"))
    statuses = {slot.key[2]: slot.status for slot in bench.state.replay._slots.values()}  # type: ignore[index]
    assert [(("bob" in key), status) for key, status in statuses.items()] == [
        (False, "ended"),
        (True, "done"),
    ]


# --- What is given again --------------------------------------------------------------------------


@tool(side_effect="read", idempotent=True)
async def items(n: int = 0) -> dict[str, Any]:
    return {"items": [1, 2]}


async def test_a_replay_shares_nothing_with_the_first_outcome() -> None:
    bench = Bench(items, on_duplicate="replay")
    first = expect_result(await bench.call("items"))
    first.output["items"].append("by the host")
    second = expect_result(await bench.call("items"))
    second.output["items"].append("by the host")
    third = expect_result(await bench.call("items"))
    assert third.output == {"items": [1, 2], "replayed": True}
    assert third.value == {"items": [1, 2]}


async def test_a_result_that_cannot_be_copied_is_shared() -> None:
    lock = threading.Lock()
    bench = Bench(
        tool(name="t", side_effect="read", idempotent=True, returns=None)(lambda: [lock]),
        on_duplicate="replay",
    )
    await bench.call("t")
    assert expect_result(await bench.call("t")).value == [lock]


class SinkWithoutReplays:
    """Cannot write that a call was replayed."""

    def emit(self, event: Any) -> None:
        if event.action == "call_replayed":
            raise OSError("disk full")


async def test_a_replay_that_cannot_be_recorded_says_so() -> None:
    guard = new_guard(audit_sink=SinkWithoutReplays())
    bench = Bench(items, guard=guard, on_duplicate="replay")
    await bench.call("items", {}, "a")
    again = expect_result(await bench.call("items", {}, "b"))
    assert again.turn.replayed
    assert again.notes[0].startswith("The repetition could not be written to the audit: ")


async def test_a_replay_tells_of_its_own_repairs() -> None:
    bench = Bench(items, on_duplicate="replay")
    told = [expect_result(await bench.call("items", {"n": n})) for n in ("5", 5, "5")]
    repaired = ("n: '5' read as 5",)
    assert [(each.turn.repairs, each.was_coerced) for each in told] == [
        (repaired, True),
        ((), False),
        (repaired, True),
    ]


async def test_a_mark_does_not_make_a_result_too_long_and_does_not_replace_a_word_of_the_tool() -> (
    None
):
    @tool(side_effect="read", idempotent=True, returns=None, max_output_chars=200)
    async def long() -> str:
        return "x" * (200 - len('{"result": ""}'))

    @tool(side_effect="read", idempotent=True)
    async def own() -> dict[str, Any]:
        return {"replayed": "in 1999"}

    bench = Bench(long, own, on_duplicate="replay")
    for name in ("long", "own"):
        first, second = expect_result(await bench.call(name)), expect_result(await bench.call(name))
        assert json.loads(outcome_to_model_content(first)) == json.loads(
            outcome_to_model_content(second)
        )
        assert second.turn.replayed


@tool(side_effect="read", idempotent=True, returns=None)
async def big() -> str:
    return "line\n" * 10_000


def _with_store(**options: Any) -> tuple[Bench, ArtifactStore]:
    store = ArtifactStore(tempfile.mkdtemp())
    return Bench(big, artifact_store=store, **options), store


async def test_an_artifact_that_is_gone_is_made_again() -> None:
    bench, store = _with_store(on_duplicate="replay")
    outcomes = [await bench.call("big"), await bench.call("big")]
    store.cleanup_session("session")
    outcomes.append(await bench.call("big"))
    ids = [
        outcome.artifact_id for outcome in outcomes if isinstance(outcome, ToolArtifactReference)
    ]
    assert ids[0] == ids[1] != ids[2]
    assert store.get_ref(ids[2], "session") is not None


async def test_that_a_result_still_holds_is_said_only_while_its_artifact_is_there() -> None:
    bench, store = _with_store()
    await bench.call("big")
    assert isinstance(await bench.call("big"), ToolDenied)
    store.cleanup_session("session")
    assert isinstance(await bench.call("big"), ToolArtifactReference)


async def test_a_store_that_cannot_be_asked_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, store = _with_store()
    await bench.call("big")

    def broken(*args: Any) -> None:
        raise OSError("disk")

    monkeypatch.setattr(store, "get_ref", broken)
    assert isinstance(await bench.call("big"), ToolArtifactReference)


def test_what_has_been_done_anew_meanwhile_is_not_forgotten() -> None:
    replay, spec = ReplayControl(), items
    replay.record_success("items", {}, spec, ToolExecutionResult("c", "items", {}, 0))
    done: Any = replay.begin(spec, {})
    replay.forget(done)
    begun: Any = replay.begin(spec, {})
    replay.finish(begun, spec, {}, ToolExecutionResult("c", "items", {}, 0))
    replay.forget(done)
    assert replay.should_skip("items", {}, spec)[0]


# --- Approval -------------------------------------------------------------------------------------


async def test_the_approval_of_a_call_covers_those_that_get_its_answer() -> None:
    clerk = Clerk()
    guard = new_guard(contracts=[ask_first], approval_backend=clerk.backend)
    bench = Bench(items, guard=guard, on_duplicate="replay")
    twins = await asyncio.gather(
        bench.call("items", {"n": 1}, "a"), bench.call("items", {"n": 1}, "b")
    )
    later = await bench.call("items", {"n": 1}, "c")
    assert [expect_result(outcome).turn.replayed for outcome in (*twins, later)] == [
        False,
        True,
        True,
    ]
    assert clerk.asked == [{"n": 1}]


BUNDLE = """
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: b}
defaults: {mode: enforce}
contracts:
  - id: ask
    type: pre
    tool: TOOL
    when: {args.n: {equals: 1}}
    then: {effect: approve, message: sure, timeout: 60}
"""


@pytest.mark.parametrize("approves", [True, False])
async def test_a_policy_that_demands_approval_now_demands_it_for_a_replay(approves: bool) -> None:
    asked: list[Any] = []

    def decide(request: Any) -> bool:
        asked.append(request.tool_args)
        return approves

    guard = Edictum.from_yaml_string(
        BUNDLE.replace("TOOL", "other"), approval_backend=InMemoryApprovalBackend(decide)
    )
    bench = Bench(items, guard=guard, on_duplicate="replay")
    expect_result(await bench.call("items", {"n": 1}))
    await guard.reload(BUNDLE.replace("TOOL", "items"))
    outcome = await bench.call("items", {"n": 1})
    assert asked == [{"n": 1}]
    assert isinstance(outcome, ToolExecutionResult if approves else ToolDenied)
    assert bench.events[-1][0] == ("call_replayed" if approves else "call_approval_denied")


async def test_a_replay_is_refused_when_a_person_changes_its_arguments() -> None:
    """The earlier answer is to another call."""
    changed = ApprovalDecision(True, "ann", args={"n": 2})
    guard = Edictum.from_yaml_string(
        BUNDLE.replace("TOOL", "other"), approval_backend=InMemoryApprovalBackend(changed)
    )
    bench = Bench(items, guard=guard, on_duplicate="replay")
    expect_result(await bench.call("items", {"n": 1}))
    await guard.reload(BUNDLE.replace("TOOL", "items"))
    outcome = await bench.call("items", {"n": 1})
    assert isinstance(outcome, ToolDenied)
    assert "the earlier answer does not fit" in outcome.details
    assert bench.events[-1] == ("call_denied", "turn", "duplicate")


async def test_a_replay_that_cannot_be_recorded_is_given_with_a_note() -> None:
    """The earlier outcome is known already, so nothing is gained by withholding it."""

    class FullDisk:
        def emit(self, event: Any) -> None:
            if event.action.value == "call_replayed":
                raise OSError("no space left on device")

    bench = Bench(items, guard=Edictum(audit_sink=FullDisk()), on_duplicate="replay")
    await bench.call("items", {}, "a")
    again = expect_result(await bench.call("items", {}, "b"))
    assert again.turn.replayed
    assert any("no space left on device" in note for note in again.notes)
