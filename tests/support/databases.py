"""Open an SQLite file as another program would."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


@contextmanager
def open_sqlite(path: Path | str) -> Iterator[sqlite3.Connection]:
    """Yield a connection; commit at the end, and close it, which ``with`` on it alone does not."""
    with closing(sqlite3.connect(path)) as db, db:
        yield db
