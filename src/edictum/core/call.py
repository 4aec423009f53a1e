"""ToolCall, Principal, SideEffect: who asks for what. Frozen; the arguments are snapshotted
once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from edictum.core._records import frozen_maker
from edictum.core.freeze import EMPTY, FrozenDict, freeze_args, freeze_flat, snapshot_dict
from edictum.core.parameters import fill_args, fill_argument
from edictum.errors import EdictumInputError

SHELL_TOOLS = frozenset({"bash", "shell", "sh", "exec", "run_command", "run_shell_command"})
PATH_KEYS = ("file_path", "filePath", "path", "notebook_path")
MAX_NAME = 256
_BAD_NAME = re.compile(r"[\x00-\x1f\x7f-\x9f/\\]")
_BAD_SESSION = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class SideEffect(StrEnum):
    """What running a tool does to the world; the default is the worst."""

    PURE = "pure"
    READ = "read"
    WRITE = "write"
    IRREVERSIBLE = "irreversible"


CONSEQUENTIAL = frozenset({SideEffect.WRITE, SideEffect.IRREVERSIBLE})


@dataclass(frozen=True, slots=True)
class Principal:
    """On whose behalf the agent acts."""

    user_id: str | None = None
    service_id: str | None = None
    org_id: str | None = None
    role: str | None = None
    ticket_ref: str | None = None
    claims: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        object.__setattr__(self, "claims", freeze_args(self.claims or EMPTY))

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that an agent asks for. Contracts, hooks and callbacks receive this.

    ``args`` are what was sent. ``parameters`` tell the defaults of the rest: the tool's function, a
    JSON Schema, a pydantic model; they are no part of what the call is, and are not recorded.
    """

    tool_name: str
    args: Mapping[str, Any] = EMPTY
    call_id: str = ""
    run_id: str = ""
    call_index: int = 0
    parent_call_id: str | None = None
    side_effect: SideEffect = SideEffect.IRREVERSIBLE
    idempotent: bool = False
    environment: str = "production"
    started_at: float = 0.0
    caller: str = ""
    tool_use_id: str | None = None
    principal: Principal | None = None
    metadata: Mapping[str, Any] = EMPTY
    parameters: Any = field(default=None, compare=False, repr=False)
    # results of custom selectors for this call: each is called once
    _lookups: dict[int, Any] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_tool_name(self.tool_name)
        object.__setattr__(self, "args", snapshot(self.tool_name, self.args))
        object.__setattr__(self, "metadata", freeze_args(self.metadata or EMPTY))

    @property
    def session_id(self) -> str:
        return self.run_id

    @property
    def timestamp(self) -> datetime:
        return datetime.fromtimestamp(self.started_at, UTC)

    @property
    def effective_args(self) -> Mapping[str, Any]:
        """The arguments as the tool will see them: those sent, and the defaults of the others.

        Only defaults that are plain data are known; see "Arguments that are left out" in the
        language reference. Made anew at each access.
        """
        return fill_args(self.args, self.parameters)

    def _argument(self, name: str) -> Any:
        """Return an argument that was sent, or its default; None without either."""
        if name in self.args:
            return self.args[name]
        return fill_argument(self.args, (name,), self.parameters).get(name)

    @property
    def bash_command(self) -> str | None:
        """The command line of a shell tool, else None."""
        if self.tool_name.lower() not in SHELL_TOOLS:
            return None
        command = "" if (found := self._argument("command")) is None else found
        return command if isinstance(command, str) else str(command)

    @property
    def file_path(self) -> str | None:
        """The file a call names under one of the usual keys, else None."""
        for key in PATH_KEYS:
            value = self._argument(key)
            if value is not None:
                return value if isinstance(value, str) else str(value)
        return None


new_call = frozen_maker(ToolCall)


def with_principal(call: ToolCall, principal: Principal | None) -> ToolCall:
    """Return the call on behalf of a principal. Its arguments are not copied a second time."""
    fields = {name: getattr(call, name) for name in ToolCall.__slots__}
    return new_call(**{**fields, "principal": principal, "_lookups": None})


def lookups_of(call: ToolCall) -> dict[int, Any]:
    """Return the results of custom selectors for a call, by the id of their function."""
    if call._lookups is None:
        object.__setattr__(call, "_lookups", {})
    assert call._lookups is not None
    return call._lookups


def check_tool_name(name: object) -> None:
    """Refuse names that could be mistaken for another tool, a path or a second line of a log."""
    if not isinstance(name, str) or not name:
        raise EdictumInputError(
            f"Invalid tool_name: {name!r} is not a non-empty string.",
            hint="Pass the tool's name as text.",
        )
    if len(name) > MAX_NAME:
        raise EdictumInputError(
            f"Invalid tool_name: {len(name)} characters long.",
            hint=f"Use at most {MAX_NAME} characters.",
        )
    if found := _BAD_NAME.search(name):
        raise EdictumInputError(
            f"Invalid tool_name: {name!r} contains {found.group()!r} at position {found.start()}.",
            hint="Use a name without slashes, backslashes and control characters.",
        )


def check_session_id(session_id: object) -> None:
    if (
        not isinstance(session_id, str)
        or not session_id
        or len(session_id) > MAX_NAME
        or _BAD_SESSION.search(session_id)
    ):
        raise EdictumInputError(
            f"Invalid session_id: {session_id!r:.80}.",
            hint=f"Use 1 to {MAX_NAME} characters without control characters.",
        )


def snapshot(tool_name: str, args: object) -> FrozenDict:
    """Return a frozen copy of a call's arguments; raises for anything but a mapping of names."""
    if type(args) is not dict and not isinstance(args, Mapping):
        raise EdictumInputError(
            f"Invalid arguments for {tool_name!r}: expected a mapping of names to values, got"
            f" {type(args).__name__}.",
            hint="Pass a dict, {} when the tool takes none.",
        )
    flat = freeze_flat(args)
    return _deep_snapshot(tool_name, args) if flat is None else flat


def _deep_snapshot(tool_name: str, args: Mapping[Any, Any]) -> FrozenDict:
    for key in args:
        if type(key) is not str:
            raise EdictumInputError(
                f"Invalid arguments for {tool_name!r}: the key {key!r:.80} is {type(key).__name__},"
                " not text.",
                hint="Argument names are strings.",
            )
    try:
        return snapshot_dict(args)
    except (ValueError, RecursionError) as exc:
        raise EdictumInputError(
            f"Invalid arguments for {tool_name!r}: {exc}.", hint="Pass plain, finite data."
        ) from exc
