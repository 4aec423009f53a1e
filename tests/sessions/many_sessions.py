"""Make calls in many sessions, one after the other, and print the resident memory at ten points.

``python many_sessions.py SESSIONS TTL_S``: five calls in each session, by many users and, now and
then, of a tool whose name was never seen before. Each call takes a millisecond of the ledger's
clock, so that it does not matter how fast the machine is. A ``TTL_S`` of 0 keeps sessions for good.
"""

from __future__ import annotations

import json
import logging
import sys
from itertools import count
from pathlib import Path

from edictum import Edictum, OperationLimits, Principal
from edictum.sessions import MemoryLedger

CALLS = 5


def read_resident_bytes() -> int:
    """Return how much memory of this process is resident, as Linux counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = next(line for line in lines if line.startswith("VmRSS:"))
    return int(found.split()[1]) * 1024


def main(sessions: int, ttl_s: float) -> None:
    logging.disable(logging.WARNING)
    ticks = count()
    ledger = MemoryLedger(ttl_s=ttl_s or None, clock=lambda: next(ticks) / 1_000)
    limits = OperationLimits(max_tool_calls=100, max_calls_per_tool={"search*": 50})
    guard = Edictum(limits=limits, backend=ledger)
    sizes = []
    for number in range(sessions):
        for call in range(CALLS):
            name = f"search_{number}" if number % 10 == 0 and call == 0 else "search"
            guard.run_sync(
                name,
                {"query": f"query {number}"},
                lambda query: query,
                session_id=f"session-{number}",
                principal=Principal(user_id=f"user-{number}"),
            )
        if (number + 1) % (sessions // 10) == 0:
            sizes.append(read_resident_bytes())
    print(json.dumps(sizes))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
