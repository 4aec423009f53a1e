"""StdoutAuditSink: one JSON line per event on standard output."""

from __future__ import annotations

import sys
import threading
from typing import TextIO

from edictum.core.events import AuditEvent
from edictum.core.redaction import RedactionPolicy
from edictum.core.values import dumps
from edictum.execution.forks import protect


class StdoutAuditSink:
    """Events are redacted already; a policy given here is applied on top."""

    def __init__(
        self, redaction: RedactionPolicy | None = None, stream: TextIO | None = None
    ) -> None:
        self._redaction = redaction
        self._stream = stream
        self._lock = threading.Lock()
        protect(self)

    def emit(self, event: AuditEvent) -> None:
        line = event_line(event, self._redaction)
        with self._lock:
            print(line, file=self._stream or sys.stdout, flush=True)


def event_line(event: AuditEvent, redaction: RedactionPolicy | None = None) -> str:
    """An event as one line of JSON."""
    data = event.to_dict()
    return dumps(redaction.redact_args(data) if redaction else data)
