"""A person approves a call with other arguments: they are judged as if the call were made anew."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from edictum import (
    ApprovalDecision,
    Edictum,
    EdictumInputError,
    HookDecision,
    HookRegistration,
    InMemoryApprovalBackend,
    ToolDenied,
    ToolExecutionResult,
    Verdict,
    precondition,
)
from edictum.approval import ApprovalQueue, ApprovalRequest, open_approvals
from edictum.harness import (
    BoundedToolExecutor,
    ModelReply,
    ToolCallRequest,
    ToolSpec,
    TurnBudget,
    TurnState,
    run_turn,
)
from edictum.outcomes import outcome_from_dict, outcome_to_dict
from support.guards import approval_contract, count_calls
from support.queues import answer_next, next_request


def with_changes(**changes: Any) -> InMemoryApprovalBackend:
    """Return a backend on which a person says yes, with these arguments changed."""

    def answer(request: ApprovalRequest) -> ApprovalDecision:
        return ApprovalDecision(True, "ann", args={**request.tool_args, **changes})

    return InMemoryApprovalBackend(answer)


def make_guard(backend: Any, *contracts: Any, **options: Any) -> Edictum:
    asking = approval_contract("pay", timeout=60)
    return Edictum(contracts=[asking, *contracts], approval_backend=backend, **options)


def audit(guard: Edictum) -> list[tuple[str, Any]]:
    return [(event.action.value, event.tool_args) for event in guard.local_sink.events]


def at_most(bound: int, **options: Any) -> Any:
    @precondition("pay", id=f"at-most-{bound}", **options)
    def check(call: Any) -> Verdict:
        fits = call.args["amount"] <= bound
        return Verdict.pass_() if fits else Verdict.fail(f"more than {bound}")

    return check


async def pay(guard: Edictum, amount: int = 90, **more: Any) -> Any:
    return await guard.dispatch("pay", {"amount": amount, **more}, lambda **args: args)


async def test_the_tool_gets_the_changed_arguments() -> None:
    """The audit has both versions, and the model is told."""
    guard = make_guard(with_changes(amount=50))
    outcome = await pay(guard)
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == {"amount": 50}
    (note,) = outcome.notes
    assert note.endswith('has changed its arguments to {"amount": 50}')
    assert outcome.turn.changes == (note,)
    assert outcome_from_dict(outcome_to_dict(outcome)).turn == outcome.turn  # type: ignore[union-attr]  # it ran
    assert audit(guard) == [
        ("call_approval_requested", {"amount": 90}),
        ("call_approval_granted", {"amount": 90}),
        ("call_allowed", {"amount": 50}),
        ("call_executed", {"amount": 50}),
    ]
    assert guard.local_sink.events[1].approver == "ann"
    assert len({event.call_id for event in guard.local_sink.events}) == 1
    assert count_calls(guard) == (1, 1, 0, 0)
    assert guard.session().snapshot().totals.attempts == 1


async def test_arguments_can_be_taken_out_and_added() -> None:
    """The person gives the arguments as a whole."""
    backend = InMemoryApprovalBackend(ApprovalDecision(True, args={"amount": 90, "note": "ok"}))
    outcome = await pay(make_guard(backend), urgent=True)
    assert outcome.value == {"amount": 90, "note": "ok"}


async def test_defaults_are_shown_and_stay_left_out() -> None:
    """What the person gives back as it was shown is the default of the tool, in its own type."""
    ran: list[Any] = []

    def transfer(amount: int, fee: Decimal = Decimal("0.5"), to: str = "bank") -> None:
        ran.append((amount, fee, to))

    backend = with_changes(amount=50, to="ann")
    await make_guard(backend).dispatch("pay", {"amount": 90}, transfer)
    assert backend.requests[0].tool_args == {"amount": 90, "fee": 0.5, "to": "bank"}
    assert ran == [(50, Decimal("0.5"), "ann")]
    assert isinstance(ran[0][1], Decimal)


async def test_the_same_arguments_are_no_change() -> None:
    """As when a form is sent back untouched."""
    guard = make_guard(with_changes())
    outcome = await pay(guard)
    assert (outcome.value, outcome.notes) == ({"amount": 90}, ())
    assert [action for action, _ in audit(guard)][-2:] == ["call_approval_granted", "call_executed"]


# --- Judged again ---------------------------------------------------------------------------------


async def test_a_contract_denies_the_changed_call() -> None:
    """A yes does not skip it; the same yes is not tried again."""
    backend = with_changes(amount=500)
    guard = make_guard(backend, at_most(100))
    outcome = await pay(guard)
    assert isinstance(outcome, ToolDenied)
    assert (outcome.reason, outcome.details) == ("contract", "more than 100")
    assert "changed its arguments" in outcome.notes[0]
    assert audit(guard)[-1] == ("call_denied", {"amount": 500})
    assert backend.withdrawn == [backend.requests[0].approval_id]
    assert count_calls(guard) == (0, 0, 0, 0)
    assert guard.session().snapshot().totals.attempts == 1


BUNDLE = """
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: pay}
defaults: {mode: enforce}
tools: {pay: {amounts: {money: args.amount}}}
contracts:
  - {id: ask, type: pre, tool: pay, then: {effect: approve, message: sure?}}
  - {id: inside, type: sandbox, tool: pay, within: [/srv], message: outside of /srv}
  - {id: budget, type: session, limits: {max_amounts: {money: 100}},
     then: {effect: deny, message: over the budget}}
