"""Explanation: why a call would be decided in this way, for people.

Every contract that applies is shown with its answer; contracts from a bundle show their condition
as a tree, with the value that each leaf read and whether it held. Values are redacted and
shortened.
"""

from __future__ import annotations

from dataclasses import dataclass

from edictum.evaluation import ContractResult, EvaluationResult

MARKS = {True: "holds", False: "does not hold", None: "error"}


@dataclass(frozen=True, slots=True)
class ConditionNode:
    """One line of a condition. ``held`` is None when judging it raised ``error``; ``value`` is what
    a leaf read, as text.
    """

    text: str
    held: bool | None
    value: str | None = None
    error: str | None = None
    items: tuple[ConditionNode, ...] = ()

    def lines(self, indent: int = 0) -> list[str]:
        detail = f"  (value: {self.value})" if self.value is not None else ""
        detail += f"  ({self.error})" if self.error is not None else ""
        own = f"{'  ' * indent}{self.text}: {MARKS[self.held]}{detail}"
        return [own, *(line for item in self.items for line in item.lines(indent + 1))]


@dataclass(frozen=True, slots=True)
class ContractExplanation:
    """One contract's part. ``condition`` is None for contracts written in Python, whose code cannot
    be shown.
    """

    result: ContractResult
    condition: ConditionNode | None = None

    def lines(self) -> list[str]:
        result = self.result
        answer = "passes" if result.passed else f"objects ({result.effect})"
        notes = [
            note
            for note, said in (
                ("only observes", result.observed),
                ("policy error", result.policy_error),
            )
            if said
        ]
        head = (
            f"{result.contract_id} [{result.contract_type}]"
            f" {answer}{f' ({chr(44).join(notes)})' if notes else ''}"
        )
        lines = [head] if result.passed or not result.message else [f"{head}: {result.message}"]
        return lines + (self.condition.lines(1) if self.condition else [])


@dataclass(frozen=True, slots=True)
class Explanation:
    """What ``guard.explain`` returns: print it, or read its parts."""

    evaluation: EvaluationResult
    contracts: tuple[ContractExplanation, ...]

    @property
    def verdict(self) -> str:
        return self.evaluation.verdict

    def __str__(self) -> str:
        evaluation = self.evaluation
        asked = " (a person would be asked)" if evaluation.needs_approval else ""
        lines = [f"{evaluation.tool_name}: {evaluation.verdict}{asked}"]
        lines += [
            f"  because: {reason}"
            for reason in (*evaluation.deny_reasons, *evaluation.warn_reasons)
        ]
        if not self.contracts:
            lines.append("  no contract applies to this tool")
        return "\n".join(
            [*lines, *(f"  {line}" for contract in self.contracts for line in contract.lines())]
        )
