"""Amounts that tools state: where they are said, what counts, and what refuses a call."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edictum import (
    Edictum,
    EdictumConfigError,
    HookDecision,
    HookRegistration,
    InMemoryApprovalBackend,
    OperationLimits,
    Principal,
    ToolDenied,
    ToolExecutionResult,
)
from support.effort import effort
from support.guards import approval_contract

HEAD = "apiVersion: edictum/v1\nkind: ContractBundle\nmetadata: {name: refunds}\n"
REFUNDS = """\
tools:
  issue_refund: {amounts: {refunded: args.amount}, actual: {refunded: result.refunded}}
contracts:
  - id: budget
    type: session
    limits: {max_amounts: {refunded: 100}}
    then: {effect: deny, message: The budget for refunds is spent.}
"""


def load(text: str, *layers: str, **options: Any) -> Edictum:
    return Edictum.from_yaml_string(HEAD + text, *(HEAD + each for each in layers), **options)


def issue_refund(amount: Any = 0, **more: Any) -> dict[str, Any]:
    return {"refunded": amount}


def spent(guard: Edictum, name: str = "refunded") -> float:
    amounts = guard.session().snapshot().amounts.get("", {})
    return amounts[name].spent if name in amounts else 0.0


def stating(**settings: Any) -> Edictum:
    """Return a guard whose tool ``t`` states amounts, in Python."""
    return Edictum(tools={"t": settings})


# --- Every way to call ----------------------------------------------------------------------------


async def test_every_way_to_call_counts_what_the_tool_states() -> None:
    """The caller does nothing for it."""
    guard = load(REFUNDS)
    args = {"amount": 20}
    await guard.run("issue_refund", args, issue_refund, session_id=guard.session_id)
    guard.run_sync("issue_refund", args, issue_refund)
    await guard.dispatch("issue_refund", args, issue_refund)
    ticket = await guard.begin("issue_refund", args)
    assert guard.session().snapshot().amounts[""]["refunded"].reserved == 20
    await ticket.finish({"refunded": 20})
    guard.begin_sync("issue_refund", args).finish_sync({"refunded": 20})
    assert spent(guard) == 100
    refused = guard.dispatch_sync("issue_refund", {"amount": 1}, issue_refund)
    assert isinstance(refused, ToolDenied)
    assert (refused.reason, refused.details) == ("limit", "The budget for refunds is spent.")
    assert guard.evaluate("issue_refund", args, session_id=guard.session_id).verdict == "deny"
    assert guard.dispatch_sync("other", {}, lambda: 1).tool_name == "other"  # states nothing


def test_no_person_is_asked_for_what_the_budget_refuses() -> None:
    """The limits are looked at first."""
    backend = InMemoryApprovalBackend(True)
    guard = load(REFUNDS, contracts=[approval_contract("issue_refund")], approval_backend=backend)
    ends = [guard.dispatch_sync("issue_refund", {"amount": 40}, issue_refund) for _ in range(4)]
    kinds = [type(end) for end in ends]
    assert kinds == [ToolExecutionResult, ToolExecutionResult, ToolDenied, ToolDenied]
    assert len(backend.requests) == 2


async def test_parallel_refunds_stay_within_the_budget() -> None:
    """An amount is reserved, not read and then acted on."""
    guard, ran = load(REFUNDS), []

    async def refund(amount: int) -> dict[str, int]:
        ran.append(amount)
        await asyncio.sleep(0.01)
        return {"refunded": amount}

    calls = (guard.dispatch("issue_refund", {"amount": 40}, refund) for _ in range(20))
    await asyncio.gather(*calls)
    assert (ran, spent(guard)) == ([40, 40], 80)


WORKER = """
import sys
from edictum import Edictum, ToolExecutionResult
path, database = sys.argv[1:]
guard = Edictum.from_yaml(path, backend="sqlite:///" + database)
sys.stdin.readline()
ends = [
    guard.dispatch_sync("issue_refund", {"amount": 40}, lambda amount: {"refunded": 30}, session_id="s")
    for _ in range(10)
]
print(sum(isinstance(end, ToolExecutionResult) for end in ends))
"""


def test_two_processes_share_a_budget_and_settle_what_was_used(tmp_path: Path) -> None:
    """Refunds of 40 turn out as 30: 30, 60 and 70 + 40 > 100, so three run in all."""
    bundle, database = tmp_path / "refunds.yaml", tmp_path / "sessions.db"
    bundle.write_text(HEAD + REFUNDS)
    command = [sys.executable, "-c", WORKER, str(bundle), str(database)]
    pipe = subprocess.PIPE
    workers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    ran = [int(worker.communicate(timeout=120)[0]) for worker in workers]
    guard = Edictum.from_yaml(bundle, backend=f"sqlite:///{database}")
    used = guard.session("s").snapshot().amounts[""]["refunded"]
    assert (sum(ran), used.spent, used.reserved) == (3, 90, 0)


# --- What is counted ------------------------------------------------------------------------------


def test_actual_amounts_settle_the_difference() -> None:
    """What a call did not use is there for the next."""
    guard = load(REFUNDS)
    half = [
        guard.dispatch_sync("issue_refund", {"amount": 40}, lambda amount: {"refunded": 20})
        for _ in range(4)
    ]
    assert all(isinstance(end, ToolExecutionResult) for end in half)
    assert spent(guard) == 80
    assert isinstance(guard.dispatch_sync("issue_refund", {"amount": 40}, issue_refund), ToolDenied)


@pytest.mark.parametrize(
    ("result", "note"),
    [
        ({}, "result.refunded is missing."),
        ({"refunded": "all"}, "result.refunded is 'all', not a number."),
        ({"refunded": -5}, "result.refunded is -5."),
        ("done", "result.refunded is missing."),
    ],
)
def test_a_result_that_does_not_tell_counts_the_estimate(result: Any, note: str) -> None:
    """The tool has run, so something must be counted; the outcome notes it."""
    guard = load(REFUNDS)
    outcome = guard.dispatch_sync("issue_refund", {"amount": 40}, lambda amount: result)
    assert isinstance(outcome, ToolExecutionResult)
    said = "The amount 'refunded' was not measured, so its estimate was counted: "
    assert outcome.notes[0].startswith(said + note)
    assert spent(guard) == 40


def test_an_amount_that_only_the_result_tells_has_no_estimate_to_count() -> None:
    """The note says so."""
    guard = stating(actual={"cost": "result.cost"})
    known = guard.dispatch_sync("t", {}, lambda: {"cost": 0.25})
    unknown = guard.dispatch_sync("t", {}, dict)
    assert (known.notes, spent(guard, "cost")) == ((), 0.25)
    assert "so nothing was counted: result.cost is missing" in unknown.notes[0]


def test_numbers_functions_and_objects_state_amounts_too() -> None:
    """All that ``tools=`` takes."""

    class Usage:
        tokens = 7

    guard = stating(
        amounts={"cost": 0.01, "chars": lambda call: len(call.args["text"])},
        actual={"tokens": "result.tokens", "pages": lambda result: 2, "fee": 1},
    )
    guard.dispatch_sync("t", {"text": "abcd"}, lambda text: Usage())
    found = {name: it.spent for name, it in guard.session().snapshot().amounts[""].items()}
    assert found == {"cost": 0.01, "chars": 4, "tokens": 7, "pages": 2, "fee": 1}


def test_a_star_adds_up_all_elements() -> None:
    """Exactly: 0.1 and 0.2 are 0.3."""
    guard = stating(amounts={"paid": "args.items[*].price"})
    items = [{"price": 0.1}, {"price": 0.2}, {"price": 4}]
    guard.dispatch_sync("t", {"items": items}, lambda items: 1)
    assert spent(guard, "paid") == 4.3


def test_what_hooks_make_of_the_arguments_is_counted() -> None:
    """It is what runs."""
    hook = HookRegistration("before", "*", lambda call: HookDecision.rewrite({"amount": 5}))
    guard = load(REFUNDS, hooks=[hook])
    guard.dispatch_sync("issue_refund", {"amount": "a lot"}, issue_refund)
    assert spent(guard) == 5


def test_an_amount_may_depend_on_a_principal_that_is_resolved_for_the_call() -> None:
    """It is estimated when the call is final."""
    guard = Edictum(
        tools={"t": {"amounts": {"seats": "principal.claims.seats"}}},
        principal_resolver=lambda tool, args: Principal(user_id="u", claims={"seats": 3}),
    )
    guard.dispatch_sync("t", {}, lambda: 1)
    assert spent(guard, "seats") == 3


def test_a_custom_selector_finds_an_amount() -> None:
    """As it finds what a condition looks at."""
    guard = load(
        "tools: {pay: {amounts: {paid: order.total}}}\n",
        custom_selectors={"order": lambda call: {"total": 12}},
    )
    guard.dispatch_sync("pay", {}, lambda: 1)
    assert spent(guard, "paid") == 12


# --- What is refused ------------------------------------------------------------------------------

NOT_KNOWN = "The amount 'refunded' of the call is not known: args.amount "


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({}, "is missing."),
        ({"amount": None}, "is missing."),
        ({"amount": "40"}, "is '40', not a number."),
        ({"amount": True}, "is True, not a number."),
        ({"amount": [40]}, "is [40], not a number."),
        ({"amount": -1}, "is -1. Use a number from 0 to 1000000000000."),
        ({"amount": 10**13}, "is 10000000000000. Use a number from 0 to 1000000000000."),
        ({"amount": "x" * 1_000}, f"is '{'x' * 79}, not a number."),
    ],
)
def test_an_amount_that_is_not_known_refuses_the_call(args: dict[str, Any], why: str) -> None:
    """Nothing is held, the attempt counts, no person is asked, and the audit says why."""
    backend = InMemoryApprovalBackend(True)
    guard = load(REFUNDS, contracts=[approval_contract()], approval_backend=backend)
    ran: list[Any] = []
    outcome = guard.dispatch_sync("issue_refund", args, lambda **_: ran.append(1))
    assert isinstance(outcome, ToolDenied)
    assert outcome.details == NOT_KNOWN + why
    assert (outcome.reason, outcome.decision_source) == ("policy_error", "amounts")
    assert (ran, backend.requests) == ([], [])
    session = guard.session()
    assert (session.attempts, session.executions, session.in_flight) == (1, 0, 0)
    assert [str(event.action) for event in guard.local_sink.events] == ["call_denied"]
    evaluation = guard.evaluate("issue_refund", args)
    assert evaluation.verdict == "deny"
    assert evaluation.deny_reasons == ["are you sure?", NOT_KNOWN + why]


def test_one_element_does_not_offset_another() -> None:
    """Nor does a missing one count as nothing."""
    guard = stating(amounts={"paid": "args.prices[*]"})
    for prices, why in (
        ([100, -90], "is -90"),
        ([100, None], "is missing"),
        ([1, "2"], "is '2'"),
        ([], "is missing"),
        (5, "SelectorMismatch: [*] stands for the elements of a list"),
    ):
        outcome = guard.dispatch_sync("t", {"prices": prices}, lambda prices: 1)
        assert isinstance(outcome, ToolDenied)
        assert why in outcome.details


def test_a_contract_s_own_reason_comes_first() -> None:
    """Contracts are asked all the same."""
    rule = "  - {id: no, type: pre, tool: issue_refund, when: {args.who: {equals: eve}}, then: {effect: deny, message: Not eve.}}\n"
    outcome = load(REFUNDS + rule).dispatch_sync("issue_refund", {"who": "eve"}, issue_refund)
    assert isinstance(outcome, ToolDenied)
    assert outcome.details == "Not eve."


@pytest.mark.parametrize("where", ["guard", "bundle"])
def test_where_nothing_is_enforced_an_unknown_amount_is_only_reported(where: str) -> None:
    """As a limit that observes is."""
    if where == "guard":
        guard = load(REFUNDS, mode="observe")
    else:
        guard = load("defaults: {mode: observe}\n" + REFUNDS)
    assert isinstance(guard.dispatch_sync("issue_refund", {}, lambda: 1), ToolExecutionResult)
    first = guard.local_sink.events[0]
    assert (first.action, first.reason) == ("call_would_deny", NOT_KNOWN + "is missing.")


def test_an_amount_that_is_left_out_is_its_default() -> None:
    """What the tool will use is what counts, and what is refused when the budget is used up."""

    def refund(amount: float = 40.0) -> str:
        return "done"

    guard = load(REFUNDS)
    outcomes = [guard.dispatch_sync("issue_refund", {}, refund) for _ in range(3)]
    assert [type(it) for it in outcomes] == [ToolExecutionResult, ToolExecutionResult, ToolDenied]
    assert guard.session().snapshot().amounts[""]["refunded"].spent == 80


# --- Who states what: the caller, globs, layers, Python --------------------------------------------


def test_what_a_call_states_itself_wins() -> None:
    """For the names that it states; the others are the tool's."""
    guard = stating(amounts={"a": "args.a", "b": 2}, actual={"c": 3, "d": 4})
    guard.dispatch_sync(
        "t",
        {},
        lambda: 1,
        amounts={"a": 10},
        actual_amounts=lambda result: {"c": 30},
    )
    guard.dispatch_sync("t", {}, lambda: 1, amounts=lambda call: {"a": 100, "b": 200})
    found = {name: it.spent for name, it in guard.session().snapshot().amounts[""].items()}
    assert found == {"a": 110, "b": 202, "c": 33, "d": 8}


