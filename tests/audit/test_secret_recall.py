"""How many secrets are found: samples as vendors show them, made without the table."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from edictum.core.redaction import hide_secrets
from support.effort import effort
from support.vendor_samples import NAMED, NAMED_POSITIONS, POSITIONS, TOKENS

LEAST = 0.98
SAMPLES = effort(3, 50)  # of each vendor in each position


def tokens() -> Iterator[tuple[str, str, str, str]]:
    """Vendor, position, secret and text, of secrets that have a form of their own."""
    for vendor, make in TOKENS.items():
        for position, place in POSITIONS.items():
            lot = random.Random(f"{vendor} {position}")
            for _ in range(SAMPLES):
                secret = make(lot)
                yield vendor, position, secret, place(secret)


def assignments() -> Iterator[tuple[str, str, str, str]]:
    """The same of secrets behind a name."""
    for vendor, (name, make) in NAMED.items():
        for position, place in NAMED_POSITIONS.items():
            lot = random.Random(f"{vendor} {position}")
            for _ in range(SAMPLES):
                secret = make(lot)
                yield vendor, position, secret, place(name, secret)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("samples", [tokens, assignments], ids=["tokens", "assignments"])
def test_at_least_98_of_100_are_found(samples) -> None:
    """Over all, in each position, and nine in ten of each vendor; ``make soak`` prints the rates."""
    seen: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    for vendor, position, secret, text in samples():
        for each in ("all", f"position {position}", f"vendor {vendor}"):
            seen[each] += 1
            missed[each] += secret in hide_secrets(text)
    found = {each: 1 - missed[each] / seen[each] for each in seen}
    for each, share in found.items():
        if share < 1 or not each.startswith("vendor"):
            print(f"{samples.__name__}, {each}: {100 * share:.2f} % of {seen[each]:,} are found")
    assert found["all"] >= LEAST
    assert [
        each for each, share in found.items() if share < (0.9 if "vendor" in each else LEAST)
    ] == []


@pytest.mark.parametrize(
    "line",
    [
        "encryption_key: xV8Kxa+4Iu++t31K8s7qBuEuE0Sn7mg/FNmIZGsVHbq=",  # base64 may hold ++
        "ENV DB_PASSWORD=DS23%SNk",  # and a password the percent sign
    ],
)
def test_a_drawn_value_is_not_taken_for_code(line: str) -> None:
    """Only because two of its signs stand side by side."""
    assert "[REDACTED]" in hide_secrets(line)


@pytest.mark.parametrize("line", ["api_key=++index", "api_key = index1++;", "password=%s-%s-12"])
def test_code_and_formats_still_are(line: str) -> None:
    """Increments at an end, and places to be filled in."""
    assert hide_secrets(line) == line
