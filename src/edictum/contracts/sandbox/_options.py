"""Find which words of a program are values of its options, and which are operands.

As ``getopt`` does: in a cluster such as ``-sSLo`` the first letter that takes a value takes the
rest of the word or, when it stands last, the next word. All options with a value must be known: a
missing one would make an operand of its value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

GIT_VALUE_OPTIONS = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace"})


@dataclass(frozen=True, slots=True)
class Value:
    """A value of an option, or an operand; it begins in the word ``index`` at character ``at``."""

    index: int
    option: str = ""
    at: int = 0


def values_in(texts: Sequence[str], valued: frozenset[str]) -> Iterator[Value]:
    """Return the values and operands among the words of a program."""
    follows, ended = "", False
    for index, text in enumerate(texts):
        option, follows = follows, ""
        if option:
            yield Value(index, option)
        elif ended or not text.startswith("-") or text == "-":
            yield Value(index)
        elif text == "--":
            ended = True
        elif (value := _attached_value(index, text, valued)) is not None:
            yield value
        else:
            follows = _option_awaiting_value(text, valued)


def _attached_value(index: int, text: str, valued: frozenset[str]) -> Value | None:
    """Return the value in the same word: ``--name=value``, ``-nvalue`` or ``-xvnvalue``."""
    if text.startswith("--"):
        name, sign, _ = text.partition("=")
        return Value(index, name, len(name) + 1) if sign else None
    at = _find_valued_letter(text, valued)
    return Value(index, f"-{text[at]}", at + 1) if at < len(text) - 1 else None


def _option_awaiting_value(text: str, valued: frozenset[str]) -> str:
    """Return the option that takes the next word, or ""."""
    if text.startswith("--"):
        return text if text in valued else ""
    return f"-{text[-1]}" if _find_valued_letter(text, valued) == len(text) - 1 else ""


def _find_valued_letter(text: str, valued: frozenset[str]) -> int:
    return next((at for at, letter in enumerate(text) if at and f"-{letter}" in valued), len(text))
