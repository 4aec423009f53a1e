"""Several detectors as one."""

from __future__ import annotations

from collections.abc import Sequence

from edictum.core.redaction import Detects, may_find
from edictum.core.secret_scan import Detection, merge


class AllOf:
    """Finds what any of several detectors finds; where findings touch, the first detector's."""

    def __init__(self, detectors: Sequence[Detects]) -> None:
        self._detectors = tuple(detectors)

    def may_find(self, text: str) -> bool:
        return any(may_find(detector, text) for detector in self._detectors)

    def scan(self, text: str, /) -> list[Detection]:
        found: list[Detection] = []
        for detector in self._detectors:
            found = merge(found, detector.scan(text))
        return found
