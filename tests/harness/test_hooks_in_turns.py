"""Hooks that rewrite in a turn: what they make of a call is validated again, and is what is
repeated, approved and tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from turns import Bench, Clerk, ask_first, new_guard, new_state, search, wait_for_duplicate

from edictum import (
    HookDecision,
    HookRegistration,
    Principal,
    Verdict,
    precondition,
)
from edictum.harness import tool
from edictum.outcomes import ToolDenied, ToolExecutionResult, ToolFailure
from edictum.sessions import open as open_ledger


def hook(callback: Callable[..., Any]) -> HookRegistration:
    return HookRegistration("before", "*", callback)


def rewriting(**changes: Any) -> HookRegistration:
    return hook(lambda call: HookDecision.rewrite({**call.args, **changes}))


# --- Validation -----------------------------------------------------------------------------------


async def test_rewritten_arguments_are_validated_and_repaired() -> None:
    bench = Bench(search, guard=new_guard(hooks=[rewriting(limit="7")]))
    outcome = await bench.call("search", {"query": "a"})
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == {"query": "a", "limit": 7}
    assert outcome.turn.repairs == ("limit: '7' read as 7",)
    assert bench.guard.local_sink.events[-1].tool_args == {"query": "a", "limit": 7}


async def test_rewritten_arguments_that_do_not_fit_refuse_the_call_and_are_not_the_model_s_mistake() -> (
    None
):
    bench = Bench(search, guard=new_guard(hooks=[rewriting(limit=["many"])]))
    outcome = await bench.call("search", {"query": "a"})
    assert isinstance(outcome, ToolDenied)
    assert outcome.reason == "validation"
    assert outcome.details.startswith(
        "A hook, or the person who approved the call, has changed its arguments so that they do not"
        " fit: "
    )
    assert bench.state.repair_count("search") == 0
    event = bench.guard.local_sink.events[-1]
    assert (event.decision_source, event.decision_name, event.hooks_evaluated[0]["result"]) == (
        "turn",
        "validation",
        "rewrite",
    )
    assert bench.state.budget.snapshot()["tool_calls_used"] == 0


async def test_a_hook_sees_valid_arguments() -> None:
    seen: list[Any] = []
    bench = Bench(
        search,
        guard=new_guard(
            hooks=[hook(lambda call: seen.append(dict(call.args)) or HookDecision.allow())]
        ),
    )
    assert isinstance(
        await bench.call("search", '{"query": "a", "limit": "7"}'), ToolExecutionResult
    )
    assert isinstance(await bench.call("search", {"question": "a"}), ToolDenied)
    assert seen == [{"query": "a", "limit": 7}], "what does not fit is not shown to it"


# --- Duplicates -----------------------------------------------------------------------------------


async def test_calls_that_become_the_same_are_the_same_and_calls_that_become_different_are_not() -> (
    None
):
    bench = Bench(
        search,
        guard=new_guard(
            hooks=[hook(lambda call: HookDecision.rewrite({"query": call.args["query"].lower()}))]
        ),
    )
    assert isinstance(await bench.call("search", {"query": "CATS"}), ToolExecutionResult)
    again = await bench.call("search", {"query": "Cats"})
    assert isinstance(again, ToolDenied)
    assert again.reason == "duplicate"

    numbers = iter("abc")
    bench = Bench(
        search,
        guard=new_guard(hooks=[hook(lambda call: HookDecision.rewrite({"query": next(numbers)}))]),
    )
    assert [type(await bench.call("search", {"query": "same"})) for _ in range(3)] == [
        ToolExecutionResult
    ] * 3


async def test_a_duplicate_is_replayed_for_the_rewritten_arguments_if_it_would_be_allowed() -> None:
    @precondition("*")
    def mine(call: Any) -> Verdict:
        return Verdict.pass_() if len(allowed) else Verdict.fail("not any more")

    allowed, ran = [True], []

    @tool(side_effect="read", idempotent=True)
    async def look(query: str) -> dict[str, Any]:
        ran.append(query)
        return {"query": query}

    lower = hook(lambda call: HookDecision.rewrite({"query": call.args["query"].lower()}))
    guard = new_guard(
        hooks=[lower], contracts=[mine], principal_resolver=lambda *_: Principal(user_id="u")
    )
    bench = Bench(look, guard=guard, on_duplicate="replay")
    first, second = (
        await bench.call("look", {"query": "A"}),
        await bench.call("look", {"query": "a"}, "call_1"),
    )
    assert isinstance(first, ToolExecutionResult)
    assert isinstance(second, ToolExecutionResult)
    assert (second.output, second.call_id, ran) == (
        {"query": "a", "replayed": True},
        "call_1",
        ["a"],
    )
    assert guard.local_sink.events[-1].action.value == "call_replayed"
    assert guard.local_sink.events[-1].hooks_evaluated[0]["original_args"] == {"query": "a"}
    allowed.clear()
    refused = await bench.call("look", {"query": "A"})
    assert isinstance(refused, ToolDenied)
    assert refused.details == "not any more"


async def test_two_calls_that_become_the_same_at_once_run_one_body() -> None:
    ran: list[str] = []
    started, go_on = asyncio.Event(), asyncio.Event()

    @tool(side_effect="read", idempotent=True)
    async def look(query: str) -> dict[str, Any]:
        ran.append(query)
        started.set()
        await go_on.wait()
        return {"query": query}

    lower = hook(lambda call: HookDecision.rewrite({"query": call.args["query"].lower()}))
    bench = Bench(look, guard=new_guard(hooks=[lower]))
    first = asyncio.create_task(bench.call("look", {"query": "A"}))
    await started.wait()
    second = asyncio.create_task(bench.call("look", {"query": "a"}))
    await wait_for_duplicate(bench)
    go_on.set()
    outcomes = await asyncio.gather(first, second)
    assert ran == ["a"]
    assert [outcome.turn.replayed for outcome in outcomes] == [False, True]  # type: ignore[union-attr]


async def test_a_hook_that_denies_uses_up_no_tool_call_and_begins_no_call() -> None:
    bench = Bench(search, guard=new_guard(hooks=[hook(lambda call: HookDecision.deny("no"))]))
    assert isinstance(await bench.call("search", {"query": "a"}), ToolDenied)
    assert bench.state.budget.snapshot()["tool_calls_used"] == 0
    assert bench.state.replay.history_size() == 0


# --- Retries --------------------------------------------------------------------------------------


class Flaky:
    """A read that fails until its last attempt."""

    def __init__(self, failures: int = 1, **settings: Any) -> None:
        self.ran: list[dict[str, Any]] = []

        @tool(name="flaky", max_retries=3, **{"side_effect": "read", **settings})
        async def flaky(query: str, attempt: int = 0) -> dict[str, Any]:
            self.ran.append({"query": query, "attempt": attempt})
            if len(self.ran) <= failures:
                raise OSError("not yet")
            return {"ok": True}

        self.tool = flaky


async def test_one_approval_covers_the_retries_of_the_call() -> None:
    flaky, clerk = Flaky(failures=2), Clerk()
    bench = Bench(
        flaky.tool, guard=new_guard(contracts=[ask_first], approval_backend=clerk.backend)
    )
    outcome = await bench.call("flaky", {"query": "a"})
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.turn.attempts == 3
    assert clerk.asked == [{"query": "a", "attempt": 0}]
    granted = [
        event
        for event in bench.guard.local_sink.events
        if event.action.value == "call_approval_granted"
    ]
    assert len(granted) == 3, "each attempt is recorded, with the approval that it stands on"
    assert len({event.approval_id for event in granted}) == 1
    assert [event.reason for event in granted[1:]] == [
        "Granted before: this is a retry of the same call."
    ] * 2


async def test_another_call_with_the_same_arguments_is_asked_about_again() -> None:
    flaky, clerk = Flaky(failures=0), Clerk()
    bench = Bench(
        flaky.tool, guard=new_guard(contracts=[ask_first], approval_backend=clerk.backend)
    )
    for _ in range(2):
        assert isinstance(await bench.call("flaky", {"query": "a"}), ToolExecutionResult)
    assert clerk.asked == [{"query": "a", "attempt": 0}] * 2


async def test_a_retry_with_other_arguments_is_asked_about_again() -> None:
    flaky, clerk = Flaky(), Clerk()
    counted = hook(lambda call: HookDecision.rewrite({**call.args, "attempt": len(flaky.ran)}))
    bench = Bench(
        flaky.tool,
        guard=new_guard(contracts=[ask_first], hooks=[counted], approval_backend=clerk.backend),
    )
    assert isinstance(await bench.call("flaky", {"query": "a"}), ToolExecutionResult)
    assert clerk.asked == flaky.ran == [{"query": "a", "attempt": 0}, {"query": "a", "attempt": 1}]


async def test_an_approval_does_not_outlive_the_policy_it_was_given_under() -> None:
    bundle = """
