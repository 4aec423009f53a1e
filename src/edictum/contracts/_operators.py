"""The operators: the shape of the value in YAML, the answer for a missing field, the test.

A test gets a value that is there. For a type it cannot judge it raises ``Mismatch``, which counts
as a policy error: the call is refused, because a rule that cannot be applied must not let anything
through.
"""

from __future__ import annotations

import ipaddress
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

from edictum.contracts._detect import redactor_for
from edictum.contracts._regex import Pattern, compile_pattern, pattern_set
from edictum.contracts._selectors import check_custom
from edictum.contracts._shapes import (
    Anything,
    Boolean,
    Choice,
    Field,
    ListOf,
    Number,
    OrField,
    Record,
    Shape,
    String,
    TextOr,
    TimeRange,
)
from edictum.core.redaction import Detects, Redactor
from edictum.redaction import PII_NAMES, SECRETS


class Mismatch(TypeError):
    """The field is of a type that the operator cannot judge."""

    is_for_model = True


@dataclass(frozen=True, slots=True)
class Operator:
    """``test(field, prepared value)``; ``missing(value)`` is the answer for a missing field.

    ``take`` prepares a value that comes from the call and not from the bundle, or raises Mismatch;
    None: values come from the bundle only.
    """

    name: str
    shape: Shape
    test: Callable[[Any, Any], bool]
    summary: str
    prepare: Callable[[Any], Any] = lambda value: value
    missing: Callable[[Any], bool] = lambda _value: False
    take: Callable[[Any], Any] | None = None
    negative: bool = False
    custom: bool = False

    @property
    def value_shape(self) -> Shape:
        return self.shape if self.take is None else OrField(self.shape)


def _text(field: Any) -> str:
    if isinstance(field, str):
        return field
    raise Mismatch("text")


def _number(field: Any) -> float:
    if isinstance(field, (int, float)) and not (isinstance(field, float) and math.isnan(field)):
        return field
    raise Mismatch("a number")


def _any(value: Any) -> Any:
    return value


def _size(field: Any) -> int:
    if isinstance(field, Sized) and not isinstance(field, (bytes, bytearray)):
        return len(field)
    raise Mismatch("text, a list or a mapping")


def _compare(
    compare: Callable[[Any, Any], Any], measure: Callable[[Any], Any] = lambda field: field
) -> Callable[[Any, Any], bool]:
    """Return a test that compares a measure of the field with the value."""
    return lambda field, value: bool(compare(measure(field), value))


