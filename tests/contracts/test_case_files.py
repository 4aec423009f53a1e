"""Files with cases: what can be said in them, and what is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from edictum import EdictumConfigError
from edictum.testing import load_cases, run_cases

HEAD = """\
bundle:
  contracts:
    - {id: bad, type: pre, tool: t, when: {args.q: {equals: bad}}, then: {effect: deny, message: no}}
    - {id: ask, type: pre, tool: pay, when: {args.n: {gt: 1}}, then: {effect: approve, message: "Pay {args.n}?"}}
    - {id: budget, type: session, limits: {max_cost: 10}, then: {effect: deny, message: used up}}
    - {id: often, type: session, limits: {max_calls_per_tool: {t: 2}}, then: {effect: deny, message: often}}
cases:
"""


def run(tmp_path: Path, cases: str) -> list[str]:
    (tmp_path / "cases.yaml").write_text(HEAD + cases)
    return run_cases(tmp_path / "cases.yaml")


@pytest.mark.parametrize(
    "case",
    [
        "{call: {tool: t, amounts: {cost: 5}}, want: {decision: allow}}",
        "{call: {tool: t, amounts: {cost: 11}}, want: {decision: deny, contract: budget}}",
        "{session: [{tool: x, amounts: {cost: 9}}], call: {tool: t, amounts: {cost: 2}},"
        " want: {decision: deny, contract: budget}}",
        "{call: {tool: pay, args: {n: 2}}, approval: approved, result: paid,"
        " want: {decision: approve, outcome: executed, value: paid}}",
        "{call: {tool: pay, args: {n: 2}}, approval: {answer: denied, approver: ada, reason: late},"
        " want: {decision: approve, outcome: denied, reason: late, contract: ask}}",
        "{call: {tool: pay, args: {n: 2}}, approval: denied,"
        " want: {decision: approve, reason: 'A person refused: Pay 2?'}}",
        "{call: {tool: pay, args: {n: 2}}, approval: timeout,"
        " want: {decision: approve, reason: The approval timed out without a decision.}}",
        "{session: [{tool: pay, args: {n: 2}, approval: approved}, {tool: pay, args: {n: 2}}],"
        " call: {tool: x}, want: {decision: allow, counts: {attempts: 3, executions: 2}}}",
        "{session: [{tool: t, session_id: child, parent_session_id: case, times: 2}],"
        " call: {tool: t}, want: {decision: deny, contract: often}}",
        "{session: [{tool: t, times: 2}], call: {tool: t, session_id: other},"
        " want: {decision: allow, counts: {executions: 1}}}",
        "{session: [{tool: t, session_id: root, times: 2}],"
        " call: {tool: t, parent_session_id: [above, root]}, want: {decision: deny}}",
    ],
)
def test_what_can_be_said(tmp_path: Path, case: str) -> None:
    assert run(tmp_path, f"  - {{note: n, {case[1:]}\n") == []


MISTAKES = [
    (
        "{note: n, call: {tool: t, agrs: {q: bad}}, want: {decision: allow}}",
        "unknown key 'agrs' under 'call'",
        "Did you mean 'args'? Known keys: amounts, args,",
    ),
    (
        "{note: n, session: [{tool: t, time: 3}], want: {decision: allow}}",
        "unknown key 'time' of an earlier call",
        "Did you mean 'times'?",
    ),
    (
        "{note: n, call: {tool: t, principal: {rol: admin}}, want: {decision: allow}}",
        "unknown key 'rol' of a principal",
        "Did you mean 'role'?",
    ),
    (
        "{note: n, session: [{principal: {rol: admin}}], want: {decision: allow}}",
        "unknown key 'rol' of a principal",
        "Did you mean 'role'?",
    ),
    (
        "{note: n, want: {decision: denied}}",
        "'decision' cannot be text ('denied')",
        "Did you mean 'deny'? Use one of: allow, deny, approve.",
    ),
    (
        "{note: n, want: {outcome: artifact}}",
        "'outcome' cannot be text ('artifact')",
        "Use one of: executed, failed, timeout, denied.",
    ),
    ("{note: n, want: {success: 'yes'}}", "'success' is text ('yes')", "Write true or false."),
    ("{note: n, want: {counts: {call: 1}}}", "unknown key 'call' under 'counts'", "Known keys:"),
    ("{note: n, want: {decison: deny}}", "unknown key 'decison' under 'want'", "'decision'?"),
    ("{note: n, wnat: {}, want: {mode: enforce}}", "unknown key 'wnat' of a case", "'want'?"),
    ("{note: n, mode: watch, want: {mode: observe}}", "'mode' cannot be text ('watch')", "observe"),
    ("{note: n, call: t, want: {decision: deny}}", "a call is text ('t')", "Write a mapping."),
    ("{note: n, session: {tool: t}, want: {decision: deny}}", "'session' is a mapping", "a list"),
    ("{note: n, session: [{tool: t, times: two}], want: {mode: enforce}}", "'times' is", "whole"),
    ("{note: n, session: [{wait: long}], want: {mode: enforce}}", "'wait' is text", "seconds"),
    ("{note: n, session: [{wait: 1, tool: t}], want: {mode: enforce}}", "'wait' stands alone", ""),
    (
        "{note: n, approval: maybe, want: {decision: approve}}",
        "'approval' cannot be text ('maybe')",
        "Use one of: approved, denied, timeout.",
    ),
    (
        "{note: n, approval: {approver: ada}, want: {decision: approve}}",
        "'approval' has no answer",
        "Use one of: approved, denied, timeout.",
    ),
    (
        "{note: n, approval: {answr: approved}, want: {decision: approve}}",
        "unknown key 'answr' under 'approval'",
        "Did you mean 'answer'?",
    ),
    ("{note: 5, want: {decision: deny}}", "a case needs a note", "note:"),
    ("{note: n}", "a case needs what is wanted", "want:"),
    ("text", "a case is text ('text')", "Write a mapping."),
]


@pytest.mark.parametrize(("case", "problem", "hint"), MISTAKES, ids=[it[1] for it in MISTAKES])
def test_what_would_be_ignored_is_an_error_with_its_place(
    tmp_path: Path, case: str, problem: str, hint: str
) -> None:
    line = HEAD.count("\n") + 2
    with pytest.raises(EdictumConfigError) as raised:
        run(tmp_path, f"  - {{note: fine, want: {{mode: enforce}}}}\n  - {case}\n")
    text = str(raised.value)
    assert f"{tmp_path / 'cases.yaml'}:{line}:" in text
    assert problem in text
    assert hint in text


def test_all_mistakes_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(EdictumConfigError) as raised:
        run(tmp_path, "  - {note: a, want: {decision: no}}\n  - {note: b, want: {decision: ok}}\n")
    assert str(raised.value).count("cannot be text") == 2


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("case: []", "unknown key 'case' of a file with cases"),
        ("bundle: x.yaml", "a list of cases is missing"),
        ("[]", "No cases in"),
    ],
)
def test_a_file_without_cases_is_an_error(tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "cases.yaml").write_text(content)
    with pytest.raises(EdictumConfigError, match=problem):
        load_cases(tmp_path / "cases.yaml")


def test_two_cases_of_one_name_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(EdictumConfigError, match="Two cases have the note 'n'"):
        run(tmp_path, "  - {note: n, want: {mode: enforce}}\n" * 2)
