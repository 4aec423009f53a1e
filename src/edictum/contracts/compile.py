"""From a Bundle to the parts of a Policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from edictum.contracts.bundle import Bundle, ContractSpec, SuccessSpec, Unlisted
from edictum.contracts.explain import explain, shown
from edictum.contracts.expressions import All, AnyOf, Expression, Leaf, leaves
from edictum.contracts.generate import Custom, compile_condition, compile_together
from edictum.contracts.load import no_collection
from edictum.contracts.messages import Message, compile_message, literal
from edictum.contracts.parse import PLAIN, Dialect
from edictum.contracts.redact import redaction_for
from edictum.contracts.selectors import Subject, resolver
from edictum.core._records import replace
from edictum.core.call import ToolCall
from edictum.core.contract import PASS, Contract, Kind, Mode, Verdict
from edictum.core.decide import describe
from edictum.core.limits import (
    SESSION_FIELDS,
    TOOL_FIELDS,
    Limit,
    Metric,
    OperationLimits,
    millionths,
)
from edictum.core.policy import MAX_CACHED_PLANS, SuccessRule, ToolEntry, tool_entry
from edictum.core.redaction import RedactionPolicy, shorten
from edictum.explanation import ConditionNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What a bundle adds to a policy."""

    contracts: tuple[Contract, ...] = ()
    session_limits: tuple[Limit, ...] = ()
    success_rules: tuple[SuccessRule, ...] = ()
    tools: Mapping[str, ToolEntry] = field(default_factory=dict)
    unlisted: Contract | None = None
    mode: Mode = "enforce"


def compile_bundle(
    bundle: Bundle,
    dialect: Dialect = PLAIN,
    *,
    mode: Mode | None = None,
    redaction: RedactionPolicy | None = None,
) -> Compiled:
    """The contracts, limits, tool entries and success rules of a bundle. ``mode`` replaces the
    bundle's default mode.
    """
    default: Mode = mode or bundle.mode or "enforce"
    compiler = _Compiler(dialect.selectors, redaction or RedactionPolicy(), default)
    specs = [spec for spec in bundle.contracts if spec.enabled]
    with no_collection():
        return _compiled(compiler, bundle, specs, default)


def _compiled(
    compiler: _Compiler, bundle: Bundle, specs: Sequence[ContractSpec], default: Mode
) -> Compiled:
    return Compiled(
        contracts=tuple(compiler.contract(spec) for spec in specs if spec.kind is not Kind.SESSION),
        session_limits=tuple(
            limit for spec in specs if spec.kind is Kind.SESSION for limit in compiler.limits(spec)
        ),
        success_rules=tuple(compiler.success_rule(spec) for spec in bundle.success),
        tools={name: tool_entry(name, settings) for name, settings in bundle.tools.items()},
        unlisted=compiler.unlisted(bundle.unlisted_tools),
        mode=default,
    )


def limits_with(limits: OperationLimits | None, session_limits: Sequence[Limit]) -> OperationLimits:
    """The guard's limits beside a bundle's: what the bundle sets replaces a default, and stands
    beside what was given in Python.
    """
    merged = {
        name: getattr(limits or OperationLimits(), name) for name in (*SESSION_FIELDS, *TOOL_FIELDS)
    }
    lasting = [limit for limit in session_limits if limit.enforce and limit.window_s is None]
    for name, metric in SESSION_FIELDS.items():
        bounds = [limit.maximum for limit in lasting if limit.metric is metric and not limit.scope]
        if bounds:
            given = [merged[name]] if limits is not None and merged[name] is not None else []
            merged[name] = min([*bounds, *given])
    for name, metric in TOOL_FIELDS.items():
        table = dict(merged[name])
        for limit in lasting:
            if limit.metric is metric and limit.scope:
                table[limit.scope] = min(limit.maximum, table.get(limit.scope, limit.maximum))
        merged[name] = table
    return replace(limits or OperationLimits(), **merged)


class Condition:
    """The check of a contract with a ``when``. It can be asked alone; ``Fuser`` asks many
    together.
    """

    def __init__(
        self, expression: Expression, message: Message, custom: Custom, redaction: RedactionPolicy
    ) -> None:
        self.expression = expression
        self.message = message
        self.custom = custom
        self.redaction = redaction

    def explain(self, call: ToolCall, result: Any, session: Any) -> ConditionNode:
        return explain(self.expression, Subject(call, result, session), self.custom, self.redaction)

    @cached_property
    def holds(self) -> Callable[[ToolCall, Any, Any], bool]:
        return compile_condition(self.expression, self.custom)

    def __call__(self, call: ToolCall, result: Any = None, session: Any = None) -> Verdict:
        try:
            held = self.holds(call, result, session)
        except Exception as exc:
            return self.error(Subject(call, result, session), exc)
        return Verdict(False, self.message(Subject(call, result, session))) if held else PASS

    def error(self, subject: Subject, exc: Exception) -> Verdict:
        """A condition that cannot be judged counts as met, and says why."""
        return Verdict.fail(self.message(subject), policy_error=True, error_detail=describe(exc))


