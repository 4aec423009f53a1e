"""A contract that cannot be applied: what the model, the audit and the log are told."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from edictum import Edictum, ToolDenied, ToolExecutionResult, Verdict, precondition
from edictum.outcomes import outcome_to_model_content

BUNDLE = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: shop}
contracts:
  - id: big
    type: pre
    tool: refund
    when: {args.amount: {gt: 100}}
    then: {effect: deny, message: "Too much: {args.amount}"}
  - id: own
    type: pre
    tool: order
    when: {order.owner: {not_equals: me}}
    then: {effect: approve, message: Not your order.}
  - id: rows
    type: post
    tool: read
    when: {result.password: {gt: 3}}
    then: {effect: deny, message: Not shown.}
"""


def divide(call: Any) -> dict[str, Any]:
    raise ZeroDivisionError("division by zero")


@pytest.fixture
def guard() -> Edictum:
    return Edictum.from_yaml_string(BUNDLE, custom_selectors={"order": divide})


@pytest.mark.parametrize(
    ("tool", "args", "reason", "kind"),
    [
        (
            "refund",
            {"amount": "50"},
            "args.amount is text; a number is needed for 'gt'",
            "Mismatch",
        ),
        (
            "refund",
            {"amount": [1]},
            "args.amount is a list; a number is needed for 'gt'",
            "Mismatch",
        ),
        ("order", {}, "ZeroDivisionError: division by zero", "ZeroDivisionError"),
    ],
)
def test_what_is_wrong_is_told_in_place_of_the_message(
    guard: Edictum,
    caplog: pytest.LogCaptureFixture,
    tool: str,
    args: dict[str, Any],
    reason: str,
    kind: str,
) -> None:
    outcome = guard.dispatch_sync(tool, args, lambda **_: 1, call_id="c-1")
    wanted = f"The contract could not be applied: {reason}."
    assert isinstance(outcome, ToolDenied)
    assert (outcome.details, outcome.policy_error) == (wanted, True)
    told = outcome_to_model_content(outcome)
    if kind == "Mismatch":
        assert wanted in told
    else:
        assert "The contract 'own' could not be applied" in told
        assert "division" not in told, "what was raised is for operators"
    event = guard.local_sink.last()
    assert (event.reason, event.policy_error) == (wanted, True)
    assert event.contracts_evaluated[0]["metadata"]["error_type"] == kind
    level, said = (
        (logging.WARNING, "not judged") if kind == "Mismatch" else (logging.ERROR, "policy error")
    )
    (logged,) = [record for record in caplog.records if record.levelno == level]
    assert logged.getMessage() == (
        f"{said}: call_denied of the tool '{tool}' (call c-1): yaml_precondition"
        f" {outcome.decision_name}: {wanted}"
    )


def test_a_result_that_cannot_be_judged_is_not_quoted(
    guard: Edictum, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = guard.dispatch_sync("read", {}, lambda: {"password": "hunter2"})
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == {
        "suppressed": "[OUTPUT SUPPRESSED] The contract could not be applied: result.password is"
        " text; a number is needed for 'gt'."
    }
    assert len(caplog.records) == 1
    assert "hunter2" not in caplog.text


def test_a_custom_operator_that_quotes_the_result_is_not_quoted() -> None:
    bundle = BUNDLE.replace("{gt: 3}", "{is_round: true}")
    guard = Edictum.from_yaml_string(
        bundle,
        custom_operators={"is_round": lambda field, value: int(field) % 10 == 0},
        custom_selectors={"order": divide},
    )
    outcome = guard.dispatch_sync("read", {}, lambda: {"password": "hunter2"})
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == {
        "suppressed": "[OUTPUT SUPPRESSED] The contract could not be applied: ValueError."
    }


def test_errors_of_python_contracts_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    @precondition("*", id="odd")
    def odd(call: Any) -> Verdict:
        raise KeyError("day")

    Edictum(contracts=[odd]).dispatch_sync("t", {}, lambda: 1, call_id="c")
    assert [record.getMessage() for record in caplog.records] == [
        "policy error: call_denied of the tool 't' (call c): precondition odd: Precondition error:"
        " KeyError: 'day'"
    ]


def test_a_contract_that_only_observes_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    guard = Edictum.from_yaml_string(BUNDLE, mode="observe", custom_selectors={"order": divide})
    guard.dispatch_sync("refund", {"amount": "50"}, lambda amount: 1)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "call_would_deny" in record.getMessage()
