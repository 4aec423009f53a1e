"""What happens when a part of the gate itself fails: each row of PORT_FAILURES, proven."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from edictum import (
    ApprovalDecision,
    ApprovalStatus,
    Contract,
    Edictum,
    HookDecision,
    HookRegistration,
    HookResult,
    InMemoryApprovalBackend,
    OperationLimits,
    RedactionPolicy,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    Verdict,
    outcome_to_model_content,
    postcondition,
    precondition,
    session_contract,
)
from edictum.core.contract import Kind
from edictum.core.limits import Counters, Grant, Reservation, Settlement
from edictum.runtime.handlers import PORT_FAILURES
from edictum.sessions import MemoryLedger
from edictum.testing import (
    FailingApprovalBackend,
    FailingLedger,
    FailingSink,
    RecordingSink,
    ScriptedApprovalBackend,
)
from support.guards import approval_contract

PROVEN: set[str] = set()


def proves(row: str) -> Any:
    """Marks a test, or a class of tests, as the proof of a row."""
    assert row in PORT_FAILURES, row

    def mark(test: Any) -> Any:
        PROVEN.add(row)
        return test

    return mark


def broken(*args: Any) -> Any:
    raise LookupError("it broke")


async def broken_later(*args: Any) -> Any:
    await asyncio.sleep(0)
    raise LookupError("it broke")


def ran(**args: Any) -> str:
    return "ran"


ask = approval_contract(message="sure?")


def refused(guard: Edictum, source: str | None = None) -> ToolDenied:
    """The denial of a call whose body did not run, which left one closing event and no slot
    behind.
    """
    bodies: list[str] = []
    outcome = guard.dispatch_sync("t", {}, lambda: bodies.append("ran"))
    assert isinstance(outcome, ToolDenied), outcome
    assert bodies == []
    if source is not None:
        assert outcome.decision_source == source
    return outcome


# --- Contracts, hooks -----------------------------------------------------------------------------

CONTRACTS: dict[str, Contract] = {
    "precondition raises": precondition("*")(broken),
    "precondition raises later": precondition("*")(broken_later),
    "precondition that asks raises": precondition("*", effect="approve")(broken),
    "precondition returns None": precondition("*")(lambda call: None),  # type: ignore[arg-type, return-value]
    "precondition returns True": precondition("*")(lambda call: True),  # type: ignore[arg-type, return-value]
    "when raises": precondition("*", when=broken)(lambda call: Verdict.pass_()),
    "StopIteration": precondition("*")(lambda call: next(iter([]))),
    "verdict whose message is no text": precondition("*")(lambda call: Verdict(False, 123)),  # type: ignore[arg-type]
    "sandbox raises": Contract(id="box", kind=Kind.SANDBOX, check=broken),
    "session contract raises": session_contract(broken),
    "session contract raises later": session_contract(broken_later),
    "session contract returns None": session_contract(lambda session: None),  # type: ignore[arg-type, return-value]
}


@proves("contract, hook or selector")
@pytest.mark.parametrize("name", CONTRACTS)
class TestAContractThatBreaks:
    def test_denies_with_policy_error(self, name: str) -> None:
        """The event says which contract, and what went wrong."""
        contract = CONTRACTS[name]
        backend = InMemoryApprovalBackend(True)
        guard = Edictum(contracts=[contract], approval_backend=backend)
        outcome = refused(guard, contract.source)
        event = guard.local_sink.last()
        assert outcome.decision_name == contract.id
        assert event.action == "call_denied"
        assert outcome.policy_error
        assert event.policy_error
        assert " error: " in outcome.details
        assert event.contracts_evaluated[-1]["passed"] is False
        assert backend.requests == []
        assert (
            guard.session().attempts,
            guard.session().executions,
            guard.session().in_flight,
        ) == (1, 0, 0)

    def test_is_only_reported_in_observe_mode(self, name: str) -> None:
        """The call runs."""
        guard = Edictum(contracts=[CONTRACTS[name]], mode="observe")
        assert isinstance(guard.dispatch_sync("t", {}, ran), ToolExecutionResult)
        assert [event.action for event in guard.local_sink.events] == [
            "call_would_deny",
            "call_allowed",
            "call_executed",
        ]

    def test_is_data_for_evaluate_too(self, name: str) -> None:
        """A dry run says what a run would do."""
        result = Edictum(contracts=[CONTRACTS[name]]).evaluate("t", {}, session_id="s")
        assert result.verdict == "deny"


HOOKS: dict[str, HookRegistration] = {
    "raises": HookRegistration("before", "*", broken),
    "raises later": HookRegistration("before", "*", broken_later),
    "when raises": HookRegistration("before", "*", lambda call: HookDecision.allow(), when=broken),
    "returns None": HookRegistration("before", "*", lambda call: None),
    "returns True": HookRegistration("before", "*", lambda call: True),
    "returns the bare result": HookRegistration("before", "*", lambda call: HookResult.ALLOW),
}


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_that_breaks_denies_with_policy_error(name: str) -> None:
    """An answer that is no HookDecision is no answer."""
    guard = Edictum(hooks=[HOOKS[name]])
    outcome = refused(guard, "hook")
    assert outcome.policy_error
    assert outcome.details.startswith("Hook error: ")
    assert guard.local_sink.last().policy_error
    assert guard.evaluate("t", {}).policy_error


@pytest.mark.parametrize(
    "decision",
    [
        lambda: HookDecision("deny", "no"),
        lambda: HookDecision("allowed"),
        lambda: HookDecision(None),
        lambda: HookDecision(False),
    ],
)
def test_a_hook_decision_made_by_hand_from_the_wrong_thing_does_not_allow(decision: Any) -> None:
    """``HookDecision("deny")`` means deny, and what means nothing is an error."""
    refused(Edictum(hooks=[HookRegistration("before", "*", lambda call: decision())]), "hook")


def test_one_that_breaks_does_not_keep_the_others_from_being_asked() -> None:
    """Their answers are recorded."""
    guard = Edictum(
        contracts=[
            CONTRACTS["precondition raises"],
            precondition("*", id="other")(lambda call: Verdict.fail("no")),
        ]
    )
    refused(guard)
    messages = [record["message"] for record in guard.local_sink.last().contracts_evaluated]
    assert messages == ["Precondition error: LookupError: it broke", "no"]


@proves("postcondition")
@pytest.mark.parametrize(
    "check",
    [broken, broken_later, lambda call, result: None],
    ids=["raises", "raises later", "None"],
)
@pytest.mark.parametrize(("effect", "value"), [("warn", "ran"), ("redact", None), ("deny", None)])
def test_a_postcondition_that_breaks_objects(check: Any, effect: str, value: Any) -> None:
    """Warn warns; redact and deny suppress, since nobody knows what is in there."""
    guard = Edictum(contracts=[postcondition("*", effect=effect)(check)])
    outcome = guard.dispatch_sync("t", {}, ran)
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == value or str(outcome.value).startswith(
        "[OUTPUT SUPPRESSED] Postcondition error: "
    )
    event = guard.local_sink.last()
    assert (event.policy_error, event.postconditions_passed, event.action) == (
        True,
        False,
        "call_executed",
    )
    assert guard.session().successes == 1


@pytest.mark.parametrize("effect", ["redact", "deny"])
def test_a_postcondition_that_breaks_does_not_quote_the_result(effect: str) -> None:
    """Its exception may hold what was to be hidden."""

    def parse(call: Any, result: Any) -> Any:
        return Verdict.pass_() if int(result["ssn"]) else Verdict.fail("a number")

    guard = Edictum(contracts=[postcondition("*", effect=effect)(parse)])
    outcome = guard.dispatch_sync("t", {}, lambda: {"ssn": "123-45-6789"})
    assert "Postcondition error: ValueError" in outcome_to_model_content(outcome)
    assert "6789" not in f"{outcome} {guard.local_sink.last()}"


@proves("success check")
def test_a_success_check_that_breaks_makes_a_failure() -> None:
    """See test_success for all the ways."""
    guard = Edictum(success_check=broken)
    outcome = guard.dispatch_sync("t", {}, ran)
    assert isinstance(outcome, ToolFailure)
    assert outcome.policy_error
    assert guard.local_sink.last().result_summary == '"ran"'


# --- Principal resolver, callbacks ----------------------------------------------------------------


@proves("principal resolver")
@pytest.mark.parametrize(
    "resolver",
    [broken, broken_later, lambda tool, args: "bob", lambda tool, args: {"role": "admin"}],
    ids=["raises", "raises later", "text", "dict"],
)
def test_a_resolver_that_breaks_denies(resolver: Any) -> None:
    """The attempt counts, the event says why; no contract is asked about a call of an unknown
    principal.
    """
    guard = Edictum(
        principal_resolver=resolver, contracts=[precondition("*")(lambda call: Verdict.pass_())]
    )
    outcome = refused(guard, "principal_resolver")
    assert (outcome.reason, outcome.policy_error) == ("policy_error", True)
    assert outcome.details.startswith("The principal could not be resolved: ")
    assert guard.local_sink.last().action == "call_denied"
    assert guard.session().attempts == 1


def test_a_resolver_that_breaks_denies_in_a_dry_run_too() -> None:
    """``evaluate`` says what ``run`` would do; it does not raise."""
    result = Edictum(principal_resolver=broken).evaluate("t", {})
    assert (result.verdict, result.policy_error) == ("deny", True)


@proves("amounts of a call")
@pytest.mark.parametrize(
    "amount",
    [broken, lambda call: None, lambda call: "5", lambda call: -1, "args.missing"],
    ids=["raises", "none", "text", "negative", "missing"],
)
def test_amounts_that_cannot_be_told_deny_unless_the_guard_observes(amount: Any) -> None:
    """The attempt counts and the event says why; in observe mode it is only reported."""
    tools = {"t": {"amounts": {"cost": amount}}}
    guard = Edictum(tools=tools)
    outcome = refused(guard, "amounts")
    assert (outcome.reason, outcome.policy_error) == ("policy_error", True)
    assert outcome.details.startswith("The amount 'cost' of the call is not known: ")
    assert (guard.local_sink.last().action, guard.session().attempts) == ("call_denied", 1)
    observing = Edictum(tools=tools, mode="observe")
    assert observing.run_sync("t", {}, ran) == "ran"
    assert observing.local_sink.events[0].action == "call_would_deny"


@proves("callback (`on_allow`, `on_deny`, after-hook)")
@pytest.mark.parametrize("callback", [broken, broken_later], ids=["raises", "raises later"])
def test_a_callback_that_breaks_changes_nothing_and_is_logged(
    callback: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """on_allow, on_deny and after-hooks are told, not asked."""
    hooks = [HookRegistration("after", "*", callback)]
    deny = precondition("rm")(lambda call: Verdict.fail("no"))
    guard = Edictum(on_allow=callback, on_deny=callback, hooks=hooks, contracts=[deny])
    with caplog.at_level(logging.ERROR, "edictum"):
        assert guard.dispatch_sync("t", {}, ran).value == "ran"
        assert isinstance(guard.dispatch_sync("rm", {}, ran), ToolDenied)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "on_allow raised; the call goes on",
        f"after-hook {callback.__name__} raised; the call goes on",
        "on_deny raised; the call goes on",
    ]
    assert [event.action for event in guard.local_sink.events] == [
        "call_allowed",
        "call_executed",
        "call_denied",
    ]


def test_an_after_hook_whose_when_raises_is_not_run_and_changes_nothing() -> None:
    """The call goes on."""
    seen: list[Any] = []
    guard = Edictum(
        hooks=[HookRegistration("after", "*", lambda call, result: seen.append(1), when=broken)]
    )
    assert guard.dispatch_sync("t", {}, ran).value == "ran"
    assert seen == []


# --- Ledger ---------------------------------------------------------------------------------------


@proves("ledger, before the tool")
class TestALedgerThatFailsBefore:
    def test_reserve(self) -> None:
        """No slot, no call."""
        guard = Edictum(backend=FailingLedger(["reserve"]))
        outcome = refused(guard, "ledger")
        assert (outcome.reason, outcome.policy_error) == ("policy_error", True)
        assert outcome.details == "The session ledger could not be asked: the ledger is down"
        assert guard.local_sink.last().action == "call_denied"

    def test_a_grant_without_what_session_contracts_look_at(self) -> None:
        """They are not asked with half of the numbers, and the slot that was taken is given
        back.
        """

        class TerseLedger(MemoryLedger):
            def reserve(self, reservation: Reservation) -> Grant:
                grant = super().reserve(reservation)
                return Grant(grant.granted, grant.counters, grant.breaches)

        guard = Edictum(
            backend=TerseLedger(), contracts=[session_contract(lambda session: Verdict.pass_())]
        )
        outcome = refused(guard, "ledger")
        assert (outcome.policy_error, outcome.details) == (
            True,
            "The session ledger did not return the counters of each tool.",
        )
        assert guard.session().in_flight == 0
        no = precondition("*", id="no")(lambda call: Verdict.fail("no"))
        denied = Edictum(
            backend=TerseLedger(), contracts=[session_contract(lambda session: Verdict.pass_()), no]
        )
        assert refused(denied).decision_name == "no"

    def test_counting_the_attempt_of_a_denied_call(self) -> None:
        """It is denied anyway, for the first reason."""
        guard = Edictum(
            backend=FailingLedger(["reserve"]),
            contracts=[precondition("*", id="no")(lambda call: Verdict.fail("no"))],
        )
        assert refused(guard).decision_name == "no"

    def test_looking_before_an_approval(self) -> None:
        """Nobody is asked."""
        backend = InMemoryApprovalBackend(True)
        refused(
            Edictum(backend=FailingLedger(["reserve"]), contracts=[ask], approval_backend=backend),
            "ledger",
        )
        assert backend.requests == []

    def test_observing_does_not_make_up_for_it(self) -> None:
        """A guard that observes waives objections, not its own failures."""
        refused(Edictum(backend=FailingLedger(["reserve"]), mode="observe"), "ledger")

    @pytest.mark.parametrize("answer", [None, True, "granted"])
    def test_an_answer_that_is_none(self, answer: Any) -> None:
        """A ledger written by somebody else may answer anything."""

        class OddLedger(MemoryLedger):
            def reserve(self, reservation: Reservation) -> Grant:
                return answer  # type: ignore[no-any-return]

        for contracts in ([], [precondition("*", id="no")(lambda call: Verdict.fail("no"))], [ask]):
            refused(
                Edictum(
                    backend=OddLedger(),
                    contracts=contracts,
                    approval_backend=InMemoryApprovalBackend(True),
                )
            )

    def test_counters_that_are_none(self) -> None:
        """The same for the counters of each tool."""

        class OddLedger(MemoryLedger):
            def reserve(self, reservation: Reservation) -> Grant:
                return Grant(True, super().reserve(reservation).counters, (), 5)  # type: ignore[arg-type]

        refused(
            Edictum(
                backend=OddLedger(), contracts=[session_contract(lambda session: Verdict.pass_())]
            ),
            "ledger",
        )


@proves("ledger, after the tool")
class TestALedgerThatFailsAfter:
    def test_the_result_is_kept(self) -> None:
        """The outcome's notes and the closing event say that the call could not be counted."""
        guard = Edictum(backend=FailingLedger(["settle"]))
        outcome = guard.dispatch_sync("t", {}, ran)
        assert isinstance(outcome, ToolExecutionResult)
        assert (outcome.value, outcome.notes) == (
            "ran",
            ("The call could not be counted: the ledger is down",),
        )
        event = guard.local_sink.last()
        assert (event.action, event.error) == (
            "call_executed",
            "The call could not be counted: the ledger is down",
        )

    def test_a_failure_is_kept_too(self) -> None:
        """With both texts in the event."""
        guard = Edictum(backend=FailingLedger(["settle"]))
        outcome = guard.dispatch_sync("t", {}, lambda: 1 / 0)
        assert isinstance(outcome, ToolFailure)
        assert outcome.notes
        assert (
            guard.local_sink.last().error
            == "division by zero; The call could not be counted: the ledger is down"
        )

    def test_its_secrets_are_not_shown(self) -> None:
        """Connection errors like to name the URL they could not reach."""
        guard = Edictum(
            backend=FailingLedger(["settle"], error="cannot reach redis://admin:hunter2@db/0")
        )
        outcome = guard.dispatch_sync("t", {}, ran)
        assert "hunter2" not in guard.local_sink.last().error
        assert "hunter2" not in "".join(outcome.notes)

    def test_an_answer_that_is_none(self) -> None:
        """The result is kept."""

        class OddLedger(MemoryLedger):
            def settle(self, settlement: Settlement) -> Counters:
                return None  # type: ignore[return-value]

        outcome = Edictum(backend=OddLedger()).dispatch_sync("t", {}, ran)
        assert isinstance(outcome, ToolExecutionResult)


