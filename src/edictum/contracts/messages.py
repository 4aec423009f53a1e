"""Messages with placeholders: ``{args.path}`` is filled in, ``{{`` and ``}}`` are braces.

What is filled in comes from the model and goes to the model and to logs, so it is redacted, made
one line, and bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from edictum.contracts.expressions import Meaning
from edictum.contracts.problems import Place
from edictum.contracts.selectors import (
    ROOTS,
    Selector,
    SelectorError,
    Subject,
    parse_selector,
    resolver,
)
from edictum.core.call import ToolCall
from edictum.core.contract import Kind, bounded
from edictum.core.redaction import RedactionPolicy, shorten
from edictum.core.secret_patterns import REDACTED
from edictum.core.values import show

MAX_VALUE = 200
MAX_VIOLATION = 300
VIOLATION = "violation"  # in the message of a sandbox: what was out of its bounds
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[^{}]+|[{}]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")

Message = Callable[[Subject], str]


def check_message(text: str, place: Place, meaning: Meaning, kind: Kind) -> None:
    """Placeholders that can never be filled in are reported; other text in braces is only warned
    about.
    """
    for name in dict.fromkeys(piece.group(1) for piece in _PIECE.finditer(text) if piece.group(1)):
        if kind is Kind.SESSION:
            meaning.problems.warn(
                place,
                f"'{{{name}}}' is not filled in: a session message is shown as it is",
                "Remove the placeholder.",
            )
        elif name == VIOLATION:
            if kind is not Kind.SANDBOX:
                hint = "Use it in a contract with 'type: sandbox'."
                meaning.problems.warn(
                    place,
                    "'{violation}' is not filled in here: only a sandbox knows what was out of"
                    " bounds",
                    hint,
                )
        elif _looks_like_selector(name, meaning):
            meaning.selector(name, place)
        else:
            hint = f"Write {{{{{name}}}}} for literal braces, or a selector such as {{args.path}}."
            meaning.problems.warn(
                place, f"'{{{name}}}' in the message is not a selector and is shown as it is", hint
            )


def _looks_like_selector(name: str, meaning: Meaning) -> bool:
    root = re.split(r"[.\[]", name)[0]
    return (
        root in ROOTS
        or root in meaning.selectors
        or ("." in name and re.fullmatch(r"[\w.\[\]*\"'-]+", name) is not None)
    )


def compile_message(
    text: str, custom: Mapping[str, Callable[[ToolCall], Any]], redaction: RedactionPolicy
) -> Message:
    """A function from the subject to the finished message."""
    pieces = [_piece(found, custom, redaction) for found in _PIECE.finditer(text)]
    if all(isinstance(piece, str) for piece in pieces):
        fixed = bounded("".join(str(piece) for piece in pieces))
        return lambda _subject: fixed

    def message(subject: Subject) -> str:
        return bounded(
            "".join(piece if isinstance(piece, str) else piece(subject) for piece in pieces)
        )

    return message


def literal(text: str) -> str:
    """A message that is shown as it is; only doubled braces become single ones."""
    return bounded(text.replace("{{", "{").replace("}}", "}"))


def _piece(
    found: re.Match[str],
    custom: Mapping[str, Callable[[ToolCall], Any]],
    redaction: RedactionPolicy,
) -> str | Message:
    name = found.group(1)
    if name is None:
        return {"{{": "{", "}}": "}"}.get(found.group(), found.group())
    if name == VIOLATION:
        return lambda subject: (
            found.group()
            if subject.violation is None
            else present(subject.violation, redaction, MAX_VIOLATION)
        )
    try:
        selector = parse_selector(name, custom)
    except SelectorError:
        return found.group()
    resolve = resolver(selector, custom)
    secret = hidden(selector, redaction)

    def fill(subject: Subject) -> str:
        try:
            value = resolve(subject)
        except Exception:
            return found.group()
        if value is None:
            return found.group()
        return REDACTED if secret else present(value, redaction)

    return fill


def hidden(selector: Selector, redaction: RedactionPolicy) -> bool:
    """Whether what a selector finds is a secret by its name: all that lies under a sensitive key is
    one.
    """
    return any(redaction.is_sensitive(key) for key in selector.path)


def present(value: Any, redaction: RedactionPolicy, limit: int = MAX_VALUE) -> str:
    """A value as people may see it. Redacted before it is cut, so that a cut cannot bare half a
    secret.
    """
    text = value if isinstance(value, str) else show(redaction.redact_value(value))
    return shorten(_CONTROL.sub(" ", redaction.redact_text(text)), limit)
