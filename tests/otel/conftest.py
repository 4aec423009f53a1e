"""An application with OpenTelemetry, and a tool's name for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("opentelemetry.sdk")

from support.otlp import Application, observed


@pytest.fixture
def app() -> Iterator[Application]:
    with observed() as running:
        yield running


@pytest.fixture
def tool(request: pytest.FixtureRequest) -> str:
    """A name that no other test has: counters are those of the whole process."""
    return request.node.name.replace("[", ".").replace("]", "").replace(" ", "_")
