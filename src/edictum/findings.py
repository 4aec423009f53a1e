"""Findings: the objections of postconditions to a result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edictum.core.decision import Answer
from edictum.core.freeze import EMPTY

_WORD = re.compile(r"[a-z]+")
FINDING_WORDS = {
    "pii_detected": {"pii", "ssn", "patient", "dob"},
    "secret_detected": {
        *("secret", "secrets", "token", "key", "keys"),
        *("credential", "credentials", "password", "passwords"),
    },
    "limit_exceeded": {"session", "limit", "limits", "budget"},
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One objection of a postcondition. ``type`` is one of pii_detected, secret_detected,
    limit_exceeded, policy_violation.
    """

    type: str
    contract_id: str
    field: str
    message: str
    metadata: Mapping[str, Any] = EMPTY

    def as_dict(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "contract_id": self.contract_id,
            "field": self.field,
            "message": self.message,
            "metadata": dict(self.metadata),
        }


@dataclass(frozen=True, slots=True)
class PostCallResult:
    """A governed call's result as adapters hand it to ``on_postcondition_warn``."""

    result: Any
    postconditions_passed: bool = True
    findings: list[Finding] = field(default_factory=list)
    output_suppressed: bool = False


def classify_finding(contract_id: str, message: str) -> str:
    """Return the type of a finding by the words of the contract's id and message."""
    words = set(_WORD.findall(f"{contract_id} {message}".lower()))
    return next(
        (kind for kind, hints in FINDING_WORDS.items() if words & hints), "policy_violation"
    )


def build_findings(post_decision: Any) -> list[Finding]:
    """Return the findings of an older ``PostDecision``: one for each contract that objected."""
    return [
        Finding(
            type=classify_finding(record["name"], record["message"] or ""),
            contract_id=record["name"],
            field=record.get("metadata", {}).get("field", "output"),
            message=record["message"] or "",
            metadata=record.get("metadata", EMPTY),
        )
        for record in post_decision.contracts_evaluated
        if not record["passed"]
    ]


def finding(answer: Answer, *, happened: bool = False) -> Finding:
    """Return the finding for a postcondition's objection. ``happened``: the tool has changed
    something, even if its result is not shown.
    """
    contract, verdict = answer.contract, answer.verdict
    return Finding(
        type=contract.metadata.get("finding_type")
        or classify_finding(contract.id, verdict.message or ""),
        contract_id=contract.id,
        field=verdict.metadata.get("field", "output"),
        message=verdict.message or "",
        metadata={
            **contract.metadata,
            **verdict.metadata,
            **({"action_happened": True} if happened else {}),
        },
    )
