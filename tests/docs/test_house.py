"""The commands that people and build machines type do what they say."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest
from fences import ROOT


def would_run(target: str, *options: str) -> str:
    """The commands of a make target, as if nothing had been made yet."""
    command = ["make", "-n", "-B", "-C", str(ROOT), target, *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_make_test_checks_everything():
    commands = would_run("test")
    steps = ["ruff check .", "ruff format --check", "/mypy", "-m pytest", "coverage report"]
    assert [commands.index(step) for step in steps] == sorted(
        commands.index(step) for step in steps
    )
    assert "--fail-under=100" in commands
    assert "src/edictum/core/*,src/edictum/outcomes.py,src/edictum/success.py" in commands


@pytest.mark.parametrize("target", ["demo", "test", "bench", "lint"])
def test_targets_install_what_they_need(target):
    commands = would_run(target)
    assert "-m venv" in commands
    assert "-m pip install" in commands


def test_clean_stays_in_this_folder():
    removed = would_run("clean").splitlines()
    assert all(" /" not in line and ".." not in line for line in removed if "rm -rf" in line)


def test_help_names_every_target():
    text = subprocess.run(
        ["make", "-C", str(ROOT)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert all(f"make {target}" in text for target in ("demo", "test", "bench", "lint", "clean"))


def test_build_machine_runs_what_people_type():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "set -euo pipefail"
    commands = [line.removeprefix("exec ") for line in lines[2:]]
    assert commands[0] == "make test"
    assert all(command.startswith("make ") for command in commands)


def test_core_has_no_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []
    assert project["license"] == "Apache-2.0"
    assert "Apache License" in (ROOT / "LICENSE").read_text()


BENCHMARKED = (
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
)


def test_benchmark_runs_and_three_means_three():
    command = [sys.executable, str(ROOT / "benchmarks" / "bench.py"), "--quick"]
    printed = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=120
    ).stdout
    facts = {
        line.split("  ")[0]: line.split()[-2]
        for line in printed.split("\nFacts\n")[1].splitlines()
        if "bodies" in line
    }
    assert set(facts.values()) == {"3"}
    assert len(facts) == 2
    assert [title for title in BENCHMARKED if title not in printed] == []
