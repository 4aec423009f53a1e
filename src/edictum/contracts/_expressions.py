"""Conditions: a tree of all, any and not over leaves ``selector: {operator: value}``.

Reading takes two steps. ``read_shape`` reads the shape with the rest of the document; ``Meaning``
then looks up the words: selectors, operators, patterns, networks. An expression is immutable and
knows the place of every leaf.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from inspect import iscoroutinefunction
from typing import Any, TypeAlias, assert_never

from edictum.contracts._anchors import why_never_matches
from edictum.contracts._computed import (
    Computed,
    NotKnown,
    Placeholder,
    compile_text,
    compute_list,
    find_placeholders,
    read_field,
)
from edictum.contracts._literals import warn_about_literal
from edictum.contracts._operators import (
    DETECTS,
    OPERATOR_SYNONYMS,
    OPERATORS,
    REGEX_OPERATORS,
    Mismatch,
    Operator,
    with_own_secrets,
)
from edictum.contracts._problems import Place, Problems, join_words, quote_pattern, suggest
from edictum.contracts._regex import (
    Pattern,
    PatternBudget,
    PatternError,
    compile_pattern,
    find_doubled_backslash,
)
from edictum.contracts._selectors import (
    ROOTS,
    WEEKDAYS,
    CustomSelectors,
    Selector,
    SelectorError,
    Subject,
    parse_selector,
    resolver,
)
from edictum.contracts._shapes import WRONG, FieldReference, note_shape, read_reference, reject
from edictum.contracts._tree import Map, Scalar, Seq, Tree, describe_value, name_kind, to_plain
from edictum.core.redaction import Detects

# --- The tree -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leaf:
    """One condition; ``prepared`` is the value as the operator's test takes it."""

    selector: Selector
    operator: Operator
    value: Any
    prepared: Any = field(compare=False)
    if_missing: bool | None  # the answer for a missing field; None: it cannot be judged
    place: Place = field(compare=False)
    computed: Computed | None = field(default=None, compare=False)  # the value, if of the call

    def holds(self, found: Any, subject: Subject) -> bool:
        """Judge what the selector found; with ``[*]``, whether any of the values satisfies it."""
        if self.selector.wild:
            # Every element is judged: an error in one must not hide behind a match in another.
            return any([self.test(item, subject) for item in found])  # noqa: C419 - see above
        return self.test(found, subject)

    def test(self, value: Any, subject: Any = None) -> bool:
        """Judge one value; ``subject`` is needed where it is compared with one of the call's."""
        if value is None:
            if self.if_missing is None:
                raise NotKnown(f"'{self.selector.text}' is missing: the selector returned nothing")
            return self.if_missing
        prepared = self.prepared if self.computed is None else self.computed.compute(subject)
        try:
            return self.operator.test(value, prepared)
        except Mismatch as exc:
            raise Mismatch(
                f"{self.selector.text} is {name_kind(value)}; {exc} is needed"
                f" for '{self.operator.name}'"
            ) from None

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """All fields that the leaf reads."""
        others = () if self.computed is None else self.computed.selectors
        return (self.selector, *others)

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
ALWAYS = All(())  # the condition of a contract without a ``when``


def evaluate(
    expression: Expression,
    subject: Subject,
    custom: CustomSelectors,
    judge: Callable[[Leaf, Any, Subject], bool] = Leaf.holds,
) -> bool:
    """Judge a condition, each leaf by what it found; raise what operators and selectors raise."""
    match expression:
        case Leaf():
            return judge(expression, resolver(expression.selector, custom)(subject), subject)
        case Not():
            return not evaluate(expression.item, subject, custom, judge)
        case All():
            return all(evaluate(item, subject, custom, judge) for item in expression.items)
        case AnyOf():
            return any(evaluate(item, subject, custom, judge) for item in expression.items)
        case _:
            assert_never(expression)


def with_strict_arguments(expression: Expression) -> Expression:
    """Return the condition in a form that raises for arguments whose value cannot be known."""
    match expression:
        case Leaf(selector):
            strict = selector.root == "args" and not selector.as_sent
            return replace(expression, selector=replace(selector, strict=strict))
        case Not(item):
            return Not(with_strict_arguments(item))
        case All(items):
            return All(tuple(map(with_strict_arguments, items)))
        case AnyOf(items):
            return AnyOf(tuple(map(with_strict_arguments, items)))
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
_GROUP_SYNONYMS = {"and": "all", "or": "any", "and_": "all", "or_": "any"}
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
        return note_shape(tree, problems, message, hint)
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
        return note_shape(body, problems, message, "Start each condition with '- '.")
    if not body.items:
        message = f"the list under '{word}' is empty"
        return note_shape(body, problems, message, "Add at least one condition.")
    items = tuple(read_shape(item, problems) for item in body.items)
    return WRONG if WRONG in items else RawGroup(word, items)


