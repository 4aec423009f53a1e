"""The operators: the shape of the value in YAML, the answer for a missing field, the test.

A test gets a value that is there. For a type it cannot judge it raises ``Mismatch``, which counts
as a policy error: the call is refused, because a rule that cannot be applied must not let anything
through.
"""

from __future__ import annotations

import ipaddress
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

from edictum.contracts._regex import Pattern, compile_pattern, pattern_set
from edictum.contracts._shapes import Anything, Boolean, ListOf, Number, Shape, String
from edictum.errors import EdictumConfigError


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


def _comparisons(
    prefix: str, shape: Shape, measure: Callable[[Any], float], summaries: Mapping[str, str]
) -> Iterator[Operator]:
    for name, summary in summaries.items():
        yield Operator(
            prefix + name, shape, _compare(getattr(operator, _SIGNS[name]), measure), summary
        )


def _compare(
    compare: Callable[[Any, Any], bool], measure: Callable[[Any], float]
) -> Callable[[Any, Any], bool]:
    return lambda field, value: compare(measure(field), value)


def _is_in(field: Any, values: tuple[Any, ...]) -> bool:
    return any(field == value for value in values)


def _contains_any(field: Any, parts: tuple[str, ...]) -> bool:
    text = _text(field)
    return any(part in text for part in parts)


def _matches(field: Any, pattern: Pattern) -> bool:
    return pattern.search(_text(field))


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


def _networks(values: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(_network(ipaddress.ip_network(value, strict=False)) for value in values)


def _network(
    network: ipaddress.IPv4Network | ipaddress.IPv6Network,
) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Return a network of mapped IPv4 addresses as one of IPv4, as ``_address`` does."""
    if isinstance(network, ipaddress.IPv4Network) or network.prefixlen < 96:
        return network
    mapped = network.network_address.ipv4_mapped
    return network if mapped is None else ipaddress.IPv4Network((mapped, network.prefixlen - 96))


def _patterns(values: tuple[str, ...]) -> tuple[Pattern, ...]:
    return tuple(map(compile_pattern, values))


_SIGNS = {"gt": "gt", "gte": "ge", "lt": "lt", "lte": "le"}
_TEXTS = ListOf(String())

OPERATORS: dict[str, Operator] = {
    op.name: op
    for op in (
        Operator(
            "exists",
            Boolean(),
            lambda _field, wanted: wanted,
            "the field is there and not null (or, with false, is not)",
            missing=lambda wanted: not wanted,
        ),
        Operator(
            "empty",
            Boolean(),
            lambda field, wanted: (_size(field) == 0) is wanted,
            "the field is missing, null, or an empty text, list or mapping (or, with false, is none"
            " of these)",
            missing=bool,
        ),
        Operator(
            "equals",
            Anything(),
            lambda field, value: bool(field == value),
            "the field equals the value",
        ),
        Operator(
            "not_equals",
            Anything(),
            lambda field, value: bool(field != value),
            "the field is there and differs",
            negative=True,
        ),
        Operator(
            "equals_ignore_case",
            String(),
            lambda field, value: _text(field).casefold() == value,
            "the text equals the value, upper and lower case alike",
            prepare=str.casefold,
        ),
        Operator("in", ListOf(Anything()), _is_in, "the field equals one of the values"),
        Operator(
            "not_in",
            ListOf(Anything()),
            lambda field, values: not _is_in(field, values),
            "the field is there and equals none of the values",
            negative=True,
        ),
        Operator(
            "contains",
            String(),
            lambda field, value: value in _text(field),
            "the text contains the value",
        ),
        Operator("contains_any", _TEXTS, _contains_any, "the text contains one of the values"),
        Operator(
            "starts_with",
            String(),
            lambda field, value: _text(field).startswith(value),
            "the text starts with the value",
        ),
        Operator(
            "ends_with",
            String(),
            lambda field, value: _text(field).endswith(value),
            "the text ends with the value",
        ),
        Operator(
            "matches",
            String(),
            _matches,
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
            lambda field, patterns: not _matches_any(field, patterns),
            "the field is there and none of the patterns is found in it",
            prepare=_patterns,
            negative=True,
        ),
        *_comparisons(
            "",
            Number(),
            _number,
            {
                "gt": "the number is greater",
                "gte": "the number is greater or equal",
                "lt": "the number is less",
                "lte": "the number is less or equal",
            },
        ),
        *_comparisons(
            "length_",
            Number(whole=True, at_least=0),
            _size,
            {
                "gt": "the text, list or mapping is longer",
                "gte": "the text, list or mapping is at least as long",
                "lt": "the text, list or mapping is shorter",
                "lte": "the text, list or mapping is at most as long",
            },
        ),
        Operator(
            "in_cidr",
            ListOf(String(), one_will_do=True),
            _in_cidr,
            "the IP address lies in one of the networks",
            prepare=_networks,
        ),
    )
}
REGEX_OPERATORS = frozenset({"matches", "matches_any", "matches_none"})


def custom_operator(name: str, function: Callable[[Any, Any], Any]) -> Operator:
    """Make an operator of a user-supplied function, which raises if it is asynchronous."""

    def test(field: Any, value: Any) -> bool:
        answer = function(field, value)
        if isawaitable(answer):
            getattr(answer, "close", lambda: None)()
            raise TypeError(
                f"the custom operator '{name}' is asynchronous; operators are plain functions"
            )
        return bool(answer)

    return Operator(name, Anything(), test, function.__doc__ or "a custom operator", custom=True)


def check_custom_operators(custom: Mapping[str, Any] | None) -> dict[str, Operator]:
    """Return a guard's custom operators, or raise an error that says what is wrong with them."""
    custom = dict(custom or {})
    if clash := sorted(set(custom) & (set(OPERATORS) | {"all", "any", "not"})):
        raise EdictumConfigError(
            f"Custom operator names clash with built-in operators: {clash}.",
            hint="Choose other names.",
        )
    for name, function in custom.items():
        if not isinstance(name, str) or not name:
            raise EdictumConfigError(f"Custom operator {name!r} is not a name.", hint="Use a word.")
        if not callable(function):
            raise EdictumConfigError(
                f"Custom operator '{name}' is not callable.",
                hint="Pass a function (field, value) -> bool.",
            )
    return {name: custom_operator(name, function) for name, function in custom.items()}
