"""``edictum mcp-proxy --contracts FILE ... -- <command or url>``: a governing proxy for MCP.

A client starts it in place of the server, over stdio; with ``--http`` it listens on a port, for a
server that has a URL. Its options are checked before it serves a client.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from edictum._checks import read_approval_backend
from edictum.adapters._large_results import MAX_RESULT_CHARS
from edictum.adapters._mcp_approvals import ClientApprovals
from edictum.adapters._mcp_pins import PinFile
from edictum.adapters.mcp import MCPAdapter
from edictum.approval import ApprovalBackend
from edictum.audit import FileAuditSink
from edictum.cli._mcp_application import PortApplication, StreamTimes, serve_application
from edictum.cli._mcp_gateway import Gateway
from edictum.cli._mcp_hosting import HostedServers
from edictum.cli._mcp_http import serve_url
from edictum.cli._mcp_port import parse_address
from edictum.cli._mcp_stdio import run_until_signal, serve_process
from edictum.cli._mcp_streams import SILENCE_S
from edictum.cli._mcp_tokens import TokenVerifier, make_jwt_verifier
from edictum.core.call import Principal
from edictum.errors import EdictumConfigError
from edictum.guard import Edictum

MAX_KEEP_ALIVE_S = 3600
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "edictum mcp-proxy --contracts FILE [FILE ...] [options] -- <command or url>"
    parser.epilog = (
        "stdout belongs to the protocol: events of a bundle with 'observability: {stdout: true}'"
        " are written to stderr."
    )
    add = parser.add_argument
    bundles = "contract bundles, later ones above earlier ones"
    add("--contracts", nargs="+", required=True, metavar="FILE", help=bundles)
    add("--http", metavar="[HOST:]PORT", help="listen here, not on stdin")
    names = "another host name for which --http answers; without it, a port of this machine alone"
    names += " answers for the machine's own names; '*' is any"
    add("--allow-host", action="append", default=[], metavar="NAME", help=names)
    silence = f"seconds of silence after which --http sends a comment; {SILENCE_S:.0f} by default"
    add("--keep-alive", type=float, default=SILENCE_S, metavar="SECONDS", help=silence)
    sent = "sent to the url with every request"
    add("--header", action="append", default=[], metavar="'NAME: VALUE'", help=sent)
    mode = "in place of the mode that the contracts state"
    add("--mode", choices=["enforce", "observe"], help=mode)
    add("--audit", metavar="FILE", help="where events are written, one JSON object per line")
    pins = "refuse tools whose description changes; the descriptions are kept in this file"
    add("--pins", metavar="FILE", help=pins)
    ask = "who is asked for approvals: 'client' (by elicitation), or a backend as module:attribute"
    add("--approvals", action="append", default=[], metavar="WHO", help=ask)
    add_caller_arguments(add)
    most = "how many characters of a result a client is shown; 0 shows all of it"
    default = MAX_RESULT_CHARS
    add("--max-result-chars", type=int, default=default, metavar="N", help=most)


def add_caller_arguments(add: Callable[..., Any]) -> None:
    """Add the options that identify the caller."""
    add("--environment", metavar="NAME", help="what contracts read as 'environment'")
    session = "the session in which the calls of all clients are counted"
    add("--session", metavar="ID", help=session)
    principal = "on whose behalf all calls are made: a user's id, or user_id=ada,role=oncall"
    add("--principal", metavar="WHO", help=principal)
    keys = "a JSON Web Key Set: with --http, clients need a token signed with one of its keys"
    add("--jwks", metavar="URL|FILE", help=keys)
    add("--token-issuer", metavar="URL", help="the issuer ('iss') of valid tokens")
    add("--token-audience", metavar="URL", help="the audience ('aud') of valid tokens")
    verify = "a function from a token to its claims, for tokens of another kind"
    add("--verify-token", metavar="MODULE:FUNCTION", help=verify)


def run(options: argparse.Namespace, rest: list[str]) -> int:
    out = sys.stdout.buffer
    form = "edictum mcp-proxy: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format=form)
    # what is printed, events included, must not stand between the messages of the protocol
    with redirect_stdout(sys.stderr):
        return _serve(options, rest, out)


def _serve(options: argparse.Namespace, rest: list[str], out: BinaryIO) -> int:
    url = _find_url(rest)
    _check(options, url, rest[0])
    port = parse_address(options.http) if options.http is not None else None
    headers = dict(_parse_header(text) for text in options.header)
    verifier = _make_verifier(options)
    adapter = _make_adapter(options)
    adapter.self_test()
    if port is not None:
        times = StreamTimes(silence_s=options.keep_alive)

        async def serve_port() -> int:
            application: PortApplication
            if url is None:
                application = HostedServers(adapter, rest, times, verifier)
            else:
                application = Gateway(adapter, url, headers, times, verifier=verifier)
            return await serve_application(application, *port, options.allow_host)

        return asyncio.run(serve_port())
    if url is None:
        return run_until_signal(serve_process(adapter, rest, out))
    return run_until_signal(serve_url(adapter, url, headers, out))


def _make_adapter(options: argparse.Namespace) -> MCPAdapter:
    """Return the adapter. Over stdio there is one client, so one session."""
    guard, session_id = _make_guard(options), options.session
    if session_id is None and options.http is None:
        session_id = guard.new_session_id()
    most = options.max_result_chars or None
    pins = None if options.pins is None else PinFile(options.pins)
    if pins is not None:
        pins.check_writable()
    return MCPAdapter(guard, session_id=session_id, max_result_chars=most, pins=pins)


def _make_verifier(options: argparse.Namespace) -> TokenVerifier | None:
    """Return a verifier of the clients' tokens; None if they need none."""
    if options.verify_token is not None:
        return TokenVerifier(import_attribute("--verify-token", options.verify_token))
    if options.jwks is not None:
        return make_jwt_verifier(options.jwks, options.token_issuer, options.token_audience)
    return None


