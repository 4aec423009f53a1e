"""Import path of the older library for MemoryBackend and StorageBackend."""

from edictum.sessions._four_verb_ledger import MemoryBackend, StorageBackend

__all__ = ["MemoryBackend", "StorageBackend"]
