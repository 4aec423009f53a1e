"""Verify a chained log: find what was changed, removed, reordered, inserted or cut, and say where.

Records are read once, oldest first, in bounded memory: what is kept is one position for each
writer, the places that heads name, and what was found.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from edictum.audit._filters import EventData
from edictum.audit._gaps import compare_with_ledger
from edictum.audit._heads import ChainFiles, LinePlace, NumberedLine, number_lines
from edictum.audit._keys import HeadVerifier, KeyPath
from edictum.audit._query import query
from edictum.audit._reading import TOO_LONG, LogReading, parse_line
from edictum.audit.chain import (
    GENESIS,
    ChainHead,
    ChainPosition,
    ChainRecord,
    DeletedFile,
    ListedWriter,
    read_head,
    read_record,
)
from edictum.audit.stores import open_reader
from edictum.errors import EdictumConfigError

ProblemKind: TypeAlias = Literal[
    "changed", "removed", "reordered", "inserted", "truncated", "head", "gap"
]
MAX_PROBLEMS = 1_000
MAX_GAPS = 1_000  # of one writer, and as many records that were cut


@dataclass(frozen=True, slots=True)
class ChainProblem:
    """Something that is wrong with a log: what, where, and with which record of which writer."""

    kind: ProblemKind
    place: str
    text: str
    writer: str = ""
    sequence: int = 0

    def __str__(self) -> str:
        return f"{self.place}: {self.kind}: {self.text}"


@dataclass(slots=True)
class Verification:
    """What ``verify`` found.

    ``problems`` are the first of them, ``counts`` says how many of each kind there are. ``notes``
    are no sign of tampering by themselves: a line that a crash has cut, for one. ``unlisted``
    records are listed by no head: who wrote them, and that nothing is missing behind them, cannot
    be known. ``key``
    names the public key that heads were checked with, and ``log`` the log that they are of.
    ``compared`` events were compared with a ledger; ``in_doubt`` are the calls whose process ended
    while their bodies ran, which is not a problem of the log.
    """

    records: int = 0
    writers: int = 0
    heads: int = 0
    unlisted: int = 0
    deleted: int = 0
    compared: int = 0
    in_doubt: int = 0
    log: str = ""
    key: str = ""
    problems: list[ChainProblem] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.counts

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON data."""
        counts = ("records", "writers", "heads", "unlisted", "deleted", "compared", "in_doubt")
        names = (*counts, "log", "key", "notes")
        problems = [
            {name: getattr(problem, name) for name in ChainProblem.__slots__}
            for problem in self.problems
        ]
        told = {name: getattr(self, name) for name in names}
        return {"ok": self.ok, **told, "counts": dict(self.counts), "problems": problems}

    def add_problem(
        self,
        kind: ProblemKind,
        place: LinePlace | str,
        text: str,
        at: ChainPosition | ChainRecord | None = None,
    ) -> None:
        self.counts[kind] += 1
        if len(self.problems) < MAX_PROBLEMS:
            where = place if isinstance(place, str) else name_place(place)
            writer, sequence = ("", 0) if at is None else (at.writer, at.sequence)
            self.problems.append(ChainProblem(kind, where, text, writer, sequence))

    def add_note(self, text: str) -> None:
        if len(self.notes) < MAX_PROBLEMS:
            self.notes.append(text)


def name_place(place: LinePlace) -> str:
    return f"{place[0]}:{place[1]}"


@runtime_checkable
class ChainReader(Protocol):
    """A sink, or anything else, that keeps a chained log."""

    def read_heads(self, reading: LogReading, /) -> Iterator[NumberedLine]:
        """Yield the lines of heads, oldest first."""
        ...

    def read_records(self, reading: LogReading, /) -> Iterator[NumberedLine]:
        """Yield the lines of records; those of one writer in the order in which it wrote them."""
        ...


