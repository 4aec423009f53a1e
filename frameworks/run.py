"""Build the frameworks' venvs and run the adapters' tests in them; print the matrix of conformance results.

    python frameworks/run.py [--latest] [--light] [--only NAME ...]

A venv is rebuilt when its lock file changes. ``--latest`` resolves the lock files anew from the .in files.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "frameworks"
VENVS = ROOT / ".venvs"
TESTS = ROOT / "tests" / "adapters"
# In the daily run as well: quick to import and to run.
LIGHT = ("langchain", "openai_agents", "google_adk", "agno", "pydantic_ai", "fastmcp")
MARK = re.compile(r"^pytestmark = pytest\.mark\.(s\d)\b.*# needs \S+", re.MULTILINE)
# Third-party warnings say nothing about us; ours stay errors.
WARNINGS = ("error::ResourceWarning:edictum", "error::RuntimeWarning:edictum", "error::DeprecationWarning:edictum")


def sh(*command: object, **env: str) -> int:
    return subprocess.run([str(part) for part in command], cwd=ROOT, env={**os.environ, **env}, check=False).returncode


def must(*command: object) -> None:
    if code := sh(*command):
        sys.exit(f"frameworks: {' '.join(str(part) for part in command)} ended with {code}")


def uv() -> Path:
    """uv in a venv of its own: it is a tool of the build, not a dependency."""
    tools = VENVS / "tools"
    if not (tools / "bin" / "uv").exists():
        venv.create(tools, with_pip=True)
        must(tools / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv")
    return tools / "bin" / "uv"


def modules() -> dict[str, str]:
    """Test module -> the venv it belongs to."""
    found = {path.stem.removeprefix("test_"): MARK.search(path.read_text(encoding="utf-8")) for path in sorted(TESTS.glob("test_*.py"))}
    return {name: mark.group(1) for name, mark in found.items() if mark is not None}


def lock(name: str, *upgrade: str) -> Path:
    path = HERE / f"{name}.txt"
    if upgrade or not path.exists():
        options = ["-q", "--python-version", "3.11", "--no-annotate", "--no-header", *upgrade]
        must(uv(), "pip", "compile", *options, HERE / f"{name}.in", "-o", path)
    return path


def build(name: str, latest: bool) -> Path:
    """The venv, made anew only when what it holds is not what its lock file says."""
    locked, home = lock(name, *(["--upgrade"] if latest else [])), VENVS / name
    stamp, wanted = home / ".built", locked.read_text(encoding="utf-8")
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"== installing {locked.relative_to(ROOT)} into {home.relative_to(ROOT)}", flush=True)
        must(uv(), "venv", "-q", "--allow-existing", "--python", sys.executable, home)
        must(uv(), "pip", "sync", "-q", "--python", home / "bin" / "python", locked)
        must(uv(), "pip", "install", "-q", "--python", home / "bin" / "python", "--no-deps", "-e", ".")
        stamp.write_text(wanted, encoding="utf-8")
    return home / "bin" / "python"


def test(name: str, chosen: list[str], latest: bool) -> int:
    python = build(name, latest)
    print(f"== {name}: {', '.join(chosen)}", flush=True)
    paths = [TESTS / f"test_{module}.py" for module in chosen]
    filters = [part for warning in WARNINGS for part in ("-W", warning)]
    return sh(python, "-m", "pytest", "-o", "filterwarnings=", *filters, *paths, EDICTUM_VENV=name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latest", action="store_true")
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    asked = parser.parse_args()
    known = modules()
    if unknown := set(asked.only) - set(known):
        sys.exit(f"frameworks: no tests for {', '.join(sorted(unknown))}; there are: {', '.join(known)}")
    wanted = asked.only or [name for name in known if not asked.light or name in LIGHT]
    failed = 0
    for name in sorted({known[module] for module in wanted}):
        failed |= test(name, [module for module in wanted if known[module] == name], asked.latest)
    sh(sys.executable, HERE / "matrix.py", "print")
    return 1 if failed else 0 if asked.only or asked.light else sh(sys.executable, HERE / "matrix.py", "check")


if __name__ == "__main__":
    sys.exit(main())
