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
    """Return a precondition for all tools: no argument may name a credential file, and no command
    may print the environment.
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
    """Return the first sensitive command of a command line: its program, even when given by its
    path, and the words that follow, without options.
    """
    for part in _COMMAND_BREAK.split(command):
        words = [word.strip("\"'") for word in part.split()]
        words[:1] = [word.rsplit("/", 1)[-1] for word in words[:1]]
        if words[:1] == ["env"] and "=" in "".join(words[1:2]):
            continue  # it runs another program
        plain = [word for word in words if not word.startswith("-")]
        for name in names:
            wanted = name.split()
            if wanted and wanted in (words[: len(wanted)], plain[: len(wanted)]):
                return name
    return None
