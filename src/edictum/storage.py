"""The older storage port: text values and atomic numbers under keys."""

from edictum.sessions._four_verb_ledger import MemoryBackend, StorageBackend

__all__ = ["MemoryBackend", "StorageBackend"]
