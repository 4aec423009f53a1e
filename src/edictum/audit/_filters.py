"""Filters: which events a query asks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeAlias, TypedDict

from edictum._audit_event import AuditAction
from edictum.core.durations import parse_duration
from edictum.errors import EdictumInputError

EventData: TypeAlias = dict[str, Any]  # one event, as ``AuditEvent.to_dict`` returns it
NameFilter: TypeAlias = str | Sequence[str] | None
MomentFilter: TypeAlias = datetime | str | None

OUTCOMES = ("executed", "artifact", "failed", "timeout", "denied")
ACTIONS = tuple(action.value for action in AuditAction)
PRINCIPAL_IDS = ("user_id", "service_id", "org_id")
_PLAIN = re.compile(r"[A-Za-z0-9_.:@-]+")  # what JSON writes as it is, and what is not a glob


class FilterOptions(TypedDict, total=False):
    """The keywords of a query."""

    since: MomentFilter
    until: MomentFilter
    session: NameFilter
    principal: NameFilter
    tool: NameFilter
    action: NameFilter
    contract: NameFilter
    outcome: NameFilter
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """The events that a query asks for. An empty field lets every event pass; of several names in a
    field one is enough. ``since`` is included, ``until`` is not.

    ``session``, ``principal``, ``tool`` and ``contract`` are names or globs. A principal is matched
    by its user, service or organization; a contract by its decision or its objection. ``text`` is
    searched for in all values, ignoring case.
    """

    since: datetime | None = None
    until: datetime | None = None
    session: tuple[str, ...] = ()
    principal: tuple[str, ...] = ()
    tool: tuple[str, ...] = ()
    action: tuple[str, ...] = ()
    contract: tuple[str, ...] = ()
    outcome: tuple[str, ...] = ()
    text: str = ""

    def list_tests(self) -> list[Callable[[EventData], bool]]:
        """Return one predicate for each field that is not empty, cheap ones first."""
        tests: list[Callable[[EventData], bool]] = []
        for name in ("outcome", "action"):
            if wanted := getattr(self, name):
                tests.append(partial(_is_one_of, name, wanted))
        for name, find in _NAMES.items():
            if wanted := getattr(self, name):
                tests.append(partial(_has_match, find, wanted))
        if self.since is not None or self.until is not None:
            tests.append(self._is_in_time)
        if self.text:
            tests.append(self._has_text)
        return tests

    def list_needles(self) -> list[tuple[bytes, ...]]:
        """Return texts of which the line of a matching event has at least one of each tuple. A line
        without them need not be parsed.
        """
        wanted = (getattr(self, name) for name in ("outcome", "action", *_NAMES))
        plain = (
            names for names in wanted if names and all(_PLAIN.fullmatch(name) for name in names)
        )
        return [tuple(f'"{name}"'.encode() for name in names) for names in plain]

    def describe(self) -> dict[str, Any]:
        """Return the fields that are not empty, ready for JSON."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in given.items()
            if value
        }

    def _is_in_time(self, event: EventData) -> bool:
        at = read_timestamp(event)
        return (self.since is None or at >= self.since) and (self.until is None or at < self.until)

    def _has_text(self, event: EventData) -> bool:
        wanted = self.text.casefold()
        return any(wanted in text.casefold() for text in _walk_texts(event))


def read_filter(options: FilterOptions) -> EventFilter:
    """Return the filter for these keywords; raise for a value that no event can have."""
    now = datetime.now(UTC)
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if unknown := given.keys() - {item.name for item in fields(EventFilter)}:
        raise TypeError(f"unknown filter {min(unknown)!r}")
    for name, value in given.items():
        if name in ("since", "until"):
            given[name] = parse_moment(name, value, now)
        elif name != "text":
            given[name] = (value,) if isinstance(value, str) else tuple(value)
    _check_values("action", given.get("action", ()), ACTIONS)
    _check_values("outcome", given.get("outcome", ()), OUTCOMES)
    wanted = EventFilter(**given)
    _check_period(wanted)
    return wanted


def _check_period(wanted: EventFilter) -> None:
    if wanted.since and wanted.until and wanted.since > wanted.until:
        hint = "No event is in between. Give the earlier time as since."
        raise EdictumInputError("since is later than until.", hint=hint)


def parse_moment(name: str, value: datetime | str, now: datetime) -> datetime:
    """Return a moment: a datetime, ISO 8601, or a length of time before now such as "24h"."""
    if isinstance(value, str):
        ago = parse_duration(value)
        try:
            value = datetime.fromisoformat(value) if ago is None else now - timedelta(seconds=ago)
        except (ValueError, OverflowError):
            raise EdictumInputError(
                f"{name} is {value!r}, not a time.",
                hint='Use ISO 8601 ("2026-07-01T09:30") or a length of time before now ("24h").',
            ) from None
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def read_timestamp(event: EventData) -> datetime:
    """Return when an event was made; one without a time zone is UTC. Raise for a year that other
    time zones may not have.
    """
    at = datetime.fromisoformat(event["timestamp"])
    if not MINYEAR < at.year < MAXYEAR:
        raise ValueError(f"an event of the year {at.year}")
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def list_contracts(event: EventData) -> Iterator[Mapping[str, Any]]:
    """Yield the records of the contracts that were asked."""
    records = event.get("contracts_evaluated")
    if isinstance(records, list | tuple):
        yield from (record for record in records if isinstance(record, dict))


def list_objections(event: EventData) -> Iterator[Mapping[str, Any]]:
    """Yield the records of the contracts that objected."""
    return (record for record in list_contracts(event) if record.get("passed") is False)


def name_principal(event: EventData) -> str:
    """Return the user, or else the service or organization, on whose behalf a call was made."""
    return next(_find_principal(event), "") if event.get("principal") else ""


def _find_principal(event: EventData) -> Iterator[str]:
    principal = event.get("principal")
    if isinstance(principal, dict):
        for name in PRINCIPAL_IDS:
            if value := principal.get(name):
                yield str(value)


def _find_contracts(event: EventData) -> Iterator[str]:
    if name := event.get("decision_name"):
        yield str(name)
    for record in list_objections(event):
        yield str(record.get("name"))


_NAMES: dict[str, Callable[[EventData], Iterable[str]]] = {
    "tool": lambda event: (str(event.get("tool_name")),),
    "session": lambda event: (str(event.get("session_id")),),
    "principal": _find_principal,
    "contract": _find_contracts,
}


def _is_one_of(name: str, wanted: tuple[str, ...], event: EventData) -> bool:
    return event.get(name) in wanted


def _has_match(
    find: Callable[[EventData], Iterable[str]], wanted: tuple[str, ...], event: EventData
) -> bool:
    return any(
        name == pattern or fnmatchcase(name, pattern) for name in find(event) for pattern in wanted
    )


def _walk_texts(event: EventData) -> Iterator[str]:
    """Yield every key and value below an event's fields, as text."""
    waiting: list[Any] = list(event.values())
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            yield from value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif value is not None:
            yield str(value)


def _check_values(name: str, values: Iterable[str], known: Sequence[str]) -> None:
    for value in values:
        if value not in known:
            raise EdictumInputError(
                f"{value!r} is not an {name} of audit events.", hint=f"Known: {', '.join(known)}."
            )
