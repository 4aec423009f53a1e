"""A real Valkey for these tests, and Celery workers on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from execution_helpers import CeleryWorker


@pytest.fixture(scope="session")
def valkey(broker_url: str) -> str:
    return broker_url


@pytest.fixture(scope="module")
def start_worker(valkey: str) -> Iterator[Callable[[], CeleryWorker]]:
    started: list[CeleryWorker] = []

    def start() -> CeleryWorker:
        started.append(CeleryWorker(valkey))
        return started[-1]

    yield start
    for worker in started:
        worker.stop()