class SessionCondition(Condition):
    """A condition on the session's counters, asked when the call's slot is held."""

    def __call__(self, view: Any) -> Verdict:  # type: ignore[override]
        return super().__call__(view.call, None, view)


class Fuser:
    """Makes one function of the contracts that apply to a tool. What was made is kept: many tools
    share the same contracts.
    """

    def __init__(self) -> None:
        self._made: dict[
            tuple[int, ...], tuple[tuple[Contract, ...], Callable[..., list[tuple[Contract, Any]]]]
        ] = {}

    def __call__(
        self, contracts: tuple[Contract, ...]
    ) -> Callable[..., list[tuple[Contract, Any]]]:
        key = tuple(map(id, contracts))
        if key not in self._made:
            while (
                len(self._made) >= MAX_CACHED_PLANS
            ):  # tool names come from a model, which can invent any number of them
                self._made.pop(next(iter(self._made)), None)
            checks: list[Condition] = [contract.check for contract in contracts]  # type: ignore[misc]
            custom = checks[0].custom
            # The contracts are kept with the function, because their ids are its key.
            made = compile_together(
                [check.expression for check in checks], custom, contracts, _failed, _erred
            )
            self._made[key] = contracts, made
            return made
        return self._made[key][1]


def _failed(
    found: list[tuple[Contract, Any]] | None, contract: Contract, call: ToolCall, result: Any
) -> list[tuple[Contract, Any]]:
    check: Condition = contract.check  # type: ignore[assignment]
    answer = (contract, Verdict(False, check.message(Subject(call, result))))
    return [answer] if found is None else [*found, answer]


def _erred(
    found: list[tuple[Contract, Any]] | None,
    contract: Contract,
    call: ToolCall,
    result: Any,
    exc: Exception,
) -> list[tuple[Contract, Any]]:
    check: Condition = contract.check  # type: ignore[assignment]
    answer = (contract, check.error(Subject(call, result), exc))
    return [answer] if found is None else [*found, answer]


MAX_REASON_VALUE = 100
SOURCES = {
    Kind.PRE: "yaml_precondition",
    Kind.POST: "yaml_postcondition",
    Kind.SANDBOX: "yaml_sandbox",
}


class SandboxCheck:
    """The check of a sandbox contract."""

    def __init__(self, violation: Callable[[ToolCall], str | None], message: Message) -> None:
        self.violation = violation
        self.message = message

    def __call__(self, call: ToolCall) -> Verdict:
        violation = self.violation(call)
        return (
            PASS
            if violation is None
            else Verdict.fail(self.message(Subject(call, violation=violation)), violation=violation)
        )


