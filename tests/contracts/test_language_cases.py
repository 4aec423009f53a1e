"""Semantics as data: every case in tests/cases, run by the runner that ships."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from edictum import ToolCall
from edictum.testing.cases import Case, load_cases


async def later(call: ToolCall) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"score": len(call.args.get("path", ""))}


async def later_broken(call: ToolCall) -> dict[str, Any]:
    raise LookupError("no such order")


async def later_nothing(call: ToolCall) -> None:
    await asyncio.sleep(0)


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
        "nothing": lambda call: None,
        "later": later,
        "later_broken": later_broken,
        "later_nothing": later_nothing,
    },
)


def test_there_are_as_many_cases_as_promised() -> None:
    assert len(CASES) >= 300


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case) -> None:
    case.check()
