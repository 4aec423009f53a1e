"""FetchedRows: take the steps of a batch on rows that were fetched together.

For stores on a server: all rows that a batch concerns are fetched at once, the steps are taken one
after the other, and what has changed is saved at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from edictum.approval._rows import StoredRow
from edictum.approval._steps import Listing, Polling, QueueStep, take_step
from edictum.sessions._batching import Operation


def list_steps(ops: Sequence[Operation]) -> list[QueueStep]:
    """Return the steps of a batch that may change rows."""
    others = (Listing, Polling, type(None))  # None: a ping
    return [op.step for op in ops if not isinstance(op.step, others)]


def collect_ids(steps: Iterable[QueueStep]) -> list[str]:
    """Return the ids of all rows that steps name, each once."""
    return list(dict.fromkeys(row_id for step in steps for row_id in step.ids))


def collect_keys(steps: Iterable[QueueStep]) -> list[str]:
    """Return the keys of all rows that steps ask for, each once."""
    return list(dict.fromkeys(key for step in steps for key in step.keys))


class FetchedRows:
    """Rows as they become, step by step.

    ``changed`` are those to be saved, by id; ``known`` the ids of those that were there before;
    ``read_ids`` and ``read_keys`` are what the changes depend on.
    """

    def __init__(self, rows: Iterable[StoredRow], now: float) -> None:
        self._now = now
        self._rows: dict[str, StoredRow] = {}
        self._by_key: dict[str, set[str]] = {}
        self.changed: dict[str, StoredRow] = {}
        self.read_ids: set[str] = set()
        self.read_keys: set[str] = set()
        for row in rows:
            self._keep(row)
        self.known = frozenset(self._rows)

    def _keep(self, row: StoredRow) -> None:
        if row.row_id not in self._rows:  # the key of a row does not change
            self._by_key.setdefault(row.key, set()).add(row.row_id)
        self._rows[row.row_id] = row

    def take(self, step: QueueStep) -> Any:
        """Take a step; return the answer to it."""
        wanted = {row_id for row_id in step.ids if row_id in self._rows}
        wanted.update(*(self._by_key.get(key, ()) for key in step.keys))
        rows = [self._rows[row_id] for row_id in wanted]
        rows.sort(key=lambda row: (row.asked_at, row.row_id))
        changed, answer = take_step(step, rows, self._now)
        if changed:
            self.read_ids |= wanted
            self.read_keys.update(step.keys)
        for row in changed:
            self._keep(row)
            self.changed[row.row_id] = row
        return answer
