"""What a port, a table or an option says is taken as it is meant: a no is a no, a name that nobody
knows is no name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from edictum import (
    ApprovalDecision,
    ApprovalRequest,
    ApprovalStatus,
    Edictum,
    EdictumConfigError,
    EdictumInputError,
    EdictumToolError,
    HookDecision,
    HookRegistration,
    InMemoryApprovalBackend,
    OperationLimits,
    ToolDenied,
    ToolExecutionResult,
    ToolFailure,
    Verdict,
    outcome_to_model_content,
    postcondition,
    precondition,
)
from edictum.core.limits import Breach, Grant, Limit, Metric, Reservation
from edictum.harness import ToolSpec, Turn
from edictum.sessions import MemoryLedger
from support.guards import approval_contract

ask = approval_contract(timeout=5)
OBSERVED = Breach(Limit(name="seen", metric=Metric.EXECUTIONS, maximum=1, enforce=False), 1, 0)


@pytest.mark.parametrize("breaches", [(), (OBSERVED,)], ids=["no limit", "one that observes"])
def test_a_ledger_that_says_no_without_a_limit_is_believed(breaches: tuple[Breach, ...]) -> None:
    """A reservation that is repeated after its lease has ended is answered like this: the call must
    not run.
    """

    class Refusing(MemoryLedger):
        def reserve(self, reservation: Reservation) -> Grant:
            return Grant(False, super().reserve(reservation).counters, breaches)

    ran: list[int] = []
    outcome = Edictum(backend=Refusing()).dispatch_sync("t", {}, lambda: ran.append(1))
    assert isinstance(outcome, ToolDenied)
    assert (outcome.decision_source, outcome.policy_error, ran) == ("ledger", True, [])


class MixedUp(InMemoryApprovalBackend):
    """Hands back the request, and the answer, of the first call that it was asked about."""

    first: ApprovalRequest | None = None

    async def request_approval(self, *args: Any, **kwargs: Any) -> ApprovalRequest:
        request = await super().request_approval(*args, **kwargs)
        self.first = self.first or request
        return self.first

    async def wait_for_decision(
        self, approval_id: str, timeout: float | None = None
    ) -> ApprovalDecision:
        assert self.first is not None
        return ApprovalDecision(True, status=ApprovalStatus.APPROVED, digest=self.first.digest)


def test_an_approval_of_another_call_is_none_whatever_the_backend_believes() -> None:
    """The gate compares with the digest that it has made itself."""
    guard, ran = Edictum(contracts=[ask], approval_backend=MixedUp()), []
    for name in ("old", "main"):
        outcome = guard.dispatch_sync("delete", {"name": name}, lambda name: ran.append(name))
    assert isinstance(outcome, ToolDenied)
    assert (outcome.details, ran) == ("The approval is for another call.", ["old"])


async def test_a_backend_that_hangs_before_it_has_asked_anybody_is_not_waited_for() -> None:
    """The bound is the same as for the answer."""

    class Hanging(InMemoryApprovalBackend):
        late_answer_s = 0.05

        async def request_approval(self, *args: Any, **kwargs: Any) -> ApprovalRequest:
            await asyncio.sleep(3_600)
            raise AssertionError

    quick = approval_contract(timeout=0.05)
    async with asyncio.timeout(60):
        outcome = await Edictum(contracts=[quick], approval_backend=Hanging()).dispatch(
            "t", {}, lambda: 1
        )
    assert isinstance(outcome, ToolDenied)
    assert outcome.details.startswith("The approval backend could not be asked: no answer within")


# --- Amounts that depend on the arguments ---------------------------------------------------------


def cost(call: Any) -> dict[str, float]:
    return {"cost": call.args["n"]}


@pytest.mark.parametrize(
    ("args", "why"), [({}, "KeyError: 'n'"), ({"n": -3}, "amounts['cost'] is -3")]
)
def test_amounts_that_cannot_be_told_refuse_the_call(args: dict[str, Any], why: str) -> None:
    """The arguments come from a model: that is an answer, an attempt and an event, not an
    exception.
    """
    guard, ran = Edictum(limits=OperationLimits(max_cost=5)), []
    outcome = guard.dispatch_sync("t", args, lambda **_: ran.append(1), amounts=cost)
    assert isinstance(outcome, ToolDenied)
    assert why in outcome.details
    assert (outcome.policy_error, ran, guard.session().attempts, guard.session().in_flight) == (
        True,
        [],
        1,
        0,
    )
    assert [event.action for event in guard.local_sink.events] == ["call_denied"]
    evaluation = guard.evaluate("t", args, amounts=cost)
    assert (evaluation.verdict, evaluation.policy_error) == ("deny", True)


@pytest.mark.parametrize(("sent", "rewritten", "verdict"), [(1, 100, "deny"), (100, 1, "allow")])
def test_evaluate_reckons_with_what_hooks_make_of_the_arguments(
    sent: int, rewritten: int, verdict: str
) -> None:
    """As the call itself does."""
    hook = HookRegistration("before", "*", lambda call: HookDecision.rewrite({"n": rewritten}))
    guard = Edictum(hooks=[hook], limits=OperationLimits(max_cost=5))
    assert guard.evaluate("t", {"n": sent}, amounts=cost).verdict == verdict
    outcome = guard.dispatch_sync("t", {"n": sent}, lambda n: n, amounts=cost)
    assert isinstance(outcome, ToolDenied if verdict == "deny" else ToolExecutionResult)


# --- Mistakes -------------------------------------------------------------------------------------


def test_a_generator_is_no_result() -> None:
    """Nothing of it has run, and whatever it does later, no contract sees."""

    def rows() -> Iterator[int]:
        yield 1

    outcome = Edictum().dispatch_sync("t", {}, rows)
    assert isinstance(outcome, ToolFailure)
    assert (
        outcome.error
        == outcome.success_reason
        == (
            "The tool returned a generator, whose body has not run. It must return a list, or what"
            " it has found."
        )
    )
    with pytest.raises(EdictumToolError, match="must return a list"):
        Edictum().run_sync("t", {}, rows)
    assert Edictum(success_check=lambda tool, result: True).dispatch_sync("t", {}, rows).output  # type: ignore[union-attr]


def some_rows() -> Iterator[int]:
    yield 1


async def some_rows_later() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("make", [some_rows, some_rows_later, lambda: map(str, [1])])
@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("is_sync", [False, True])
async def test_no_text_shows_a_generator(
    make: Callable[[], Any], in_turn: bool, is_sync: bool
) -> None:
    """In its place stands what is wrong with it: its own text is an address in this process."""
    made = make()
    guard, asked = Edictum(), ("t", {}, lambda: made)
    turn = Turn(tools=[ToolSpec(name="t", function=asked[2])]) if in_turn else None
    options: dict[str, Any] = {"turn": turn} if in_turn else {}
    if is_sync:
        outcome = guard.dispatch_sync(*asked, **options)
    else:
        outcome = await guard.dispatch(*asked, **options)
    assert isinstance(outcome, ToolFailure)
    assert "must return a list" in outcome.error
    assert outcome.value == outcome.error
    event = guard.local_sink.events[-1]
    assert event.action == "call_failed"
    for text in (outcome_to_model_content(outcome), str(outcome), str(event)):
        assert " object " not in text, text
    if make is some_rows:
        assert list(made) == []  # it is closed


def test_closing_a_generator_that_has_begun_does_not_fail_the_call() -> None:
    """The outcome says what to return, not what closing raised."""

    def rows() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            raise OSError("the cursor is gone")

    begun = rows()
    next(begun)
    outcome = Edictum().dispatch_sync("t", {}, lambda: begun)
    assert isinstance(outcome, ToolFailure)
    assert "must return a list" in outcome.error


def test_a_turn_shows_no_generator_whatever_a_success_check_says() -> None:
    """Nothing can read it once the call has ended."""
    guard = Edictum(success_check=lambda tool, result: True)
    turn = Turn(tools=[ToolSpec(name="t", function=lambda: some_rows())])
    outcome = guard.dispatch_sync("t", {}, None, turn=turn)
    assert isinstance(outcome, ToolFailure)
    assert "must return a list" in outcome.error


async def redact_later(value: Any) -> Any:
    return value


class Awaited:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Any:
        yield from ()
        return self.value


@pytest.mark.parametrize("later", [lambda value: redact_later(value), Awaited])
def test_a_redaction_that_must_be_awaited_is_refused_or_trusted_with_nothing(later: Any) -> None:
    """Its coroutine is no redacted value."""
    with pytest.raises(EdictumConfigError, match="coroutine function"):
        postcondition("*", effect="redact", redact=redact_later)(
            lambda call, result: Verdict.fail("no")
        )
    late = postcondition("*", effect="redact", redact=later)(
        lambda call, result: Verdict.fail("no")
    )
    outcome = Edictum(contracts=[late]).dispatch_sync("t", {}, lambda: "secret")
    assert outcome.value == "[OUTPUT SUPPRESSED] no"  # type: ignore[union-attr]


async def when_later(call: Any) -> bool:
    return False


def test_a_condition_that_must_be_awaited_is_refused() -> None:
    """A coroutine is always true."""
    with pytest.raises(EdictumConfigError, match="not async"):
        precondition("*", when_later)
    with pytest.raises(EdictumConfigError, match="not async"):
        HookRegistration("before", "*", lambda call: HookDecision.allow(), when=when_later)


def test_a_key_that_no_evaluation_knows_is_refused() -> None:
    """Left out, the arguments would be none, and the verdict another."""
    with pytest.raises(EdictumInputError, match="'arguments'"):
        Edictum().evaluate_batch([{"tool": "t", "arguments": {}}])


@pytest.mark.parametrize("order", [("*", "pay_*"), ("pay_*", "*")])
def test_of_two_globs_the_one_that_says_more_is_meant(order: tuple[str, str]) -> None:
    """In whatever order they stand."""
    entries = {
        "*": {"side_effect": "read"},
        "pay_*": {"side_effect": "irreversible", "timeout_s": 5},
    }
    policy = Edictum(tools={name: entries[name] for name in order}).policy
    assert (policy.entry("pay_now").side_effect, policy.entry("pay_now").timeout_s) == (
        "irreversible",
        5,
    )
    assert policy.entry("look").side_effect == "read"


BUNDLE = """apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: %s}
defaults: {mode: enforce}
contracts:
  - {id: %s, type: pre, tool: "*", when: {args.x: {equals: 1}}, then: {effect: deny, message: no}}
"""


async def test_a_guard_merged_from_several_bundles_does_not_forget_some_of_them() -> None:
    """Which of them a reload would replace, nobody can know."""
    one, two = (Edictum.from_yaml_string(BUNDLE % (name, name)) for name in ("one", "two"))
    first_of_its_kind = Edictum.from_multiple([Edictum(), two])
    for guards in (
        [one, two],
        [Edictum(), two],
        [first_of_its_kind],
        [Edictum(), first_of_its_kind],
    ):
        with pytest.raises(EdictumConfigError, match="merge them again"):
            await Edictum.from_multiple(guards).reload(BUNDLE % ("one", "one"))
    await Edictum.from_multiple([one, Edictum()]).reload(BUNDLE % ("one", "one"))


async def test_a_reload_keeps_the_limits_of_the_guards_that_were_merged() -> None:
    """Also where they are the usual ones."""
    guard = Edictum.from_multiple(
        [Edictum(limits=OperationLimits(max_tool_calls=1_000)), Edictum()]
    )
    assert guard.limits.max_tool_calls == 200
    await guard.reload(BUNDLE % ("one", "one"))
    assert guard.limits.max_tool_calls == 200
