"""ToolRegistry, BashClassifier and create_envelope: the older library's way to describe tools and
to make calls by hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from edictum.core.call import SideEffect, ToolCall
from edictum.core.policy import Policy, ToolEntry
from edictum.runtime.clock import SYSTEM


class BashClassifier:
    """Whether a command line only reads. Anything that is not plainly a reading command is
    irreversible.
    """

    READ_ALLOWLIST = (
        "ls",
        "cat",
        "head",
        "tail",
        "wc",
        "find",
        "grep",
        "rg",
        "git status",
        "git log",
        "git diff",
        "git show",
        "git branch",
        "git remote",
        "git tag",
        "echo",
        "pwd",
        "whoami",
        "date",
        "which",
        "file",
        "stat",
        "du",
        "df",
        "tree",
    )
    SHELL_OPERATORS = ("\n", "\r", ">", "<", "|", ";", "&", "$", "`", "#{", "\\")
    # Options that make a reading command write, run something or open a pager with a shell.
    WRITING_OPTIONS: Mapping[str, str] = {
        "find": r"-(delete|exec|execdir|ok|okdir|fprint|fprint0|fprintf|fls)\b",
        "git branch": r"\S",
        "git remote": r"(?<!\S)(?!-v\b|show\b)\S",
        "git tag": r"(?<!\S)(?!-l\b|--list\b)\S",
        "git diff": r"--(output|ext-diff)\b",
        "git log": r"--output\b",
        "git show": r"--output\b",
        "date": r"(-s|--set)\b|(?<!\S)\d",
        "rg": r"--pre\b",
        "tree": r"-o\b",
        "file": r"-C\b|--compile\b",
    }

    @classmethod
    def classify(cls, command: object) -> SideEffect:
        if not isinstance(command, str):
            return SideEffect.IRREVERSIBLE
        stripped = command.strip()
        if not stripped:
            return SideEffect.READ
        if any(operator in stripped for operator in cls.SHELL_OPERATORS):
            return SideEffect.IRREVERSIBLE
        for allowed in cls.READ_ALLOWLIST:
            if stripped == allowed or stripped.startswith(f"{allowed} "):
                rest = stripped[len(allowed) :]
                risky = (
                    re.search(cls.WRITING_OPTIONS[allowed], rest)
                    if allowed in cls.WRITING_OPTIONS
                    else None
                )
                return SideEffect.IRREVERSIBLE if risky else SideEffect.READ
        return SideEffect.IRREVERSIBLE


class ToolRegistry:
    """What is known about tools, by name or glob. A guard takes the same as ``tools={...}``."""

    def __init__(self) -> None:
        self._entries: dict[str, ToolEntry] = {}
        self._policy = Policy()

    def register(
        self, name: str, side_effect: SideEffect | str = SideEffect.WRITE, idempotent: bool = False
    ) -> None:
        self._entries[name] = ToolEntry(side_effect=SideEffect(side_effect), idempotent=idempotent)
        self._policy = Policy(tools=self._entries)

    def classify(
        self, tool_name: str, args: Mapping[str, Any] | None = None
    ) -> tuple[SideEffect, bool]:
        entry = self._policy.entry(tool_name)
        return entry.side_effect, entry.idempotent


def create_envelope(
    tool_name: str,
    tool_input: Mapping[str, Any],
    *,
    run_id: str = "",
    call_index: int = 0,
    registry: ToolRegistry | None = None,
    **fields: Any,
) -> ToolCall:
    """A ToolCall as a guard would make it, for testing contracts: with an id, a time, and the
    registry's description of the tool.
    """
    if registry is not None:
        fields["side_effect"], fields["idempotent"] = registry.classify(tool_name, tool_input)
    if (timestamp := fields.pop("timestamp", None)) is not None:
        fields["started_at"] = timestamp.timestamp()
    defaults: dict[str, Any] = {"call_id": SYSTEM.new_id(), "started_at": SYSTEM.now()}
    call = ToolCall(
        tool_name=tool_name,
        args=tool_input,
        run_id=run_id,
        call_index=call_index,
        **(defaults | fields),
    )
    if call.bash_command is None:
        return call
    return ToolCall(
        tool_name=tool_name,
        args=tool_input,
        run_id=run_id,
        call_index=call_index,
        **(defaults | fields | {"side_effect": BashClassifier.classify(call.bash_command)}),
    )
