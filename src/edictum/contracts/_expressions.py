"""Conditions: a tree of all, any and not over leaves ``selector: {operator: value}``.

Reading takes two steps. ``read_shape`` reads the shape with the rest of the document; ``Meaning``
then looks up the words: selectors, operators, patterns, networks. An expression is immutable and
knows the place of every leaf.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, assert_never

from edictum.contracts._operators import (
    DETECTS,
    OPERATORS,
    REGEX_OPERATORS,
    Mismatch,
    Operator,
    with_own_secrets,
)
from edictum.contracts._problems import Place, Problems, join_words, suggest
from edictum.contracts._regex import (
    Pattern,
    PatternBudget,
    PatternError,
    compile_pattern,
    find_doubled_backslash,
    why_never_matches,
)
from edictum.contracts._selectors import (
    CustomSelectors,
    Selector,
    SelectorError,
    Subject,
    parse_selector,
    resolver,
)
from edictum.contracts._shapes import WRONG, reject, report
from edictum.contracts._tree import Map, Scalar, Seq, Tree, describe_value, to_plain
from edictum.core.redaction import Detects

# --- The tree -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leaf:
    """One condition; ``prepared`` is the value as the operator's test takes it."""

    selector: Selector
    operator: Operator
    value: Any
    prepared: Any = field(compare=False)
    if_missing: bool  # the answer for a missing field
    place: Place = field(compare=False)

    def holds(self, found: Any) -> bool:
        """Judge what the selector found; with ``[*]``, whether any of the values satisfies it."""
        if self.selector.wild:
            # Every element is judged: an error in one must not hide behind a match in another.
            return any([self.test(item) for item in found])  # noqa: C419 - see above
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


def evaluate(
    expression: Expression,
    subject: Subject,
    custom: CustomSelectors,
    judge: Callable[[Leaf, Any], bool] = Leaf.holds,
) -> bool:
    """Judge a condition, each leaf by what it found; raise what operators and selectors raise."""
    match expression:
        case Leaf():
            return judge(expression, resolver(expression.selector, custom)(subject))
        case Not():
            return not evaluate(expression.item, subject, custom, judge)
        case All():
            return all(evaluate(item, subject, custom, judge) for item in expression.items)
        case AnyOf():
            return any(evaluate(item, subject, custom, judge) for item in expression.items)
        case _:
            assert_never(expression)


def leaves(expression: Expression) -> Iterator[Leaf]:
    return (leaf for leaf, _ in _leaves_with_sign(expression, True))


def positive_leaves(expression: Expression) -> Iterator[Leaf]:
    """Return the leaves under an even number of ``not``."""
    return (leaf for leaf, positive in _leaves_with_sign(expression, True) if positive)


def _leaves_with_sign(expression: Expression, positive: bool) -> Iterator[tuple[Leaf, bool]]:
    if isinstance(expression, Leaf):
        yield expression, positive
    elif isinstance(expression, Not):
        yield from _leaves_with_sign(expression.item, not positive)
    else:
        for item in expression.items:
            yield from _leaves_with_sign(item, positive)


# --- The shape ------------------------------------------------------------------------------------

GROUP_WORDS = ("all", "any", "not")
_EXAMPLE = "Write for example 'args.path: {contains: /etc}'."


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


def read_shape(tree: Tree, problems: Problems) -> Any:
    """Read the shape of an expression: RawGroup and RawLeaf, or WRONG after reporting."""
    if not isinstance(tree, Map):
        return reject(tree, problems, "a condition", _EXAMPLE)
    if len(tree.values) != 1:
        names = ", ".join(f"'{name}'" for name in tree.values)
        message = f"a condition has one key, this one has {len(tree.values)}: {names}"
        hint = "Put several conditions in a list under 'all:' or 'any:'."
        if not tree.values:
            message, hint = "this condition is empty", _EXAMPLE
        return report(tree, problems, message, hint)
    ((word, body),) = tree.values.items()
    if word == "not":
        item = read_shape(body, problems)
        return WRONG if item is WRONG else RawGroup("not", (item,))
    if word in GROUP_WORDS:
        return _read_group(word, body, problems)
    return _read_leaf(tree.keys[word], word, body, problems)


