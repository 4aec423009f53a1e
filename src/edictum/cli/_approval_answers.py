"""``edictum approvals approve|deny|edit|revoke``: answers from a terminal."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from edictum.approval import ApprovalQueue, GrantTerms, QueuedApproval
from edictum.cli._approval_links import LinkedRequests
from edictum.cli._approval_options import Shown, add_approver, add_json, read_approver, to_json_line
from edictum.core.durations import parse_duration
from edictum.core.values import dumps
from edictum.errors import EdictumConfigError, EdictumInputError
from edictum.execution.portal import PORTAL

DEFAULT_EDITOR = "vi"


def add_arguments(name: str, parser: argparse.ArgumentParser) -> None:
    if name == "edit":
        parser.add_argument("id", metavar="ID", help="of a pending request; or its link")
        _add_changes(parser)
    else:
        whose = "of a request or a grant" if name == "revoke" else "of a pending request; or links"
        parser.add_argument("ids", nargs="+", metavar="ID", help=whose)
    if name == "approve":
        _add_grant(parser)
    reason = "why; the model is told" if name == "deny" else "why, for the record"
    parser.add_argument("--reason", metavar="TEXT", help=reason)
    add_approver(parser)
    add_json(parser)


def _add_changes(parser: argparse.ArgumentParser) -> None:
    how = parser.add_mutually_exclusive_group()
    one = "change one argument, to JSON or else to this text; may be given several times"
    how.add_argument("--set", action="append", metavar="NAME=VALUE", help=one)
    everything = "all arguments, as JSON; without --set and --args an editor is opened"
    how.add_argument("--args", metavar="JSON", help=everything)


def _add_grant(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("grants", "Let the yes count for further calls of the tool.")
    scope = "those of this session, or of this principal in any session"
    group.add_argument("--grant", choices=("session", "principal"), help=scope)
    when = "until when: ISO 8601, or a length of time from now such as 8h"
    group.add_argument("--until", metavar="TIME", help=when)
    fits = "an argument that may differ: * stands for any characters, or JSON such as"
    fits += ' {"at_most": 50}; may be given several times'
    group.add_argument("--match", action="append", metavar="NAME=PATTERN", help=fits)
    group.add_argument("--any-args", action="store_true", help="all arguments may differ")


def run(queue: Any, options: argparse.Namespace) -> int:
    """Give the answers; return 1 if one was not taken."""
    approver = "" if isinstance(queue, LinkedRequests) else read_approver(options)
    if options.subcommand == "edit":
        return _answer_each([options.id], options, lambda it: _edit(queue, options, it, approver))
    if options.subcommand == "revoke":
        return _answer_each(options.ids, options, lambda it: _revoke(queue, options, it, approver))
    approved = options.subcommand == "approve"
    said: dict[str, Any] = {"approver": approver, "reason": options.reason}
    if approved and (terms := _read_terms(options)) is not None:
        said["grant"] = terms
    answer = lambda it: PORTAL.run(queue.answer(it, approved, **said))  # noqa: E731 - one line
    return _answer_each(options.ids, options, answer)


def _answer_each(
    ids: Iterable[str], options: argparse.Namespace, answer: Callable[[str], Shown]
) -> int:
    """Answer one after the other, even if one cannot be answered; print what became of each."""
    code = 0
    for given in ids:
        try:
            row = answer(given)
        except EdictumInputError as exc:
            print(f"edictum approvals: {exc}", file=sys.stderr)
            code = 1
            continue
        print(to_json_line(row) if options.json else _tell(row))
    return code


def _tell(row: Shown) -> str:
    if isinstance(row, QueuedApproval):
        grant = f", grant {row.grant_id}" if row.grant_id else ""
        return f"{row.approval_id}  {row.status}{grant}"
    return f"{row.grant_id}  {row.status}"


def _revoke(queue: ApprovalQueue, options: argparse.Namespace, given: str, approver: str) -> Shown:
    if PORTAL.run(queue.get(given)) is not None:
        return PORTAL.run(queue.revoke(given, approver=approver, reason=options.reason))
    return PORTAL.run(queue.revoke_grant(given, approver=approver))


# --- Grants ---------------------------------------------------------------------------------------


def _read_terms(options: argparse.Namespace) -> GrantTerms | None:
    if options.grant is None:
        if options.until or options.match or options.any_args:
            hint = "Add --grant session or --grant principal."
            raise EdictumConfigError("--until, --match and --any-args are for grants.", hint=hint)
        return None
    return GrantTerms(
        scope=options.grant,
        args=_read_pairs("--match", options.match or ()),
        other_args="any" if options.any_args else "same",
        until=None if options.until is None else _read_until(options.until),
    )


def _read_until(text: str) -> datetime:
    seconds = parse_duration(text)
    if seconds is not None:
        return datetime.now().astimezone() + timedelta(seconds=seconds)
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError as exc:
        hint = "Write 8h, 30m, or 2026-12-01T18:00."
        raise EdictumConfigError(f"--until is {text!r:.80}.", hint=hint) from exc


def _read_pairs(option: str, pairs: Iterable[str]) -> dict[str, Any]:
    """Return names and values; a value is JSON if it can be read so, else text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise EdictumConfigError(f"{option} is {pair!r:.80}.", hint="Write NAME=VALUE.")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


# --- Changed arguments ----------------------------------------------------------------------------


def _edit(
    queue: ApprovalQueue, options: argparse.Namespace, given: str, approver: str
) -> QueuedApproval:
    row = PORTAL.run(queue.get(given))
    if row is None:
        raise EdictumInputError(f"No approval request {given!r:.80}.")
    if options.set:
        args: Any = {**row.tool_args, **_read_pairs("--set", options.set)}
    elif options.args is not None:
        args = read_args(options.args)
    else:
        args = edit_args(row.tool_args)
    answer = queue.answer(given, True, approver=approver, reason=options.reason, args=args)
    return PORTAL.run(answer)


def edit_args(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as a person has changed them in an editor."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or DEFAULT_EDITOR
    with tempfile.TemporaryDirectory(prefix="edictum-") as folder:
        path = Path(folder, "arguments.json")
        path.write_text(json.dumps(json.loads(dumps(args)), indent=2) + "\n", encoding="utf-8")
        try:
            subprocess.run([*shlex.split(editor), str(path)], check=True)  # noqa: S603 - theirs
        except (OSError, subprocess.CalledProcessError) as exc:
            hint = "Set EDITOR, or use --set or --args."
            raise EdictumInputError(f"The editor {editor!r:.80} failed: {exc}", hint=hint) from exc
        return read_args(path.read_text(encoding="utf-8"))


def read_args(text: str) -> dict[str, Any]:
    """Return arguments that are written as a JSON object."""
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise EdictumInputError(f"The arguments are not JSON: {exc}") from exc
    if not isinstance(found, dict):
        hint = 'Write {"name": value, ...}.'
        raise EdictumInputError("The arguments are not a JSON object.", hint=hint)
    return found
