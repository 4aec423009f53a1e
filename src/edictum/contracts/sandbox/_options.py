"""Find which words of a program are values of its options, and which are operands.

As ``getopt`` does: in a cluster such as ``-sSLo`` the first letter that takes a value takes the
rest of the word or, when it stands last, the next word. All options with a value must be known: a
missing one would make an operand of its value. What else a program has, and what becomes of options
that are not known, is in ``Others``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from edictum.contracts.sandbox._shell import Unreadable

GIT_VALUE_OPTIONS = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace"})


@dataclass(frozen=True, slots=True)
class Value:
    """A value of an option, or an operand; it begins in the word ``index`` at character ``at``."""

    index: int
    option: str = ""
    at: int = 0


@dataclass(frozen=True, slots=True)
class Others:
    """The options of a program that do not take the next word.

    ``flags`` take no value; where they are listed, a cluster is not trusted behind any other
    letter. ``attached`` letters take the rest of their word, if there is any. Unless a program is
    ``mixed``, its options end at the first operand. The options of a ``strict`` program, given by
    name, are refused when they are not known.
    """

    flags: frozenset[str] | None = None
    attached: str = ""
    mixed: bool = True
    strict: str = ""

    def knows(self, option: str) -> bool:
        """Return whether an option is known to take no further word."""
        return self.flags is None or option in self.flags or option[1:] in self.attached


LENIENT = Others()


def values_in(
    texts: Sequence[str], valued: frozenset[str], others: Others = LENIENT
) -> Iterator[Value]:
    """Return the values and operands among the words of a program."""
    follows, ended = "", False
    for index, text in enumerate(texts):
        option, follows = follows, ""
        if option:
            yield Value(index, option)
        elif ended or not text.startswith("-") or text == "-":
            yield Value(index)
            ended = ended or not others.mixed
        elif text == "--":
            ended = True
        else:
            option, at = _find_value(text, valued, others)
            if at:
                yield Value(index, option, at)
            else:
                follows = option


def _find_value(text: str, valued: frozenset[str], others: Others) -> tuple[str, int]:
    """Return the option of a word that takes a value, or "", and where in the word the value
    begins: at 0 when it is the next word.
    """
    if not text.startswith("--"):
        return _find_value_in_cluster(text, valued, others)
    option, sign, _ = text.partition("=")
    if sign or option in valued:
        return option, len(option) + 1 if sign else 0
    if not others.knows(option):
        _refuse_if_strict(text, others)
    return "", 0


def _find_value_in_cluster(text: str, valued: frozenset[str], others: Others) -> tuple[str, int]:
    """Return the same for a word of one-letter options, such as ``-xzf``."""
    for at, letter in enumerate(text[1:], 2):
        option, rest = f"-{letter}", at % len(text)
        if option in valued or (rest and letter in others.attached):
            return option, rest
        if not others.knows(option):
            _refuse_if_strict(text, others)
            break
    return "", 0


def _refuse_if_strict(text: str, others: Others) -> None:
    """Refuse an option that is not known, if the program's options have to be."""
    if others.strict:
        message = f"the option '{text:.80}' of {others.strict} is not known"
        hint = "leave it out, or write it in full and with '=' before its value"
        raise Unreadable(f"{message}; {hint}")


def find_option(
    text: str, options: Iterable[str], valued: frozenset[str] = frozenset()
) -> str | None:
    """Return the value that a word may give one of the options, shortened, attached or in a
    cluster; "" when the value is the next word, None when the word gives none of them.
    """
    if text.startswith("--"):
        given, _, value = text.partition("=")
        is_one = len(given) > 2 and any(option.startswith(given) for option in options)
        return value if is_one else None
    for at, letter in enumerate(text[1:] if text.startswith("-") else "", 2):
        if f"-{letter}" in options:
            return text[at:]
        if f"-{letter}" in valued:
            return None
    return None