def _read_leaf(key: Scalar, name: str, body: Tree, problems: Problems) -> Any:
    if not name:
        return note_shape(key, problems, "the selector is empty", "Write for example args.path.")
    if meant := _GROUP_SYNONYMS.get(name.lower()):
        message = f"'{name}' is not a word of conditions"
        return note_shape(key, problems, message, f"Did you mean '{meant}'?")
    if not isinstance(body, Map) or len(body.values) != 1:
        return _report_operators(name, body, problems)
    ((operator, tree),) = body.values.items()
    place = body.keys[operator]
    if not operator:
        return note_shape(place, problems, "the operator is empty", "Write for example equals.")
    value = _read_value(operator, tree, problems)
    return WRONG if value is WRONG else RawLeaf(key, name, operator, place, value, tree)


def _report_operators(name: str, body: Tree, problems: Problems) -> Any:
    """Report that there is not exactly one operator under a selector."""
    got, hint = describe_value(body), f"Write for example '{name}: {{equals: value}}'."
    if isinstance(body, Map):
        got = f"{len(body.values)} operators"
        hint = "Write one condition for each, in a list under 'all:'." if body.values else hint
    return note_shape(body, problems, f"'{name}' needs one operator, got {got}", hint)


def _read_value(operator: str, tree: Tree, problems: Problems) -> Any:
    """Return what an operator compares with; an unknown operator may be a custom one."""
    known = OPERATORS.get(operator)
    if known is None:
        return read_reference(tree) or to_plain(tree)
    if known.take is None and read_reference(tree) is not None:
        message = f"'{operator}' takes what the bundle says, and not a field"
        return note_shape(tree, problems, message, "Compare fields with equals, in or contains.")
    return known.value_shape.read(tree, problems)


def expression_schema() -> dict[str, Any]:
    """Return the JSON Schema of a condition. An unknown operator may be a custom one."""
    group = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/expression"}}
    one_key = {"type": "object", "minProperties": 1, "maxProperties": 1}
    named = {"propertyNames": {"minLength": 1}}
    operators = {name: operator.value_shape.schema() for name, operator in OPERATORS.items()}
    return {
        **one_key,
        "properties": {"all": group, "any": group, "not": {"$ref": "#/$defs/expression"}},
        **named,
        "additionalProperties": {**one_key, "properties": operators, **named},
    }


# --- The meaning ----------------------------------------------------------------------------------


# stages at which no selector can be awaited
NEVER_WAIT = {"success": "success rules", "limit": "limits"}


