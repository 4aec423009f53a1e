"""The older storage port: text values and atomic numbers under keys."""

from edictum.sessions.storage import MemoryBackend, StorageBackend

__all__ = ["MemoryBackend", "StorageBackend"]
