"""Questions to a log: which events are found, what cannot be read, and what a report adds up."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edictum import (
    AuditAction,
    AuditEvent,
    CollectingAuditSink,
    CompositeSink,
    Edictum,
    EdictumConfigError,
    EdictumInputError,
    FileAuditSink,
    OperationLimits,
    Principal,
    StdoutAuditSink,
)
from edictum.audit import EventReader, export, query, report
from edictum.audit import _reading as reading_module
from edictum.audit import _report as report_module
from edictum.cli.main import main

START = datetime(2026, 7, 1, 9, 30, tzinfo=UTC)
BUNDLE = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: example}
defaults: {mode: enforce}
tools:
  look: {side_effect: read}
  refund: {side_effect: irreversible}
contracts:
  - id: small-refunds
    type: pre
    tool: refund
    when: {args.amount: {gt: 100}}
    then: {effect: deny, message: "{args.amount} is too much."}
  - id: no-secrets
    type: pre
    tool: look
    when: {args.path: {contains: ".env"}}
    then: {effect: deny, message: "Not this file."}
  - id: three-looks
    type: session
    limits: {max_calls_per_tool: {look: 3}}
    then: {effect: deny, message: "Enough."}
"""


def make_event(**fields: Any) -> dict[str, Any]:
    usual = {"timestamp": START, "action": "call_executed", "outcome": "executed"}
    merged: dict[str, Any] = {**usual, **fields}
    merged["action"] = AuditAction(merged["action"])
    return AuditEvent(**merged).to_dict()


def write_log(path: Path, events: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def use_tools(guard: Edictum) -> None:
    """Five calls: a refund, one that is too large, one that fails, and two looks."""
    for call_id, amount in (("c1", 10), ("c2", 500)):
        guard.dispatch_sync(
            "refund", {"amount": amount}, lambda amount: "ok", call_id=call_id, session_id="s1"
        )
    guard.dispatch_sync("refund", {"amount": 1}, lambda amount: 1 / 0, session_id="s2")
    for path in ("a", "b"):
        guard.dispatch_sync(
            "look", {"path": path}, lambda path: "ok", session_id="s2", principal=Principal("ada")
        )


@pytest.fixture(params=["memory", "file"])
def guard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Edictum]:
    sink = FileAuditSink(tmp_path / "audit.jsonl") if request.param == "file" else None
    made = Edictum.from_yaml_string(BUNDLE, audit_sink=sink)
    use_tools(made)
    yield made
    asyncio.run(made.close())


# --- Which events are found -----------------------------------------------------------------------


def test_guard_finds_its_events_in_memory_and_in_a_file(guard):
    """The same question to either sink gives the same events."""
    assert len(list(guard.audit.query())) == len(guard.local_sink.events) == 9
    found = list(guard.audit.query(outcome="denied"))
    assert [event["call_id"] for event in found] == ["c2"]
    assert found == [guard.local_sink.filter("call_denied")[0].to_dict()]


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({"tool": "refund"}, 5),
        ({"tool": "re*"}, 5),
        ({"tool": ["look", "refund"]}, 9),
        ({"session": "s1"}, 3),
        ({"session": "s?", "action": "call_failed"}, 1),
        ({"principal": "ada"}, 4),
        ({"principal": "a*"}, 4),
        ({"action": ["call_denied", "call_failed"]}, 2),
        ({"contract": "small-refunds"}, 1),
        ({"outcome": "failed"}, 1),
        ({"text": "IS TOO much"}, 1),
        ({"text": "500 IS"}, 1),
        ({"text": "divisionby"}, 0),
        ({"since": "1h"}, 9),
        ({"until": "1h"}, 0),
        ({"tool": "refun"}, 0),
    ],
)
def test_each_filter_finds_its_events(guard, wanted, count):
    """Names, globs, lists, times and texts, alone and together."""
    assert len(list(guard.audit.query(**wanted))) == count


def test_since_is_included_and_until_is_not(tmp_path):
    """So that two reports of adjacent days count no event twice."""
    times = [START + timedelta(seconds=number) for number in range(5)]
    log = write_log(tmp_path / "a.jsonl", [make_event(timestamp=at) for at in times])
    found = query(log, since=times[1], until=times[3].isoformat())
    assert [event["timestamp"] for event in found] == [at.isoformat() for at in times[1:3]]


