"""The same agent behind FastAPI, as server-sent events. A client that leaves cancels its turn, and
the next message goes on with what has happened.

Run it with ``python examples/streaming/service.py 8000`` (it needs fastapi and uvicorn), then
``curl -N localhost:8000/conversations/1 --json '{"text": "Archive everything."}'``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from agent import archive, archived, make_guard, write_reply
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from edictum.harness import (
    TextDelta,
    ToolCallEnded,
    ToolCallMade,
    TurnEnded,
    TurnEvent,
    TurnState,
    stream_turn,
)
from edictum.outcomes import outcome_kind


@dataclass
class Conversation:
    """What was said so far. One turn at a time may go on with it."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Message(BaseModel):
    text: str


class Events(StreamingResponse):
    """Server-sent events, whose generator is closed in any case: StreamingResponse leaves it open
    when it cannot write to the client any more, and the turn would go on.
    """

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self.events = events

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with contextlib.aclosing(self.events):
            await super().__call__(scope, receive, send)


app = FastAPI()
guard = make_guard()
conversations: dict[str, Conversation] = defaultdict(Conversation)


@app.post("/conversations/{conversation_id}")
async def send_message(conversation_id: str, message: Message) -> Events:
    return Events(answer(conversation_id, message.text))


async def answer(conversation_id: str, text: str) -> AsyncGenerator[str, None]:
    """Yield a turn as server-sent events. Closed or cancelled, it stops the turn and keeps what has
    happened.
    """
    conversation = conversations[conversation_id]
    async with conversation.lock:
        messages = [*conversation.messages, {"role": "user", "content": text}]
        state = TurnState(session_id=f"conversation-{conversation_id}")
        turn = stream_turn(write_reply, messages, [archive], guard, state=state)
        try:
            async with contextlib.aclosing(turn) as events:  # it has ended when this is left
                async for event in events:
                    if (data := describe(event)) is not None:
                        yield f"event: {type(event).__name__}\ndata: {json.dumps(data)}\n\n"
        finally:
            conversation.messages = list(state.messages or messages)


def describe(event: TurnEvent) -> dict[str, Any] | None:
    """Return what the client is told of an event; None: nothing."""
    match event:
        case TextDelta(text):
            return {"text": text}
        case ToolCallMade(call):
            return {"id": call.id, "tool": call.name, "arguments": call.arguments}
        case ToolCallEnded(call, outcome):
            return {"id": call.id, "outcome": outcome_kind(outcome)}
        case TurnEnded(result):
            return {"stopped_by": result.stopped_by, "text": result.text}
    return None


@app.get("/archive")
async def list_archive() -> list[str]:
    return archived


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
