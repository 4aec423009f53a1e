"""What comes out of contracts, hooks and limits: deny beats approve beats allow, everything is
asked, everything is recorded.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edictum import (
    Contract,
    Edictum,
    EdictumDenied,
    EdictumToolError,
    HookDecision,
    HookRegistration,
    InMemoryApprovalBackend,
    OperationLimits,
    Principal,
    Session,
    SideEffect,
    ToolCall,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    Verdict,
    postcondition,
    precondition,
    session_contract,
)
from edictum.core.contract import Kind
from support.guards import approval_contract, denying, passing
from support.waiting import wait_in_loop


def asking(name: str = "ask", **options: Any) -> Contract:
    return denying(name, effect="approve", **options)


def hook(result: HookDecision, name: str = "watch") -> HookRegistration:
    def callback(call: ToolCall) -> HookDecision:
        return result

    callback.__name__ = name
    return HookRegistration("before", "*", callback)


def ran() -> str:
    return "ran"


def names(event: Any) -> list[str]:
    return [record["name"] for record in event.contracts_evaluated]


# --- run and dispatch -----------------------------------------------------------------------------


async def test_run_gives_the_tools_own_value() -> None:
    """The very object, whatever it is."""
    value = object()
    assert await Edictum().run("t", {}, lambda: value) is value
    assert Edictum().run_sync("t", {}, lambda: value) is value


async def test_run_raises_a_denial_with_its_reasons() -> None:
    """reason, decision_source, decision_name and the outcome."""
    guard = Edictum(contracts=[denying("no-mail")])
    with pytest.raises(EdictumDenied, match="no-mail says no") as raised:
        await guard.run("t", {}, ran)
    denied = raised.value
    assert (denied.reason, denied.decision_source, denied.decision_name) == (
        "no-mail says no",
        "precondition",
        "no-mail",
    )
    assert isinstance(denied.outcome, ToolDenied)
    assert (denied.outcome.reason, denied.outcome.details, denied.code) == (
        "contract",
        "no-mail says no",
        "denied",
    )


def test_run_raises_a_failure_with_the_tools_exception_as_cause() -> None:
    """And the outcome."""
    boom = ValueError("boom")

    def explode() -> None:
        raise boom

    with pytest.raises(EdictumToolError, match="boom") as raised:
        Edictum().run_sync("t", {}, explode)
    assert raised.value.__cause__ is boom
    assert isinstance(raised.value.outcome, ToolFailure)
    assert raised.value.outcome.exception is boom


def test_a_failures_result_is_redacted() -> None:
    """A secret in an error message goes no further."""
    secret = "ghp_" + "a" * 36
    with pytest.raises(EdictumToolError) as raised:
        Edictum().run_sync("t", {}, lambda: f"Error: token {secret} was refused")
    assert secret not in str(raised.value)
    assert secret not in str(raised.value.result)
    assert "[REDACTED]" in raised.value.result


async def test_dispatch_gives_outcomes_and_does_not_raise() -> None:
    """For a denial, a failure, and a contract that broke."""
    assert isinstance(await Edictum().dispatch("t", {}, ran), ToolExecutionResult)
    assert isinstance(await Edictum(contracts=[denying("no")]).dispatch("t", {}, ran), ToolDenied)
    assert isinstance(await Edictum().dispatch("t", {}, lambda: 1 / 0), ToolFailure)
    assert isinstance(
        Edictum(contracts=[precondition("*")(lambda call: 1 / 0)]).dispatch_sync("t", {}, ran),
        ToolDenied,
    )


async def test_an_async_tool_can_be_run_synchronously_and_inside_a_loop() -> None:
    """The portal waits for it."""

    async def tool(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    assert Edictum().run_sync("t", {"x": 1}, tool) == 2
    assert await Edictum().run("t", {"x": 1}, tool) == 2
    assert await asyncio.to_thread(Edictum().run_sync, "t", {"x": 1}, tool) == 2


# --- Precedence -----------------------------------------------------------------------------------


def test_a_denial_beats_an_approval_in_any_order() -> None:
    """And nobody is asked."""
    for contracts in ([asking(), denying("no")], [denying("no"), asking()]):
        backend = InMemoryApprovalBackend(answer=True)
        outcome = Edictum(contracts=contracts, approval_backend=backend).dispatch_sync("t", {}, ran)
        assert isinstance(outcome, ToolDenied)
        assert outcome.decision_name == "no"
        assert backend.requests == []


def test_an_approval_beats_an_allowance() -> None:
    """One contract that asks is enough."""
    backend = InMemoryApprovalBackend(answer=True)
    outcome = Edictum(
        contracts=[passing("fine"), asking(), passing("fine too")], approval_backend=backend
    ).dispatch_sync("t", {}, ran)
    assert isinstance(outcome, ToolExecutionResult)
    assert len(backend.requests) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"contracts": [asking(), denying("no")]},
        {
            "contracts": [
                asking(),
                Contract(id="no", kind=Kind.SANDBOX, check=lambda call: Verdict.fail("outside")),
            ]
        },
        {"contracts": [asking(), session_contract(lambda session: Verdict.fail("enough"))]},
        {"contracts": [asking()], "limits": OperationLimits(max_tool_calls=0)},
        {"contracts": [asking()], "limits": OperationLimits(max_calls_per_tool={"t": 0})},
        {"contracts": [asking()], "limits": OperationLimits(max_attempts=0)},
        {"contracts": [asking()], "hooks": [hook(HookDecision.deny("no"))]},
    ],
    ids=[
        "precondition",
        "sandbox",
        "session contract",
        "limit",
        "per-tool limit",
        "attempts",
        "hook",
    ],
)
def test_an_approval_never_skips_a_denial(options: dict[str, Any]) -> None:
    """Whatever denies is found before a person is asked."""
    backend = InMemoryApprovalBackend(answer=True)
    outcome = Edictum(approval_backend=backend, **options).dispatch_sync("t", {}, ran)
    assert isinstance(outcome, ToolDenied)
    assert backend.requests == []


async def test_what_denies_while_a_person_thinks_still_denies() -> None:
    """The last slot went to another call while the approval was pending: the approved call does not
    run.
    """
    backend = InMemoryApprovalBackend()
    guard = Edictum(
        contracts=[approval_contract("slow")],
        limits=OperationLimits(max_tool_calls=1),
        approval_backend=backend,
    )
    waiting = asyncio.ensure_future(guard.dispatch("slow", {}, ran))
    await wait_in_loop(lambda: backend.pending)
    assert isinstance(await guard.dispatch("fast", {}, ran), ToolExecutionResult)
    backend.decide(backend.pending[0].approval_id, True)
    outcome = await waiting
    assert isinstance(outcome, ToolDenied)
    assert outcome.decision_name == "max_tool_calls"
    assert [event.action for event in guard.local_sink.events][-2:] == [
        "call_approval_granted",
        "call_denied",
    ]
    assert guard.session().attempts == 2


# --- Everything is asked, everything is recorded --------------------------------------------------


def test_every_matching_contract_is_recorded_whatever_the_first_said() -> None:
    """A denial does not hide the others."""
    guard = Edictum(
        contracts=[
            passing("one"),
            denying("two"),
            passing("three"),
            denying("four"),
            asking("five"),
        ]
    )
    guard.dispatch_sync("t", {}, ran)
    event = guard.local_sink.last()
    assert names(event) == ["one", "two", "three", "four", "five"]
    assert [record["passed"] for record in event.contracts_evaluated] == [
        True,
        False,
        True,
        False,
        False,
    ]
    assert event.decision_name == "two"


def test_a_denial_by_a_precondition_does_not_hide_the_session_contracts() -> None:
    """All matching contracts are evaluated and kept in the answer: preconditions, sandboxes and
    session contracts.
    """
    guard = Edictum(
        contracts=[
            denying("no"),
            session_contract(id="session")(lambda session: Verdict.fail("enough")),
        ]
    )
    guard.dispatch_sync("t", {}, ran)
    assert names(guard.local_sink.last()) == ["no", "session"]


def test_contracts_of_other_tools_are_not_recorded() -> None:
    """Names, lists of names and globs."""
    contracts = [
        precondition("send", id="exact")(lambda call: Verdict.pass_()),
        precondition("s*", id="glob")(lambda call: Verdict.pass_()),
        precondition(["read", "send"], id="several")(lambda call: Verdict.pass_()),
        precondition("sen[a-d]", id="range")(lambda call: Verdict.pass_()),
        precondition("Send", id="case")(lambda call: Verdict.pass_()),
        precondition("read", id="other")(lambda call: Verdict.pass_()),
    ]
    guard = Edictum(contracts=contracts)
    guard.dispatch_sync("send", {}, ran)
    assert names(guard.local_sink.last()) == ["exact", "glob", "several", "range"]


def test_a_session_contract_is_recorded_once_also_after_an_approval() -> None:
    """It is asked before and after the person, and is one contract."""
    guard = Edictum(
        contracts=[asking(), session_contract(id="session")(lambda session: Verdict.pass_())],
        approval_backend=InMemoryApprovalBackend(True),
    )
    guard.dispatch_sync("t", {}, ran)
    for event in guard.local_sink.events:
        assert names(event) == ["ask", "session"], event.action


def test_a_contract_whose_when_does_not_hold_is_not_recorded() -> None:
    """It was not asked."""
    guard = Edictum(
        contracts=[passing("one"), denying("two", when=lambda call: call.args["x"] > 1)]
    )
    assert isinstance(guard.dispatch_sync("t", {"x": 1}, lambda x: x), ToolExecutionResult)
    assert names(guard.local_sink.last()) == ["one"]
    assert isinstance(guard.dispatch_sync("t", {"x": 2}, lambda x: x), ToolDenied)


def test_tags_and_metadata_of_contract_and_verdict_are_recorded() -> None:
    """As people filter their audit by them."""
    contract = precondition("t", id="tagged", tags=("pii",), metadata={"owner": "sec"})(
        lambda call: Verdict.fail("no", code=7)
    )
    guard = Edictum(contracts=[contract])
    guard.dispatch_sync("t", {}, ran)
    assert guard.local_sink.last().contracts_evaluated == [
        {
            "name": "tagged",
            "type": "precondition",
            "passed": False,
            "message": "no",
            "tags": ["pii"],
            "metadata": {"tags": ["pii"], "owner": "sec", "code": 7},
        }
    ]


def test_preconditions_are_asked_before_sandboxes() -> None:
    """Whatever the order of registration."""
    sandbox = Contract(id="box", kind=Kind.SANDBOX, check=lambda call: Verdict.fail("outside"))
    guard = Edictum(contracts=[sandbox, denying("pre")])
    outcome = guard.dispatch_sync("t", {}, ran)
    assert isinstance(outcome, ToolDenied)
    assert (outcome.decision_source, names(guard.local_sink.last())) == (
        "precondition",
        ["pre", "box"],
    )


def test_contracts_may_be_asynchronous() -> None:
    """Mixed with ordinary ones, in order."""

    @precondition("*")
    async def slow(call: ToolCall) -> Verdict:
        await asyncio.sleep(0)
        return Verdict.fail("slow no")

    guard = Edictum(contracts=[passing("one"), slow, denying("three")])
    outcome = guard.dispatch_sync("t", {}, ran)
    assert isinstance(outcome, ToolDenied)
    assert outcome.details == "slow no"
    assert [record["passed"] for record in guard.local_sink.last().contracts_evaluated] == [
        True,
        False,
        False,
    ]


def test_a_contract_can_still_be_called_as_the_function_it_was() -> None:
    """That is how people test theirs."""

    @precondition("send")
    def small(call: ToolCall) -> Verdict:
        return Verdict.pass_() if call.args["size"] < 10 else Verdict.fail("too big")

    assert small(ToolCall("send", {"size": 5})).passed
    assert not small(ToolCall("send", {"size": 50})).passed
    assert small.__name__ == "small"


def test_long_messages_are_bounded() -> None:
    """500 characters, as ever."""
    verdict = Verdict.fail("x" * 2_000)
    assert verdict.message == "x" * 497 + "..."
    assert HookDecision.deny("x" * 2_000).reason == "x" * 497 + "..."
    assert Verdict.fail(5).message == "5"  # type: ignore[arg-type]


# --- Hooks ----------------------------------------------------------------------------------------


def test_before_hooks_may_refuse() -> None:
    """All are run and recorded; the first refusal is the reason."""
    hooks = [
        hook(HookDecision.allow(), "one"),
        hook(HookDecision.deny("two says no"), "two"),
        hook(HookDecision.deny("no"), "three"),
    ]
    guard = Edictum(hooks=hooks)
    outcome = guard.dispatch_sync("t", {}, ran)
    assert isinstance(outcome, ToolDenied)
    assert (outcome.reason, outcome.details, outcome.decision_source, outcome.decision_name) == (
        "pre_hook",
        "two says no",
        "hook",
        "two",
    )
    assert guard.local_sink.last().hooks_evaluated == [
        {"name": "one", "result": "allow", "reason": None},
        {"name": "two", "result": "deny", "reason": "two says no"},
        {"name": "three", "result": "deny", "reason": "no"},
    ]


def test_hooks_apply_to_their_tools_and_when_they_hold() -> None:
    """Glob and ``when``."""
    seen: list[str] = []

    def watch(call: ToolCall) -> HookDecision:
        seen.append(call.tool_name)
        return HookDecision.allow()

    guard = Edictum(
        hooks=[HookRegistration("before", "s*", watch, when=lambda call: call.tool_name != "skip")]
    )
    for tool in ("send", "skip", "read"):
        guard.dispatch_sync(tool, {}, ran)
    assert seen == ["send"]


async def test_hooks_may_be_asynchronous() -> None:
    """Before and after."""
    seen: list[Any] = []

    async def before(call: ToolCall) -> HookDecision:
        await asyncio.sleep(0)
        return HookDecision.allow()

    async def after(call: ToolCall, result: Any) -> None:
        await asyncio.sleep(0)
        seen.append(result)

    guard = Edictum(
        hooks=[HookRegistration("before", "*", before), HookRegistration("after", "*", after)]
    )
    await guard.run("t", {}, ran)
    guard.run_sync("t", {}, ran)
    assert seen == ["ran", "ran"]


def test_after_hooks_see_the_tools_value_or_the_text_of_its_exception() -> None:
    """Whatever postconditions made of it for others."""
    seen: list[Any] = []

    @postcondition("*", effect="deny")
    def suppress(call: ToolCall, result: Any) -> Verdict:
        return Verdict.fail("hidden")

    guard = Edictum(
        contracts=[suppress],
        hooks=[HookRegistration("after", "*", lambda call, result: seen.append(result))],
    )
    guard.dispatch_sync("t", {}, ran)
    guard.dispatch_sync("t", {}, lambda: 1 / 0)
    assert seen == ["ran", "division by zero"]


@pytest.mark.parametrize(
    ("holds", "called"), [(True, 1), (1, 1), ("yes", 1), (False, 0), (0, 0), (None, 0)]
)
def test_when_of_an_after_hook_is_read_like_that_of_a_before_hook(holds: Any, called: int) -> None:
    """Any value with a truth."""
    seen: list[Any] = []

    def before(call: ToolCall) -> HookDecision:
        seen.append("before")
        return HookDecision.allow()

    hooks = [
        HookRegistration("before", "*", before, when=lambda call: holds),
        HookRegistration(
            "after", "*", lambda call, result: seen.append("after"), when=lambda call: holds
        ),
    ]
    Edictum(hooks=hooks).dispatch_sync("t", {}, ran)
    assert seen == ["before", "after"] * called


def test_hooks_without_a_name_are_anonymous() -> None:
    """An object with __call__ has none."""

    class Watch:
        def __call__(self, call: ToolCall) -> HookDecision:
            return HookDecision.deny("no")

    guard = Edictum(hooks=[HookRegistration("before", "*", Watch())])
    assert guard.dispatch_sync("t", {}, ran).decision_name == "anonymous"


# --- Callbacks ------------------------------------------------------------------------------------


async def test_on_deny_and_on_allow_are_told() -> None:
    """With the call, and why."""
    told: list[Any] = []
    guard = Edictum(
        contracts=[precondition("rm", id="no-rm")(lambda call: Verdict.fail("never"))],
        on_deny=lambda call, reason, name: told.append(("deny", call.tool_name, reason, name)),
        on_allow=lambda call: told.append(("allow", call.tool_name)),
    )
    await guard.dispatch("rm", {}, ran)
    guard.dispatch_sync("ls", {}, ran)
    assert told == [("deny", "rm", "never", "no-rm"), ("allow", "ls")]


async def test_callbacks_may_be_asynchronous() -> None:
    """They are awaited before the call goes on."""
    told: list[str] = []

    async def on_allow(call: ToolCall) -> None:
        await asyncio.sleep(0)
        told.append("allowed")

    guard = Edictum(on_allow=on_allow)
    await guard.run("t", {}, lambda: told.append("ran"))
    guard.run_sync("t", {}, lambda: told.append("ran"))
    assert told == ["allowed", "ran"] * 2


async def test_on_allow_is_told_of_an_approved_call_too() -> None:
    """And on_deny of one that was not approved."""
    told: list[str] = []
    for answer in (True, False):
        guard = Edictum(
            contracts=[asking()],
            approval_backend=InMemoryApprovalBackend(answer),
            on_allow=lambda call: told.append("allow"),
            on_deny=lambda call, reason, name: told.append("deny"),
        )
        await guard.dispatch("t", {}, ran)
    assert told == ["allow", "deny"]


# --- Observe --------------------------------------------------------------------------------------


def test_a_guard_that_observes_denies_nothing_and_reports_everything() -> None:
    """Contracts, hooks, session contracts, limits and approvals: one would-deny event each, and the
    tool runs.
    """
    guard = Edictum(
        mode="observe",
        contracts=[
            denying("pre"),
            asking(),
            session_contract(id="session")(lambda session: Verdict.fail("enough")),
        ],
        hooks=[hook(HookDecision.deny("no"), "watch")],
        limits=OperationLimits(max_tool_calls=0),
        approval_backend=InMemoryApprovalBackend(False),
    )
    assert isinstance(guard.dispatch_sync("t", {}, ran), ToolExecutionResult)
    events = guard.local_sink.events
    would = [event for event in events if event.action == "call_would_deny"]
    assert {(event.decision_source, event.decision_name) for event in would} == {
        ("hook", "watch"),
        ("precondition", "pre"),
        ("precondition", "ask"),
        ("session_contract", "session"),
        ("operation_limit", "max_tool_calls"),
    }
    assert len(would) == 5
    assert [event.action for event in events][5:] == ["call_allowed", "call_executed"]
    assert {event.mode for event in events} == {"observe"}
    assert guard.session().executions == 1


def test_a_contract_that_observes_reports_and_the_others_enforce() -> None:
    """Precondition, sandbox and session contract alike."""
    contracts = [
        denying("pre", mode="observe"),
        Contract(
            id="box", kind=Kind.SANDBOX, check=lambda call: Verdict.fail("outside"), mode="observe"
        ),
        session_contract(id="session", mode="observe")(lambda session: Verdict.fail("enough")),
        asking("ask", mode="observe"),
    ]
    guard = Edictum(contracts=contracts)
    assert isinstance(guard.dispatch_sync("t", {}, ran), ToolExecutionResult)
    events = guard.local_sink.events
    assert [
        (event.decision_source, event.decision_name, event.mode)
        for event in events
        if event.action == "call_would_deny"
    ] == [
        ("precondition", "pre", "observe"),
        ("precondition", "ask", "observe"),
        ("sandbox", "box", "observe"),
        ("session_contract", "session", "observe"),
    ]
    observed = [
        record["name"] for record in events[-1].contracts_evaluated if record.get("observed")
    ]
    assert observed == ["pre", "ask", "box", "session"]
    assert isinstance(
        Edictum(contracts=[*contracts, denying("no")]).dispatch_sync("t", {}, ran), ToolDenied
    )


def test_an_error_in_a_contract_that_observes_is_reported_only() -> None:
    """It would have denied."""
    guard = Edictum(contracts=[precondition("*", id="broken", mode="observe")(lambda call: 1 / 0)])
    assert isinstance(guard.dispatch_sync("t", {}, ran), ToolExecutionResult)
    event = guard.local_sink.filter("call_would_deny")[0]
    assert event.policy_error
    assert "division by zero" in event.reason


@pytest.mark.parametrize("effect", ["redact", "deny"])
def test_a_guard_that_observes_changes_no_output(effect: str) -> None:
    """Not even by a postcondition."""
    contract = postcondition("*", effect=effect)(lambda call, result: Verdict.fail("odd"))
    guard = Edictum(mode="observe", contracts=[contract])
    outcome = guard.dispatch_sync("t", {}, lambda: "password=hunter2")
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == "password=hunter2"
    assert guard.local_sink.last().postconditions_passed is False


def test_would_deny_comes_with_a_denial_by_another_contract() -> None:
    """What only observes is reported also when the call is denied anyway."""
    guard = Edictum(contracts=[denying("soft", mode="observe"), denying("hard")])
    guard.dispatch_sync("t", {}, ran)
    assert [event.action for event in guard.local_sink.events] == ["call_would_deny", "call_denied"]


# --- Postconditions -------------------------------------------------------------------------------


def post(effect: str, name: str = "post", **options: Any) -> Contract:
    return postcondition("*", id=name, effect=effect, **options)(
        lambda call, result: Verdict.fail("contains a secret", field="body")
    )


READS = {"t": {"side_effect": "read"}}


def test_a_warning_leaves_the_output_and_makes_a_finding() -> None:
    """And an event of its own."""
    guard = Edictum(contracts=[post("warn")], tools=READS)
    outcome = guard.dispatch_sync("t", {}, ran)
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == "ran"
    finding = outcome.findings[0]
    assert (finding.type, finding.contract_id, finding.field, finding.message) == (
        "secret_detected",
        "post",
        "body",
        "contains a secret",
    )
    assert [event.action for event in guard.local_sink.events] == [
        "call_allowed",
        "postcondition_warning",
        "call_executed",
    ]
    assert guard.local_sink.last().postconditions_passed is False


@pytest.mark.parametrize("side_effect", [effect.value for effect in SideEffect])
def test_redaction_keeps_the_structure_whatever_the_tool_does(side_effect: str) -> None:
    """Also for tools that write: the output is withheld from the model, the effect has happened
    anyway.
    """
    secret = "ghp_" + "a" * 36
    guard = Edictum(contracts=[post("redact")], tools={"t": {"side_effect": side_effect}})
    outcome = guard.dispatch_sync(
        "t", {}, lambda: {"rows": [{"id": 1, "note": f"use {secret}", "password": "x"}]}
    )
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == {
        "rows": [{"id": 1, "note": "use [REDACTED]", "password": "[REDACTED]"}]
    }


def test_a_contracts_own_redaction_is_used() -> None:
    """A function from the result to what may be shown."""
    guard = Edictum(
        contracts=[post("redact", redact=lambda result: result.replace("hunter2", "***"))]
    )
    assert guard.run_sync("t", {}, lambda: "it is hunter2") == "it is ***"


@pytest.mark.parametrize(
    "redact", [lambda result: result, lambda result: 1 / 0], ids=["changes nothing", "raises"]
)
def test_a_redaction_that_removes_nothing_suppresses(redact: Any) -> None:
    """What the contract objected to is still in there."""
    guard = Edictum(contracts=[post("redact", redact=redact)])
    assert (
        guard.run_sync("t", {}, lambda: "it is hunter2") == "[OUTPUT SUPPRESSED] contains a secret"
    )


def test_deny_suppresses_the_output_and_later_redactions_do_not_bring_it_back() -> None:
    """The tool ran, the call counts, the output is gone."""
    guard = Edictum(contracts=[post("deny", "one"), post("redact", "two"), post("warn", "three")])
    outcome = guard.dispatch_sync("t", {}, ran)
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == "[OUTPUT SUPPRESSED] contains a secret"
    assert len(outcome.findings) == 3
    assert guard.local_sink.last().result_summary == '"[OUTPUT SUPPRESSED] contains a secret"'


def test_postconditions_see_the_result_and_may_pass() -> None:
    """All are recorded."""
    seen: list[Any] = []

    @postcondition("t", when=lambda call: True)
    async def look(call: ToolCall, result: Any) -> Verdict:
        seen.append((call.args["x"], result))
        return Verdict.pass_()

    guard = Edictum(contracts=[look, passing("pre")])
    guard.dispatch_sync("t", {"x": 1}, lambda x: x + 1)
    event = guard.local_sink.last()
    assert (seen, event.postconditions_passed, names(event)) == ([(1, 2)], True, ["pre", "look"])


def test_a_failures_text_is_redacted_and_suppressed_like_an_output() -> None:
    """An exception's message can hold what a contract objects to."""

    def explode() -> None:
        raise ValueError("user hunter2 unknown")

    redacting = Edictum(
        contracts=[post("redact", redact=lambda text: text.replace("hunter2", "***"))]
    ).dispatch_sync("t", {}, explode)
    denying_ = Edictum(contracts=[post("deny")]).dispatch_sync("t", {}, explode)
    assert isinstance(redacting, ToolFailure)
    assert isinstance(denying_, ToolFailure)
    assert (redacting.error, denying_.error) == (
        "user *** unknown",
        "[OUTPUT SUPPRESSED] contains a secret",
    )