def test_events_of_a_clock_that_jumped_back_are_found(tmp_path):
    """Reading does not stop at the first event that is too new."""
    times = [START + timedelta(hours=hour) for hour in (0, 5, 1, 2)]
    log = write_log(tmp_path / "a.jsonl", [make_event(timestamp=at) for at in times])
    assert len(list(query(log, since=times[2], until=times[1]))) == 2
    made = report(log)
    assert (made.first, made.last) == (times[0], times[1])


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"outcome": "nice"}, "'nice' is not an outcome of audit events"),
        ({"action": "deny"}, "'deny' is not an action of audit events"),
        ({"since": "yesterday"}, "since is 'yesterday', not a time"),
        ({"until": "999999999d"}, "until is '999999999d', not a time"),
    ],
)
def test_value_that_no_event_can_have_is_an_error(wanted, said):
    """A misspelt outcome must not look like an answer of nothing."""
    with pytest.raises(EdictumInputError, match=said):
        query(CollectingAuditSink(), **wanted)


def test_unknown_filter_is_an_error():
    """A misspelt filter must not let every event pass."""
    with pytest.raises(TypeError, match="unknown filter 'tols'"):
        query(CollectingAuditSink(), tols="look")  # type: ignore[call-arg]


NAMES = st.sampled_from(["a", "b.c", "ä", 'qu"ote', "back\\slash", "x/y", ""])


@given(
    tools=st.lists(st.tuples(NAMES, NAMES), max_size=6),
    wanted=st.fixed_dictionaries({}, optional={"tool": NAMES.filter(bool), "session": NAMES.filter(bool)}),
)  # fmt: skip
def test_line_that_is_not_parsed_would_not_have_matched(tmp_path_factory, tools, wanted):
    """Names are looked for in the bytes of a line before it is parsed."""
    events = [make_event(tool_name=tool, session_id=session) for tool, session in tools]
    log = write_log(tmp_path_factory.mktemp("log") / "a.jsonl", events)
    plain = [
        event
        for event in events
        if wanted.get("tool") in (None, event["tool_name"])
        and wanted.get("session") in (None, event["session_id"])
    ]
    assert list(query(log, **wanted)) == plain


# --- Where they are read --------------------------------------------------------------------------


def test_rotated_files_are_read_oldest_first(tmp_path):
    """All events of a log that was rotated, in their order."""
    path = tmp_path / "audit.jsonl"
    guard = Edictum(audit_sink=FileAuditSink(path, max_bytes=3_000, keep=50))
    for number in range(12):
        guard.run_sync("look", {}, lambda: "ok", call_id=f"c{number}")
    assert (tmp_path / "audit.jsonl.3").exists()
    found = [event["call_id"] for event in query(path, outcome="executed")]
    assert found == [f"c{number}" for number in range(12)]
    asyncio.run(guard.close())


def test_compressed_and_dated_files_are_read(tmp_path):
    """What logrotate leaves is read; other files beside the log are not."""
    pytest.importorskip("zstandard")
    names = ["c0", "c1", "c2", "c3"]
    files = ["audit.jsonl-20260630.gz", "audit.jsonl-20260701", "audit.jsonl.1.zst", "audit.jsonl"]
    for name, file in zip(names, files, strict=True):
        export([make_event(call_id=name)], tmp_path / file)
    write_log(tmp_path / "audit.jsonl.heads", [make_event(call_id="another file")])
    found = {event["call_id"] for event in query(tmp_path / "audit.jsonl")}
    assert found == set(names)


def test_rotation_while_a_log_is_read_neither_hides_nor_repeats_events(tmp_path):
    """The files are those that there were when reading began."""
    path = tmp_path / "audit.jsonl"
    for number, name in enumerate(("audit.jsonl.2", "audit.jsonl.1", "audit.jsonl")):
        write_log(tmp_path / name, [make_event(call_id=f"c{number}{part}") for part in "ab"])
    events = iter(query(path))
    found = [next(events)["call_id"]]
    os.replace(tmp_path / "audit.jsonl.1", tmp_path / "audit.jsonl.2")
    os.replace(path, tmp_path / "audit.jsonl.1")
    write_log(path, [make_event(call_id="new")])
    found += [event["call_id"] for event in events]
    assert found == ["c0a", "c0b", "c1a", "c1b", "c2a", "c2b"]


def test_first_sink_that_keeps_events_is_asked(tmp_path):
    """Even inside of a CompositeSink, and rather than the memory."""
    file = FileAuditSink(tmp_path / "a.jsonl")
    sinks = CompositeSink([StdoutAuditSink(stream=io.StringIO()), file])
    guard = Edictum(audit_sink=sinks, local_events=1)
    guard.run_sync("look", {}, lambda: "ok")
    assert len(list(guard.audit.query())) == len(list(query(sinks))) == 2
    asyncio.run(guard.close())


