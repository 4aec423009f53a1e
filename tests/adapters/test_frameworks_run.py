"""The versions that frameworks/run.py installs are those that the adapters declare."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

import edictum.adapters
from edictum.adapters._versions import release_numbers

ROOT = Path(__file__).resolve().parents[2]
VENVS = ("s1", "s3", "s4")


@pytest.fixture
def run() -> Any:
    spec = importlib.util.spec_from_file_location("frameworks_run", ROOT / "frameworks" / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def locked(run: Any) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in VENVS:
        found |= run.read_lock(ROOT / "frameworks" / f"{name}.txt")
    return found


@pytest.mark.parametrize("name", edictum.adapters.ADAPTERS)
def test_what_is_locked_is_in_the_declared_range(run: Any, name: str) -> None:
    for distribution, (first, beyond) in getattr(edictum.adapters, name).requires.items():
        assert (
            release_numbers(first)
            <= release_numbers(locked(run)[distribution])
            < release_numbers(beyond)
        ), distribution


def test_a_lower_bound_is_either_tested_by_the_usual_run_or_by_the_lowest_one(run: Any) -> None:
    """The usual run has exactly the first supported version, or the framework is light and
    ``--lowest`` installs it.
    """
    for name in edictum.adapters.ADAPTERS:
        for distribution, (first, _) in getattr(edictum.adapters, name).requires.items():
            usual = release_numbers(locked(run)[distribution])
            assert distribution in run.read_first_versions() or usual[
                : len(release_numbers(first))
            ] == release_numbers(first), distribution


def test_the_lowest_run_asks_for_the_first_versions_and_for_locked_tools(run: Any) -> None:
    lines = run.make_lowest("s1").split()
    assert {"langchain>=1.3", "langgraph>=1.2"} <= set(lines)
    assert {re.split("[>=]", line)[0] for line in lines} >= {
        *run.read_first_versions(),
        *run.TEST_TOOLS,
    }
    assert all("==" in line for line in lines if line.startswith(run.TEST_TOOLS))


def test_other_runs_leave_the_lock_files_venvs_and_results_of_the_usual_one(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(run, "BUILT", tmp_path)
    monkeypatch.setattr(
        run, "run_or_exit", lambda *command: commands.append([str(part) for part in command])
    )
    monkeypatch.setattr(run, "find_uv", lambda: "uv")
    for kind in ("latest", "lowest"):
        assert run.find_lock("s1", kind) == tmp_path / f"s1-{kind}.txt"
        assert run.get_results_dir(kind) != run.get_results_dir("")
    assert [command[-1] for command in commands] == [
        str(tmp_path / "s1-latest.txt"),
        str(tmp_path / "s1-lowest.txt"),
    ]
    assert run.find_lock("s1", "") == ROOT / "frameworks" / "s1.txt"
    assert len(commands) == 2