def _read_group(word: str, body: Tree, problems: Problems) -> Any:
    if not isinstance(body, Seq):
        message = f"'{word}' needs a list of conditions, got {describe_value(body)}"
        return report(body, problems, message, "Start each condition with '- '.")
    if not body.items:
        message = f"the list under '{word}' is empty"
        return report(body, problems, message, "Add at least one condition.")
    items = tuple(read_shape(item, problems) for item in body.items)
    return WRONG if WRONG in items else RawGroup(word, items)


def _read_leaf(key: Scalar, name: str, body: Tree, problems: Problems) -> Any:
    if not name:
        return report(key, problems, "the selector is empty", "Write for example args.path.")
    if not isinstance(body, Map) or len(body.values) != 1:
        got, hint = describe_value(body), f"Write for example '{name}: {{equals: value}}'."
        if isinstance(body, Map):
            got = f"{len(body.values)} operators"
            hint = "Write one condition for each, in a list under 'all:'." if body.values else hint
        return report(body, problems, f"'{name}' needs one operator, got {got}", hint)
    ((operator, tree),) = body.values.items()
    place = body.keys[operator]
    if not operator:
        return report(place, problems, "the operator is empty", "Write for example equals.")
    known = OPERATORS.get(operator)
    value = known.shape.read(tree, problems) if known else to_plain(tree)
    return WRONG if value is WRONG else RawLeaf(key, name, operator, place, value, tree)


def expression_schema() -> dict[str, Any]:
    """Return the JSON Schema of a condition. An unknown operator may be a custom one."""
    group = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/expression"}}
    one_key = {"type": "object", "minProperties": 1, "maxProperties": 1}
    named = {"propertyNames": {"minLength": 1}}
    operators = {name: operator.shape.schema() for name, operator in OPERATORS.items()}
    return {
        **one_key,
        "properties": {"all": group, "any": group, "not": {"$ref": "#/$defs/expression"}},
        **named,
        "additionalProperties": {**one_key, "properties": operators, **named},
    }