def amounts_of(guard: Edictum, tool: str, args: Any = None) -> dict[str, float]:
    guard.dispatch_sync(tool, args or {}, lambda **_: 1, session_id=tool)
    found = guard.session(tool).snapshot().amounts
    return {name: it.spent for name, it in found.get("", {}).items()}


def test_globs_add_the_amounts_that_a_tool_does_not_state_itself() -> None:
    """The more specific glob wins."""
    guard = load(
        "tools:\n"
        '  "*": {amounts: {cost: 1, calls: 1}}\n'
        '  "send_*": {amounts: {cost: 2, mails: 1}}\n'
        "  send_all: {side_effect: write, amounts: {mails: args.count}}\n"
    )
    assert amounts_of(guard, "look") == {"cost": 1, "calls": 1}
    assert amounts_of(guard, "send_one") == {"cost": 2, "calls": 1, "mails": 1}
    assert amounts_of(guard, "send_all", {"count": 9}) == {"cost": 2, "calls": 1, "mails": 9}


def test_layers_and_python_keep_the_amounts_that_only_a_lower_one_states() -> None:
    """A timeout that is set elsewhere does not switch a budget off."""
    below = "tools: {t: {amounts: {a: 1, b: 1, c: 1}, actual: {d: 1}}}\n"
    above = "tools: {t: {timeout_s: 5, amounts: {b: 2}}}\n"
    guard = load(below, above, tools={"t": {"run_in": "inline", "amounts": {"c": 3}}})
    assert amounts_of(guard, "t") == {"a": 1, "b": 2, "c": 3, "d": 1}
    assert guard.policy.entry("t").timeout_s is None  # other settings are replaced as a whole


