"""Sessions: counters, limits and where they are kept."""

from edictum.sessions.ledger import Ledger
from edictum.sessions.memory import MemoryLedger
from edictum.sessions.opening import open
from edictum.sessions.storage import MemoryBackend, StorageBackend, StorageLedger

__all__ = ["Ledger", "MemoryBackend", "MemoryLedger", "StorageBackend", "StorageLedger", "open"]
