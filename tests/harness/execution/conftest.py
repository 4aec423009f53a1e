"""A real Valkey for these tests, and Celery workers on it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from execution_helpers import CeleryWorker

from support.shared_servers import Unavailable, served

HERE = Path(__file__).parent


def _servers() -> ModuleType:
    """The servers of the session tests, which are not a package."""
    spec = importlib.util.spec_from_file_location(
        "session_test_servers", HERE.parents[1] / "sessions" / "servers.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def valkey() -> Iterator[str]:
    if url := os.environ.get("EDICTUM_TEST_REDIS_URL"):
        yield url
        return
    servers = _servers()
    failures = (servers.NoServer, OSError)
    try:
        with served("celery", lambda: servers.Valkey(durable=False), failures) as (url, _):
            yield url
    except Unavailable as exc:
        pytest.skip(f"valkey: NOT TESTED, {exc}")


@pytest.fixture(scope="module")
def start_worker(valkey: str) -> Iterator[Callable[[], CeleryWorker]]:
    started: list[CeleryWorker] = []

    def start() -> CeleryWorker:
        started.append(CeleryWorker(valkey))
        return started[-1]

    yield start
    for worker in started:
        worker.stop()