@pytest.mark.parametrize(
    ("side_effect", "advice"), [("read", "Consider retrying."), ("write", "Tool already executed")]
)
def test_without_objections_there_are_no_findings(side_effect: str, advice: str) -> None:
    """The advice of a warning depends on whether repeating is safe."""
    from edictum.core.decide import as_answer, decide_after
    from edictum.core.redaction import RedactionPolicy

    contract = post("warn")
    call = ToolCall("t", side_effect=SideEffect(side_effect))
    _, after = decide_after(
        (contract,),
        [as_answer(contract, Verdict.fail("odd"), "enforce")],
        call,
        "x",
        RedactionPolicy().redact_value,
    )
    assert after.warnings[0].startswith(f"odd {advice}")


# --- Principals -----------------------------------------------------------------------------------


@precondition("*")
def only_admins(call: ToolCall) -> Verdict:
    role = call.principal.role if call.principal else None
    return Verdict.pass_() if role == "admin" else Verdict.fail(f"role {role} may not")


ADMIN, GUEST = Principal(user_id="a", role="admin"), Principal(user_id="g", role="guest")


async def test_the_principal_of_the_guard_is_used() -> None:
    """And can be replaced."""
    guard = Edictum(contracts=[only_admins], principal=GUEST)
    assert isinstance(await guard.dispatch("t", {}, ran), ToolDenied)
    guard.set_principal(ADMIN)
    assert isinstance(await guard.dispatch("t", {}, ran), ToolExecutionResult)
    assert guard.principal is ADMIN
    guard.set_principal(None)
    assert isinstance(await guard.dispatch("t", {}, ran), ToolDenied)