def test_merged_guards_state_what_both_do_the_first_s_first() -> None:
    """One name is stated once."""
    first, second = stating(amounts={"a": 1}), stating(amounts={"a": 5, "b": 2})
    assert amounts_of(Edictum.from_multiple([first, second]), "t") == {"a": 1, "b": 2}


def test_a_candidate_states_no_amounts(caplog: pytest.LogCaptureFixture) -> None:
    """They would be counted by limits that are enforced."""
    budget = REFUNDS.replace("issue_refund:", "other:")
    candidate = "observe_alongside: true\ntools: {issue_refund: {amounts: {refunded: 1000}}}\n"
    guard = load(budget, candidate)
    assert "amounts of a candidate are not counted" in caplog.text
    assert amounts_of(guard, "issue_refund") == {}


# --- Said when it is configured -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"amounts": {"cost": "arg.amount"}}, "unknown selector 'arg.amount'"),
        ({"amounts": {"cost": "result.cost"}}, "not known before the tool has run"),
        ({"actual": {"cost": "args.cost"}}, "not a part of the result"),
        ({"amounts": {"cost": -1}}, "tools['t']: amounts is {'cost': -1}."),
        ({"amounts": {"cost": math.nan}}, "Use a dict of names and numbers"),
        ({"amounts": {"cost": True}}, "Use a dict of names and numbers"),
        ({"amounts": {"": 1}}, "Use a dict of names and numbers"),
        ({"amounts": ["cost"]}, "Use a dict of names and numbers"),
        ({"amounts": lambda call: {}}, "Use a dict of names and numbers"),
        ({"amounts": {"cost": lambda: 1}}, "is called with (call), which it cannot take"),
        ({"actual": {"cost": lambda a, b: 1}}, "is called with (result), which it cannot take"),
    ],
)
def test_mistakes_in_python_are_refused(settings: dict[str, Any], why: str) -> None:
    """When the guard is made."""
    with pytest.raises(EdictumConfigError) as caught:
        Edictum(tools={"t": settings})
    assert why in str(caught.value)


