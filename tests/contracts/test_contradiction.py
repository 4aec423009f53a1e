"""Conditions that cannot all hold are found without comparing each with each, and no others are."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edictum.contracts._contradiction import contradict, contradictions
from edictum.contracts._expressions import All, AnyOf, Leaf
from edictum.contracts._operators import OPERATORS
from edictum.contracts._problems import Place
from edictum.contracts._selectors import parse_selector
from support.effort import effort

NUMBERS = st.sampled_from([0, 1, 2, 1.5, 10**400])
TESTS = st.one_of(
    st.tuples(st.sampled_from(["gt", "gte", "lt", "lte"]), NUMBERS),
    st.tuples(st.sampled_from(["equals", "not_equals"]), NUMBERS),
    st.tuples(st.just("in"), st.lists(NUMBERS, min_size=1, max_size=3).map(tuple)),
    st.tuples(st.sampled_from(["exists", "empty"]), st.booleans()),
    st.tuples(st.just("contains"), st.just("a")),
)
LEAVES = st.tuples(st.sampled_from(["args.a", "args.b", "principal.role", "args.a[*]"]), TESTS)


def leaf(selector: str, operator: str, value: Any) -> Leaf:
    found, op = parse_selector(selector), OPERATORS[operator]
    missing = (op.negative and found.root == "principal") or op.missing(value)
    return Leaf(found, op, value, op.prepare(value), missing, Place(1, 1))


@pytest.mark.soak
@settings(max_examples=effort(56, soak=2_500), deadline=None)
@given(st.lists(LEAVES, max_size=8))
def test_a_contradiction_is_found_when_two_conditions_contradict_each_other(
    drawn: list[Any],
) -> None:
    leaves = [leaf(selector, *test) for selector, test in drawn]
    found = list(contradictions(All(tuple(leaves))))
    assert all(contradict(*pair) and pair[0].selector == pair[1].selector for pair in found)
    pairs = [
        (one, other)
        for one, other in combinations(leaves, 2)
        if one.selector == other.selector and not one.selector.wild
    ]
    assert {pair[0].selector for pair in found} == {
        one.selector for one, other in pairs if contradict(one, other)
    }
    assert len(found) == len({pair[0].selector for pair in found})  # each field is spoken of once


def test_only_all_wants_its_conditions_together() -> None:
    leaves = (leaf("args.a", "equals", 1), leaf("args.a", "equals", 2))
    assert list(contradictions(All(leaves))) == [leaves]
    assert list(contradictions(AnyOf(leaves))) == []
    assert list(contradictions(leaves[0])) == []