def verify(
    source: Any,
    *,
    public_key: KeyPath | None = None,
    heads: str | os.PathLike[str] | Iterable[str] | None = None,
    ledger: Any = None,
    on_progress: Callable[[LogReading], None] | None = None,
) -> Verification:
    """Return what is wrong with a chained log, if anything.

    ``source`` is the path of a log, the URL of a database, or a sink that chains. ``public_key`` is
    the file that ``edictum audit keygen`` has put beside the private key: every head must be signed
    with that one. ``heads`` are heads that were kept elsewhere: a file of them, or their lines.
    With either of them a log without any head is a problem, even when it has no records.
    ``ledger`` is the ledger of the same calls, or its URL: calls that only one of the two knows of
    are a gap, and calls whose process ended while their bodies ran are noted. With it, and without
    a key and heads, a log without a chain is compared only.
    """
    found = Verification()
    is_asked = ledger is None or public_key is not None or heads is not None
    if is_asked or is_chained(source):
        _verify_chain(source, found, public_key, heads, on_progress)
    else:
        found.add_note("this log has no chain: it was compared with the ledger only")
    if ledger is not None:
        for difference in compare_with_ledger(_count(query(source), found), ledger):
            if difference.in_doubt:
                found.in_doubt += difference.in_doubt
                found.add_note(difference.text)
            else:
                found.add_problem("gap", "ledger", difference.text)
    return found


def _count(events: Iterable[EventData], found: Verification) -> Iterator[EventData]:
    for event in events:
        found.compared += 1
        yield event


def is_chained(source: Any) -> bool:
    """Return whether a log has heads, or any record of a chain: a line put before these must not
    keep them from being checked.
    """
    try:
        reader = find_chain_reader(source)
    except EdictumConfigError:
        return False
    if any(True for _ in reader.read_heads(LogReading())):
        return True
    lines = (line for _, line in reader.read_records(LogReading()))
    return any(line is not None and read_record(line) is not None for line in lines)


def _verify_chain(
    source: Any,
    found: Verification,
    public_key: KeyPath | None,
    heads: str | os.PathLike[str] | Iterable[str] | None,
    on_progress: Callable[[LogReading], None] | None,
) -> None:
    reader, reading = find_chain_reader(source), LogReading(on_progress)
    verifier = None if public_key is None else HeadVerifier(public_key)
    checked = HeadCheck(found, verifier, is_expected=not (verifier is None and heads is None))
    copies = [] if heads is None else list(_read_copies(heads))  # before the log has more
    for place, line in reader.read_heads(reading):
        checked.check_line(place, line)
    checked.check_copies(copies)
    lines = reader.read_records(reading)
    first = next(lines, None)  # all files are open now: what is deleted from here on is read
    checked.check_newer_deletions(reader.read_heads(LogReading()))
    records = RecordCheck(found, checked)
    for place, line in () if first is None else itertools.chain([first], lines):
        records.check_line(place, line)
    records.finish()
    checked.finish()
    for problem in reading.examples:
        found.add_note(problem)


def find_chain_reader(source: Any) -> ChainReader:
    """Return what reads the log of a path, a URL or a sink."""
    if isinstance(source, str) and "://" in source:
        source = open_reader(source)
    if isinstance(source, str | os.PathLike):
        return ChainFiles(source)
    if isinstance(source, ChainReader):
        return source
    for inner in getattr(source, "sinks", ()):
        if isinstance(inner, ChainReader):
            return inner
    raise EdictumConfigError(
        f"{type(source).__name__} keeps no chained log.",
        hint="Pass the path of a log, or a sink that was made with chain=True.",
    )


def _read_copies(heads: str | os.PathLike[str] | Iterable[str]) -> Iterator[NumberedLine]:
    if isinstance(heads, str | os.PathLike):
        with Path(heads).open("rb") as file:
            yield from number_lines(file, LogReading())
    else:
        for number, line in enumerate(heads, 1):
            yield ("heads", number), line.encode()


# --- Heads ----------------------------------------------------------------------------------------


