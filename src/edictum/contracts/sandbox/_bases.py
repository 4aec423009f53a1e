"""Find the directories from which the relative paths of a command line start.

``cd sub && cat ../x`` reads ``x`` beside ``sub``. After ``cd`` and ``&&`` the new directory is
certain until the chain ends; behind ``;``, ``||`` or in a subshell the old one is possible too, and
a path must then be inside from each of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from edictum.contracts.sandbox._commands import command_words
from edictum.contracts.sandbox._expand import Values, texts_of
from edictum.contracts.sandbox._shell import Simple, Unreadable, Word

MAX_BASES = 64
CHANGING = frozenset({"cd", "pushd", "chdir"})
DIRECTORY_OPTIONS = frozenset({"-C", "--directory", "--chdir", "--cwd"})


def with_bases(
    commands: Iterable[Simple], start: Sequence[str], values: Values
) -> Iterator[tuple[Simple, list[str]]]:
    """Return each command with the directories that it may run in."""
    possible = certain = list(start)
    for simple in commands:
        if not simple.depth and simple.before != "&&":
            certain = possible
        bases = possible if simple.depth else certain
        if certain is possible:
            _refuse_going_back(simple)
        yield simple, _move(bases, _option_targets(simple, values), keep=True)
        if targets := _cd_targets(simple, values):
            possible = _move(possible, targets, keep=True)
            sure = simple.after == "&&" and not simple.depth
            certain = _move(bases, targets, keep=False) if sure else possible


def join_home(base: str, target: str) -> str:
    """Return the target from the base on, with a leading ``~`` expanded."""
    return os.path.join(base, os.path.expanduser(target))


def _move(bases: list[str], targets: list[str], *, keep: bool) -> list[str]:
    """Return the directories reached from each base by each target."""
    reached = [os.path.normpath(join_home(base, target)) for base in bases for target in targets]
    found = list(dict.fromkeys([*bases, *reached] if keep else reached))
    if len(found) > MAX_BASES:
        raise Unreadable("it changes the directory too often to follow")
    return found


def _cd_targets(simple: Simple, values: Values) -> list[str]:
    """Return where ``cd`` goes; ``cd`` alone goes home, ``cd -`` to what was judged before."""
    words = command_words(simple)
    if not words or words[0].literal not in CHANGING:
        return []
    operands = [word for word in words[1:] if not word.source.startswith("-")]
    if operands:
        return texts_of(operands[0], values)
    goes_back = any(word.source == "-" for word in words[1:])
    return ["~"] if words[0].literal == "cd" and not goes_back else []


def _refuse_going_back(simple: Simple) -> None:
    """Refuse ``cd -``, quoted or not, when the process itself has an earlier directory."""
    words = command_words(simple)
    changes = bool(words) and words[0].literal in CHANGING and "OLDPWD" in os.environ
    if changes and any(word.literal == "-" for word in words[1:]):
        message = "'cd -' may go to where the process has been before"
        raise Unreadable(f"{message}; name the directory, or write 'cd dir && ... && cd -'")


def goes_home(simple: Simple) -> bool:
    """Return whether the command is a ``cd`` that names no directory."""
    return _cd_targets(simple, {}) == ["~"]


def _option_targets(simple: Simple, values: Values) -> list[str]:
    """Return the directory that ``git -C dir`` or ``make --directory=dir`` changes to."""
    found: list[str] = []
    following: Iterable[Word] = simple.words[1:]
    for option, value in zip(simple.words, following, strict=False):
        if option.source in DIRECTORY_OPTIONS:
            found += texts_of(value, values)
    for word in simple.words:
        name, _, value_text = word.source.partition("=")
        if name in DIRECTORY_OPTIONS and value_text:
            found += [text.partition("=")[2] for text in texts_of(word, values)]
    return found
