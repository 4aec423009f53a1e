"""Outcomes that a later minor version wrote can be read."""

from __future__ import annotations

from edictum import Finding, ToolExecutionResult
from edictum.outcomes import TurnFacts, outcome_from_dict, outcome_to_dict


def test_fields_that_are_not_known_yet_are_ignored_at_every_level() -> None:
    """As the docstring of outcome_from_dict promises."""
    facts = TurnFacts(attempts=2, repairs=("a",), replayed=True)
    finding = Finding("policy_violation", "c", "output", "odd", {"k": 1})
    outcome = ToolExecutionResult("1", "t", {"a": 1}, 5, findings=(finding,), turn=facts)
    data = outcome_to_dict(outcome)
    data["later"] = data["turn"]["later"] = data["findings"][0]["later"] = 1
    assert outcome_from_dict(data) == outcome


def test_facts_that_are_missing_have_their_defaults() -> None:
    """A fact that an earlier minor version did not know."""
    data = outcome_to_dict(ToolExecutionResult("1", "t", {}, 5))
    data["turn"] = {"attempts": 3}
    assert outcome_from_dict(data) == ToolExecutionResult(
        "1", "t", {}, 5, turn=TurnFacts(attempts=3)
    )
