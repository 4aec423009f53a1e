"""Generated code is a fast path: without the module that writes it, conditions are interpreted, with
the same answers.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
WITHOUT_FAST_PATH = """
import sys
import pytest

sys.modules["edictum.contracts._generate"] = None

from edictum.contracts import _compile as compile

assert compile.FAST_PATH is None
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-n", "0", "--no-cov", *sys.argv[1:]]))
"""


def test_contracts_hold_when_the_fast_path_cannot_be_imported() -> None:
    tests = [
        "test_language_cases.py",
        "test_language_properties.py",
        "test_contracts_together.py",
        "test_postconditions.py",
        "test_explain.py",
    ]
    paths = [str(HERE / name) for name in tests]
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_FAST_PATH, *paths],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4_000:] + run.stderr[-1_000:]
