"""What tests of session stores share."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
import time
from typing import Any

from edictum import Edictum, ToolExecutionResult

READ = {"work": {"side_effect": "read"}}
SCOPES = ("", "work")


def unique(name: str) -> str:
    return f"{name} {time.time_ns()}"


async def call(guard: Edictum, session: str, body: Any = lambda: "done") -> Any:
    return await guard.dispatch("work", {}, body, session_id=session)


async def until_served(guard: Edictum, session: str) -> Any:
    for _ in range(100):
        outcome = await call(guard, session)
        if isinstance(outcome, ToolExecutionResult):
            return outcome
        assert outcome.policy_error
        await asyncio.sleep(0.1)
    raise AssertionError("the store did not come back")


def run_python(code: str, *arguments: str) -> Any:
    """Run code in a process of its own; what it prints last, as JSON."""
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])
