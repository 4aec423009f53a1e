"""The catalog of an MCP server's tools, from the lists that pass on their way to clients."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from edictum._logs import MCP_TOOLS, log
from edictum.adapters._mcp_pins import (
    PinFile,
    ToolDefinition,
    describe_definition,
    digest_tool,
    has_hidden,
    reveal_hidden,
)
from edictum.core._records import record
from edictum.core.redaction import shorten
from edictum.errors import EdictumError
from edictum.guard import Edictum
from edictum.harness._schemas import compile_schema

MAX_LISTED_TOOLS, MAX_PAGES = 10_000, 1_000
LIST_TIMEOUT_S = 30.0
MAX_PROBLEM = 500
Message = dict[str, Any]


@record
class ListedTool:
    """A tool as a server described it last."""

    definition: ToolDefinition
    digest: str

    def get_schema(self, key: str) -> Any:
        found = self.definition.get(key)
        return found if isinstance(found, dict) else None


class ServerTools:
    """Knows the tools that a server listed: which a client may see, and what goes in and out."""

    def __init__(self, guard: Edictum, pins: PinFile | None = None) -> None:
        self._guard, self._pins = guard, pins
        self._tools: dict[str, ListedTool] = {}
        self._told: set[tuple[str, str]] = set()  # names and digests that were logged
        self._is_complete, self._listing = False, asyncio.Lock()
        self._failures = 0  # how often the server did not list its tools when we asked

    # --- Lists ------------------------------------------------------------------------------------

    def filter_list(self, result: Message) -> Message:
        """Remember the tools of a list, and return it with those that a call may be allowed of."""
        tools = result.get("tools")
        if not isinstance(tools, list):
            return result
        shown = [tool for tool in tools if self._take(tool)]
        if "nextCursor" not in result:
            self._is_complete = True
        return result if len(shown) == len(tools) else {**result, "tools": shown}

    async def complete(self, name: str, request: Message, forward: Any) -> None:
        """List the tools of the server, if this one has rules or a pin and no client has yet.

        Without a list, a call that leaves arguments out would not be judged with their defaults.
        """
        if self._is_complete or name in self._tools or not self._is_wanted(name):
            return
        before = self._failures
        async with self._listing:
            if self._is_complete or self._failures > before:  # another call has asked meanwhile
                return
            try:
                async with asyncio.timeout(LIST_TIMEOUT_S):
                    await self._list_pages(request, forward)
            except Exception as exc:
                self._failures += 1
                log(
                    MCP_TOOLS, "the tools of the server could not be listed: %s", type(exc).__name__
                )

    async def _list_pages(self, request: Message, forward: Any) -> None:
        params = request.get("params")
        meta = params.get("_meta") if isinstance(params, dict) else None
        asked: Message = {} if meta is None else {"_meta": meta}
        for _ in range(MAX_PAGES):
            message = {"jsonrpc": "2.0", "id": f"edictum-{uuid4()}", "method": "tools/list"}
            answer = await forward({**message, "params": asked})
            result = answer.get("result")
            if not isinstance(result, dict):
                break
            self.filter_list(result)
            if (cursor := result.get("nextCursor")) is None:
                break
            asked = {**asked, "cursor": cursor}
        self._is_complete = True  # even if the server has none: it need not be asked again

    def _is_wanted(self, name: str) -> bool:
        """Return whether a tool must be known; without a pin, a server that failed is let be."""
        if self._has_pin(name):
            return True
        try:
            plan = self._guard.policy.plan(name)
        except EdictumError:  # no tool can have this name
            return False
        return self._failures == 0 and bool(plan.before or plan.session or plan.rules)

    def _has_pin(self, name: str) -> bool:
        return self._pins is not None or self._guard.policy.entry(name).pin is not None

    # --- One tool ---------------------------------------------------------------------------------

    def find_problem(self, name: str) -> str | None:
        """Return why a call of a tool is refused whatever its arguments are, if so."""
        if (known := self._tools.get(name)) is not None:
            return self._check_pins(known.definition, known.digest)
        if not self._has_pin(name):
            return None
        return f"The server does not list the tool {reveal_hidden(name)!r}, so it has no pin."

    def find_odd_case(self, name: str, args: Message) -> str | None:
        """Return why a server may find other arguments in a call than contracts do, if so.

        Some servers take names that differ only in case for the same, and the last one counts.
        """
        properties = (self.get_parameters(name) or {}).get("properties")
        declared = properties if isinstance(properties, dict) else {}
        folded = {key.casefold(): key for key in declared}
        for key in args:
            other = folded.setdefault(key.casefold(), key)
            if other != key and key not in declared:
                shown = " and ".join(repr(reveal_hidden(it)) for it in (key, other))
                return f"Names of arguments must not differ only in case: {shown}."
        return None

    def knows(self, name: str) -> bool:
        return name in self._tools

    def get_parameters(self, name: str) -> Any:
        """Return the schema of a tool's arguments; None if it is not known."""
        known = self._tools.get(name)
        return None if known is None else known.get_schema("inputSchema")

    def fits(self, name: str, structure: Any) -> bool:
        """Return whether a structure is as the tool declared: clients refuse others."""
        known = self._tools.get(name)
        schema = None if known is None else known.get_schema("outputSchema")
        if schema is None:
            return True
        try:
            return structure is not None and bool(compile_schema(schema).is_valid(structure))
        except Exception as exc:
            why = reveal_hidden(shorten(str(exc), MAX_PROBLEM))
            log(MCP_TOOLS, "the output schema of %r cannot be used: %s", reveal_hidden(name), why)
            return False

    def _take(self, tool: Any) -> bool:
        """Remember a tool of a list; return whether a client may see it."""
        if not isinstance(tool, dict) or not isinstance(name := tool.get("name"), str):
            return False
        try:
            digest = digest_tool(tool)
            is_allowed = self._guard._can_allow(name)
        except (EdictumError, ValueError, RecursionError):  # no call of it could be made
            return False
        if name in self._tools or len(self._tools) < MAX_LISTED_TOOLS:
            self._tools[name] = ListedTool(tool, digest)
        problem = self._check_pins(tool, digest)
        self._tell(name, tool, digest, problem)
        return is_allowed and problem is None

    def _check_pins(self, tool: ToolDefinition, digest: str) -> str | None:
        pin = self._guard.policy.entry(tool["name"]).pin
        if pin is not None:
            shown = reveal_hidden(tool["name"])
            problem = f"The tool {shown!r} has the pin {pin} in the contracts, and now is {digest}."
            return None if pin == digest else problem
        try:
            return None if self._pins is None else self._pins.find_problem(tool)
        except EdictumError as exc:  # a client reads the problem: not what is wrong with the file
            log(MCP_TOOLS, "%s", exc)
            return f"The pin of the tool {reveal_hidden(tool['name'])!r} cannot be checked."

    def _tell(self, name: str, tool: ToolDefinition, digest: str, problem: str | None) -> None:
        """Log once what is wrong with a tool, with the characters in it that are not seen."""
        if (name, digest) in self._told or len(self._told) >= MAX_LISTED_TOOLS:
            return
        if problem is None and has_hidden(tool) and self._pins is None:
            problem = f"The tool {reveal_hidden(name)!r} has hidden characters."
        if problem is not None:
            self._told.add((name, digest))
            log(MCP_TOOLS, "%s It is now: %s", problem, describe_definition(tool))