"""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"path": "/etc/passwd"}, "outside of /srv"), ({"amount": 101}, "over the budget")],
)
async def test_the_sandbox_and_the_limits_judge_the_changed_call(
    changes: dict[str, Any], reason: str
) -> None:
    """A yes skips neither."""
    guard = Edictum.from_yaml_string(BUNDLE, approval_backend=with_changes(**changes))
    outcome = await pay(guard, path="/srv/a")
    assert isinstance(outcome, ToolDenied)
    assert reason in outcome.details
    assert count_calls(guard) == (0, 0, 0, 0)


async def test_the_changed_amount_is_what_counts() -> None:
    """Not the one of the call as it was asked about."""
    guard = Edictum.from_yaml_string(BUNDLE, approval_backend=with_changes(amount=10))
    outcomes = [type(await pay(guard, 90, path="/srv/a")) for _ in range(3)]
    assert outcomes == [ToolExecutionResult, ToolExecutionResult, ToolDenied]  # 10, 20, 20 + 90


async def test_an_amount_that_is_not_known_any_more_denies() -> None:
    """The changed arguments do not tell what the call uses."""
    backend = InMemoryApprovalBackend(ApprovalDecision(True, args={"path": "/srv/a"}))
    guard = Edictum.from_yaml_string(BUNDLE, approval_backend=backend)
    outcome = await pay(guard, 90, path="/srv/a")
    assert isinstance(outcome, ToolDenied)
    assert (outcome.policy_error, "'money'" in outcome.details) == (True, True)


async def test_who_has_asked_is_answered() -> None:
    """Even though it would ask about the changed arguments as well."""
    backend = with_changes(amount=80)
    outcome = await pay(make_guard(backend, at_most(10, effect="approve")))
    assert isinstance(outcome, ToolExecutionResult)
    assert len(backend.requests) == 1


class Answers(InMemoryApprovalBackend):
    """Says in turn what it was given, and notes what it is told."""

    def __init__(self, *answers: ApprovalDecision) -> None:
        left = list(answers)
        super().__init__(lambda request: left.pop(0))
        self.told: list[tuple[str, int, Any]] = []

    def _number(self, approval_id: str) -> int:
        return [it.approval_id for it in self.requests].index(approval_id)

    async def use(self, approval_id: str) -> bool:
        self.told.append(("use", self._number(approval_id), None))
        return True

    async def end(self, approval_id: str, started: bool) -> None:
        self.told.append(("end", self._number(approval_id), started))


RAISED = ApprovalDecision(True, "ann", args={"amount": 95})


async def test_another_contract_may_ask_about_the_changed_call() -> None:
    """Its own question, about the changed arguments; both answers are used."""
    backend = Answers(RAISED, ApprovalDecision(True, "bob"))
    guard = make_guard(backend, at_most(92, effect="approve"))
    outcome = await pay(guard)
    assert outcome.value == {"amount": 95}
    first, second = backend.requests
    assert (first.metadata["contract"], second.metadata["contract"]) == ("ask", "at-most-92")
    assert (first.tool_args, second.tool_args) == ({"amount": 90}, {"amount": 95})
    assert first.digest != second.digest
    assert backend.told == [
        ("use", 0, None),
        ("use", 1, None),
        ("end", 0, True),
        ("end", 1, True),
    ]
    assert [event.approver for event in guard.local_sink.events] == [None, "ann", None, "bob", None]


async def test_a_no_to_the_second_question_denies_and_gives_the_first_answer_back() -> None:
    """The first yes was not used."""
    backend = Answers(RAISED, ApprovalDecision(False, "bob", "no"))
    guard = make_guard(backend, at_most(92, effect="approve"))
    outcome = await pay(guard)
    assert (outcome.reason, outcome.details) == ("write_denied", "no")
    assert backend.told == [("end", 0, False)]


async def test_the_second_person_may_change_the_arguments_once_more() -> None:
    """Each change is judged."""
    backend = Answers(RAISED, ApprovalDecision(True, "bob", args={"amount": 97}))
    outcome = await pay(make_guard(backend, at_most(92, effect="approve"), at_most(96)))
    assert isinstance(outcome, ToolDenied)
    assert len(outcome.notes) == 2


async def test_a_framework_that_defers_at_the_second_question_gets_the_first_answer_back() -> None:
    """It makes the same call again."""

    class Deferred(Exception):
        pass

    class Defers(Answers):
        async def wait_for_decision(self, approval_id: str, timeout: float | None = None) -> Any:
            if self._number(approval_id):
                raise Deferred
            return await super().wait_for_decision(approval_id, timeout)

    backend = Defers(RAISED, ApprovalDecision(True, "bob"))
    guard = make_guard(backend, at_most(92, effect="approve"))
    with pytest.raises(Deferred):
        await guard.dispatch("pay", {"amount": 90}, lambda amount: 1, control_flow=(Deferred,))
    assert backend.told == [("end", 0, False)]


async def test_a_full_limit_may_ask_about_the_changed_call() -> None:
    """And a yes to it waives it."""
    asking = BUNDLE.replace("effect: deny, message: over", "effect: approve, message: over")
    backend = Answers(ApprovalDecision(True, args={"amount": 120}), ApprovalDecision(True, "bob"))
    guard = Edictum.from_yaml_string(
        asking.replace("inside, type", "inside, enabled: false, type"), approval_backend=backend
    )
    outcome = await pay(guard)
    assert outcome.value == {"amount": 120}
    assert [it.metadata["contract"] for it in backend.requests] == ["ask", "budget"]


async def test_a_limit_that_was_waived_stays_waived_for_the_changed_call() -> None:
    """It has asked, and counts as answered."""
    asking = BUNDLE.replace("effect: deny, message: over", "effect: approve, message: over")
    backend = Answers(ApprovalDecision(True, args={"amount": 130}))
    guard = Edictum.from_yaml_string(
        asking.replace("inside, type", "inside, enabled: false, type"), approval_backend=backend
    )
    outcome = await pay(guard, 120)
    assert outcome.value == {"amount": 130}
    assert len(backend.requests) == 1


# --- Hooks ----------------------------------------------------------------------------------------


async def test_a_hook_may_deny_the_changed_call_and_does_not_rewrite_it() -> None:
    """What a person has written stays."""
    seen: list[int] = []

    def double(call: Any) -> HookDecision:
        seen.append(call.args["amount"])
        return HookDecision.rewrite({"amount": call.args["amount"] * 2})

    def refuse(call: Any) -> HookDecision:
        return HookDecision.deny("odd") if call.args["amount"] % 2 else HookDecision.allow()

    hooks = [HookRegistration("before", "pay", double), HookRegistration("before", "pay", refuse)]
    outcome = await pay(make_guard(with_changes(amount=60), hooks=hooks), 10)
    assert outcome.value == {"amount": 60}
    assert seen == [10, 60]
    outcome = await pay(make_guard(with_changes(amount=61), hooks=hooks), 10)
    assert (outcome.reason, outcome.details) == ("pre_hook", "odd")


# --- Secrets, and what cannot be meant --------------------------------------------------------------


async def test_an_argument_that_is_left_as_it_was_shown_stays_what_it_is() -> None:
    """The person has not seen the secret, and need not."""
    outcome = await pay(make_guard(with_changes(amount=5)), password="hunter2", raw=b"\xff")
    assert outcome.value == {"amount": 5, "password": "hunter2", "raw": b"\xff"}
    assert "hunter2" not in outcome.notes[0]


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"amount": 5, "password": "x [REDACTED]"}, "holds [REDACTED]"),
        ({1: 2}, "a mapping of names"),
        ([1], "a mapping of names"),
    ],
)
async def test_arguments_that_cannot_be_meant_void_the_answer(args: Any, problem: str) -> None:
    """The call does not run, and the answer is not found again."""
    backend = InMemoryApprovalBackend(ApprovalDecision(True, "ann", args=args))
    guard = make_guard(backend)
    outcome = await pay(guard, password="hunter2")
    assert isinstance(outcome, ToolDenied)
    assert problem in outcome.details
    assert guard.local_sink.last().action == "call_approval_void"
    assert backend.withdrawn == [backend.requests[0].approval_id]


async def test_a_name_that_was_hidden_cannot_be_kept() -> None:
    """The call has no argument of the name that was shown."""
    named = "postgres://u:hunter2secret@db"
    outcome = await make_guard(with_changes(amount=5)).dispatch(
        "pay", {"amount": 90, named: 1}, lambda **args: args
    )
    assert isinstance(outcome, ToolDenied)
    assert "The call has no argument" in outcome.details


# --- Hosts and turns ------------------------------------------------------------------------------


async def test_a_host_is_handed_the_changed_arguments() -> None:
    """A framework with a hook before the tool and one after it."""
    guard = make_guard(with_changes(amount=50))
    ticket = await guard.begin("pay", {"amount": 90})
    assert ticket.args == {"amount": 50}
    outcome = await ticket.finish("paid")
    assert isinstance(outcome, ToolExecutionResult)
    assert "changed its arguments" in outcome.notes[0]


def test_a_synchronous_call() -> None:
    """Without an event loop of its own."""
    guard = make_guard(with_changes(amount=50))
    outcome = guard.dispatch_sync("pay", {"amount": 90}, lambda amount: amount)
    assert outcome.value == 50  # type: ignore[union-attr]  # it ran


SCHEMA = {
    "type": "object",
    "properties": {"amount": {"type": "integer", "maximum": 99}},
    "required": ["amount"],
    "additionalProperties": False,
}


async def pay_in_turn(guard: Edictum, function: Any, **spec: Any) -> Any:
    tool = ToolSpec(name="pay", function=function, parameters=SCHEMA, **spec)
    executor = BoundedToolExecutor([tool], guard=guard)
    state = TurnState("s", TurnBudget.create(60, max_steps=9))
    return await executor.aexecute(ToolCallRequest("c", "pay", {"amount": 90}), state)


async def test_a_turn_validates_the_changed_arguments() -> None:
    """The model is not blamed for them."""
    guard = make_guard(with_changes(amount=100))
    outcome = await pay_in_turn(guard, lambda amount: amount)
    assert isinstance(outcome, ToolDenied)
    assert outcome.reason == "validation"
    assert "the person who approved the call" in outcome.details


async def test_a_retry_makes_the_changed_call_again() -> None:
    """Without a second question."""
    seen: list[int] = []

    def fail_once(amount: int) -> int:
        seen.append(amount)
        if len(seen) == 1:
            raise ConnectionError("reset")
        return amount

    backend = with_changes(amount=50)
    outcome = await pay_in_turn(make_guard(backend), fail_once, side_effect="read", max_retries=1)
    assert isinstance(outcome, ToolExecutionResult)
    assert seen == [50, 50]
    assert len(backend.requests) == 1


async def test_a_hook_may_deny_the_changed_call_in_a_turn() -> None:
    """Before its gates are asked."""

    def refuse(call: Any) -> HookDecision:
        return HookDecision.deny("odd") if call.args["amount"] % 2 else HookDecision.allow()

    hooks = [HookRegistration("before", "pay", refuse)]
    outcome = await pay_in_turn(make_guard(with_changes(amount=51), hooks=hooks), lambda amount: 1)
    assert (outcome.reason, outcome.details) == ("pre_hook", "odd")


async def test_run_turn_tells_the_model() -> None:
    """A model that does not know would report what it asked for."""
    guard = make_guard(with_changes(amount=50))
    tool = ToolSpec(name="pay", function=lambda amount: amount, parameters=SCHEMA)
    replies = [ModelReply("", (ToolCallRequest("c", "pay", {"amount": 90}),)), ModelReply("done")]
    seen: list[Any] = []

    async def model(messages: Any, tools: Any, **options: Any) -> ModelReply:
        seen.append([str(message.get("content")) for message in messages])
        return replies.pop(0)

    user = [{"role": "user", "content": "Pay."}]
    await run_turn(model, user, [tool], guard, TurnBudget.create(60))
    assert any(
        'pay: The person who approved the call has changed its arguments to {"amount": 50}' in text
        for text in seen[1]
    )


# --- On a queue -----------------------------------------------------------------------------------


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'approvals.db'}"


async def test_secrets_that_a_person_writes_are_for_the_call_alone(url: str) -> None:
    """Not for those who look at its request, or at the next one."""
    guard = make_guard(url)
    running = asyncio.ensure_future(pay(guard, password="old"))
    token = "ghp_" + "a1B2" * 9
    wanted = {"amount": 50, "password": "NEWPASS99"}
    answered = await answer_next(guard.approvals, args=wanted, reason=f"use {token}")
    assert (await running).value == wanted
    asking = asyncio.ensure_future(pay(guard, password="old"))
    following = await next_request(guard.approvals)
    shown = repr((answered, await guard.approvals.get(answered.approval_id), following))
    assert "NEWPASS99" not in shown
    assert token not in shown
    assert following.precedent == {"amount": 50, "password": "[REDACTED]"}
    await guard.approvals.answer(following.approval_id, False, approver="ann")
    await asking


@pytest.mark.parametrize("amount", [float("nan"), Decimal("10.5"), b"5", {1: 2}, object()])
async def test_arguments_that_are_not_json_are_refused(url: str, amount: Any) -> None:
    """Their text would be another value."""
    guard = make_guard(url)
    running = asyncio.ensure_future(pay(guard))
    request = await next_request(guard.approvals)
    with pytest.raises(EdictumInputError, match="args"):
        await guard.approvals.answer(
            request.approval_id, True, approver="ann", args={"amount": amount}
        )
    await guard.approvals.answer(request.approval_id, False, approver="ann")
    assert isinstance(await running, ToolDenied)


async def test_a_queue_takes_changed_arguments(url: str) -> None:
    """The secret that the person has not seen stays."""
    guard = make_guard(url)
    running = asyncio.ensure_future(pay(guard, password="hunter2"))
    shown = (await next_request(guard.approvals)).tool_args
    answered = await answer_next(guard.approvals, args={**shown, "amount": 50})
    assert answered.changed_args == {"amount": 50, "password": "[REDACTED]"}
    assert (await running).value == {"amount": 50, "password": "hunter2"}


async def test_a_queue_refuses_what_cannot_be_meant_and_keeps_the_question(url: str) -> None:
    """The person may correct the answer."""
    guard = make_guard(url)
    running = asyncio.ensure_future(pay(guard, password="hunter2"))
    request = await next_request(guard.approvals)
    wrong: list[Any] = [{"password": "x[REDACTED]"}, ["amount"], {1: 2}]
    for args in wrong:
        with pytest.raises(EdictumInputError):
            await answer_next(guard.approvals, args=args)
    with pytest.raises(EdictumInputError, match="need approved=True"):
        await answer_next(guard.approvals, False, args={})
    assert [it.approval_id for it in await guard.approvals.pending()] == [request.approval_id]
    await answer_next(guard.approvals, False)
    assert isinstance(await running, ToolDenied)


async def test_a_changed_call_survives_a_restart(url: str) -> None:
    """The process that asked is gone after the answer; the same call gets the changed arguments."""
    queue = open_approvals(url)

    class Dies(ApprovalQueue):
        async def use(self, approval_id: str) -> bool:
            raise ConnectionError("killed")

        async def end(self, approval_id: str, started: bool) -> None:
            return None

    from edictum.approval._sqlite_queue import SqliteApprovalStore

    store = SqliteApprovalStore(url.removeprefix("sqlite:///"))
    options: dict[str, Any] = {"session_id": "s", "call_id": "c"}
    dying = make_guard(Dies(store, lease_s=0.001))
    running = asyncio.ensure_future(
        dying.dispatch("pay", {"amount": 90}, lambda amount: amount, **options)
    )
    await answer_next(queue, args={"amount": 50})
    assert isinstance(await running, ToolDenied)
    resumed = make_guard(url)
    outcome = await resumed.dispatch("pay", {"amount": 90}, lambda amount: amount, **options)
    assert outcome.value == 50  # type: ignore[union-attr]  # it ran


async def test_a_change_that_a_contract_denies_is_not_found_again(url: str) -> None:
    """The next call asks anew."""
    guard = make_guard(url, at_most(100))
    for _ in range(2):
        running = asyncio.ensure_future(pay(guard))
        await answer_next(guard.approvals, args={"amount": 101})
        assert isinstance(await running, ToolDenied)
