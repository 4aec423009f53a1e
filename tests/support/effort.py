"""How much a test does: the usual amount, that of ``make soak``, or a tenth, where the same tests
are run a second time.
"""

from __future__ import annotations

import os

SOAK = os.environ.get("EDICTUM_SOAK", "") not in ("", "0")
QUICK = os.environ.get("EDICTUM_QUICK", "") not in ("", "0")


def effort(usual: int, soak: int | None = None) -> int:
    """Return how often something is repeated. Mark a test that has an amount for ``make soak`` with
    ``pytest.mark.soak`` as well.
    """
    if SOAK:
        return soak or usual
    return max(5, usual // 10) if QUICK else usual