async def test_a_resolver_decides_by_tool_and_arguments() -> None:
    """Sync or async, and it wins over the static one."""

    async def resolve(tool: str, args: Any) -> Principal:
        await asyncio.sleep(0)
        return ADMIN if args["x"] else GUEST

    for resolver in (resolve, lambda tool, args: ADMIN if args["x"] else GUEST):
        guard = Edictum(contracts=[only_admins], principal=GUEST, principal_resolver=resolver)
        assert isinstance(await guard.dispatch("t", {"x": 1}, lambda x: x), ToolExecutionResult)
        assert isinstance(guard.dispatch_sync("t", {"x": 0}, lambda x: x), ToolDenied)
        assert guard.local_sink.last().principal["user_id"] == "g"


async def test_a_principal_given_with_the_call_wins() -> None:
    """Over the static one, and over the resolver, which is not asked."""
    guard = Edictum(contracts=[only_admins], principal=GUEST)
    assert isinstance(await guard.dispatch("t", {}, ran, principal=ADMIN), ToolExecutionResult)
    asked: list[str] = []
    guard = Edictum(
        contracts=[only_admins], principal_resolver=lambda tool, args: asked.append(tool) or GUEST
    )
    assert isinstance(await guard.dispatch("t", {}, ran, principal=ADMIN), ToolExecutionResult)
    assert asked == []


