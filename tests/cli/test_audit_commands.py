"""``edictum audit`` as people type it: tables, JSON, CSV, pages, exports, and exit codes."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from edictum import AuditEvent, Edictum, FileAuditSink
from edictum.audit import Chain
from edictum.cli.main import main
from support.bundles import bundle_of, contract

CONTRACTS = (
    contract(
        "small-refunds",
        tool="refund",
        when={"args.amount": {"gt": 100}},
        message="{args.amount} is too much.",
    ),
    contract("never-needed", tool="remove", when={"args.path": {"contains": ".env"}}),
)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(bundle_of(*CONTRACTS, session={"store": "redis://nowhere.invalid:1/0"}))
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three refunds, one of them too large."""
    path = tmp_path / "audit.jsonl"
    rules = bundle_of(*CONTRACTS)
    guard = Edictum.from_yaml_string(rules, audit_sink=FileAuditSink(path))
    for number, amount in enumerate((10, 500, 20)):
        guard.dispatch_sync(
            "refund", {"amount": amount}, lambda amount: "ok", session_id=f"s{number}"
        )
    asyncio.run(guard.close())
    return path


def audit(*arguments: object) -> int:
    return main(["audit", *map(str, arguments)])


def test_query_prints_a_table(log, capsys):
    assert audit("query", log, "--outcome", "denied") == 0
    printed = capsys.readouterr().out
    assert "1 events" in printed
    assert re.search(r"s1 +refund +call_denied +denied +small-refunds +500 is too much\.", printed)


def test_query_prints_json_lines(log, capfdbinary):
    assert audit("query", log, "--json", "--action", "call_executed") == 0
    events = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [event["session_id"] for event in events] == ["s0", "s2"]


def test_query_prints_csv_up_to_a_limit(log, capfdbinary):
    assert audit("query", log, "--csv", "--limit", 2) == 0
    rows = list(csv.DictReader(io.StringIO(capfdbinary.readouterr().out.decode(), newline="")))
    assert [row["action"] for row in rows] == ["call_allowed", "call_executed"]


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (["--session", "s0", "--session", "s1"], 3),
        (["--contract", "small-*"], 1),
        (["--text", "TOO MUCH"], 1),
        (["--since", "1h", "--tool", "refund"], 5),
        (["--until", "2020-01-01"], 0),
        (["--principal", "ada"], 0),
    ],
)
def test_filters_of_the_command_line(log, capfdbinary, filters, count):
    assert audit("query", log, "--json", *filters) == 0
    assert len(capfdbinary.readouterr().out.splitlines()) == count


def test_report_prints_tables(log, bundle, capsys):
    assert audit("report", log, "--bundle", bundle) == 0
    printed = capsys.readouterr().out
    assert re.search(r"refund +3 +2 +0 +0 +1 +0\.0 %", printed)
    assert re.search(r"yaml_precondition +small-refunds +1 +500 is too much\.", printed)
    assert re.search(r"never-needed +0 +0 +0 +never asked", printed)


def test_report_prints_json_and_csv(log, bundle, capsys):
    assert audit("report", log, "--json", "--bundle", bundle) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["total"]["calls"] == 3
    assert figures["never_fired"] == ["never-needed"]
    assert audit("report", log, "--csv") == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out, newline="")))
    assert ["Tools", "1", "calls", "3"] in rows


def test_report_writes_a_page(log, tmp_path, capsys):
    page = tmp_path / "report.html"
    assert audit("report", log, "--html", page, "--title", "Yesterday") == 0
    assert "<title>Yesterday</title>" in page.read_text()
    assert str(page) in capsys.readouterr().out


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "out.csv", "out.csv.gz"])
def test_export_writes_a_file(log, tmp_path, capsys, name):
    assert audit("export", log, "--to", tmp_path / name, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"events": 5, "unreadable": 0}
    assert (tmp_path / name).exists()


def test_export_does_not_replace_the_log_that_it_reads(log, capsys):
    before = log.read_bytes()
    assert audit("export", log, "--to", log) == 2
    assert "would replace, or be read as, a part of a log that it reads" in capsys.readouterr().err
    assert log.read_bytes() == before


