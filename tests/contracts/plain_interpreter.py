"""A plain interpreter of conditions, written from the documentation and not from the compiler: it
reads the YAML as data.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any


class Broken(Exception):
    """The condition cannot be judged: a policy error."""


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise Broken
    return value


def number(value: Any) -> float:
    if not isinstance(value, (int, float)):
        raise Broken
    return value


def size(value: Any) -> int:
    if not isinstance(value, (str, list, dict)):
        raise Broken
    return len(value)


def address(value: Any) -> Any:
    try:
        return ipaddress.ip_address(text(value))
    except ValueError:
        raise Broken from None


OPERATORS: dict[str, Any] = {
    "equals": lambda field, value: field == value,
    "not_equals": lambda field, value: field != value,
    "equals_ignore_case": lambda field, value: text(field).casefold() == value.casefold(),
    "in": lambda field, value: any(field == item for item in value),
    "not_in": lambda field, value: not any(field == item for item in value),
    "contains": lambda field, value: value in text(field),
    "contains_any": lambda field, value: any(item in text(field) for item in value),
    "starts_with": lambda field, value: text(field).startswith(value),
    "ends_with": lambda field, value: text(field).endswith(value),
    "matches": lambda field, value: re.search(value, text(field)) is not None,
    "matches_any": lambda field, value: any(re.search(item, text(field)) for item in value),
    "matches_none": lambda field, value: not any(re.search(item, text(field)) for item in value),
    "gt": lambda field, value: number(field) > value,
    "gte": lambda field, value: number(field) >= value,
    "lt": lambda field, value: number(field) < value,
    "lte": lambda field, value: number(field) <= value,
    "length_gt": lambda field, value: size(field) > value,
    "length_gte": lambda field, value: size(field) >= value,
    "length_lt": lambda field, value: size(field) < value,
    "length_lte": lambda field, value: size(field) <= value,
    "in_cidr": lambda field, value: any(
        address(field) in ipaddress.ip_network(item) for item in value
    ),
}


def reach(value: Any, steps: list[str]) -> list[Any]:
    """The values at the end of a path; several when a step is ``[*]``."""
    if not steps or value is None:
        return [value]
    step, rest = steps[0], steps[1:]
    if step == "[*]":
        if not isinstance(value, list):
            raise Broken
        return [found for item in value for found in reach(item, rest)] or [None]
    if isinstance(value, dict):
        return reach(value.get(step), rest)
    if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
        return reach(value[int(step)], rest)
    return [None]


def one(field: Any, operator: str, value: Any, *, principal: bool) -> bool:
    if operator == "exists":
        return (field is not None) is value
    if operator == "empty":
        return (field is None or size(field) == 0) is value
    if field is None:
        return principal and operator in ("not_equals", "not_in", "matches_none")
    return bool(OPERATORS[operator](field, value))


def leaf(selector: str, operator: str, value: Any, subject: dict[str, Any]) -> bool:
    root, *steps = re.findall(r"\[\*\]|[^.\[]+", selector)
    fields = reach(subject.get(root), steps)
    answers = [one(field, operator, value, principal=root == "principal") for field in fields]
    return any(answers)


def holds(expression: dict[str, Any], subject: dict[str, Any]) -> bool:
    """Whether a condition holds; raises Broken when it cannot be judged. From left to right, the
    first that decides does.
    """
    ((word, body),) = expression.items()
    if word == "all":
        return all(holds(item, subject) for item in body)
    if word == "any":
        return any(holds(item, subject) for item in body)
    if word == "not":
        return not holds(body, subject)
    ((operator, value),) = body.items()
    return leaf(word, operator, value, subject)