def _check(options: argparse.Namespace, url: str | None, command: str) -> None:
    _check_command(options, url, command)
    if options.header and url is None:
        hint = "Give secrets to a command in its environment."
        raise EdictumConfigError("--header needs a server with a url.", hint=hint)
    if not 0 < options.keep_alive <= MAX_KEEP_ALIVE_S:
        hint = f"Give a number of seconds above 0, at most {MAX_KEEP_ALIVE_S}."
        raise EdictumConfigError(f"--keep-alive {options.keep_alive} is out of range.", hint=hint)
    if options.allow_host and options.http is None:
        hint = "Over stdio there is only the client that started the proxy."
        raise EdictumConfigError("--allow-host needs --http.", hint=hint)
    if options.session is not None and not options.session.strip():
        hint = "Leave it out for a session of its own at every start."
        raise EdictumConfigError(f"--session {options.session!r} is empty.", hint=hint)
    _check_tokens(options)


def _check_command(options: argparse.Namespace, url: str | None, command: str) -> None:
    if options.http is not None and url is None and shutil.which(command) is None:
        hint = "Give the command after --."
        raise EdictumConfigError(f"The server could not be started: no {command!r}.", hint=hint)


def _check_tokens(options: argparse.Namespace) -> None:
    """Raise for options about tokens that contradict each other."""
    about = (options.jwks, options.verify_token)
    if any(about) and options.http is None:
        hint = "Over stdio there is one client; name its user with --principal."
        raise EdictumConfigError("Tokens can be verified with --http only.", hint=hint)
    if all(about) or (any(about) and options.principal is not None):
        hint = "Give one of --jwks, --verify-token and --principal."
        raise EdictumConfigError(
            "--jwks, --verify-token and --principal cannot be combined.", hint=hint
        )
    stated = (options.jwks, options.token_issuer, options.token_audience)
    if any(stated) and not all(stated):
        hint = "A token for another service must not be valid here: give all three."
        message = "--jwks, --token-issuer and --token-audience belong together."
        raise EdictumConfigError(message, hint=hint)


