"""Makes one call that needs approval, in a process of its own, and is killed on the way if asked.

Arguments: the URL of the store, a file to which the tool adds a line, the point, and the call id.
Prints the type of the outcome; before that, for the point "any moment", that it has started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from edictum import Edictum
from edictum.approval import ApprovalQueue
from support.guards import approval_contract
from support.queues import open_queue_as

URL, EFFECTS, POINT, CALL_ID = sys.argv[1:]
TIMEOUT_S = 60.0


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

    async def wait_for_decision(self, *args: Any, **options: Any) -> Any:
        decision = await super().wait_for_decision(*args, **options)
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


def act() -> str:
    reach("in the tool")
    with open(EFFECTS, "a") as file:
        file.write("ran\n")
        file.flush()
        os.fsync(file.fileno())
    reach("after the effect")
    return "ran"


async def main() -> None:
    if POINT == "any moment":
        print("started", flush=True)
    guard = Edictum(
        contracts=[approval_contract(timeout=TIMEOUT_S)],
        approval_backend=open_queue_as(Mortal, URL, lease_s=0.5),
    )
    outcome = await guard.dispatch("t", {}, act, session_id="s", call_id=CALL_ID)
    print(type(outcome).__name__, flush=True)
    await guard.close()


asyncio.run(main())
