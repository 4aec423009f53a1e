"""Compile a Bundle into the parts of a Policy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib import import_module
from secrets import token_bytes
from types import ModuleType
from typing import Any

from edictum.contracts._amounts import make_source
from edictum.contracts._bundle import (
    Bundle,
    ContractSpec,
    MissingArgs,
    Style,
    SuccessSpec,
    Unlisted,
)
from edictum.contracts._computed import NotKnown, compile_directories, compute_value, has_computed
from edictum.contracts._explain import explain, reason_for
from edictum.contracts._expressions import (
    ALWAYS,
    Expression,
    Leaf,
    evaluate,
    leaves,
    with_strict_arguments,
)
from edictum.contracts._language import Language
from edictum.contracts._load import pause_collection
from edictum.contracts._messages import RenderMessage, compile_message, unescape_braces
from edictum.contracts._operators import Mismatch
from edictum.contracts._redact import redaction_for
from edictum.contracts._scopes import compile_scope
from edictum.contracts._selectors import (
    CustomSelectors,
    Pending,
    Selector,
    Subject,
    UnknownArgument,
    find_unknown_argument,
    refuse_unknown_argument,
)
from edictum.core.call import ToolCall
from edictum.core.charges import AmountSource
from edictum.core.contract import PASS, Contract, Kind, Mode, Verdict
from edictum.core.decide import describe, is_for_model, type_and_text
from edictum.core.library_values import NotReadableError
from edictum.core.limits import Limit
from edictum.core.policy import SuccessRule
from edictum.core.redaction import RedactionPolicy
from edictum.core.replacements import Replace, keyed_hash, mask, redact
from edictum.core.scopes import ScopedLimits
from edictum.core.tool_entry import AMOUNT_KEYS, ToolEntry, tool_entry
from edictum.explanation import ConditionNode

SOURCES = {
    Kind.PRE: "yaml_precondition",
    Kind.POST: "yaml_postcondition",
    Kind.SANDBOX: "yaml_sandbox",
}
DIRECTORIES = frozenset({"within", "not_within", "cwd"})  # bounds that may hold placeholders
MAX_SANDBOXES = 256  # of one contract, each for other values of its placeholders
_Answer = Verdict | Awaitable[Verdict]
PROCESS_KEY = token_bytes(32)  # of hashes that need not be joined with those of other processes
FAST_PATH: ModuleType | None = None  # without it conditions are interpreted
with suppress(ImportError):
    FAST_PATH = import_module("edictum.contracts._generate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What a bundle adds to a policy."""

    contracts: tuple[Contract, ...] = ()
    session_limits: tuple[Limit, ...] = ()
    success_rules: tuple[SuccessRule, ...] = ()
    tools: Mapping[str, ToolEntry] = field(default_factory=dict)
    unlisted: Contract | None = None
    mode: Mode = "enforce"


def compile_bundle(bundle: Bundle, language: Language, redaction: RedactionPolicy) -> Compiled:
    """Return the contracts, limits, tool entries and success rules of a bundle."""
    mode: Mode = language.mode or bundle.mode or "enforce"
    missing_args = bundle.missing_args or "allow"
    compiler = _Compiler(language.selectors, redaction, mode, missing_args)
    specs = [spec for spec in bundle.contracts if spec.enabled]
    contracts = [spec for spec in specs if spec.kind is not Kind.SESSION]
    session = [spec for spec in specs if spec.kind is Kind.SESSION]
    with pause_collection():
        return Compiled(
            contracts=tuple(map(compiler.compile_contract, contracts)),
            session_limits=tuple(
                limit for spec in session for limit in compiler.compile_limits(spec)
            ),
            success_rules=tuple(map(compiler.compile_success_rule, bundle.success)),
            tools={name: compiler.compile_tool(name, it) for name, it in bundle.tools.items()},
            unlisted=compiler.compile_unlisted_rule(bundle.unlisted_tools),
            mode=mode,
        )


@dataclass(eq=False)
class Condition:
    """A condition on a call, its result or its session."""

    expression: Expression
    custom: CustomSelectors
    redaction: RedactionPolicy

    @cached_property
    def holds(self) -> Callable[[ToolCall, Any, Any], bool]:
        """The condition as a function, made on first use: many contracts are loaded, few are
        reached.
        """
        if FAST_PATH is not None:
            generated: Callable[[ToolCall, Any, Any], bool] = FAST_PATH.compile_condition(
                self.expression, self.custom
            )
            return generated
        return lambda call, result, session: evaluate(
            self.expression, Subject(call, result, session), self.custom
        )

    def list_leaves(self) -> list[Leaf]:
        return list(leaves(self.expression))

    def explain(self, call: ToolCall, result: Any, session: Any) -> ConditionNode:
        return explain(self.expression, Subject(call, result, session), self.custom, self.redaction)

    def find_failure(self, call: ToolCall, value: Any) -> str | None:
        """Return why the condition holds, for a success rule; None when it does not."""
        if not self.holds(call, value, None):
            return None
        return reason_for(self.expression, Subject(call, value), self.custom, self.redaction)

    def find_stated_failure(self, message: RenderMessage) -> Callable[[ToolCall, Any], str | None]:
        """Return ``find_failure`` with a message for the reason."""
        return lambda call, value: (
            message(Subject(call, value)) if self.holds(call, value, None) else None
        )