def test_a_call_can_be_made_on_nobodys_behalf() -> None:
    """``principal=None`` given with the call is an answer, too."""
    guard = Edictum(contracts=[only_admins], principal=ADMIN)
    assert isinstance(guard.dispatch_sync("t", {}, ran, principal=None), ToolDenied)


def test_a_resolver_may_find_nobody() -> None:
    """Contracts then decide about an anonymous call."""
    guard = Edictum(contracts=[only_admins], principal_resolver=lambda tool, args: None)
    assert guard.dispatch_sync("t", {}, ran).details == "role None may not"


# --- Options of a call ----------------------------------------------------------------------------


def test_options_reach_the_call_and_the_audit() -> None:
    """Everything a framework knows about its call."""
    seen: list[ToolCall] = []

    @precondition("*")
    def look(call: ToolCall) -> Verdict:
        seen.append(call)
        return Verdict.pass_()

    guard = Edictum(contracts=[look])
    options = {
        "session_id": "s-1",
        "call_id": "c-1",
        "parent_call_id": "c-0",
        "call_index": 7,
        "environment": "staging",
        "caller": "planner",
        "tool_use_id": "tu-1",
        "metadata": {"trace": "x"},
    }
    guard.dispatch_sync("t", {}, ran, **options)
    call, event = seen[0], guard.local_sink.last()
    assert (call.session_id, call.call_id, call.parent_call_id, call.call_index) == (
        "s-1",
        "c-1",
        "c-0",
        7,
    )
    assert (call.environment, call.caller, call.tool_use_id, call.metadata) == (
        "staging",
        "planner",
        "tu-1",
        {"trace": "x"},
    )
    assert (event.run_id, event.session_id, event.call_id, event.parent_call_id) == (
        "s-1",
        "s-1",
        "c-1",
        "c-0",
    )
    assert (event.call_index, event.environment) == (7, "staging")


