"""Many contracts on the same values are asked in one function: the answers are those of each
contract alone, in their order.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_language_properties import ARGS, LEAVES, PRINCIPALS, bundle, expected, plain

from edictum import Edictum, Principal
from support.effort import effort

TEXTS = st.sampled_from(["", "a", "b", "ab", "abc", "A", "SS", "ß", "1", "other"])
NUMBERS = st.sampled_from([-1, 0, 1, 1.0, 2, 1.5, 10**20, True, False])
VALUES = TEXTS | NUMBERS
TESTS = st.one_of(
    st.tuples(
        st.sampled_from(["starts_with", "ends_with", "equals_ignore_case", "contains"]),
        TEXTS.filter(bool),
    ),
    st.tuples(st.just("equals"), VALUES | st.just(["a"]) | st.just({"a": 1})),
    st.tuples(st.just("in"), st.lists(VALUES | st.just(["a"]), min_size=1, max_size=3)),
    st.tuples(
        st.sampled_from(["gt", "gte", "lt", "lte"]), st.sampled_from([-1, 0, 1, 2.5, 10**20])
    ),
)
SELECTORS = st.sampled_from(["args.a", "args.a.b", "principal.role"])
OPENING = st.builds(lambda selector, test: {selector: {test[0]: test[1]}}, SELECTORS, TESTS)
OPENINGS = st.recursive(
    OPENING,
    lambda inner: st.builds(lambda items: {"any": items}, st.lists(inner, min_size=1, max_size=3)),
    max_leaves=3,
)
WHENS = st.one_of(
    OPENINGS, LEAVES, st.builds(lambda first, second: {"all": [first, second]}, OPENINGS, LEAVES)
)
ARGUMENTS = ARGS | st.fixed_dictionaries(
    {"a": VALUES | st.none() | st.fixed_dictionaries({"b": VALUES}) | st.just(["a"])}
)


class Name(str):
    """A text that is not exactly a str."""


def answers(expressions: list[Any], args: Any, principal: Principal | None = None) -> list[str]:
    guard = Edictum.from_yaml_string(bundle(expressions))
    guard.dispatch_sync("t", args, lambda **_: None, principal=principal)
    records = guard.local_sink.events[0].contracts_evaluated
    assert [record["name"] for record in records] == [
        f"c{number}" for number in range(len(expressions))
    ]
    return [
        (
            "passes"
            if record["passed"]
            else "error"
            if record.get("metadata", {}).get("policy_error")
            else "holds"
        )
        for record in records
    ]


@pytest.mark.slow
@pytest.mark.soak
@settings(
    deadline=None,
    max_examples=effort(23, soak=1_000),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(WHENS, min_size=12, max_size=40), ARGUMENTS, PRINCIPALS)
def test_contracts_together_answer_as_each_alone(
    expressions: list[Any], args: Any, principal: Principal | None
) -> None:
    who = principal and Principal(role=principal.role, claims=plain(principal.claims))
    assert answers(expressions, args, principal) == [
        expected(expression, plain(args), who, {}) for expression in expressions
    ]


OPERATORS: dict[str, list[Any]] = {
    "starts_with": ["/a", "/b", "/c", "/d", "/ab"],
    "ends_with": ["a", "b", "c", "d", "bc"],
    "equals_ignore_case": ["/ABC", "/b", "/c", "/d", "ß"],
    "equals": ["/abc", 1, True, 2.5, ["/abc"]],
    "in": [["/abc", 1], [2], [2.5], [False], [["/abc"]]],
    "gt": [0, 1, 2.5, 10, 1000],
    "gte": [0, 1, 2.5, 10, 1000],
    "lt": [0, 1, 2.5, 10, 1000],
    "lte": [0, 1, 2.5, 10, 1000],
}
FIELDS = [
    "/abc",
    "",
    "SS",
    Name("/abc"),
    0,
    1,
    10,
    1000,
    1001,
    -1,
    True,
    2.5,
    1.0,
    None,
    ["/abc"],
    {"b": 1},
]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("field", FIELDS, ids=repr)
def test_every_kind_of_gate_judges_every_kind_of_value(operator: str, field: Any) -> None:
    expressions: list[Any] = [{"args.x": {operator: value}} for value in OPERATORS[operator]]
    alone = [answers([expression], {"x": field})[0] for expression in expressions]
    assert answers(expressions, {"x": field}) == alone
    assert alone == [
        expected(expression, json.loads(json.dumps({"x": field})), None, {})
        for expression in expressions
    ]
    assert answers(expressions, {}) == ["passes"] * len(expressions)


def test_a_condition_behind_a_shut_gate_is_not_judged() -> None:
    asked: list[Any] = []
    contracts = [
        {"all": [{"args.x": {"starts_with": f"/{number}"}}, {"args.x": {"noted": number}}]}
        for number in range(10)
    ]
    guard = Edictum.from_yaml_string(
        bundle(contracts), custom_operators={"noted": lambda _field, value: asked.append(value)}
    )
    guard.dispatch_sync("t", {"x": "/tmp"}, lambda x: None)
    assert asked == []
    guard.dispatch_sync("t", {"x": "/7"}, lambda x: None)
    assert asked == [7]