def test_reader_of_your_own_is_asked():
    """The port is one method."""

    class Twice:
        def read_events(self, wanted, reading):
            yield make_event(tool_name="one")
            yield make_event(tool_name="two")

    assert isinstance(Twice(), EventReader)
    assert report([Twice(), Twice()]).calls == 4


def test_source_that_keeps_nothing_is_an_error(tmp_path):
    """A sink that only prints, and a path that does not exist."""
    with pytest.raises(EdictumConfigError, match="StdoutAuditSink keeps no events"):
        query(StdoutAuditSink())
    with pytest.raises(
        EdictumConfigError, match=r"nothing\.jsonl cannot be read: it does not exist"
    ):
        list(query(tmp_path / "nothing.jsonl"))


# --- What cannot be read --------------------------------------------------------------------------

GOOD = json.dumps(make_event(call_id="good")).encode()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (GOOD[: len(GOOD) // 2], "torn, or not JSON"),
        (b"\x00" * 100 + GOOD, "torn, or not JSON"),
        (GOOD.replace(b"good", b"g\xfc\xfct"), "not UTF-8"),
        (GOOD.decode().encode("utf-16"), "not UTF-8"),
        (b"[" * 100_000, "torn, or not JSON"),
        (b"[1, 2]", "not an event"),
        (b"7", "not an event"),
        (b"{}", "not an event"),
        (b'{"timestamp": "soon", "action": "call_denied"}', "not an event"),
        (b'{"timestamp": 5, "action": "call_denied"}', "not an event"),
        (b'{"timestamp": "0001-01-01T00:00+14:00", "action": "call_denied"}', "not an event"),
        (b'{"timestamp": "9999-12-31T23:00-14:00", "action": "call_denied"}', "not an event"),
        (b'{"timestamp": "2026-07-01T09:30:00", "action": null}', "not an event"),
    ],
)
def test_line_that_cannot_be_read_is_counted_and_the_next_one_is_read(tmp_path, line, problem):
    """Each kind of damage is named, with its place."""
    log = tmp_path / "a.jsonl"
    log.write_bytes(b"\xef\xbb\xbf" + GOOD + b"\n\n" + line + b"\n" + GOOD + b"\n")
    events = query(log)
    assert [event["call_id"] for event in events] == ["good", "good"]
    assert set(events.reading.problems) == {problem}
    assert f"{log}:3: {problem}" in events.reading.examples
    assert problem in report(log).to_text()


@pytest.mark.parametrize(
    "odd",
    [
        {"contracts_evaluated": 5},
        {"contracts_evaluated": [5, {"passed": False}]},
        {"side_effect": ["write"]},
        {"duration_ms": math.nan},
        {"duration_ms": math.inf},
        {"duration_ms": -(10**30)},
        {"tool_name": "\ud800"},
        {"principal": ["ada"], "reason": {}, "decision_name": [], "policy_version": {}},
    ],
)
def test_one_odd_value_does_not_take_the_other_events_along(tmp_path, odd):
    """Whoever wrote it: it counts as what it can be read as."""
    log = tmp_path / "a.jsonl"
    log.write_text(f"{json.dumps(make_event() | odd)}\n{GOOD.decode()}\n")
    made = report(log)
    assert made.calls == 2
    assert made.to_html() and made.to_text() and made.to_csv() and made.to_json()
    assert export(query(log), tmp_path / "a.csv", format="csv") == 2
    assert len(list(query(log, contract="*", text="good"))) <= 1


def test_line_that_is_too_long_is_skipped_without_being_held(tmp_path, monkeypatch):
    """Whatever its length is relative to the bound."""
    monkeypatch.setattr(reading_module, "MAX_LINE_BYTES", 4_000)
    log = tmp_path / "a.jsonl"
    for size in (3_999, 4_000, 4_001, 8_000, 8_001, 50_000):
        log.write_bytes(GOOD + b"\n" + b"x" * size + b"\n" + GOOD + b"\n")
        events = query(log)
        assert len(list(events)) == 2, size
        assert events.reading.problems.total() == 1, size
        assert events.reading.lines == 3, size


def test_compressed_file_that_breaks_off_gives_what_it_has(tmp_path):
    """The events before the break are read, and the break is said."""
    log = tmp_path / "a.jsonl.gz"
    lines = b"".join(os.urandom(200).hex().encode() + b"\n" for _ in range(500))
    log.write_bytes(gzip.compress(GOOD + b"\n" + lines)[:40_000])
    events = query(log)
    assert [event["call_id"] for event in events] == ["good"]
    assert events.reading.problems["the file breaks off, or cannot be read"] == 1