def test_calls_are_numbered() -> None:
    """``call_index`` counts the guard's calls when nobody says otherwise."""
    guard = Edictum()
    for _ in range(3):
        guard.dispatch_sync("t", {}, ran)
    assert [event.call_index for event in guard.local_sink.filter("call_executed")] == [0, 1, 2]


def test_a_timestamp_can_be_given() -> None:
    """By a host that replays."""
    from datetime import UTC, datetime

    when = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
    seen: list[datetime] = []
    contract = precondition("*")(lambda call: seen.append(call.timestamp) or Verdict.pass_())
    Edictum(contracts=[contract]).dispatch_sync("t", {}, ran, timestamp=when)
    assert seen == [when]


def test_sessions_are_apart() -> None:
    """Counters belong to a session id."""
    guard = Edictum(limits=OperationLimits(max_tool_calls=1))
    assert isinstance(guard.dispatch_sync("t", {}, ran, session_id="a"), ToolExecutionResult)
    assert isinstance(guard.dispatch_sync("t", {}, ran, session_id="b"), ToolExecutionResult)
    assert isinstance(guard.dispatch_sync("t", {}, ran, session_id="a"), ToolDenied)
    guard.session("a").reset()
    assert isinstance(guard.dispatch_sync("t", {}, ran, session_id="a"), ToolExecutionResult)


