"""Compile a Bundle into the parts of a Policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from secrets import token_bytes
from types import ModuleType
from typing import Any

from edictum.contracts._bundle import Bundle, ContractSpec, Style, SuccessSpec, Unlisted
from edictum.contracts._explain import explain, reason_for
from edictum.contracts._expressions import Expression, evaluate, leaves
from edictum.contracts._language import Language
from edictum.contracts._load import pause_collection
from edictum.contracts._messages import RenderMessage, compile_message, unescape_braces
from edictum.contracts._redact import redaction_for
from edictum.contracts._selectors import CustomSelectors, Subject
from edictum.core.call import ToolCall
from edictum.core.contract import PASS, Contract, Kind, Mode, Verdict
from edictum.core.decide import describe
from edictum.core.limits import Limit, OperationLimits
from edictum.core.policy import SuccessRule, ToolEntry, tool_entry
from edictum.core.redaction import RedactionPolicy
from edictum.core.replacements import Replace, keyed_hash, mask, redact
from edictum.explanation import ConditionNode

SOURCES = {
    Kind.PRE: "yaml_precondition",
    Kind.POST: "yaml_postcondition",
    Kind.SANDBOX: "yaml_sandbox",
}
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
    compiler = _Compiler(language.selectors, redaction, mode)
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
            tools={name: tool_entry(name, settings) for name, settings in bundle.tools.items()},
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
        """Made on first use: many contracts are loaded, few are reached."""
        if FAST_PATH is not None:
            generated: Callable[[ToolCall, Any, Any], bool] = FAST_PATH.compile_condition(
                self.expression, self.custom
            )
            return generated
        return lambda call, result, session: evaluate(
            self.expression, Subject(call, result, session), self.custom
        )

    def explain(self, call: ToolCall, result: Any, session: Any) -> ConditionNode:
        return explain(self.expression, Subject(call, result, session), self.custom, self.redaction)

    def find_failure(self, call: ToolCall, value: Any) -> str | None:
        """Return why the condition holds, for a success rule; None when it does not."""
        if not self.holds(call, value, None):
            return None
        return reason_for(self.expression, Subject(call, value), self.custom, self.redaction)


@dataclass(eq=False)
class ConditionCheck(Condition):
    """The check of a contract with a ``when``."""

    message: RenderMessage

    def __call__(self, call: ToolCall, result: Any = None, session: Any = None) -> Verdict:
        try:
            held = self.holds(call, result, session)
        except Exception as exc:
            return self.object_to(Subject(call, result, session), exc)
        return self.object_to(Subject(call, result, session)) if held else PASS

    def object_to(self, subject: Subject, error: Exception | None = None) -> Verdict:
        """Return the verdict of a condition that holds; one that cannot be judged counts as met."""
        if error is None:
            return Verdict(False, self.message(subject))
        return Verdict.fail(self.message(subject), policy_error=True, error_detail=describe(error))


class SessionConditionCheck(ConditionCheck):
    """A check that reads the session's counters, made while the call's slot is held."""

    def __call__(self, view: Any) -> Verdict:  # type: ignore[override]  # session checks get a view
        return super().__call__(view.call, None, view)


@dataclass(eq=False)
class SandboxCheck:
    """The check of a sandbox contract."""

    find_violation: Callable[[ToolCall], str | None]
    message: RenderMessage

    def __call__(self, call: ToolCall) -> Verdict:
        violation = self.find_violation(call)
        if violation is None:
            return PASS
        return Verdict.fail(self.message(Subject(call, violation=violation)), violation=violation)


class _Compiler:
    def __init__(self, custom: CustomSelectors, redaction: RedactionPolicy, mode: Mode) -> None:
        self.custom = custom
        self.redaction = redaction
        self.mode = mode
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
            redact=self._compile_redaction(spec),
            shadow=spec.shadow,
            fuse=self.fusers.get(kind),
        )

    def _compile_check(self, spec: ContractSpec) -> tuple[Callable[..., Verdict], Kind]:
        message = compile_message(spec.message, self.custom, self.redaction)
        if spec.kind is Kind.SANDBOX:
            # The shell reader is large, and only bundles with a sandbox need it.
            from edictum.contracts.sandbox import Sandbox

            return SandboxCheck(Sandbox(**spec.bounds).violation, message), Kind.SANDBOX
        assert spec.when is not None
        reads_session = any(leaf.selector.root == "session" for leaf in leaves(spec.when))
        check = SessionConditionCheck if reads_session else ConditionCheck
        kind = Kind.SESSION if reads_session else spec.kind
        return check(spec.when, self.custom, self.redaction, message), kind

    def _compile_redaction(self, spec: ContractSpec) -> Callable[..., Any] | None:
        if spec.kind is not Kind.POST or spec.effect != "redact" or spec.when is None:
            return None
        replace = self._replacement(spec.style)
        return redaction_for(spec.when, self.custom, self.redaction.redact_value, replace)

    def _replacement(self, style: Style) -> Replace:
        """Return what a style shows of what was taken out."""
        if style == "hash":
            return keyed_hash(self.redaction.hash_key or PROCESS_KEY)
        return mask if style == "mask" else redact

    def compile_limits(self, spec: ContractSpec) -> list[Limit]:
        """Return the limits of a session contract."""
        bounds = {name: bound for name, bound in spec.limits.items() if name != "per"}
        limits = OperationLimits(**{"max_attempts": None, "max_tool_calls": None, **bounds})
        return [
            replace(
                limit,
                name=spec.id,
                window_s=spec.limits.get("per"),
                enforce=(spec.mode or self.mode) == "enforce" and not spec.shadow,
                source="yaml_session",
                message=unescape_braces(spec.message),
                contract_id=spec.id,
            )
            for limit in limits.compiled()
        ]

    def compile_success_rule(self, spec: SuccessSpec) -> SuccessRule:
        condition = Condition(spec.failure_when, self.custom, self.redaction)
        return SuccessRule(spec.tools, condition.find_failure, spec.id)

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
        )