@dataclass(eq=False)
class ConditionCheck(Condition):
    """The check of a contract with a ``when``."""

    message: RenderMessage
    is_of_result: bool

    def __call__(self, call: ToolCall, result: Any = None, session: Any = None) -> _Answer:
        subject = Subject(call, result, session)
        return answer_or_wait(lambda: self._judge(subject))

    def _judge(self, subject: Subject) -> Verdict:
        try:
            held = self.holds(subject.call, subject.result, subject.session)
        except Exception as exc:
            return self.object_to(subject, exc)
        return self.object_to(subject) if held else PASS

    def object_to(self, subject: Subject, error: Exception | None = None) -> Verdict:
        """Return the verdict of a condition that holds. One that cannot be judged counts as met,
        and the verdict says why.

        Raises Pending while a selector must still be awaited.
        """
        if isinstance(error, Pending):
            raise error
        if error is None:
            return Verdict(False, self.message(subject))
        return _fail_on_error(self._explain_error(error), error, error_type=type(error).__name__)

    def _explain_error(self, error: Exception) -> str:
        """Return which value is missing or of the wrong type, or which exception was raised.

        The text of an exception may quote a result that is suppressed because of it.
        """
        if isinstance(error, UnknownArgument):
            return describe(error)
        why = describe(error)
        if not isinstance(error, (Mismatch, NotKnown, NotReadableError)):
            why = type(error).__name__ if self.is_of_result else type_and_text(error)
        return f"The contract could not be applied: {why}."


class SessionConditionCheck(ConditionCheck):
    """A check that reads the session's counters, made while the call's slot is held."""

    def __call__(self, view: Any) -> _Answer:  # type: ignore[override]  # session checks get a view
        return super().__call__(view.call, None, view)


@dataclass(eq=False)
class SandboxCheck:
    """The check of a sandbox contract, which judges all arguments."""

    sandboxes: Sandboxes
    message: RenderMessage
    is_strict: bool = False

    def __call__(self, call: ToolCall) -> _Answer:
        if self.is_strict and (unknown := find_unknown_argument(call)) is not None:
            text = refuse_unknown_argument(call, unknown)
            return Verdict.fail(text, policy_error=True, error_detail=text)
        return answer_or_wait(lambda: self._judge(call))

    def _judge(self, call: ToolCall) -> Verdict:
        try:
            sandbox = self.sandboxes.find(Subject(call))
        except Pending:
            raise
        except Exception as exc:
            violation = describe(exc)
            return _fail_on_error(self.message(Subject(call, violation=violation)), exc)
        violation = sandbox.violation(call)
        if violation is None:
            return PASS
        return Verdict.fail(self.message(Subject(call, violation=violation)), violation=violation)


def _fail_on_error(message: str, error: Exception, **metadata: Any) -> Verdict:
    """Return the verdict of a contract that cannot be applied."""
    if not is_for_model(error):
        metadata["for_operators"] = True
    return Verdict.fail(message, policy_error=True, error_detail=describe(error), **metadata)


class Sandboxes:
    """The sandbox of a contract, or one for each set of directories that its placeholders name."""

    def __init__(self, spec: ContractSpec, custom: CustomSelectors) -> None:
        # The shell reader is large, and only bundles with a sandbox need it.
        from edictum.contracts.sandbox import Sandbox

        bounds = dict(spec.bounds)
        for key in DIRECTORIES & bounds.keys():
            bounds[key] = compile_directories(bounds[key], custom, spec.timezone)
        self._bounds = {key: value for key, value in bounds.items() if not has_computed(value)}
        self._computed = {key: value for key, value in bounds.items() if has_computed(value)}
        self._make = lru_cache(maxsize=MAX_SANDBOXES)(
            lambda *values: Sandbox(
                **dict(zip(self._computed, values, strict=True)), **self._bounds
            )
        )
        if not self._computed:
            self._make()  # bounds that cannot be used are an error at load

    def find(self, subject: Subject) -> Any:
        """Return the sandbox for a call; raise NotKnown when a part of its bounds is missing."""
        return self._make(*(compute_value(value, subject) for value in self._computed.values()))


def answer_or_wait(judge: Callable[[], Verdict]) -> _Answer:
    """Return a verdict, or an awaitable of it when a custom selector must be awaited first."""
    try:
        return judge()
    except Pending as pending:
        return _answer_later(judge, pending)


async def _answer_later(judge: Callable[[], Verdict], pending: Pending) -> Verdict:
    while True:
        await pending.settle()
        try:
            return judge()
        except Pending as another:
            pending = another