@pytest.mark.parametrize(
    "command", [["query", "--json"], ["query"], ["report"], ["tail"], ["export", "--to", "out"]]
)
def test_line_that_cannot_be_read_makes_the_exit_code_1(log, capfd, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log.write_bytes(b"{torn\n" + log.read_bytes())
    assert audit(command[0], log, *command[1:]) == 1
    assert "1 could not be read: torn, or not JSON" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["query", "nothing.jsonl"], "nothing.jsonl cannot be read"),
        (["tail", "nothing.jsonl"], "No such file"),
        (["query", "{log}", "--outcome", "nice"], "'nice' is not an outcome"),
        (["report", "{log}", "--bundle", "nothing.yaml"], "nothing.yaml"),
        (["query", "{log}", "--", "more"], "Unexpected argument 'more' after --"),
        (["query", "."], "The audit file . cannot be read: Is a directory"),
        (["verify", "."], "The audit file . cannot be read: Is a directory"),
        (["tail", "."], "The audit file . cannot be read: Is a directory"),
        (["export", "{log}", "--to", "."], "The export . cannot be written"),
        (["verify", "{log}", "--heads", "copies"], "copies cannot be used: No such file"),
        (["report", "{log}", "--html", "no/page"], "no/page cannot be used: No such file"),
        (["query", "{log}", "--since", "1h", "--until", "2h"], "since is later than until"),
    ],
)
def test_bad_command_line_makes_the_exit_code_2(log, capsys, arguments, said):
    assert audit(*(argument.format(log=log) for argument in arguments)) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("option", [["query", "--limit"], ["tail", "-n"]])
def test_number_of_events_is_a_whole_one(log, capsys, option):
    with pytest.raises(SystemExit) as left:
        audit(option[0], log, option[1], -3)
    assert left.value.code == 2
    assert "'-3' is not a whole number of 0 or more" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_log_comes_by_a_pipe(log, tmp_path, name, suffix):
    piped = tmp_path / f"piped{suffix}"
    assert audit("export", log, "--to", piped) == 0
    command = [sys.executable, "-m", "edictum", "audit", "query", name, "--json"]
    done = subprocess.run(command, input=piped.read_bytes(), capture_output=True, check=True)
    assert done.stdout == log.read_bytes()


def test_tail_says_that_it_cannot_read_a_pipe(tmp_path, capsys):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    both_ends = os.open(pipe, os.O_RDWR)  # else opening one end waits for the other
    os.write(both_ends, b"{}")
    assert audit("tail", pipe) == 2
    os.close(both_ends)
    assert (
        f"tail cannot read {pipe}: it is a pipe. Use edictum audit query."
        in capsys.readouterr().err
    )


def test_report_without_events_says_so(tmp_path, capsys):
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert audit("report", empty) == 0
    assert "There are no events." in capsys.readouterr().out


def test_terminal_is_not_repainted_by_what_is_in_a_log(log, capsys):
    event = json.loads(log.read_text().splitlines()[0])
    event["tool_name"] = "look\x1b[2J\nfake line"
    log.write_text(json.dumps(event) + "\n")
    for command in ("query", "tail", "report"):
        assert audit(command, log) == 0
        printed = capsys.readouterr().out
        assert "\x1b" not in printed
        assert "\nfake line" not in printed
        assert r"look\x1b[2J" in printed or command == "report"


def test_output_that_is_cut_off_is_not_an_error(log):
    files = f"{log} " * 200
    command = f"{sys.executable} -m edictum audit query {files} --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


def run_in_terminal(*arguments: object) -> str:
    """Return what a command prints when stdout and stderr are a terminal."""
    outer, inner = pty.openpty()
    command = [sys.executable, "-m", "edictum", "audit", *map(str, arguments)]
    environment = os.environ | {"COLUMNS": "200", "TERM": "xterm"}
    process = subprocess.Popen(command, stdout=inner, stderr=inner, env=environment)
    os.close(inner)
    printed = b""
    while True:
        try:
            data = os.read(outer, 65_536)
        except OSError:  # the terminal was closed from inside
            break
        if not data:
            break
        printed += data
    process.wait()
    os.close(outer)
    return printed.decode()


def test_terminal_gets_a_progress_bar_and_rich_tables(log):
    log.write_bytes(log.read_bytes() * 12_000)
    printed = run_in_terminal("report", log)
    assert re.search(r"\[#+ *\] +\d+%", printed)
    assert "━" in printed or "─" in printed
    assert "Why calls were denied" in printed
    assert "36,000" in printed


# --- tail -----------------------------------------------------------------------------------------


def test_tail_prints_the_newest(log, capsys):
    assert audit("tail", log, "-n", 2) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "s2  refund  call_executed" in lines[-1]


def test_tail_looks_back_as_far_as_it_takes(log, capsys):
    wanted, other = log.read_text().splitlines()[:2]
    log.write_text(f"{wanted}\n" + f"{other}\n" * 3_000)
    assert audit("tail", log, "--json", "-n", 1, "--action", "call_allowed") == 0
    assert capsys.readouterr().out == f"{wanted}\n"


