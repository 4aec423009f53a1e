"""Messages of MCP as they come over a wire: read from lines and event streams, told apart, and kept
apart by their ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from edictum.adapters.mcp import MCPMessage

Key = int | str
JSON, EVENTS = "application/json", "text/event-stream"
LINE_END = re.compile(
    rb"\r\n|\n|\r"
)  # those of event streams; str.splitlines knows more, which are ordinary characters of JSON
SIMPLE_ID = rb'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")\s*'
ID_AT_AN_END = re.compile(
    rb'\A\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?'
    + SIMPLE_ID
    + rb"[,}]|"
    + SIMPLE_ID
    + rb"\}\s*\Z"
)


# --- Telling messages apart -----------------------------------------------------------------------


def is_call(message: Any) -> bool:
    return isinstance(message, dict) and message.get("method") == "tools/call"


def is_request(message: Any) -> bool:
    return isinstance(message, dict) and "method" in message and "id" in message


def is_answer(message: Any) -> bool:
    """Whether a client may take it for the answer to a request: also if it has a method as well, or
    no id.
    """
    return isinstance(message, dict) and (
        "method" not in message or "result" in message or "error" in message
    )


def key_of(message_id: Any) -> Key:
    """7, 7.0 and "7" are one id: there are servers that repeat ids in another form, and clients
    that accept it.
    """
    if isinstance(message_id, (str, int, float)) and not isinstance(message_id, bool):
        try:
            return int(message_id)
        except (ValueError, OverflowError):
            pass
    return repr(message_id)


def inside(message: MCPMessage, key: str) -> MCPMessage:
    """An object inside of another; empty if something else is there."""
    found = message.get(key)
    return found if isinstance(found, dict) else {}


def unpacked(said: Any) -> list[MCPMessage]:
    """One message, or those of a batch. What is no object is no message."""
    return [
        message
        for message in (said if isinstance(said, list) else [said])
        if isinstance(message, dict)
    ]


def failure(message_id: Any, why: str, code: int = -32000) -> MCPMessage:
    return {"jsonrpc": "2.0", "id": message_id, "error": {"code": code, "message": why}}


# --- Reading --------------------------------------------------------------------------------------


def read(data: bytes | str) -> Any:
    """What a text says. Whatever Python cannot read is a ValueError, and its text repeats nothing
    of it.
    """
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ValueError(
            f"what came is not JSON, or too deep or too large to be read (length {len(data)})"
        ) from exc


def id_of_unread(line: bytes) -> Any:
    """The id of a message that could not be read, if it stands where senders write it: first, or
    last. Otherwise None.
    """
    found = ID_AT_AN_END.search(line)
    return (
        None
        if found is None
        else json.loads((found.group(1) or found.group(2)).decode(errors="replace"))
    )


async def lines(parts: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    """The lines of an event stream. One that is not ended is no line."""
    begun: list[bytes] = []
    after_return = False
    async for given in parts:
        part = given[1:] if after_return and given.startswith(b"\n") else given
        after_return = given.endswith(b"\r") if given else after_return
        first, *others = LINE_END.split(part)
        begun.append(first)
        for other in others:
            yield b"".join(begun).decode(errors="replace")
            begun = [other]


async def events(response: Any) -> AsyncIterator[MCPMessage]:
    """The messages of an event stream."""
    data: list[str] = []
    async with (
        aclosing(response.aiter_bytes()) as parts,
        aclosing(lines(parts)) as found,
    ):  # closed here and now, not by the collector
        async for line in found:
            if line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
            elif not line and data:
                text, data = "\n".join(data), []
                for message in unpacked(read(text)) if text.strip() else []:
                    yield message


def kind_of(response: Any) -> str:
    """The media type of an answer; its case means nothing."""
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


async def messages(response: Any) -> AsyncIterator[MCPMessage]:
    """The messages of an answer, whatever form the server chose."""
    if kind_of(response) == EVENTS:
        async for message in events(response):
            yield message
    elif kind_of(response) == JSON and (body := await response.aread()):
        for message in unpacked(read(body)):
            yield message
