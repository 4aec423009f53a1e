"""Conditions: a tree of all, any and not over leaves ``selector: {operator: value}``.

Reading takes two steps. The shape is read with the rest of the document (``read_raw``); then
``Meaning`` looks up what the words mean: selectors, operators, patterns, networks. An expression is
immutable and knows the place of every leaf.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from edictum.contracts.load import Map, Scalar, Seq, Tree, describe, to_plain
from edictum.contracts.operators import OPERATORS, REGEX_OPERATORS, Mismatch, Operator
from edictum.contracts.problems import Place, Problems, closest, listed
from edictum.contracts.regex import PatternBudget, PatternError, doubled_backslash, never_matches
from edictum.contracts.selectors import Selector, SelectorError, SelectorMismatch, parse_selector
from edictum.contracts.shapes import WRONG
from edictum.core.call import ToolCall

WORDS = ("all", "any", "not")


# --- The tree -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leaf:
    """One condition. ``prepared`` is the value made ready for the operator's test; ``anonymous`` is
    the answer for a missing field.
    """

    selector: Selector
    operator: Operator
    value: Any
    prepared: Any = field(compare=False)
    if_missing: bool
    place: Place = field(compare=False)

    def holds(self, found: Any) -> bool:
        """Whether the condition holds for what the selector found; with ``[*]``, for any of the
        values.
        """
        if self.selector.wild:
            # Every element is judged, so that an error in one cannot hide behind a match in
            # another.
            return any([self.test(item) for item in found])  # noqa: C419
        return self.test(found)

    def test(self, value: Any) -> bool:
        if value is None:
            return self.if_missing
        try:
            return self.operator.test(value, self.prepared)
        except Mismatch as exc:
            raise Mismatch(
                f"Type mismatch: operator '{self.operator.name}' cannot be applied to selector"
                f" '{self.selector.text}' value {type(value).__name__}; it judges {exc}"
            ) from None

    def __str__(self) -> str:
        return f"{self.selector.text} {self.operator.name} {self.value!r}"


@dataclass(frozen=True, slots=True)
class All:
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Not:
    item: Expression


Expression: TypeAlias = Leaf | All | AnyOf | Not


def leaves(expression: Expression) -> Iterator[Leaf]:
    if isinstance(expression, Leaf):
        yield expression
    elif isinstance(expression, Not):
        yield from leaves(expression.item)
    else:
        for item in expression.items:
            yield from leaves(item)


def positive_leaves(expression: Expression, positive: bool = True) -> Iterator[Leaf]:
    """The leaves that speak for the whole when they hold: those under an even number of ``not``."""
    if isinstance(expression, Leaf):
        if positive:
            yield expression
    elif isinstance(expression, Not):
        yield from positive_leaves(expression.item, not positive)
    else:
        for item in expression.items:
            yield from positive_leaves(item, positive)


# --- The shape ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RawLeaf:
    selector: Scalar
    name: str
    operator: str
    operator_place: Scalar
    value: Any
    tree: Tree


@dataclass(frozen=True, slots=True)
class RawGroup:
    word: str
    items: tuple[Any, ...]


def read_raw(tree: Tree, problems: Problems) -> Any:
    """The shape of an expression: RawGroup and RawLeaf, or WRONG."""
    if not isinstance(tree, Map) or len(tree.values) != 1:
        problems.shape(tree, *_not_one(tree))
        return WRONG
    (word,) = tree.values
    body = tree.values[word]
    if word == "not":
        item = read_raw(body, problems)
        return WRONG if item is WRONG else RawGroup("not", (item,))
    if word in WORDS:
        return _read_group(word, body, problems)
    return _read_leaf(tree.keys[word], word, body, problems)


def _not_one(tree: Tree) -> tuple[str, str]:
    if not isinstance(tree, Map):
        return (
            f"expected a condition, got {describe(tree)}",
            "Write for example 'args.path: {contains: /etc}'.",
        )
    if not tree.values:
        return "this condition is empty", "Write for example 'args.path: {contains: /etc}'."
    names = ", ".join(f"'{name}'" for name in tree.values)
    return (
        f"a condition has one key, this one has {len(tree.values)}: {names}",
        "Put several conditions in a list under 'all:' or 'any:'.",
    )


def _read_group(word: str, body: Tree, problems: Problems) -> Any:
    if not isinstance(body, Seq):
        problems.shape(
            body,
            f"'{word}' needs a list of conditions, got {describe(body)}",
            "Start each condition with '- '.",
        )
        return WRONG
    if not body.items:
        problems.shape(body, f"the list under '{word}' is empty", "Add at least one condition.")
        return WRONG
    items = tuple(read_raw(item, problems) for item in body.items)
    return WRONG if WRONG in items else RawGroup(word, items)


def _read_leaf(key: Scalar, name: str, body: Tree, problems: Problems) -> Any:
    if not name:
        problems.shape(key, "the selector is empty", "Write for example args.path.")
        return WRONG
    if not isinstance(body, Map) or len(body.values) != 1:
        several = isinstance(body, Map) and len(body.values) > 1
        count = f"{len(body.values)} operators" if isinstance(body, Map) else describe(body)
        hint = (
            "Write one condition for each, in a list under 'all:'."
            if several
            else f"Write for example '{name}: {{equals: value}}'."
        )
        problems.shape(body, f"'{name}' needs one operator, got {count}", hint)
        return WRONG
    (operator,) = body.values
    tree = body.values[operator]
    known = OPERATORS.get(operator)
    if not operator:
        problems.shape(body.keys[operator], "the operator is empty", "Write for example equals.")
        return WRONG
    value = known.shape.read(tree, problems) if known else to_plain(tree)
    return (
        WRONG if value is WRONG else RawLeaf(key, name, operator, body.keys[operator], value, tree)
    )


def expression_schema() -> dict[str, Any]:
    """The JSON Schema of a condition. Operators that are not known may be custom ones."""
    group = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/expression"}}
    test = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {name: operator.shape.schema() for name, operator in OPERATORS.items()},
        "propertyNames": {"minLength": 1},
    }
    return {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {"all": group, "any": group, "not": {"$ref": "#/$defs/expression"}},
        "propertyNames": {"minLength": 1},
        "additionalProperties": test,
    }


# --- The meaning ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Meaning:
    """Looks up words. ``stage`` is where the expression stands: pre, post or success."""

    operators: Mapping[str, Operator]
    selectors: Mapping[str, Callable[[ToolCall], Any]]
    problems: Problems
    stage: str
    patterns: PatternBudget = field(default_factory=PatternBudget)

    def of(self, raw: Any) -> Expression | None:
        """The expression, or None when something in it was reported."""
        if isinstance(raw, RawLeaf):
            return self._leaf(raw)
        items = tuple(self.of(item) for item in raw.items)
        if None in items:
            return None
        if raw.word == "not":
            return Not(items[0])  # type: ignore[arg-type]
        return (All if raw.word == "all" else AnyOf)(items)  # type: ignore[arg-type]

    def _leaf(self, raw: RawLeaf) -> Leaf | None:
        selector = self.selector(raw.name, raw.selector)
        operator = OPERATORS.get(raw.operator) or self.operators.get(raw.operator)
        if operator is None:
            known = [*OPERATORS, *self.operators]
            self.problems.add(
                raw.operator_place,
                f"unknown operator '{raw.operator}'",
                f"{closest(raw.operator, known)}Known operators: {listed(known)}.",
            )
            return None
        prepared = self._prepare(operator, raw)
        if selector is None or prepared is WRONG:
            return None
        anonymous = operator.negative and selector.root == "principal"
        return Leaf(
            selector,
            operator,
            raw.value,
            prepared,
            anonymous or operator.missing(raw.value),
            raw.selector,
        )

    def selector(self, text: str, place: Place) -> Selector | None:
        try:
            selector = parse_selector(text, self.selectors)
        except SelectorError as exc:
            self.problems.add(place, str(exc), exc.hint)
            return None
        if selector.root == "result" and self.stage == "pre":
            self.problems.add(
                place,
                f"'{text}' is not known before the tool has run",
                "Use it in a contract with 'type: post'.",
            )
            return None
        if selector.root == "session" and self.stage != "pre":
            self.problems.add(
                place,
                f"'{text}' is only available in contracts with 'type: pre'",
                "Use a session contract for limits.",
            )
            return None
        return selector

    def _prepare(self, operator: Operator, raw: RawLeaf) -> Any:
        if operator.name in REGEX_OPERATORS and not self._check_patterns(raw):
            return WRONG
        if operator.name == "in_cidr" and not self._check_networks(raw):
            return WRONG
        return operator.prepare(raw.value)

    def _each(self, raw: RawLeaf) -> Iterator[tuple[str, Scalar]]:
        """The texts of a value with their places."""
        trees = raw.tree.items if isinstance(raw.tree, Seq) else [raw.tree]
        return ((tree.value, tree) for tree in trees if isinstance(tree, Scalar))

    def _check_patterns(self, raw: RawLeaf) -> bool:
        good = True
        for text, place in self._each(raw):
            try:
                pattern = self.patterns.compiled(text)
            except PatternError as exc:
                self.problems.add(place, f"the pattern {text!r:.80}: {exc}", exc.hint)
                good = False
                continue
            if pattern is None:
                good = False
            elif place.style == '"' and "\b" in text:
                message = (
                    "the pattern looks for a backspace, which is what \\b means in double quotes"
                )
                self.problems.warn(
                    place, message, "If you meant the edge of a word, use single quotes."
                )
            elif doubled := doubled_backslash(text):
                self._doubled(place, *doubled)
            elif (why := never_matches(text)) is not None:
                self.problems.warn(
                    place,
                    f"the pattern {text!r:.80} can never match: {why}",
                    "Remove what stands on the wrong side.",
                )
            elif pattern.matches_nothing() and not text.startswith("^"):
                self.problems.warn(
                    place,
                    f"the pattern {text!r:.80} matches every text",
                    "Anchor it, or write 'exists: true'.",
                )
        return good

    def _doubled(self, place: Scalar, doubled: str, certain: bool) -> None:
        single = doubled.replace("\\\\", "\\")
        message = f"the pattern looks for a backslash followed by '{doubled[-1]}'"
        if doubled[-1].isdigit():
            self.problems.warn(
                place,
                message,
                f"If you meant {single}: back-references are not supported. Write [\\\\] for a real"
                " backslash.",
            )
        elif place.style == '"':
            self.problems.warn(
                place,
                message,
                f"If you meant {single}, write it in single quotes with one backslash.",
            )
        elif certain:
            hint = (
                f"In single quotes a backslash is no escape: write {single} with one backslash, or"
                " [\\\\] for a real one."
            )
            self.problems.add(place, message, hint)
        else:
            self.problems.warn(
                place,
                message,
                f"In single quotes a backslash is no escape: if you meant {single}, write one"
                " backslash.",
            )

    def _check_networks(self, raw: RawLeaf) -> bool:
        good = True
        for text, place in self._each(raw):
            try:
                ipaddress.ip_network(text, strict=False)
            except ValueError:
                self.problems.add(
                    place,
                    f"'{text:.60}' is not a network",
                    "Write for example 10.0.0.0/8 or fd00::/8.",
                )
                good = False
        return good


RUN_TIME_ERRORS = (Mismatch, SelectorMismatch)
