"""The responses of the gateway: single ones, and event streams to which a client can return."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Coroutine
from contextlib import suppress
from typing import Any

from edictum._logs import MCP_DROPPED, log
from edictum.cli._mcp_wire import COMMENT, EVENTS_TYPE, MessageKey, StreamEvent

Headers = list[tuple[bytes, bytes]]
# Who may return to a stream: a client with the same session and the same token.
Owner = tuple[str, str]
SILENCE_S = 15.0  # after which a stream says that it is still there
RETURN_S = 60.0  # how long a client may be away from a stream that can be resumed
MAX_WAITING, MAX_KEPT = 1_000, 1_000  # events of a stream: not yet sent, and sent before
MAX_RESUMABLE = 100  # streams that have ended, and are kept for clients that return
STREAM_HEADERS: Headers = [
    (b"content-type", EVENTS_TYPE.encode()),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]


class Response:
    """Writes one response of ASGI."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self.is_started = self.is_stream = self.is_ended = False

    async def start(self, status: int, headers: Headers) -> None:
        self.is_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def start_stream(self, status: int = 200, headers: Headers = STREAM_HEADERS) -> None:
        self.is_stream = True
        await self.start(status, headers)

    async def write(self, body: bytes, is_last: bool = False) -> None:
        self.is_ended = is_last
        await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})

    async def end(self, body: bytes = b"") -> None:
        await self.write(body, is_last=True)

    async def refuse_token(self, metadata_url: str | None = None) -> None:
        """Answer that a valid token is needed, and where clients learn who issues tokens."""
        more = "" if metadata_url is None else f', resource_metadata="{metadata_url}"'
        challenge = f'Bearer error="invalid_token"{more}'
        await self.start(401, [(b"www-authenticate", challenge.encode("latin-1"))])
        await self.end()

    async def respond(
        self, status: int, media_type: str, body: bytes, headers: Headers | None = None
    ) -> None:
        typed = (b"content-type", media_type.encode())
        await self.start(status, [*(headers or []), typed, make_length(body)])
        await self.end(body)


def make_length(body: bytes) -> tuple[bytes, bytes]:
    """Return the header of a whole body: without it the end is one more write."""
    return b"content-length", str(len(body)).encode()


