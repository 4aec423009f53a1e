"""Decision: every answer that was given about one call, and the one decision that follows from
them.
"""

from __future__ import annotations

from typing import Any, Literal

from edictum.core._records import maker, record
from edictum.core.approvers import Approvers
from edictum.core.contract import PASS, SKIPPED, Contract, Verdict
from edictum.core.freeze import get_original_args
from edictum.core.hooks import HookDecision, HookRegistration

# what user-supplied code may raise by its own fault: sys.exit() in a contract does not end the host
USER_ERRORS = (Exception, SystemExit)


@record
class Failed:
    """An effect, contract or hook ended in an exception, carried as a value."""

    error: BaseException


@record
class Answer:
    """One contract's verdict on one call."""

    contract: Contract
    verdict: Verdict
    observed: bool = False

    def objection(self) -> Objection:
        return make_objection(
            self.contract.source,
            self.contract.id,
            self.verdict.message or "",
            self.verdict.policy_error,
            self.observed,
            self.verdict.for_operators,
        )

    def as_record(self) -> dict[str, Any]:
        """Return the entry of ``contracts_evaluated`` in the audit."""
        entry: dict[str, Any] = {
            "name": self.contract.id,
            "type": self.contract.record_type,
            "passed": self.verdict.passed,
            "message": self.verdict.message,
        }
        if self.contract.tags:
            entry["tags"] = list(self.contract.tags)
        # filters of log lines look for the tags among the metadata
        inner = {"tags": entry["tags"]} if self.contract.tags else {}
        if metadata := {**inner, **self.contract.metadata, **self.verdict.metadata}:
            entry["metadata"] = metadata
        if self.observed:
            entry["observed"] = True
        return entry


@record
class HookAnswer:
    """One before-hook's decision on one call. ``replaced`` are the arguments before its rewrite."""

    hook: HookRegistration
    decision: HookDecision
    policy_error: bool = False
    replaced: Any = None
    observed: bool = False  # it would have rewritten them, if it did not only observe

    def objection(self) -> Objection:
        error, reason = self.policy_error, self.decision.reason or ""
        return Objection("hook", self.hook.name, reason, error, for_operators=error)

    def as_record(self) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "name": self.hook.name,
            "result": self.decision.result.value,
            "reason": self.decision.reason,
        }
        if self.replaced is not None:
            entry["original_args"] = get_original_args(self.replaced)
        if self.observed:
            entry["observed"] = True
        return entry


@record
class Objection:
    """Why a call is, or would be, refused, or what is wrong with its result.

    ``observed``: the objecting contract or limit only observes. ``for_operators``: the reason may
    quote what was raised, so no model reads it.
    """

    source: str
    name: str
    reason: str
    policy_error: bool = False
    observed: bool = False
    for_operators: bool = False


@record
class Decision:
    """What is decided before a call runs, with all reasons.

    ``for_operators`` is that of the objection with the ``reason``. ``exceptions`` are the answers
    that are not a plain pass; ``waived`` are objections that are only observed. ``askers`` are the
    contracts and limits that want a person's answer.
    """

    effect: Literal["allow", "deny", "approve"] = "allow"
    reason: str | None = None
    source: str | None = None
    name: str | None = None
    policy_error: bool = False
    for_operators: bool = False
    asked: tuple[Contract, ...] = ()
    exceptions: tuple[Answer, ...] = ()
    hooks: tuple[HookAnswer, ...] = ()
    waived: tuple[Objection, ...] = ()
    timeout: float = 300
    timeout_effect: Literal["deny", "allow"] = "deny"
    askers: tuple[Any, ...] = ()

    @property
    def approvers(self) -> tuple[Approvers, ...]:
        """Who may answer, for each asker that restricts it: all of them must be satisfied."""
        stated = [it.approvers for it in self.askers if it.approvers is not None]
        return tuple(dict.fromkeys(stated))

    def answers(self) -> list[Answer]:
        """Return the answers of all contracts that were asked, in order."""
        return all_answers(self.asked, self.exceptions)

    def deny(
        self,
        source: str,
        name: str,
        reason: str | None,
        *,
        policy_error: bool = False,
        for_operators: bool = False,
    ) -> Decision:
        """Return this decision as a denial."""
        return make_decision(
            "deny",
            reason,
            source,
            name,
            policy_error,
            for_operators,
            self.asked,
            self.exceptions,
            self.hooks,
            self.waived,
            self.timeout,
            self.timeout_effect,
        )

    def fail(self, source: str, reason: str, name: str | None = None) -> Decision:
        """Return this decision as a denial because a part of the gate itself failed."""
        return self.deny(source, name or source, reason, policy_error=True)


make_answer, make_objection, make_decision = maker(Answer), maker(Objection), maker(Decision)


def all_answers(asked: tuple[Contract, ...], exceptions: tuple[Answer, ...]) -> list[Answer]:
    """Return an answer for each contract whose ``when`` held: an exception, or a pass."""
    special = {id(answer.contract): answer for answer in exceptions}
    answers = [special.get(id(contract)) or Answer(contract, PASS) for contract in asked]
    return [answer for answer in answers if answer.verdict is not SKIPPED]
