"""From conditions to Python code.

All contracts that apply to a tool become one function: every value that they look at is fetched
once, every condition is a plain Python expression, and all patterns on one text are searched for in
one pass. The function returns the contracts that do not plainly agree. Each condition has its own
``try``, which costs nothing until something raises: an error belongs to its contract.

Most calls concern few contracts. What decides many contracts alike is asked once for all of them:
does the path start with any of these prefixes, is the name any of these? When the answer is no,
these contracts agree and are not looked at one by one (a ``Gate``).

A missing field is ``None``. A fast path is only taken for the exact type that it is right for;
everything else (another type, a missing field) goes through ``Leaf.test``, so there is one
definition of what an operator means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from edictum.contracts.expressions import All, Expression, Leaf, Not, leaves
from edictum.contracts.operators import REGEX_OPERATORS
from edictum.contracts.regex import Pattern, pattern_set
from edictum.contracts.selectors import TOOL_COUNTERS, Selector, Subject, resolver, walk
from edictum.core.call import ToolCall

UNSET = object()
INLINE = (str, int, float, bool)
MAX_INLINE = 8  # alternatives that are written out one after the other
MIN_GATED = 4  # conditions from which on one question for all of them is cheaper than asking each
_COMPARISONS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}

Custom = Mapping[str, Callable[[ToolCall], Any]]


@dataclass(slots=True)
class Gate:
    """The first conditions of many contracts that look at one value in one way. When it is shut,
    none of them holds.
    """

    name: str
    selector: Selector
    family: str
    leaves: list[Leaf] = field(default_factory=list)


class Writer:
    """Writes one function: values first, then whatever uses them."""

    def __init__(self, custom: Custom, everything: Sequence[Expression]) -> None:
        self._custom = custom
        self.names: dict[str, Any] = {
            "UNSET": UNSET,
            "PLAIN": frozenset(INLINE),
            "Subject": Subject,
            "walk": walk,
        }
        self._eager: dict[Selector, str] = {}
        self._lazy: dict[Selector, str] = {}
        self._prelude: list[str] = []
        self._needs: set[str] = set()
        self._patterns = _patterns_by_selector(everything)
        self._hits: dict[Selector, str] = {}
        self._flags: set[str] = set()
        self._repeated = Counter(
            _text_key(leaf) for expression in everything for leaf in leaves(expression)
        )
        self._answers: dict[Any, str] = {}
        self._gates: dict[tuple[Selector, str], Gate] = {}
        self._asked: set[str] = set()

    def prelude(self) -> list[str]:
        """The lines that come first in the function."""
        lines = []
        gates = [self._gate_line(gate) for gate in self._gates.values() if gate.name in self._asked]
        if "args" in self._needs:
            lines.append("args = call.args")
        if "principal" in self._needs:
            lines.append("principal = call.principal")
        if self._lazy:
            lines.append("subject = Subject(call, result, session)")
            lines.append(" = ".join(self._lazy.values()) + " = UNSET")
        if unknown := [*self._hits.values(), *self._answers.values()]:
            lines.append(" = ".join(unknown) + " = None")
        return lines + self._prelude + gates

    def constant(self, value: Any, kind: str = "k") -> str:
        """A name for a value, or the value itself where Python can write it down."""
        if type(value) in INLINE:
            return repr(value)
        name = f"{kind}{len(self.names)}"
        self.names[name] = value
        return name

    # --- Expressions ------------------------------------------------------------------------------

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
        fetch = (
            self.names.setdefault(f"fetch_{name}", resolver(selector, self._custom))
            and f"fetch_{name}"
        )
        # The first part fetches the value when it has not been fetched, and is never true.
        fetched = f"({name} if {name} is not UNSET else ({name} := {fetch}(subject))) is UNSET"
        if selector.wild:
            return f"({fetched} or any([{self._test(leaf, 'each')} for each in {name}]))"
        return f"({fetched} or {self._test(leaf, name)})"

    def _eager_value(self, selector: Selector) -> str | None:
        """The variable of a value that can be fetched up front: cheaply, and without ever
        raising.
        """
        if selector in self._eager:
            return self._eager[selector]
        write = (
            None if selector.wild or selector.root in self._custom else _EAGER.get(selector.root)
        )
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
        found = (
            f"walk(principal.claims, {path[1:]!r})"
            if path[0] == "claims"
            else f"principal.{path[0]}"
        )
        return f"{found} if principal is not None else None"

    def _session(self, path: tuple[str, ...]) -> str:
        return (
            f"session.{path[0]}.get({path[1]!r}, 0)"
            if path[0] in TOOL_COUNTERS
            else f"int(session.{path[0]})"
        )

    # --- Gates ------------------------------------------------------------------------------------

    def collect(self, expression: Expression) -> list[Gate]:
        """The gates of a condition: when all of them are shut, it does not hold and nothing in it
        can raise. Empty: it has none.
        """
        gates = []
        for leaf in self._openers(expression):
            key = (leaf.selector, _FAMILY[leaf.operator.name])
            gate = self._gates.setdefault(key, Gate(f"g{len(self._gates)}", *key))
            gate.leaves.append(leaf)
            gates.append(gate)
        return gates

    def _openers(self, expression: Expression) -> list[Leaf]:
        """The leaves of which one must hold, or raise, for the condition to hold or raise. Empty:
        nothing can be said.
        """
        if isinstance(expression, Leaf):
            judged = expression.operator.name in _FAMILY and not expression.if_missing
            return (
                [expression]
                if judged and self._eager_value(expression.selector) is not None
                else []
            )
        if isinstance(expression, Not):
            return []
        if isinstance(expression, All):
            return self._openers(
                expression.items[0]
            )  # the rest is not looked at when the first does not hold
        each = [self._openers(item) for item in expression.items]
        return [leaf for found in each for leaf in found] if all(each) else []

    def opened(self, gates: list[Gate]) -> str:
        """The line that stands before contracts with these gates, where it saves something."""
        if not gates or any(len(gate.leaves) < MIN_GATED for gate in gates):
            return ""
        names = dict.fromkeys(gate.name for gate in gates)
        self._asked.update(names)
        return f"if {' or '.join(names)}:"

    def _gate_line(self, gate: Gate) -> str:
        kind, write = _OPENS[gate.family]
        name = self._eager[gate.selector]
        # A value of another type is for the operators to judge; a missing one satisfies none of
        # these.
        return (
            f"{gate.name} = {write(self, gate.leaves, name)} if {self._is(name, kind)} else {name}"
            " is not None"
        )

    # --- Leaves -----------------------------------------------------------------------------------

    def _test(self, leaf: Leaf, name: str) -> str:
        """The test of one value. What the fast path is not sure of goes to the operator itself."""
        slow = f"{self.constant(leaf.test, 'test')}({name})"
        operator = leaf.operator.name
        if leaf.operator.custom:
            return slow
        if operator in _COMPARISONS:
            return (
                f"({name} {_COMPARISONS[operator]} {leaf.value!r} if {self._is(name, 'int')} else"
                f" {slow})"
            )
        if operator in REGEX_OPERATORS:
            return f"({self._regex(leaf, name)} if {self._is(name, 'str')} else {slow})"
        if operator in _TEXT_TESTS:
            return f"({self._text(leaf, name)} if {self._is(name, 'str')} else {slow})"
        return _VALUE_TESTS[operator](self, leaf, name) if operator in _VALUE_TESTS else slow

    def _is(self, name: str, kind: str) -> str:
        """Whether a value is exactly of a type. For a value that is fetched up front this is found
        out once, up front.
        """
        if not name.startswith("v"):
            return f"{name}.__class__ is {kind}"
        flag = f"{name}_{kind}"
        if flag not in self._flags:
            self._flags.add(flag)
            self._prelude.append(
                f"{flag} = type({name}) {'in PLAIN' if kind == 'plain' else f'is {kind}'}"
            )
        return flag

    def _text(self, leaf: Leaf, name: str) -> str:
        """The test of a text. One that several contracts make is made when the first of them
        asks.
        """
        code = _TEXT_TESTS[leaf.operator.name](leaf, name)
        key = _text_key(leaf)
        if self._repeated[key] < 2 or leaf.selector not in self._eager:
            return code
        answer = self._answers.setdefault(key, f"a{len(self._answers)}")
        return f"({answer} if {answer} is not None else ({answer} := {code}))"

    def _regex(self, leaf: Leaf, name: str) -> str:
        patterns: tuple[Pattern, ...] = (
            (leaf.prepared,) if leaf.operator.name == "matches" else leaf.prepared
        )
        tests = [
            f"{pattern.literal!r} in {name}" for pattern in patterns if pattern.literal is not None
        ]
        engine = [pattern for pattern in patterns if pattern.literal is None]
        if engine:
            tests.append(self._engine(leaf.selector, engine, name))
        code = f"({' or '.join(tests)})"
        return f"(not {code})" if leaf.operator.name == "matches_none" else code

    def _engine(self, selector: Selector, patterns: list[Pattern], name: str) -> str:
        """The patterns of all contracts on this value are searched for together, once, when the
        first of them is asked.
        """
        known = self._patterns[selector]
        if selector.wild or len(known) == 1:
            search = (
                patterns[0].search
                if len(patterns) == 1
                else pattern_set(tuple(p.source for p in patterns)).any
            )
            return f"{self.constant(search, 'search')}({name})"
        hits = self._hits.setdefault(selector, f"h{len(self._hits)}")
        find = (
            self.names.setdefault(f"find_{hits}", pattern_set(tuple(known)).hits) and f"find_{hits}"
        )
        found = f"({hits} if {hits} is not None else ({hits} := {find}({name})))"
        numbers = frozenset(known[pattern.source] for pattern in patterns)
        if len(numbers) == 1:
            return f"{next(iter(numbers))} in {found}"
        return f"not {self.constant(numbers)}.isdisjoint({found})"


def _text_key(leaf: Leaf) -> tuple[Selector, str, str]:
    return leaf.selector, leaf.operator.name, repr(leaf.value)


def _patterns_by_selector(everything: Sequence[Expression]) -> dict[Selector, dict[str, int]]:
    """For each selector the patterns that need the engine, numbered from 1 (0 is the engine's sign
    of life).
    """
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


# The conditions that one question can rule out together, and the question; for which type it is
# right comes first.
_FAMILY = {
    "starts_with": "starts_with",
    "ends_with": "ends_with",
    "equals_ignore_case": "equals_ignore_case",
    "equals": "value",
    "in": "value",
    "gt": "above",
    "gte": "above",
    "lt": "below",
    "lte": "below",
}
_OPENS: dict[str, tuple[str, Callable[[Writer, list[Leaf], str], str]]] = {
    "starts_with": (
        "str",
        lambda writer, leaves, name: (
            f"{name}.startswith({writer.constant(tuple(_distinct(leaves)))})"
        ),
    ),
    "ends_with": (
        "str",
        lambda writer, leaves, name: (
            f"{name}.endswith({writer.constant(tuple(_distinct(leaves)))})"
        ),
    ),
    "equals_ignore_case": (
        "str",
        lambda writer, leaves, name: (
            f"{name}.casefold() in {writer.constant(frozenset(leaf.prepared for leaf in leaves))}"
        ),
    ),
    "value": (
        "plain",
        lambda writer, leaves, name: f"{name} in {writer.constant(_plain_values(leaves))}",
    ),
    "above": (
        "int",
        lambda _writer, leaves, name: f"{name} >= {min(leaf.value for leaf in leaves)!r}",
    ),
    "below": (
        "int",
        lambda _writer, leaves, name: f"{name} <= {max(leaf.value for leaf in leaves)!r}",
    ),
}


def _distinct(leaves: list[Leaf]) -> dict[str, None]:
    return dict.fromkeys(leaf.value for leaf in leaves)


def _plain_values(leaves: list[Leaf]) -> frozenset[Any]:
    """What a plain value can be equal to: a list or a mapping it never is."""
    values = [
        value
        for leaf in leaves
        for value in (leaf.value if leaf.operator.name == "in" else (leaf.value,))
    ]
    return frozenset(value for value in values if type(value) in INLINE)


def _define(source: str, name: str, names: dict[str, Any]) -> Callable[..., Any]:
    """The function that the source defines. The source holds no text of a bundle except as Python
    literals made by ``repr``.
    """
    exec(compile(source, "<edictum contracts>", "exec"), names)  # noqa: S102
    function: Callable[..., Any] = names[name]
    return function


def compile_condition(
    expression: Expression, custom: Custom
) -> Callable[[ToolCall, Any, Any], bool]:
    """One condition as a function of the call, the result and the session. It raises what an
    operator or selector raises.
    """
    writer = Writer(custom, [expression])
    code = writer.write(expression)
    lines = ["def holds(call, result, session):", *writer.prelude(), f"return bool({code})"]
    return _define("\n    ".join(lines), "holds", writer.names)


def compile_together(
    expressions: Sequence[Expression],
    custom: Custom,
    subjects: Sequence[Any],
    failed: Callable[..., Any],
    erred: Callable[..., Any],
) -> Callable[..., list[tuple[Any, Any]]]:
    """One function for many conditions. For each that holds, ``(subject, failed(subject, call,
    result))`` is in its answer.
    """
    writer = Writer(custom, expressions)
    gates = [writer.collect(expression) for expression in expressions]
    body: list[str] = []
    for gate, group in groupby(
        zip(expressions, subjects, gates, strict=True), lambda item: writer.opened(item[2])
    ):
        margin = "    " if gate else ""
        body += [gate] if gate else []
        for expression, subject, _ in group:
            name = writer.constant(subject, "c")
            body += [
                f"{margin}try:",
                (
                    f"{margin}    if {writer.write(expression)}: found = note(found, {name}, call,"
                    " result)"
                ),
                f"{margin}except Exception as exc: found = erred(found, {name}, call, result, exc)",
            ]
    writer.names |= {"note": failed, "erred": erred}
    lines = [
        "def asked(call, result=None, session=None):",
        "found = None",
        *writer.prelude(),
        *body,
        "return found or []",
    ]
    return _define("\n    ".join(lines), "asked", writer.names)
