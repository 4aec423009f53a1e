"""The digest of a policy: the same for what says the same, another for everything else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edictum import Edictum, OperationLimits, Verdict, precondition

BUNDLE = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: shop}
defaults: {mode: enforce}
tools:
  refund: {side_effect: write}
  read: {side_effect: read}
contracts:
  - id: big
    type: pre
    tool: refund
    when:
      all:
        - args.amount: {gt: 100}
        - not: {principal.role: {in: [lead, admin]}}
    then: {effect: approve, message: "Refund {args.amount}?", timeout: 60}
  - id: often
    type: session
    limits: {max_calls_per_tool: {refund: 3}}
    then: {effect: deny, message: Enough.}
  - {id: box, type: sandbox, tool: read, within: [/srv], message: Outside.}
success:
  - {id: empty, tool: read, failure_when: {result.rows: {empty: true}}}
"""
RULESET = (
    BUNDLE.replace("ContractBundle", "Ruleset")
    .replace("contracts:", "rules:")
    .replace("effect: approve", "action: ask")
    .replace("effect: deny", "action: block")
)


def digest(*layers: str, **options: object) -> str:
    return Edictum.from_yaml_string(*layers, **options).policy_digest  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "same",
    [
        "# a comment\n" + BUNDLE,
        BUNDLE.replace("name: shop", "name: store"),
        BUNDLE.replace("{gt: 100}", '{"gt": 0x64}'),
        BUNDLE.replace(
            "  refund: {side_effect: write}\n  read: {side_effect: read}",
            "  read: {side_effect: read}\n  refund: {side_effect: write}",
        ),
        BUNDLE + "session: {store: 'memory:'}\nobservability: {stdout: true}\n",
        BUNDLE.replace(
            "success:",
            "  - {id: off, enabled: false, type: pre, tool: x, when: {args.a: {gt: 1}},"
            " then: {effect: deny, message: m}}\nsuccess:",
        ),
        RULESET,
    ],
    ids=["comment", "name", "quotes", "order of tools", "store and sinks", "disabled", "ruleset"],
)
def test_what_says_the_same_has_the_same_digest(same: str) -> None:
    guard = Edictum.from_yaml_string(same)
    assert guard.policy_version != Edictum.from_yaml_string(BUNDLE).policy_version
    assert guard.policy_digest == digest(BUNDLE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gt: 100", "gt: 101"),
        ("gt: 100", "gte: 100"),
        ("args.amount: {gt", "args.total: {gt"),
        ("all:", "any:"),
        ("- not: {principal.role: {in: [lead, admin]}}", "- principal.role: {in: [lead, admin]}"),
        ("[lead, admin]", "[lead]"),
        ("effect: approve", "effect: deny"),
        ('"Refund {args.amount}?"', '"Pay {args.amount}?"'),
        ("timeout: 60", "timeout: 61"),
        ("id: big", "id: large"),
        ("tool: refund", "tool: '*'"),
        ("{refund: 3}", "{refund: 4}"),
        ("[/srv]", "[/srv, /tmp]"),
        ("side_effect: write", "side_effect: irreversible"),
        ("{empty: true}", "{empty: false}"),
        ("mode: enforce", "mode: observe"),
        ("mode: enforce", "mode: enforce, unlisted_tools: deny"),
    ],
)
def test_what_says_something_else_has_another_digest(old: str, new: str) -> None:
    assert old in BUNDLE
    assert digest(BUNDLE.replace(old, new, 1)) != digest(BUNDLE)


def test_layers_have_the_digest_of_what_they_say_together() -> None:
    raised = BUNDLE.replace("gt: 100", "gt: 200")
    assert digest(BUNDLE, raised) == digest(raised)
    candidate = raised + "observe_alongside: true\n"
    assert digest(BUNDLE, candidate) not in (digest(BUNDLE), digest(raised))


@precondition("refund", id="python")
def rule(call):
    return Verdict.pass_()


@precondition("refund", id="python", effect="approve")
def asking_rule(call):
    return Verdict.pass_()


def test_what_was_given_in_python_is_in_it_by_name_and_effect() -> None:
    guards = [
        Edictum(),
        Edictum(contracts=[rule]),
        Edictum(contracts=[asking_rule]),
        Edictum(contracts=[rule], limits=OperationLimits(max_tool_calls=3)),
        Edictum(contracts=[rule], tools={"refund": {"side_effect": "read"}}),
        Edictum(contracts=[rule], policy_version="2"),
        Edictum.from_yaml_string(BUNDLE),
        Edictum.from_yaml_string(BUNDLE, contracts=[rule]),
    ]
    assert len({guard.policy_digest for guard in guards}) == len(guards)
    assert Edictum(contracts=[rule]).policy_digest == guards[1].policy_digest


def test_a_merged_guard_has_a_digest_of_all_its_policies() -> None:
    first, second = Edictum.from_yaml_string(BUNDLE), Edictum(contracts=[rule])
    merged = Edictum.from_multiple([first, second])
    changed = Edictum.from_yaml_string(BUNDLE.replace("gt: 100", "gt: 101"))
    assert Edictum.from_multiple([first, second]).policy_digest == merged.policy_digest
    assert Edictum.from_multiple([changed, second]).policy_digest != merged.policy_digest


AMOUNTS = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: shop}
tools:
  pay: {amounts: {calls: 1, cost: args.total}, actual: {cost: result.total}}
contracts:
  - {id: ask, type: pre, tool: pay, then: {effect: approve, message: "Pay?"}}
  - {id: spent, type: session, limits: {max_amounts: {cost: 5}}, then: {effect: deny, message: No}}
"""


def test_amounts_are_told_by_what_they_say() -> None:
    """Two guards of one bundle have the same digest, and any other amount has another."""
    digest = Edictum.from_yaml_string(AMOUNTS).policy_digest
    assert Edictum.from_yaml_string(AMOUNTS).policy_digest == digest
    changes = [("calls: 1", "calls: 2"), ("args.total", "args.t"), ("result.total", "result.t")]
    for old, new in (*changes, ("cost: 5", "cost: 6")):
        assert Edictum.from_yaml_string(AMOUNTS.replace(old, new)).policy_digest != digest


def test_the_digest_is_the_same_in_every_process() -> None:
    """Approvals that are kept in a store outlive the process that asked for them."""
    program = (
        "from test_policy_digest import BUNDLE, rule\n"
        "from edictum import Edictum\n"
        "tools = {'x': {'side_effect': 'read'}, 'y': {}}\n"
        "print(Edictum.from_yaml_string(BUNDLE, contracts=[rule], tools=tools).policy_digest)"
    )
    here = str(Path(__file__).parent)
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": here},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