apiVersion: edictum/v1
kind: ContractBundle
metadata: {{name: b}}
defaults: {{mode: enforce}}
contracts:
  - {{id: ask, type: pre, tool: flaky, when: {{args.query: {{exists: true}}}}, then: {{effect: approve, message: "sure{number}?"}}}}
"""
    clerk, made = Clerk(), []

    from edictum import Edictum

    guard = Edictum.from_yaml_string(bundle.format(number=1), approval_backend=clerk.backend)

    @tool(side_effect="read", max_retries=2)
    async def flaky(query: str) -> None:
        made.append(query)
        await guard.reload(bundle.format(number=2))
        raise OSError("not yet")

    outcome = await Bench(flaky, guard=guard).call("flaky", {"query": "a"})
    assert isinstance(outcome, ToolFailure)
    assert made == ["a"]
    assert clerk.asked == [{"query": "a"}]
    assert outcome.notes == (
        "It was not tried again: The policy has changed since approval was asked for. Call again.",
    )


async def test_a_retry_that_a_hook_rewrites_as_before_is_the_same_call() -> None:
    flaky = Flaky(failures=2, idempotent=True)
    bench = Bench(flaky.tool, guard=new_guard(hooks=[rewriting(attempt=7)]))
    outcome = await bench.call("flaky", {"query": "a"})
    assert isinstance(outcome, ToolExecutionResult)
    assert flaky.ran == [{"query": "a", "attempt": 7}] * 3
    assert bench.state.budget.snapshot()["tool_calls_used"] == 1
    again = await bench.call("flaky", {"query": "a"})
    assert isinstance(again, ToolDenied)
    assert again.reason == "duplicate"


async def test_a_retry_that_a_hook_rewrites_otherwise_gives_up_what_it_had_begun() -> None:
    flaky = Flaky(idempotent=True)
    counted = hook(lambda call: HookDecision.rewrite({**call.args, "attempt": len(flaky.ran)}))
    bench = Bench(flaky.tool, guard=new_guard(hooks=[counted]))
    assert isinstance(await bench.call("flaky", {"query": "a"}), ToolExecutionResult)
    assert [slot.status for slot in bench.state.replay._slots.values()] == ["ended", "done"]


async def test_a_window_holds_for_the_arguments_that_ran() -> None:
    ledger = open_ledger("memory://")
    for failures, ran in ((1, [False, True]), (0, [True])):
        flaky = Flaky(failures, side_effect="write", idempotent=True, window_s=60)
        counted = hook(
            lambda call, flaky=flaky: HookDecision.rewrite({**call.args, "attempt": len(flaky.ran)})
        )
        bench = Bench(
            flaky.tool, guard=new_guard(hooks=[counted], backend=ledger), state=new_state()
        )
        outcome = await bench.call("flaky", {"query": f"after {failures}"})
        assert isinstance(outcome, ToolExecutionResult)
        for number, made in enumerate(ran):
            fixed = Bench(
                Flaky(0, side_effect="write", idempotent=True, window_s=60).tool,
                guard=new_guard(backend=ledger),
            )
            repeated = await fixed.call("flaky", {"query": f"after {failures}", "attempt": number})
            assert isinstance(repeated, ToolDenied) is made, (failures, number)
