"""Sinks on databases: what they keep, what they can be asked, and what a failing database means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from edictum.audit import SqliteAuditSink, query
from edictum.execution.portal import PORTAL
from edictum.testing import AuditConformance


class DatabaseConformance(AuditConformance):
    def read(self, sink: Any) -> list[Mapping[str, Any]]:
        return list(query(sink))


class TestSqliteSink(DatabaseConformance):
    @pytest.fixture(autouse=True)
    def _in_directory(self, tmp_path: Path) -> Iterator[None]:
        self.made: list[Any] = []
        self.path = tmp_path
        yield
        for sink in self.made:
            PORTAL.run(sink.close())

    def make_sink(self) -> Any:
        self.made.append(SqliteAuditSink(self.path / f"{len(self.made)}.db"))
        return self.made[-1]