class _Compiler:
    def __init__(
        self,
        custom: CustomSelectors,
        redaction: RedactionPolicy,
        mode: Mode,
        missing_args: MissingArgs,
    ) -> None:
        self.custom = custom
        self.redaction = redaction
        self.mode = mode
        self.missing_args = missing_args
        fused = (Kind.PRE, Kind.POST) if FAST_PATH is not None else ()
        self.fusers = {kind: FAST_PATH.Fuser() for kind in fused if FAST_PATH is not None}

    def compile_contract(self, spec: ContractSpec) -> Contract:
        check, kind = self._compile_check(spec)
        return Contract(
            id=spec.id,
            kind=kind,
            check=check,
            tools=spec.tools,
            effect=spec.effect,
            mode=spec.mode or self.mode,
            source=SOURCES[spec.kind],
            tags=spec.tags,
            metadata=dict(spec.metadata),
            timeout=spec.timeout,
            timeout_effect=spec.timeout_effect,
            approvers=spec.approvers,
            redact=self._compile_redaction(spec),
            shadow=spec.shadow,
            is_unconditional=spec.when == ALWAYS,
            fuse=self.fusers.get(kind),
        )

    def _compile_check(self, spec: ContractSpec) -> tuple[Callable[..., _Answer], Kind]:
        message = compile_message(spec.message, self.custom, self.redaction, spec.timezone)
        is_strict = (spec.missing_args or self.missing_args) == "deny"
        if spec.kind is Kind.SANDBOX:
            return SandboxCheck(Sandboxes(spec, self.custom), message, is_strict), Kind.SANDBOX
        assert spec.when is not None
        roots = {selector.root for leaf in leaves(spec.when) for selector in leaf.selectors}
        check = SessionConditionCheck if "session" in roots else ConditionCheck
        kind = Kind.SESSION if "session" in roots else spec.kind
        when = with_strict_arguments(spec.when) if is_strict else spec.when
        is_post = kind is Kind.POST
        return check(when, self.custom, self.redaction, message, is_post), kind

    def _compile_redaction(self, spec: ContractSpec) -> Callable[..., Any] | None:
        if spec.kind is not Kind.POST or spec.effect != "redact" or spec.when is None:
            return None
        replace = self._replacement(spec.style)
        return redaction_for(spec.when, self.custom, self.redaction.redact_value, replace)

    def _replacement(self, style: Style) -> Replace:
        """Return a function that makes the replacement in a style."""
        if style == "hash":
            return keyed_hash(self.redaction.hash_key or PROCESS_KEY)
        return mask if style == "mask" else redact

    def compile_limits(self, spec: ContractSpec) -> list[Limit]:
        """Return the limits of a session contract."""
        bounds = {name: bound for name, bound in spec.limits.items() if name != "per"}
        limits = ScopedLimits(
            id=spec.id,
            scope=spec.scope,
            per_s=spec.limits.get("per"),
            when=self._compile_when(spec.when),
            effect="approve" if spec.effect == "approve" else "deny",
            message=unescape_braces(spec.message),
            timeout=spec.timeout,
            timeout_effect=spec.timeout_effect,
            approvers=spec.approvers,
            **bounds,
        )
        enforce = (spec.mode or self.mode) == "enforce" and not spec.shadow
        compiled = limits.compile_with(compile_scope(spec.scope, self.custom))
        return [replace(it, enforce=enforce, source="yaml_session") for it in compiled]

    def _compile_when(self, when: Expression | None) -> Callable[[ToolCall], bool] | None:
        """Return the condition of a limit as a function of the call."""
        if when is None:
            return None
        condition = Condition(when, self.custom, self.redaction)
        return lambda call: condition.holds(call, None, None)

    def compile_tool(self, name: str, settings: Mapping[str, Any]) -> ToolEntry:
        compiled = {
            key: {amount: self._compile_amount(spec.value) for amount, spec in value.items()}
            if key in AMOUNT_KEYS
            else value
            for key, value in settings.items()
        }
        return tool_entry(name, compiled)

    def _compile_amount(self, value: float | Selector) -> float | AmountSource:
        return make_source(value, self.custom) if isinstance(value, Selector) else value

    def compile_success_rule(self, spec: SuccessSpec) -> SuccessRule:
        condition = Condition(spec.failure_when, self.custom, self.redaction)
        if spec.message is None:
            return SuccessRule(spec.tools, condition.find_failure, spec.id, spec.retryable)
        message = compile_message(spec.message, self.custom, self.redaction, spec.timezone)
        judge = condition.find_stated_failure(message)
        return SuccessRule(spec.tools, judge, spec.id, spec.retryable, for_model=True)

    def compile_unlisted_rule(self, unlisted: Unlisted | None) -> Contract | None:
        """Return the contract for tools that no table lists; None when they are allowed."""
        if unlisted is None or unlisted == "allow":
            return None
        verb = "may not be called" if unlisted == "deny" else "needs approval"

        def refuse(call: ToolCall) -> Verdict:
            return Verdict.fail(
                f"The tool '{call.tool_name}' is not listed in the policy and {verb}."
            )

        return Contract(
            id="unlisted_tools",
            kind=Kind.PRE,
            check=refuse,
            effect=unlisted,
            mode=self.mode,
            source="unlisted_tools",
            is_unconditional=True,
        )
