"""What ``verify`` finds in a log that was tampered with, and that it finds nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edictum import AuditEvent, Edictum, FileAuditSink
from edictum.audit import Chain, Verification, generate_key, verify
from edictum.audit.chain import ChainPosition, read_record
from support.effort import effort

EVENTS = 12
HEAD_EVENTS = 4


@dataclass(frozen=True)
class Log:
    """A log of two writers, whose records take turns: lines 1, 3, 5 ... are of the first."""

    path: Path
    public_key: Path
    copies: Path

    @property
    def heads(self) -> Path:
        return Path(f"{self.path}.heads")

    def verify(self, *, copies: bool = True) -> Verification:
        heads = self.copies if copies else None
        return verify(self.path, public_key=self.public_key, heads=heads)


def write_log(folder: Path, *, is_closed: bool = True) -> Log:
    log = Log(folder / "audit.jsonl", generate_key(folder / "key"), folder / "copies")
    chain = Chain(key=folder / "key", head_events=HEAD_EVENTS, copy_to=log.copies)
    sinks = [FileAuditSink(log.path, chain=chain) for _ in range(2)]
    for number in range(EVENTS):
        for sink in sinks:
            sink.emit(AuditEvent(tool_name=f"tool-{number}", outcome="denied"))
    for sink in sinks if is_closed else ():
        sink.close()
    return log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return write_log(tmp_path)


def edit(path: Path, change: Callable[[list[str]], object]) -> None:
    lines = path.read_text().splitlines()
    changed = change(lines)
    lines = changed if isinstance(changed, list) else lines
    path.write_text("".join(f"{line}\n" for line in lines))


def tell(found: Verification) -> list[tuple[str, int, int]]:
    """Return what was found: the kind, the number of the line and that of the record."""
    return [
        (problem.kind, int(problem.place.rpartition(":")[2]), problem.sequence)
        for problem in found.problems
    ]


def test_an_untouched_log_verifies(log: Log) -> None:
    """All records of both writers, and all heads."""
    found = log.verify()
    assert found.ok, found.problems
    assert (found.records, found.writers, found.unlisted, found.notes) == (2 * EVENTS, 2, 0, [])
    assert found.heads == len(log.copies.read_text().splitlines()) > 2


# --- Records --------------------------------------------------------------------------------------


def swap(lines: list[str], one: int, other: int) -> None:
    lines[one], lines[other] = lines[other], lines[one]


def forge(line: str, old: str, new: str) -> str:
    """Return a record with other content, and with a hash that fits it."""
    record = read_record(line.encode())
    assert record is not None
    event = json.loads(line.replace(old, new))
    del event["_chain"]
    before = ChainPosition(record.writer, record.sequence - 1, record.previous)
    return before.append(json.dumps(event))[0]


def change_outcome(lines: list[str]) -> None:
    lines[8] = lines[8].replace('"outcome":"denied"', '"outcome":"allowed"')


def forge_outcome(lines: list[str]) -> None:
    lines[8] = forge(lines[8], '"outcome":"denied"', '"outcome":"allowed"')


def forge_last(lines: list[str]) -> None:
    lines[-1] = forge(lines[-1], '"outcome":"denied"', '"outcome":"allowed"')


def forge_first(lines: list[str]) -> None:
    record = read_record(lines[0].encode())
    assert record is not None
    lines[0] = ChainPosition(record.writer, 0, "f" * 64).append('{"tool_name":"forged"}')[0]


def change_number(lines: list[str]) -> None:
    lines[8] = lines[8].replace('"sequence":5,', '"sequence":6,')


def insert_event(lines: list[str]) -> None:
    lines.insert(8, AuditEvent(tool_name="forged").to_json())


def insert_other_json(lines: list[str]) -> None:
    lines.insert(8, "{}")


def append_record(lines: list[str]) -> None:
    """Go on with the chain of a writer: anyone can, since the hashes need no key."""
    record = read_record(lines[-1].encode())
    assert record is not None
    lines.append(record.position.append('{"tool_name":"forged"}')[0])


def cut_in_two(lines: list[str]) -> None:
    lines[8] = lines[8][:300]


def keep_first_writer(lines: list[str]) -> list[str]:
    return lines[::2]


def remove_several(lines: list[str]) -> None:
    del lines[8:13:2]


# Line 9 (index 8) is record 5 of the first writer.
TAMPERED = {
    "a value": (change_outcome, [("changed", 9, 5)]),
    "a value, with its hash": (forge_outcome, [("changed", 9, 5)]),
    "a value of the newest record, with its hash": (forge_last, [("changed", 24, 12)]),
    "the first record": (forge_first, [("changed", 1, 1), ("changed", 1, 1)]),
    "a sequence number": (change_number, [("changed", 9, 6), ("removed", 11, 5)]),
    "a removed record": (lambda lines: lines.pop(8), [("removed", 10, 5)]),
    "removed records": (remove_several, [("removed", 12, 5)]),
    "the first record removed": (lambda lines: lines.pop(0), [("removed", 2, 1)]),
    "two records of a writer swapped": (lambda lines: swap(lines, 8, 10), [("reordered", 11, 5)]),
    "a copied record": (lambda lines: lines.insert(20, lines[8]), [("inserted", 21, 5)]),
    "an event without a place": (insert_event, [("inserted", 9, 0)]),
    "something else": (insert_other_json, [("inserted", 9, 0)]),
    "a record after the end": (append_record, [("inserted", 25, 13)]),
    "a record cut in two": (cut_in_two, [("truncated", 9, 5)]),
    "the newest record": (lambda lines: lines.pop(), [("truncated", 22, 12)]),
    "the newest record cut in two": (
        lambda lines: lines.append(lines.pop()[:300]),
        [("truncated", 24, 12)],
    ),
    "the end": (lambda lines: lines[:10], [("truncated", 9, 6), ("truncated", 10, 6)]),
    "a whole writer": (keep_first_writer, [("truncated", 0, 1)]),
    "everything": (lambda lines: [], [("truncated", 0, 1), ("truncated", 0, 1)]),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_tampering_with_records_is_found_and_named(log: Log, name: str) -> None:
    """Its kind, the line, and the number of the record."""
    change, expected = TAMPERED[name]
    edit(log.path, change)
    assert tell(log.verify()) == expected


def test_a_line_moved_between_two_writers_is_not_an_offence(log: Log) -> None:
    """Their chains are independent: which of two processes was faster is not promised."""
    edit(log.path, lambda lines: swap(lines, 8, 9))
    assert log.verify().ok


def test_records_of_a_writer_that_no_head_lists_are_noted(log: Log) -> None:
    """Nothing tells them from those of a process that was killed, so it is said where they are."""
    place = ChainPosition("f" * 32)
    first, place = place.append('{"tool_name":"forged"}')
    second, _ = place.append('{"tool_name":"forged"}')
    edit(log.path, lambda lines: [*lines[:8], first, second, *lines[8:]])
    found = log.verify()
    assert (found.ok, found.unlisted) == (True, 2)
    (note,) = found.notes
    assert note.startswith(f"{log.path}:9: records 1 to 2 of {'f' * 32}: no head lists this")


def test_records_behind_the_newest_head_are_only_counted(log: Log) -> None:
    """A process that goes on writing is the usual reason."""
    record, _ = ChainPosition("f" * 32).append('{"tool_name":"newest"}')
    edit(log.path, lambda lines: [*lines, record])
    found = log.verify()
    assert (found.ok, found.unlisted, found.notes) == (True, 1, [])


# --- Heads ----------------------------------------------------------------------------------------


def sign_no_more(lines: list[str]) -> None:
    head = json.loads(lines[2])
    head["signature"] = ""
    lines[2] = json.dumps(head, sort_keys=True, separators=(",", ":"))


def change_head(lines: list[str]) -> None:
    lines[2] = lines[2].replace('"sequence":', '"sequence":1')


TAMPERED_HEADS = {
    "a value": (change_head, "not signed with this key"),
    "without a signature": (sign_no_more, "head 3 is not signed"),
    "removed": (lambda lines: lines.pop(2), "head 3 before this one: removed"),
    "swapped": (lambda lines: swap(lines, 2, 3), "swapped, or inserted"),
    "twice": (lambda lines: lines.insert(3, lines[2]), "swapped, or inserted"),
    "the newest removed": (lambda lines: lines.pop(), "does not have it: removed"),
    "all removed": (lambda lines: [], "does not have it: removed"),
    "another line": (lambda lines: lines.insert(2, "{}"), "not a head, or it was changed"),
}


@pytest.mark.parametrize("name", TAMPERED_HEADS)
def test_tampering_with_heads_is_found_and_named(log: Log, name: str) -> None:
    """And the records are not blamed for it."""
    change, text = TAMPERED_HEADS[name]
    edit(log.heads, change)
    found = log.verify()
    assert set(found.counts) == {"head"}, found.problems
    assert any(text in problem.text for problem in found.problems), found.problems


def test_heads_of_another_log_are_found(log: Log, tmp_path: Path) -> None:
    """Even of a log whose heads were signed with the same key."""
    other = FileAuditSink(tmp_path / "other.jsonl", chain=Chain(key=tmp_path / "key"))
    other.emit(AuditEvent(tool_name="t"))
    other.close()
    log.heads.write_text(Path(f"{other.path}.heads").read_text())
    found = log.verify()
    assert any("has another one: replaced" in problem.text for problem in found.problems)
    assert any(problem.kind == "truncated" for problem in found.problems)


def test_a_log_that_was_written_anew_is_found_by_its_key(log: Log, tmp_path: Path) -> None:
    """All records and heads are consistent, but signed with another key."""
    generate_key(tmp_path / "forged")
    lines = log.path.read_text().splitlines()
    log.path.unlink()
    log.heads.unlink()
    sink = FileAuditSink(log.path, chain=Chain(key=tmp_path / "forged"))
    for _ in lines:
        sink.emit(AuditEvent(tool_name="forged"))
    sink.close()
    assert verify(log.path, public_key=tmp_path / "forged.pub").ok
    found = log.verify(copies=False)
    assert [problem.text for problem in found.problems] == ["head 1 is not signed with this key"]


def test_a_cut_end_of_records_and_heads_shows_only_in_heads_kept_elsewhere(log: Log) -> None:
    """What the documentation says that cannot be known."""
    heads = log.heads.read_text().splitlines()
    edit(log.heads, lambda lines: lines[:2])
    edit(log.path, lambda lines: lines[: 2 * HEAD_EVENTS])
    assert log.verify(copies=False).ok
    found = log.verify()
    assert found.counts["head"] == len(heads) - 2
    assert tell(found)[-2:] == [("truncated", 7, 5), ("truncated", 8, 5)]


UNPROVEN = (
    "this log has no head that is signed with this key, so nothing proves it: removed, or not"
    " written yet"
)


def test_a_log_without_heads_is_doubted_only_if_a_key_is_asked_for(log: Log) -> None:
    """A short log that was not closed has none yet."""
    log.heads.unlink()
    assert [str(found) for found in log.verify(copies=False).problems] == [
        f"heads: head: {UNPROVEN}"
    ]
    found = verify(log.path)
    assert found.ok
    assert found.notes == ["this log has no head, so a cut end does not show"]


@pytest.mark.parametrize("text", ["", "nothing to see\n", "\n"])
@pytest.mark.parametrize("heads", [None, "", "torn"])
def test_a_log_that_was_emptied_with_its_heads_is_doubted_if_a_key_is_given(
    log: Log, text: str, heads: str | None
) -> None:
    """Nothing is left that the key could be checked with."""
    log.path.write_text(text)
    log.heads.unlink()
    if heads is not None:
        log.heads.write_text(heads)
    found = log.verify(copies=False)
    assert [str(problem) for problem in found.problems] == [f"heads: head: {UNPROVEN}"]
    assert verify(log.path).ok


def test_a_log_without_heads_is_doubted_if_the_heads_kept_elsewhere_are_gone(log: Log) -> None:
    """They were asked for, and there are none."""
    for path in (log.path, log.heads, log.copies):
        path.write_text("")
    found = verify(log.path, heads=log.copies)
    assert [problem.kind for problem in found.problems] == ["head"]


def test_a_log_that_is_not_chained_does_not_verify(tmp_path: Path) -> None:
    """None of its lines has a place in a chain."""
    sink = FileAuditSink(tmp_path / "plain.jsonl")
    Edictum(audit_sink=sink).run_sync("t", {}, lambda: 1)
    sink.close()
    found = verify(sink)
    assert found.counts == {"inserted": 2}
    assert found.notes == ["this log is not chained: no line of it is a record of a chain"]


# --- Any tampering --------------------------------------------------------------------------------

OPERATIONS = st.tuples(
    st.sampled_from(["remove", "copy", "move", "change", "cut"]), st.integers(0), st.integers(0)
)


def is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def tamper(lines: list[str], operation: tuple[str, int, int]) -> list[str]:
    """Do one thing to the lines, and return them."""
    kind, first, second = operation
    source, target = first % len(lines), second % len(lines)
    line = lines[source]
    if kind == "remove":
        del lines[source]
    elif kind == "copy":
        lines.insert(target, line)
    elif kind == "move":
        lines.insert(target, lines.pop(source))
    elif kind == "cut":
        lines[source] = line[: second % len(line)]
    else:
        index = second % len(line)
        lines[source] = f"{line[:index]}{'x' if line[index] != 'x' else 'y'}{line[index + 1 :]}"
    return lines


@pytest.mark.soak
@given(operations=st.lists(OPERATIONS, min_size=1, max_size=3))
@settings(
    max_examples=effort(20, soak=500),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_whatever_is_done_to_the_lines_is_found(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int, int]]
) -> None:
    """It verifies if and only if what each writer wrote is there, once and in its order, and
    nothing else that could be taken for an event.
    """
    folder = tmp_path_factory.mktemp("log")
    log = write_log(folder)
    before = log.path.read_text().splitlines()
    after = list(before)
    for operation in operations:
        after = tamper(after, operation)
    edit(log.path, lambda lines: after)
    is_same = all(
        [line for line in after if line in before[start::2]] == before[start::2]
        for start in range(2)
    )
    has_more = any(is_json(line) for line in after if line not in before)
    found = log.verify()
    assert found.ok == (is_same and not has_more), (operations, found.problems)
