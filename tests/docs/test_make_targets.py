"""The commands that people and build machines type do what they say: make is asked, not its file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.processes import ROOT

TARGETS = (
    "demo",
    "service",
    "check",
    "test",
    "soak",
    "bench",
    "sizes",
    "walk",
    "metrics",
    "lint",
    "frameworks",
    "clean",
)


def make(*arguments: str) -> str:
    """Return what make prints, without what an outer make has put into the environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--no-print-directory", "-C", str(ROOT), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    return done.stdout


def would_run(target: str) -> list[str]:
    """Return the commands of a target, as if nothing had been made yet."""
    lines = make("-n", "-B", target).splitlines()
    return [line for line in lines if line.strip() and not line.startswith("echo ")]


def position(commands: list[str], *words: str) -> int:
    """Return the place of the first command that has all these words."""
    found = (n for n, command in enumerate(commands) if all(word in command for word in words))
    return next(found)


def test_test_runs_everything_in_order():
    commands = would_run("test")
    steps = [
        position(commands, "ruff", "check"),
        position(commands, "ruff", "format", "--check"),
        position(commands, "mypy"),
        position(commands, "pytest", "--part traced", "--cov"),
        position(commands, "coverage", "report", "--fail-under=100"),
        position(commands, "pytest", "--part rest"),
        position(commands, "frameworks/run.py"),
    ]
    assert steps == sorted(steps)


def test_both_parts_together_are_all_tests(tmp_path: Path):
    """Asked of pytest itself, on a few files of each folder."""
    names = ["core/test_success.py", "docs/test_make_targets.py", "gate/test_exact_counts.py"]

    def collected(*options: str) -> set[str]:
        command = [sys.executable, "-m", "pytest", "-n", "0", "--collect-only", *options]
        paths = [f"tests/{name}" for name in names]
        done = subprocess.run([*command, *paths], capture_output=True, text=True, cwd=ROOT)
        return set(re.findall(r"^tests/\S+::.*$", done.stdout, re.MULTILINE))

    traced, rest = collected("--part", "traced"), collected("--part", "rest")
    assert traced
    assert rest
    assert not traced & rest
    assert traced | rest == collected()


def test_the_gate_sees_every_file_of_the_core():
    """Files that no test imports count as not covered, because coverage is given packages."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"]
    assert settings["branch"] is True
    assert settings["source"] == ["edictum.core", "edictum.outcomes", "edictum.success"]


def test_check_needs_neither_servers_nor_coverage():
    commands = would_run("check")
    tests = commands[position(commands, "pytest")]
    assert "not slow" in tests
    assert all(
        f"tests/{name}" in tests for name in ("core", "gate", "contracts", "audit", "approval")
    )
    assert "sessions" not in tests
    assert "--cov" not in tests


@pytest.mark.parametrize(
    "target", ["demo", "service", "check", "test", "bench", "lint", "walk", "metrics"]
)
def test_targets_install_what_they_need(target):
    commands = would_run(target)
    assert position(commands, "-m venv") < position(commands, "-m pip install")


def test_clean_stays_in_this_folder():
    removed = [line for line in would_run("clean") if "rm -rf" in line]
    assert removed
    assert all(" /" not in line and ".." not in line for line in removed)


def test_help_names_every_target():
    text = make("help")
    assert make() == text
    assert [target for target in TARGETS if f"make {target}" not in text] == []


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