class HeadCheck:
    """Follows the heads of a log, and gathers what they say about its records.

    ``is_expected`` is whether a log without any head is a problem, even when it has no records.
    """

    def __init__(
        self, found: Verification, verifier: HeadVerifier | None, *, is_expected: bool
    ) -> None:
        self._found = found
        self._verifier = verifier
        self._is_expected = is_expected
        self._last: ChainHead | None = None
        self._hashes: dict[int, str] = {}  # of the heads, by number
        # What heads list: hashes by writer and sequence number, with the number of the head.
        self.listed: dict[tuple[str, int], tuple[str, int]] = {}
        self.furthest: dict[str, int] = {}  # the highest sequence number of each writer
        self.ended: dict[str, int] = {}  # where writers have ended
        self.deleted: dict[str, dict[int, str]] = {}  # by writer: sequence numbers and hashes

    def check_line(self, place: LinePlace, line: bytes | None) -> None:
        """Check the next head of the log."""
        head = self._read(place, line)
        if head is None:
            return
        self._found.heads += 1
        self._check_order(place, head)
        self._gather(place, head)
        self._last = head
        self._hashes[head.number] = head.hash

    def check_newer_deletions(self, lines: Iterable[NumberedLine]) -> None:
        """Note what was deleted after the heads were read, and before the files were opened. What
        such heads list may be in a file that is newer still.
        """
        newest = 0 if self._last is None else self._last.number
        for place, line in lines:
            head = None if line is None else read_head(line)
            if head is not None and head.number > newest and self._is_signed(head):
                for deleted in head.deleted:
                    self._note_deletion(place, head, deleted)

    def _is_signed(self, head: ChainHead) -> bool:
        return self._verifier is None or self._verifier.is_signed(head)

    def _read(self, place: LinePlace, line: bytes | None) -> ChainHead | None:
        head = None if line is None else read_head(line)
        if head is None and line is not None and not line.isspace():
            if _is_json(line):
                self._found.add_problem("head", place, "this is not a head, or it was changed")
            else:
                self._found.add_note(f"{name_place(place)}: torn, or not JSON")
        return head

    def _check_order(self, place: LinePlace, head: ChainHead) -> None:
        last, number = self._last, head.number
        expected = 1 if last is None else last.number + 1
        if number > expected:
            gap = (
                f"head {expected}"
                if number == expected + 1
                else f"heads {expected} to {number - 1}"
            )
            self._found.add_problem("head", place, f"{gap} before this one: removed")
        elif number < expected:
            text = f"head {number} stands behind head {expected - 1}: swapped, or inserted"
            self._found.add_problem("head", place, text)
        elif head.previous != (GENESIS if last is None else last.hash):
            text = f"head {number} does not follow the one before it: one of them was replaced"
            self._found.add_problem("head", place, text)
        if last is not None and head.log != last.log:
            self._found.add_problem("head", place, f"head {number} is of another log, {head.log}")
        if last is not None and head.retain_s < last.retain_s:
            self._found.add_problem("head", place, f"head {number} lowers the retention")

    def _gather(self, place: LinePlace, head: ChainHead) -> None:
        """Gather what a head says, if it is signed as it should be."""
        if not self._is_signed(head):
            how = "not signed" if not head.signature else "not signed with this key"
            self._found.add_problem("head", place, f"head {head.number} is {how}")
            return
        self._found.key = "" if self._verifier is None else self._verifier.key_id
        self._found.log = self._found.log or head.log
        for listed in head.writers:
            self._note_writer(place, head, listed)
        for deleted in head.deleted:
            self._note_deletion(place, head, deleted)

    def _note_writer(self, place: LinePlace, head: ChainHead, listed: ListedWriter) -> None:
        position = listed.position
        if position.sequence < self.furthest.get(position.writer, 0):
            text = f"head {head.number} lists less of {position.writer} than an earlier one"
            self._found.add_problem("head", place, text, position)
        self.listed.setdefault((position.writer, position.sequence), (position.hash, head.number))
        known = self.furthest.get(position.writer, 0)
        self.furthest[position.writer] = max(known, position.sequence)
        if listed.is_closed:
            self.ended[position.writer] = position.sequence

    def _note_deletion(self, place: LinePlace, head: ChainHead, deleted: DeletedFile) -> None:
        self._found.deleted += deleted.records
        for position in deleted.writers:
            self.deleted.setdefault(position.writer, {})[position.sequence] = position.hash
        if deleted.at - deleted.newest < head.retain_s:
            text = f"{deleted.file} was deleted before its time"
            self._found.add_problem("removed", place, text)

    def check_copies(self, copies: Iterable[NumberedLine]) -> None:
        """Compare heads that were kept elsewhere with those of the log."""
        for place, line in copies:
            head = self._read(place, line)
            if head is None:
                continue
            known = self._hashes.get(head.number)
            if known == head.hash:
                continue
            self._gather(place, head)
            how = "does not have it: removed" if known is None else "has another one: replaced"
            text = f"head {head.number} was kept here, and the log {how}"
            self._found.add_problem("head", place, text)

    def finish(self) -> None:
        """Report what only all heads together show."""
        found = self._found
        has_none = not found.heads and not found.counts["head"]
        if has_none and self._is_expected:
            how = "" if self._verifier is None else " that is signed with this key"
            text = f"this log has no head{how}, so nothing proves it: removed, or not written yet"
            found.add_problem("head", "heads", text)
        elif has_none and found.records:
            found.add_note("this log has no head, so a cut end does not show")
        elif has_none and found.counts["inserted"]:
            found.add_note("this log is not chained: no line of it is a record of a chain")
        elif self._verifier is None:
            found.add_note("without a public key, signatures of heads were not checked")


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


