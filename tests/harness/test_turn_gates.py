"""The gates of a turn: each reason from its real gate, in order, audited like every other
denial.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from turns import (
    Bench,
    ask_first,
    hang,
    make_counting_tool,
    new_guard,
    new_state,
    request,
    search,
    wait_for_duplicate,
)

from edictum import (
    Edictum,
    HookDecision,
    HookRegistration,
    InMemoryApprovalBackend,
    OperationLimits,
    Principal,
    Verdict,
    precondition,
)
from edictum.harness import (
    BoundedToolExecutor,
    ReplayControl,
    ToolSpec,
    Turn,
    TurnBudget,
    TurnState,
    tool,
)
from edictum.harness.turn_call import GATES
from edictum.outcomes import (
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    ToolTimeout,
    outcome_blocks_tool,
    outcome_is_error,
    outcome_to_model_content,
)
from edictum.sessions import open as open_ledger
from edictum.testing import FailingLedger


def denied(outcome: Any) -> ToolDenied:
    assert isinstance(outcome, ToolDenied), outcome
    return outcome


def test_the_gates_and_their_order() -> None:
    assert [name for name, _ in GATES] == [
        "deadline",
        "blocked",
        "validation",
        "duplicate",
        "budget",
    ]


def test_the_usage_pattern_of_the_published_design_runs_as_printed() -> None:
    bounded_executor = BoundedToolExecutor([search], guard=new_guard())
    replay_control = ReplayControl()
    state, messages, web_mode, spec = new_state(), [], "off", search
    call = request("search", {"query": "cats"})
    budget = TurnBudget.create(timeout_s=60, max_steps=6)

    outcome = bounded_executor.execute(call, state, web_mode=web_mode, budget=budget)
    # Inject tool result into message stream
    messages.append(
        {"role": "tool", "tool_call_id": call.id, "content": outcome_to_model_content(outcome)}
    )
    # Update state
    if outcome_blocks_tool(outcome):
        state.blocked_tool_names.add(call.name)
    # Update replay control
    if outcome_is_error(outcome):
        replay_control.record_failure(call.name, call.arguments, spec)
    else:
        replay_control.record_success(call.name, call.arguments, spec)

    assert isinstance(outcome, ToolExecutionResult)
    assert json.loads(messages[0]["content"]) == {"query": "cats", "limit": 5}
    assert replay_control.should_skip("search", {"query": "cats"}, spec)[0]
    assert bounded_executor.execute(call, state).reason == "duplicate"  # type: ignore[union-attr]


@precondition("search")
def no_secrets(call: Any) -> Verdict:
    return Verdict.fail("secrets are secret") if "secret" in call.args["query"] else Verdict.pass_()


async def test_each_reason_comes_from_its_real_gate() -> None:
    """deadline, cancelled, blocked, web_off, unknown_tool, malformed_arguments, validation,
    duplicate, budget: decided by the turn.
    """
    web = ToolSpec(name="web", function=lambda: 1, metadata={"web": True})
    cases: list[tuple[str, str, Bench, Any]] = []

    late = Bench(search, state=new_state(0.001))
    await asyncio.sleep(0.002)
    cases.append(("deadline", "deadline", late, request("search", {"query": "a"})))
    over = Bench(search)
    over.state.close_writes()
    cases.append(("cancelled", "deadline", over, request("search", {"query": "a"})))
    blocked = Bench(search)
    blocked.state.blocked_tool_names.add("search")
    cases.append(("blocked", "blocked", blocked, request("search", {"query": "a"})))
    cases.append(("unknown_tool", "validation", Bench(search), request("serch", {"query": "a"})))
    cases.append(("malformed_arguments", "validation", Bench(search), request("search", "{broken")))
    cases.append(("malformed_arguments", "validation", Bench(search), request("search", [1])))
    cases.append(
        (
            "malformed_arguments",
            "validation",
            Bench(search),
            request("search", {"query": {1: 2}, 2: 3}),
        )
    )
    cases.append(("validation", "validation", Bench(search), request("search", {"quary": "a"})))
    twice = Bench(search)
    await twice.call("search", {"query": "a"})
    cases.append(("duplicate", "duplicate", twice, request("search", '{"query": "a"}')))
    used = Bench(search, state=new_state(max_steps=1))
    await used.call("search", {"query": "a"})
    cases.append(("budget", "budget", used, request("search", {"query": "b"})))

    for reason, gate, bench, call in cases:
        outcome = denied(await bench.executor.aexecute(call, bench.state))
        assert (outcome.reason, outcome.decision_source, outcome.decision_name) == (
            reason,
            "turn",
            gate,
        )
        assert bench.events[-1] == ("call_denied", "turn", gate)
        assert json.loads(outcome_to_model_content(outcome))
    off = Bench(web)
    assert denied(await off.call("web", web_mode="off")).reason == "web_off"
    assert isinstance(await off.call("web"), ToolExecutionResult)


async def test_the_other_reasons_come_from_the_guard() -> None:
    """pre_hook, write_denied, contract, limit: the gates of a turn come first, these after them."""

    def refuse(call: Any) -> HookDecision:
        return HookDecision.deny("not today")

    hook = HookRegistration(phase="before", tool="*", callback=refuse)
    for guard, reason in (
        (new_guard(hooks=[hook]), "pre_hook"),
        (new_guard(contracts=[no_secrets]), "contract"),
        (
            new_guard(contracts=[ask_first], approval_backend=InMemoryApprovalBackend(False)),
            "write_denied",
        ),
        (Edictum(limits=OperationLimits(max_tool_calls=0)), "limit"),
    ):
        bench = Bench(search, guard=guard)
        outcome = denied(await bench.call("search", {"query": "a secret"}))
        assert outcome.reason == reason
        assert isinstance(bench.state.tool_results[-1], ToolDenied)
        assert denied(await bench.call("search", {"query": "a secret"})).reason == reason, (
            "a denial is no earlier success"
        )


async def test_contracts_see_the_validated_arguments() -> None:
    seen: list[Any] = []

    @precondition("search")
    def look(call: Any) -> Verdict:
        seen.append(dict(call.args))
        return Verdict.pass_()

    bench = Bench(search, guard=new_guard(contracts=[look]))
    outcome = await bench.call("search", '{"query": "a", "limit": "7"}')
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.was_coerced
    assert outcome.turn.repairs == ("limit: '7' read as 7",)
    assert seen == [{"query": "a", "limit": 7}]
    assert bench.guard.local_sink.events[-1].tool_args == {"query": "a", "limit": 7}


async def test_the_same_mistake_again_is_told_as_such() -> None:
    bench = Bench(search)
    texts = [
        denied(await bench.call("search", {"query": 1}, str(number))).details for number in range(3)
    ]
    assert "same mistake" not in texts[0]
    assert "made 3 times" in texts[2]
    assert bench.state.repair_count("search") == 3


async def test_a_denied_call_counts_as_an_attempt_and_not_as_an_execution() -> None:
    bench = Bench(search)
    await bench.call("search", {})
    session = bench.guard.session("session")
    assert (session.attempts, session.executions) == (1, 0)


async def test_a_name_that_cannot_be_one_is_answered() -> None:
    for name in ("a/b", "", "x" * 300, "tab\there", None, 3):
        outcome = denied(await Bench(search).executor.aexecute(request(name, {}), new_state()))  # type: ignore[arg-type]
        assert (outcome.reason, outcome.tool_name) == ("unknown_tool", "invalid_tool_name")


async def test_too_little_time_is_no_time() -> None:
    calls: list[int] = []
    slow = ToolSpec(name="slow", function=lambda: calls.append(1), min_useful_s=10)
    outcome = denied(await Bench(slow, state=new_state(5)).call("slow"))
    assert outcome.reason == "deadline"
    assert calls == []


async def test_a_gate_that_fails_refuses() -> None:
    class Broken(ReplayControl):
        def begin(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("out of order")

    outcome = denied(
        await Bench(search, state=TurnState("s", replay=Broken())).call("search", {"query": "a"})
    )
    assert (outcome.reason, outcome.policy_error, outcome.decision_name) == (
        "policy_error",
        True,
        "duplicate",
    )


# --- Duplicates -----------------------------------------------------------------------------------


async def test_two_identical_calls_at_once_run_one_body_and_share_the_outcome() -> None:
    work, ran = make_counting_tool()
    bench = Bench(work)
    first, second = await asyncio.gather(
        bench.call("work", {"key": 1}, "a"), bench.call("work", {"key": 1}, "b")
    )
    assert ran == [1]
    assert isinstance(first, ToolExecutionResult)
    assert isinstance(second, ToolExecutionResult)
    assert (first.call_id, second.call_id) == ("a", "b")
    assert first.value == second.value
    assert (first.turn.replayed, second.turn.replayed) == (False, True)
    assert [action for action, _, _ in bench.events] == [
        "call_allowed",
        "call_executed",
        "call_replayed",
    ]
    session = bench.guard.session("session")
    assert (session.attempts, session.executions) == (2, 1)


async def test_a_shared_failure_is_shared_and_can_be_tried_again() -> None:
    work, ran = make_counting_tool()
    bench = Bench(work)
    outcomes = await asyncio.gather(*(bench.call("work", {"fail": True}, str(n)) for n in range(3)))
    assert [type(outcome) for outcome in outcomes] == [ToolFailure] * 3
    assert len(ran) == 1
    await bench.call("work", {"fail": True})
    assert len(ran) == 2


async def test_calls_that_may_be_repeated_are_all_run() -> None:
    work, ran = make_counting_tool(idempotent=False)
    bench = Bench(work)
    await asyncio.gather(bench.call("work"), bench.call("work"))
    assert len(ran) == 2


async def test_a_duplicate_may_get_the_earlier_result() -> None:
    work, ran = make_counting_tool()
    bench = Bench(work, on_duplicate="replay")
    first = await bench.call("work", {"key": 1}, "a")
    second = await bench.call("work", {"key": 1}, "b")
    assert isinstance(first, ToolExecutionResult)
    assert isinstance(second, ToolExecutionResult)
    assert second.turn.replayed
    assert second.call_id == "b"
    assert json.loads(outcome_to_model_content(second)) == {"ran": 1, "replayed": True}
    assert ran == [1]
    assert (
        denied(
            await Bench(tool(name="w", idempotent=True, side_effect="read")(lambda: 1)).call(
                "w", {"x": 1}
            )
        ).reason
        == "validation"
    )


async def test_who_may_not_make_a_call_may_not_read_its_result() -> None:
    allowed = [True]

    @precondition("work")
    def only_while_allowed(call: Any) -> Verdict:
        return Verdict.pass_() if allowed[0] else Verdict.fail("no more")

    work, _ = make_counting_tool()
    bench = Bench(work, guard=new_guard(contracts=[only_while_allowed]), on_duplicate="replay")
    await bench.call("work")
    allowed[0] = False
    assert denied(await bench.call("work")).reason == "contract"


async def test_replays_count_as_attempts_up_to_the_limit() -> None:
    work, ran = make_counting_tool()
    bench = Bench(
        work,
        guard=Edictum(limits=OperationLimits(max_attempts=2, max_tool_calls=1)),
        on_duplicate="replay",
    )
    outcomes = [await bench.call("work") for _ in range(3)]
    assert [type(outcome) for outcome in outcomes] == [
        ToolExecutionResult,
        ToolExecutionResult,
        ToolDenied,
    ]
    assert denied(outcomes[2]).reason == "limit"
    assert ran == [0]


async def test_a_replay_needs_the_ledger() -> None:
    ledger = FailingLedger()
    work, _ = make_counting_tool()
    bench = Bench(work, guard=new_guard(backend=ledger), on_duplicate="replay")
    await bench.call("work")
    ledger.on.add("reserve")
    assert denied(await bench.call("work")).policy_error


async def test_a_replay_needs_a_principal_that_can_be_resolved() -> None:
    answers: list[Any] = [Principal(user_id="a"), Principal(user_id="a"), "nobody"]
    work, _ = make_counting_tool()
    bench = Bench(
        work,
        guard=new_guard(principal_resolver=lambda tool, args: answers.pop(0)),
        on_duplicate="replay",
    )
    first, second = await bench.call("work"), await bench.call("work")
    assert isinstance(first, ToolExecutionResult)
    assert isinstance(second, ToolExecutionResult)
    assert denied(await bench.call("work")).policy_error


async def test_read_write_read() -> None:
    notes = {"a": 1}

    @tool(side_effect="read", idempotent=True, resource_keys=["note:{name}"])
    async def read(name: str) -> dict[str, int]:
        return {"value": notes[name]}

    @tool(side_effect="write", resource_keys=["note:{name}"])
    async def write(name: str, value: int) -> str:
        notes[name] = value
        return "ok"

    bench = Bench(read, write)
    assert (await bench.call("read", {"name": "a"})).value == {"value": 1}  # type: ignore[union-attr]
    assert denied(await bench.call("read", {"name": "a"})).reason == "duplicate"
    await bench.call("write", {"name": "a", "value": 2})
    assert (await bench.call("read", {"name": "a"})).value == {"value": 2}  # type: ignore[union-attr]


async def test_a_twin_that_does_not_end_in_time_is_not_waited_for() -> None:
    cached = tool(name="slow", side_effect="read", idempotent=True)(hang.function)
    bench = Bench(cached, state=new_state(1.0))
    running = asyncio.create_task(bench.call("slow", {"seconds": 5}, "a"))
    await asyncio.sleep(0.05)
    outcome = await bench.call("slow", {"seconds": 5}, "b", tool_timeout_cap_s=0.05)
    assert isinstance(outcome, ToolTimeout) or denied(outcome).reason == "deadline"
    running.cancel()
    await asyncio.wait([running])  # it may have reached the deadline of the turn before


async def test_when_the_first_caller_is_cancelled_the_second_runs_it_itself() -> None:
    work, ran = make_counting_tool(hold=(hold := asyncio.Event()))
    bench = Bench(work)
    first = asyncio.create_task(bench.call("work", call_id="a"))
    second = asyncio.create_task(bench.call("work", call_id="b"))
    await wait_for_duplicate(bench)
    first.cancel()
    hold.set()
    outcome = await second
    assert isinstance(outcome, ToolExecutionResult)
    assert not outcome.turn.replayed
    assert len(ran) == 2


async def test_a_waiter_that_is_cancelled_leaves_the_first_alone() -> None:
    work, ran = make_counting_tool(hold=(hold := asyncio.Event()))
    bench = Bench(work)
    first = asyncio.create_task(bench.call("work", call_id="a"))
    second = asyncio.create_task(bench.call("work", call_id="b"))
    await wait_for_duplicate(bench)
    second.cancel()
    hold.set()
    assert isinstance(await first, ToolExecutionResult)
    with pytest.raises(asyncio.CancelledError):
        await second
    assert (
        bench.events[-1] == ("call_executed", None, None)
        or ("call_denied", "turn", "duplicate") in bench.events
    )


# --- Once per window, also after a restart --------------------------------------------------------


def payment(paid: list[Any], **settings: Any) -> ToolSpec:
    async def pay(to: str, amount: int, note: str = "", fail: str = "") -> str:
        if fail:
            raise ConnectionError(fail)
        paid.append((to, amount))
        return "paid"

    return tool(
        name="pay", side_effect="irreversible", window_s=600, identity=("to", "amount"), **settings
    )(pay)


async def test_a_payment_is_made_once_per_window_also_after_a_restart(tmp_path: Any) -> None:
    paid: list[Any] = []
    reasons = []
    for _restart in range(3):
        guard = new_guard(backend=open_ledger(f"sqlite:///{tmp_path}/ledger.db"))
        bench = Bench(payment(paid), guard=guard)
        outcome = await bench.call("pay", {"to": "bob", "amount": 5, "note": str(_restart)})
        reasons.append(outcome.reason if isinstance(outcome, ToolDenied) else "ran")
        await bench.call("pay", {"to": "bob", "amount": _restart + 100})
        await guard.close()
    assert reasons == ["ran", "duplicate", "duplicate"]
    assert paid == [("bob", 5), ("bob", 100), ("bob", 101), ("bob", 102)]


async def test_a_payment_that_failed_for_certain_or_was_denied_can_be_tried_again() -> None:
    paid: list[Any] = []
    allowed = [False]

    @precondition("pay")
    def when_allowed(call: Any) -> Verdict:
        return Verdict.pass_() if allowed[0] else Verdict.fail("not yet")

    bench = Bench(payment(paid), guard=new_guard(contracts=[when_allowed]))
    assert denied(await bench.call("pay", {"to": "bob", "amount": 5})).reason == "contract"
    allowed[0] = True
    assert isinstance(
        await bench.call("pay", {"to": "bob", "amount": 5, "fail": "no route"}), ToolFailure
    )
    assert isinstance(await bench.call("pay", {"to": "bob", "amount": 5}), ToolExecutionResult)
    assert paid == [("bob", 5)]


async def test_a_payment_that_may_have_been_made_is_not_repeated() -> None:
    async def pay(to: str) -> str:
        await asyncio.sleep(30)
        return "paid"

    bench = Bench(
        tool(side_effect="irreversible", window_s=600, verify="find_payment")(pay),
        ToolSpec(name="find_payment"),
    )
    outcome = await bench.call("pay", {"to": "bob"}, tool_timeout_cap_s=0.02)
    assert isinstance(outcome, ToolTimeout)
    assert (outcome.retryable, outcome.effect_unknown, outcome.verify_tool) == (
        False,
        True,
        "find_payment",
    )
    assert "find_payment" in outcome_to_model_content(outcome)
    bench.state.blocked_tool_names.clear()
    assert denied(await bench.call("pay", {"to": "bob"})).reason == "duplicate"


async def test_without_the_ledger_nothing_is_paid() -> None:
    paid: list[Any] = []
    bench = Bench(payment(paid), guard=new_guard(backend=FailingLedger({"reserve"})))
    outcome = denied(await bench.call("pay", {"to": "bob", "amount": 5}))
    assert (outcome.reason, outcome.policy_error, paid) == ("policy_error", True, [])


async def test_a_payment_that_cannot_be_written_down_says_so() -> None:
    paid: list[Any] = []
    ledger = FailingLedger()

    def break_ledger(call: Any) -> None:
        ledger.on.add("settle")

    bench = Bench(payment(paid), guard=new_guard(backend=ledger, on_allow=break_ledger))
    outcome = await bench.call("pay", {"to": "bob", "amount": 5})
    assert isinstance(outcome, ToolExecutionResult)
    assert any("could not be recorded as made" in note for note in outcome.notes)


# --- guard.dispatch(turn=...) ---------------------------------------------------------------------


async def test_dispatch_takes_a_turn() -> None:
    turn = Turn(new_state(), [search])
    guard = new_guard()
    first = await guard.dispatch("search", {"query": "a"}, turn=turn)
    assert isinstance(first, ToolExecutionResult)
    assert denied(await guard.dispatch("search", {"query": "a"}, turn=turn)).reason == "duplicate"
    assert denied(guard.dispatch_sync("search", {"query": "a"}, turn=turn)).reason == "duplicate"
    assert guard.local_sink.events[0].run_id == "session"


async def test_a_tool_that_is_handed_over_with_the_call_is_known_as_the_worst_case() -> None:
    guard, turn = new_guard(), Turn(TurnState())
    outcome = await guard.dispatch(
        "work", {"a": 1}, lambda a: a, turn=turn, principal=Principal(user_id="u")
    )
    assert isinstance(outcome, ToolExecutionResult)
    event = guard.local_sink.events[-1]
    assert (event.side_effect, event.run_id, event.principal) == (
        "irreversible",
        guard.session_id,
        event.principal,
    )


async def test_a_tool_of_the_guard_and_one_of_the_turn_give_the_more_careful_of_both() -> None:
    guard = new_guard(tools={"search": {"side_effect": "write"}})
    bench = Bench(search, guard=guard)
    await bench.call("search", {"query": "a"})
    await bench.call("search", {"query": "b"})
    assert guard.local_sink.events[-1].side_effect == "write"
