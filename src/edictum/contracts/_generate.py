"""Generate Python code for conditions: the fast path of ``_compile``.

All contracts that apply to a tool become one function. Each value they look at is fetched once,
each condition is a Python expression, and all patterns on one text are searched in one pass. Each
condition has its own ``try``, so that an error belongs to its contract.

A missing field is ``None``. A generated test is used only for the exact type it is right for; any
other value goes through ``Leaf.test``, the one definition of each operator. Without this module
contracts are interpreted: the same answers, about fifty times slower for a hundred contracts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edictum.contracts._expressions import All, Expression, Leaf, Not, leaves
from edictum.contracts._operators import REGEX_OPERATORS
from edictum.contracts._regex import Pattern, pattern_set
from edictum.contracts._selectors import (
    TOOL_COUNTERS,
    CustomSelectors,
    Pending,
    Selector,
    Subject,
    find_argument,
    resolver,
    walk,
)
from edictum.core.call import ToolCall
from edictum.core.contract import Contract
from edictum.core.policy import MAX_CACHED_PLANS

INLINE_TYPES = (str, int, float, bool)
MAX_INLINE_PARTS = 8  # alternatives that are written out one after the other
_UNSET = object()

Objections = list[tuple[Contract, Any]]


def compile_condition(
    expression: Expression, custom: CustomSelectors
) -> Callable[[ToolCall, Any, Any], bool]:
    """Return the condition as a function of call, result and session, which may raise."""
    writer = _Writer(custom, [expression])
    code = writer.write(expression)
    lines = ["def holds(call, result, session):", *writer.prelude(), f"return bool({code})"]
    return _define("\n    ".join(lines), "holds", writer.names)


class Fuser:
    """Makes one function of all contracts that apply to a tool, and caches it."""

    def __init__(self) -> None:
        # The contracts are kept with their function because their ids are its key.
        self._cache: dict[
            tuple[int, ...], tuple[tuple[Contract, ...], Callable[..., Objections]]
        ] = {}

    def __call__(self, contracts: tuple[Contract, ...]) -> Callable[..., Objections]:
        key = tuple(map(id, contracts))
        if key not in self._cache:
            while len(self._cache) >= MAX_CACHED_PLANS:  # a model can invent any number of tools
                self._cache.pop(next(iter(self._cache)), None)
            ask = _compile_together(contracts)
            self._cache[key] = contracts, ask
            return ask
        return self._cache[key][1]


def _compile_together(contracts: Sequence[Contract]) -> Callable[..., Objections]:
    """Return a function that asks all contracts, whose checks are ``ConditionCheck``."""
    checks: list[Any] = [contract.check for contract in contracts]
    writer = _Writer(checks[0].custom, [check.expression for check in checks])
    body: list[str] = []
    for contract, check in zip(contracts, checks, strict=True):
        name = writer.add_constant(contract, "c")
        body += [
            "try:",
            f"    if {writer.write(check.expression)}: found = add(found, {name}, call, result)",
            f"except Exception as exc: found = add(found, {name}, call, result, exc)",
        ]
    writer.names["add"] = _add
    lines = ["def ask(call, result=None, session=None):", "found = []", *writer.prelude(), *body]
    return _define("\n    ".join([*lines, "return found"]), "ask", writer.names)


def _add(
    found: Objections,
    contract: Contract,
    call: ToolCall,
    result: Any,
    error: Exception | None = None,
) -> Objections:
    check: Any = contract.check
    try:
        verdict = check.object_to(Subject(call, result), error)
    except Pending:
        verdict = check(call, result)  # asks again once the selector was awaited
    return [*found, (contract, verdict)]


def _define(source: str, name: str, names: dict[str, Any]) -> Callable[..., Any]:
    """Define a function; the source holds text of a bundle only as literals made by ``repr``."""
    exec(compile(source, "<edictum contracts>", "exec"), names)  # noqa: S102 - see above
    function: Callable[..., Any] = names[name]
    return function


class _Writer:
    """Writes one function: values first, then whatever uses them."""

    def __init__(self, custom: CustomSelectors, expressions: Sequence[Expression]) -> None:
        self._custom = custom
        self.names: dict[str, Any] = {
            "UNSET": _UNSET,
            "Subject": Subject,
            "walk": walk,
            "find_argument": find_argument,
        }
        self._eager: dict[Selector, str] = {}
        self._lazy: dict[Selector, str] = {}
        self._prelude: list[str] = []
        self._patterns = _number_patterns(expressions)
        self._hits: dict[Selector, str] = {}
        self._type_checks: set[str] = set()
        self._needs_subject = False

    def prelude(self) -> list[str]:
        """Return the lines that come first in the function."""
        lines = []
        if self._lazy or self._needs_subject:
            lines.append("subject = Subject(call, result, session)")
        if self._lazy:
            lines.append(" = ".join(self._lazy.values()) + " = UNSET")
        if self._hits:
            lines.append(" = ".join(self._hits.values()) + " = None")
        return lines + self._prelude

    def add_constant(self, value: Any, prefix: str = "k") -> str:
        """Return a name for a value, or its literal where Python has one."""
        if type(value) in INLINE_TYPES:
            return repr(value)
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def write(self, expression: Expression) -> str:
        """Return the Python expression for a condition."""
        if isinstance(expression, Leaf):
            return self._write_leaf(expression)
        if isinstance(expression, Not):
            return f"(not {self.write(expression.item)})"
        if not expression.items:
            return "True"
        word = " and " if isinstance(expression, All) else " or "
        if not expression.items:
            return repr(isinstance(expression, All))
        return f"({word.join(self.write(item) for item in expression.items)})"

    def _write_leaf(self, leaf: Leaf) -> str:
        selector = leaf.selector
        name = self._fetch_eagerly(selector)
        if name is not None:
            return self._write_test(leaf, name)
        name = self._lazy.setdefault(selector, f"t{len(self._lazy)}")
        fetch = f"fetch_{name}"
        self.names.setdefault(fetch, resolver(selector, self._custom))
        # Fetches the value on first use; never true.
        fetched = f"({name} if {name} is not UNSET else ({name} := {fetch}(subject))) is UNSET"
        if selector.wild:
            return f"({fetched} or any([{self._write_test(leaf, 'each')} for each in {name}]))"
        return f"({fetched} or {self._write_test(leaf, name)})"

    def _fetch_eagerly(self, selector: Selector) -> str | None:
        """Return the variable of a value that can be fetched up front: cheaply, and without
        raising.
        """
        if selector in self._eager:
            return self._eager[selector]
        if selector.wild or selector.strict or selector.root not in _EAGER:
            return None
        if selector.root in self._custom:
            return None
        name = self._eager[selector] = f"v{len(self._eager)}"
        self._prelude.append(f"{name} = {_EAGER[selector.root](selector.path)}")
        if selector.root == "args" and not selector.as_sent:
            default = f"find_argument(call, {self.add_constant(selector, 's')})"
            self._prelude.append(f"if {name} is None: {name} = {default}")
        return name

    def _write_test(self, leaf: Leaf, name: str) -> str:
        """Return the test of one value; an operator without a generated test is called itself."""
        test = self.add_constant(leaf.test, "test")
        if leaf.computed is not None:
            self._needs_subject = True
            return f"{test}({name}, subject)"
        slow = f"{test}({name})"
        if leaf.operator.custom:
            return slow
        operator = leaf.operator.name
        if operator in REGEX_OPERATORS:
            return f"({self._write_search(leaf, name)} if {self._is_of(name, 'str')} else {slow})"
        if operator in _TYPED_TESTS and (operator != "contains" or type(leaf.value) is str):
            kind, write = _TYPED_TESTS[operator]
            return f"({write(leaf, name)} if {self._is_of(name, kind)} else {slow})"
        if operator in _EQUALITY_SIGNS and leaf.if_missing is not None:
            return self._write_comparison(leaf, name)
        if operator == "exists":
            return f"({name} is not None)" if leaf.value else f"({name} is None)"
        return slow

    def _is_of(self, name: str, kind: str) -> str:
        """Return a check for an exact type; for an eager value it is made once, in the prelude."""
        if not name.startswith("v"):
            return f"{name}.__class__ is {kind}"
        checked = f"{name}_{kind}"
        if checked not in self._type_checks:
            self._type_checks.add(checked)
            self._prelude.append(f"{checked} = type({name}) is {kind}")
        return checked

    def _write_comparison(self, leaf: Leaf, name: str) -> str:
        sign = _EQUALITY_SIGNS[leaf.operator.name]
        value = tuple(leaf.value) if sign.endswith("in") else leaf.value
        inline = isinstance(value, tuple) and all(type(item) in INLINE_TYPES for item in value)
        code = f"{name} {sign} {repr(value) if inline else self.add_constant(value)}"
        if leaf.operator.negative and not leaf.if_missing:
            return f"({name} is not None and {code})"
        return f"({code})"

    def _write_search(self, leaf: Leaf, name: str) -> str:
        patterns = _patterns_of(leaf)
        tests = [f"{p.literal!r} in {name}" for p in patterns if p.literal is not None]
        engine = [pattern for pattern in patterns if pattern.literal is None]
        if engine:
            tests.append(self._write_engine_search(leaf.selector, engine, name))
        code = f"({' or '.join(tests)})"
        return f"(not {code})" if leaf.operator.name == "matches_none" else code

    def _write_engine_search(self, selector: Selector, patterns: list[Pattern], name: str) -> str:
        """Return a search that runs once for the patterns of all contracts on this value."""
        known = self._patterns[selector]
        if selector.wild or len(known) == 1:
            sources = tuple(pattern.source for pattern in patterns)
            search = patterns[0].search if len(sources) == 1 else pattern_set(sources).any
            return f"{self.add_constant(search, 'search')}({name})"
        hits = self._hits.setdefault(selector, f"h{len(self._hits)}")
        self.names.setdefault(f"find_{hits}", pattern_set(tuple(known)).hits)
        found = f"({hits} if {hits} is not None else ({hits} := find_{hits}({name})))"
        numbers = frozenset(known[pattern.source] for pattern in patterns)
        if len(numbers) == 1:
            return f"{next(iter(numbers))} in {found}"
        return f"not {self.add_constant(numbers)}.isdisjoint({found})"


def _patterns_of(leaf: Leaf) -> tuple[Pattern, ...]:
    return (leaf.prepared,) if leaf.operator.name == "matches" else leaf.prepared


def _number_patterns(expressions: Sequence[Expression]) -> dict[Selector, dict[str, int]]:
    """Return the patterns that need the engine, by selector, numbered as ``PatternSet`` does."""
    found: dict[Selector, dict[str, int]] = {}
    for leaf in (leaf for expression in expressions for leaf in leaves(expression)):
        if leaf.operator.name in REGEX_OPERATORS:
            numbers = found.setdefault(leaf.selector, {})
            for pattern in _patterns_of(leaf):
                if pattern.literal is None:
                    numbers.setdefault(pattern.source, len(numbers) + 1)
    return found


def _principal_code(path: tuple[str, ...]) -> str:
    found = f"walk(call.principal.claims, {path[1:]!r})"
    if path[0] != "claims":
        found = f"call.principal.{path[0]}"
    return f"{found} if call.principal is not None else None"


def _session_code(path: tuple[str, ...]) -> str:
    if path[0] in TOOL_COUNTERS:
        return f"session.{path[0]}.get({path[1]!r}, 0)"
    return f"int(session.{path[0]})"


_EAGER: dict[str, Callable[[tuple[str, ...]], str]] = {
    "args": lambda path: (
        f"call.args.get({path[0]!r})" if len(path) == 1 else f"walk(call.args, {path!r})"
    ),
    "metadata": lambda path: f"walk(call.metadata, {path!r})",
    "principal": _principal_code,
    "session": _session_code,
    "environment": lambda _path: "call.environment",
    "tool": lambda _path: "call.tool_name",
}


def _write_contains_any(leaf: Leaf, name: str) -> str:
    if len(leaf.value) <= MAX_INLINE_PARTS:
        return "(" + " or ".join(f"{part!r} in {name}" for part in leaf.value) + ")"
    return f"any([part in {name} for part in {leaf.value!r}])"


_EQUALITY_SIGNS = {"equals": "==", "not_equals": "!=", "in": "in", "not_in": "not in"}
# By operator: the type for which the test is right, and the test.
_TYPED_TESTS: dict[str, tuple[str, Callable[[Leaf, str], str]]] = {
    "gt": ("int", lambda leaf, name: f"{name} > {leaf.value!r}"),
    "gte": ("int", lambda leaf, name: f"{name} >= {leaf.value!r}"),
    "lt": ("int", lambda leaf, name: f"{name} < {leaf.value!r}"),
    "lte": ("int", lambda leaf, name: f"{name} <= {leaf.value!r}"),
    "contains": ("str", lambda leaf, name: f"{leaf.value!r} in {name}"),
    "contains_any": ("str", _write_contains_any),
    "starts_with": ("str", lambda leaf, name: f"{name}.startswith({leaf.value!r})"),
    "ends_with": ("str", lambda leaf, name: f"{name}.endswith({leaf.value!r})"),
    "equals_ignore_case": ("str", lambda leaf, name: f"{name}.casefold() == {leaf.prepared!r}"),
}
