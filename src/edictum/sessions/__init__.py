"""Sessions: counters, limits and where they are kept."""

from edictum.sessions._four_verb_ledger import MemoryBackend, StorageBackend, StorageLedger
from edictum.sessions._migration import Migration
from edictum.sessions._urls import migrate, open
from edictum.sessions.ledger import Ledger
from edictum.sessions.memory import MemoryLedger

__all__ = [
    "Ledger",
    "MemoryBackend",
    "MemoryLedger",
    "Migration",
    "StorageBackend",
    "StorageLedger",
    "migrate",
    "open",
]
