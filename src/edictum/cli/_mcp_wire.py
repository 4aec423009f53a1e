"""Messages of MCP as they come over a wire: parsed from lines and event streams, and told apart."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from edictum.adapters.mcp import MCPMessage

GOVERNED_METHODS = ("tools/call", "tools/list", "resources/read", "prompts/get")
MessageKey = int | str
JSON_TYPE, EVENTS_TYPE = "application/json", "text/event-stream"
ENDPOINT = "endpoint"  # the event of HTTP+SSE that tells a client where to send to
INVALID_REQUEST, INTERNAL_ERROR, PARSE_ERROR, SERVER_ERROR = -32600, -32603, -32700, -32000
# Those of event streams; str.splitlines knows more, which are ordinary characters of JSON.
LINE_END = re.compile(rb"\r\n|\n|\r")
SIMPLE_ID = rb'\s*:\s*(-?\d{1,18}|"[^"\\]{0,200}")\s*'
ID_VALUE = re.compile(SIMPLE_ID + rb"[,}]")
LAST_ID = re.compile(rb'"id"' + SIMPLE_ID + rb"\}\s*\Z")
RETRY_MS = re.compile(r"[0-9]{1,9}")
# Texts, even one without an end, and what opens and closes; no part is looked at twice.
TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a stream. One that says nothing is a comment, which keeps a connection alive."""

    data: str = ""
    name: str = ""
    event_id: str | None = None  # with which a client can ask for what comes after it
    retry_ms: int | None = None  # how long a client should wait before it does

    def parse(self) -> list[MCPMessage]:
        """Return the messages in it; raise a ValueError if it cannot be read."""
        return list_messages(parse_json(self.data)) if self.data.strip() else []

    def encode(self) -> bytes:
        if self == COMMENT:
            return b": keep-alive\n\n"
        fields = [("event", self.name), ("id", self.event_id), ("retry", self.retry_ms)]
        written = [f"{name}: {value}\n" for name, value in fields if value not in ("", None)]
        lines = [f"data: {line}\n" for line in self.data.split("\n")]
        return "".join([*written, *lines, "\n"]).encode()


COMMENT = StreamEvent()


# --- Telling messages apart -----------------------------------------------------------------------


def is_call(message: Any) -> bool:
    """Return whether a message goes through the gate: calls, lists of tools, what is read."""
    return isinstance(message, dict) and message.get("method") in GOVERNED_METHODS


def is_request(message: Any) -> bool:
    return isinstance(message, dict) and "method" in message and "id" in message


def is_answer(message: Any) -> bool:
    """Return whether a client may take it for an answer, even with a method, or without an id."""
    if not isinstance(message, dict):
        return False
    return "method" not in message or "result" in message or "error" in message


def normalize_id(message_id: Any) -> MessageKey:
    """Return one key for 7, 7.0 and "7": some servers repeat ids in another form."""
    if isinstance(message_id, (str, int, float)) and not isinstance(message_id, bool):
        try:
            return int(message_id)
        except (ValueError, OverflowError):
            pass
    return repr(message_id)


def get_object(message: MCPMessage, key: str) -> MCPMessage:
    """Return an object inside of another; an empty one if something else is there."""
    found = message.get(key)
    return found if isinstance(found, dict) else {}


def as_list(parsed: Any) -> list[Any]:
    """Return the parts of a batch, or the one message in a list."""
    return parsed if isinstance(parsed, list) else [parsed]


def list_messages(parsed: Any) -> list[MCPMessage]:
    """Return one message, or those of a batch. What is not an object is not a message."""
    return [message for message in as_list(parsed) if isinstance(message, dict)]


def make_error_response(message_id: Any, reason: str, code: int = SERVER_ERROR) -> MCPMessage:
    return {"jsonrpc": "2.0", "id": message_id, "error": {"code": code, "message": reason}}


# --- Parsing --------------------------------------------------------------------------------------


# What a message, or its params, may have to say what is called.
CALLING_KEYS = frozenset({"jsonrpc", "id", "method", "params", "name", "arguments", "uri"})


def parse_json(data: bytes | str) -> Any:
    """Parse a text; raise a ValueError that repeats nothing of it.

    Keys that differ from those of a call only in case are refused: some parsers take them for the
    same, and would read another call than was judged.
    """
    try:
        parsed = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ValueError(
            f"what came is not JSON, or too deep or too large to be read (length {len(data)})"
        ) from exc
    for message in list_messages(parsed):
        params = message.get("params")
        if _has_odd_case(message) or (isinstance(params, dict) and _has_odd_case(params)):
            raise ValueError("a key of the message differs from one of MCP only in case")
    return parsed


def _has_odd_case(part: dict[str, Any]) -> bool:
    # casefold, not lower: such parsers fold letters, as the long s
    return any(key not in CALLING_KEYS and key.casefold() in CALLING_KEYS for key in part)


def find_unread_id(line: bytes) -> Any:
    """Return the id of a message that cannot be parsed; None if it has none, or several.

    It is a key of the outermost object, as far as the text can be followed, or stands last.
    """
    found = set(_iter_outer_ids(line))
    if not found and (last := LAST_ID.search(line)) is not None:
        found = {last.group(1)}
    return json.loads(found.pop().decode(errors="replace")) if len(found) == 1 else None


def _iter_outer_ids(line: bytes) -> Iterator[bytes]:
    """Yield what stands after each key "id" of the outermost object."""
    depth = 0
    for token in TOKEN.finditer(line) if line.lstrip().startswith(b"{") else ():
        text = token.group()
        if text in b"{[":
            depth += 1
        elif text in b"}]":
            depth -= 1
        elif depth == 1 and text == b'"id"' and (value := ID_VALUE.match(line, token.end())):
            yield value.group(1)


async def iter_lines(parts: AsyncIterator[bytes]) -> AsyncGenerator[str, None]:
    """Yield the lines of an event stream. One that is not ended is not a line."""
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


async def iter_events(response: Any) -> AsyncGenerator[StreamEvent, None]:
    """Yield the events of a stream, and its comments as events that say nothing."""
    fields: dict[str, list[str]] = {}
    # closed here and now, not by the garbage collector
    async with aclosing(response.aiter_bytes()) as parts, aclosing(iter_lines(parts)) as lines:
        async for line in lines:
            name, _, value = line.partition(":")
            if line and not name:
                yield COMMENT
            elif line:
                fields.setdefault(name, []).append(value.removeprefix(" "))
            elif fields:
                yield _make_event(fields)
                fields = {}


def _make_event(fields: dict[str, list[str]]) -> StreamEvent:
    event_id, retry = fields.get("id", [""])[-1], fields.get("retry", [""])[-1]
    return StreamEvent(
        data="\n".join(fields.get("data", [])),
        name=fields.get("event", [""])[-1],
        event_id=event_id if event_id and "\0" not in event_id else None,
        retry_ms=int(retry) if RETRY_MS.fullmatch(retry) else None,
    )


def get_media_type(response: Any) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


async def iter_answer(response: Any) -> AsyncGenerator[StreamEvent, None]:
    """Yield the events of an answer, whatever form the server chose: JSON is one event."""
    media_type = get_media_type(response)
    if media_type == EVENTS_TYPE:
        async with aclosing(iter_events(response)) as events:
            async for event in events:
                yield event
    elif media_type == JSON_TYPE and (body := await response.aread()):
        yield StreamEvent(body.decode("utf-8-sig", "replace"))
