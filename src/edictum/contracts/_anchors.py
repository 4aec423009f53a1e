"""Find patterns that can never match: text is needed before ``^``, or behind ``$``.

A pattern is read as a tree of sequences. ``^`` holds at the start of a text, so nothing may have to
be consumed before it; ``$`` holds at the end, or before a last newline. Uncertain cases are not
reported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeAlias

MAX_REVIEWED = 10_000  # longer patterns are not looked at
NEWLINE_WEIGHT, TEXT_WEIGHT = 1, 2  # of a character that can be, and one that cannot be, a newline
_TOKEN = re.compile(
    r"""
    (?P<comment> \(\?\#[^)]*\))
    | (?P<flags> \(\?[a-zA-Z-]*\))
    | (?P<open> \((?:\?(?:P?<[^>]*>|[a-zA-Z-]*:))?)
    | (?P<close> \))
    | (?P<or> \|)
    | (?P<repeat> (?:[*+?]|\{(?P<least>\d*)(?:,\d*)?\})\??)
    | (?P<start> \^|\\A)
    | (?P<end> \$)
    | (?P<very_end> \\[zZ])
    | (?P<nothing> \\[bB])
    | (?P<character>
        \\(?:x\{[0-9a-fA-F]+\}|x..|u.{4}|U.{8}|N\{[^}]*\}|[pP](?:\{[^}]*\}|.)|0[0-7]{0,2}|.)
        | \[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]
        | \.
      )
    | (?P<literal> .)
    """,
    re.VERBOSE | re.DOTALL,
)
_INNER_ANCHOR = re.compile(r"(?s).(?:\^|\\A)|(?:\$|\\[zZ]).")


@dataclass(slots=True)
class _Item:
    """One part of a sequence: an anchor, a character, or a group of alternatives."""

    kind: str
    weight: int = 0
    choices: list[list[_Item]] = field(default_factory=list)
    optional: bool = False


_Sequence: TypeAlias = list[_Item]


def why_never_matches(pattern: str) -> str | None:
    """Return why no text can match; None if one may."""
    if len(pattern) > MAX_REVIEWED or not _INNER_ANCHOR.search(pattern):
        return None
    choices = _read(pattern)
    problems = [_find_problem(sequence, 0, 0) for sequence in choices or ()]
    return problems[0] if problems and all(problems) else None


def _read(pattern: str) -> list[_Sequence] | None:
    """Return the alternatives of a pattern; None when it has something that is not analysed."""
    stack: list[list[_Sequence]] = [[[]]]
    for token in _TOKEN.finditer(pattern):
        if token.lastgroup in ("open", "flags") and _has_line_flag(token.group()):
            return None
        _add_token(stack, token)
    return stack[0] if len(stack) == 1 else None


def _add_token(stack: list[list[_Sequence]], token: re.Match[str]) -> None:
    """Add a token to the innermost group that is open, or open or close a group."""
    kind = token.lastgroup or ""
    if kind == "open":
        stack.append([[]])
    elif kind == "close" and len(stack) > 1:
        group = _Item("group", choices=stack.pop())
        group.weight = min(_weigh(sequence) for sequence in group.choices)
        stack[-1][-1].append(group)
    elif kind == "or":
        stack[-1].append([])
    elif kind == "repeat" and stack[-1][-1]:
        stack[-1][-1][-1].optional |= _may_be_left_out(token)
    elif kind not in ("comment", "flags"):
        stack[-1][-1].append(_Item(kind, _weight_of(kind, token.group())))


def _has_line_flag(opening: str) -> bool:
    """Return whether ``^`` and ``$`` may stand for the ends of lines."""
    return "<" not in opening and "m" in opening


def _may_be_left_out(repeat: re.Match[str]) -> bool:
    least = repeat.group("least")
    return repeat.group()[0] in "*?" or (least is not None and not least.strip("0"))


def _weight_of(kind: str, text: str) -> int:
    if kind == "literal":
        return NEWLINE_WEIGHT if text == "\n" else TEXT_WEIGHT
    return NEWLINE_WEIGHT if kind == "character" else 0


def _weigh(sequence: _Sequence) -> int:
    return sum(0 if item.optional else item.weight for item in sequence)


def _find_problem(sequence: _Sequence, before: int, after: int) -> str | None:
    """Return why a sequence cannot match between texts that weigh at least so much."""
    total = _weigh(sequence)
    for item in sequence:
        own = 0 if item.optional else item.weight
        total -= own
        if not item.optional and (problem := _find_item_problem(item, before, after + total)):
            return problem
        before += own
    return None


def _find_item_problem(item: _Item, before: int, after: int) -> str | None:
    if item.kind == "start" and before:
        return "text precedes '^', the start of the text"
    if (item.kind == "end" and after >= TEXT_WEIGHT) or (item.kind == "very_end" and after):
        return "text follows '$', the end of the text"
    problems = [_find_problem(choice, before, after) for choice in item.choices]
    return problems[0] if problems and all(problems) else None
