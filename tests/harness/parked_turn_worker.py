"""Runs a turn, or goes on with a parked one, in a process of its own, and is killed if asked.

Arguments: the URL of the store, a folder for the parked turn and the effects, and the point of the
kill. Prints why the turn ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from edictum import Edictum
from edictum.approval import ApprovalQueue
from edictum.harness import ModelReply, ParkedTurn, ToolCallRequest, run_turn, tool
from support.guards import approval_contract
from support.queues import open_queue_as

URL, FOLDER, POINT = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
PARKED, EFFECTS = FOLDER / "parked.json", FOLDER / "effects"


def reach(point: str) -> None:
    """Die here, as by ``kill -9``, if this is the point."""
    if point == POINT:
        os.kill(os.getpid(), signal.SIGKILL)


class Mortal(ApprovalQueue):
    """A queue whose process may die before or after each of its steps."""

    async def park(self, approval_id: str) -> None:
        reach("asked")
        await super().park(approval_id)
        reach("parked")

    async def take(self, approval_id: str) -> Any:
        decision = await super().take(approval_id)
        if decision is not None:
            reach("claimed")
        return decision

    async def use(self, approval_id: str) -> bool:
        reach("before use")
        used = await super().use(approval_id)
        reach("used")
        return used

    async def end(self, approval_id: str, started: bool) -> None:
        reach("before end")
        await super().end(approval_id, started)
        reach("ended")


@tool(side_effect="write")
def send(to: str) -> str:
    """Send something."""
    reach("in the tool")
    with EFFECTS.open("a") as file:
        file.write("sent\n")
        file.flush()
        os.fsync(file.fileno())
    reach("after the effect")
    return "sent"


async def play(messages: Any, tools: Any) -> ModelReply:
    """Call the tool once; then say what it answered."""
    if messages[-1]["role"] == "tool":
        reach("told the model")
        return ModelReply(messages[-1]["content"])
    return ModelReply("", (ToolCallRequest("call-1", "send", {"to": "bob"}),))


async def main() -> None:
    guard = Edictum(
        contracts=[approval_contract("send", timeout=600)],
        approval_backend=open_queue_as(Mortal, URL, lease_s=0.2),
    )
    start: Any = [{"role": "user", "content": "Send it."}]
    if PARKED.exists():
        start = ParkedTurn.from_json(PARKED.read_text())
    result = await run_turn(play, start, [send], guard, session_id="s", park=True)
    if result.parked is not None:
        reach("before it is written")
        written = FOLDER / "parked.new"
        written.write_text(result.parked.to_json())
        written.rename(PARKED)
        reach("written")
    print(result.stopped_by, flush=True)
    await guard.close()


if __name__ == "__main__":
    asyncio.run(main())
