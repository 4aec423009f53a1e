"""Turn events: what happens in a turn, while it happens, and how a listener gets them.

The first events of a reply are the model's own (``model_events``). They come from where the model
runs, which may be another thread; a listener is called in the turn's event loop, in order.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, TypeAlias

from edictum._logs import CALLBACK_FAILED, log
from edictum.core.decision import Failed
from edictum.execution.captured import capture, close
from edictum.harness.messages import ModelReply
from edictum.harness.model_calls import ModelCall
from edictum.harness.model_events import ModelEvent, RefusalDelta, TextDelta
from edictum.harness.tool_executor import ToolCallRequest
from edictum.harness.turn_result import TurnResult
from edictum.outcomes import ToolOutcome


@dataclass(frozen=True, slots=True)
class ToolCallMade:
    """A call that the model asked for goes to the gate, where it may still be denied."""

    call: ToolCallRequest


@dataclass(frozen=True, slots=True)
class ToolCallEnded:
    """A call has ended, with this outcome."""

    call: ToolCallRequest
    outcome: ToolOutcome


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The turn is over: its last event. A turn that is cancelled does not have it."""

    result: TurnResult


TurnEvent: TypeAlias = ModelEvent | ModelCall | ToolCallMade | ToolCallEnded | TurnEnded
OnEvent: TypeAlias = Callable[[TurnEvent], Any]


class EventFeed:
    """Passes events to a listener, one after the other.

    The first exception of a listener is logged. Awaitables that it returns are awaited in the order
    of the events, while the turn goes on.
    """

    def __init__(self, listener: OnEvent) -> None:
        self._listener = listener
        self._unheard: deque[Awaitable[Any]] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._has_failed = False
        self._interrupt: KeyboardInterrupt | None = None

    def emit(self, event: TurnEvent) -> None:
        """Call the listener, in the turn's event loop."""
        try:
            heard = self._listener(event)
        except Exception as exc:
            self._report(exc)
            return
        if isawaitable(heard):
            self._unheard.append(heard)
            if self._pump is None or self._pump.done():
                self._pump = asyncio.get_running_loop().create_task(self._await_all())

    async def _await_all(self) -> None:
        while self._unheard:
            heard = await capture(self._unheard.popleft())
            if isinstance(heard, Failed):
                self._report(heard.error)

    def _report(self, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._interrupt = error
        elif not self._has_failed:
            self._has_failed = True
            log(
                CALLBACK_FAILED,
                "on_event failed; more failures of it are not logged",
                exc_info=error,
            )

    async def drain(self, timeout_s: float) -> None:
        """Wait until an asynchronous listener has handled all events, for at most ``timeout_s``."""
        if self._pump is not None and not self._pump.done():
            await asyncio.wait((self._pump,), timeout=timeout_s)
            if not self._pump.done():
                self._report(TimeoutError(f"on_event took longer than {timeout_s:.1f} s"))
                self.close()
        if self._interrupt is not None:
            raise self._interrupt

    def close(self) -> None:
        """Drop the events that an asynchronous listener has not handled."""
        for heard in self._unheard:
            close(heard)
        self._unheard.clear()
        if self._pump is not None:
            self._pump.cancel()


class ReplyRelay:
    """The ``on_event`` of one model call: passes its events on to a feed, from any thread.

    ``text`` is the text of the reply so far. Once closed it raises, which ends the reply of a model
    that is still running in its thread.
    """

    def __init__(self, feed: EventFeed) -> None:
        self.text = ""
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._refusal = ""
        self._received: deque[ModelEvent] = deque()  # in another thread, not passed on yet
        self._closed = False

    def __call__(self, event: ModelEvent) -> None:
        if self._closed:
            raise ReplyAbandoned("The turn has stopped waiting for this reply.")
        if threading.get_ident() == self._thread:
            self._pass_on(event)
        else:
            self._received.append(event)
            self._loop.call_soon_threadsafe(self.flush)

    def flush(self) -> None:
        """Pass on what was received in another thread."""
        while self._received:
            self._pass_on(self._received.popleft())

    def _pass_on(self, event: ModelEvent) -> None:
        if self._closed:
            return
        if isinstance(event, TextDelta):
            self.text += event.text
        elif isinstance(event, RefusalDelta):
            self._refusal += event.text
        self._feed.emit(event)

    def complete(self, reply: ModelReply) -> None:
        """Pass on the rest of a reply: its last events, or the text that came in one piece."""
        self.flush()
        if reply.text and not self.text:
            self._pass_on(TextDelta(reply.text))
        if reply.refusal and not self._refusal:
            self._pass_on(RefusalDelta(reply.refusal))

    def close(self) -> None:
        self._closed = True


class ReplyAbandoned(Exception):
    """Raised in a model that is still receiving a reply after the turn has stopped waiting for
    it.
    """
