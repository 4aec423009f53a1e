"""What tests of session stores share."""

from __future__ import annotations

import asyncio
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