class _Compiler:
    def __init__(self, custom: Custom, redaction: RedactionPolicy, mode: Mode) -> None:
        self.custom = custom
        self.redaction = redaction
        self.mode = mode
        self.fuse = {Kind.PRE: Fuser(), Kind.POST: Fuser()}

    def contract(self, spec: ContractSpec) -> Contract:
        check, kind = self._check(spec)
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
            redact=self._redact(spec),
            shadow=spec.shadow,
            fuse=self.fuse.get(kind),
        )

    def _check(self, spec: ContractSpec) -> tuple[Callable[..., Verdict], Kind]:
        message = compile_message(spec.message, self.custom, self.redaction)
        if spec.kind is Kind.SANDBOX:
            from edictum.contracts.sandbox import (
                Sandbox,
            )  # the shell reader is large, and only bundles with a sandbox need it

            bounds: dict[str, Any] = {name: list(values) for name, values in spec.bounds.items()}
            return SandboxCheck(Sandbox(**bounds).violation, message), Kind.SANDBOX
        assert spec.when is not None
        if any(leaf.selector.root == "session" for leaf in leaves(spec.when)):
            return SessionCondition(spec.when, message, self.custom, self.redaction), Kind.SESSION
        return Condition(spec.when, message, self.custom, self.redaction), spec.kind

    def _redact(self, spec: ContractSpec) -> Callable[..., Any] | None:
        if spec.kind is not Kind.POST or spec.effect != "redact" or spec.when is None:
            return None
        return redaction_for(spec.when, self.custom, self.redaction.redact_value)

    def limits(self, spec: ContractSpec) -> list[Limit]:
        enforce = (spec.mode or self.mode) == "enforce" and not spec.shadow
        message = literal(spec.message)
        common: dict[str, Any] = {
            "name": spec.id,
            "window_s": spec.limits.get("per"),
            "enforce": enforce,
            "source": "yaml_session",
            "message": message,
            "contract_id": spec.id,
        }
        limits = [
            Limit(metric=metric, maximum=spec.limits[name], **common)
            for name, metric in SESSION_FIELDS.items()
            if name in spec.limits
        ]
        for name, metric in TOOL_FIELDS.items():
            limits += [
                Limit(metric=metric, maximum=bound, scope=tool, **common)
                for tool, bound in spec.limits.get(name, {}).items()
            ]
        return limits + [
            Limit(
                metric=Metric.AMOUNT,
                amount=amount,
                maximum=millionths(amount, bound, down=True),
                **common,
            )
            for amount, bound in _budgets(spec.limits).items()
        ]

    def success_rule(self, spec: SuccessSpec) -> SuccessRule:
        holds = compile_later(spec.failure_when, self.custom)
        expression, custom, redaction = spec.failure_when, self.custom, self.redaction

        def judge(call: ToolCall, value: Any) -> str | None:
            return (
                reason(expression, Subject(call, value), custom, redaction)
                if holds(call, value, None)
                else None
            )

        return SuccessRule(spec.tools, judge, spec.id)

    def unlisted(self, unlisted: Unlisted | None) -> Contract | None:
        if unlisted is None or unlisted == "allow":
            return None
        verb = "may not be called" if unlisted == "deny" else "needs approval"

        def verdicts(call: ToolCall) -> Verdict:
            return Verdict.fail(
                f"The tool '{call.tool_name}' is not listed in the policy and {verb}."
            )

        return Contract(
            id="unlisted_tools",
            kind=Kind.PRE,
            check=verdicts,
            effect=unlisted,
            mode=self.mode,
            source="unlisted_tools",
        )


def compile_later(expression: Expression, custom: Custom) -> Callable[[ToolCall, Any, Any], bool]:
    """The condition as a function that is made when it is first needed: many bundles are loaded,
    few contracts are reached.
    """
    made: list[Callable[[ToolCall, Any, Any], bool]] = []

    def holds(call: ToolCall, result: Any, session: Any) -> bool:
        if not made:
            made.append(compile_condition(expression, custom))
        return made[0](call, result, session)

    return holds


def reason(
    expression: Expression, subject: Subject, custom: Custom, redaction: RedactionPolicy
) -> str:
    """Why a condition holds: its leaves that do, each with the value that made it hold. Redacted
    and bounded, as messages are.
    """
    held = [_because(leaf, found, redaction) for leaf, found in _held(expression, subject, custom)]
    return "; ".join(held[:3]) or "the condition of the rule holds"


def _because(leaf: Leaf, found: Any, redaction: RedactionPolicy) -> str:
    wanted = shorten(repr(leaf.value), MAX_REASON_VALUE)
    return (
        f"{leaf.selector.text} is {shown(leaf, found, redaction, MAX_REASON_VALUE)}"
        f" ({leaf.operator.name} {wanted})"
    )


def _held(expression: Expression, subject: Subject, custom: Custom) -> list[tuple[Leaf, Any]]:
    if isinstance(expression, Leaf):
        return _holding(expression, subject, custom)
    if isinstance(expression, (All, AnyOf)):
        return [found for item in expression.items for found in _held(item, subject, custom)]
    return []


def _holding(leaf: Leaf, subject: Subject, custom: Custom) -> list[tuple[Leaf, Any]]:
    """The leaf with the value that it holds for; with ``[*]``, the first element that it does."""
    try:
        found = resolver(leaf.selector, custom)(subject)
        values = found if leaf.selector.wild else [found]
        return [(leaf, value) for value in values if leaf.test(value)][:1]
    except Exception:
        return []


def _budgets(limits: Mapping[str, Any]) -> dict[str, float]:
    """Amounts by name; ``max_cost`` is the amount called cost, and the smaller one holds when both
    name it.
    """
    budgets: dict[str, float] = dict(limits.get("max_amounts", {}))
    if "max_cost" in limits:
        budgets["cost"] = min(limits["max_cost"], budgets.get("cost", limits["max_cost"]))
    return budgets
