"""Messages with placeholders: ``{args.path}`` is filled in, ``{{`` and ``}}`` are braces.

What is filled in comes from the model and goes to the model and to logs, so it is redacted, put on
one line, and bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from edictum.contracts._expressions import Meaning
from edictum.contracts._problems import Place
from edictum.contracts._selectors import (
    ROOTS,
    CustomSelectors,
    Pending,
    Selector,
    SelectorError,
    Subject,
    parse_selector,
    resolver,
)
from edictum.core.contract import Kind, shorten_message
from edictum.core.redaction import RedactionPolicy, shorten
from edictum.core.secret_patterns import REDACTED
from edictum.core.values import show

MAX_SHOWN_VALUE = 200
MAX_SHOWN_VIOLATION = 300
VIOLATION = "violation"  # in the message of a sandbox: what was out of its bounds
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[^{}]+|[{}]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_SELECTOR_LIKE = re.compile(r"[\w.\[\]*\"'-]+")

RenderMessage = Callable[[Subject], str]


def check_message(text: str, place: Place, meaning: Meaning, kind: Kind) -> None:
    """Report placeholders that can never be filled in, and warn about other text in braces."""
    for name in dict.fromkeys(piece.group(1) for piece in _PIECE.finditer(text) if piece.group(1)):
        if kind is Kind.SESSION:
            problem = "is not filled in: a session message is shown as it is"
            hint = "Remove the placeholder."
        elif name == VIOLATION and kind is Kind.SANDBOX:
            continue
        elif name == VIOLATION:
            problem = "is not filled in here: only a sandbox knows what was out of bounds"
            hint = "Use it in a contract with 'type: sandbox'."
        elif _looks_like_selector(name, meaning):
            selector = meaning.selector(name, place)
            if selector is not None and selector.any_text:
                problem = f"'{{{name}}}' cannot be shown: it stands for every text below"
                meaning.problems.add(place, problem, "Name the argument to show.")
            continue
        else:
            problem = "in the message is not a selector and is shown as it is"
            hint = f"Write {{{{{name}}}}} for literal braces, or a selector such as {{args.path}}."
        meaning.problems.warn(place, f"'{{{name}}}' {problem}", hint)


def _looks_like_selector(name: str, meaning: Meaning) -> bool:
    root = re.split(r"[.\[]", name)[0]
    if root in ROOTS or root in meaning.selectors:
        return True
    return "." in name and _SELECTOR_LIKE.fullmatch(name) is not None


def compile_message(
    text: str, custom: CustomSelectors, redaction: RedactionPolicy, timezone: str = "UTC"
) -> RenderMessage:
    """Return a function from the subject to the finished message."""
    found = _PIECE.finditer(text)
    pieces = [_compile_piece(piece, custom, redaction, timezone) for piece in found]
    if all(isinstance(piece, str) for piece in pieces):
        fixed = shorten_message("".join(str(piece) for piece in pieces))
        return lambda _subject: fixed
    return lambda subject: shorten_message(
        "".join(piece if isinstance(piece, str) else piece(subject) for piece in pieces)
    )


def unescape_braces(text: str) -> str:
    """Return a message that is shown as it is, with doubled braces as single ones."""
    return shorten_message(text.replace("{{", "{").replace("}}", "}"))


def _compile_piece(
    piece: re.Match[str], custom: CustomSelectors, redaction: RedactionPolicy, timezone: str
) -> str | RenderMessage:
    text, name = piece.group(), piece.group(1)
    if name is None:
        return {"{{": "{", "}}": "}"}.get(text, text)
    if name == VIOLATION:
        return lambda subject: (
            text
            if subject.violation is None
            else show_without_secrets(subject.violation, redaction, MAX_SHOWN_VIOLATION)
        )
    try:
        selector = parse_selector(name, custom, timezone)
    except SelectorError:
        return text
    resolve, secret = resolver(selector, custom), is_hidden(selector, redaction)

    def fill(subject: Subject) -> str:
        try:
            value = resolve(subject)
        except Pending:
            raise  # the message waits for it, as the condition does
        except Exception:
            return text
        if value is None:
            return text
        return REDACTED if secret else show_without_secrets(value, redaction)

    return fill


def is_hidden(selector: Selector, redaction: RedactionPolicy) -> bool:
    """Return whether a selector finds a secret: everything below a sensitive key is one.

    Texts without their keys may come from below such a key.
    """
    return selector.any_text or any(redaction.is_sensitive(key) for key in selector.path)


def show_without_secrets(
    value: Any, redaction: RedactionPolicy, limit: int = MAX_SHOWN_VALUE
) -> str:
    """Return a value as text, redacted before it is cut so that a cut cannot expose half a
    secret.
    """
    text = value if isinstance(value, str) else show(redaction.redact_value(value))
    return shorten(_CONTROL.sub(" ", redaction.redact_text(text)), limit)