class ReplyStream:
    """What comes back for one request, on its way to the client that waits for it.

    It is filled by a task of its own, so that a client whose connection breaks can return.
    """

    def __init__(self, silence_s: float, asked: Collection[MessageKey] = ()) -> None:
        self._silence_s = silence_s
        self.asked = asked  # the ids of the requests that it answers
        self._waiting: asyncio.Queue[StreamEvent | None] = asyncio.Queue(MAX_WAITING)
        self._sent: deque[StreamEvent] = deque(maxlen=MAX_KEPT)
        self._again: deque[StreamEvent] = deque()  # sent, but the client has not seen them
        self._reader: asyncio.Task[Any] | None = None
        self._source: asyncio.Task[None] | None = None
        self._is_closed = False  # nothing is added any more
        self.is_over = False  # everything has been sent

    def start(self, source: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Fill the stream from its source; return the task that does."""
        self._source = asyncio.create_task(source)
        self._source.add_done_callback(self._close)
        return self._source

    def stop(self) -> None:
        if self._source is not None:
            self._source.cancel()

    @property
    def has_reader(self) -> bool:
        return self._reader is not None

    @property
    def can_resume(self) -> bool:
        """Return whether the client knows an event to which it can return."""
        return bool(self._sent)

    async def add(self, event: StreamEvent) -> None:
        await self._waiting.put(event)

    def offer(self, event: StreamEvent) -> None:
        """Add an event without waiting; if too many wait, the oldest is forgotten."""
        if self._waiting.full():
            self._waiting.get_nowait()
        self._waiting.put_nowait(event)

    def show_start(self) -> None:
        """Let the client see that its answer has begun, if there is nothing else to see."""
        if not self._is_closed and self._waiting.empty():
            self._waiting.put_nowait(COMMENT)

    async def get(self, timeout_s: float | None) -> StreamEvent | None:
        """Return the next event, a comment after a silence, None at the end."""
        if self._again or self.is_over:
            return self._again.popleft() if self._again else None
        event: StreamEvent | None = COMMENT
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                event = await self._waiting.get()
        self.is_over = event is None
        if event is not None and event.event_id is not None:
            self._sent.append(event)
        return event

    async def add_last(self, event: StreamEvent) -> None:
        await self.add(event)
        await self._waiting.put(None)
        self._is_closed = True

    async def write_to(self, response: Response, first: StreamEvent | None = None) -> None:
        """Write everything to its end. A client that returns takes it over from the one before."""
        if self._reader is not None:
            self._reader.cancel()
        self._reader = reader = asyncio.current_task()
        try:
            if first is not None and first is not COMMENT:  # the headers have said that much
                await response.write(first.encode())
            while (event := await self.get(self._silence_s)) is not None:
                await response.write(event.encode(), is_last=self.take_end())
        finally:
            if self._reader is reader:
                self._reader = None

    def take_end(self) -> bool:
        """Return whether the end of the stream is what comes next, and take it."""
        if self._is_closed and self._waiting.qsize() == 1:
            self._waiting.get_nowait()
            self.is_over = True
        return self.is_over and not self._again

    def rewind(self, event_id: str) -> bool:
        """Go back to after an event that was sent; return whether more can come after it."""
        ids = [event.event_id for event in self._sent]
        if event_id not in ids:
            return False
        after = list(self._sent)[ids.index(event_id) + 1 :]
        self._again = deque(after)
        return bool(after) or not self.is_over

    def _close(self, source: asyncio.Task[None]) -> None:
        if not source.cancelled() and (exc := source.exception()) is not None:
            log(MCP_DROPPED, "a stream of the server broke off: %s", type(exc).__name__)
        if self._is_closed:
            return
        if self._waiting.full():  # its client is away, or does not read
            self._waiting.get_nowait()
        self._waiting.put_nowait(None)
        self._is_closed = True


class ResumableStreams:
    """The streams to which clients can return with ``Last-Event-ID``."""

    def __init__(self, return_s: float = RETURN_S) -> None:
        self._owners: dict[ReplyStream, Owner] = {}
        self._return_s = return_s

    def __len__(self) -> int:
        return len(self._owners)

    def add(self, owner: Owner, stream: ReplyStream) -> None:
        """Remember whose stream it is; without a session a client cannot be told from others."""
        if owner[0]:
            self._owners[stream] = owner

    def find(self, owner: Owner, event_id: str) -> ReplyStream | None:
        """Return the owner's stream with this event, gone back to it."""
        for stream, its_owner in self._owners.items():
            if its_owner == owner and stream.rewind(event_id):
                return stream
        return None

    def has_asked(self, owner: Owner, request: MessageKey) -> bool:
        """Return whether a request has a stream; of clients without a session that is unknown."""
        return not owner[0] or bool(self._list_asking(owner, request))

    def cancel(self, owner: Owner, request: MessageKey) -> None:
        """Stop what is done for a request that its client has given up."""
        for stream in self._list_asking(owner, request):
            stream.stop()

    def release(self, stream: ReplyStream) -> None:
        """Stop a stream that its client has left, unless it can return: then a while later."""
        if stream.has_reader:
            return
        if not stream.can_resume or stream not in self._owners:
            self._drop(stream)
            return
        asyncio.get_running_loop().call_later(self._return_s, self._drop_unread, stream)
        unread = [each for each in self._owners if not each.has_reader]
        for each in unread[:-MAX_RESUMABLE]:
            self._drop(each)

    def _list_asking(self, owner: Owner, request: MessageKey) -> list[ReplyStream]:
        streams = [stream for stream, its_owner in self._owners.items() if its_owner == owner]
        return [stream for stream in streams if request in stream.asked]

    def _drop_unread(self, stream: ReplyStream) -> None:
        if not stream.has_reader:
            self._drop(stream)

    def _drop(self, stream: ReplyStream) -> None:
        self._owners.pop(stream, None)
        stream.stop()
