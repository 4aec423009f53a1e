"""Semantics as data: every case in tests/cases, run by the runner that ships."""

from __future__ import annotations

from pathlib import Path

import pytest

from edictum.testing.cases import Case, load_cases

CASES = load_cases(
    Path(__file__).parent.parent / "cases",
    custom_operators={
        "is_even": lambda field, value: (field % 2 == 0) is value,
        "explodes": lambda field, value: 1 / 0,
    },
    custom_selectors={
        "risk": lambda call: {"score": len(call.args.get("path", "")), "owner": {"name": "ops"}},
        "broken": lambda call: 1 / 0,
        "wrong": lambda call: 5,
    },
)


def test_there_are_as_many_cases_as_promised() -> None:
    assert len(CASES) >= 300


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case) -> None:
    case.check()
