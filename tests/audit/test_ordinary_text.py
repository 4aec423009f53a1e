"""Ordinary text is left alone: code, documentation, hashes, identifiers, encoded images.

The corpus is what lies on every machine with Python and what can be generated; ``make soak`` looks
at more of it.
"""

from __future__ import annotations

import base64
import hashlib
import random
import sysconfig
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edictum.redaction import scan
from support.effort import effort

MOST = 0.001  # of the lines
LIBRARY = Path(sysconfig.get_paths()["stdlib"])


def code() -> Iterator[str]:
    """Python's own library: code, comments and documentation."""
    files = sorted(path for path in LIBRARY.glob("*.py"))
    random.Random(7).shuffle(files)
    for path in files[: effort(60, 200)]:
        yield from path.read_text(encoding="utf-8", errors="replace").splitlines()


def identifiers() -> Iterator[str]:
    """Hashes, UUIDs, lock files, images and minified names, as they are printed."""
    lot = random.Random(7)
    for _ in range(effort(1_500, 20_000)):
        data = lot.randbytes(64)
        digest = hashlib.sha512(data).digest()
        names = "".join(lot.choices("abcdefgXYZ_$", k=3))
        yield f"commit {hashlib.sha1(data, usedforsecurity=False).hexdigest()}"
        yield f"id: {uuid.UUID(bytes=data[:16])}"
        yield f"sha256:{hashlib.sha256(data).hexdigest()}  file-{lot.randrange(999)}.tar.gz"
        yield f'  "integrity": "sha512-{base64.b64encode(digest).decode()}",'
        yield f"    --hash=sha256:{hashlib.sha256(digest).hexdigest()} \\"
        yield f"data:image/png;base64,{base64.b64encode(lot.randbytes(300)).decode()}"
        yield f"{base64.urlsafe_b64encode(lot.randbytes(48)).decode()}"
        yield f"function {names}(e,t){{return e.{names}=t.key,t.token?{names}(t):e[{lot.random()}]}}"
        yield f"{lot.randrange(10**9)}.{lot.randrange(999)} INFO [{data[:4].hex()}] GET /v1/{names}"


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("corpus", [code, identifiers], ids=["code", "identifiers"])
def test_at_most_one_line_in_a_thousand_is_touched(corpus: Callable[[], Iterator[str]]) -> None:
    """Lines are looked at one by one; a failure shows those that were touched."""
    lines = [line for line in corpus() if line.strip()]
    touched = [line[:160] for line in lines if scan(line)]
    assert len(lines) > 10_000
    assert len(touched) <= MOST * len(lines), touched[:20]