@pytest.mark.parametrize("spoil", [lambda data: data[:-20], lambda data: data[:-40] + b"x" * 40])
def test_broken_zstd_is_said(tmp_path, spoil):
    """Cut off or overwritten, behind a frame that is whole."""
    pytest.importorskip("zstandard")
    log = tmp_path / "a.jsonl.zst"
    whole = tmp_path / "b.jsonl.zst"
    export([make_event(call_id="whole")] * 3, whole)
    export([make_event(call_id=os.urandom(100).hex()) for _ in range(20)], log)
    log.write_bytes(whole.read_bytes() + spoil(log.read_bytes()))
    events = query(log)
    assert [event["call_id"] for event in events][:3] == ["whole"] * 3
    assert events.reading.problems["the file breaks off, or cannot be read"] == 1


def test_files_of_several_frames_are_read_whole(tmp_path):
    """As concatenated and appended files are."""
    pytest.importorskip("zstandard")
    for suffix in (".gz", ".zst"):
        log = tmp_path / f"a.jsonl{suffix}"
        part = tmp_path / f"part{suffix}"
        export([make_event(call_id=str(number)) for number in range(1_000)], part)
        log.write_bytes(part.read_bytes() * 3)
        events = query(log)
        assert [event["call_id"] for event in events] == [str(it) for it in range(1_000)] * 3
        assert not events.reading.problems


# --- What a report adds up ------------------------------------------------------------------------


def test_report_of_a_guard(guard):
    """Every figure for five calls that are known."""
    made = guard.audit.report()
    assert made.calls == 5
    assert made.outcomes == {"executed": 3, "artifact": 0, "failed": 1, "timeout": 0, "denied": 1}
    refund = made.tools.rows["refund"]
    assert (refund.calls, refund.ran, refund.failed, refund.failure_rate) == (3, 2, 1, 0.5)
    assert made.sessions.rows["s1"].outcomes == {"executed": 1, "denied": 1}
    assert made.principals.rows["ada"].calls == 2
    denial = made.denials.rows["yaml_precondition", "small-refunds"]
    assert (denial.count, denial.reason) == (1, "500 is too much.")
    assert made.contracts.rows["small-refunds"].fired == 1
    assert made.never_fired == ["no-secrets", "three-looks"]
    assert made.consequential_calls == 3
    assert made.prompts_per_100 == 0


def test_limit_of_a_bundle_that_denied_has_fired():
    """Limits are counted and not asked, but they are contracts."""
    guard = Edictum.from_yaml_string(BUNDLE)
    for _ in range(4):
        guard.dispatch_sync("look", {"path": "a"}, lambda path: "ok")
    made = guard.audit.report()
    assert made.outcomes["denied"] == 1
    assert "three-looks" not in made.never_fired
    assert made.contracts.rows["three-looks"].fired == 1


def test_limit_in_python_is_a_reason_and_not_a_contract():
    """It has no id that a policy could list."""
    guard = Edictum(limits=OperationLimits(max_tool_calls=1))
    for _ in range(3):
        guard.dispatch_sync("look", {}, lambda: "ok")
    made = guard.audit.report()
    assert [(name, row.count) for (_, name), row in made.denials.sort()] == [("max_tool_calls", 2)]
    assert made.contracts.rows == {}


def test_a_question_that_a_restarted_process_finds_again_is_counted_once(tmp_path):
    """Its event is in the log once more, with the same id."""
    asked = {"action": "call_approval_requested", "outcome": None, "tool_name": "refund"}
    ids = ("ask-1", "ask-1", "ask-2", None)
    events = [make_event(**asked, approval_id=approval_id) for approval_id in ids]
    made = report(write_log(tmp_path / "a.jsonl", events))
    assert made.approvals == {"requested": 3}
    assert (made.tools["refund"].prompts, made.events) == (3, 4)


def test_prompts_are_counted_per_consequential_call(tmp_path):
    """Reads do not make the rate look better."""
    asked = make_event(action="call_approval_requested", outcome=None)
    calls = [make_event(side_effect=effect) for effect in ("write", "irreversible", "read", "pure")]
    refused = make_event(
        action="call_approval_denied", outcome="denied", side_effect="write", decision_name="big"
    )
    made = report(write_log(tmp_path / "a.jsonl", [asked, *calls, asked, refused]))
    assert made.consequential_calls == 3
    assert made.prompts_per_100 == pytest.approx(200 / 3)
    assert made.approvals == {"requested": 2, "denied": 1}
    assert list(made.denials.rows) == [("approval denied", "big")]


