"""What all tests share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("edictum", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.load_profile("edictum")


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads that take turns a hundred times as often as usual, so that a race has every chance to show."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.000_05)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
