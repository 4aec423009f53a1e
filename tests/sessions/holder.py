"""A process that takes slots and then waits to be killed: ``python holder.py '{"backend": ...,
"session": ..., "slots": 7, ...}'``.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from edictum import Edictum, OperationLimits

config: dict[str, Any] = json.loads(sys.argv[1])
guard = Edictum(
    limits=OperationLimits(max_tool_calls=config["limit"]),
    tools={"work": {"side_effect": config["side_effect"]}},
    backend=config["backend"],
)
tickets = [
    guard.begin_sync("work", {}, session_id=config["session"]) for _ in range(config["slots"])
]
print(sum(ticket.allowed for ticket in tickets), flush=True)
time.sleep(60)