def test_limits_and_amounts_of_other_layers_and_of_python_are_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is said about them; a disabled limit reads nothing."""
    tools, contracts = REFUNDS.split("contracts:")
    contracts = "contracts:" + contracts
    load(tools, contracts)
    load(contracts, tools={"issue_refund": {"amounts": {"refunded": "args.amount"}}})
    load(tools, limits=OperationLimits(max_amounts={"refunded": 5}))
    assert caplog.text == ""
    load(contracts.replace("type: session", "type: session\n    enabled: false"), tools)
    assert "no limit in this bundle reads the amount 'refunded'" in caplog.text


async def test_a_reload_says_it_as_well(caplog: pytest.LogCaptureFixture) -> None:
    """In the log and in the report."""
    guard = load(REFUNDS)
    assert caplog.text == ""
    report = await guard.reload(HEAD + REFUNDS.replace("{refunded: 100}", "{refund: 100}"))
    assert [it.split(": ")[1].split("\n")[0] for it in report.warnings] == [
        "no tool in this bundle states the amount 'refund'",
        "no limit in this bundle reads the amount 'refunded'",
    ]
    assert "Did you mean 'refunded'?" in report.warnings[0]


def test_an_amount_that_no_limit_reads_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """It is probably misspelt."""
    guard = Edictum(limits=OperationLimits(max_cost=1, max_amounts={"pages": 9}))
    for _ in range(3):
        guard.dispatch_sync("t", {}, lambda: 1, amounts={"costs": 5})
        guard.dispatch_sync("t", {}, lambda: 1, amounts=lambda call: {"tokns": 1, "cost": 0.1})
    assert [record.getMessage() for record in caplog.records] == [
        f"A call of 't' states the amount '{name}', which no limit reads; the limits read: cost, pages."
        for name in ("costs", "tokns")
    ]


def test_metering_without_any_budget_is_not_a_mistake(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is logged."""
    with caplog.at_level(logging.DEBUG, "edictum"):
        Edictum().dispatch_sync("t", {}, lambda: 1, amounts={"cost": 5})
    assert caplog.text == ""


