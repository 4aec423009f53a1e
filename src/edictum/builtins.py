"""Ready-made Python contracts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from edictum.core.call import ToolCall
from edictum.core.contract import Contract, Kind, Verdict

SENSITIVE_PATHS = (
    *("/.ssh/", "/var/run/secrets/", "/.env", "/.aws/credentials"),
    *("/.git-credentials", "/id_rsa", "/id_ed25519"),
)
SENSITIVE_COMMANDS = ("printenv", "env")
_COMMAND_BREAK = re.compile(r"[;&|\n`()]|\$\(")
_TOKEN_EDGE = re.compile(r"[\s\"'=<>:,;|&()`]+")


def deny_sensitive_reads(
    sensitive_paths: Iterable[str] | None = None, sensitive_commands: Iterable[str] | None = None
) -> Contract:
    """Return a precondition, for all tools, against naming credential files in any argument and
    against printing the environment.
    """
    paths = tuple(sensitive_paths or SENSITIVE_PATHS)
    commands = tuple(sensitive_commands or SENSITIVE_COMMANDS)

    def check(call: ToolCall) -> Verdict:
        for text in _texts(call.effective_args):
            if path := _sensitive_path(text, paths):
                denied = f"Access to sensitive path denied: {path}."
                return Verdict.fail(f"{denied} This file may contain secrets or credentials.")
        command = call.bash_command
        if command is not None and (name := _sensitive_command(command, commands)):
            return Verdict.fail(
                f"Sensitive command denied: {name}. It prints secrets of the environment."
            )
        return Verdict.pass_()

    return Contract(id="deny_sensitive_reads", kind=Kind.PRE, check=check)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _texts(item)


def _sensitive_path(text: str, fragments: tuple[str, ...]) -> str | None:
    """Return the token of the text that names a sensitive path; ``.env`` counts as ``/.env``."""
    for token in _TOKEN_EDGE.split(text):
        if any(fragment in f"/{token.lstrip('/')}" for fragment in fragments):
            return token
    return None


def _sensitive_command(command: str, names: tuple[str, ...]) -> str | None:
    """Return the first sensitive program of a command line, even when given by its path."""
    for part in _COMMAND_BREAK.split(command):
        words = part.split()
        program = words[0].rsplit("/", 1)[-1].strip("\"'") if words else ""
        if program in names and not (program == "env" and len(words) > 1 and "=" in words[1]):
            return program
    return None
