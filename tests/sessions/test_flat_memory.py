"""Memory of a process that serves many sessions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.effort import SOAK, effort

WORKER = Path(__file__).with_name("many_sessions.py")
SESSIONS = effort(8_000, soak=1_000_000)
TTL_S = 2.0  # of the worker's clock: some hundred sessions
MB = 1 << 20
pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc"),
]


def measure(sessions: int, ttl_s: float) -> list[float]:
    """Return the resident megabytes at ten points of a run."""
    command = [sys.executable, str(WORKER), str(sessions), str(ttl_s)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [size / MB for size in json.loads(done.stdout)]


def test_memory_is_flat_while_sessions_come_and_go(capsys: pytest.CaptureFixture[str]) -> None:
    """From the third of ten points on: by then caches that have a bound are full."""
    sizes = measure(SESSIONS, TTL_S)
    if SOAK:
        shown = " ".join(f"{size:.1f}" for size in sizes)
        with capsys.disabled():
            print(f"\n{SESSIONS:,} sessions, {SESSIONS * 5:,} calls, resident MB: {shown}")
    assert sizes[-1] - sizes[2] < 5, sizes


def test_the_measurement_sees_sessions_that_are_kept() -> None:
    sizes = measure(8_000, 0)
    assert sizes[-1] - sizes[2] > 4, sizes
