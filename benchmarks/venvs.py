"""The frameworks' venvs: which there are, and how a script in one of them is run and answers.
Standard library only: both sides use it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).parent


class NotMeasured(Exception):
    """Why there are no figures, in one line."""


def frameworks() -> dict[str, str]:
    """Test module -> its venv, as ``make frameworks`` knows them."""
    spec = importlib.util.spec_from_file_location("frameworks_run", ROOT / "frameworks" / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    known: dict[str, str] = module.modules()
    return known


def python_of(venv: str) -> Path:
    """The interpreter of a venv. It is not made here: that takes minutes and gigabytes."""
    python = ROOT / ".venvs" / venv / "bin" / "python"
    if not python.exists():
        raise NotMeasured(f".venvs/{venv} is not there; run: make frameworks")
    return python


def ask(venv: str, script: str, *arguments: str, timeout: float = 90.0) -> Any:
    """What a script of this folder answers, run in a venv and in a home of its own."""
    command = [str(python_of(venv)), str(HERE / script), *arguments]
    with tempfile.TemporaryDirectory() as home:
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=timeout,
                cwd=home,
                env=_at_home(home),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NotMeasured(f"{script} was not done after {timeout:.0f} s") from None
    return read(done.stdout, done.stderr or f"{script} ended with {done.returncode}")


def read(stdout: str, stderr: str) -> Any:
    """The answer, which is the last line. A script that fell over before it could give one has said
    why in the last line of the other.
    """
    if not stdout.strip():
        raise NotMeasured(_short(stderr.strip().splitlines()[-1]))
    reply = json.loads(stdout.strip().splitlines()[-1])
    if "error" in reply:
        raise NotMeasured(_short(reply["error"]))
    return reply["ok"]


def answer(work: Callable[[], Any]) -> None:
    """The other end of ``ask``: what ``work`` gives, or what went wrong in it."""
    replies, sys.stdout = (
        sys.stdout,
        sys.stderr,
    )  # whatever a framework prints must not mix with the answer
    try:
        reply = {"ok": work()}
    except Exception as exc:
        reply = {"error": describe(exc)}
    print(json.dumps(reply), file=replies, flush=True)


def describe(exc: BaseException) -> str:
    """In groups, the first exception that is none."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return f"{type(exc).__name__}: {exc}"


def _short(why: str) -> str:
    return " ".join(why.split())[:300]


def _at_home(home: str) -> dict[str, str]:
    return {**os.environ, "HOME": home, "TMPDIR": home, "FASTMCP_CHECK_FOR_UPDATES": "off"}
