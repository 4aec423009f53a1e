"""decide_before and decide_after: ask every contract, keep every answer, decide once.

A denial does not hide the other contracts that object, and an approval cannot skip a denial. An
error inside a contract is an answer too: it denies, marked ``policy_error``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from itertools import groupby
from operator import length_hint
from types import NoneType
from typing import Any

from edictum.core._records import record, replace
from edictum.core.call import SideEffect, ToolCall
from edictum.core.contract import PASS, Contract, Mode, Verdict
from edictum.core.decision import (
    USER_ERRORS,
    Answer,
    Decision,
    Failed,
    HookAnswer,
    Objection,
    all_answers,
    make_answer,
    make_decision,
)
from edictum.core.freeze import EMPTY
from edictum.core.hooks import HookDecision, HookRegistration, HookResult
from edictum.core.values import to_searched_json
from edictum.findings import Finding, finding


def ask_each(contracts: tuple[Contract, ...]) -> Callable[[Any], list[tuple[Contract, Any]]]:
    """Return a function that asks each contract and returns the answers that do not pass.

    An answer may still be an awaitable. A contract that passes costs its own call and a comparison:
    which of them an answer is from is looked up only when it objects.
    """
    checks = tuple(contract.check for contract in contracts)

    def ask_them(subject: Any) -> list[tuple[Contract, Any]]:
        objections: list[tuple[Contract, Any]] = []
        left = iter(checks)
        while True:  # on from the next one when one raises
            try:
                for check in left:
                    if (verdict := check(subject)) is not PASS:
                        objections.append((contracts[-1 - length_hint(left)], verdict))
                return objections
            except USER_ERRORS as exc:
                objections.append((contracts[-1 - length_hint(left)], Failed(exc)))

    return ask_them


def _ask_one(contract: Contract) -> Callable[[Any], list[tuple[Contract, Any]]]:
    """Return what ``ask_each`` would, for one contract."""
    check = contract.check

    def ask_it(subject: Any) -> list[tuple[Contract, Any]]:
        try:
            verdict = check(subject)
        except USER_ERRORS as exc:
            return [(contract, Failed(exc))]
        return [] if verdict is PASS else [(contract, verdict)]

    return ask_it


def _fuse_runs(
    contracts: tuple[Contract, ...], ask_run: Callable[[tuple[Contract, ...]], Callable[..., Any]]
) -> list[Callable[..., Any]]:
    """Return one function per run of neighbouring contracts that can be asked together."""
    runs = groupby(contracts, key=lambda contract: contract.fuse)
    return [(fuse or ask_run)(tuple(run)) for fuse, run in runs]


def make_asker(contracts: tuple[Contract, ...]) -> Callable[[Any], list[tuple[Contract, Any]]]:
    """Return a function that asks contracts about a call; a compiler may have fused neighbours."""
    parts = _fuse_runs(contracts, lambda run: _ask_one(*run) if len(run) == 1 else ask_each(run))
    if len(parts) <= 1:
        return parts[0] if parts else lambda _call: []
    return lambda call: [answer for part in parts for answer in part(call)]


def make_after_asker(
    contracts: tuple[Contract, ...],
) -> Callable[[ToolCall, Any], list[tuple[Contract, Any]]]:
    """Return a function that asks postconditions about a call and its result."""
    parts = _fuse_runs(contracts, lambda run: partial(ask_after, run))
    if len(parts) <= 1:
        return parts[0] if parts else lambda _call, _result: []
    return lambda call, result: [answer for part in parts for answer in part(call, result)]


def ask_after(
    contracts: Iterable[Contract], call: ToolCall, result: Any
) -> list[tuple[Contract, Any]]:
    """Ask postconditions, and return the answers that do not pass."""
    answers: list[tuple[Contract, Any]] = []
    for contract in contracts:
        verdict: Any
        try:
            verdict = contract.check(call, result)
        except USER_ERRORS as exc:
            verdict = Failed(exc)
        if verdict is not PASS:
            answers.append((contract, verdict))
    return answers


def as_answer(contract: Contract, raw: Any, mode: Mode) -> Answer:
    """Return a contract's answer; anything but a valid Verdict is an error in the contract."""
    if type(raw) is not Verdict or _bad_field(raw) is not None:
        kind = contract.record_type.replace("_", " ").capitalize()
        if isinstance(raw, Failed) and _hides_results(contract):
            complaint = type(raw.error).__name__  # its text may quote what is to be hidden
        else:
            complaint = _complaint(raw, "Verdict.pass_() or Verdict.fail(...)")
        text = f"{kind} error: {complaint}"
        raw = Verdict.fail(text, policy_error=True, for_operators=True)
    return make_answer(contract, raw, contract.is_observed(mode) and not raw.passed)


