"""Events of MCP streams: written as they were read, whatever the pieces in which they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from edictum.cli._mcp_wire import COMMENT, StreamEvent, iter_events

LINES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=8)
NAMES = LINES.filter(lambda text: not text.startswith(" "))
EVENTS = st.lists(
    st.builds(
        StreamEvent,
        data=st.lists(LINES, max_size=3).map("\n".join),
        name=NAMES,
        event_id=st.none() | NAMES.filter(bool),
        retry_ms=st.none() | st.integers(0, 10_000),
    ),
    max_size=5,
)


class Response:
    def __init__(self, data: bytes, size: int) -> None:
        self.parts = [data[start : start + size] for start in range(0, len(data), size)]

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part


async def read(data: bytes, size: int = 1000) -> list[StreamEvent]:
    return [event async for event in iter_events(Response(data, size))]


@given(events=EVENTS, size=st.integers(1, 40))
def test_an_event_is_read_as_it_was_written(events: list[StreamEvent], size: int) -> None:
    assert asyncio.run(read(b"".join(event.encode() for event in events), size)) == events


async def test_fields_follow_the_rules_of_event_streams() -> None:
    said = b": a comment\nid: 1\nid\nid:2\ndata:  a\ndata\ndata:b\nretry: x\nother: x\n\nid: 3"
    assert await read(said) == [COMMENT, StreamEvent(" a\n\nb", event_id="2")]
    assert await read(b"id: a\0b\nretry: 99999999999\ndata: x\n\n") == [StreamEvent("x")]
