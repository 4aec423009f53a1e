"""Python in a process or a module of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def run_python(code: str, *arguments: str, timeout_s: float = 240.0) -> Any:
    """Run code in a process of its own; return its last line of output, read as JSON."""
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


def list_open_files(folder: Path) -> list[str]:
    """List what this process has open in a folder. Other threads open and close other files."""
    opened = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            opened.append(os.readlink(descriptor))
    return [path for path in opened if Path(path).is_relative_to(folder)]


def load_module(path: Path) -> ModuleType:
    """Import a file that belongs to no package, under its own name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
