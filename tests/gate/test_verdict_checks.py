"""What a contract returns is taken at its word only if it is a whole Verdict, and errors are told
without giving secrets away.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from edictum import (
    Edictum,
    HookRegistration,
    ToolDenied,
    ToolExecutionResult,
    Verdict,
    postcondition,
    precondition,
    session_contract,
)
from edictum.outcomes import outcome_to_model_content
from edictum.sessions.memory import MemoryLedger


async def later() -> bool:
    return False


def check_that_returns(verdict: Any) -> Any:
    def check(call: Any) -> Any:
        return verdict() if callable(verdict) else verdict

    return check


HALF_VERDICTS = {
    "text": (lambda: Verdict("no"), "`passed` is str"),  # type: ignore[arg-type]
    "object": (lambda: Verdict(object()), "`passed` is object"),  # type: ignore[arg-type]
    "one": (lambda: Verdict(1), "`passed` is int"),  # type: ignore[arg-type]
    "None": (lambda: Verdict(None), "`passed` is NoneType"),  # type: ignore[arg-type]
    "no metadata": (lambda: Verdict(False, "no", None), "metadata that is NoneType"),  # type: ignore[arg-type]
    "metadata of a pass": (lambda: Verdict(True, "yes", [1]), "metadata that is list"),  # type: ignore[arg-type]
    "message": (lambda: Verdict(True, 5), "a message that is int"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(
    "decorate", [precondition("*"), session_contract], ids=["precondition", "session contract"]
)
@pytest.mark.parametrize(("verdict", "said"), HALF_VERDICTS.values(), ids=HALF_VERDICTS)
def test_a_verdict_with_a_wrong_field_refuses_the_call(
    decorate: Any, verdict: Any, said: str
) -> None:
    """As an error of the contract, and with the attempt counted."""
    guard, ran = Edictum(contracts=[decorate(check_that_returns(verdict))]), []
    outcome = guard.dispatch_sync("t", {}, lambda: ran.append(1))
    assert isinstance(outcome, ToolDenied)
    assert outcome.policy_error
    assert said in outcome.details
    assert ran == []
    assert guard.session().snapshot().totals.attempts == 1


def test_a_forgotten_await_does_not_let_a_call_through() -> None:
    """A coroutine is true, so it would have passed."""
    forgotten = later()
    outcome = Edictum(
        contracts=[precondition("*")(check_that_returns(Verdict(forgotten)))]
    ).dispatch_sync("t", {}, lambda: 1)  # type: ignore[arg-type]
    assert isinstance(outcome, ToolDenied)
    assert "`passed` is coroutine" in outcome.details
    assert asyncio.run(forgotten) is False  # type: ignore[arg-type]


def test_a_postcondition_with_a_wrong_field_is_a_finding() -> None:
    """The tool has run, so its result is kept."""
    guard = Edictum(contracts=[postcondition("*")(lambda call, result: Verdict(False, "no", None))])  # type: ignore[arg-type]
    outcome = guard.dispatch_sync("t", {}, lambda: 7)
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == 7
    assert outcome.findings[0].message.startswith(
        "Postcondition error: it returned metadata that is NoneType"
    )


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (KeyError("count"), "KeyError: 'count'"),
        (ValueError(), "ValueError"),
        (ValueError("ValueError"), "ValueError"),
    ],
    ids=["text", "no text", "its own name"],
)
def test_an_error_is_told_with_its_type(error: Exception, told: str) -> None:
    """The text of a KeyError alone says nothing."""

    def broken(call: Any) -> Any:
        raise error

    contract = Edictum(contracts=[precondition("*")(broken)]).dispatch_sync("t", {}, lambda: 1)
    hook = Edictum(hooks=[HookRegistration("before", "*", broken)]).dispatch_sync(
        "t", {}, lambda: 1
    )
    assert isinstance(contract, ToolDenied)
    assert isinstance(hook, ToolDenied)
    assert (contract.details, hook.details) == (
        f"Precondition error: {told}",
        f"Hook error: {told}",
    )


def test_sys_exit_in_a_redaction_suppresses_the_output() -> None:
    """It does not end the host, and it has redacted nothing."""
    contract = postcondition("*", effect="redact", redact=lambda value: sys.exit(3))(
        lambda call, result: Verdict.fail("secret")
    )
    outcome = Edictum(contracts=[contract]).dispatch_sync("t", {}, lambda: "hunter2")
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == "[OUTPUT SUPPRESSED] secret"


class LedgerDown(MemoryLedger):
    def reserve(self, reservation: Any) -> Any:
        raise ConnectionError("cannot reach postgresql://app:hunter2@db:5432/x")


class SinkDown:
    def emit(self, event: Any) -> None:
        raise OSError("https://u:hunter2@logs/ refused")


@precondition("*")
def cannot_connect(call: Any) -> Verdict:
    raise RuntimeError("connect failed: password=hunter2")


@pytest.mark.parametrize(
    "options",
    [{"backend": LedgerDown()}, {"audit_sink": SinkDown()}, {"contracts": [cannot_connect]}],
    ids=["ledger", "sink", "contract"],
)
def test_the_model_is_not_told_the_secrets_of_a_part_that_failed(options: dict[str, Any]) -> None:
    """Errors of clients like to name the address with the password in it."""
    outcome = Edictum(**options).dispatch_sync("t", {}, lambda: 1)
    assert isinstance(outcome, ToolDenied)
    assert "[REDACTED]" in outcome.details
    assert "hunter2" not in outcome_to_model_content(outcome) + str(outcome)


class Stop(BaseException):
    pass


@postcondition("*")
def stopping(call: Any, result: Any) -> Verdict:
    raise Stop("password=hunter2")


def test_what_broke_a_call_off_is_written_down_without_secrets() -> None:
    """In every field of the event."""
    guard = Edictum(contracts=[stopping])
    with pytest.raises(Stop):
        guard.run_sync("t", {}, lambda: 1)
    event = guard.local_sink.last()
    assert event.error == "The gate was interrupted: Stop: password=[REDACTED]"
    assert "hunter2" not in str(event.to_dict())