def test_tail_says_that_a_file_is_compressed(log, tmp_path, capsys):
    audit("export", log, "--to", tmp_path / "old.gz")
    assert audit("tail", tmp_path / "old.gz") == 2
    assert "it is compressed" in capsys.readouterr().err


def test_tail_follows_a_log_over_a_rotation(log):
    line = log.read_bytes().splitlines()[0]
    command = [
        sys.executable,
        "-m",
        "edictum",
        "audit",
        "tail",
        str(log),
        "-f",
        "--json",
        "-n",
        "0",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    found: list[str] = []

    def read() -> None:
        for printed in process.stdout:  # type: ignore[union-attr]
            found.append(json.loads(printed)["call_id"])

    reader = threading.Thread(target=read)
    reader.start()

    def append(call_id: str) -> None:
        event = json.loads(line) | {"call_id": call_id}
        with log.open("ab") as file:
            file.write(json.dumps(event).encode() + b"\n")

    def wait_for(call_id: str) -> None:
        deadline = time.monotonic() + 30
        while call_id not in found:
            assert time.monotonic() < deadline, found
            time.sleep(0.02)

    try:
        deadline = time.monotonic() + 30
        while "first" not in found:  # until it follows
            assert time.monotonic() < deadline
            append("first")
            time.sleep(0.1)
        with log.open("ab") as file:
            file.write(json.dumps(json.loads(line) | {"call_id": "slow"}).encode()[:50])
            file.flush()
            time.sleep(0.5)
            file.write(json.dumps(json.loads(line) | {"call_id": "slow"}).encode()[50:] + b"\n")
        wait_for("slow")
        append("before")
        os.replace(log, log.with_name("audit.jsonl.1"))
        append("after")
        wait_for("after")
        assert [name for name in found if name != "first"] == ["slow", "before", "after"]
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
        process.stderr.close()


# --- verify, keygen, evidence ---------------------------------------------------------------------


@pytest.fixture
def chained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A signed log of five events."""
    assert main(["audit", "keygen", str(tmp_path / "key")]) == 0
    assert "keep it where the agent cannot read it" in capsys.readouterr().out
    path = tmp_path / "chained.jsonl"
    sink = FileAuditSink(path, chain=Chain(key=tmp_path / "key", copy_to=tmp_path / "copies"))
    for number in range(5):
        sink.emit(AuditEvent(tool_name=f"tool-{number}", session_id="s1"))
    sink.close()
    return path


def test_verify_prints_what_is_wrong_and_ends_with_1(
    chained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key, copies = chained.with_name("key.pub"), chained.with_name("copies")
    command = ["audit", "verify", str(chained), "--public-key", str(key), "--heads", str(copies)]
    assert main(command) == 0
    assert re.match(
        r"OK: 5 records of 1 writers, 1 heads \(signed, key [0-9a-f]{16}\), 0 records that no head"
        r" lists, 0 deleted\.\n$",
        capsys.readouterr().out,
    )
    chained.write_text(chained.read_text().replace("tool-2", "tool-9"))
    assert main(command) == 1
    told = capsys.readouterr().out
    assert f"{chained}:3: changed: record 3 of" in told
    assert "WRONG (1 changed): 5 records" in told
    assert main([*command, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["problems"][0]["sequence"]) == (False, 3)


def test_verify_with_a_key_ends_with_1_when_nothing_is_left(
    chained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chained.write_text("")
    Path(f"{chained}.heads").unlink()
    key = chained.with_name("key.pub")
    assert main(["audit", "verify", str(chained), "--public-key", str(key)]) == 1
    assert "WRONG (1 head): 0 records" in capsys.readouterr().out


def test_keygen_replaces_no_key(chained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "keygen", str(chained.with_name("key"))]) == 2
    assert "File exists" in capsys.readouterr().err
    assert main(["audit", "keygen", str(chained.with_name("new")), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["public_key"] == str(chained.with_name("new.pub"))


def test_evidence_is_written_with_its_program(
    chained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence, script = chained.with_name("evidence.json"), chained.with_name("check.py")
    key = str(chained.with_name("key.pub"))
    command = ["audit", "evidence", str(chained), "--to", str(evidence), "--session", "s1"]
    assert main([*command, "--public-key", key]) == 0
    assert "What the file holds is not signed; sign it with --key." in capsys.readouterr().out
    signed = [*command, "--public-key", key, "--key", str(chained.with_name("key"))]
    assert main([*signed, "--script", str(script)]) == 0
    assert capsys.readouterr().out == f"5 events in 5 records: {evidence}\n"
    ran = [sys.executable, str(script), str(evidence), "--public-key", key]
    assert subprocess.run(ran, timeout=60).returncode == 0
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 5
