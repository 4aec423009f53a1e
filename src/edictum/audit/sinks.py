"""Audit sinks: where events go.

A sink has one method, ``emit(event)``, ordinary or ``async``. An ordinary one runs in a thread, one
event after the other, unless the sink says ``blocking = False``. A sink that raises stops a call
from starting (the call is denied and says why); after a call has run its result is kept and the
failure is reported in the outcome's notes and in the log.

A sink may say more about itself: ``required = False`` lets calls go on when it fails,
``max_waiting`` is how many events may wait for it (10,000), and ``when_full = "drop"`` drops and
counts what finds no room, and never lets a call wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, Protocol, TypeVar, runtime_checkable

from edictum._audit_event import AuditEvent
from edictum.audit.chain import canonicalize, canonicalize_data
from edictum.core.events import Entry
from edictum.core.redaction import RedactionPolicy
from edictum.core.values import dumps

Emit = TypeVar("Emit", bound=Callable[..., Any])


@runtime_checkable
class AuditSink(Protocol):
    def emit(self, event: AuditEvent, /) -> Awaitable[None] | None: ...


class Written:
    """What ``emit`` returns when the event is written: it may be awaited, but need not be.
    ``WRITTEN`` is its one instance.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


WRITTEN = Written()


def takes_entries(emit: Emit) -> Emit:
    """Mark an ``emit`` that takes an ``Entry`` as well, and so needs no AuditEvent to be made.

    The mark is on the function, so that an ``emit`` that overrides it gets AuditEvents.
    """
    vars(emit)["takes_entries"] = True
    return emit


def emitter_of(sink: AuditSink) -> Callable[[Any], Awaitable[None] | None]:
    """Return the function that gives an event to a sink, in the form that the sink takes."""
    if hasattr(sink.emit, "takes_entries"):
        return sink.emit
    return lambda event: sink.emit(event.event() if isinstance(event, Entry) else event)


def event_line(event: AuditEvent | Entry, redaction: RedactionPolicy | None) -> str:
    """Return an event as one line of JSON, redacted once more by a sink's own policy, if any."""
    if redaction is None:
        return event.to_json()
    made = event.event() if isinstance(event, Entry) else event
    return dumps(redaction.redact_args(made.to_dict()))


def canonical_event(event: AuditEvent | Entry, redaction: RedactionPolicy | None) -> str:
    """Return the event of ``event_line`` as canonical JSON, for a chain."""
    if redaction is not None:
        return canonicalize(event_line(event, redaction))
    if type(event) is Entry:
        return canonicalize(event.to_json(), is_exact=event.has_exact_numbers())
    made = event.event() if isinstance(event, Entry) else event
    return canonicalize_data(made.to_dict())
