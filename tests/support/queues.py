"""Approval queues of other classes than the library's own."""

from __future__ import annotations

from typing import TypeVar

from edictum.approval import ApprovalQueue
from edictum.approval._urls import make_approval_store

Q = TypeVar("Q", bound=ApprovalQueue)


def open_queue_as(kind: type[Q], url: str, lease_s: float = 30.0) -> Q:
    """Return a queue of a class of the test's own, on the store that a URL names."""
    store, _ = make_approval_store(url)
    return kind(store, lease_s=lease_s)