def test_observed_objection_counts_as_fired_but_observed():
    """A contract in observe mode is not one that never fired."""
    observing = BUNDLE.replace("mode: enforce", "mode: observe")
    guard = Edictum.from_yaml_string(observing)
    guard.dispatch_sync("refund", {"amount": 500}, lambda amount: "ok")
    use = guard.audit.report().contracts.rows["small-refunds"]
    assert (use.asked, use.fired, use.observed) == (1, 1, 1)


OUTCOME = st.sampled_from(["executed", "artifact", "failed", "timeout", "denied", None])
TAKEN_MS = st.integers(0, 45_000_000)  # beyond the last bound a percentile is the longest


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.sampled_from("abcdef"), OUTCOME, TAKEN_MS),
        max_size=60,
    )
)
def test_report_agrees_with_a_plain_count(drawn):
    """Against a count of the whole list, with tables that are shrunk and buckets that are widened."""
    events = [
        make_event(
            timestamp=START + timedelta(seconds=at),
            tool_name=tool,
            session_id=f"{tool}{at}",
            outcome=outcome,
            duration_ms=taken,
        )
        for at, tool, outcome, taken in drawn
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_module, "MAX_ROWS", 8)
        builder = report_module.ReportBuilder()
        for event in events:
            builder.add(event)
    ended = [item for item in drawn if item[2] is not None]
    plain = Counter((tool, outcome) for _, tool, outcome, _ in ended)
    total = builder.tools.sum_up()
    assert total.outcomes == Counter(outcome for _, _, outcome, _ in ended)
    assert {
        (tool, outcome): count
        for tool, tally in builder.tools.rows.items()
        for outcome, count in tally.outcomes.items()
    } == plain
    sessions = builder.sessions
    in_rows = sum(row.calls for row in sessions.rows.values())
    assert in_rows + sessions.others.calls == len(ended)
    assert len(sessions.rows) <= 8
    buckets = builder.timeline.list_buckets()
    assert len(buckets) <= report_module.MAX_BUCKETS
    assert sum(sum(counts.values()) for _, counts in buckets) == len(ended)
    ran = sorted(taken for _, _, outcome, taken in ended if outcome != "denied")
    if ran:
        middle = ran[(len(ran) - 1) // 2]
        found = total.find_percentile(50)
        assert found is not None
        assert middle * 0.99 - 1 <= found <= max(middle * 1.5, 1.5)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_report_has_what_each_session_spent(tmp_path, capsys, store):
    """The ledger is asked for it: by the guard, or by the URL of its store."""
    url, log = f"sqlite:///{tmp_path}/sessions.db", tmp_path / "audit.jsonl"
    tools = {"refund": {"amounts": {"refunded": "args.amount", "cost": 0.015}}}
    backend = {} if store == "memory" else {"backend": url}
    guard = Edictum(audit_sink=FileAuditSink(log), tools=tools, **backend)
    for session, amount in (("s1", 20), ("s2", 1_000.5), ("s1", 30)):
        guard.run_sync("refund", {"amount": amount}, lambda amount: "paid", session_id=session)
    guard.run_sync("look", {}, lambda: 1, session_id="s3")
    expected = {
        "s1": {"refunded": 50.0, "cost": 0.03},
        "s2": {"refunded": 1_000.5, "cost": 0.015},
    }
    assert guard.audit.report().spent is None
    assert guard.audit.report(amounts=True).spent == expected
    assert guard.audit.report(amounts=True, session="s2").spent == {"s2": expected["s2"]}
    if store == "sqlite":
        assert main(["audit", "report", str(log), "--ledger", url, "--csv"]) == 0
        told = capsys.readouterr().out
        assert "Amounts that sessions spent,4,spent,1000.5" in told
        made = report(log, ledger=url)
        assert re.search(r"s2 +refunded +1,000\.5\n", made.to_text())
        assert "<td>refunded</td>" in made.to_html()
    asyncio.run(guard.close())


def test_timeline_has_the_calls_where_they_were():
    """Wider buckets start where the calls of narrower ones were."""
    timeline = report_module.Timeline()
    for hour in (0, 1, 300):
        timeline.add(hour * 3_600_000, "executed")
    assert timeline.width_ms == 21_600_000
    starts = {start for start, counts in timeline.list_buckets() if counts}
    assert starts == {0, 300 * 3_600_000}


def test_empty_log_has_a_report(tmp_path):
    """Nothing is divided by zero."""
    made = report(write_log(tmp_path / "a.jsonl", []))
    assert (made.calls, made.first, made.prompts_per_100) == (0, None, None)
    assert "There are no events." in made.to_html()
    assert json.loads(made.to_json())["total"]["failure_rate"] is None
    assert "calls" in made.to_text()