async def test_a_session_contract_reads_the_counters_under_all_their_names() -> None:
    """The names of the older library, which were awaited, and ours."""
    seen: list[Any] = []

    @session_contract
    async def look(session: Session) -> Verdict:
        seen.append(
            (
                session.attempts,
                session.executions,
                session.successes,
                session.failures,
                int(session.consecutive_failures),
            )
        )
        seen.append(
            (
                await session.attempt_count(),
                await session.execution_count(),
                await session.tool_execution_count("t"),
            )
        )
        seen.append(
            (
                await session.consecutive_failures(),
                session.per_tool,
                session.successes_per_tool,
                session.in_flight,
            )
        )
        return Verdict.pass_()

    guard = Edictum(contracts=[look])
    await guard.dispatch("t", {}, ran)
    await guard.dispatch("t", {}, lambda: 1 / 0)
    seen.clear()
    await guard.dispatch("t", {}, ran)
    assert seen == [(3, 2, 1, 1, 1), (3, 2, 2), (1, {"t": 2}, {"t": 1}, 0)]


# --- Limits that only observe ---------------------------------------------------------------------

OBSERVED_LIMIT = """apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: observed}
defaults: {mode: enforce}
contracts:
  - id: few
    type: session
    mode: observe
    limits: {max_attempts: 1}
    then: {effect: deny, message: enough}
"""


def test_a_full_limit_that_observes_is_reported_even_when_a_contract_denies() -> None:
    """It would have denied the call as well."""
    guard = Edictum.from_yaml_string(OBSERVED_LIMIT, contracts=[denying("hard")])
    guard.dispatch_sync("t", {}, ran)
    guard.dispatch_sync("t", {}, ran)
    events = [(event.action.value, event.decision_name) for event in guard.local_sink.events]
    assert events == [("call_denied", "hard"), ("call_would_deny", "few"), ("call_denied", "hard")]
