"""Adapters are tested inside the real frameworks, in venvs of their own (see frameworks/run.py).

A test module says with ``pytestmark = pytest.mark.s1  # needs langchain`` which venv it belongs to
and what it imports. In the main run a missing framework leaves its module out, loudly; in a
framework's own run (EDICTUM_VENV is set) it is an error.
"""

from __future__ import annotations

import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VENV = os.environ.get("EDICTUM_VENV", "")
NEEDS = re.compile(
    r"^pytestmark = pytest\.mark\.(s\d)\b.*# needs (\S+)(?: and (node))?", re.MULTILINE
)
left_out: list[str] = []


def is_installed(module: str) -> bool:
    """Return whether a module can be imported; a namespace around it may be another package's."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    found = NEEDS.search(collection_path.read_text(encoding="utf-8"))
    if found is None:
        return None
    venv, module, node = found.groups()
    if VENV and venv != VENV:
        return True
    if node and not (ROOT / ".venvs" / "node" / ".built").exists():
        left_out.append(f"{collection_path.name}: NOT TESTED, npm or its packages are not there")
        return True
    if VENV:
        return None
    if not is_installed(module):
        left_out.append(
            f"{collection_path.name}: {module} is not installed here; run: make frameworks"
            f" ONLY={collection_path.stem[5:]}"
        )
        return True
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in sorted(set(left_out)):
        terminalreporter.write_line(f"LEFT OUT {line}", yellow=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    suite = sys.modules.get("edictum.testing.adapter")
    if not VENV or suite is None:
        return
    out = Path(os.environ.get("EDICTUM_RESULTS", ROOT / ".build" / "conformance"))
    out.mkdir(parents=True, exist_ok=True)
    for (framework, version), results in suite.RESULTS.items():
        found = {
            "framework": framework,
            "version": version,
            "points": suite.list_points(),
            "results": results,
        }
        name = re.sub(r"[^a-z0-9]+", "_", framework.lower())
        (out / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
