"""Three refunds per conversation, ten per person and day, a hundred per organisation: 500 calls at
once from four processes, and processes that die while they hold slots.

Bodies keep a log of their own, so the counters are compared with what happened.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from store_helpers import unique

from edictum.core.scopes import scope_key
from edictum.execution.portal import PORTAL
from edictum.sessions import open as open_ledger
from support.waiting import wait_until

WORKER = Path(__file__).with_name("scope_worker.py")
PROCESSES = 4
# 15 people of a large organisation could make 150 refunds and may make 100; 5 of a small one make 10
# each; and one person with two conversations makes 3 in each.
CALLS = [
    *(["large", f"l{n % 15}", f"l{n % 15} c{n // 15 % 5}"] for n in range(375)),
    *(["small", f"s{n % 5}", f"s{n % 5} c{n // 5 % 4}"] for n in range(105)),
    *(["single", "one", f"one c{n % 2}"] for n in range(20)),
]


def start(config: dict[str, Any]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, str(WORKER), json.dumps(config)], stdout=-1)


def ran_by(log: Path) -> list[Counter[str]]:
    """Return what ran by organisation, person and conversation."""
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    return [Counter(call[place] for call in calls) for place in range(3)]


@pytest.mark.slow
def test_three_ten_and_a_hundred_are_exact(shared_url: str, tmp_path: Path) -> None:
    assert len(CALLS) == 500
    calls = random.Random(7).sample(CALLS, len(CALLS))
    config = {"backend": f"{shared_url}?wait=30", "log": str(tmp_path / "log")}
    config["prefix"] = prefix = unique("scopes")
    workers = [start({**config, "calls": calls[n::PROCESSES]}) for n in range(PROCESSES)]
    said: Counter[str] = Counter()
    for worker in workers:
        out, _ = worker.communicate(timeout=120)
        assert worker.returncode == 0
        said += Counter(json.loads(out))
    orgs, people, conversations = ran_by(tmp_path / "log")
    assert orgs == {"large": 100, "small": 50, "single": 6}
    assert max(people.values()) == 10
    assert [people[f"s{n}"] for n in range(5)] == [10] * 5
    assert max(conversations.values()) == 3
    assert (conversations["one c0"], conversations["one c1"]) == (3, 3)
    assert (said["ran"], said.total()) == (156, 500)
    assert said.keys() == {"ran", "conversation", "person", "organisation"}
    ledger: Any = open_ledger(shared_url)
    for scope, counts in (("org", orgs), ("principal", people)):
        for name, count in counts.items():
            totals = PORTAL.run(ledger.snapshot(scope_key(scope, f"{prefix} {name}"))).totals
            assert (totals.executions, totals.in_flight) == (count, 0), name
    PORTAL.run(ledger.close())


@pytest.mark.slow
@pytest.mark.parametrize("side_effect", ["read", "irreversible"])
def test_slots_of_a_process_that_died_come_back_in_every_scope(
    shared_url: str, tmp_path: Path, side_effect: str
) -> None:
    """A read that died is given back; what cannot be taken back has counted."""
    config: dict[str, Any] = {"backend": f"{shared_url}?lease=1&wait=30", "dies": True}
    config |= {"log": str(tmp_path / "log"), "prefix": unique("dying"), "side_effect": side_effect}
    for _ in range(2):
        worker = start({**config, "calls": [["o", "p", "c"]]})
        worker.communicate(timeout=60)
        assert worker.returncode == 9
    ledger: Any = open_ledger(shared_url)
    keys = [f"{config['prefix']} c", scope_key("principal", f"{config['prefix']} p")]
    keys.append(scope_key("org", f"{config['prefix']} o"))

    def counts() -> list[tuple[int, int]]:
        found = [PORTAL.run(ledger.snapshot(key)).totals for key in keys]
        return [(it.executions, it.in_flight) for it in found]

    wait_until(lambda: all(held == 0 for _, held in counts()))
    assert counts() == [(0 if side_effect == "read" else 2, 0)] * 3
    PORTAL.run(ledger.close())
