"""Fast paths are optimisations: without their modules the gate's own tests hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["core", "gate", "contracts"])
def test_the_tests_of_the_gate_pass_without_fast_paths(folder: str) -> None:
    """In a process in which no such module can be imported, with a tenth of the random examples."""
    command = [sys.executable, "-m", "pytest", "--no-fast-path", "-q", "-n", "0", "-m", "not slow"]
    env = {**os.environ, "EDICTUM_QUICK": "1"}
    ended = subprocess.run(
        [*command, f"tests/{folder}"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-1000:]


def test_a_guard_works_without_the_modules() -> None:
    """And says that it has no fast path."""
    program = (
        "import sys\n"
        "sys.modules['edictum.runtime.fast_path'] = None\n"
        "sys.modules['edictum.contracts._generate'] = None\n"
        "from edictum import Edictum\n"
        "from edictum.contracts import _compile\n"
        "guard = Edictum()\n"
        "assert guard._state.fast_path is None\n"
        "assert _compile.FAST_PATH is None\n"
        "assert guard.run_sync('t', {}, lambda: 1) == 1\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
