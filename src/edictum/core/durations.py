"""Lengths of time as people write them: a number with a unit."""

from __future__ import annotations

import re

DURATION = r"^[0-9]{1,9}(\.[0-9]{1,3})?(ms|s|m|h|d)$"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> float | None:
    """Return the seconds that a text such as "5m" or "500ms" means; None if it is not one."""
    found = re.fullmatch(DURATION, text)
    return None if found is None else float(text[: found.start(2)]) * _UNITS[found.group(2)]
