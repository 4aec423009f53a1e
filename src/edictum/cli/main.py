"""Find the command of ``edictum`` and run it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from edictum._version import __version__
from edictum.errors import EdictumError

# Command: module and summary. A module has add_arguments(parser) and run(options, rest) -> code.
COMMANDS = {
    "audit": (
        "edictum.cli.audit",
        "Ask an audit log what happened, and write it for other programs.",
    ),
    "approvals": (
        "edictum.cli.approvals",
        "See what agents ask people for, and answer it.",
    ),
    "mcp-proxy": (
        "edictum.cli.mcp_proxy",
        "Govern the tool calls of an MCP server, by standing in front of it.",
    ),
    "mcp-pins": (
        "edictum.cli.mcp_pins",
        "Show the tools whose descriptions mcp-proxy has refused, and accept them.",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, by default this process's; return its exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    split = given.index("--") if "--" in given else len(given)
    mine, rest = given[:split], given[split + 1 :]
    chosen = next((word for word in mine if word in COMMANDS), None)
    options = _parser(chosen).parse_args(mine)
    try:
        code: int = import_module(COMMANDS[options.command][0]).run(options, rest)
    except (EdictumError, OSError) as exc:
        print(f"edictum {options.command}: {_describe(exc)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def _describe(error: EdictumError | OSError) -> str:
    """Return what is wrong; the text of an error about a file begins with a number."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename} cannot be used: {error.strerror}. Check the path and its rights."
    return str(error)


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    """Return the parser, with the options of the chosen command alone: others are not imported."""
    parser = argparse.ArgumentParser(
        prog="edictum", description="Govern what AI agents do with their tools."
    )
    parser.add_argument("--version", action="version", version=f"edictum {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, (module, what) in COMMANDS.items():
        command = commands.add_parser(name, help=what, description=what)
        if name == chosen:
            import_module(module).add_arguments(command)
    return parser
