"""EvaluationResult: what ``guard.evaluate`` says about a call that is not made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from edictum.core._records import frozen_maker
from edictum.core.decision import Answer
from edictum.core.freeze import FrozenList


class _NotGiven:
    def __repr__(self) -> str:
        return "NOT_GIVEN"


NOT_GIVEN: Any = _NotGiven()  # no output: None is one that a tool may have


@dataclass(frozen=True, slots=True)
class ContractResult:
    """One contract's answer in an evaluation."""

    contract_id: str
    contract_type: str
    passed: bool
    message: str | None = None
    tags: list[str] = field(default_factory=list)
    observed: bool = False
    effect: str = "warn"
    policy_error: bool = False

    @classmethod
    def of(cls, answer: Answer) -> ContractResult:
        contract, verdict = answer.contract, answer.verdict
        return cls(
            contract.id,
            contract.record_type,
            verdict.passed,
            verdict.message,
            FrozenList(contract.tags),
            answer.observed,
            contract.effect,
            verdict.policy_error,
        )


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """What would be decided about a call. ``decision`` is the word of the language and of cases;
    ``verdict`` is that of the older library: "warn" when only a postcondition objects, and "deny"
    even for a call that asks a person (``needs_approval``).
    """

    verdict: Literal["allow", "deny", "warn"]
    tool_name: str
    contracts: list[ContractResult] = field(default_factory=list)
    deny_reasons: list[str] = field(default_factory=list)
    warn_reasons: list[str] = field(default_factory=list)
    contracts_evaluated: int = 0
    policy_error: bool = False
    needs_approval: bool = False

    @property
    def decision(self) -> Literal["allow", "deny", "approve"]:
        """What comes before the tool: allow, deny, or approve (a person would be asked)."""
        if self.needs_approval:
            return "approve"
        return "deny" if self.verdict == "deny" else "allow"


_make_result = frozen_maker(EvaluationResult)


def make_allowed_result(tool_name: str, contracts: list[ContractResult]) -> EvaluationResult:
    """Return the result of a call to which no contract objects."""
    return _make_result("allow", tool_name, contracts, [], [], len(contracts))
