"""Check contracts against the tools that they are for.

A contract that names an argument which its tool does not have never fires; nor does one that
compares an argument with a value that it cannot have. That is an error if the contract names the
tool itself and the tool declares its arguments, else a warning: a bundle may serve other agents
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edictum.contracts._problems import join_words, suggest
from edictum.contracts._reach import is_glob
from edictum.contracts._selectors import note_warning
from edictum.core.parameters import ANY_ITEM, Declaration, declare
from edictum.core.policy import Plan, Policy
from edictum.errors import EdictumConfigError

CHECKED_KEY: Final = "checked against tool"
SPELLING: Final = 0.75  # of 1, from which one name is taken for a misspelling of another
_NUMBERS = frozenset({"number", "integer", "boolean"})
_TEXTS = frozenset({"string"})
_SIZED = frozenset({"string", "array", "object"})
# By operator: the types that it can judge, and what they are called.
_JUDGED: dict[str, tuple[frozenset[str], str]] = {
    **dict.fromkeys(("gt", "gte", "lt", "lte"), (_NUMBERS, "a number")),
    **dict.fromkeys(("contains", "contains_any", "starts_with", "ends_with"), (_TEXTS, "text")),
    **dict.fromkeys(("matches", "matches_any", "matches_none"), (_TEXTS, "text")),
    **dict.fromkeys(("equals_ignore_case", "in_cidr"), (_TEXTS, "text")),
    **dict.fromkeys(
        ("length_gt", "length_gte", "length_lt", "length_lte", "empty"),
        (_SIZED, "text, a list or a mapping"),
    ),
}
_WORDS = {
    "string": "text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "null",
}
_TYPES_OF: dict[type, frozenset[str]] = {
    str: _TEXTS,
    bool: _NUMBERS,
    int: _NUMBERS,
    float: _NUMBERS,
    list: frozenset({"array"}),
    tuple: frozenset({"array"}),
    dict: frozenset({"object"}),
}


@dataclass(frozen=True, slots=True)
class ToolProblem:
    """A conflict between a contract and a tool. ``certain`` if it cannot be intended."""

    text: str
    certain: bool = True
    is_telling: bool = True  # worth a line in the log


@dataclass(slots=True)
class ToolFindings:
    """The findings of a check; ``logged`` are the warnings that belong in the log."""

    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)

    def add(self, problem: ToolProblem, *, exact: bool) -> None:
        if problem.certain and exact:
            self.errors.append(problem.text)
            return
        self.warnings.append(problem.text)
        if problem.is_telling:
            self.logged.append(problem.text)

    def raise_errors(self) -> None:
        if self.errors:
            hint = "Correct the contracts, or the names of the tools' parameters."
            raise EdictumConfigError("\n".join(dict.fromkeys(self.errors)), hint=hint)


def check_contracts(policy: Policy, tools: Any) -> ToolFindings:
    """Return what is wrong between the contracts of a policy and all tools of an agent."""
    named = name_tools(tools)
    findings = ToolFindings()
    for name, parameters in named.items():
        found = check_tool(policy, name, parameters)
        findings.errors += found.errors
        findings.warnings += found.warnings
        findings.logged += found.logged
    for contract in policy.contracts:
        for name in contract.tools:
            if not is_glob(name) and name not in named:
                guess = suggest(name, named, SPELLING)
                text = f"contract '{contract.id}' is for '{name}', which is not one of the tools."
                problem = ToolProblem(f"{text} {guess}".rstrip(), False, bool(guess))
                findings.add(problem, exact=True)
    return findings


def name_tools(tools: Any) -> dict[str, Any]:
    """Return tools by name, from a dict or from a list of functions and ToolSpecs."""
    if isinstance(tools, Mapping):
        return dict(tools)
    named: dict[str, Any] = {}
    for tool in tools if isinstance(tools, Iterable) else [tools]:
        name = getattr(tool, "name", None) or getattr(tool, "__name__", None)
        if not isinstance(name, str):
            raise EdictumConfigError(
                f"The tool {tool!r:.80} has no name.", hint="Pass a dict of names to tools."
            )
        named[name] = tool
    return named


def check_tool(policy: Policy, name: str, parameters: Any) -> ToolFindings:
    """Return what is wrong between the contracts of a policy and one tool; worked out once."""
    plan = policy.plan(name)
    known, found = plan.memo.get(CHECKED_KEY, (None, None))
    if found is None or known is not parameters:
        found = _check_plan(plan, declare(parameters))
        plan.memo[CHECKED_KEY] = parameters, found
    return found  # type: ignore[no-any-return]  # put in above


def _check_plan(plan: Plan, declared: Declaration) -> ToolFindings:
    findings = ToolFindings()
    for contract in (*plan.before, *plan.session, *plan.after):
        for problem in _check_condition(contract.id, contract.check, plan.tool, declared):
            findings.add(problem, exact=plan.tool in contract.tools)
    for rule in plan.success_rules:
        check = getattr(rule.judge, "__self__", None)
        for problem in _check_condition(rule.name, check, plan.tool, declared):
            findings.add(problem, exact=plan.tool in rule.tools)
    return findings


def _check_condition(
    contract_id: str, check: Any, tool: str, declared: Declaration
) -> Iterator[ToolProblem]:
    """Check the conditions of a contract on arguments; the conditions of a check in Python are
    unknown.
    """
    list_leaves = getattr(check, "list_leaves", None)
    leaves = () if list_leaves is None else list_leaves()
    about = f"contract '{contract_id}':"
    for leaf in leaves:
        if leaf.selector.root == "args":
            yield from _check_leaf(_Place(about, tool, leaf.selector), leaf, declared)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a problem is, in words."""

    about: str
    tool: str
    selector: Any

    def report(self, problem: str, *, certain: bool = True, is_telling: bool = True) -> ToolProblem:
        return ToolProblem(f"{self.about} {problem}", certain, is_telling)


