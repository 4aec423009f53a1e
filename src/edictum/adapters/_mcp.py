"""Results of MCP tools in the form in which they go over the wire, for all who see them there."""

from __future__ import annotations

import json
from typing import Any

from edictum.adapters._base import Reply, as_text

KNOWN = {"content", "structuredContent", "isError", "resultType", "_meta"}
# What the protocol says about the connection; a tool has no part in it.
OWN_META = {
    f"io.modelcontextprotocol/{key}" for key in ("protocolVersion", "serverInfo", "subscriptionId")
}


class Asked(Exception):
    """A tool asked its client for input instead of giving a result; the client will send the same
    call again, with the answer.
    """


class WireResult:
    """One result: the blocks that a model reads, and the same as a structure, or something else as
    a structure.
    """

    def __init__(self) -> None:
        self.result: dict[str, Any] | None = None
        self._shown: Any = None  # what the guard judged
        self._whole = False  # whether that was all parts of the result
        self._wrapped = (
            False  # whether the value stands in {"result": value}: a structure has to be an object
        )

    def take(self, result: dict[str, Any]) -> Any:
        """What the guard judges: the tool's value, or all parts of the result where they do not say
        the same.
        """
        blocks, structure = result.get("content") or [], result.get("structuredContent")
        meta = {
            key: value
            for key, value in (result.get("_meta") or {}).items()
            if not is_own(key, value)
        }
        other = {key: value for key, value in result.items() if key not in KNOWN}
        self._wrapped = (
            isinstance(structure, dict)
            and structure.keys() == {"result"}
            and _same(blocks, structure["result"])
        )
        value = (
            _plain(blocks)
            if structure is None
            else structure["result"]
            if self._wrapped
            else structure
        )
        self._whole = bool(meta or other) or not (
            structure is None or self._wrapped or _same(blocks, value)
        )
        parts = {"content": blocks, "structured_content": structure, "meta": meta} | (
            {"other": other} if other else {}
        )
        self._shown = parts if self._whole else value
        self.result = result
        return self._shown

    def flag(self, value: Any) -> str | None:
        return (
            "isError is set"
            if self.result is not None and self.result.get("isError") is True
            else None
        )

    def answer(self, reply: Reply, *, failed: bool = False) -> dict[str, Any]:
        """The same result if the guard changed nothing, else a new one; a tool's exception is
        raised.
        """
        value, failed = reply.get(), reply.failed or failed
        if (
            self.result is not None
            and value is self._shown
            and failed == bool(self.result.get("isError"))
        ):
            return self.result
        parts = {"content": [_text(reply.text)]} if reply.text is not None else self._parts(value)
        return {**parts, "isError": failed}

    def _parts(self, value: Any) -> dict[str, Any]:
        """The value as the parts of a result, in the form that it had."""
        said = (self.result or {}).get("_meta") or {}
        meta = {key: kept for key, kept in said.items() if is_own(key, kept)}
        if self._whole and isinstance(value, dict) and value.keys() == self._shown.keys():
            meta |= value["meta"]
            found = {
                **value.get("other", {}),
                "content": value["content"],
                "structuredContent": value["structured_content"],
            }
        elif isinstance(self._shown, list) and isinstance(value, list) and not self._wrapped:
            found = {"content": value}
        else:
            found = {
                "content": [] if value is None else [_text(as_text(value))],
                "structuredContent": self._structure(value),
            }
        return {
            key: part for key, part in {**found, "_meta": meta or None}.items() if part is not None
        }

    def _structure(self, value: Any) -> dict[str, Any] | None:
        if self._wrapped:
            return {"result": value}
        return value if isinstance(value, dict) else None


def is_own(key: str, value: Any) -> bool:
    """Whether metadata is no word of the tool: the protocol's, and the mark of FastMCP on a
    structure that it made.
    """
    return key in OWN_META or (
        key == "fastmcp" and value in ({"wrap_result": True}, {"wrap_result": False})
    )


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _plain(blocks: list[Any]) -> Any:
    """The value behind blocks without a structure: nothing, one text, or the blocks themselves."""
    if not blocks:
        return None
    text = blocks[0].get("text") if isinstance(blocks[0], dict) else None
    return text if isinstance(text, str) and blocks == [_text(text)] else blocks


def _same(blocks: list[Any], value: Any) -> bool:
    """Whether the blocks only repeat the value, as a text or as JSON."""
    text = _plain(blocks)
    try:
        return bool(text == value or (isinstance(text, str) and json.loads(text) == value))
    except ValueError:
        return False


def alike(given: Any, made: Any) -> bool:
    """Whether a structure that we made has the form of the server's. A client that knows another
    form refuses it, unless it is an error.
    """
    if isinstance(given, dict) and isinstance(made, dict):
        return given.keys() == made.keys() and all(alike(given[key], made[key]) for key in given)
    return given is None or type(given) is type(made)
