"""The venvs of the systems that are compared, and the workers in them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PEER = "edictum==0.19.0"
PEER_VENV = ROOT / ".venvs" / "bench-edictum"
PEER_EXTRAS = ["pyyaml", "jsonschema"]  # what its YAML loader needs


class Worker:
    """A process that times cases; ``names`` are the ones it has. It cannot import the modules that
    are named in ``without``.
    """

    def __init__(self, python: Path, cases: str, *without: str) -> None:
        here = Path(__file__).parent
        command = [str(python), str(here / "worker.py"), str(here / cases), *without]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=here
        )
        listed = self._ask({"list": True})
        self.names, self.facts = set(listed["cases"]), set(listed["facts"])

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        reply = json.loads(self._process.stdout.readline() or '{"error": "the worker has ended"}')
        if "error" in reply:
            raise RuntimeError(f"{request}: {reply['error']}")
        return reply["ok"]

    def seconds(self, case: str, n: int) -> float:
        """Seconds per iteration."""
        return float(self._ask({"case": case, "n": n}))

    def on_clocks(self, case: str, n: int) -> list[float]:
        """Seconds per iteration, of each clock that the case reads."""
        return [float(seconds) for seconds in self._ask({"case": case, "n": n})]

    def fact(self, name: str) -> Any:
        return self._ask({"fact": name})

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=30)
        if self._process.stdout is not None:
            self._process.stdout.close()


def peer_python() -> Path | None:
    """The interpreter of a venv with the public package, made when it is missing; None when it
    cannot be installed.
    """
    python, stamp = PEER_VENV / "bin" / "python", PEER_VENV / ".installed"
    if stamp.exists() and stamp.read_text() == PEER:
        return python
    print(f"Installing {PEER} into {PEER_VENV.relative_to(ROOT)} ...", file=sys.stderr)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(PEER_VENV)], check=True)
        subprocess.run(
            [
                str(python),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                PEER,
                *PEER_EXTRAS,
            ],
            check=True,
        )
    except (subprocess.CalledProcessError, OSError) as exc:
        print(f"{PEER} could not be installed ({exc}); its columns stay empty.", file=sys.stderr)
        return None
    stamp.write_text(PEER)
    return python
