"""``edictum mcp-pins FILE [--accept [TOOL ...]]``: tools whose descriptions wait to be accepted."""

from __future__ import annotations

import argparse
from pathlib import Path

from edictum.adapters._mcp_pins import (
    PinFile,
    PinnedTool,
    describe_definition,
    digest_tool,
    reveal_hidden,
)
from edictum.errors import EdictumConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the file of mcp-proxy --pins")
    what = "accept what was refused of these tools; without a name, of all"
    parser.add_argument("--accept", nargs="*", metavar="TOOL", help=what)
    pins = "print the pin of each accepted tool, as a bundle takes it"
    parser.add_argument("--print", action="store_true", dest="prints", help=pins)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    """Show, accept or print descriptions; return 1 if something is still refused."""
    if rest:
        hint = "Put the names of tools after --accept."
        raise EdictumConfigError(f"Unexpected argument {rest[0]!r} after --.", hint=hint)
    if not Path(options.file).exists():
        hint = "mcp-proxy --pins makes it, when a client lists the tools."
        raise EdictumConfigError(f"The file {options.file} does not exist.", hint=hint)
    pins = PinFile(options.file)
    if options.accept is not None:
        for name in options.accept or _find_refusals(pins):
            pins.accept(name)
            print(f"accepted: {reveal_hidden(name)}")
    if options.prints:
        _print_pins(pins)
    refused = _find_refusals(pins)
    for name, tool in refused.items():
        _show(name, tool)
    return 1 if refused else 0


def _find_refusals(pins: PinFile) -> dict[str, PinnedTool]:
    return {name: tool for name, tool in pins.list_tools().items() if tool.refused is not None}


def _show(name: str, tool: PinnedTool) -> None:
    """Print what was accepted of a tool, and what is refused."""
    assert tool.refused is not None
    before = "nothing" if tool.accepted is None else describe_definition(tool.accepted)
    print(f"refused: {reveal_hidden(name)}")
    print(f"  accepted: {before}")
    print(f"  now:      {describe_definition(tool.refused)}")


def _print_pins(pins: PinFile) -> None:
    print("tools:")
    for name, tool in pins.list_tools().items():
        if tool.accepted is not None:
            print(f'  "{reveal_hidden(name)}": {{pin: "{digest_tool(tool.accepted)}"}}')
