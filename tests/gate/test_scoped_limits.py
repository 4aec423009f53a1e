"""Limits with a scope, a condition or an approval, and limits of one tool, through a guard."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edictum import (
    AuditAction,
    Edictum,
    EdictumConfigError,
    InMemoryApprovalBackend,
    OperationLimits,
    Principal,
    ScopedLimits,
    ToolDenied,
    ToolExecutionResult,
    Verdict,
    precondition,
    session_contract,
)
from edictum.contracts._problems import BundleError
from edictum.sessions import MemoryBackend, MemoryLedger
from edictum.testing import AsyncLedger

ALICE = Principal(user_id="alice", org_id="acme")
BOB = Principal(user_id="bob", org_id="acme")
HEAD = "apiVersion: edictum/v1\nkind: ContractBundle\nmetadata: {name: test}\ncontracts:\n"
REFUNDS = """\
  - id: per-conversation
    type: session
    limits: {max_calls_per_tool: {refund: 3}}
    then: {effect: deny, message: Enough for this conversation.}
  - id: per-person
    type: session
    scope: principal
    limits: {max_calls_per_tool: {refund: 5}, per: 1d}
    then: {effect: deny, message: Enough for this person.}
  - id: per-organisation
    type: session
    scope: org
    limits: {max_calls_per_tool: {refund: 7}}
    then: {effect: deny, message: Enough for this organisation.}