def _find_url(rest: list[str]) -> str | None:
    """Return the URL of the server; None if it is a command."""
    if not rest:
        hint = "Put its command or its url after --."
        raise EdictumConfigError("No server was given.", hint=hint)
    if "://" not in rest[0]:
        return None
    hint = "Write it as https://example.com/mcp."
    if not rest[0].lower().startswith(("http://", "https://")):
        raise EdictumConfigError(f"{rest[0]!r} is not an http:// or https:// URL.", hint=hint)
    if len(rest) > 1:
        rule = "Put options before --, and nothing after a url."
        raise EdictumConfigError(
            f"Unexpected argument {rest[1]!r} after the server's URL.", hint=rule
        )
    try:
        parts = urlsplit(rest[0])
        is_valid = bool(parts.hostname) and parts.port != 0  # .port raises if it is not a number
    except ValueError:
        is_valid = False
    if not is_valid:
        raise EdictumConfigError(f"The url {rest[0]!r} has no valid host and port.", hint=hint)
    return rest[0]


def _make_guard(options: argparse.Namespace) -> Edictum:
    given: dict[str, Any] = {}
    if options.audit is not None:
        given["audit_sink"] = FileAuditSink(options.audit)
    for name in ("mode", "environment"):
        if getattr(options, name) is not None:
            given[name] = getattr(options, name)
    if options.principal is not None:
        given["principal"] = _parse_principal(options.principal)
    if options.approvals:
        given["approval_backend"] = _make_approvals(options.approvals)
    guard: Edictum = Edictum.from_yaml(*options.contracts, **given)
    for sink in getattr(guard.audit_sink, "sinks", ()):
        if isinstance(sink, FileAuditSink):
            sink.open()
    return guard


def _make_approvals(named: list[str]) -> ApprovalBackend | None:
    """Return the approval backend: 'client', another one, or both, where the other one is for
    requests that the client cannot answer.
    """
    others = [name for name in named if name != "client"]
    if len(others) > 1:
        hint = "Give 'client', one backend, or both."
        raise EdictumConfigError(f"--approvals names {len(others)} backends.", hint=hint)
    other = import_attribute("--approvals", others[0]) if others else None
    backend = read_approval_backend(other() if isinstance(other, type) else other)
    return ClientApprovals(backend) if "client" in named else backend


def import_attribute(option: str, place: str) -> Any:
    """Return the object named as module:attribute; modules of the current directory are found
    too.
    """
    module, colon, name = place.partition(":")
    if not (colon and module and name):
        hint = "Write it as package.module:name."
        raise EdictumConfigError(f"{option} {place!r} names no module and attribute.", hint=hint)
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(import_module(module), name)
    except Exception as exc:
        why = f"{type(exc).__name__}: {exc}"
        message = f"{option} {place!r} cannot be imported: {why}."
        raise EdictumConfigError(message, hint="Start the proxy where it can be imported.") from exc


def _parse_principal(text: str) -> Principal:
    """Return the principal for an id, or for pairs such as user_id=ada,role=oncall."""
    pairs = [
        part.partition("=") for part in (text if "=" in text else f"user_id={text}").split(",")
    ]
    fields: dict[str, Any] = {key.strip(): value.strip() for key, _, value in pairs}
    known = [name for name in Principal.__slots__ if name != "claims"]
    if not fields.keys() <= set(known) or not all(fields.values()) or len(fields) < len(pairs):
        hint = f"Write an id, or pairs such as user_id=ada,role=oncall, of: {', '.join(known)}."
        raise EdictumConfigError(f"--principal {text!r} is not a principal.", hint=hint)
    return Principal(**fields)


def _parse_header(text: str) -> tuple[str, str]:
    name, colon, value = (part.strip() for part in text.partition(":"))
    if not colon:
        hint = "Write it as 'Name: value'."
        raise EdictumConfigError(f"--header {text!r} has no colon.", hint=hint)
    if not HEADER_NAME.fullmatch(name):
        hint = "Write it as 'Name: value', the name without spaces."
        raise EdictumConfigError(f"--header {name!r} is not a valid header name.", hint=hint)
    if not (value.isascii() and (value.isprintable() or not value)):
        hint = "Write it in printable ASCII."
        raise EdictumConfigError(f"The value of --header {name!r} cannot be sent.", hint=hint)
    return name, value
