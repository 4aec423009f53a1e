"""Pins: how an MCP server described its tools when they were accepted.

A description is read by a model, so one that changes later can tell the model to do something else.
A pin is a digest of everything of a tool that a model may read.
"""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata
from pathlib import Path
from typing import Any
from uuid import uuid4

from edictum.core._records import record
from edictum.errors import EdictumConfigError

PINNED_KEYS = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
MAX_PINNED_TOOLS = 10_000  # in one file: a server can invent any number of names
MAX_SHOWN_CHARS = 2_000
# Characters that are not seen and are not of the category "format": fillers and selectors.
HIDDEN_LETTERS = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0}
NOT_A_FILE = "Delete it, or name another one with --pins; the tools are pinned anew then."
ToolDefinition = dict[str, Any]


def get_pinned_parts(tool: ToolDefinition) -> ToolDefinition:
    return {key: tool[key] for key in PINNED_KEYS if tool.get(key) is not None}


def digest_tool(tool: ToolDefinition) -> str:
    """Return the pin of a tool: the SHA-256 of what is pinned of it as JSON with sorted keys."""
    text = json.dumps(get_pinned_parts(tool), sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


# --- Hidden characters ----------------------------------------------------------------------------


def is_hidden_char(char: str) -> bool:
    """Return whether a reader does not see a character: zero width, bidirectional, tags, controls.

    The selector that makes an emoji of a letter is not one of them.
    """
    code = ord(char)
    if code < 0x80:
        return (code < 0x20 and char not in "\t\n\r") or code == 0x7F
    is_selector = 0xE0100 <= code <= 0xE01EF or 0xFE00 <= code <= 0xFE0E
    kind = unicodedata.category(char)
    return kind in ("Cf", "Cc", "Co", "Cs", "Zl", "Zp") or code in HIDDEN_LETTERS or is_selector


def reveal_hidden(text: str) -> str:
    """Return the text with hidden characters written as their code points: <U+200B>."""
    return "".join(f"<U+{ord(char):04X}>" if is_hidden_char(char) else char for char in text)


def has_hidden(tool: ToolDefinition) -> bool:
    """Return whether anything that is pinned of a tool has hidden characters."""
    text = json.dumps(get_pinned_parts(tool), ensure_ascii=False)
    return any(is_hidden_char(char) for char in text)


def describe_definition(tool: ToolDefinition) -> str:
    """Return what a model may read of a tool, for a person, with hidden characters shown."""
    text = reveal_hidden(json.dumps(get_pinned_parts(tool), ensure_ascii=False))
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."


# --- The file -------------------------------------------------------------------------------------


@record
class PinnedTool:
    """What was accepted of a tool, and what was refused since; None if nothing was."""

    accepted: ToolDefinition | None = None
    refused: ToolDefinition | None = None


class PinFile:
    """The pins in a file. It is read again when it has changed, so that an accepted tool is used.

    A tool that is seen for the first time is accepted, unless it has hidden characters.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._tools: dict[str, PinnedTool] = {}
        self._version: tuple[int, ...] | None = None
        self._read()

    def check_writable(self) -> None:
        """Raise if pins could not be written, to learn it when a program starts."""
        if not os.access(self._path.parent, os.W_OK | os.X_OK):
            message = f"The pins in {self._path} cannot be written: {self._path.parent} is not"
            hint = "Name a file in a folder that exists and can be written."
            raise EdictumConfigError(f"{message} a folder that can be written.", hint=hint)

    def list_tools(self) -> dict[str, PinnedTool]:
        self._read()
        return dict(self._tools)

    def find_problem(self, tool: ToolDefinition) -> str | None:
        """Return why a tool must not be shown or called, if so; note what is seen."""
        self._read()
        name = tool["name"]
        known = self._tools.get(name, PinnedTool())
        if known.accepted is not None and digest_tool(known.accepted) == digest_tool(tool):
            return None
        if known.accepted is None and known.refused is None and not has_hidden(tool):
            return self._accept_first(name, tool)
        if known.refused is None or digest_tool(known.refused) != digest_tool(tool):
            self._write(name, PinnedTool(known.accepted, get_pinned_parts(tool)))
        what = "has hidden characters" if known.accepted is None else "is not the one accepted"
        return (
            f"The description of the tool {reveal_hidden(name)!r} {what}, so it is refused until"
            " an operator has accepted it."
        )

    def accept(self, name: str) -> None:
        """Accept what was refused of a tool."""
        self._read()
        known = self._tools.get(name)
        if known is None or known.refused is None:
            hint = f"edictum mcp-pins {self._path} shows what was."
            raise EdictumConfigError(f"The tool {name!r} has no refused description.", hint=hint)
        self._write(name, PinnedTool(known.refused))

    def _accept_first(self, name: str, tool: ToolDefinition) -> str | None:
        if len(self._tools) >= MAX_PINNED_TOOLS:
            return f"{self._path} has {MAX_PINNED_TOOLS} tools, and takes no more."
        self._write(name, PinnedTool(get_pinned_parts(tool)))
        return None

    def _read(self) -> None:
        try:
            found = self._path.stat()
            version = (found.st_mtime_ns, found.st_size, found.st_ino)
            if version != self._version:
                self._tools = _read_tools(self._path.read_text(encoding="utf-8"))
                self._version = version
        except FileNotFoundError:
            self._tools, self._version = {}, None
        except (OSError, ValueError) as exc:
            message = f"The pins in {self._path} cannot be read: {exc}."
            raise EdictumConfigError(message, hint=NOT_A_FILE) from exc

    def _write(self, name: str, tool: PinnedTool) -> None:
        """Write the file anew beside the old one, and put it in its place."""
        tools = {**self._tools, name: tool}
        stated = {
            each: {"accepted": it.accepted, "refused": it.refused}
            for each, it in sorted(tools.items())
        }
        beside = self._path.with_name(f".{self._path.name}.{uuid4().hex}")
        try:
            beside.write_text(json.dumps({"tools": stated}, indent=1) + "\n", encoding="utf-8")
            os.replace(beside, self._path)
        except OSError as exc:
            beside.unlink(missing_ok=True)
            message = f"The pins in {self._path} cannot be written: {exc}."
            raise EdictumConfigError(message, hint="Name a file that can be written.") from exc
        self._tools = tools
        self._version = None


def _read_tools(text: str) -> dict[str, PinnedTool]:
    stated = json.loads(text) if text.strip() else {"tools": {}}
    tools = stated.get("tools") if isinstance(stated, dict) else None
    if not isinstance(tools, dict):
        raise ValueError("it has no tools")
    return {
        name: PinnedTool(_read_part(it, "accepted"), _read_part(it, "refused"))
        for name, it in tools.items()
    }


def _read_part(tool: Any, key: str) -> ToolDefinition | None:
    part = tool.get(key) if isinstance(tool, dict) else ""
    if part is not None and not isinstance(part, dict):
        raise ValueError(f"what was {key} of a tool is not an object")
    return part
