"""URLs and options of session stores, and what opening one loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edictum import (
    EdictumConfigError,
)
from edictum.errors import BackendError
from edictum.execution.portal import PORTAL
from edictum.sessions import open as open_ledger


def test_importing_edictum_loads_no_store() -> None:
    code = (
        "import edictum, edictum.sessions, sys; print([m for m in ('redis', 'asyncpg', 'sqlite3')"
        " if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


@pytest.mark.parametrize(
    "bad",
    [
        "nothing",
        "mysql://here",
        "sqlite://",
        "sqlite:",
        "memory:?lease=x",
        "memory:?ttl=0",
        "memory:?wait=-1",
        "memory:?lease=0s",
        "memory:?lease=30 s",
        "memory:?ttl=1w",
        "memory:?lese=3",
        "sqlite:///s.db?schema=x",
        "sqlite:///s.db?replicas=1",
        "postgresql://user@host:port/db",
        "postgresql://user:se@cret@host/db",
        "postgresql://host:99999/db",
        "postgresql://[::1/db",
        "postgresql://127.0.0.1:1/db?schema=Not A Name",
        "postgresql://127.0.0.1:1/db?pooler=statement",
        "postgresql://127.0.0.1:1/db?sslmode=perhaps",
        "postgresql://127.0.0.1:1/db?sslmode=verify-full&sslrootcert=/not/there.pem",
        "redis://host:port/0",
        "redis://user:se@cret@host/0",
        "postgresql://127.0.0.1:1/db?migrate=yes",
        "redis://127.0.0.1:1/0?allow_eviction=true",
        "redis://127.0.0.1:1/0?protocol=9",
        "redis://one,two/0",
        "redis://host/zero",
        "redis://host/0?no_such_option=1",
        "redis://host/0?max_connections=many",
        "redis+sentinel://one,two",
        "redis+sentinel://one,two/service/zero",
    ],
)
def test_a_wrong_url_is_refused_at_once(bad: str) -> None:
    with pytest.raises(EdictumConfigError) as raised:
        open_ledger(bad)
    assert "cret" not in str(raised.value)


def test_what_is_not_a_url_is_refused() -> None:
    for given in (None, 5, Path("s.db")):
        with pytest.raises(EdictumConfigError, match="not text"):
            open_ledger(given)  # type: ignore[arg-type]  # the mistake being tested


def test_options_stand_in_the_url_or_beside_it(tmp_path: Path, opened: Any) -> None:
    ledger = opened(f"sqlite:///{tmp_path}/s.db?lease=7&wait=3")
    assert (ledger.default_lease_s, ledger.wait_s) == (7.0, 3.0)
    assert opened(f"sqlite:///{tmp_path}/s.db?lease=7", lease_s=9).default_lease_s == 9.0
    assert opened("memory:", lease_s=5).default_lease_s == 5.0
    assert opened("memory:?lease=2m").default_lease_s == 120.0
    assert opened(f"sqlite:///{tmp_path}/s.db?lease=500ms&wait=1.5").default_lease_s == 0.5


def test_a_package_can_register_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "mystore-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mystore\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[edictum.ledgers]\nmystore = mystore_plugin:make\n")
    (tmp_path / "mystore_plugin.py").write_text(
        "from edictum.sessions import MemoryLedger\ndef make(url, **options):\n    ledger ="
        " MemoryLedger(lease_s=options['lease_s'])\n    ledger.name = url\n    return ledger\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    ledger = open_ledger("mystore://somewhere", lease_s=4)
    assert (ledger.name, ledger.default_lease_s) == ("mystore://somewhere", 4.0)  # type: ignore[attr-defined]


def test_credentials_stay_out_of_names(opened: Any, caplog: pytest.LogCaptureFixture) -> None:
    for url in ("redis://user:secret@127.0.0.1:1/0", "postgresql://user:secret@127.0.0.1:1/db"):
        ledger = opened(f"{url}?wait=0.5")
        with pytest.raises(BackendError) as raised:
            PORTAL.run(ledger.snapshot("s"))
        assert "secret" not in f"{raised.value} {ledger.name} {caplog.text}"
