"""Fences: the code blocks of README and docs, and how each language is put to the test.

    python   runs; the fences of one file share a namespace, in order, in an empty working directory
    output   is exactly what the python fence before it printed
    shell    runs line by line; ``make x`` is asked with ``make -n`` what it would do
    yaml     a bundle is loaded by the library; ``yaml invalid`` must be refused by it; anything
    else must be YAML
    json     must be JSON
    toml     must be TOML
    text     is for people: drawings and the like

A fence in any other language fails, so that none is skipped without anybody noticing.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = frozenset({"python", "output", "shell", "bash", "yaml", "json", "toml", "text"})
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_BUNDLE = re.compile(r"^kind: *(ContractBundle|Ruleset)\b", re.MULTILINE)


@dataclass(frozen=True)
class Fence:
    path: Path
    line: int  # of the first line of the body
    info: str
    body: str

    @property
    def language(self) -> str:
        return self.info.split()[0] if self.info.split() else ""

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """README, CONTRIBUTING and the other pages beside them, then everything below docs/."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def fences_of(path: Path) -> list[Fence]:
    text = path.read_text(encoding="utf-8")
    return [_fence(path, text, match) for match in _FENCE.finditer(text)]


def _fence(path: Path, text: str, match: re.Match[str]) -> Fence:
    indent = match["indent"]
    body = "".join(line.removeprefix(indent) for line in match["body"].splitlines(keepends=True))
    return Fence(path, text.count("\n", 0, match.start("body")) + 1, match["info"].strip(), body)


class Page:
    """One file's fences being run, in order."""

    def __init__(self, workdir: Path) -> None:
        self._workdir = workdir
        self._namespace: dict[str, Any] = {"__name__": "__main__"}
        self._printed: str | None = None

    def run(self, fence: Fence) -> None:
        language = "shell" if fence.language == "bash" else fence.language
        if language not in LANGUAGES:
            raise AssertionError(
                f"{fence}: the language {fence.language!r} has no test; use one of"
                f" {', '.join(sorted(LANGUAGES))}"
            )
        getattr(self, f"_{language}")(fence)
        if language != "python":
            self._printed = None

    def _python(self, fence: Fence) -> None:
        source = (
            "\n" * (fence.line - 1) + fence.body
        )  # so that a traceback shows the line of the page
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, str(fence.path), "exec"), self._namespace)
        self._printed = printed.getvalue()

    def _output(self, fence: Fence) -> None:
        assert self._printed is not None, (
            f"{fence}: an output fence stands right behind the python fence that prints it"
        )
        printed, shown = (
            ([line.rstrip() for line in text.strip().splitlines()])
            for text in (self._printed, fence.body)
        )
        assert printed == shown, f"{fence}: this is not what the fence before it prints"

    def _shell(self, fence: Fence) -> None:
        for line in fence.body.splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                _run_shell(line.removeprefix("$ "), self._workdir, str(fence))

    def _yaml(self, fence: Fence) -> None:
        from edictum import Edictum, EdictumConfigError

        if not _BUNDLE.search(fence.body):
            import yaml

            yaml.safe_load(fence.body)
        elif "invalid" in fence.info.split():
            with contextlib.suppress(EdictumConfigError):
                Edictum.from_yaml_string(fence.body)
                raise AssertionError(f"{fence}: this bundle is shown as invalid, but it loads")
        else:
            Edictum.from_yaml_string(fence.body)

    def _json(self, fence: Fence) -> None:
        json.loads(fence.body)

    def _toml(self, fence: Fence) -> None:
        tomllib.loads(fence.body)

    def _text(self, fence: Fence) -> None:
        assert fence.body.strip(), f"{fence}: an empty fence"


def _run_shell(line: str, workdir: Path, where: str) -> None:
    dry = re.sub(r"^make\b", f"make -n -C {ROOT}", line)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", dry],
        cwd=workdir,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (
        f"{where}: `{line}` ended with {done.returncode}\n{done.stdout}{done.stderr}"
    )
