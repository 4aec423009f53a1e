"""From conditions to Python code.

All contracts that apply to a tool become one function: every value that they look at is fetched once, every condition is a plain
Python expression, and all patterns on one text are searched for in one pass. The function returns the contracts that do not
plainly agree. Each condition has its own ``try``, which costs nothing until something raises: an error belongs to its contract.

A missing field is ``None``. A fast path is only taken for the exact type that it is right for; everything else (another type, a
missing field) goes through ``Leaf.test``, so there is one definition of what an operator means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edictum.contracts.expressions import All, Expression, Leaf, Not, leaves
from edictum.contracts.operators import REGEX_OPERATORS
from edictum.contracts.regex import Pattern, pattern_set
from edictum.contracts.selectors import TOOL_COUNTERS, Selector, Subject, resolver, walk
from edictum.core.call import ToolCall

UNSET = object()
INLINE = (str, int, float, bool)
MAX_INLINE = 8  # alternatives that are written out one after the other
_COMPARISONS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}

Custom = Mapping[str, Callable[[ToolCall], Any]]


class Writer:
    """Writes one function: values first, then whatever uses them."""

    def __init__(self, custom: Custom, everything: Sequence[Expression]) -> None:
        self._custom = custom
        self.names: dict[str, Any] = {"UNSET": UNSET, "Subject": Subject, "walk": walk}
        self._eager: dict[Selector, str] = {}
        self._lazy: dict[Selector, str] = {}
        self._prelude: list[str] = []
        self._needs: set[str] = set()
        self._patterns = _patterns_by_selector(everything)
        self._hits: dict[Selector, str] = {}

    def prelude(self) -> list[str]:
        """The lines that come first in the function."""
        lines = []
        if "args" in self._needs:
            lines.append("args = call.args")
        if "principal" in self._needs:
            lines.append("principal = call.principal")
        if self._lazy:
            lines.append("subject = Subject(call, result, session)")
            lines.append(" = ".join(self._lazy.values()) + " = UNSET")
        if self._hits:
            lines.append(" = ".join(self._hits.values()) + " = None")
        return lines + self._prelude

    def constant(self, value: Any, kind: str = "k") -> str:
        """A name for a value, or the value itself where Python can write it down."""
        if type(value) in INLINE:
            return repr(value)
        name = f"{kind}{len(self.names)}"
        self.names[name] = value
        return name

    # --- Expressions ------------------------------------------------------------------------------------------------------

    def write(self, expression: Expression) -> str:
        if isinstance(expression, Leaf):
            return self._leaf(expression)
        if isinstance(expression, Not):
            return f"(not {self.write(expression.item)})"
        word = " and " if isinstance(expression, All) else " or "
        return f"({word.join(self.write(item) for item in expression.items)})"

    def _leaf(self, leaf: Leaf) -> str:
        selector = leaf.selector
        name = self._eager_value(selector)
        if name is not None:
            return self._test(leaf, name)
        name = self._lazy.setdefault(selector, f"t{len(self._lazy)}")
        fetch = self.names.setdefault(f"fetch_{name}", resolver(selector, self._custom)) and f"fetch_{name}"
        # The first part fetches the value when it has not been fetched, and is never true.
        fetched = f"({name} if {name} is not UNSET else ({name} := {fetch}(subject))) is UNSET"
        if selector.wild:
            return f"({fetched} or any([{self._test(leaf, 'each')} for each in {name}]))"
        return f"({fetched} or {self._test(leaf, name)})"

    def _eager_value(self, selector: Selector) -> str | None:
        """The variable of a value that can be fetched up front: cheaply, and without ever raising."""
        if selector in self._eager:
            return self._eager[selector]
        write = None if selector.wild or selector.root in self._custom else _EAGER.get(selector.root)
        code = write(self, selector.path) if write is not None else None
        if code is None:
            return None
        name = self._eager[selector] = f"v{len(self._eager)}"
        self._prelude.append(f"{name} = {code}")
        return name

    def _args(self, path: tuple[str, ...]) -> str:
        self._needs.add("args")
        return f"args.get({path[0]!r})" if len(path) == 1 else f"walk(args, {path!r})"

    def _metadata(self, path: tuple[str, ...]) -> str:
        return f"walk(call.metadata, {path!r})"

    def _principal(self, path: tuple[str, ...]) -> str:
        self._needs.add("principal")
        found = f"walk(principal.claims, {path[1:]!r})" if path[0] == "claims" else f"principal.{path[0]}"
        return f"{found} if principal is not None else None"

    def _session(self, path: tuple[str, ...]) -> str:
        return f"session.{path[0]}.get({path[1]!r}, 0)" if path[0] in TOOL_COUNTERS else f"int(session.{path[0]})"

    # --- Leaves -----------------------------------------------------------------------------------------------------------

    def _test(self, leaf: Leaf, name: str) -> str:
        """The test of one value. What the fast path is not sure of goes to the operator itself."""
        slow = f"{self.constant(leaf.test, 'test')}({name})"
        operator = leaf.operator.name
        if leaf.operator.custom:
            return slow
        if operator in _COMPARISONS:
            return f"({name} {_COMPARISONS[operator]} {leaf.value!r} if {name}.__class__ is int else {slow})"
        if operator in REGEX_OPERATORS:
            return f"({self._regex(leaf, name)} if {name}.__class__ is str else {slow})"
        if operator in _TEXT_TESTS:
            return f"({_TEXT_TESTS[operator](leaf, name)} if {name}.__class__ is str else {slow})"
        return _VALUE_TESTS[operator](self, leaf, name) if operator in _VALUE_TESTS else slow

    def _regex(self, leaf: Leaf, name: str) -> str:
        patterns: tuple[Pattern, ...] = (leaf.prepared,) if leaf.operator.name == "matches" else leaf.prepared
        tests = [f"{pattern.literal!r} in {name}" for pattern in patterns if pattern.literal is not None]
        engine = [pattern for pattern in patterns if pattern.literal is None]
        if engine:
            tests.append(self._engine(leaf.selector, engine, name))
        code = f"({' or '.join(tests)})"
        return f"(not {code})" if leaf.operator.name == "matches_none" else code

    def _engine(self, selector: Selector, patterns: list[Pattern], name: str) -> str:
        """The patterns of all contracts on this value are searched for together, once, when the first of them is asked."""
        known = self._patterns[selector]
        if selector.wild or len(known) == 1:
            search = patterns[0].search if len(patterns) == 1 else pattern_set(tuple(p.source for p in patterns)).any
            return f"{self.constant(search, 'search')}({name})"
        hits = self._hits.setdefault(selector, f"h{len(self._hits)}")
        find = self.names.setdefault(f"find_{hits}", pattern_set(tuple(known)).hits) and f"find_{hits}"
        found = f"({hits} if {hits} is not None else ({hits} := {find}({name})))"
        numbers = frozenset(known[pattern.source] for pattern in patterns)
        if len(numbers) == 1:
            return f"{next(iter(numbers))} in {found}"
        return f"not {self.constant(numbers)}.isdisjoint({found})"


def _patterns_by_selector(everything: Sequence[Expression]) -> dict[Selector, dict[str, int]]:
    """For each selector the patterns that need the engine, numbered from 1 (0 is the engine's sign of life)."""
    found: dict[Selector, dict[str, int]] = {}
    for expression in everything:
        for leaf in leaves(expression):
            if leaf.operator.name in REGEX_OPERATORS:
                patterns = (leaf.prepared,) if leaf.operator.name == "matches" else leaf.prepared
                numbers = found.setdefault(leaf.selector, {})
                for pattern in patterns:
                    if pattern.literal is None:
                        numbers.setdefault(pattern.source, len(numbers) + 1)
    return found


_EAGER: dict[str, Callable[[Writer, tuple[str, ...]], str | None]] = {
    "args": Writer._args,
    "metadata": Writer._metadata,
    "principal": Writer._principal,
    "session": Writer._session,
    "environment": lambda _writer, _path: "call.environment",
    "tool": lambda _writer, _path: "call.tool_name",
}


def _contains_any(leaf: Leaf, name: str) -> str:
    parts = leaf.value
    if len(parts) <= MAX_INLINE:
        return "(" + " or ".join(f"{part!r} in {name}" for part in parts) + ")"
    return f"any([part in {name} for part in {parts!r}])"


_TEXT_TESTS: dict[str, Callable[[Leaf, str], str]] = {
    "contains": lambda leaf, name: f"{leaf.value!r} in {name}",
    "contains_any": _contains_any,
    "starts_with": lambda leaf, name: f"{name}.startswith({leaf.value!r})",
    "ends_with": lambda leaf, name: f"{name}.endswith({leaf.value!r})",
    "equals_ignore_case": lambda leaf, name: f"{name}.casefold() == {leaf.prepared!r}",
}


def _exists(writer: Writer, leaf: Leaf, name: str) -> str:
    return f"({name} is not None)" if leaf.value else f"({name} is None)"


def _equals(writer: Writer, leaf: Leaf, name: str) -> str:
    return f"({name} == {writer.constant(leaf.value)})"


def _not_equals(writer: Writer, leaf: Leaf, name: str) -> str:
    differs = f"{name} != {writer.constant(leaf.value)}"
    return f"({differs})" if leaf.if_missing else f"({name} is not None and {differs})"


def _in(writer: Writer, leaf: Leaf, name: str) -> str:
    return f"({name} in {_values(writer, leaf)})"


def _not_in(writer: Writer, leaf: Leaf, name: str) -> str:
    absent = f"{name} not in {_values(writer, leaf)}"
    return f"({absent})" if leaf.if_missing else f"({name} is not None and {absent})"


def _values(writer: Writer, leaf: Leaf) -> str:
    plain = all(type(value) in INLINE for value in leaf.value)
    return repr(tuple(leaf.value)) if plain else writer.constant(tuple(leaf.value))


_VALUE_TESTS: dict[str, Callable[[Writer, Leaf, str], str]] = {
    "exists": _exists,
    "equals": _equals,
    "not_equals": _not_equals,
    "in": _in,
    "not_in": _not_in,
}


def _define(source: str, name: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The function that the source defines. The source holds no text of a bundle except as Python literals made by ``repr``."""
    exec(compile(source, "<edictum contracts>", "exec"), names)  # noqa: S102
    function: Callable[..., Any] = names[name]
    return function


def compile_condition(expression: Expression, custom: Custom) -> Callable[[ToolCall, Any, Any], bool]:
    """One condition as a function of the call, the result and the session. It raises what an operator or selector raises."""
    writer = Writer(custom, [expression])
    code = writer.write(expression)
    lines = ["def holds(call, result, session):", *writer.prelude(), f"return bool({code})"]
    return _define("\n    ".join(lines), "holds", writer.names)


def compile_together(
    expressions: Sequence[Expression], custom: Custom, subjects: Sequence[Any], failed: Callable[..., Any], erred: Callable[..., Any]
) -> Callable[..., list[tuple[Any, Any]]]:
    """One function for many conditions. For each that holds, ``(subject, failed(subject, call, result))`` is in its answer."""
    writer = Writer(custom, expressions)
    body: list[str] = []
    for expression, subject in zip(expressions, subjects, strict=True):
        name = writer.constant(subject, "c")
        body += [
            "try:",
            f"    if {writer.write(expression)}: found = note(found, {name}, call, result)",
            "except Exception as exc: found = erred(found, " + name + ", call, result, exc)",
        ]
    writer.names |= {"note": failed, "erred": erred}
    lines = ["def asked(call, result=None, session=None):", "found = None", *writer.prelude(), *body, "return found or []"]
    return _define("\n    ".join(lines), "asked", writer.names)
