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
    """``verdict`` is what would happen: "deny", "warn" (a postcondition objects) or "allow".

    A call for which a person would be asked is denied, with ``needs_approval``.
    """

    verdict: Literal["allow", "deny", "warn"]
    tool_name: str
    contracts: list[ContractResult] = field(default_factory=list)
    deny_reasons: list[str] = field(default_factory=list)
    warn_reasons: list[str] = field(default_factory=list)
    contracts_evaluated: int = 0
    policy_error: bool = False
    needs_approval: bool = False


_make_result = frozen_maker(EvaluationResult)


def allowed(tool_name: str, contracts: list[ContractResult]) -> EvaluationResult:
    """Return the result of a call to which no contract objects."""
    return _make_result("allow", tool_name, contracts, [], [], len(contracts))
