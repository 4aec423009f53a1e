"""The benchmarks run, print the rows that they promise, and compare with guards that are honest."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.processes import ROOT, load_module

BENCHMARKS = ROOT / "benchmarks"
ROWS = (
    "run, 1 Python contract",
    "run, 100 matching Python contracts",
    "run, 10 matching YAML contracts",
    "run, 1 YAML + 10,000 for other tools",
    "evaluate, 1 Python contract",
    "load 1,000 YAML contracts",
    "^(a+)+$ on 100,000 letters",
    "200 patterns on 1,000,000 characters",
    "import edictum",
    "from edictum import Edictum",
    "run, 1 contract, in memory",
    "denied",
    "failing tool",
    "a clock of the program's own",
    "amounts",
    "a call in a turn, inline, in memory",
    "JSONL audit file",
    "SQLite sessions",
    "SQLite sessions, JSONL audit file",
)


def printed(script: str, *arguments: str) -> str:
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_benchmark_runs_and_three_means_three():
    text = printed("bench.py", "--quick")
    facts = {
        line.split("  ")[0]: line.split()[-2]
        for line in text.split("\nFacts\n")[1].split("\n\n")[0].splitlines()
        if "bodies" in line
    }
    assert set(facts.values()) == {"3"}
    assert len(facts) == 2
    assert [title for title in ROWS if title not in text] == []
    assert "bodies ran: sqlite 3" in text  # by hand, too


def test_the_walk_is_counted():
    text = printed("walk.py")
    assert re.search(r"allowed +\d+ / \d+ / \d+ ", text)
    assert re.search(r"file sink +\d+ / \d+ / \d+ .*\+ \d+", text)


def test_metrics_are_printed():
    text = printed("metrics.py")
    assert "functions named by a participle" in text
    assert printed("metrics.py", "adapters").count("\n") >= 11


# --- What is written by hand ----------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("BENCH_FOLDER", str(tmp_path))
    return tmp_path


def lines_of(cases: str, folder: Path) -> list[dict[str, Any]]:
    """Return the two lines of the last call that was made, in a worker of the benchmark."""
    worker = load_module(BENCHMARKS / "peers.py").Worker(Path(sys.executable), cases)
    worker.on_clocks("file @1", 1)
    worker.close()
    (file,) = folder.glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.unlink()
    return lines[-2:]


def test_a_guard_by_hand_writes_the_same_two_lines(folder: Path):
    """But for ids and times."""
    differ = {"timestamp", "run_id", "call_id", "session_id", "duration_ms", "policy_digest"}
    differ |= {"host", "pid", "instance_id"}
    ours = lines_of("deployed_ours.py", folder)
    by_hand = lines_of("deployed_by_hand.py", folder)
    assert [line.keys() for line in ours] == [line.keys() for line in by_hand]
    assert [{k: v for k, v in line.items() if k not in differ} for line in ours] == [
        {k: v for k, v in line.items() if k not in differ} for line in by_hand
    ]


def test_a_guard_by_hand_blanks_secrets(folder: Path):
    redact = load_module(BENCHMARKS / "deployed_by_hand.py").redact
    given = {"Token": 1, "a": ["Bearer abc", {"b": "sk-0123456789ab"}], "n": 1}
    assert redact(given) == {
        "Token": "[REDACTED]",
        "a": ["[REDACTED]", {"b": "[REDACTED]"}],
        "n": 1,
    }