def _check_leaf(place: _Place, leaf: Any, declared: Declaration) -> Iterator[ToolProblem]:
    found = _walk(place, declared)
    if isinstance(found, ToolProblem):
        yield found
    elif found is not None:
        yield from _check_comparison(place, leaf, found)
    if not isinstance(found, ToolProblem) and _is_default_unknown(leaf.selector, declared):
        note_warning(place.tool, leaf.selector)
        problem = f"the default of {leaf.selector.text} of '{place.tool}' is not known: a call that"
        remedy = (
            "State the default in the tool's signature or schema, or write 'missing_args: deny'."
        )
        yield place.report(f"{problem} leaves it out is not judged. {remedy}", certain=False)


def _is_default_unknown(selector: Any, declared: Declaration) -> bool:
    """Return whether a call that left the argument out would not be judged by what runs."""
    if selector.as_sent or selector.strict:
        return False
    return declared.is_unknown(declared.fill({}), selector.path[:1])


def _walk(place: _Place, declared: Declaration) -> Declaration | ToolProblem | None:
    """Return the declaration of what a selector finds, or why it finds nothing; None: unknown."""
    shown = "args"
    for key in place.selector.path:
        types = declared.types()
        wanted = {"array"} if key == ANY_ITEM else {"object", "array"}
        if types is not None and types.isdisjoint(wanted):
            kind, inner = _describe_types(types), "elements" if key == ANY_ITEM else "fields"
            problem = f"{shown} of '{place.tool}' is {kind} and has no {inner}"
            return place.report(f"{problem} ('{place.selector.text}').")
        found = declared.item() if key == ANY_ITEM else declared.find(key)[0]
        if found is None:
            return _check_spelling(place, shown, key, declared)
        declared, shown = found, f"{shown}{key}" if key == ANY_ITEM else f"{shown}.{key}"
    return declared


def _check_spelling(
    place: _Place, shown: str, key: str, declared: Declaration
) -> ToolProblem | None:
    """Return the problem of a name that is not declared, if it may not or seems not to be meant."""
    names = [f"{shown}.{name}" for name in declared.names()]
    if f"{shown}.{key}" in names or key.isdecimal():
        return None
    guess, closed = suggest(f"{shown}.{key}", names, SPELLING), declared.is_closed()
    if not closed and not guess:
        return None
    what = "an argument" if shown == "args" else "a field"
    listed = f"Known: {join_words(names)}." if names else "It takes none."
    problem = f"'{shown}.{key}' is not {what} of '{place.tool}'. {guess}{listed}"
    return place.report(problem, certain=closed)


def _check_comparison(place: _Place, leaf: Any, declared: Declaration) -> Iterator[ToolProblem]:
    types, operator = declared.types(), leaf.operator.name
    if types is None or leaf.operator.custom:
        return
    name, kind = f"{leaf.selector.text} of '{place.tool}'", _describe_types(types)
    judged, wanted = _JUDGED.get(operator, (types, ""))
    if types.isdisjoint(judged):
        yield place.report(f"'{operator}' judges {wanted}, and {name} is {kind}.")
    if operator not in ("equals", "not_equals", "in", "not_in"):
        return
    values = leaf.value if operator in ("in", "not_in") else (leaf.value,)
    choices = declared.choices()
    if any(_can_be(value, types, choices) for value in values):
        return
    is_one_of = kind if choices is None else f"one of {join_words(map(repr, choices))}"
    unlike = " or ".join(repr(value) for value in values)
    yield place.report(f"{name} can never be {unlike}: it is {is_one_of}.")


def _can_be(value: Any, types: frozenset[str], choices: list[Any] | None) -> bool:
    kinds = _TYPES_OF.get(type(value))
    if kinds is None:  # null, or what is known only when the call is made
        return True
    if choices is not None:
        return any(value == choice for choice in choices)
    if isinstance(value, float) and not value.is_integer() and "number" not in types:
        return False
    return not types.isdisjoint(kinds)


def _describe_types(types: frozenset[str]) -> str:
    told = types - {"null"} or types
    return " or ".join(_WORDS.get(name, name) for name in sorted(told))
