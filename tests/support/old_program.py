"""An older version of the library, from the history of this repository, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
OLD_COMMIT = "e4aacea"  # schema 7 on PostgreSQL


def unpack_old_source(folder: Path) -> Path | str:
    """Return where the sources of an older version are; without the history, why there are none."""
    archive = subprocess.run(
        ["git", "archive", OLD_COMMIT, "src/edictum"], cwd=HERE.parents[1], capture_output=True
    )
    if archive.returncode != 0:
        return f"upgrades: NOT TESTED, no commit {OLD_COMMIT}: {archive.stderr.decode().strip()}"
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder / "src"


class OldProgram:
    """A process that runs the older version."""

    def __init__(self, source: Path, url: str, maximum: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, HERE / "old_version.py", url, str(maximum)],
            env={**os.environ, "PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.start = self._read()

    def _read(self) -> list[str]:
        assert self._process.stdout is not None
        said: list[str] = json.loads(self._process.stdout.readline())
        return said

    def call(self, session: str) -> list[str]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{session}\n")
        self._process.stdin.flush()
        return self._read()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()
