"""Which process this is: its host, its number, and an id that no other process has."""

from __future__ import annotations

import os
import platform
import secrets

from edictum.core.events import Origin
from edictum.execution.forks import call_in_child


class ProcessIdentity:
    """The origin of events that this process writes. A forked child gets its own."""

    def __init__(self) -> None:
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        self.origin = Origin(platform.node(), os.getpid(), secrets.token_hex(8))


THIS_PROCESS = ProcessIdentity()