def _negate(test: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda field, value: not test(field, value)


def _is_in(field: Any, values: tuple[Any, ...]) -> bool:
    return any(field == value for value in values)


def _contains_any(field: Any, parts: tuple[str, ...]) -> bool:
    text = _text(field)
    return any(part in text for part in parts)


def _matches_any(field: Any, patterns: tuple[Pattern, ...]) -> bool:
    text = _text(field)
    if len(patterns) == 1:
        return patterns[0].search(text)
    return pattern_set(tuple(pattern.source for pattern in patterns)).any(text)


def _address(field: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        address = ipaddress.ip_address(_text(field).strip().strip("[]"))
    except ValueError:
        raise Mismatch("an IP address") from None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _in_cidr(field: Any, networks: tuple[Any, ...]) -> bool:
    address = _address(field)
    return any(address in network for network in networks)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Return a network; one of mapped IPv4 addresses as one of IPv4, as ``_address`` does."""
    network = ipaddress.ip_network(text, strict=False)
    if isinstance(network, ipaddress.IPv4Network) or network.prefixlen < 96:
        return network
    mapped = network.network_address.ipv4_mapped
    return network if mapped is None else ipaddress.IPv4Network((mapped, network.prefixlen - 96))


def _items(value: Any) -> tuple[Any, ...]:
    if isinstance(value, (list, tuple, set, frozenset)):
        return tuple(value)
    raise Mismatch("a list")


def _text_items(value: Any) -> tuple[str, ...]:
    return tuple(map(_text, _items(value)))


def _networks(value: Any) -> tuple[Any, ...]:
    try:
        texts = (value,) if isinstance(value, str) else _text_items(value)
        return tuple(map(_network, texts))
    except ValueError:
        raise Mismatch("networks such as 10.0.0.0/8") from None


def _minutes(field: Any) -> int:
    """Return a time of day in minutes since midnight."""
    found = _TIME.fullmatch(_text(field))
    minutes = int(found.group(1)) * 60 + int(found.group(2)) if found else MINUTES_OF_A_DAY + 1
    if minutes > MINUTES_OF_A_DAY:
        raise Mismatch("a time of day such as 09:30")
    return minutes


def _between(field: Any, times: tuple[int, int]) -> bool:
    minutes, (first, end) = _minutes(field), times
    if first < end:
        return first <= minutes < end
    return minutes >= first or minutes < end  # over midnight


def _patterns(values: tuple[str, ...]) -> tuple[Pattern, ...]:
    return tuple(map(compile_pattern, values))


def _contains(field: Any, part: str | Redactor) -> bool:
    return part.finds(field) if isinstance(part, Redactor) else part in _text(field)


def _prepare_text_or_redactor(value: Any) -> str | Redactor:
    """Return the text to look for, or a Redactor that finds the personal data to look for."""
    return redactor_for(tuple(value["pii"])) if isinstance(value, Mapping) else value


@dataclass(frozen=True, slots=True, eq=False)
class SecretTest:
    """Whether a secret is wanted, and the Redactor that finds one."""

    redactor: Redactor
    wanted: bool


def _has_secret(field: Any, test: SecretTest) -> bool:
    return test.redactor.finds(field) is test.wanted


MINUTES_OF_A_DAY = 24 * 60
_TIME = re.compile(r"([0-9]{1,2}):([0-5][0-9])(?::[0-5][0-9])?")
_PATTERNS = ListOf(String())
_TEXTS = ListOf(OrField(String()))
_VALUES = ListOf(OrField(Anything()))
_PERSONAL_DATA = Record(
    {
        "pii": Field(
            ListOf(Choice({name.removeprefix("pii."): name for name in PII_NAMES})), required=True
        )
    }
)
_SIZE = Number(whole=True, at_least=0)
_EMPTY = (
    "the field is missing, null, or an empty text, list or mapping (or, with false, is none of"
    " these)"
)
_SIZED = "the text, list or mapping"
# By name: the comparison, and what it says about numbers and about lengths.
_ORDERS: tuple[tuple[str, Callable[[Any, Any], Any], str, str], ...] = (
    ("gt", operator.gt, "greater", "longer"),
    ("gte", operator.ge, "greater or equal", "at least as long"),
    ("lt", operator.lt, "less", "shorter"),
    ("lte", operator.le, "less or equal", "at most as long"),
)
_TABLE = (
    Operator(
        "exists",
        Boolean(),
        lambda _field, wanted: wanted,
        "the field is there and not null (or, with false, is not)",
        missing=operator.not_,
    ),
    Operator(
        "empty",
        Boolean(),
        lambda field, wanted: (_size(field) == 0) is wanted,
        _EMPTY,
        missing=bool,
    ),
    Operator("equals", Anything(), _compare(operator.eq), "the field equals the value", take=_any),
    Operator(
        "not_equals",
        Anything(),
        _compare(operator.ne),
        "the field is there and differs",
        take=_any,
        negative=True,
    ),
    Operator(
        "equals_ignore_case",
        String(),
        _compare(operator.eq, lambda field: _text(field).casefold()),
        "the text equals the value, upper and lower case alike",
        prepare=str.casefold,
        take=lambda value: _text(value).casefold(),
    ),
    Operator("in", _VALUES, _is_in, "the field equals one of the values", take=_items),
    Operator(
        "not_in",
        _VALUES,
        _negate(_is_in),
        "the field is there and equals none of the values",
        take=_items,
        negative=True,
    ),
    Operator(
        "contains",
        TextOr(_PERSONAL_DATA),
        _contains,
        "the text contains the value; or, with {pii: [...]}, anything contains such personal data",
        prepare=_prepare_text_or_redactor,
        take=_text,
    ),
    Operator(
        "contains_secret",
        Boolean(),
        _has_secret,
        "a secret is in the text, or anywhere in the structure (or, with false, none is)",
        prepare=lambda wanted: SecretTest(redactor_for((SECRETS,)), wanted),
        missing=operator.not_,
    ),
    Operator(
        "contains_any",
        _TEXTS,
        _contains_any,
        "the text contains one of the values",
        take=_text_items,
    ),
    Operator(
        "starts_with",
        String(),
        _compare(str.startswith, _text),
        "the text starts with the value",
        take=_text,
    ),
    Operator(
        "ends_with",
        String(),
        _compare(str.endswith, _text),
        "the text ends with the value",
        take=_text,
    ),
    Operator(
        "matches",
        String(),
        lambda field, pattern: pattern.search(_text(field)),
        "the pattern is found in the text",
        prepare=compile_pattern,
    ),
    Operator(
        "matches_any",
        _PATTERNS,
        _matches_any,
        "one of the patterns is found in the text",
        prepare=_patterns,
    ),
    Operator(
        "matches_none",
        _PATTERNS,
        _negate(_matches_any),
        "the field is there and none of the patterns is found in it",
        prepare=_patterns,
        negative=True,
    ),
    *(
        Operator(name, Number(), _compare(compare, _number), f"the number is {words}", take=_number)
        for name, compare, words, _ in _ORDERS
    ),
    *(
        Operator(
            f"length_{name}", _SIZE, _compare(compare, _size), f"{_SIZED} is {words}", take=_number
        )
        for name, compare, _, words in _ORDERS
    ),
    Operator(
        "in_cidr",
        ListOf(String(), one_will_do=True),
        _in_cidr,
        "the IP address lies in one of the networks",
        prepare=_networks,
        take=_networks,
    ),
    Operator(
        "between",
        TimeRange(),
        _between,
        "the time of day is the first or later and before the second, over midnight if that is"
        " earlier",
        prepare=lambda times: tuple(map(_minutes, times)),
    ),
)


def redactor_of(prepared: Any) -> Redactor | None:
    """Return the Redactor of a condition on secrets or personal data; None for other conditions."""
    found = prepared.redactor if isinstance(prepared, SecretTest) else prepared
    return found if isinstance(found, Redactor) else None


def with_own_secrets(prepared: Any, own: Sequence[Detects]) -> Any:
    """Return a prepared value that also finds the secrets that the bundle describes."""
    if isinstance(prepared, SecretTest):
        return SecretTest(prepared.redactor.with_secrets(own), prepared.wanted)
    return prepared.with_secrets(own) if isinstance(prepared, Redactor) else prepared


# The condition of a contract with ``redact``; it has no name in a bundle.
DETECTS = Operator("holds", Anything(), _contains, "something of some kinds", prepare=redactor_for)
OPERATORS = {each.name: each for each in _TABLE}
# Names of operators in other languages, and those that they mean here.
OPERATOR_SYNONYMS = {
    **dict.fromkeys((">", "greater_than", "above", "over"), "gt"),
    **dict.fromkeys((">=", "=>", "ge", "at_least"), "gte"),
    **dict.fromkeys(("<", "less_than", "below", "under"), "lt"),
    **dict.fromkeys(("<=", "=<", "le", "at_most"), "lte"),
    **dict.fromkeys(("=", "==", "===", "eq", "is"), "equals"),
    **dict.fromkeys(("!=", "<>", "ne", "neq", "is_not"), "not_equals"),
    **dict.fromkeys(("one_of", "any_of"), "in"),
    **dict.fromkeys(("regex", "regexp", "re", "pattern", "=~"), "matches"),
    **dict.fromkeys(("prefix", "begins_with"), "starts_with"),
    "suffix": "ends_with",
    "includes": "contains",
    "cidr": "in_cidr",
}
REGEX_OPERATORS = frozenset({"matches", "matches_any", "matches_none"})


def custom_operator(name: str, function: Callable[[Any, Any], Any]) -> Operator:
    """Make an operator of a user-supplied function, which raises if it is asynchronous."""

    def test(field: Any, value: Any) -> bool:
        answer = function(field, value)
        if isawaitable(answer):
            getattr(answer, "close", lambda: None)()
            message = f"the custom operator '{name}' is asynchronous; operators are plain functions"
            raise TypeError(message)
        return bool(answer)

    summary = function.__doc__ or "a custom operator"
    return Operator(name, Anything(), test, summary, take=_any, custom=True)


def check_custom_operators(custom: Mapping[str, Any] | None) -> dict[str, Operator]:
    """Return a guard's custom operators, or raise an error that says what is wrong with them."""
    reserved = {*OPERATORS, "all", "any", "not"}
    check_custom("operator", custom, reserved, bool, "a function (field, value) -> bool")
    return {name: custom_operator(name, function) for name, function in (custom or {}).items()}
