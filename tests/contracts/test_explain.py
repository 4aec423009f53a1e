"""explain and evaluate: what would be decided, and why, leaf by leaf."""

from __future__ import annotations

from typing import Any

import pytest

from edictum import Edictum, OperationLimits, Principal, Verdict, precondition, session_contract
from edictum.outcomes import ToolDenied

BUNDLE = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: e}
contracts:
  - id: no-prod
    type: pre
    tool: deploy
    when:
      all:
        - environment: {equals: production}
        - not: {principal.role: {in: [sre, admin]}}
        - any:
            - args.force: {equals: true}
            - args.password: {exists: true}
            - args.size: {gt: 5}
    then: {effect: deny, message: "Not in {environment}."}
  - id: ask
    type: pre
    tool: pay
    when: {args.amount: {gt: 100}}
    then: {effect: approve, message: ask}
  - id: calm
    type: pre
    tool: deploy
    when: {session.failures: {gte: 2}}
    then: {effect: deny, message: calm down}
  - id: keys
    type: post
    tool: "*"
    when: {output.text: {contains: s3cret}}
    then: {effect: redact, message: keys}
  - id: three
    type: session
    limits: {max_tool_calls: 3}
    then: {effect: deny, message: three}
"""


MISMATCH = "args.size is text; a number is needed for 'gt'"


@pytest.fixture
def guard() -> Edictum:
    return Edictum.from_yaml_string(BUNDLE)


def test_the_tree_shows_what_every_leaf_saw(guard: Edictum) -> None:
    explanation = guard.explain(
        "deploy",
        {"password": "hunter2", "size": "big"},
        principal=Principal(role="dev"),
        output="the s3cret",
    )
    assert explanation.verdict == "deny"
    assert str(explanation).splitlines() == [
        "deploy: deny",
        "  because: Not in production.",
        "  because: keys",
        "  no-prod [precondition] objects (deny): Not in production.",
        "    all: holds",
        "      environment equals 'production': holds  (value: 'production')",
        "      not: holds",
        "        principal.role in ('sre', 'admin'): does not hold  (value: 'dev')",
        "      any: holds",
        "        args.force equals True: does not hold  (value: not sent, its default is not known)",
        "        args.password exists True: holds  (value: [REDACTED])",
        f"        args.size gt 5: error  (value: 'big')  ({MISMATCH})",
        "  calm [session_contract] passes",
        "    session.failures gte 2: does not hold  (value: 0)",
        "  keys [postcondition] objects (redact): keys",
        "    output.text contains 's3cret': holds  (value: 'the s3cret')",
    ]


def test_session_conditions_are_explained_with_the_sessions_counters(guard: Edictum) -> None:
    for _ in range(2):
        guard.dispatch_sync("x", {}, lambda: 1 / 0, session_id="s")
    text = str(guard.explain("deploy", {}, environment="dev", session_id="s"))
    assert "session.failures gte 2: holds  (value: 2)" in text
    assert "because: calm down" in text


def test_no_contract_and_python_contracts() -> None:
    @precondition("t")
    def mine(call: Any) -> Verdict:
        return Verdict.fail("mine")

    guard = Edictum(contracts=[mine])
    assert str(guard.explain("other", {})) == "other: allow\n  no contract applies to this tool"
    assert "mine [precondition] objects (deny): mine" in str(guard.explain("t", {}))


def test_a_resolver_that_fails_is_explained_too() -> None:
    def resolver(tool: str, args: Any) -> Principal:
        raise RuntimeError("no directory")

    guard = Edictum.from_yaml_string(BUNDLE, principal_resolver=resolver)
    assert "The principal could not be resolved: no directory" in str(guard.explain("deploy", {}))


CALLS: list[dict[str, Any]] = [
    {"tool_name": "deploy", "args": {"force": True}},
    {"tool_name": "deploy", "args": {"force": True}, "principal": Principal(role="sre")},
    {"tool_name": "deploy", "args": {"force": True}, "environment": "dev"},
    {"tool_name": "deploy", "args": {"size": "big"}},
    {"tool_name": "pay", "args": {"amount": 500}},
    {"tool_name": "pay", "args": {"amount": 5}},
    {"tool_name": "pay", "args": {"amount": "five"}},
    {"tool_name": "other", "args": {}},
]


@pytest.mark.parametrize("mode", ["enforce", "observe"])
@pytest.mark.parametrize("earlier", [0, 2, 3])
@pytest.mark.parametrize("number", range(len(CALLS)))
def test_evaluate_agrees_with_run(number: int, earlier: int, mode: Any) -> None:
    """Modes, principals, limits and session conditions when a session is given, asynchronous
    contracts.
    """

    @session_contract
    async def patient(session: Any) -> Verdict:
        return Verdict.fail("patience") if session.failures > 2 else Verdict.pass_()

    guard = Edictum.from_yaml_string(
        BUNDLE, mode=mode, contracts=[patient], limits=OperationLimits(max_attempts=50)
    )
    for _ in range(earlier):
        guard.dispatch_sync("x", {}, lambda: 1 / 0, session_id="s")
    call = CALLS[number]
    evaluation = guard.evaluate(**call, session_id="s")
    options = {name: call[name] for name in ("principal", "environment") if name in call}
    outcome = guard.dispatch_sync(
        call["tool_name"], call["args"], lambda **_: None, session_id="s", **options
    )
    assert (evaluation.verdict == "deny") is isinstance(outcome, ToolDenied)
    if isinstance(outcome, ToolDenied) and not evaluation.needs_approval:
        assert outcome.details in evaluation.deny_reasons
    assert guard.session("s").attempts == earlier + 1, "evaluate counts nothing"


def test_evaluate_sees_rates() -> None:
    rate = "limits: {max_tool_calls: 2, per: 60s}"
    guard = Edictum.from_yaml_string(BUNDLE.replace("limits: {max_tool_calls: 3}", rate))
    for _ in range(2):
        guard.dispatch_sync("x", {}, lambda: None, session_id="s")
    assert guard.evaluate("x", {}, session_id="s").deny_reasons == ["three"]
    assert guard.evaluate("x", {}, session_id="other").verdict == "allow"


def test_results_of_many_passing_contracts_are_whole_and_independent() -> None:
    guard = Edictum.from_yaml_string(BUNDLE)
    first, second = guard.evaluate("pay", {"amount": 1}), guard.evaluate("pay", {"amount": 1})
    assert [result.contract_id for result in first.contracts] == ["ask"]
    first.contracts.clear()
    assert [result.contract_id for result in second.contracts] == ["ask"]
    assert guard.evaluate("pay", {"amount": 1}) == second
