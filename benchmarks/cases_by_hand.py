"""What people write themselves before they look for a library: a check, a counter, two events in a
list.

``run`` has the least that an audit needs: each event has the call's id, a time, the arguments and
what was decided. ``barest`` leaves even that out. Neither redacts, limits in parallel, judges
success, asks anybody or survives a failing tool.
"""

import sys
import time
import uuid
from collections import deque
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from timing import governed, plain_call


class ByHand:
    def __init__(self, limit):
        self.limit, self.count, self.events = limit, 0, deque(maxlen=50_000)

    def record(self, action, call_id, tool, args):
        self.events.append(
            {
                "call_id": call_id,
                "time": time.time(),
                "action": action,
                "tool": tool,
                "args": dict(args),
            }
        )

    async def run(self, tool, args, function):
        call_id = str(uuid.uuid4())
        if "/etc/secret" in args["path"] or self.count >= self.limit:
            self.record("denied", call_id, tool, args)
            raise PermissionError(tool)
        self.record("allowed", call_id, tool, args)
        self.count += 1
        result = function(**args)
        self.record("executed", call_id, tool, args)
        return result


class Barest:
    def __init__(self, limit):
        self.limit, self.count, self.events = limit, 0, deque(maxlen=50_000)

    async def run(self, tool, args, function):
        if "/etc/secret" in args["path"] or self.count >= self.limit:
            self.events.append(("denied", tool, args))
            raise PermissionError(tool)
        self.events.append(("allowed", tool, args))
        self.count += 1
        result = function(**args)
        self.events.append(("executed", tool, args))
        return result


CASES = {
    "call": plain_call,
    "run": lambda: governed(ByHand(10**9).run),
    "barest": lambda: governed(Barest(10**9).run),
}
FACTS = {}