@dataclass(frozen=True)
class Meaning:
    """Looks up the words of expressions. ``stage`` is where the expression stands: pre, post or
    success.
    """

    operators: Mapping[str, Operator]
    selectors: CustomSelectors
    problems: Problems
    stage: str
    patterns: PatternBudget = field(default_factory=PatternBudget)
    timezone: str = "UTC"
    own_secrets: tuple[Detects, ...] = ()

    def detection(self, kinds: tuple[str, ...], place: Place) -> Leaf:
        """Return the condition that the result holds something of some kinds."""
        prepared = with_own_secrets(DETECTS.prepare(kinds), self.own_secrets)
        return Leaf(parse_selector("result"), DETECTS, kinds, prepared, False, place)

    def of(self, raw: Any) -> Expression | None:
        """Return the expression, or None after reporting a problem."""
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
            self._report_operator(raw)
            return None
        if selector is not None:
            self._check_weekdays(selector, operator, raw)
        computed = self._compute(operator, raw)
        prepared = self._prepare(operator, raw) if computed is None else None
        if selector is None or prepared is WRONG or computed is WRONG:
            return None
        if operator.name == "exists" and selector.root == "args":
            selector = replace(selector, as_sent=True)
        if_missing = self._answer_for_missing(selector, operator, raw.value)
        place = raw.selector
        return Leaf(selector, operator, raw.value, prepared, if_missing, place, computed)

    def _answer_for_missing(
        self, selector: Selector, operator: Operator, value: Any
    ) -> bool | None:
        """Return the answer for a missing field; None where a missing value is an error."""
        if selector.root in self.selectors and operator.name not in ("exists", "empty"):
            return None
        anonymous = operator.negative and selector.root == "principal"
        return anonymous or operator.missing(value)

    def _compute(self, operator: Operator, raw: RawLeaf) -> Any:
        """Return how to compute the value for a call; None when the bundle states it."""
        if operator.take is None:
            return None
        found = self._compute_all(raw)
        return _prepare_for(found, operator, raw.value) if type(found) is Computed else found

    def _compute_all(self, raw: RawLeaf) -> Any:
        if not isinstance(raw.value, tuple | list):
            computed = self._compute_one(raw.value, raw.tree)
            return computed if computed is WRONG or type(computed) is Computed else None
        places = raw.tree.items if isinstance(raw.tree, Seq) else [raw.tree] * len(raw.value)
        items = [self._compute_one(*pair) for pair in zip(raw.value, places, strict=True)]
        if WRONG in items:
            return WRONG
        has_computed = any(type(item) is Computed for item in items)
        return compute_list(items, type(raw.value)) if has_computed else None

    def _compute_one(self, value: Any, place: Place) -> Any:
        """Return a Computed, the value itself when the bundle states it, or WRONG."""
        if isinstance(value, FieldReference):
            selector = self.single_selector(value.selector, value.place)
            return WRONG if selector is None else read_field(selector, self.selectors)
        return self.fill_text(value, place) if isinstance(value, str) else value

    def fill_text(self, text: str, place: Place) -> Any:
        """Return a text as Computed if it has placeholders, else itself; WRONG after reporting."""
        for part in find_placeholders(text):
            if part.escaped:
                continue
            if not self._is_known_root(part.name):
                self._warn_literal(part, place)
            elif self.single_selector(part.name, place) is None:
                return WRONG
        return compile_text(text, self.selectors, self.timezone)

    def _is_known_root(self, name: str) -> bool:
        root = re.split(r"[.\[]", name)[0]
        return root in ROOTS or root in self.selectors

    def _warn_literal(self, part: Placeholder, place: Place) -> None:
        message = f"'{{{part.name}}}' is not a selector and is taken as it is"
        hint = f"Write {{{{{part.name}}}}} if that is meant, or a selector such as {{args.path}}."
        self.problems.warn(place, message, hint)

    def single_selector(self, text: str, place: Place) -> Selector | None:
        """Return a selector of one value, to compare with or to fill in; None after reporting."""
        selector = self.selector(text, place)
        if selector is None or not selector.wild:
            return selector
        message = f"'{text}' stands for several values, and one is needed here"
        hint = "Put it on the left, as the selector of the condition."
        self.problems.add(place, message, hint)
        return None

    def _report_operator(self, raw: RawLeaf) -> None:
        known = [*OPERATORS, *self.operators]
        hint = f"{suggest(raw.operator, known)}Known operators: {join_words(known)}."
        if meant := OPERATOR_SYNONYMS.get(raw.operator):
            hint = f"Did you mean '{meant}'?"
        self.problems.add(raw.operator_place, f"unknown operator '{raw.operator}'", hint)

    def selector(self, text: str, place: Place) -> Selector | None:
        """Return the selector, or None after reporting why it cannot be used at this stage."""
        try:
            selector = parse_selector(text, self.selectors, self.timezone)
        except SelectorError as exc:
            self.problems.add(place, str(exc), exc.hint)
            return None
        if selector.root == "result" and self.stage in ("pre", "limit"):
            message = f"'{text}' is not known before the tool has run"
            self.problems.add(place, message, "Use it in a contract with 'type: post'.")
            return None
        if self.stage in NEVER_WAIT and iscoroutinefunction(self.selectors.get(selector.root)):
            message = f"'{text}' is asynchronous, and {NEVER_WAIT[self.stage]} do not wait"
            self.problems.add(place, message, "Use a selector that is an ordinary function.")
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
        for scalar in () if check else scalars:
            warn_about_literal(scalar, operator.name, self.selectors, self.problems)
        return with_own_secrets(operator.prepare(raw.value), self.own_secrets)

    def pattern(self, place: Scalar) -> Pattern | None:
        """Return a pattern, or None after reporting why it cannot be used."""
        return compile_pattern(place.value) if self._check_pattern(place) else None

    def _check_weekdays(self, selector: Selector, operator: Operator, raw: RawLeaf) -> None:
        """Report a day that does not exist: a condition on it would never hold."""
        is_compared = operator.name in ("equals", "not_equals", "in", "not_in")
        if selector.root != "time" or selector.path[0] != "weekday" or not is_compared:
            return
        values = raw.value if isinstance(raw.value, tuple) else (raw.value,)
        for value in values:
            if not isinstance(value, FieldReference) and value not in WEEKDAYS:
                hint = f"{suggest(str(value), WEEKDAYS)}Use one of: {join_words(WEEKDAYS)}."
                self.problems.add(raw.tree, f"'{value}' is not a day of the week", hint)

    def _check_pattern(self, place: Scalar) -> bool:
        """Report a pattern that cannot be used, and return whether it can; warn about mistakes."""
        text = place.value
        try:
            pattern = self.patterns.compile(text)
        except PatternError as exc:
            self.problems.add(place, f"the pattern {quote_pattern(text)}: {exc}", exc.hint)
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
            message = f"the pattern {quote_pattern(text)} can never match: {why}"
            self.problems.warn(place, message, "Remove what stands on the wrong side.")
        elif pattern.search("") and not text.startswith("^"):
            message = f"the pattern {quote_pattern(text)} matches every text"
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


def _prepare_for(computed: Computed, operator: Operator, written: Any) -> Computed:
    """Return a value of the call as the operator's test takes it."""
    take = operator.take
    assert take is not None  # else the value is the bundle's

    def compute(subject: Subject) -> Any:
        value = computed.compute(subject)
        try:
            return take(value)
        except Mismatch as exc:
            raise Mismatch(
                f"Type mismatch: operator '{operator.name}' compares with {exc}, and {written!r}"
                f" is {type(value).__name__}"
            ) from None

    return Computed(computed.selectors, compute)