# --- Against a plain model ------------------------------------------------------------------------

NAMES = ("a", "b")
VALUES = st.one_of(
    st.none(),
    st.integers(-2, 60),
    st.sampled_from([0.1, 0.25, math.inf, True, "7", [1], {"x": 1}]),
)
STATEMENTS = st.one_of(st.integers(0, 30), st.sampled_from(["args.x", "args.deep.y"]))
CALLS = st.lists(
    st.tuples(
        st.fixed_dictionaries(
            {}, optional={"x": VALUES, "deep": st.fixed_dictionaries({}, optional={"y": VALUES})}
        ),
        st.dictionaries(st.sampled_from(NAMES), st.integers(0, 30), max_size=2),
        st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=2),
        st.booleans(),
    ),
    max_size=8,
)


def is_amount(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and 0 <= value <= 10**12


def look_up(statement: Any, args: Any) -> Any:
    if not isinstance(statement, str):
        return statement
    return args.get("x") if statement == "args.x" else args.get("deep", {}).get("y")


@settings(max_examples=effort(100), deadline=None)
@given(
    st.dictionaries(st.sampled_from(NAMES), STATEMENTS),
    st.sets(st.sampled_from(NAMES)),
    CALLS,
)
def test_amounts_against_a_plain_model(
    amounts: dict[str, Any], actual: set[str], calls: list[Any]
) -> None:
    """Each call is refused, or counts exactly what the model says."""
    tool = {"amounts": amounts, "actual": {name: f"result.{name}" for name in actual}}
    bounds = OperationLimits(max_amounts=dict.fromkeys(NAMES, 50))
    guard, used = Edictum(tools={"t": tool}, limits=bounds), dict.fromkeys(NAMES, 0.0)
    for args, stated, result, as_function in calls:
        options: Any = {"amounts": (lambda call, stated=stated: stated) if as_function else stated}
        outcome = guard.dispatch_sync("t", args, lambda result=result, **_: result, **options)
        wanted = {name: look_up(it, args) for name, it in amounts.items()} | stated
        refused = not all(map(is_amount, wanted.values())) or any(
            used[name] + wanted[name] > 50 if name in wanted else used[name] >= 50 for name in NAMES
        )
        assert isinstance(outcome, ToolDenied) is refused, (args, stated, outcome)
        if not refused:
            found = {name: result[name] for name in actual if is_amount(result.get(name))}
            for name, amount in (wanted | found).items():
                used[name] = round(used[name] + amount, 6)
        assert {name: spent(guard, name) for name in NAMES} == used


def test_amounts_survive_json_numbers() -> None:
    """What a model sends is JSON."""
    guard = load(REFUNDS)
    guard.dispatch_sync("issue_refund", json.loads('{"amount": 12.50}'), issue_refund)
    assert spent(guard) == 12.5
