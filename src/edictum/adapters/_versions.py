"""The versions of a framework that its adapter supports."""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata

from edictum.errors import EdictumConfigError


@cache  # adapters load modules at every call, and reading a distribution takes half a millisecond
def check_version(adapter: str, distribution: str, first: str, beyond: str) -> None:
    """Raise an EdictumConfigError unless a version from ``first`` up to ``beyond`` is installed."""
    wanted = f"{distribution}>={first},<{beyond}"
    hint = f"Run: pip install '{wanted}'"
    try:
        installed = metadata.version(distribution)
    except metadata.PackageNotFoundError as exc:
        raise EdictumConfigError(
            f"{adapter} needs {wanted}, which is not installed.", hint=hint
        ) from exc
    if not release_numbers(first) <= release_numbers(installed) < release_numbers(beyond):
        raise EdictumConfigError(
            f"{adapter} supports {wanted}; installed is {installed}.", hint=hint
        )


def release_numbers(version: str) -> tuple[int, ...]:
    """Return a version in a form that can be compared: (1, 4, 7) for "1.4.7rc1"."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", version)[0]))
