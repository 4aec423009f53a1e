"""Before-hooks that change the arguments: whatever comes after the hook sees what will run, and
nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from call_drivers import DRIVINGS, Driving

from edictum import (
    Edictum,
    HookDecision,
    HookRegistration,
    InMemoryApprovalBackend,
    OperationLimits,
    Principal,
    ToolCall,
    ToolDenied,
    ToolExecutionResult,
    Verdict,
    postcondition,
    precondition,
    session_contract,
)
from edictum.adapters._base import FIXED_ARGS
from edictum.core.lifecycle.approval import approval_digest
from edictum.hooks import HookResult
from support.guards import approval_contract

EVERY = pytest.mark.parametrize("drive", DRIVINGS.values(), ids=DRIVINGS.keys())


def hook(callback: Callable[..., Any], **options: Any) -> HookRegistration:
    return HookRegistration("before", "*", callback, **options)


def adding(name: str, value: Any, reason: str | None = None) -> HookRegistration:
    def rewrite(call: Any) -> HookDecision:
        return HookDecision.rewrite({**call.args, name: value}, reason)

    rewrite.__name__ = f"add_{name}"
    return hook(rewrite)


def echo(**args: Any) -> dict[str, Any]:
    return {"args": args}


@EVERY
async def test_everything_after_the_hook_sees_the_rewritten_arguments(drive: Driving) -> None:
    """Contracts, later hooks, callbacks, the tool and the audit."""
    seen: dict[str, Any] = {}

    def look(name: str) -> Callable[..., Verdict]:
        def see(call: Any, *_: Any) -> Verdict:
            seen[name] = dict(call.args)
            return Verdict.pass_()

        return see

    guard = Edictum(
        contracts=[
            precondition("*", id="pre")(look("pre")),
            postcondition("*", id="post")(look("post")),
        ],
        hooks=[
            adding("a", 1),
            hook(lambda call: seen.update(second=dict(call.args)) or HookDecision.allow()),
            adding("b", 2),
        ],
        on_allow=lambda call: seen.update(on_allow=dict(call.args)),
    )
    outcome = await drive(guard, "t", {"x": 0}, echo)
    assert isinstance(outcome, ToolExecutionResult), outcome
    final = {"x": 0, "a": 1, "b": 2}
    assert outcome.value == {"args": final}
    assert seen == {"second": {"x": 0, "a": 1}, "pre": final, "post": final, "on_allow": final}
    assert [event.tool_args for event in guard.local_sink.events] == [final, final]


@EVERY
async def test_the_audit_says_who_rewrote_what(drive: Driving) -> None:
    """With the arguments as each hook found them, redacted and ready to be written."""
    guard = Edictum(hooks=[adding("path", "/safe", "kept inside"), adding("mode", "r")])
    await drive(guard, "t", {"path": "/etc", "password": "hunter2", "when": object()}, echo)
    for event in guard.local_sink.events:
        first, second = event.hooks_evaluated
        assert (first["name"], first["result"], first["reason"]) == (
            "add_path",
            "rewrite",
            "kept inside",
        )
        assert first["original_args"]["path"] == "/etc"
        assert first["original_args"]["password"] == "[REDACTED]"
        assert isinstance(first["original_args"]["when"], str), "ready to be written as JSON"
        assert second["original_args"]["path"] == "/safe"
        assert event.tool_args["mode"] == "r"


@EVERY
async def test_a_contract_refuses_what_a_hook_made_of_the_call(drive: Driving) -> None:
    """And allows what a hook has made harmless."""

    @precondition("t")
    def inside(call: Any) -> Verdict:
        return Verdict.pass_() if call.args["path"].startswith("/safe") else Verdict.fail("outside")

    ran: list[Any] = []
    worse, better = (
        Edictum(contracts=[inside], hooks=[adding("path", "/etc")]),
        Edictum(contracts=[inside], hooks=[adding("path", "/safe/x")]),
    )
    refused = await drive(worse, "t", {"path": "/safe"}, lambda **args: ran.append(args))
    assert isinstance(refused, ToolDenied)
    assert (refused.reason, refused.details, ran) == ("contract", "outside", [])
    assert isinstance(
        await drive(better, "t", {"path": "/etc"}, lambda **args: ran.append(args)),
        ToolExecutionResult,
    )
    assert ran == [{"path": "/safe/x"}]


@EVERY
@pytest.mark.parametrize("args", [None, 7, [("a", 1)], {1: 2}, "{}"])
async def test_what_is_no_arguments_denies_as_an_error_of_the_hook(
    drive: Driving, args: Any
) -> None:
    """The call that was asked for does not run either."""
    guard = Edictum(hooks=[hook(lambda call: HookDecision.rewrite(args))])
    outcome = await drive(guard, "t", {"x": 0}, echo)
    assert isinstance(outcome, ToolDenied)
    assert (outcome.reason, outcome.policy_error) == ("pre_hook", True)
    assert outcome.details.startswith("Hook error: Invalid arguments for 't'")
    assert guard.local_sink.events[0].tool_args == {"x": 0}


async def test_arguments_that_are_too_deep_deny() -> None:
    """As the caller's own would be refused."""
    deep: dict[str, Any] = {}
    deep["self"] = deep
    outcome = await Edictum(hooks=[hook(lambda call: HookDecision.rewrite(deep))]).dispatch(
        "t", {}, echo
    )
    assert isinstance(outcome, ToolDenied)
    assert outcome.policy_error
    assert "nested more than" in outcome.details


