"""A working directory with a few files and links, and calls made of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edictum.contracts.sandbox import Sandbox
from edictum.core.call import ToolCall

Judge = Callable[..., str | None]


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``outlink`` leads out, ``inlink`` stays inside, ``my dir`` has a blank in its name."""
    root = tmp_path_factory.mktemp("box").resolve()
    work = root / "work"
    (work / "src").mkdir(parents=True)
    (work / "my dir").mkdir()
    (work / "secret").mkdir()
    (root / "outside").mkdir()
    (work / "src" / "a.py").write_text("x = 1\n")
    (work / "outlink").symlink_to("/etc")
    (work / "src" / "deep").symlink_to(root / "outside")
    (work / "inlink").symlink_to("src")
    return work


@pytest.fixture(scope="session")
def in_work(work: Path) -> Judge:
    """The violation of a call when paths must lie in ``work``; a text is a command of ``bash``."""
    box = Sandbox(within=[str(work)], cwd=str(work))

    def judge(command: str | dict[str, Any], tool: str = "bash") -> str | None:
        args = (
            {"command": command.replace("WORK", str(work))} if isinstance(command, str) else command
        )
        return box.violation(ToolCall(tool, args))

    return judge
