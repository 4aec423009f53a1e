"""The operators: the shape of the value in YAML, the answer for a missing field, the test.

A test gets a value that is there. For a type it cannot judge it raises ``Mismatch``, which counts
as a policy error: the call is refused, because a rule that cannot be applied must not let anything
through.
"""

from __future__ import annotations

import ipaddress
import math
import operator
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
    Record,
    Shape,
    String,
    TextOr,
)
from edictum.core.redaction import Detects, Redactor
from edictum.redaction import PII_NAMES, SECRETS


class Mismatch(TypeError):
    """The field is of a type that the operator cannot judge."""


@dataclass(frozen=True, slots=True)
class Operator:
    """``test(field, prepared value)``; ``missing(value)`` is the answer for a missing field."""

    name: str
    shape: Shape
    test: Callable[[Any, Any], bool]
    summary: str
    prepare: Callable[[Any], Any] = lambda value: value
    missing: Callable[[Any], bool] = lambda _value: False
    negative: bool = False
    custom: bool = False


def _text(field: Any) -> str:
    if isinstance(field, str):
        return field
    raise Mismatch("text")


def _number(field: Any) -> float:
    if isinstance(field, (int, float)) and not (isinstance(field, float) and math.isnan(field)):
        return field
    raise Mismatch("a number")


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


def _patterns(values: tuple[str, ...]) -> tuple[Pattern, ...]:
    return tuple(map(compile_pattern, values))


def _contains(field: Any, part: str | Redactor) -> bool:
    return part.finds(field) if isinstance(part, Redactor) else part in _text(field)


def _prepare_contained(value: Any) -> str | Redactor:
    """Return the text to look for, or what finds the personal data to look for."""
    return redactor_for(tuple(value["pii"])) if isinstance(value, Mapping) else value


@dataclass(frozen=True, slots=True, eq=False)
class SecretTest:
    """Whether there is a secret, compared with what is wanted."""

    redactor: Redactor
    wanted: bool


def _has_secret(field: Any, test: SecretTest) -> bool:
    return test.redactor.finds(field) is test.wanted


_TEXTS = ListOf(String())
_PERSONAL_DATA = Record(
    {
        "pii": Field(
            ListOf(Choice({name.removeprefix("pii."): name for name in PII_NAMES})), required=True
        )
    }
)
_VALUES = ListOf(Anything())
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
    Operator("equals", Anything(), _compare(operator.eq), "the field equals the value"),
    Operator(
        "not_equals",
        Anything(),
        _compare(operator.ne),
        "the field is there and differs",
        negative=True,
    ),
    Operator(
        "equals_ignore_case",
        String(),
        _compare(operator.eq, lambda field: _text(field).casefold()),
        "the text equals the value, upper and lower case alike",
        prepare=str.casefold,
    ),
    Operator("in", _VALUES, _is_in, "the field equals one of the values"),
    Operator(
        "not_in",
        _VALUES,
        _negate(_is_in),
        "the field is there and equals none of the values",
        negative=True,
    ),
    Operator(
        "contains",
        TextOr(_PERSONAL_DATA),
        _contains,
        "the text contains the value; or, with {pii: [...]}, anything contains such personal data",
        prepare=_prepare_contained,
    ),
    Operator(
        "contains_secret",
        Boolean(),
        _has_secret,
        "a secret is in the text, or anywhere in the structure (or, with false, none is)",
        prepare=lambda wanted: SecretTest(redactor_for((SECRETS,)), wanted),
        missing=operator.not_,
    ),
    Operator("contains_any", _TEXTS, _contains_any, "the text contains one of the values"),
    Operator(
        "starts_with", String(), _compare(str.startswith, _text), "the text starts with the value"
    ),
    Operator("ends_with", String(), _compare(str.endswith, _text), "the text ends with the value"),
    Operator(
        "matches",
        String(),
        lambda field, pattern: pattern.search(_text(field)),
        "the pattern is found in the text",
        prepare=compile_pattern,
    ),
    Operator(
        "matches_any",
        _TEXTS,
        _matches_any,
        "one of the patterns is found in the text",
        prepare=_patterns,
    ),
    Operator(
        "matches_none",
        _TEXTS,
        _negate(_matches_any),
        "the field is there and none of the patterns is found in it",
        prepare=_patterns,
        negative=True,
    ),
    *(
        Operator(name, Number(), _compare(compare, _number), f"the number is {words}")
        for name, compare, words, _ in _ORDERS
    ),
    *(
        Operator(f"length_{name}", _SIZE, _compare(compare, _size), f"{_SIZED} is {words}")
        for name, compare, _, words in _ORDERS
    ),
    Operator(
        "in_cidr",
        ListOf(String(), one_will_do=True),
        _in_cidr,
        "the IP address lies in one of the networks",
        prepare=lambda values: tuple(map(_network, values)),
    ),
)


def redactor_of(prepared: Any) -> Redactor | None:
    """Return what finds the secrets or personal data of a condition; None for other conditions."""
    found = prepared.redactor if isinstance(prepared, SecretTest) else prepared
    return found if isinstance(found, Redactor) else None


def with_own_secrets(prepared: Any, own: Sequence[Detects]) -> Any:
    """Return a prepared value that finds the secrets of the bundle as well."""
    if isinstance(prepared, SecretTest):
        return SecretTest(prepared.redactor.with_secrets(own), prepared.wanted)
    return prepared.with_secrets(own) if isinstance(prepared, Redactor) else prepared


# The condition of a contract with ``redact``; it has no name in a bundle.
DETECTS = Operator("holds", Anything(), _contains, "something of some kinds", prepare=redactor_for)
OPERATORS = {each.name: each for each in _TABLE}
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

    return Operator(name, Anything(), test, function.__doc__ or "a custom operator", custom=True)


def check_custom_operators(custom: Mapping[str, Any] | None) -> dict[str, Operator]:
    """Return a guard's custom operators, or raise an error that says what is wrong with them."""
    reserved = {*OPERATORS, "all", "any", "not"}
    check_custom("operator", custom, reserved, bool, "a function (field, value) -> bool")
    return {name: custom_operator(name, function) for name, function in (custom or {}).items()}