# --- Audit ----------------------------------------------------------------------------------------


@proves("audit, before the tool")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
class TestAnAuditThatFailsBefore:
    def test_the_call_does_not_start(self, asynchronous: bool) -> None:
        """Its slots are given back."""
        guard = Edictum(audit_sink=FailingSink(["call_allowed"], asynchronous=asynchronous))
        outcome = refused(guard, "audit")
        assert (outcome.reason, outcome.policy_error) == ("policy_error", True)
        assert (
            outcome.details
            == "The audit could not be written, so the call was not started: FailingSink: the disk"
            " is full"
        )
        assert (
            guard.session().attempts,
            guard.session().executions,
            guard.session().in_flight,
        ) == (1, 0, 0)
        assert [event.action for event in guard.local_sink.events] == [
            "call_allowed",
            "call_denied",
        ]

    def test_a_denial_that_cannot_be_written_is_still_a_denial(self, asynchronous: bool) -> None:
        """The outcome's notes say so."""
        guard = Edictum(
            audit_sink=FailingSink(asynchronous=asynchronous),
            contracts=[precondition("*", id="no")(lambda call: Verdict.fail("no"))],
        )
        outcome = refused(guard, "precondition")
        assert outcome.notes == (
            "The denial could not be written to the audit: FailingSink: the disk is full",
        )

    def test_a_sink_that_is_not_required_is_skipped(
        self, asynchronous: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is logged, and the call goes on."""
        guard = Edictum(
            audit_sink=FailingSink(required=False, asynchronous=asynchronous, error="no network")
        )
        outcome = guard.dispatch_sync("t", {}, ran)
        assert isinstance(outcome, ToolExecutionResult)
        assert outcome.notes == ()
        assert [record.getMessage() for record in caplog.records] == [
            "audit sink FailingSink failed; its events are lost until it can be written again:"
            " no network"
        ]

    def test_all_sinks_are_tried(self, asynchronous: bool) -> None:
        """The one that works has the event, whatever the others do."""
        good = RecordingSink(asynchronous=asynchronous)
        guard = Edictum(
            audit_sink=[
                FailingSink(asynchronous=asynchronous),
                good,
                FailingSink(error="also full"),
            ]
        )
        outcome = refused(guard, "audit")
        assert "FailingSink: the disk is full" in outcome.details
        assert "FailingSink: also full" in outcome.details
        assert [event.action for event in good.events] == ["call_allowed", "call_denied"]

    def test_a_request_for_approval_that_cannot_be_written_is_withdrawn(
        self, asynchronous: bool
    ) -> None:
        """Nobody is left thinking about a call that will not run."""
        backend = InMemoryApprovalBackend()
        guard = Edictum(
            contracts=[ask],
            approval_backend=backend,
            audit_sink=FailingSink(["call_approval_requested"], asynchronous=asynchronous),
        )
        refused(guard, "audit")
        assert backend.withdrawn == [request.approval_id for request in backend.requests]

    def test_a_grant_that_cannot_be_written_is_no_grant(self, asynchronous: bool) -> None:
        """The call does not start."""
        sink = FailingSink(["call_approval_granted"], asynchronous=asynchronous)
        guard = Edictum(
            contracts=[ask], approval_backend=InMemoryApprovalBackend(True), audit_sink=sink
        )
        refused(guard, "audit")
        assert guard.session().in_flight == 0

    def test_a_refusal_of_an_approval_that_cannot_be_written_is_still_one(
        self, asynchronous: bool
    ) -> None:
        """And is written as a denial, if that can be written."""
        sink = FailingSink(["call_approval_denied"], asynchronous=asynchronous)
        guard = Edictum(
            contracts=[ask], approval_backend=InMemoryApprovalBackend(False), audit_sink=sink
        )
        assert refused(guard).reason == "write_denied"
        assert sink.events[-1].action == "call_denied"

    def test_a_waived_objection_that_cannot_be_written_stops_the_call(
        self, asynchronous: bool
    ) -> None:
        """What would have been denied may not run unrecorded."""
        sink = FailingSink(["call_would_deny"], asynchronous=asynchronous)
        guard = Edictum(
            contracts=[precondition("*", mode="observe")(lambda call: Verdict.fail("no"))],
            audit_sink=sink,
        )
        refused(guard, "audit")
        assert guard.session().in_flight == 0


@proves("audit, after the tool")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_an_audit_that_fails_after_keeps_the_result(
    asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The outcome's notes and the log say that it could not be written; the call is counted."""
    guard = Edictum(audit_sink=FailingSink(["call_executed"], asynchronous=asynchronous))
    outcome = guard.dispatch_sync("t", {}, ran)
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == "ran"
    assert outcome.notes == (
        "The result could not be written to the audit: FailingSink: the disk is full",
    )
    assert "audit sink FailingSink failed" in caplog.text
    assert guard.session().executions == 1
    assert guard.run_sync("t", {}, ran) == "ran"


# --- Approval backend -----------------------------------------------------------------------------


@proves("approval backend")
class TestAnApprovalBackendThatFails:
    @pytest.mark.parametrize(
        ("at", "what"), [("request", "could not be asked"), ("wait", "did not answer")]
    )
    def test_it_means_no(self, at: Any, what: str) -> None:
        """With policy_error and a closing event."""
        backend = FailingApprovalBackend(at)
        guard = Edictum(contracts=[ask], approval_backend=backend)
        outcome = refused(guard, "approval_backend")
        assert (outcome.reason, outcome.policy_error) == ("write_denied", True)
        assert outcome.details == f"The approval backend {what}: the approval service is down"
        assert guard.local_sink.last().action == "call_denied"
        assert len(backend.withdrawn) == (at == "wait")

    def test_no_backend_means_no_with_an_event(self) -> None:
        """And on_deny is told."""
        told: list[Any] = []
        guard = Edictum(contracts=[ask], on_deny=lambda *args: told.append(args[1]))
        outcome = refused(guard)
        assert outcome.reason == "write_denied"
        assert told == ["Approval required but no approval backend configured: sure?"]
        assert guard.local_sink.last().action == "call_denied"

    def test_no_answer_means_no(self) -> None:
        """Unless the contract says otherwise."""
        late = ScriptedApprovalBackend(
            decision=ApprovalDecision(True, status=ApprovalStatus.TIMEOUT)
        )
        assert (
            refused(Edictum(contracts=[ask], approval_backend=late)).details
            == "The approval timed out without a decision."
        )

    @pytest.mark.parametrize(
        "answer", [None, True, "yes", object()], ids=["None", "True", "text", "object"]
    )
    def test_an_answer_that_is_no_decision_means_no(self, answer: Any) -> None:
        """A backend written by somebody else may answer anything."""
        guard = Edictum(contracts=[ask], approval_backend=ScriptedApprovalBackend(decision=answer))
        assert refused(guard, "approval_backend").policy_error
        assert guard.local_sink.last().outcome == "denied"

    @pytest.mark.parametrize("answer", [None, True, "id"], ids=["None", "True", "text"])
    def test_a_request_that_is_none_means_no(self, answer: Any) -> None:
        """The same for what it returns when it is asked."""
        guard = Edictum(contracts=[ask], approval_backend=ScriptedApprovalBackend(request=answer))
        assert refused(guard, "approval_backend").policy_error

    @pytest.mark.parametrize(
        "decision",
        [
            ApprovalDecision("no"),  # type: ignore[arg-type]
            ApprovalDecision(1),  # type: ignore[arg-type]
            ApprovalDecision(True, status=ApprovalStatus.DENIED),
            ApprovalDecision(True, digest="of another call"),
            ApprovalDecision(True, status=ApprovalStatus.WITHDRAWN),
        ],
        ids=[
            "approved is text",
            "approved is a number",
            "contradicts itself",
            "another call's digest",
            "withdrawn",
        ],
    )
    def test_only_a_plain_yes_is_a_yes(self, decision: ApprovalDecision) -> None:
        """Whatever is unclear means no."""
        refused(
            Edictum(contracts=[ask], approval_backend=ScriptedApprovalBackend(decision=decision))
        )

    def test_a_withdrawal_that_fails_changes_nothing(self) -> None:
        """Nobody waits any more, and that is that."""
        sink = FailingSink(["call_approval_requested"])
        refused(
            Edictum(
                contracts=[ask],
                approval_backend=FailingApprovalBackend("withdraw"),
                audit_sink=sink,
            ),
            "audit",
        )


@proves("telemetry")
def test_telemetry_has_no_port_yet() -> None:
    """Its row stands for the port that comes later; events are what it will be made from."""
    assert PORT_FAILURES["telemetry"] == "Ignored."


def test_every_row_is_proven() -> None:
    """A new row needs a test here."""
    elsewhere = {"artifact store"}  # tests/harness
    assert set(PORT_FAILURES) == PROVEN | elsewhere
    assert len(PORT_FAILURES) >= 11


# --- Redaction that fails, limits without numbers -------------------------------------------------


def test_a_redaction_policy_that_breaks_fails_like_the_audit_it_serves() -> None:
    """Before the tool the call does not start; the secret is not written in clear."""

    class BrokenPolicy(RedactionPolicy):
        def redact_args(self, args: Any) -> Any:
            raise LookupError("it broke")

    sink = RecordingSink()
    refused(Edictum(redaction=BrokenPolicy(), audit_sink=sink), "audit")
    assert sink.events == []


def test_a_limit_that_only_some_calls_meet_is_reported_with_its_numbers() -> None:
    """The reason is for a model that has to change its plan."""
    guard = Edictum(
        limits=OperationLimits(
            max_tool_calls=1, max_calls_per_tool={"t": 1}, max_successes=1, max_attempts=4
        )
    )
    reasons = [guard.dispatch_sync("t", {}, ran) for _ in range(4)]
    assert isinstance(reasons[0], ToolExecutionResult)
    assert reasons[1].details == "Execution limit reached (1 calls). Summarize progress and stop."
    last = guard.dispatch_sync("t", {}, ran)
    assert (
        last.details
        == "Attempt limit reached (4). Agent may be stuck in a retry loop. Stop and reassess."
    )
    assert last.reason == "limit"
