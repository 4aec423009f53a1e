"""Find which words of a program are text, and which are certainly paths.

``grep /api src`` searches for ``/api`` and ``cut -d/ -f2`` cuts at slashes. Only words that the
program never opens are left out, and only where its options leave no doubt. In scripts of ``sed``
and ``awk``, what a reading or writing command names, or what stands in quotes, is a path; an
address like ``/start/`` is not.

A cluster such as ``-rne`` is trusted only when every letter before the last is known to take no
value: ``sort -Tt`` works in the directory ``t``, and the word behind it is a file. Behind the first
operand, options are trusted only where the program itself accepts them there.

What is certainly a path matters only in a working directory that lies outside (``Naming``). There
options are read loosely: a word that is mistaken for a path is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edictum.contracts.sandbox._commands import Program
from edictum.contracts.sandbox._grammars import (
    AWK,
    FIND_FILES,
    GRAMMARS,
    ONE_LETTER,
    SUBCOMMANDS,
    WITHOUT_PATHS,
    Grammar,
    PathFinder,
)
from edictum.contracts.sandbox._options import GIT_VALUE_OPTIONS, Value, find_option, values_in
from edictum.contracts.sandbox._paths import Naming
from edictum.contracts.sandbox._shell import names

# Where `git -m` is a message; elsewhere it takes no value.
GIT_MESSAGES = names("commit tag merge notes stash")
# Programs with subcommands or targets whose options with a value are all known.
OPTIONS_KNOWN = names("git make gmake")


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


def namings_of(program: Program, *, is_read: bool) -> dict[int, Naming]:
    """Return what the operands of a program are, by position; WORD for those that are left out.
    What it prints may become the words of another program when ``is_read``.
    """
    texts = program.texts
    if program.name in WITHOUT_PATHS:
        return {} if is_read else dict.fromkeys(range(len(texts)), Naming.TEXT)
    if program.name in ("find", "bfs"):
        return dict(enumerate(_find_namings(texts)))
    grammar = GRAMMARS.get(program.name, Grammar())
    own = GIT_VALUE_OPTIONS if program.name == "git" else frozenset()
    values = list(values_in(texts, grammar.takes_value | own))
    operands = [value.index for value in values if not value.option]
    found = dict.fromkeys(_leading_names(program.name, operands, texts), Naming.TEXT)
    if program.name not in GRAMMARS:
        return found
    found |= {i: _option_naming(texts[i], grammar) for i in _option_words(texts, values)}
    found |= _name_next_words(values, texts, grammar)
    opened = _choose_opened_operands(grammar, operands, texts)
    return found | {i: Naming.PATH for i in opened if _is_file(program.name, texts[i])}


def _name_next_words(values: list[Value], texts: list[str], grammar: Grammar) -> dict[int, Naming]:
    """Return what the words are that are values of the option before them."""
    return {
        value.index: _value_naming(value, texts[value.index], grammar)
        for value in values
        if value.option and not value.at
    }


def _leading_names(name: str, operands: Sequence[int], texts: list[str]) -> Iterator[int]:
    """Return subcommands and targets: ``git status``, ``npm run build``, ``make all``. Behind an
    option of a program whose options are not known, a word may be its value.
    """
    for index in operands[: SUBCOMMANDS.get(name, 0)]:
        if name not in OPTIONS_KNOWN and any(text.startswith("-") for text in texts[:index]):
            return
        if "/" not in texts[index]:
            yield index


def _option_words(texts: list[str], values: list[Value]) -> Iterator[int]:
    """Return the words that are options, perhaps with a value attached."""
    whole = {value.index for value in values if not value.at}
    return (i for i, text in enumerate(texts) if text.startswith("-") and i not in whole)


def _option_naming(text: str, grammar: Grammar) -> Naming:
    """Return what is attached to an option."""
    name, sign, _ = text.partition("=")
    others = grammar.takes_value - grammar.files
    if name not in others and (find_option(text, grammar.files, others) or "-") != "-":
        return Naming.PATH
    is_known = name in others if sign else grammar.opens
    return Naming.TEXT if is_known else Naming.WORD


def _choose_opened_operands(
    grammar: Grammar, operands: Sequence[int], texts: list[str]
) -> Sequence[int]:
    """Return the operands that a program opens or makes, behind those that are something else."""
    if any(find_option(text, grammar.unless) is not None for text in texts):
        return ()
    given = any(find_option(text, grammar.instead) is not None for text in texts)
    start = grammar.skip + int(grammar.first and not given)
    return operands[start : start + grammar.opens]


def _value_naming(value: Value, text: str, grammar: Grammar) -> Naming:
    if value.option in grammar.files:
        return Naming.WORD if text == "-" else Naming.PATH
    opens = "@" in text or (grammar is AWK and "=" in text)  # curl -d @file, awk -v f=file
    return Naming.TEXT if value.option in grammar.takes_value and not opens else Naming.WORD


def _is_file(name: str, text: str) -> bool:
    """Return whether an operand is a file here: not ``-``, ``+5`` or one on another machine."""
    is_remote = name in ("scp", "rsync") and ":" in text
    return text not in ("-", ":memory:") and not text.startswith("+") and not is_remote


def _find_namings(texts: list[str]) -> Iterator[Naming]:
    """Return the namings of find: paths up to its expression, then tests with their values."""
    before, expression = "", False
    for text in texts:
        is_test = text.startswith(("-", "(", "!")) and text not in ("-H", "-L", "-P")
        expression = expression or is_test
        is_path = before in FIND_FILES or not expression
        yield Naming.PATH if is_path else Naming.TEXT
        before = text
