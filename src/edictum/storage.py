"""Import path of the older library for MemoryBackend and StorageBackend."""

from edictum.sessions.storage import MemoryBackend, StorageBackend

__all__ = ["MemoryBackend", "StorageBackend"]