async def test_a_hook_cannot_change_its_arguments_afterwards() -> None:
    """They are copied when the hook has answered."""
    mine = {"rows": [1, 2]}

    @precondition("t")
    def late(call: Any) -> Verdict:
        mine["rows"].append(3)
        mine["more"] = True  # type: ignore[assignment]
        return Verdict.pass_()

    outcome = await Edictum(
        contracts=[late], hooks=[hook(lambda call: HookDecision.rewrite(mine))]
    ).dispatch("t", {}, echo)
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == {"args": {"rows": [1, 2]}}


async def test_an_asynchronous_hook_rewrites_and_one_that_does_not_apply_is_not_asked() -> None:
    """Whether a hook applies is asked of the arguments as they then are."""

    async def slowly(call: Any) -> HookDecision:
        await asyncio.sleep(0)
        return HookDecision.rewrite({"x": call.args["x"] + 1})

    hooks = [
        hook(slowly),
        hook(slowly, when=lambda call: call.args["x"] == 2),
        hook(slowly, when=lambda call: call.args["x"] == 2),
    ]
    outcome = await Edictum(hooks=hooks).dispatch("t", {"x": 1}, echo)
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == {"args": {"x": 3}}, (
        "the second hook saw what the first had made of it, the third what the second had"
    )


async def test_a_denial_stays_a_denial_whatever_else_is_rewritten() -> None:
    """All hooks are asked, and recorded."""
    guard = Edictum(
        hooks=[adding("a", 1), hook(lambda call: HookDecision.deny("no")), adding("b", 2)]
    )
    outcome = await guard.dispatch("t", {}, echo)
    assert isinstance(outcome, ToolDenied)
    assert outcome.details == "no"
    assert [record["result"] for record in guard.local_sink.events[0].hooks_evaluated] == [
        "rewrite",
        "deny",
        "rewrite",
    ]


@EVERY
async def test_in_observe_mode_nothing_is_changed(drive: Driving) -> None:
    """What would have been done is in the audit."""
    guard = Edictum(
        mode="observe", hooks=[adding("a", 1), hook(lambda call: HookDecision.rewrite(7))]
    )  # type: ignore[arg-type]
    outcome = await drive(guard, "t", {"x": 0}, echo)
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == {"args": {"x": 0}}
    actions = [event.action.value for event in guard.local_sink.events]
    assert actions == [
        "call_would_deny",
        "call_allowed",
        "call_executed",
    ], "the second hook's error would have denied it"
    first = guard.local_sink.events[-1].hooks_evaluated[0]
    assert (first["result"], first["observed"], "original_args" in first) == (
        "rewrite",
        True,
        False,
    )


@EVERY
async def test_a_person_approves_the_rewritten_arguments(drive: Driving) -> None:
    """And the approval is bound to them."""

    asked: list[Any] = []

    def decide(request: Any) -> bool:
        asked.append((dict(request.tool_args), request.digest))
        return True

    guard = Edictum(
        contracts=[approval_contract()],
        hooks=[adding("amount", 5)],
        approval_backend=InMemoryApprovalBackend(decide),
    )
    outcome = await drive(guard, "t", {"amount": 500}, echo)
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == {"args": {"amount": 5}}
    assert [args for args, _ in asked] == [{"amount": 5}]
    call = ToolCall("t", {"amount": 5})
    assert asked[0][1] == approval_digest(call, guard.policy_digest, ["ask"])


