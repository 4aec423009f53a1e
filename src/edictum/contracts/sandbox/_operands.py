"""Find which words of a program are text and not paths.

``grep /api src`` searches for ``/api`` and ``cut -d/ -f2`` cuts at slashes. Only words that the
program never opens are left out, and only where its options leave no doubt. In scripts of ``sed``
and ``awk``, what a reading or writing command names, or what stands in quotes, is a path; an
address like ``/start/`` is not.

A cluster such as ``-rne`` is trusted only when every letter before the last is known to take no
value: ``sort -Tt`` works in the directory ``t``, and the word behind it is a file. Behind the first
operand, options are trusted only where the program itself accepts them there.
"""

from __future__ import annotations

from collections.abc import Iterator

from edictum.contracts.sandbox._commands import Program
from edictum.contracts.sandbox._grammars import AWK, GRAMMARS, ONE_LETTER, Grammar, PathFinder
from edictum.contracts.sandbox._options import GIT_VALUE_OPTIONS, find_option, values_in
from edictum.contracts.sandbox._shell import names

# Where `git -m` is a message; elsewhere it takes no value.
GIT_MESSAGES = names("commit tag merge notes stash")


def text_operands(program: Program) -> dict[int, PathFinder]:
    """Return the operands that are text, each with a function that finds the paths in it."""
    grammar = GRAMMARS.get(program.name)
    if grammar is None:
        return {}
    texts = program.texts
    start = _git_command(texts) if program.name == "git" else 0
    found = (index + start for index in _text_positions(grammar, texts[start:]))
    return {i: grammar.paths for i in found if not _is_opened(program.name, texts, i)}


def _is_opened(name: str, texts: list[str], index: int) -> bool:
    """Return whether the program may open a text: ``@file`` of curl, a long ``-F`` of awk."""
    if name == "curl":
        return "@" in texts[index]
    is_separator = texts[index].startswith("-F") or (index > 0 and texts[index - 1] == "-F")
    return GRAMMARS[name] is AWK and is_separator and len(texts[index].removeprefix("-F")) > 2


def _git_command(texts: list[str]) -> int:
    """Return where the command begins whose ``-m`` is a message; the end when there is none."""
    operands = (value.index for value in values_in(texts, GIT_VALUE_OPTIONS) if not value.option)
    first = next(operands, len(texts))
    return first if first < len(texts) and texts[first] in GIT_MESSAGES else len(texts)


def attaches_all(program: str, text: str) -> bool:
    """Return whether the first letter of an option takes the rest of the word as its value."""
    return text[1:2] in ONE_LETTER.get(program, ())


def _text_positions(grammar: Grammar, texts: list[str]) -> Iterator[int]:
    given = any(find_option(text, grammar.instead) is not None for text in texts)
    last = len(texts) if grammar.every else int(grammar.first and not given)
    values = list(values_in(texts, grammar.texts | grammar.valued, grammar.others))
    yield from [value.index for value in values if not value.option][:last]
    for value in values:
        # What is attached to a cluster may be a path after all.
        is_sure = not value.at or texts[value.index].startswith(value.option)
        if value.option in grammar.texts and is_sure:
            yield value.index
