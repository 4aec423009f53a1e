"""Postconditions on what tools really return: objects, bytes, and things that cannot be changed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import pydantic
import pytest

from edictum import Edictum, outcome_to_model_content
from edictum.outcomes import ToolExecutionResult

BUNDLE = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: p}
tools: {read: {side_effect: read}}
contracts:
  - id: key
    type: post
    tool: "*"
    when: {output.text: {matches: 'BEGIN\\s+KEY'}}
    then: {effect: redact, message: a key}
  - id: status
    type: post
    tool: "*"
    when: {result.status_code: {gte: 500}}
    then: {effect: warn, message: a server error}
"""


@dataclass
class Response:
    status_code: int
    body: str


class Hostile:
    @property
    def status_code(self) -> int:
        raise RuntimeError("no")

    def __str__(self) -> str:
        return "hostile"


def dispatch(result: Any, tool: str = "read") -> ToolExecutionResult:
    outcome = Edictum.from_yaml_string(BUNDLE).dispatch_sync(tool, {}, lambda: result)
    assert isinstance(outcome, ToolExecutionResult)
    return outcome


def test_attributes_of_objects_are_fields() -> None:
    assert [finding.contract_id for finding in dispatch(Response(503, "x")).findings] == ["status"]
    assert dispatch(Response(200, "x")).findings == ()


def test_what_is_inside_an_object_is_seen_and_taken_out() -> None:
    outcome = dispatch(Response(200, "BEGIN\nKEY"))
    assert outcome.value == Response(200, "[REDACTED]")


class Model(pydantic.BaseModel):
    name: str = "x"
    key: str = pydantic.Field("BEGIN KEY", repr=False)


@dataclass
class Row:
    key: str = "BEGIN KEY"

    def __str__(self) -> str:
        return "Row"

    __repr__ = __str__


class Quiet(dict[str, str]):
    def __repr__(self) -> str:
        return "quiet"


HIDING = {
    "a model": Model(),
    "a dataclass": Row(),
    "a dict of its own kind": Quiet(key="BEGIN KEY"),
    "in a dict": {"row": Model()},
    "in a tuple in a list": [(1, Row())],
    "far inside": reduce(lambda inner, _level: [inner], range(60), Row()),
}


@pytest.mark.parametrize("result", HIDING.values(), ids=HIDING)
def test_what_printing_leaves_out_is_seen(result: Any) -> None:
    assert "BEGIN KEY" not in str(result)
    outcome = dispatch(result)
    assert [finding.contract_id for finding in outcome.findings] == ["key"]
    assert "BEGIN KEY" not in outcome_to_model_content(outcome)


def test_an_object_beside_text_is_not_left_behind() -> None:
    assert dispatch({"text": "BEGIN KEY", "object": Response(200, "BEGIN KEY")}).value == {
        "text": "[REDACTED]",
        "object": Response(200, "[REDACTED]"),
    }


def test_bytes_are_searched() -> None:
    assert dispatch(b"BEGIN KEY").value == b"[REDACTED]"
    assert dispatch(b"\xffBEGIN KEY").value == b"\xff[REDACTED]"


def test_a_tuple_stays_a_tuple() -> None:
    assert dispatch(("BEGIN KEY", 1)).value == ("[REDACTED]", 1)


def test_an_object_that_raises_is_a_policy_error() -> None:
    (finding,) = dispatch(Hostile()).findings
    assert finding.metadata["policy_error"] is True


@pytest.mark.parametrize(("tool", "happened"), [("read", False), ("pay", True)])
def test_the_finding_says_that_the_action_has_happened(tool: str, happened: bool) -> None:
    outcome = dispatch("BEGIN KEY", tool)
    assert outcome.value == "[REDACTED]"
    assert outcome.findings[0].metadata.get("action_happened", False) is happened


def test_the_text_of_an_exception_is_redacted_too() -> None:
    def fails() -> None:
        raise RuntimeError("read BEGIN KEY")

    assert (
        Edictum.from_yaml_string(BUNDLE).dispatch_sync("read", {}, fails).error == "read [REDACTED]"
    )  # type: ignore[union-attr]
