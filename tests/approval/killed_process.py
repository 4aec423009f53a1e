"""Makes a call that needs approval, or runs a turn with one, in a process of its own, and is killed
on the way if asked.

Arguments: the URL of the store, a folder, what to do ("call" or "turn"), the point of the kill, and
the session. The tool adds a line to ``effects-SESSION`` in the folder; a parked turn is written to
``parked-SESSION``, and gone on with by the next process. Prints how the call or turn has ended;
before that, for the point "any moment", that it has started.
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

URL, FOLDER, WHAT, POINT, SESSION = sys.argv[1], Path(sys.argv[2]), *sys.argv[3:]
PARKED, EFFECTS = FOLDER / f"parked-{SESSION}", FOLDER / f"effects-{SESSION}"
ARGS = {"to": "bob"}
TIMEOUT_S = 600.0


def reach(point: str) -> None:
    """Die here, as by ``kill -9``, if this is the point."""
    if point == POINT:
        os.kill(os.getpid(), signal.SIGKILL)


class Mortal(ApprovalQueue):
    """A queue whose process may die before or after each of its steps."""

    async def request_approval(self, *args: Any, **options: Any) -> Any:
        reach("before asking")
        request = await super().request_approval(*args, **options)
        reach("asked")
        return request

    async def park(self, approval_id: str) -> None:
        await super().park(approval_id)
        reach("parked")

    async def wait_for_decision(self, *args: Any, **options: Any) -> Any:
        decision = await super().wait_for_decision(*args, **options)
        reach("claimed")
        return decision

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


def send(to: str) -> str:
    """Send something."""
    reach("in the tool")
    with EFFECTS.open("a") as file:
        file.write("sent\n")
        file.flush()
        os.fsync(file.fileno())
    reach("after the effect")
    return "sent"


async def make_call(guard: Edictum) -> str:
    outcome = await guard.dispatch("send", ARGS, send, session_id=SESSION, call_id="call-1")
    return type(outcome).__name__


async def answer_as_model(messages: Any, tools: Any) -> ModelReply:
    """Call the tool once; then say what it answered."""
    if messages[-1]["role"] == "tool":
        reach("told the model")
        return ModelReply(messages[-1]["content"])
    return ModelReply("", (ToolCallRequest("call-1", "send", ARGS),))


async def make_turn(guard: Edictum) -> str:
    start: Any = [{"role": "user", "content": "Send it."}]
    if PARKED.exists():
        start = ParkedTurn.from_json(PARKED.read_text())
    tools = [tool(side_effect="write")(send)]
    result = await run_turn(answer_as_model, start, tools, guard, session_id=SESSION, park=True)
    if result.parked is not None:
        reach("before it is written")
        written = PARKED.with_suffix(".new")
        written.write_text(result.parked.to_json())
        written.rename(PARKED)
        reach("written")
    return result.stopped_by


async def main() -> None:
    if POINT == "any moment":
        print("started", flush=True)
    guard = Edictum(
        contracts=[approval_contract(timeout=TIMEOUT_S)],
        approval_backend=open_queue_as(Mortal, URL, lease_s=0.5),
    )
    print(await (make_call if WHAT == "call" else make_turn)(guard), flush=True)
    await guard.close()


asyncio.run(main())
