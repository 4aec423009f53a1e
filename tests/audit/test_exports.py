"""Exports: what other programs read is what was in the log."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edictum import AuditEvent, BackendError, Edictum, EdictumInputError
from edictum.audit import export, query
from edictum.audit._export import CSV_COLUMNS, make_cloud_event

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def make_events(*texts: str) -> list[dict]:
    return [AuditEvent(reason=text, tool_args={text: [text]}).to_dict() for text in texts]


@given(st.lists(TEXT, max_size=5), st.sampled_from(["", ".gz", ".zst"]))
def test_json_lines_come_back_as_they_were(tmp_path_factory, texts, suffix):
    """Any text, plain and compressed."""
    path = tmp_path_factory.mktemp("out") / f"out.jsonl{suffix}"
    events = make_events(*texts)
    assert export(events, path) == len(events)
    assert list(query(path)) == events


def test_json_lines_are_those_of_the_log(tmp_path):
    """Byte for byte."""
    guard = Edictum()
    guard.run_sync("look", {"path": "ä"}, lambda path: "ok")
    export(guard.audit.query(), tmp_path / "out.jsonl")
    lines = [event.to_json() for event in guard.local_sink.events]
    assert (tmp_path / "out.jsonl").read_text().splitlines() == lines


def test_other_programs_read_the_compressed_files(tmp_path):
    """gzip by its module, zstd by its program."""
    events = make_events("one", "two")
    export(events, tmp_path / "out.jsonl.gz")
    with gzip.open(tmp_path / "out.jsonl.gz", "rt") as file:
        assert [json.loads(line) for line in file] == events
    export(events, tmp_path / "out.jsonl.zst")
    command = ["zstd", "-dcq", tmp_path / "out.jsonl.zst"]
    try:
        read = subprocess.run(command, capture_output=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("there is no zstd program here")
    assert [json.loads(line) for line in read.splitlines()] == events


@given(st.lists(TEXT.filter(bool), min_size=1, max_size=5))
def test_csv_has_a_column_for_each_field(tmp_path_factory, texts):
    """Any text, read back by the csv module."""
    path = tmp_path_factory.mktemp("out") / "out.csv"
    events = make_events(*texts)
    export(events, path, format="csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [tuple(row) for row in rows] == [CSV_COLUMNS] * len(events)
    for row, event in zip(rows, events, strict=True):
        assert row["reason"].removeprefix("'") == event["reason"].removeprefix("'")
        assert json.loads(row["tool_args"]) == event["tool_args"]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_spreadsheet_does_not_take_a_text_for_a_formula(tmp_path, text):
    """What an agent wrote must not run in an office program."""
    export(make_events(text), tmp_path / "out.csv", format="csv")
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        assert next(csv.DictReader(file))["reason"] == f"'{text}"


def test_csv_of_nothing_has_the_names_of_the_columns(tmp_path):
    """So that a program that reads it finds them."""
    assert export([], tmp_path / "out.csv", format="csv") == 0
    assert (tmp_path / "out.csv").read_bytes().decode() == ",".join(CSV_COLUMNS) + "\r\n"


def test_cloud_events_have_what_the_specification_asks_for(tmp_path):
    """The required attributes, the event as data, and ids that differ."""
    guard = Edictum()
    guard.run_sync("look", {}, lambda: "ok")
    events = list(guard.audit.query())
    export(events, tmp_path / "out.jsonl", format="cloudevents")
    made = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [one["data"] for one in made] == events
    for one in made:
        assert one["specversion"] == "1.0"
        assert one["source"] == f"urn:edictum:{one['data']['instance_id']}"
        assert one["time"] == one["data"]["timestamp"]
        assert one["subject"] == "look"
        assert one["datacontenttype"] == "application/json"
        assert one.keys() <= {
            *["specversion", "id", "source", "type", "time", "subject", "datacontenttype", "data"]
        }
    assert [one["type"] for one in made] == [
        "edictum.audit.call_allowed",
        "edictum.audit.call_executed",
    ]
    assert len({one["id"] for one in made}) == 2
    assert made[0]["id"] == make_cloud_event(events[0])["id"]


def test_event_of_no_tool_has_no_subject():
    """An empty subject is not allowed."""
    assert "subject" not in make_cloud_event(AuditEvent().to_dict())


def test_export_appears_when_it_is_complete(tmp_path):
    """A failure leaves the file before it, and nothing beside it."""
    path = tmp_path / "out.jsonl"
    path.write_text("before")

    def fail():
        yield from make_events("one")
        raise RuntimeError("the source is gone")

    with pytest.raises(RuntimeError):
        export(fail(), path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    export(make_events("one"), path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_export_that_cannot_be_written_is_an_error(tmp_path: Path):
    """A folder that does not exist, a format that is unknown."""
    with pytest.raises(BackendError, match=r"The export .*out\.jsonl cannot be written"):
        export([], tmp_path / "nowhere" / "out.jsonl")
    with pytest.raises(EdictumInputError, match="'xml' is not a format of exports"):
        export([], tmp_path / "out.xml", format="xml")  # type: ignore[arg-type]
