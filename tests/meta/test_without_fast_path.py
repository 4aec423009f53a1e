"""The fast path is an optimisation: without its module the gate's own tests hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_tests_of_the_gate_pass_without_the_fast_path() -> None:
    """In a process in which its module cannot be imported. The core does not know of it."""
    tests = ["tests/gate", "tests/contracts"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--no-fast-path",
        "-q",
        "-n",
        "0",
        "-m",
        "not slow",
        *tests,
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-1000:]


def test_a_guard_works_without_the_module() -> None:
    """And says that it has no fast path."""
    program = (
        "import sys; sys.modules['edictum.runtime.fast_path'] = None\n"
        "from edictum import Edictum\n"
        "guard = Edictum()\n"
        "assert guard._state.fast_path is None\n"
        "assert guard.run_sync('t', {}, lambda: 1) == 1\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