async def test_session_contracts_and_principals_meet_the_rewritten_call() -> None:
    """Who asks is found out first."""
    seen: list[Any] = []

    @session_contract
    def look(session: Any) -> Verdict:
        seen.append((dict(session.call.args), session.call.principal.user_id))
        return Verdict.pass_()

    guard = Edictum(
        contracts=[look],
        hooks=[adding("a", 1)],
        principal_resolver=lambda tool, args: Principal(user_id=f"for {args}"),
    )
    assert await guard.run("t", {"x": 0}, echo) == {"args": {"x": 0, "a": 1}}
    assert seen == [({"x": 0, "a": 1}, "for {'x': 0}")], (
        "who asks is settled before the hooks, from what was asked for"
    )


async def test_amounts_that_depend_on_the_call_are_those_of_what_runs() -> None:
    """The budget is not charged for what was asked for."""
    guard = Edictum(
        hooks=[adding("tokens", 10)], limits=OperationLimits(max_amounts={"tokens": 50})
    )
    for _ in range(5):
        await guard.run(
            "t",
            {"tokens": 1_000},
            echo,
            session_id="s",
            amounts=lambda call: {"tokens": call.args["tokens"]},
        )
    with pytest.raises(Exception, match="tokens"):
        await guard.run(
            "t",
            {"tokens": 1},
            echo,
            session_id="s",
            amounts=lambda call: {"tokens": call.args["tokens"]},
        )


async def test_amounts_that_cannot_be_told_of_the_rewritten_call_refuse_it() -> None:
    """Amounts that are stated once and for all stay."""
    guard = Edictum(hooks=[hook(lambda call: HookDecision.rewrite({}))])
    outcome = await guard.dispatch(
        "t", {"tokens": 1}, echo, amounts=lambda call: {"tokens": call.args["tokens"]}
    )
    assert isinstance(outcome, ToolDenied)
    assert outcome.policy_error
    assert outcome.details == "The amounts of the call could not be determined: KeyError: 'tokens'"
    fixed = await guard.dispatch("t", {"tokens": 1}, echo, amounts={"tokens": 1})
    assert isinstance(fixed, ToolExecutionResult)


def test_evaluate_and_explain_agree_with_what_would_run() -> None:
    """A dry run asks the hooks as well."""

    @precondition("t")
    def inside(call: Any) -> Verdict:
        return (
            Verdict.pass_()
            if call.args["path"] == "/safe"
            else Verdict.fail(f"{call.args['path']} is outside")
        )

    better, worse = (
        Edictum(contracts=[inside], hooks=[adding("path", "/safe")]),
        Edictum(contracts=[inside], hooks=[adding("path", "/etc")]),
    )
    assert better.evaluate("t", {"path": "/etc"}).verdict == "allow"
    assert worse.evaluate("t", {"path": "/safe"}).deny_reasons == ["/etc is outside"]
    broken = Edictum(hooks=[hook(lambda call: HookDecision.rewrite(7))]).evaluate("t", {})  # type: ignore[arg-type]
    assert (broken.verdict, broken.policy_error) == ("deny", True)

    bundle = """
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: paths}
defaults: {mode: enforce}
contracts:
  - {id: inside, type: pre, tool: t, when: {args.path: {equals: /etc}}, then: {effect: deny, message: "{args.path}"}}
"""
    guard = Edictum.from_yaml_string(bundle, hooks=[adding("path", "/etc")])
    explained = guard.explain("t", {"path": "/safe"})
    assert explained.evaluation.deny_reasons == ["/etc"]
    assert "/etc" in str(explained)


async def test_a_ticket_says_that_its_arguments_were_rewritten_and_can_be_declined() -> None:
    """For hosts that can only run the tool with the old ones."""
    guard = Edictum(hooks=[adding("a", 1)], limits=OperationLimits(max_tool_calls=1))
    ticket = await guard.begin("t", {"x": 0}, session_id="s")
    assert (ticket.rewritten, ticket.args) == (True, {"x": 0, "a": 1})
    outcome = await ticket.decline(FIXED_ARGS)
    assert isinstance(outcome, ToolDenied)
    assert (outcome.reason, outcome.details, outcome.policy_error) == ("pre_hook", FIXED_ARGS, True)
    assert guard.session("s").executions == 0
    second = guard.begin_sync("t", {"x": 0}, session_id="s")
    assert second.allowed, "the slot of the first was given back"
    assert isinstance(second.decline_sync(FIXED_ARGS), ToolDenied)
    assert [event.action.value for event in guard.local_sink.events] == [
        "call_allowed",
        "call_denied",
    ] * 2
    assert not (await Edictum().begin("t", {"x": 0})).rewritten


def test_the_decision_itself() -> None:
    """What the hook gave is what it holds."""
    decision = HookDecision.rewrite({"a": 1}, "because")
    assert (decision.result, decision.reason, decision.args) == (
        HookResult.REWRITE,
        "because",
        {"a": 1},
    )
    assert HookDecision.allow().args is None
