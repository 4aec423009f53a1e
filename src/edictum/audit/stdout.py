"""StdoutAuditSink: one JSON line per event on standard output."""

from __future__ import annotations

import sys
import threading
from typing import TextIO

from edictum._audit_event import AuditEvent
from edictum.audit.sinks import WRITTEN, Written, event_line, takes_entries
from edictum.core.events import Entry
from edictum.core.redaction import RedactionPolicy
from edictum.execution.forks import protect


class StdoutAuditSink:
    """Prints events. They are redacted already; a policy given here is applied on top."""

    blocking = False
    writes_at_once = True

    def __init__(
        self, redaction: RedactionPolicy | None = None, stream: TextIO | None = None
    ) -> None:
        self._redaction = redaction
        self._stream = stream
        self._lock = threading.Lock()
        protect(self)

    @takes_entries
    def emit(self, event: AuditEvent | Entry) -> Written:
        line = event_line(event, self._redaction)
        with self._lock:
            print(line, file=self._stream or sys.stdout, flush=True)
        return WRITTEN
