"""Files and schemas of other programs and versions, and disks that cannot be written."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from edictum import (
    Edictum,
    EdictumConfigError,
)
from edictum.execution.portal import PORTAL
from edictum.sessions import open as open_ledger
from edictum.testing.ledger import Book
from support.processes import run_python


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "other.db")
    db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(EdictumConfigError, match="another program"):
        open_ledger(f"sqlite:///{tmp_path}/other.db")


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    PORTAL.run(open_ledger(f"sqlite:///{tmp_path}/s.db").close())  # type: ignore[attr-defined]
    db = sqlite3.connect(tmp_path / "s.db")
    db.execute("PRAGMA user_version = 99")
    db.execute("UPDATE readable SET since = 99")
    db.commit()
    db.close()
    with pytest.raises(EdictumConfigError, match="newer version"):
        open_ledger(f"sqlite:///{tmp_path}/s.db")


def test_a_file_of_a_newer_version_that_says_it_is_readable_is_used(
    tmp_path: Path, opened: Any
) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    assert Book(opened(url)).run("a", sid="s")
    db = sqlite3.connect(tmp_path / "s.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    book = Book(opened(url))
    assert book.run("b", sid="s")
    assert book.totals("s")[1] == 2


def test_a_file_of_an_unreleased_version_is_refused(tmp_path: Path) -> None:
    PORTAL.run(open_ledger(f"sqlite:///{tmp_path}/s.db").close())  # type: ignore[attr-defined]
    db = sqlite3.connect(tmp_path / "s.db")
    db.execute("PRAGMA user_version = 1")
    db.close()
    with pytest.raises(EdictumConfigError, match=r"unreleased version .* Delete the file"):
        open_ledger(f"sqlite:///{tmp_path}/s.db")


def test_a_directory_that_cannot_be_written_denies_with_a_clear_reason(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    said = run_python(
        """
        import importlib.metadata, json, os, sys, urllib.parse
        import edictum.sessions._sqlite
        from edictum import Edictum
        if os.getuid() == 0:  # who may write everywhere
            os.setgid(65534); os.setuid(65534)
        outcome = Edictum(backend=f"sqlite:///{sys.argv[1]}/s.db").dispatch_sync("work", {}, lambda: 1)
        print(json.dumps([outcome.reason, outcome.details]))
        """,
        str(tmp_path),
    )
    tmp_path.chmod(0o755)
    assert said[0] == "policy_error"
    assert "s.db" in said[1]


def test_a_full_disk_denies_and_loses_nothing(tmp_path: Path) -> None:
    """The file may not grow: calls are denied; then there is room again, and what ran meanwhile is
    counted.
    """
    said = run_python(
        """
        import json, resource, signal, sys, time
        from edictum import Edictum, OperationLimits, ToolExecutionResult
        guard = Edictum(limits=OperationLimits(max_attempts=None, max_tool_calls=None), backend=f"sqlite:///{sys.argv[1]}/s.db")
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        ran, denied = 0, None
        def body():
            global ran
            ran += 1
            if ran == 5:
                resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
            return 1
        for number in range(10):
            outcome = guard.dispatch_sync("work", {}, body, session_id="s")
            if not isinstance(outcome, ToolExecutionResult):
                denied = [outcome.reason, outcome.details]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        while not isinstance(guard.dispatch_sync("work", {}, body, session_id="s"), ToolExecutionResult):
            time.sleep(0.1)
        totals = guard.session("s").snapshot().totals
        print(json.dumps([denied, ran, totals.executions, totals.in_flight]))
        """,
        str(tmp_path),
    )
    (reason, details), ran, executions, in_flight = said
    assert reason == "policy_error"
    assert "s.db" in details
    assert (ran, executions, in_flight) == (6, 6, 0)


@pytest.mark.parametrize(
    ("version", "said"),
    [(6, 'unreleased version .* Drop the schema "{schema}"'), (99, "newer version")],
)
async def test_a_schema_of_another_version_is_refused(
    postgres_url: str, version: int, said: str
) -> None:
    schema = f"other_version_{time.time_ns()}"
    db = await asyncpg.connect(postgres_url)
    await db.execute(
        f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.schema_version (version int NOT NULL);"
        f" INSERT INTO {schema}.schema_version VALUES ({version})"
    )
    await db.close()
    with pytest.raises(EdictumConfigError, match=said.format(schema=schema)):
        open_ledger(f"{postgres_url}?schema={schema}")


def test_a_database_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    """As the audit file is, whatever the umask."""
    before = os.umask(0)
    try:
        guard = Edictum(backend=f"sqlite:///{tmp_path}/sessions.db")
        guard.run_sync("t", {}, lambda: 1)
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert set(modes) >= {"sessions.db", "sessions.db-wal", "sessions.db-shm"}
    assert set(modes.values()) == {0o600}