# --- The meaning ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Meaning:
    """Looks up words. ``stage`` is where the expression stands: pre, post or success."""

    operators: Mapping[str, Operator]
    selectors: CustomSelectors
    problems: Problems
    stage: str
    patterns: PatternBudget = field(default_factory=PatternBudget)
    own_secrets: tuple[Detects, ...] = ()

    def detection(self, kinds: tuple[str, ...], place: Place) -> Leaf:
        """Return the condition that the result holds something of some kinds."""
        prepared = with_own_secrets(DETECTS.prepare(kinds), self.own_secrets)
        return Leaf(parse_selector("result"), DETECTS, kinds, prepared, False, place)

    def of(self, raw: Any) -> Expression | None:
        """Return the expression, or None when something in it was reported."""
        if isinstance(raw, RawLeaf):
            return self._leaf(raw)
        known = [self.of(item) for item in raw.items]
        items = tuple(item for item in known if item is not None)
        if len(items) < len(known):
            return None
        if raw.word == "not":
            return Not(items[0])
        return All(items) if raw.word == "all" else AnyOf(items)

    def _leaf(self, raw: RawLeaf) -> Leaf | None:
        selector = self.selector(raw.name, raw.selector)
        operator = OPERATORS.get(raw.operator) or self.operators.get(raw.operator)
        if operator is None:
            known = [*OPERATORS, *self.operators]
            hint = f"{suggest(raw.operator, known)}Known operators: {join_words(known)}."
            self.problems.add(raw.operator_place, f"unknown operator '{raw.operator}'", hint)
            return None
        prepared = self._prepare(operator, raw)
        if selector is None or prepared is WRONG:
            return None
        anonymous = operator.negative and selector.root == "principal"
        if_missing = anonymous or operator.missing(raw.value)
        return Leaf(selector, operator, raw.value, prepared, if_missing, raw.selector)

    def selector(self, text: str, place: Place) -> Selector | None:
        """Return the selector, or None after reporting why it cannot be used at this stage."""
        try:
            selector = parse_selector(text, self.selectors)
        except SelectorError as exc:
            self.problems.add(place, str(exc), exc.hint)
            return None
        if selector.root == "result" and self.stage == "pre":
            message = f"'{text}' is not known before the tool has run"
            self.problems.add(place, message, "Use it in a contract with 'type: post'.")
            return None
        if selector.root == "session" and self.stage != "pre":
            message = f"'{text}' is only available in contracts with 'type: pre'"
            self.problems.add(place, message, "Use a session contract for limits.")
            return None
        return selector

    def _prepare(self, operator: Operator, raw: RawLeaf) -> Any:
        checks = dict.fromkeys(REGEX_OPERATORS, self._check_pattern)
        check = (checks | {"in_cidr": self._check_network}).get(operator.name)
        trees = raw.tree.items if isinstance(raw.tree, Seq) else [raw.tree]
        scalars = [tree for tree in trees if isinstance(tree, Scalar)]
        # Every item is checked, so that all problems are reported.
        if check and not all([check(scalar) for scalar in scalars]):  # noqa: C419 - see above
            return WRONG
        return with_own_secrets(operator.prepare(raw.value), self.own_secrets)

    def pattern(self, place: Scalar) -> Pattern | None:
        """Return a pattern, or None after reporting why it cannot be used."""
        return compile_pattern(place.value) if self._check_pattern(place) else None

    def _check_pattern(self, place: Scalar) -> bool:
        """Report a pattern that cannot be used, and return whether it can; warn about mistakes."""
        text = place.value
        try:
            pattern = self.patterns.compile(text)
        except PatternError as exc:
            self.problems.add(place, f"the pattern {text!r:.80}: {exc}", exc.hint)
            return False
        if pattern is None:
            return False
        if place.style == '"' and "\b" in text:
            message = "the pattern looks for a backspace, which is what \\b means in double quotes"
            hint = "If you meant the edge of a word, use single quotes."
            self.problems.warn(place, message, hint)
        elif doubled := find_doubled_backslash(text):
            self._report_doubled_backslash(place, *doubled)
        elif (why := why_never_matches(text)) is not None:
            message = f"the pattern {text!r:.80} can never match: {why}"
            self.problems.warn(place, message, "Remove what stands on the wrong side.")
        elif pattern.search("") and not text.startswith("^"):
            message = f"the pattern {text!r:.80} matches every text"
            self.problems.warn(place, message, "Anchor it, or write 'exists: true'.")
        return True

    def _report_doubled_backslash(self, place: Scalar, doubled: str, certain: bool) -> None:
        single = doubled.replace("\\\\", "\\")
        message = f"the pattern looks for a backslash followed by '{doubled[-1]}'"
        if doubled[-1].isdigit():
            certain = False
            hint = (
                f"If you meant {single}: back-references are not supported. Write [\\\\] for a real"
                " backslash."
            )
        elif place.style == '"':
            certain = False
            hint = f"If you meant {single}, write it in single quotes with one backslash."
        elif certain:
            hint = (
                f"In single quotes a backslash is not an escape: write {single} with one backslash,"
                " or [\\\\] for a real one."
            )
        else:
            hint = f"In single quotes a backslash is not an escape: did you mean {single}?"
        self.problems.add(place, message, hint, "meaning" if certain else "warning")

    def _check_network(self, place: Scalar) -> bool:
        try:
            ipaddress.ip_network(place.value, strict=False)
        except ValueError:
            message = f"'{place.value:.60}' is not a network"
            self.problems.add(place, message, "Write for example 10.0.0.0/8 or fd00::/8.")
            return False
        return True