def _hides_results(contract: Contract) -> bool:
    return contract.record_type == "postcondition" and contract.effect != "warn"


def as_hook_answer(hook: HookRegistration, raw: Any) -> HookAnswer:
    if isinstance(raw, HookDecision):
        return HookAnswer(hook, raw)
    return hook_error(
        hook,
        _complaint(
            raw, "HookDecision.allow(), HookDecision.deny(...) or HookDecision.rewrite(...)"
        ),
    )


def hook_error(hook: HookRegistration, complaint: str) -> HookAnswer:
    return HookAnswer(hook, HookDecision.deny(f"Hook error: {complaint}"), policy_error=True)


def _bad_field(verdict: Any) -> str | None:
    """Return what is wrong inside a Verdict that was built by hand, or None.

    A coroutine is truthy: a forgotten ``await`` must not let a call through.
    """
    if type(verdict.passed) is not bool:
        return f"a Verdict whose `passed` is {type(verdict.passed).__name__}, not True or False"
    if not isinstance(verdict.message, (str, NoneType)):
        return f"a message that is {type(verdict.message).__name__}"
    if verdict.metadata is not EMPTY and not isinstance(verdict.metadata, Mapping):
        return f"metadata that is {type(verdict.metadata).__name__}"
    return None


def _complaint(raw: Any, wanted: str) -> str:
    if isinstance(raw, Failed):
        return type_and_text(raw.error)
    what = _bad_field(raw) if type(raw) is Verdict else type(raw).__name__
    return f"it returned {what}; return {wanted}"


def type_and_text(error: BaseException) -> str:
    """Return the type and text of an exception: the text of a KeyError alone says nothing."""
    kind, text = type(error).__name__, describe(error)
    return text if text == kind else f"{kind}: {text}"


def describe(error: BaseException) -> str:
    """Return the text of an exception, even of one whose ``str()`` raises."""
    try:
        text = str(error)
    except Exception:
        text = "<str() raised>"
    return text or type(error).__name__


def is_for_model(error: BaseException) -> bool:
    """Return whether a model may read the text of an exception.

    It may where this library says in it what is wrong with a call. Other texts can name hosts,
    paths and users.
    """
    return bool(getattr(type(error), "is_for_model", False))


def explain_failure(answer: Any) -> str:
    """Say what is wrong with an answer: it is an exception, or of the wrong type."""
    if isinstance(answer, Failed):
        return describe(answer.error)
    return f"it answered with {type(answer).__name__}"


def decide_before(
    asked: tuple[Contract, ...],
    answers: Sequence[Answer],
    hooks: Sequence[HookAnswer],
    mode: Mode,
    approved: Sequence[Any] = (),
) -> Decision:
    """Return one decision from all answers: any denial denies, else any approval asks.

    A person has already said yes to those in ``approved``.
    """
    refusals = _list_refusals(hooks) if hooks else []
    waived: list[Objection] = []
    if mode == "observe":
        waived, refusals = refusals, []
    approvals: list[Answer] = []
    for answer in answers:
        verdict = answer.verdict
        if verdict.passed:
            continue
        if answer.observed:
            waived.append(answer.objection())
        elif answer.contract.effect == "deny" or verdict.policy_error:
            refusals.append(answer.objection())
        elif not any(it is answer.contract for it in approved):
            approvals.append(answer)
    all_said = (asked, tuple(answers), tuple(hooks), tuple(waived))
    if refusals:
        first, *others = refusals
        error = first.policy_error or any(it.policy_error for it in others)
        reason = (first.reason, first.source, first.name, error, first.for_operators)
        return make_decision("deny", *reason, *all_said)
    decision = make_decision("allow", None, None, None, False, False, *all_said)
    return _ask_once(decision, approvals) if approvals else decision


def _list_refusals(hooks: Sequence[HookAnswer]) -> list[Objection]:
    return [hook.objection() for hook in hooks if hook.decision.result is HookResult.DENY]


def _ask_once(decision: Decision, approvals: list[Answer]) -> Decision:
    """Return the decision to ask a person once, on the strictest terms of all contracts that want
    it.
    """
    contracts = [answer.contract for answer in approvals]
    denies = any(contract.timeout_effect == "deny" for contract in contracts)
    return replace(
        decision,
        effect="approve",
        reason=approvals[0].verdict.message,
        source=contracts[0].source,
        name=contracts[0].id,
        timeout=min(contract.timeout for contract in contracts),
        timeout_effect="deny" if denies else "allow",
        askers=tuple(contracts),
    )


