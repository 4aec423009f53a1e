"""Build the frameworks' venvs and run the adapters' tests in them; print the matrix of conformance
results.

    python frameworks/run.py [--latest | --lowest] [--light] [--only NAME ...]

A venv is rebuilt when its lock file changes. ``--latest`` takes the newest releases, ``--lowest``
the first versions that the adapters of the light frameworks declare as supported. Both have lock
files, venvs and results of their own (.build/frameworks, .venvs/s1-latest,
.build/conformance-latest); those of the usual run stay as they are.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "frameworks"
VENVS = ROOT / ".venvs"
BUILT = ROOT / ".build" / "frameworks"
TESTS = ROOT / "tests" / "adapters"
# In the daily run as well: quick to import and to run.
LIGHT = ("langchain", "openai_agents", "google_adk", "agno", "pydantic_ai", "fastmcp")
CLIENTS = ("model_clients", "client_turns")  # of models, for turns: no framework, but as quick
TEST_TOOLS = ("pytest", "pytest-asyncio", "pyyaml", "google-re2", "hypothesis", "jsonschema-rs")
MARK = re.compile(r"^pytestmark = pytest\.mark\.(s\d)\b.*# needs \S+(?: and node)?", re.MULTILINE)
# Third-party warnings say nothing about us; ours stay errors.
WARNINGS = (
    "ignore",
    "error::ResourceWarning:edictum",
    "error::RuntimeWarning:edictum",
    "error::DeprecationWarning:edictum",
)


def run_command(*command: object, **env: str) -> int:
    """Run a command. uv trusts the machine's certificates: a registry may have a company's own."""
    env = {"UV_SYSTEM_CERTS": "1", **os.environ, **env}
    return subprocess.run(
        [str(part) for part in command], cwd=ROOT, env=env, check=False
    ).returncode


def run_or_exit(*command: object) -> None:
    if code := run_command(*command):
        sys.exit(f"frameworks: {' '.join(str(part) for part in command)} ended with {code}")


def find_uv() -> Path:
    """Return uv, from a venv of its own: it is a tool of the build, not a dependency."""
    tools = VENVS / "tools"
    if not (tools / "bin" / "uv").exists():
        venv.create(tools, with_pip=True)
        run_or_exit(
            tools / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "uv",
        )
    return tools / "bin" / "uv"


def modules() -> dict[str, str]:
    """Return the venv of each test module."""
    found = {
        path.stem.removeprefix("test_"): MARK.search(path.read_text(encoding="utf-8"))
        for path in sorted(TESTS.glob("test_*.py"))
    }
    return {name: mark.group(1) for name, mark in found.items() if mark is not None}


def needs_node(name: str) -> bool:
    """Return whether a test module needs packages of npm."""
    mark = MARK.search((TESTS / f"test_{name}.py").read_text(encoding="utf-8"))
    return mark is not None and mark.group(0).endswith("and node")


# --- What is installed ----------------------------------------------------------------------------


def read_first_versions() -> dict[str, str]:
    """Return the first version that an adapter supports, by distribution, of light frameworks."""
    sys.path.insert(0, str(ROOT / "src"))
    adapters = importlib.import_module("edictum.adapters")
    classes = [
        getattr(adapters, name) for name, module in adapters.ADAPTERS.items() if module in LIGHT
    ]
    return {
        distribution: first
        for adapter in classes
        for distribution, (first, _) in adapter.requires.items()
    }


def read_lock(path: Path) -> dict[str, str]:
    """Return the versions in a lock file by distribution."""
    return dict(
        line.split("==", 1)
        for line in path.read_text(encoding="utf-8").splitlines()
        if "==" in line
    )


def read_requirements(name: str) -> list[str]:
    """Return the distributions that a venv is made for."""
    return [
        re.split(r"[<>=]", line)[0]
        for line in (HERE / f"{name}.in").read_text(encoding="utf-8").splitlines()
    ]


def make_lowest(name: str) -> str:
    """Return requirements with the first supported versions; what tests need stays locked."""
    usual = read_lock(HERE / f"{name}.txt")
    tools = [f"{part}=={usual[part]}" for part in read_requirements(name) if part in TEST_TOOLS]
    return "\n".join(
        [
            *(f"{part}>={version}" for part, version in read_first_versions().items()),
            *tools,
            "mcp>=2",
            "",
        ]
    )


def compile_lock(path: Path, source: Path, *options: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    run_or_exit(
        find_uv(),
        "pip",
        "compile",
        "-q",
        "--python-version",
        "3.11",
        "--no-annotate",
        "--no-header",
        *options,
        source,
        "-o",
        path,
    )
    return path


def find_lock(name: str, kind: str) -> Path:
    """Return the lock file of a venv. Only that of the usual run is kept in the repository."""
    usual, own, wanted = (
        HERE / f"{name}.txt",
        BUILT / f"{name}-{kind}.txt",
        BUILT / f"{name}-{kind}.in",
    )
    if kind == "latest":
        return compile_lock(own, HERE / f"{name}.in", "--upgrade")
    if kind == "lowest":
        BUILT.mkdir(parents=True, exist_ok=True)
        wanted.write_text(make_lowest(name), encoding="utf-8")
        return compile_lock(own, wanted, "--upgrade", "--resolution", "lowest-direct")
    return usual if usual.exists() else compile_lock(usual, HERE / f"{name}.in")


def print_differences(name: str, kind: str, found: dict[str, str]) -> None:
    """Print in which versions of the frameworks this run differs from the usual one."""
    usual = read_lock(HERE / f"{name}.txt")
    parts = [
        part
        for part in dict.fromkeys([*read_first_versions(), *read_requirements(name)])
        if part in found and found[part] != usual.get(part)
    ]
    lines = [f"{part} {found[part]} (locked: {usual.get(part, 'none')})" for part in parts]
    print(f"== {name}, {kind}: {'; '.join(lines) or 'the same as locked'}", flush=True)


def build(name: str, kind: str) -> Path:
    """Make a venv, unless it holds what its lock file says; return its interpreter."""
    locked, home = find_lock(name, kind), VENVS / (f"{name}-{kind}" if kind else name)
    stamp, wanted = home / ".built", locked.read_text(encoding="utf-8")
    if kind:
        print_differences(name, kind, read_lock(locked))
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        print(f"== installing {locked.relative_to(ROOT)} into {home.relative_to(ROOT)}", flush=True)
        run_or_exit(find_uv(), "venv", "-q", "--allow-existing", "--python", sys.executable, home)
        run_or_exit(find_uv(), "pip", "sync", "-q", "--python", home / "bin" / "python", locked)
        run_or_exit(
            find_uv(),
            "pip",
            "install",
            "-q",
            "--python",
            home / "bin" / "python",
            "--no-deps",
            "-e",
            ".",
        )
        stamp.write_text(wanted, encoding="utf-8")
    return home / "bin" / "python"


def build_node() -> None:
    """Install the npm packages that tests name in their mark; without npm these are left out."""
    locked, home = HERE / "node", VENVS / "node"
    stamp, wanted = home / ".built", (locked / "package-lock.json").read_text(encoding="utf-8")
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    if shutil.which("npm") is None:
        print("== NOT TESTED: tests with packages of npm, because npm is not there", flush=True)
        return
    print(f"== installing {locked.relative_to(ROOT)} into {home.relative_to(ROOT)}", flush=True)
    home.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(locked / name, home / name)
    if run_command("npm", "ci", "--silent", "--no-audit", "--no-fund", "--prefix", home):
        print("== NOT TESTED: tests with packages of npm, because npm failed", flush=True)
        return
    stamp.write_text(wanted, encoding="utf-8")


# --- What is run ----------------------------------------------------------------------------------


def get_results_dir(kind: str) -> Path:
    return ROOT / ".build" / (f"conformance-{kind}" if kind else "conformance")


def run_tests(name: str, chosen: list[str], kind: str) -> int:
    python = build(name, kind)
    if any(needs_node(module) for module in chosen):
        build_node()
    print(f"== {name}: {', '.join(chosen)}", flush=True)
    paths = [TESTS / f"test_{module}.py" for module in chosen]
    filters = "filterwarnings=" + "\n".join(WARNINGS)
    return run_command(
        python,
        "-m",
        "pytest",
        "-o",
        filters,
        *paths,
        EDICTUM_VENV=name,
        EDICTUM_RESULTS=str(get_results_dir(kind)),
    )


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--latest", dest="kind", action="store_const", const="latest", default="")
    parser.add_argument("--lowest", dest="kind", action="store_const", const="lowest")
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--only", nargs="*", default=[])
    return parser.parse_args()


def main() -> int:
    asked, known = parse_options(), modules()
    if asked.kind == "lowest":
        known = {name: venv_name for name, venv_name in known.items() if name in LIGHT}
    if unknown := set(asked.only) - set(known):
        sys.exit(
            f"frameworks: no tests for {', '.join(sorted(unknown))}; there are: {', '.join(known)}"
        )
    light = (*LIGHT, *CLIENTS)
    wanted = asked.only or [name for name in known if not asked.light or name in light]
    failed = 0
    for name in sorted({known[module] for module in wanted}):
        failed |= run_tests(
            name, [module for module in wanted if known[module] == name], asked.kind
        )
    run_command(
        sys.executable,
        HERE / "matrix.py",
        "print",
        EDICTUM_RESULTS=str(get_results_dir(asked.kind)),
    )
    whole = not (asked.kind or asked.only or asked.light)
    return 1 if failed else run_command(sys.executable, HERE / "matrix.py", "check") if whole else 0


if __name__ == "__main__":
    sys.exit(main())