# --- Records --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Gap:
    """Records of a writer that were not where they belong."""

    first: int
    last: int
    place: LinePlace  # of the record behind them


@dataclass(slots=True)
class _WriterState:
    """How far a writer has been followed."""

    writer: str
    sequence: int
    hash: str
    place: LinePlace
    is_changed: bool = False  # the newest record was reported already
    unlisted: tuple[int, LinePlace] | None = None  # the first record that no head lists
    gaps: list[_Gap] = field(default_factory=list)
    torn: dict[int, LinePlace] = field(default_factory=dict)


class RecordCheck:
    """Follows the records of all writers of a log."""

    def __init__(self, found: Verification, heads: HeadCheck) -> None:
        self._found = found
        self._heads = heads
        self._unseen = dict(heads.listed)
        self._writers: dict[str, _WriterState] = {}
        self._newest_listed = 0  # the newest record that a head covers, counted from the first

    def check_line(self, place: LinePlace, line: bytes | None) -> None:
        """Check the next line of the log."""
        if line is None:
            self._found.add_note(f"{name_place(place)}: {TOO_LONG}")
            return
        record = read_record(line)
        if record is None:
            self._check_foreign(place, line)
        elif not record.is_intact:
            self._check_broken_hash(place, line, record)
        else:
            self._found.records += 1
            self._follow(place, record)

    def _check_foreign(self, place: LinePlace, line: bytes) -> None:
        """Check a line that says nothing about a chain."""
        if line.isspace():
            return
        said = parse_line(line)
        if isinstance(said, str) and said != "not an event":
            self._found.add_note(f"{name_place(place)}: {said}")
        else:
            self._found.add_problem("inserted", place, "this line is not of the chain")

    def _check_broken_hash(self, place: LinePlace, line: bytes, record: ChainRecord) -> None:
        state = self._find_state(place, record)
        if not _is_json(line):
            if len(state.torn) < MAX_GAPS:
                state.torn[record.sequence] = place
            return
        self._found.records += 1
        text = f"record {record.sequence} of {record.writer} was changed"
        self._found.add_problem("changed", place, text, record)
        if record.sequence == state.sequence + 1:
            self._go_on(state, place, record, is_changed=True)

    def _find_state(self, place: LinePlace, record: ChainRecord) -> _WriterState:
        """Return how far a writer was followed: at first, to what was deleted before it."""
        state = self._writers.get(record.writer)
        if state is None:
            before = record.sequence - 1
            known = self._heads.deleted.get(record.writer, {}).get(before)
            start = (0, GENESIS) if known is None else (before, known)
            state = self._writers[record.writer] = _WriterState(record.writer, *start, place)
        return state

    def _follow(self, place: LinePlace, record: ChainRecord) -> None:
        state = self._find_state(place, record)
        expected = state.sequence + 1
        if record.sequence < expected:
            self._check_late(place, record, state)
        else:
            if record.sequence > expected:
                self._add_gap(state, _Gap(expected, record.sequence - 1, place))
            elif record.previous != state.hash and not state.is_changed:
                self._report_break(place, record, state)
            self._go_on(state, place, record)
        if record.sequence <= self._heads.furthest.get(record.writer, 0):
            self._newest_listed = self._found.records
        elif state.unlisted is None:
            state.unlisted = (self._found.records, place)
        self._compare(place, record)

    def _go_on(
        self,
        state: _WriterState,
        place: LinePlace,
        record: ChainRecord,
        *,
        is_changed: bool = False,
    ) -> None:
        state.sequence, state.hash, state.place = record.sequence, record.hash, place
        state.is_changed = is_changed

    def _add_gap(self, state: _WriterState, gap: _Gap) -> None:
        if len(state.gaps) >= MAX_GAPS:
            self._report_gap(state, state.gaps.pop(0))
        state.gaps.append(gap)

    def _report_break(self, place: LinePlace, record: ChainRecord, state: _WriterState) -> None:
        if state.sequence == 0 or state.hash == GENESIS:
            text = f"record 1 of {record.writer} is not the first that it wrote"
            self._found.add_problem("changed", place, text, record)
            return
        at = ChainPosition(record.writer, state.sequence, state.hash)
        text = (
            f"record {state.sequence} of {record.writer} was replaced: record {record.sequence}"
            f" ({name_place(place)}) was written behind another one"
        )
        self._found.add_problem("changed", state.place, text, at)

    def _check_late(self, place: LinePlace, record: ChainRecord, state: _WriterState) -> None:
        """Check a record that stands behind one with a higher number."""
        number = record.sequence
        gap = next((gap for gap in state.gaps if gap.first <= number <= gap.last), None)
        name = f"record {number} of {record.writer}"
        if gap is None:
            text = f"{name} is here once more"
            self._found.add_problem("inserted", place, text, record)
            return
        text = f"{name} stands behind a later one ({name_place(gap.place)})"
        self._found.add_problem("reordered", place, text, record)
        state.gaps.remove(gap)
        parts = (_Gap(gap.first, number - 1, gap.place), _Gap(number + 1, gap.last, gap.place))
        state.gaps.extend(part for part in parts if part.first <= part.last)

    def _compare(self, place: LinePlace, record: ChainRecord) -> None:
        """Compare a record with what heads say about it."""
        listed = self._unseen.pop((record.writer, record.sequence), None)
        name = f"record {record.sequence} of {record.writer}"
        if listed is not None and listed[0] != record.hash:
            text = f"{name} is not the one that head {listed[1]} lists"
            self._found.add_problem("changed", place, text, record)
        if record.sequence > self._heads.ended.get(record.writer, record.sequence):
            text = f"{name} was written after the end of that writer"
            self._found.add_problem("inserted", place, text, record)

    def finish(self) -> None:
        """Report what is missing at the end of the log."""
        self._found.writers = len(self._writers)
        for writer in {**self._writers, **self._heads.furthest}:
            deleted = max(self._heads.deleted.get(writer, {0: ""}))
            state = self._writers.get(writer) or _WriterState(writer, deleted, "", ("the log", 0))
            furthest = self._heads.furthest.get(writer, 0)
            self._found.unlisted += max(state.sequence - furthest, 0)
            self._note_unlisted_records(state, furthest + 1)
            for gap in state.gaps:
                self._report_gap(state, gap)
            self._check_end(state, max(state.sequence, deleted) + 1, furthest)

    def _note_unlisted_records(self, state: _WriterState, first: int) -> None:
        """Note records that no head lists and that are not at the end of the log."""
        if state.unlisted is not None and state.unlisted[0] < self._newest_listed:
            text = (
                f"{_name_range(first, state.sequence)} of {state.writer}: no head lists this,"
                " though one lists what stands behind it: the process writes still, was killed,"
                " or this was inserted"
            )
            self._found.add_note(f"{name_place(state.unlisted[1])}: {text}")

    def _report_gap(self, state: _WriterState, gap: _Gap) -> None:
        writer = state.writer
        if gap.first in state.torn:
            at = ChainPosition(writer, gap.first)
            text = f"record {gap.first} of {writer} was cut"
            self._found.add_problem("truncated", state.torn.pop(gap.first), text, at)
            gap.first += 1
        if gap.first <= gap.last:
            at = ChainPosition(writer, gap.first)
            text = f"{_name_range(gap.first, gap.last)} of {writer}: missing before this one"
            self._found.add_problem("removed", gap.place, text, at)

    def _check_end(self, state: _WriterState, first: int, furthest: int) -> None:
        """Report records that heads list and that are not at the end of a writer's chain."""
        if first <= furthest:
            place = state.torn.pop(first, state.place)
            text = (
                f"{_name_range(first, furthest)} of {state.writer}: missing, though heads list it"
            )
            at = ChainPosition(state.writer, first)
            self._found.add_problem("truncated", place, text, at)
        for sequence, place in state.torn.items():
            text = f"record {sequence} of {state.writer} was cut when it was written"
            self._found.add_note(f"{name_place(place)}: {text}")


def _name_range(first: int, last: int) -> str:
    return f"record {first}" if first == last else f"records {first} to {last}"