@record
class AfterDecision:
    """What the contracts said about a result. The record keeps it, so it does not hold the result
    itself. There is one finding per postcondition that objected, observed ones included.
    """

    passed: bool = True
    policy_error: bool = False
    suppressed: bool = False
    asked: tuple[Contract, ...] = ()
    answers: tuple[Answer, ...] = ()
    warnings: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    def all_answers(self) -> list[Answer]:
        return all_answers(self.asked, self.answers)

    def objections(self) -> list[Objection]:
        return [answer.objection() for answer in self.answers if not answer.verdict.passed]

    @property
    def has_withheld(self) -> bool:
        """Whether something was taken out of the result, or all of it."""
        return any(
            not (answer.verdict.passed or answer.observed or answer.contract.effect == "warn")
            for answer in self.answers
        )


def decide_after(
    asked: tuple[Contract, ...],
    answers: Sequence[Answer],
    call: ToolCall,
    value: Any,
    redact: Callable[[Any], Any],
) -> tuple[Any, AfterDecision]:
    """Return the value that may be shown, and what was said about it.

    Objections are applied in order: redact replaces inside the value, deny replaces it by a notice,
    warn leaves it.
    """
    warnings: list[str] = []
    suppressed = False
    objections = [answer for answer in answers if not answer.verdict.passed]
    for answer in objections:
        contract, message = answer.contract, answer.verdict.message
        if answer.observed:
            warnings.append(f"[observe] {message}")
        elif contract.effect == "warn":
            warnings.append(f"{message} {_advice(call)}")
        elif (
            contract.effect == "redact"
            and not suppressed
            and (redacted := _redact(answer, redact, call, value)) is not None
        ):
            value = redacted.value
            warnings.append(f"Content redacted by {contract.id}.{_effect_note(call)}")
        else:
            # a redaction that failed or changed nothing has not removed what was objected to
            value, suppressed = _notice(value, f"[OUTPUT SUPPRESSED] {message}"), True
            warnings.append(f"Output suppressed by {contract.id}.{_effect_note(call)}")
    return value, AfterDecision(
        passed=not objections,
        policy_error=any(answer.verdict.policy_error for answer in objections),
        suppressed=suppressed,
        asked=asked,
        answers=tuple(answers),
        warnings=tuple(warnings),
        findings=tuple(
            finding(answer, happened=not _is_safe_to_repeat(call)) for answer in objections
        ),
    )


@record
class _Redacted:
    value: Any


def _redact(
    answer: Answer, default: Callable[[Any], Any], call: ToolCall, value: Any
) -> _Redacted | None:
    """Return the redacted value, or None when it cannot be trusted.

    That is when the contract or its redaction failed, or when nothing changed. A redaction with
    ``checks_itself`` also gets the call and raises when something is left, so for it "nothing
    changed" means that an earlier redaction removed everything.
    """
    redact: Callable[..., Any] = answer.contract.redact or default
    if answer.verdict.policy_error:
        return None
    try:
        if getattr(redact, "checks_itself", False):
            return _Redacted(redact(value, call))
        redacted = redact(value)
        if isawaitable(redacted):
            redacted.close()  # type: ignore[attr-defined]  # not of every one: that is caught below
            return None
        return _Redacted(redacted) if _is_different(redacted, value) else None
    except USER_ERRORS:
        return None


def _is_different(redacted: Any, value: Any) -> bool:
    try:
        return bool(redacted != value)
    except Exception:  # frames and arrays compare cell by cell
        return redacted is not value and bool(to_searched_json(redacted) != to_searched_json(value))


def _notice(value: Any, text: str) -> Any:
    """Return a notice of the type that callers of the tool expect."""
    if isinstance(value, dict):
        return {"suppressed": text}
    return [text] if isinstance(value, list) else text


def _is_safe_to_repeat(call: ToolCall) -> bool:
    return call.side_effect in (SideEffect.PURE, SideEffect.READ)


def _advice(call: ToolCall) -> str:
    if _is_safe_to_repeat(call):
        return "Consider retrying."
    return "Tool already executed - assess before proceeding."


def _effect_note(call: ToolCall) -> str:
    return "" if _is_safe_to_repeat(call) else " The tool has already executed."
