"""Describe tools and make calls by hand, as the published library did."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from edictum.core.call import SideEffect, ToolCall
from edictum.core.policy import Policy
from edictum.core.tool_entry import ToolEntry
from edictum.runtime.clock import SYSTEM

ToolEnvelope = ToolCall
_READING = (
    "ls,cat,head,tail,wc,find,grep,rg,git status,git log,git diff,git show,git branch,git remote,"
    "git tag,echo,pwd,whoami,date,which,file,stat,du,df,tree"
)
_PATTERN = r"""(?:\w[\w./*?@:+~^-]*|'[\w*?][^'\s]*'|"[\w*?][^"\s]*")"""


def _unless_listing(flags: str, listing: str) -> str:
    """Return a regular expression that matches the words of a git command unless they only list:
    nothing but ``flags``, or with an option of ``listing`` also patterns.
    """
    only_flags = rf"(?:\s+(?:{flags}))*\s*\Z"
    patterns = rf"(?=.*\s(?:{listing})(?:[\s=]|\Z))(?:\s+(?:{flags}|{listing}|{_PATTERN}))*\s*\Z"
    return rf"\A(?!{only_flags})(?!{patterns})"


_SHOWING = r"--(?:sort|format|color|column)=-?\w[\w:%()-]*|--color|--no-color|--column|--no-column"
_SHOWN_REMOTES = (
    rf"(?:\s+(?:-v|--verbose))*(?:\s+(?:show|get-url)(?:\s+(?:-n|--all|--push|{_PATTERN}))*)?"
)
_FILTERS = "--list|--contains|--no-contains|--merged|--no-merged|--points-at"


class BashClassifier:
    """Classifies command lines: READ for what is plainly a reading command, else IRREVERSIBLE."""

    READ_ALLOWLIST = tuple(_READING.split(","))
    SHELL_OPERATORS = ("\n", "\r", ">", "<", "|", ";", "&", "$", "`", "#{", "\\")
    # Options that make a reading command write, run something or open a pager with a shell.
    WRITING_OPTIONS: Mapping[str, str] = {
        "find": r"-(delete|exec|execdir|ok|okdir|fprint|fprint0|fprintf|fls)\b",
        "git branch": _unless_listing(
            rf"-[arv]+|--all|--remotes|--verbose|--show-current|{_SHOWING}", _FILTERS
        ),
        "git remote": rf"\A(?!{_SHOWN_REMOTES}\s*\Z)",
        "git tag": _unless_listing(rf"-n\d*|{_SHOWING}", rf"-l|{_FILTERS}"),
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
        """Return the side effect of a command line; anything but text is IRREVERSIBLE."""
        if not isinstance(command, str):
            return SideEffect.IRREVERSIBLE
        line = command.strip()
        if not line:
            return SideEffect.READ
        if any(operator in line for operator in cls.SHELL_OPERATORS):
            return SideEffect.IRREVERSIBLE
        for allowed in cls.READ_ALLOWLIST:
            if line == allowed or line.startswith(f"{allowed} "):
                writing = cls.WRITING_OPTIONS.get(allowed)
                writes = writing is not None and re.search(writing, line[len(allowed) :])
                return SideEffect.IRREVERSIBLE if writes else SideEffect.READ
        return SideEffect.IRREVERSIBLE


class ToolCatalog:
    """Side effects of tools by name or glob; a guard takes the same as ``tools={...}``.

    The name is the older library's. The registry of a turn, with the tools themselves, is
    ``edictum.harness.ToolRegistry``.
    """

    def __init__(self) -> None:
        self._entries: dict[str, ToolEntry] = {}
        self._policy = Policy()

    def register(
        self, name: str, side_effect: SideEffect | str = SideEffect.WRITE, idempotent: bool = False
    ) -> None:
        """Describe one tool; a second description replaces the first."""
        self._entries[name] = ToolEntry(side_effect=SideEffect(side_effect), idempotent=idempotent)
        self._policy = Policy(tools=self._entries)

    def classify(
        self, tool_name: str, args: Mapping[str, Any] | None = None
    ) -> tuple[SideEffect, bool]:
        """Return the tool's side effect, and whether it is idempotent."""
        entry = self._policy.entry(tool_name)
        return entry.side_effect, entry.idempotent


# Users know the class as edictum.ToolRegistry; in this library that name is the harness's.
ToolCatalog.__name__ = ToolCatalog.__qualname__ = "ToolRegistry"
ToolCatalog.__module__ = "edictum.registry"


def create_envelope(
    tool_name: str,
    tool_input: Mapping[str, Any],
    *,
    run_id: str = "",
    call_index: int = 0,
    registry: ToolCatalog | None = None,
    **fields: Any,
) -> ToolCall:
    """Return a ToolCall as a guard would make it, for tests of contracts."""
    values: dict[str, Any] = {"call_id": SYSTEM.new_id(), "started_at": SYSTEM.now(), **fields}
    values |= {"tool_name": tool_name, "args": tool_input, "run_id": run_id}
    values["call_index"] = call_index
    if registry is not None:
        values["side_effect"], values["idempotent"] = registry.classify(tool_name, tool_input)
    if (timestamp := values.pop("timestamp", None)) is not None:
        values["started_at"] = timestamp.timestamp()
    call = ToolCall(**values)
    if call.bash_command is None:
        return call
    return ToolCall(**values | {"side_effect": BashClassifier.classify(call.bash_command)})
