"""Find the directories from which the relative paths of a command line start.

``cd sub && cat ../x`` reads ``x`` beside ``sub``. After ``cd`` and ``&&`` the new directory is
certain until the chain ends; behind ``;`` or ``||`` the old one is possible too, and a path must
then be inside from each of them. A line that begins with ``cd`` to the absolute path of an existing
directory runs in that one from then on.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from edictum.contracts.sandbox._commands import command_words
from edictum.contracts.sandbox._expand import Values, collect_assigned_values, may_repeat, texts_of
from edictum.contracts.sandbox._shell import Simple, Unreadable, Word

MAX_BASES = 64
CHANGING = frozenset({"cd", "pushd", "chdir"})
DIRECTORY_OPTIONS = frozenset({"-C", "--directory", "--chdir", "--cwd"})


def with_bases(
    commands: Sequence[Simple], start: Sequence[str], values: Values
) -> Iterator[tuple[Simple, list[str]]]:
    """Return each command with the directories that it may run in."""
    places = _Places(_limit([*start, *reach(start, _list_repeated_targets(commands, values))]))
    for simple in commands:
        bases = places.enter(simple)
        yield simple, _limit([*bases, *reach(bases, _option_targets(simple, values))])
        places.leave(simple, bases, values)


class _Places:
    """The directories that the next command may run in: those of a chain of ``&&`` at its depth, if
    they are certain, else all that are possible.
    """

    def __init__(self, start: list[str]) -> None:
        self.start = self.possible = self.reached = start
        self.certain: dict[int, list[str]] = {}

    def enter(self, simple: Simple) -> list[str]:
        goes_on = simple.depth if simple.before == "&&" else simple.depth - 1
        self.certain = {depth: at for depth, at in self.certain.items() if depth <= goes_on}
        if not simple.depth and not simple.before:  # a line of its own, perhaps in a new shell
            self.possible = self.reached
        if simple.depth not in self.certain:
            _refuse_going_back(simple)
        return self.certain.get(simple.depth, self.possible)

    def leave(self, simple: Simple, bases: list[str], values: Values) -> None:
        targets = _cd_targets(simple, values)
        if targets:
            self.reached = _limit([*self.reached, *reach(self.reached, targets)])
            self.possible = _limit([*self.possible, *reach(self.possible, targets)])
        if targets and _ends_there(simple):
            self.certain[simple.depth] = reach(bases, targets)
        elif targets or _goes_back(simple):
            self.certain.pop(simple.depth, None)
        if _goes_back(simple):
            self.possible = self.reached
        if _surely_changes(simple, targets):
            self.possible = reach(self.start, targets)


def _ends_there(simple: Simple) -> bool:
    """Return whether the next command runs only if this ``cd`` has succeeded, in this shell."""
    is_negated = any(word.source == "!" for word in simple.words)
    return simple.after == "&&" and simple.before not in ("|", "|&", "||") and not is_negated


def _list_repeated_targets(commands: Sequence[Simple], values: Values) -> list[str]:
    """Return where ``cd`` goes in a line that may run its commands again from there."""
    if not may_repeat(commands):
        return []
    targets = [target for simple in commands for target in _cd_targets(simple, values)]
    return [target for target in targets if ".." not in target]  # back to where it was


def _surely_changes(simple: Simple, targets: list[str]) -> bool:
    """Return whether a line begins with this ``cd``, whose target is an existing directory."""
    begins = not simple.before and not simple.depth and not simple.redirects
    is_plain = [word.literal for word in simple.words] == ["cd", *targets] and len(targets) == 1
    if not (begins and is_plain and simple.after in (";", "\n", "&&", "||")):
        return False
    return (
        os.path.isabs(targets[0]) and os.path.isdir(targets[0]) and os.access(targets[0], os.X_OK)
    )


def follow_directories(commands: Sequence[Simple], start: Sequence[str]) -> Values:
    """Return the values of all variables, every reached directory for PWD and OLDPWD."""
    changes = sum(bool(_cd_words(simple)) for simple in commands)
    places, values = list(start), collect_assigned_values(commands, start)
    for _ in range(changes):  # one may lead to the next by way of $PWD
        reached = [place for _, bases in with_bases(commands, start, values) for place in bases]
        if set(reached) <= set(places):
            break
        places = _limit([*places, *reached])
        values = collect_assigned_values(commands, places)
    return values


def reach(bases: Iterable[str], targets: Sequence[str]) -> list[str]:
    """Return the directories reached from each base by each target, a leading ``~`` expanded. One
    that climbs behind a link leads to two places.
    """
    found = []
    for base in bases:
        for target in targets:
            path = os.path.join(base, os.path.expanduser(target))
            found.append(os.path.normpath(path))
            if ".." in path:
                found.append(os.path.realpath(path))
    return _limit(found)


def _limit(bases: Iterable[str]) -> list[str]:
    found = list(dict.fromkeys(bases))
    if len(found) > MAX_BASES:
        raise Unreadable("it changes the directory too often to follow")
    return found


def _cd_words(simple: Simple) -> tuple[Word, ...]:
    """Return ``cd`` and its words, even behind ``command``; none for other programs."""
    words = command_words(simple)
    while words and words[0].literal in ("command", "builtin", "-p", "--"):
        words = words[1:]
    return words if words and words[0].literal in CHANGING else ()


def _cd_targets(simple: Simple, values: Values) -> list[str]:
    """Return where ``cd`` goes; ``cd`` alone goes home, ``cd -`` to what was judged before."""
    words = _cd_words(simple)
    operands = [word for word in words[1:] if not word.source.startswith("-")]
    if operands:
        return texts_of(operands[0], values)
    return ["~"] if words and words[0].literal == "cd" and not _goes_back(simple) else []


def _goes_back(simple: Simple) -> bool:
    """Return whether a command changes to a directory that the shell remembers."""
    words = _cd_words(simple)
    first = next((word.literal for word in command_words(simple)), None)
    turns = bool(words) and words[0].literal == "pushd"
    return first == "popd" or turns or any(word.literal == "-" for word in words[1:])


def _refuse_going_back(simple: Simple) -> None:
    """Refuse ``cd -``, quoted or not, when the process itself has an earlier directory."""
    goes_back = any(word.literal == "-" for word in _cd_words(simple)[1:])
    if goes_back and "OLDPWD" in os.environ:
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
