"""``edictum mcp-proxy --contracts FILE ... -- <command or url>``: a governing proxy in front of any MCP server.

A client starts it in the place of the server, over stdio; with ``--http`` it listens on a port, for a server that has a URL.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from typing import Any

from edictum.adapters.mcp import MCPAdapter
from edictum.audit import FileAuditSink
from edictum.cli._mcp_http import serve_port, serve_url
from edictum.cli._mcp_stdio import serve_process
from edictum.errors import EdictumConfigError
from edictum.guard import Edictum


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "edictum mcp-proxy --contracts FILE [FILE ...] [options] -- <command or url>"
    parser.add_argument("--contracts", nargs="+", required=True, metavar="FILE", help="contract bundles, later ones above earlier ones")
    parser.add_argument("--http", metavar="HOST:PORT", help="listen here instead of on stdin (for a server with a url)")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="sent to the url with every request")
    parser.add_argument("--mode", choices=["enforce", "observe"], help="in place of the mode that the contracts state")
    parser.add_argument("--audit", metavar="FILE", help="where events are written, one JSON object per line")
    parser.add_argument("--session", metavar="ID", help="the session in which calls are counted")


def run(options: argparse.Namespace, rest: list[str]) -> int:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="edictum mcp-proxy: %(message)s")
    if not rest:
        raise EdictumConfigError("No server was given.", hint="Put its command or its url after --.")
    url = rest[0] if rest[0].startswith(("http://", "https://")) else None
    if options.http and url is None:
        raise EdictumConfigError("--http needs a server with a url.", hint="A server that is started with a command speaks over stdio.")
    adapter = MCPAdapter(_guard(options), session_id=options.session)
    adapter.self_test()
    headers = dict(_header(text) for text in options.header)
    if url is None:
        return asyncio.run(serve_process(adapter, rest))
    if options.http is None:
        return asyncio.run(serve_url(adapter, url, headers))
    host, _, port = options.http.rpartition(":")
    return asyncio.run(serve_port(adapter, url, headers, host or "127.0.0.1", int(port)))


def _guard(options: argparse.Namespace) -> Edictum:
    given: dict[str, Any] = {}
    if options.audit is not None:
        given["audit_sink"] = FileAuditSink(options.audit)
    if options.mode is not None:
        given["mode"] = options.mode
    guard: Edictum = Edictum.from_yaml(*options.contracts, **given)
    return guard


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise EdictumConfigError(f"--header {text!r} has no colon.", hint="Write it as 'Name: value'.")
    return name.strip(), value.strip()