"""


def guard_of(bundle: str, **options: Any) -> Edictum:
    return Edictum.from_yaml_string(HEAD + bundle, **options)


def rule(more: str, then: str = "{effect: deny, message: Full.}") -> str:
    return f"  - {{id: rule, type: session, {more}, then: {then}}}\n"


def call(guard: Edictum, tool: str = "refund", args: Any = None, **options: Any) -> str:
    """Make a call; return "ran", or why it was refused."""
    body = options.pop("body", lambda **_: "done")
    outcome = guard.dispatch_sync(tool, args or {}, body, **options)
    return str(outcome.details) if isinstance(outcome, ToolDenied) else "ran"


# --- Scopes ---------------------------------------------------------------------------------------


def test_three_scopes_hold_together() -> None:
    """Each contract refuses in its own scope, and all scopes count the same calls."""
    guard = guard_of(REFUNDS)

    def refund(session: str, principal: Principal) -> str:
        return call(guard, session_id=session, principal=principal)

    assert [refund("one", ALICE) for _ in range(4)] == [
        *["ran"] * 3,
        "Enough for this conversation.",
    ]
    assert [refund("two", ALICE) for _ in range(3)] == [*["ran"] * 2, "Enough for this person."]
    assert [refund("three", BOB) for _ in range(3)] == [
        *["ran"] * 2,
        "Enough for this organisation.",
    ]
    assert guard.scope("principal", "alice").executions == 5
    assert guard.scope("principal", "bob").attempts == 3
    assert guard.scope("org", "acme").per_tool == {"refund": 7}
    assert guard.session("two").executions == 2


def test_a_tool_without_a_scoped_limit_needs_no_scope() -> None:
    """Fail if a limit on one tool asks other tools for a principal."""
    guard = guard_of(REFUNDS)
    assert call(guard, "search") == "ran"
    assert call(guard, "refund").startswith("The limit 'per-person' cannot be applied")


@pytest.mark.parametrize(
    ("scope", "principal", "missing"),
    [
        ("principal", None, "principal.user_id or service_id"),
        ("principal", Principal(user_id="", role="intern"), "principal.user_id or service_id"),
        ("org", Principal(user_id="alice"), "principal.org_id"),
        ("args.account", None, "args.account"),
        ("principal.claims.team", ALICE, "principal.claims.team"),
        ("metadata.tenant", ALICE, "metadata.tenant"),
    ],
)
def test_a_missing_scope_key_denies_and_counts_the_attempt(
    scope: str, principal: Principal | None, missing: str
) -> None:
    """The reason says which key is missing."""
    guard = guard_of(rule(f"scope: {scope}, limits: {{max_tool_calls: 3}}"))
    outcome = guard.dispatch_sync("refund", {}, lambda: 1, session_id="s", principal=principal)
    assert isinstance(outcome, ToolDenied)
    assert outcome.details.endswith(f"The scope '{scope}' has no value: {missing} is missing")
    assert (outcome.reason, outcome.decision_name, outcome.policy_error) == ("limit", "rule", False)
    counters = guard.session("s").snapshot().totals
    assert (counters.attempts, counters.executions, counters.in_flight) == (1, 0, 0)


@pytest.mark.parametrize(("more", "mode"), [("", "observe"), (", mode: observe", None)])
def test_a_missing_scope_key_of_a_limit_that_observes_is_recorded(more: str, mode: Any) -> None:
    """What only observes does not refuse a call."""
    guard = guard_of(rule(f"scope: org, limits: {{max_tool_calls: 1}}{more}"), mode=mode)
    assert call(guard) == "ran"
    actions = [event.action for event in guard.local_sink.events]
    assert actions.count(AuditAction.CALL_WOULD_DENY) == 1


def test_a_value_that_cannot_be_a_key_denies() -> None:
    """Fail if a list is counted under some text of it."""
    guard = guard_of(rule("scope: args.account, limits: {max_tool_calls: 3}"))
    said = call(guard, args={"account": ["a", "b"]})
    assert said.endswith(
        "The scope 'args.account' has no value: args.account is FrozenList, not text or a number"
    )


def test_a_number_and_its_text_are_one_account() -> None:
    """Fail if a model can choose another spelling to get fresh limits."""
    guard = guard_of(rule("scope: args.account, limits: {max_tool_calls: 1}"))
    said = [call(guard, args={"account": value}) for value in (17, "17", 17.0, 18, True, "true")]
    assert said == ["ran", "Full.", "Full.", "ran", "ran", "Full."]
    assert guard.scope("args.account", 17).attempts == 3


def test_odd_values_are_exact() -> None:
    """Long values and control characters have accounts of their own, on every store."""
    guard = guard_of(rule("scope: args.account, limits: {max_tool_calls: 1}"))
    values = ["a" * 5_000, "a" * 5_001, "\x1f", "\x00", "\ud800", "=x", "#x", "*", "é", "e\u0301"]
    assert [call(guard, args={"account": value}) for value in values] == ["ran"] * len(values)
    assert [call(guard, args={"account": value}) for value in values] == ["Full."] * len(values)
    assert [guard.scope("args.account", value).executions for value in values] == [1] * len(values)


def test_no_session_id_reaches_the_account_of_a_scope() -> None:
    """Fail if a client can count in or reset the account of a scope."""
    guard = guard_of(rule("scope: principal, limits: {max_tool_calls: 1}"))
    key = guard.scope("principal", "alice").session_id
    with pytest.raises(ValueError, match="Invalid session_id"):
        guard.dispatch_sync("refund", {}, lambda: 1, session_id=key)


def test_users_and_services_are_counted_apart() -> None:
    """Fail if a service uses up the limits of a user with its name."""
    guard = guard_of(rule("scope: principal, limits: {max_tool_calls: 1}"))
    for principal in (Principal(user_id="billing"), Principal(service_id="billing")):
        assert call(guard, principal=principal) == "ran"
        assert call(guard, principal=principal) == "Full."
    assert guard.scope("service", "billing").executions == 1


def test_the_global_scope_has_no_value() -> None:
    """All sessions share it."""
    guard = guard_of(rule("scope: global, limits: {max_tool_calls: 2}"))
    said = [call(guard, session_id=name) for name in "abc"]
    assert said == ["ran", "ran", "Full."]
    assert guard.scope("global").executions == 2


def test_sessions_above_count_in_session_scope_only() -> None:
    """Fail if a call of a sub-agent counts twice in a scope."""
    guard = guard_of(REFUNDS)
    for child in ("a", "b"):
        assert call(guard, session_id=child, parent_session_id="root", principal=ALICE) == "ran"
    assert guard.session("root").executions == 2
    assert guard.scope("principal", "alice").executions == 2


def test_a_reset_of_a_session_leaves_the_scopes() -> None:
    """Fail if a new conversation gives a person fresh limits."""
    guard = guard_of(REFUNDS)
    for _ in range(5):
        guard.session("s").reset()
        assert call(guard, session_id="s", principal=ALICE) == "ran"
    guard.session("s").reset()
    assert call(guard, session_id="s", principal=ALICE) == "Enough for this person."
    guard.scope("principal", "alice").reset()
    assert call(guard, session_id="s", principal=ALICE) == "ran"


def test_a_scope_is_resolved_after_hooks_and_resolvers() -> None:
    """The principal that was resolved is the one that is counted."""
    contract = rule("scope: principal, limits: {max_tool_calls: 1}")
    guard = guard_of(contract, principal_resolver=lambda tool, args: Principal(user_id=args["who"]))
    assert [call(guard, args={"who": who}) for who in ("a", "a", "b")] == ["ran", "Full.", "ran"]


def test_evaluate_and_explain_look_at_scopes() -> None:
    """They say what a call would be told, and count nothing."""
    guard = guard_of(REFUNDS)
    for _ in range(5):
        call(guard, session_id=guard.new_session_id(), principal=ALICE)
    looked = guard.evaluate("refund", {}, session_id="new", principal=ALICE)
    assert (looked.verdict, looked.deny_reasons) == ("deny", ["Enough for this person."])
    assert guard.evaluate("refund", {}, session_id="new", principal=BOB).verdict == "allow"
    missing = guard.evaluate("refund", {}, session_id="new")
    assert "cannot be applied" in missing.deny_reasons[0]
    assert guard.evaluate("refund", {}, principal=BOB).verdict == "allow"
    assert "Enough for this person." in str(
        guard.explain("refund", {}, session_id="new", principal=ALICE)
    )
    assert guard.scope("principal", "alice").attempts == 5


@pytest.mark.parametrize(
    ("scope", "said"),
    [
        ("princpal", "unknown scope 'princpal'. Did you mean 'principal'?"),
        ("result.id", "'result.id' cannot be a scope"),
        ("session.attempts", "'session.attempts' cannot be a scope"),
        ("args.items[*]", "'args.items[*]' cannot be a scope"),
        ("principal.nam", "a principal has no field 'nam'"),
    ],
)
def test_a_scope_that_means_nothing_is_an_error_at_load(scope: str, said: str) -> None:
    """In a bundle and in Python."""
    with pytest.raises(BundleError) as caught:
        guard_of(rule(f'scope: "{scope}", limits: {{max_tool_calls: 3}}'))
    assert said.split(".")[0] in str(caught.value)
    with pytest.raises(EdictumConfigError, match="ScopedLimits 'mine'"):
        Edictum(limits=[ScopedLimits(id="mine", scope=scope, max_tool_calls=1)])


def test_an_interrupted_call_gives_back_its_slots_in_scopes() -> None:
    """Fail if Ctrl-C in a session contract holds a slot of a scope for ever."""

    @session_contract
    def interrupts(session: Any) -> Verdict:
        raise KeyboardInterrupt

    guard = guard_of(rule("scope: global, limits: {max_tool_calls: 1}"), contracts=[interrupts])
    with pytest.raises(KeyboardInterrupt):
        guard.dispatch_sync("refund", {}, lambda: 1)
    assert guard.scope("global").in_flight == 0


def test_a_four_verb_storage_keeps_scopes() -> None:
    """One account after the other, and what is over is given back."""
    guard = guard_of(rule("scope: principal, limits: {max_tool_calls: 2}"), backend=MemoryBackend())
    said = [call(guard, session_id=name, principal=ALICE) for name in "abc"]
    assert said == ["ran", "ran", "Full."]
    assert guard.scope("principal", "alice").snapshot().totals.in_flight == 0


def test_scopes_in_parallel_are_exact_over_an_asynchronous_ledger() -> None:
    """Sixty calls at once, of which seven fit."""
    guard = guard_of(REFUNDS, backend=AsyncLedger(MemoryLedger()))

    async def hammer() -> list[Any]:
        async def body() -> str:
            await asyncio.sleep(0)
            return "done"

        who = (ALICE, BOB)
        return await asyncio.gather(
            *(
                guard.dispatch("refund", {}, body, session_id=f"{n % 7}", principal=who[n % 2])
                for n in range(60)
            )
        )

    outcomes = asyncio.run(hammer())
    assert sum(isinstance(it, ToolExecutionResult) for it in outcomes) == 7
    assert guard.scope("org", "acme").executions == 7


# --- Conditions -----------------------------------------------------------------------------------

INTERNS = rule(
    "scope: principal, when: {principal.role: {equals: intern}},"
    " limits: {max_tool_calls: 2, per: 1d}"
)


def test_a_limit_with_a_condition_is_asked_and_counts_only_when_it_holds() -> None:
    """Fail if calls in another role use up the limit of interns."""
    guard = guard_of(INTERNS)
    intern, sre = (Principal(user_id="alice", role=role) for role in ("intern", "sre"))
    assert [call(guard, principal=sre) for _ in range(3)] == ["ran"] * 3
    assert [call(guard, principal=intern) for _ in range(3)] == ["ran", "ran", "Full."]
    assert call(guard, principal=sre) == "ran"
    assert call(guard) == "ran"  # no principal, so it is not an intern


def test_a_condition_in_session_scope_has_a_count_of_its_own() -> None:
    """It is hidden from the counters of tools, and is reset with its session."""
    more = "when: {args.amount: {gt: 100}}, limits: {max_calls_per_tool: {refund: 1}}"
    guard = guard_of(rule(more))
    said = [call(guard, args={"amount": it}, session_id="s") for it in (5, 500, 5, 500, 5)]
    assert said == ["ran", "ran", "ran", "Full.", "ran"]
    assert guard.session("s").per_tool == {"refund": 4}
    guard.session("s").reset()
    assert call(guard, args={"amount": 500}, session_id="s") == "ran"


def test_a_condition_that_cannot_be_judged_denies() -> None:
    """Fail if a limit that cannot be applied lets a call through."""
    guard = guard_of(rule("when: {args.amount: {gt: 100}}, limits: {max_tool_calls: 9}"))
    outcome = guard.dispatch_sync("refund", {"amount": "much"}, lambda **_: 1)
    assert isinstance(outcome, ToolDenied)
    assert (outcome.policy_error, outcome.decision_name) == (True, "rule")
    assert "The limit 'rule' cannot be applied" in outcome.details


def test_a_condition_in_python_must_say_true_or_false() -> None:
    """Fail if a coroutine, which is true, is taken for a yes."""

    async def later(_: Any) -> bool:
        return False

    limits = ScopedLimits(id="mine", max_tool_calls=9, when=later)  # type: ignore[arg-type]  # wrong
    assert "returned coroutine, not True or False" in call(Edictum(limits=[limits]))


def test_a_condition_of_a_limit_cannot_read_results_or_counters() -> None:
    """It is about the call."""
    for selector in ("result.status", "session.attempts"):
        with pytest.raises(BundleError, match=selector):
            guard_of(rule(f"when: {{{selector}: {{gt: 1}}}}, limits: {{max_tool_calls: 9}}"))


# --- Approval -------------------------------------------------------------------------------------

ASK = "{effect: approve, message: One more?, timeout: 60}"


def asking(more: str, answer: bool | None, contracts: str = "", **options: Any) -> Edictum:
    backend = InMemoryApprovalBackend(answer=answer)
    return guard_of(rule(more, ASK) + contracts, approval_backend=backend, **options)


def test_a_yes_waives_the_limit_for_one_call_which_counts() -> None:
    """The next call is asked about again."""
    guard = asking("limits: {max_tool_calls: 1}", True)
    assert [call(guard, session_id="s") for _ in range(3)] == ["ran"] * 3
    actions = [event.action for event in guard.local_sink.events]
    assert actions.count(AuditAction.CALL_APPROVAL_GRANTED) == 2
    assert AuditAction.CALL_WOULD_DENY not in actions
    counters = guard.session("s").snapshot().totals
    assert (counters.attempts, counters.executions, counters.in_flight) == (3, 3, 0)


def test_a_no_denies_and_takes_nothing() -> None:
    """The attempt counts."""
    guard = asking("limits: {max_tool_calls: 1}", False)
    outcomes = [guard.dispatch_sync("refund", {}, lambda: 1, session_id="s") for _ in range(2)]
    assert isinstance(outcomes[1], ToolDenied)
    assert (outcomes[1].reason, outcomes[1].decision_name) == ("write_denied", "rule")
    counters = guard.session("s").snapshot().totals
    assert (counters.attempts, counters.executions, counters.in_flight) == (2, 1, 0)


def test_hard_limits_are_looked_at_before_a_person_is_asked() -> None:
    """Fail if a person is asked about a call that is refused anyway."""
    hard = rule("limits: {max_tool_calls: 2}").replace("id: rule", "id: hard")
    guard = asking("scope: global, limits: {max_tool_calls: 1}", True, hard)
    assert [call(guard, session_id="s") for _ in range(3)] == ["ran", "ran", "Full."]
    actions = [event.action for event in guard.local_sink.events]
    assert actions.count(AuditAction.CALL_APPROVAL_REQUESTED) == 1


def test_a_budget_holds_in_spite_of_a_yes() -> None:
    """Fail if a yes to one limit lets a call pass another."""
    budget = rule("limits: {max_cost: 2}").replace("id: rule", "id: budget")
    guard = asking("limits: {max_tool_calls: 1}", True, budget)
    said = [call(guard, session_id="s", amounts={"cost": 1}) for _ in range(3)]
    assert said == ["ran", "ran", "Full."]


def test_nothing_is_held_while_a_person_decides_and_limits_hold_after_the_answer() -> None:
    """Another call takes the last slot meanwhile."""
    seen: list[int] = []

    class Backend(InMemoryApprovalBackend):
        async def wait_for_decision(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(guard.session("s").in_flight)
            # another call takes the last slot of the hard limit meanwhile
            seen.append(len(seen))
            if len(seen) == 2:
                await guard.dispatch("other", {}, lambda: 1, session_id="s")
            return await super().wait_for_decision(*args, **kwargs)

    hard = rule("limits: {max_tool_calls: 2}").replace("id: rule", "id: hard")
    ask = rule("limits: {max_calls_per_tool: {refund: 1}}", ASK)
    guard = guard_of(ask + hard, approval_backend=Backend(answer=True))
    assert [call(guard, session_id="s") for _ in range(2)] == ["ran", "Full."]
    assert seen[0] == 0
    assert guard.session("s").executions == 2


def test_a_yes_does_not_waive_a_limit_that_was_not_asked_about() -> None:
    """Fail if a limit that gets full while a person decides is waived as well."""

    class Backend(InMemoryApprovalBackend):
        async def wait_for_decision(self, *args: Any, **kwargs: Any) -> Any:
            await guard.dispatch("other", {}, lambda: 1, session_id="another")
            return await super().wait_for_decision(*args, **kwargs)

    wide = rule("scope: global, limits: {max_tool_calls: 2}", ASK.replace("One", "Wide")).replace(
        "id: rule", "id: wide"
    )
    narrow = rule("limits: {max_calls_per_tool: {refund: 1}}", ASK)
    guard = guard_of(narrow + wide, approval_backend=Backend(answer=True))
    assert call(guard, session_id="s") == "ran"
    outcome = guard.dispatch_sync("refund", {}, lambda: 1, session_id="s")
    assert isinstance(outcome, ToolDenied)
    assert (outcome.decision_name, outcome.details) == ("wide", "Wide more?")
    assert guard.scope("global").snapshot().totals.in_flight == 0


def test_a_contract_and_a_limit_ask_one_person_once() -> None:
    """The person reads both reasons."""

    @precondition("refund", effect="approve")
    def large(call: Any) -> Verdict:
        return Verdict.fail("A large refund?")

    backend = InMemoryApprovalBackend(answer=True)
    ask = rule("limits: {max_tool_calls: 1}", ASK)
    guard = guard_of(ask, contracts=[large], approval_backend=backend)
    assert [call(guard) for _ in range(2)] == ["ran", "ran"]
    asked = [
        event.reason
        for event in guard.local_sink.events
        if event.action is AuditAction.CALL_APPROVAL_REQUESTED
    ]
    assert asked == ["A large refund?", "A large refund? One more?"]


def test_a_limit_that_asks_only_observes_in_observe_mode() -> None:
    """No person is asked."""
    guard = asking("limits: {max_tool_calls: 1}", False, mode="observe")
    assert [call(guard, session_id="s") for _ in range(2)] == ["ran", "ran"]
    actions = [event.action for event in guard.local_sink.events]
    assert AuditAction.CALL_WOULD_DENY in actions
    assert AuditAction.CALL_APPROVAL_REQUESTED not in actions


def test_evaluate_says_that_a_person_would_be_asked() -> None:
    """As for contracts that ask."""
    guard = asking("limits: {max_tool_calls: 1}", True)
    assert not guard.evaluate("refund", {}, session_id="s").needs_approval
    call(guard, session_id="s")
    looked = guard.evaluate("refund", {}, session_id="s")
    assert (looked.verdict, looked.needs_approval) == ("deny", True)
    assert looked.deny_reasons == ["One more?"]


def test_without_a_backend_a_limit_that_asks_denies() -> None:
    """As for contracts that ask."""
    guard = guard_of(rule("limits: {max_tool_calls: 1}", ASK))
    assert call(guard, session_id="s") == "ran"
    assert "no approval backend configured" in call(guard, session_id="s")


def test_a_limit_that_asks_leaves_the_default_limits() -> None:
    """Fail if a limit that can be waived replaces one that cannot."""
    guard = asking("limits: {max_tool_calls: 500}", True)
    assert guard.limits.max_tool_calls == 200


# --- Limits of one tool ---------------------------------------------------------------------------


def test_a_breaker_of_one_tool_leaves_the_session_open() -> None:
    """Fail if one flaky tool stops all others."""
    guard = Edictum(limits=OperationLimits(max_consecutive_failures_per_tool={"flaky": 2}))
    for _ in range(2):
        call(guard, "flaky", body=lambda: "Error: no")
    assert call(guard, "flaky") == ("Per-tool limit: flaky has 2 consecutive failures (limit: 2).")
    assert call(guard, "steady") == "ran"


def test_attempts_of_each_tool_are_counted() -> None:
    """Refused ones too."""
    guard = Edictum(limits=OperationLimits(max_attempts_per_tool={"work": 2}))
    said = [call(guard, "work", session_id="s") for _ in range(3)]
    assert said[2].startswith("Attempt limit reached for work (2).")
    per_tool = guard.session("s").snapshot().per_tool
    assert (per_tool["work"].attempts, per_tool["work"].executions) == (3, 2)


# --- In Python ------------------------------------------------------------------------------------


def test_scopes_in_python() -> None:
    """OperationLimits and ScopedLimits in one list."""
    guard = Edictum(
        limits=[
            OperationLimits(max_tool_calls=3),
            ScopedLimits(id="daily", scope="principal", per_s=86_400, max_tool_calls=2),
            ScopedLimits(id="accounts", scope="args.account", max_calls_per_tool={"refund": 1}),
        ]
    )
    assert call(guard, args={"account": 1}, principal=ALICE) == "ran"
    assert call(guard, args={"account": 1}, principal=ALICE) == (
        "Per-tool limit: refund has 1 execution (limit: 1, scope: args.account)."
    )
    assert call(guard, "search", principal=ALICE) == "ran"
    assert "scope: principal" in call(guard, "search", principal=ALICE)
    assert guard.limits.max_tool_calls == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": ""},
        {"scope": ""},
        {"per_s": 0},
        {"per_s": True},
        {"when": "principal"},
        {"effect": "ask"},
        {"message": 3},
        {"timeout": 0},
        {"timeout_effect": "ask"},
    ],
)
def test_scoped_limits_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    """The error names the keyword."""
    (name,) = wrong
    with pytest.raises(EdictumConfigError, match=f"ScopedLimits: {name} is"):
        ScopedLimits(**{"id": "mine", **wrong})


def test_a_reload_keeps_limits_given_in_python() -> None:
    """Fail if a new bundle drops them."""
    limits = [ScopedLimits(id="mine", scope="global", max_tool_calls=1)]
    guard = guard_of(rule("limits: {max_tool_calls: 50}"), limits=limits)
    assert call(guard) == "ran"
    asyncio.run(guard.reload(HEAD + rule("limits: {max_tool_calls: 60}")))
    assert "scope: global" in call(guard, session_id="another")


def test_merged_guards_keep_their_scopes() -> None:
    """Those of bundles and those given in Python."""
    one = guard_of(rule("scope: global, limits: {max_tool_calls: 1}"))
    two = Edictum(limits=[ScopedLimits(id="mine", scope="principal", max_tool_calls=1)])
    guard = Edictum.from_multiple([one, two])
    assert call(guard, principal=ALICE) == "ran"
    assert call(guard, principal=BOB, session_id="s") == "Full."
    assert guard.scope("principal", "alice").executions == 1


def test_many_combinations_of_conditions_are_judged_right() -> None:
    """Fail if what is remembered about combinations of limits has no bound, or goes wrong at it."""

    def has_bit(bit: int) -> Any:
        return lambda call: bool(call.args["bits"] >> bit & 1)

    limits = [
        ScopedLimits(id=f"bit-{it}", max_tool_calls=2_000, when=has_bit(it)) for it in range(10)
    ]
    limits.append(ScopedLimits(id="first", max_tool_calls=600, when=has_bit(0)))
    unbounded = OperationLimits(max_attempts=None, max_tool_calls=None)
    guard = Edictum(limits=[unbounded, *limits])
    said = [call(guard, args={"bits": bits}, session_id="s") for bits in range(1_024)]
    assert set(said) == {"ran"}
    odd = [call(guard, args={"bits": 1}, session_id="s") for _ in range(100)]
    assert odd[:88] == ["ran"] * 88  # 512 of those before had the first bit
    assert odd[88].startswith("Execution limit reached (600 calls).")


@pytest.mark.parametrize(
    "text",
    [
        "scope: order.owner, limits: {max_tool_calls: 1}",
        "when: {order.owner: {equals: x}}, limits: {max_tool_calls: 1}",
    ],
)
def test_limits_wait_for_no_selector(text: str) -> None:
    """An asynchronous one is an error at load."""

    async def order(call: Any) -> dict[str, str]:
        return {"owner": "x"}

    bundle = (
        "apiVersion: edictum/v1\nkind: ContractBundle\nmetadata: {name: x}\n"
        f"contracts: [{{id: a, type: session, {text}, then: {{effect: deny, message: no}}}}]\n"
    )
    with pytest.raises(EdictumConfigError, match=r"'order\.owner' is asynchronous, and limits do"):
        Edictum.from_yaml_string(bundle, custom_selectors={"order": order})
