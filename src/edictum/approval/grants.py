"""Grants: a yes that counts for further calls, until a time.

A grant is bound to a tool, a principal, what the policy says and the contracts that asked; to one
session, or to the principal in all of them; and to arguments: those of the call it was given for,
except where it has a pattern.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from edictum.approval._rows import GrantRow, GrantStatus, RequestRow
from edictum.core.freeze import EMPTY
from edictum.core.values import TooDeepError, digest, dumps, is_same
from edictum.errors import EdictumInputError

SESSION_GRANT_S = 86_400.0  # how long a grant without ``until`` counts
RANGE_KEYS = frozenset({"at_least", "at_most"})
# what no wildcard matches: characters that join commands in a shell, controls, and parent
# directories
_UNSAFE = re.compile(r"[;&|`$<>\x00-\x1f\x7f-\x9f\u2028\u2029]|(^|[\\/])\.\.([\\/]|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantTerms:
    """For which further calls of the same tool a yes counts.

    ``scope``: calls of this session, or of this principal in any session. ``args`` has patterns for
    arguments that may differ: a text in which ``*`` stands for any characters (but a text with
    characters that join commands in a shell, or with ``..`` in a path, fits none),
    ``{"at_most": 50}`` or ``{"at_least": 1}`` for numbers, a list of such patterns, or a plain
    value. All other arguments must be those of the approved call, unless
    ``other_args`` is "any". ``until`` has a time zone; without it a grant for a session counts for
    a day.
    """

    scope: Literal["session", "principal"] = "session"
    args: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    other_args: Literal["same", "any"] = "same"
    until: datetime | None = None

    def __post_init__(self) -> None:
        for problem in _find_problems(self):
            hint = "See 'Grants' in the guide on answers."
            raise EdictumInputError(f"GrantTerms: {problem}.", hint=hint)

    def as_dict(self) -> dict[str, Any]:
        """Return the terms as JSON-ready data."""
        until = None if self.until is None else self.until.timestamp()
        return {
            "scope": self.scope,
            "args": dict(self.args),
            "other_args": self.other_args,
            "until": until,
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> GrantTerms:
        """Return the terms of ``as_dict``."""
        until = None if data["until"] is None else datetime.fromtimestamp(data["until"], UTC)
        return GrantTerms(**{**data, "until": until})


def _find_problems(terms: GrantTerms) -> Iterable[str]:
    if terms.scope not in ("session", "principal"):
        yield f"scope is {terms.scope!r:.80}, not 'session' or 'principal'"
    if terms.other_args not in ("same", "any"):
        yield f"other_args is {terms.other_args!r:.80}, not 'same' or 'any'"
    if not isinstance(terms.args, Mapping) or not all(isinstance(it, str) for it in terms.args):
        yield "args is not a mapping of names to patterns"
    elif not all(_is_pattern(it) for it in terms.args.values()):
        yield "args has a range whose bounds are not numbers"
    if terms.until is not None and not _has_time_zone(terms.until):
        yield "until is not a datetime with a time zone"
    if terms.scope == "principal" and terms.until is None:
        yield "a grant for a principal says until when it counts"


def _has_time_zone(value: Any) -> bool:
    return isinstance(value, datetime) and value.tzinfo is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_range(pattern: Any) -> bool:
    return isinstance(pattern, Mapping) and bool(pattern) and pattern.keys() <= RANGE_KEYS


def _is_pattern(pattern: Any) -> bool:
    if isinstance(pattern, (list, tuple)):
        return all(_is_pattern(it) for it in pattern)
    return not _is_range(pattern) or all(_is_number(it) for it in pattern.values())


def mark_args(args: Mapping[str, Any]) -> dict[str, str] | None:
    """Return a digest of each argument, by which it is recognised; None if one of them cannot have
    one.
    """
    try:
        return {name: digest(name, value) for name, value in args.items()}
    except TooDeepError:
        return None


def make_grant(
    row: RequestRow, terms: Mapping[str, Any], grant_id: str, now: float
) -> GrantRow | str:
    """Return the grant of an approved request, or the reason why it cannot have one."""
    scope, until = terms["scope"], terms["until"]
    binding = (row.bindings or EMPTY).get(scope)
    if binding is None:
        return f"There cannot be a grant for its {scope}, which is not known."
    expires_at = now + SESSION_GRANT_S if until is None else until
    if expires_at <= now:
        return "The time until which the grant would count has passed."
    if row.marks is None and terms["other_args"] == "same":
        return "There cannot be a grant for the same arguments: they are too deep to compare."
    others = {
        name: mark for name, mark in (row.marks or EMPTY).items() if name not in terms["args"]
    }
    return GrantRow(
        row_id=grant_id,
        binding=binding,
        session_id=row.session_id if scope == "session" else None,
        tool_name=row.tool_name,
        principal=row.principal,
        askers=row.askers,
        patterns=terms["args"],
        marks=others if terms["other_args"] == "same" else None,
        approver=row.approver or "",
        reason=row.reason,
        approval_id=row.row_id,
        asked_at=now,
        expires_at=expires_at,
        changed_at=now,
    )


def is_in_force(grant: GrantRow, now: float) -> bool:
    return grant.status is GrantStatus.ACTIVE and grant.expires_at > now


def find_grant(
    grants: Sequence[GrantRow], row: RequestRow, args: Mapping[str, Any], now: float
) -> GrantRow | None:
    """Return a grant in force that answers a request about a call with these arguments."""
    return next((it for it in grants if is_in_force(it, now) and _covers(it, row, args)), None)


def _covers(grant: GrantRow, row: RequestRow, args: Mapping[str, Any]) -> bool:
    is_bound = grant.binding in (row.bindings or EMPTY).values()
    if not is_bound or not row.askers or not set(row.askers) <= set(grant.askers):
        return False
    if not all(name in args and matches(it, args[name]) for name, it in grant.patterns.items()):
        return False
    if grant.marks is None:
        return True
    marks = row.marks if row.marks is not None else {}
    others = {name: mark for name, mark in marks.items() if name not in grant.patterns}
    return row.marks is not None and others == grant.marks


def matches(pattern: Any, value: Any) -> bool:
    """Return whether an argument is what a pattern of a grant allows."""
    if isinstance(pattern, (list, tuple)):
        return any(matches(it, value) for it in pattern)
    if _is_range(pattern):
        return _is_number(value) and _is_within(pattern, value)
    if isinstance(pattern, str) and "*" in pattern:
        return isinstance(value, str) and _matches_text(pattern, value)
    return is_same(json.loads(dumps(pattern)), json.loads(dumps(value)))


def _is_within(pattern: Mapping[str, Any], value: float) -> bool:
    at_least, at_most = pattern.get("at_least"), pattern.get("at_most")
    return (at_least is None or value >= at_least) and (at_most is None or value <= at_most)


def _matches_text(pattern: str, text: str) -> bool:
    first, *parts, last = pattern.split("*")
    if _UNSAFE.search(text) or not text.startswith(first):
        return False
    at = len(first)
    for part in parts:
        found = text.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return text.endswith(last) and len(text) - len(last) >= at
