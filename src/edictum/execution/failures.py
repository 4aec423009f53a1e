"""How a body that ran elsewhere can end without a value; the ``exception`` of an outcome."""

from __future__ import annotations

from edictum.core.effects import NoCapacity
from edictum.core.effects import NotReturned as NotReturned


class NotStarted(Exception):
    """The body was not begun: it cannot be sent to where it should run, or nothing is free."""

    text_for_model = (
        "The tool {tool!r} could not be started: what runs it is not available. It did not run. Do"
        " not repeat the call at once: try again later, or go on without it."
    )


class NoThread(NotStarted, NoCapacity):
    """Too many earlier calls of the tool are still running in their threads."""


class Lost(Exception):
    """The process or machine that ran the body died during the call. How far the body got is
    unknown.
    """

    text_for_model = "The tool {tool!r} was lost: the process that ran it ended without a result."


class RemoteError(Exception):
    """An exception that could not be sent back from elsewhere: its text, and its type by name."""

    def __init__(self, message: str, type_name: str = "") -> None:
        super().__init__(message)
        self.type_name = type_name


class RemoteTraceback(Exception):
    """Where the body raised, as text: the cause of an exception that came from elsewhere."""


class Unfinished(BaseException):
    """The wait has ended before what was awaited: the time is over, or the caller was interrupted
    (``by``).

    It is only used inside this package, as the error of a ``Failed``.
    """

    def __init__(self, running: bool, by: BaseException | None = None) -> None:
        super().__init__(running, by)
        self.running = running
        self.by = by
