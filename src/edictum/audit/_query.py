"""Queries of a log: ``query`` returns events, ``report`` sums them up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Unpack

from edictum.audit._filters import EventData, EventFilter, FilterOptions, read_filter
from edictum.audit._reading import EventReader, LogReading, find_readers, list_sink_readers
from edictum.audit._report import Report, ReportBuilder
from edictum.core.policy import Policy


class Events:
    """The events that match, as dicts, oldest first: read while they are iterated.

    ``reading`` says how far that has come and what could not be read.
    """

    def __init__(
        self, readers: Sequence[EventReader], wanted: EventFilter, reading: LogReading
    ) -> None:
        self._readers = readers
        self.wanted = wanted
        self.reading = reading

    def __iter__(self) -> Iterator[EventData]:
        for reader in self._readers:
            yield from reader.read_events(self.wanted, self.reading)


def query(
    source: Any,
    *,
    on_progress: Callable[[LogReading], None] | None = None,
    **wanted: Unpack[FilterOptions],
) -> Events:
    """Return the events of a source that match.

    ``source`` is the path of a file of JSON lines (plain, gzip or zstd; the files that rotation has
    left beside it are read first), a sink that keeps events, or a list of such. ``on_progress`` is
    called every few thousand lines.
    """
    return Events(find_readers(source), read_filter(wanted), LogReading(on_progress))


def report(
    source: Any,
    *,
    contracts: Iterable[str] = (),
    ledger: Any = None,
    on_progress: Callable[[LogReading], None] | None = None,
    **wanted: Unpack[FilterOptions],
) -> Report:
    """Sum up the events of a source that match, as in ``query``, in a report.

    ``contracts`` are the ids of the contracts that were in force: the report says which of them
    never fired. ``ledger`` is the ledger of the same calls, or its URL: the report has the amounts
    that it has counted for each session, which are not in events.
    """
    events = query(source, on_progress=on_progress, **wanted)
    builder = ReportBuilder()
    for event in events:
        builder.add(event)
    if ledger is not None:
        from edictum.audit._gaps import read_amounts  # it imports the stores

        builder.spent = read_amounts(ledger, builder.sessions.rows)
    return builder.build(contracts, events.wanted, events.reading)


class GuardAudit:
    """The audit of one guard: what its sinks keep.

    The first sink that can be read back is asked, and the memory of the guard if there is none.
    """

    def __init__(self, sinks: Sequence[Any], policy: Policy, ledger: Any) -> None:
        self._sinks = sinks
        self._policy = policy
        self._ledger = ledger

    def query(
        self,
        *,
        on_progress: Callable[[LogReading], None] | None = None,
        **wanted: Unpack[FilterOptions],
    ) -> Events:
        """Return the events that match."""
        return query(self._find_source(), on_progress=on_progress, **wanted)

    def report(
        self,
        *,
        amounts: bool = False,
        on_progress: Callable[[LogReading], None] | None = None,
        **wanted: Unpack[FilterOptions],
    ) -> Report:
        """Sum up the events that match, and list which of the guard's contracts never fired.

        With ``amounts`` the ledger is asked what each session has spent.
        """
        return report(
            self._find_source(),
            contracts=list_contract_ids(self._policy),
            ledger=self._ledger if amounts else None,
            on_progress=on_progress,
            **wanted,
        )

    def _find_source(self) -> EventReader:
        return next(reader for sink in self._sinks for reader in list_sink_readers(sink))


def list_contract_ids(policy: Policy) -> list[str]:
    """Return the ids of all contracts of a policy, those that are limits among them."""
    limits = (limit.contract_id for limit in policy.session_limits)
    return [*(contract.id for contract in policy.contracts), *filter(None, limits)]
