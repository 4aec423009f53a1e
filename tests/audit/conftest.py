"""Databases for these tests; each says in the last lines of the run whether it was there."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edictum.audit import StoreAuditSink, open_audit
from edictum.execution.portal import PORTAL


@pytest.fixture
def postgres_url(
    postgres_server: tuple[str, str], record_property: Callable[[str, object], None]
) -> str:
    """A schema of its own in the database of this worker."""
    url, origin = postgres_server
    record_property("session_store", origin)
    if not url:
        pytest.skip(origin)
    return f"{url}?schema=test_{uuid.uuid4().hex[:12]}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/audit.db"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def opened() -> Iterator[Callable[[str], Any]]:
    """Open sinks that are closed when the test has ended."""
    made: list[StoreAuditSink] = []

    def make(url: str) -> StoreAuditSink:
        made.append(open_audit(url))
        return made[-1]

    yield make
    for sink in made:
        PORTAL.run(sink.close())
