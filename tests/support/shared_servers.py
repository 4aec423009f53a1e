"""Servers that all workers of a test run share: the first one that needs a server starts it, and the
run stops it when all workers have ended.

Each worker has a database of its own in it, because tests empty theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from support.servers import NoServer, Postgres, Valkey, wait_for_end

FOLDER = "EDICTUM_TEST_SERVERS"  # in the environment of the workers

KINDS: dict[str, Callable[[], Any]] = {
    "valkey": Valkey,
    "broker": lambda: Valkey(durable=False),
    "postgres": lambda: Postgres(durable=False),  # no test kills this one
}
URLS = {
    "valkey": "EDICTUM_TEST_REDIS_URL",
    "broker": "EDICTUM_TEST_REDIS_URL",
    "postgres": "EDICTUM_TEST_POSTGRES_URL",
}


@contextlib.contextmanager
def served(kind: str) -> Iterator[tuple[str, str]]:
    """Yield the URL of a server and where it comes from; without one, "" and the reason why."""
    if url := os.environ.get(URLS[kind]):
        yield url, f"{kind}: {URLS[kind]}"
        return
    try:
        server = _share(kind) if FOLDER in os.environ else KINDS[kind]()
    except (NoServer, OSError) as exc:
        yield "", f"{kind}: NOT TESTED, {exc}"
        return
    if isinstance(server, dict):
        yield _own_database(server["url"]), f"{kind}: {server['origin']}"
        return
    try:
        yield server.url, f"{kind}: {server.origin}"
    finally:
        server.stop()


def _share(kind: str) -> dict[str, Any]:
    folder = Path(os.environ[FOLDER])
    known = folder / f"{kind}.json"
    with (folder / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not known.exists():
            server = KINDS[kind]()
            facts = {
                "url": server.url,
                "origin": server.origin,
                "pid": server.process.pid,
                "directory": server.directory,
            }
            known.write_text(json.dumps(facts))
            # It outlives this worker, and ``stop_all`` ends it. Python, which does not know that,
            # would warn when the worker ends.
            server.process.returncode = 0
        found: dict[str, Any] = json.loads(known.read_text())
        return found


def _own_database(url: str) -> str:
    """Return the URL of a database that no other worker uses."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    server, _, _ = url.rpartition("/")
    if url.startswith("redis:"):
        return f"{server}/{int(worker[2:]) % 16}"
    asyncio.run(_create_database(url, worker))
    return f"{server}/{worker}"


async def _create_database(url: str, name: str) -> None:
    import asyncpg

    db = await asyncpg.connect(url)
    try:
        with contextlib.suppress(asyncpg.DuplicateDatabaseError):
            await db.execute(f"CREATE DATABASE {name}")
    finally:
        await db.close()


# --- The run that the workers belong to -----------------------------------------------------------


def prepare() -> None:
    """Make the place where workers tell each other what they have started."""
    os.environ[FOLDER] = tempfile.mkdtemp(prefix="edictum-test-servers-")


def stop_all() -> None:
    """Stop what the workers have started."""
    folder = Path(os.environ.pop(FOLDER))
    for known in folder.glob("*.json"):
        facts = json.loads(known.read_text())
        with contextlib.suppress(ProcessLookupError):
            os.kill(facts["pid"], signal.SIGQUIT)  # PostgreSQL: at once
            wait_for_end(facts["pid"])
        shutil.rmtree(facts["directory"], ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
