"""What tests of session stores share."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from edictum import Edictum, ToolExecutionResult

READ = {"work": {"side_effect": "read"}}
SCOPES = ("", "work")
PATIENT_S = 30.0  # how long to wait for a store where waiting is not what is tested


def unique(name: str) -> str:
    return f"{name} {time.time_ns()}"


async def call(guard: Edictum, session: str, body: Any = lambda: "done") -> Any:
    return await guard.dispatch("work", {}, body, session_id=session)


async def until_served(guard: Edictum, session: str) -> Any:
    async with asyncio.timeout(2 * PATIENT_S):
        while True:
            outcome = await call(guard, session)
            if isinstance(outcome, ToolExecutionResult):
                return outcome
            assert outcome.policy_error
            await asyncio.sleep(0.02)
