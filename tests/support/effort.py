"""How much a test does: the usual amount, or that of ``make soak``."""

from __future__ import annotations

import os

SOAK = os.environ.get("EDICTUM_SOAK", "") not in ("", "0")


def effort(usual: int, soak: int) -> int:
    """Return how often something is repeated. Mark the test with ``pytest.mark.soak`` as well."""
    return soak if SOAK else usual
