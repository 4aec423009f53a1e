"""The conformance suite, for every ledger we ship, on the real thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from store_helpers import PATIENT_S
from timed import OLDER_LEASE_S, OnValkey, empty_postgres, older_in_postgres

from edictum.sessions import MemoryBackend, MemoryLedger, StorageLedger
from edictum.sessions._postgres import PostgresStore
from edictum.sessions._remote_ledger import RemoteLedger
from edictum.sessions._sqlite import SqliteStore
from edictum.testing import LedgerConformance


class TestMemory(LedgerConformance):
    def make_ledger(self) -> Any:
        self.now = 1_000.0
        return MemoryLedger(clock=lambda: self.now)

    def advance(self, seconds: float) -> None:
        self.now += seconds


class TestStorage(LedgerConformance):
    exceptions = {
        "windows": "four verbs cannot keep time",
        "expiry": "four verbs cannot keep time",
        "amounts": "a budget cannot be reserved by adding one",
        "one_step": "four verbs cannot change two accounts in one step",
        "repeated_ends": "which calls are held is known to this process only",
    }

    def make_ledger(self) -> Any:
        return StorageLedger(MemoryBackend())


class TestSqlite(LedgerConformance):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path
        self.now = 1_000.0
        self.files = 0

    def make_ledger(self) -> Any:
        self.files += 1
        return RemoteLedger(
            SqliteStore(self.directory / f"{self.files}.db", clock=lambda: self.now)
        )

    def advance(self, seconds: float) -> None:
        self.now += seconds


class TestValkey(OnValkey):
    pass


class TestPostgres(LedgerConformance):
    lease_s = OLDER_LEASE_S
    schema = "conformance"

    @pytest.fixture(autouse=True)
    def _server(self, postgres_url: str) -> None:
        self.url = postgres_url

    def make_ledger(self) -> Any:
        empty_postgres(self.url, self.schema)
        store = PostgresStore(f"{self.url}?schema={self.schema}")
        return RemoteLedger(store, wait_s=PATIENT_S)

    def advance(self, seconds: float) -> None:
        with older_in_postgres(self.url, self.schema) as advance:
            advance("", seconds)
