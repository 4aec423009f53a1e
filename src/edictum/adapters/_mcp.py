"""Results of MCP tools in the form in which they go over the wire."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from edictum.adapters._identity import Identity
from edictum.adapters._reply import ToolReply, to_text
from edictum.core._records import record
from edictum.core.call import Principal

KNOWN_KEYS = {"content", "structuredContent", "isError", "resultType", "_meta"}
# What the protocol says about the connection; a tool has no part in it.
OWN_META = {
    f"io.modelcontextprotocol/{key}" for key in ("protocolVersion", "serverInfo", "subscriptionId")
}


class InputRequired(Exception):
    """A tool asked its client for input; the client will send the same call with the answer."""


# Asks the person behind a client: (message, JSON Schema of the answer) -> result of the protocol.
Elicit = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
# Claims about a token, not about its subject: a renewed token has others.
TOKEN_CLAIMS = {"exp", "iat", "nbf", "jti"}


@record
class MCPClient:
    """The client of a call. ``session_id`` is one that the server gave it, never its own choice.

    ``principal`` is that of its verified token; ``elicit`` asks the person behind it, if the client
    said that it can.
    """

    session_id: str | None = None
    principal: Principal | None = None
    elicit: Elicit | None = None

    def identify(self) -> Identity:
        """Return the subject of the token, or else the session that was negotiated."""
        if self.principal is None:
            return Identity(name_session(self.session_id))
        subject = self.principal.user_id or self.principal.service_id
        return Identity(subject, subject, self.principal)


def make_principal(subject: str, claims: Mapping[str, Any]) -> Principal:
    """Return the principal of a verified token: all claims, some of them as fields."""
    kept = {key: value for key, value in claims.items() if key not in TOKEN_CLAIMS}
    fields = {key: kept[key] for key in ("org_id", "role") if isinstance(kept.get(key), str)}
    return Principal(user_id=subject, claims=kept, **fields)


def name_session(negotiated: str | None) -> str | None:
    """Return the guard's name for a session of MCP: a digest, since its id may be a credential."""
    if negotiated is None:
        return None
    return f"mcp-{hashlib.sha256(negotiated.encode()).hexdigest()[:32]}"


class WireResult:
    """One result: the blocks that a model reads, and the same or something else as a structure."""

    def __init__(self) -> None:
        self.result: dict[str, Any] | None = None
        self._judged: Any = None
        self._is_whole = False  # whether all parts of the result were judged, not one value
        # Whether the value stands in {"result": value}: a structure has to be an object.
        self._is_wrapped = False

    def take(self, result: dict[str, Any]) -> Any:
        """Return what is judged: the value, or all parts of the result where they differ."""
        self.result = result
        blocks, structure = result.get("content") or [], result.get("structuredContent")
        self._is_wrapped = _is_wrapped(blocks, structure)
        value = _read_blocks(blocks) if structure is None else structure
        value = value["result"] if self._is_wrapped else value
        repeats = structure is None or self._is_wrapped or _repeats(blocks, value)
        meta, other = _split_meta(result)[1], _find_other_parts(result)
        self._is_whole = bool(meta or other) or not repeats
        parts = {"content": blocks, "structured_content": structure, "meta": meta, **other}
        self._judged = parts if self._is_whole else value
        return self._judged

    def flag(self, value: Any) -> str | None:
        failed = self.result is not None and self.result.get("isError") is True
        return "isError is set" if failed else None

    def answer(self, reply: ToolReply) -> dict[str, Any]:
        """Return the same result if nothing was changed, else a new one; raise an exception."""
        made = self._replace(reply)
        blocks, structure = made.get("content") or [], made.get("structuredContent")
        parts = {"content": reply.limit.fit_blocks(blocks)}
        if structure is not None:
            parts["structuredContent"] = reply.limit.fit(structure, keep_form=True)
        is_whole = parts["content"] is blocks and parts.get("structuredContent") is structure
        made = made if is_whole else {**made, "isError": reply.failed, **parts}
        return mark_as_error(made) if made is not self.result and made["isError"] else made

    def _replace(self, reply: ToolReply) -> dict[str, Any]:
        value, result = reply.get_whole(), self.result
        is_same = result is not None and value is self._judged
        if result is not None and is_same and reply.failed == bool(result.get("isError")):
            return result
        if reply.text is not None:
            return {"content": [make_text(reply.text)], "isError": reply.failed}
        return {**self._make_parts(value), "isError": reply.failed}

    def _make_parts(self, value: Any) -> dict[str, Any]:
        """Return the value as the parts of a result, in the form that it had."""
        meta, _ = _split_meta(self.result)
        found: dict[str, Any]
        if self._is_whole and isinstance(value, dict) and value.keys() == self._judged.keys():
            meta |= value["meta"]
            found = {**value.get("other", {}), "content": value["content"]}
            found["structuredContent"] = value["structured_content"]
        elif isinstance(self._judged, list) and isinstance(value, list) and not self._is_wrapped:
            found = {"content": value}
        else:
            found = {"content": [] if value is None else [make_text(to_text(value))]}
            found["structuredContent"] = self._make_structure(value)
        found["_meta"] = meta or None
        return {key: part for key, part in found.items() if part is not None}

    def _make_structure(self, value: Any) -> dict[str, Any] | None:
        if self._is_wrapped:
            return {"result": value}
        return value if isinstance(value, dict) else None


def is_tool_result(result: dict[str, Any]) -> bool:
    """Return whether what a server answered has the form of a tool's result."""
    return (
        isinstance(result.get("content") or [], list)
        and isinstance(result.get("_meta") or {}, dict)
        and isinstance(result.get("isError") or False, bool)
        and result.get("resultType", "complete") == "complete"
        and "task" not in result
    )


def is_own(key: str, value: Any) -> bool:
    """Return whether metadata is the protocol's, or FastMCP's mark on a structure that it made."""
    marks = ({"wrap_result": True}, {"wrap_result": False})
    return key in OWN_META or (key == "fastmcp" and value in marks)


def mark_as_error(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result as an error, without a structure: some clients check that even of an error.

    What the structure said is told as text, unless there is some already.
    """
    kept = {key: part for key, part in result.items() if key != "structuredContent"}
    if not kept.get("content") and result.get("structuredContent") is not None:
        kept["content"] = [make_text(to_text(result["structuredContent"]))]
    return {**kept, "isError": True}


def make_text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _split_meta(result: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the protocol's metadata, and the tool's."""
    own: dict[str, Any] = {}
    tools: dict[str, Any] = {}
    for key, value in ((result or {}).get("_meta") or {}).items():
        (own if is_own(key, value) else tools)[key] = value
    return own, tools


def _find_other_parts(result: dict[str, Any]) -> dict[str, Any]:
    other = {key: item for key, item in result.items() if key not in KNOWN_KEYS}
    return {"other": other} if other else {}


def _read_blocks(blocks: list[Any]) -> Any:
    """Return the value behind blocks without a structure: None, one text, or the blocks."""
    if not blocks:
        return None
    text = blocks[0].get("text") if isinstance(blocks[0], dict) else None
    return text if isinstance(text, str) and blocks == [make_text(text)] else blocks


def _is_wrapped(blocks: list[Any], structure: Any) -> bool:
    wrapped = isinstance(structure, dict) and structure.keys() == {"result"}
    return wrapped and _repeats(blocks, structure["result"])


def _repeats(blocks: list[Any], value: Any) -> bool:
    """Return whether the blocks only repeat the value, as a text or as JSON."""
    text = _read_blocks(blocks)
    try:
        return bool(text == value or (isinstance(text, str) and json.loads(text) == value))
    except ValueError:
        return False
