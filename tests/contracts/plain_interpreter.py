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


def items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Broken
    return value


def networks(value: Any) -> list[Any]:
    texts = [value] if isinstance(value, str) else items(value)
    try:
        return [ipaddress.ip_network(text(item), strict=False) for item in texts]
    except ValueError:
        raise Broken from None


def minutes(value: Any) -> int:
    found = re.fullmatch(r"(\d\d?):([0-5]\d)(:[0-5]\d)?", text(value))
    if found is None or int(found[1]) * 60 + int(found[2]) > 24 * 60:
        raise Broken
    return int(found[1]) * 60 + int(found[2])


def between(field: Any, times: list[str]) -> bool:
    first, end = map(minutes, times)
    passed = (minutes(field) - first) % (24 * 60)
    return passed < (end - first) % (24 * 60)


# What a value that is taken from the call has to be, by operator.
TAKEN: dict[str, Any] = {
    **dict.fromkeys(("in", "not_in"), items),
    **dict.fromkeys(("contains", "starts_with", "ends_with", "equals_ignore_case"), text),
    "contains_any": lambda value: [text(item) for item in items(value)],
    **{
        f"{kind}{order}": number for kind in ("", "length_") for order in ("gt", "gte", "lt", "lte")
    },
    "in_cidr": networks,
}
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
    "in_cidr": lambda field, value: any(address(field) in network for network in networks(value)),
    "between": between,
}


def reach(value: Any, steps: list[str]) -> list[Any]:
    """The values at the end of a path; several when a step is ``[*]``."""
    if not steps or value is None:
        return [value]
    step, rest = steps[0], steps[1:]
    if step == "*":
        return texts(value) or [None]
    if step == "[*]":
        if not isinstance(value, list):
            raise Broken
        return [found for item in value for found in reach(item, rest)] or [None]
    if isinstance(value, dict):
        return reach(value.get(step), rest)
    if isinstance(value, list) and step.isdecimal() and int(step) < len(value):
        return reach(value[int(step)], rest)
    return [None]


def texts(value: Any) -> list[str]:
    """Every text in a value, keys included."""
    if isinstance(value, dict):
        return [found for pair in value.items() for part in pair for found in texts(part)]
    if isinstance(value, list):
        return [found for item in value for found in texts(item)]
    return [value] if isinstance(value, str) else []


def single(selector: str, subject: dict[str, Any]) -> Any:
    """The value of a selector that something is compared with; one that is missing is an error."""
    root, *steps = re.findall(r"\[\*\]|[^.\[]+", selector)
    (value,) = reach(subject.get(root), steps)
    if value is None:
        raise Broken
    return value


def fill(template: str, subject: dict[str, Any]) -> str:
    """A text with its placeholders filled in."""

    def part(found: re.Match[str]) -> str:
        value = single(found[1], subject)
        if not isinstance(value, (str, int)) or isinstance(value, bool) or value == "":
            raise Broken
        if "/" in template and (str(value) in (".", "..") or "/" in str(value)):
            raise Broken
        return str(value)

    return re.sub(r"\{([a-z]+\.[a-z.]+)\}", part, template)


def taken(operator: str, value: Any, subject: dict[str, Any]) -> Any:
    """The value of a condition for this call."""
    if isinstance(value, dict) and value.keys() == {"field"}:
        return TAKEN.get(operator, lambda it: it)(single(value["field"], subject))
    if isinstance(value, list) and operator in ("in", "not_in", "contains_any"):
        values = [taken("equals", item, subject) for item in value]
        return TAKEN[operator](values)
    return fill(value, subject) if isinstance(value, str) and "matches" not in operator else value


def one(field: Any, operator: str, value: Any, subject: dict[str, Any], *, principal: bool) -> bool:
    if operator == "exists":
        return (field is not None) is value
    if operator == "empty":
        return (field is None or size(field) == 0) is value
    if field is None:
        return principal and operator in ("not_equals", "not_in", "matches_none")
    return bool(OPERATORS[operator](field, taken(operator, value, subject)))


def leaf(selector: str, operator: str, value: Any, subject: dict[str, Any]) -> bool:
    root, *steps = re.findall(r"\[\*\]|[^.\[]+", selector)
    start = subject.get(root)
    if root == "args" and steps == ["*"]:  # the names of the arguments are the tool's
        start = list(start.values())
    fields = reach(start, steps)
    principal = root == "principal"
    answers = [one(it, operator, value, subject, principal=principal) for it in fields]
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


# Operators whose value can be taken from the call.
COMPARABLE = {"equals", "not_equals", *TAKEN}
