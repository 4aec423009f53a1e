"""Operands: which words of a program are text and not paths.

``grep /api src`` looks for ``/api`` and ``cut -d/ -f2`` cuts at slashes. Only words that the program never opens are left
out, and only where its options leave no doubt. Scripts of ``sed`` and ``awk`` are programs themselves: what a reading or writing command
names, or what stands in quotes, is a path; an address like ``/start/`` is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edictum.contracts.sandbox.commands import Program
from edictum.contracts.sandbox.shell import names

Script = Callable[[str], Iterator[str]]
_SED_FILE = re.compile(r"(?:^|[\d$;{}\s!])[rRwW]\s*([/~.][^\s;}]*)|[^\w\s][rRwW]\s+([^\s;}]+)|(?:^|[\d$;{}\n])e\s([^\n]*)")
_SED_ADDRESS_FILE = re.compile(r"^[/\\].*?/[rRwW](/[^\s;}]*)")
_QUOTED = re.compile(r'"([^"]*)"')


def _sed_paths(script: str) -> Iterator[str]:
    """What ``r``, ``w``, ``s///w`` and ``e`` name."""
    for groups in _SED_FILE.findall(script):
        yield from (text for text in groups if text)
    yield from _SED_ADDRESS_FILE.findall(script)


def _awk_paths(script: str) -> Iterator[str]:
    """Every string: files are opened and commands are run by string only. A lone slash is what lines are split at."""
    return (text for text in _QUOTED.findall(script) if text != "/")


def no_paths(script: str) -> Iterator[str]:
    return iter(())


@dataclass(frozen=True, slots=True)
class Grammar:
    """Where a program takes text.

    ``texts`` are options whose value is text. With ``first``, so is the first operand, unless one of the options in ``instead`` is given;
    ``valued`` options take a value that is not that operand. ``every`` operand can be text. ``paths`` finds the paths in such a text.
    """

    texts: frozenset[str] = frozenset()
    first: bool = False
    valued: frozenset[str] = frozenset()
    instead: frozenset[str] = frozenset()
    every: bool = False
    paths: Script = no_paths


def _grammar(
    texts: str = "", *, first: bool = False, valued: str = "", instead: str = "", every: bool = False, paths: Script = no_paths
) -> Grammar:
    return Grammar(names(texts), first, names(valued), names(instead), every, paths)


_GREP = _grammar("-e --regexp", first=True, valued="-A -B -C -m -d -D -f --file", instead="-e --regexp -f --file")
_AWK = _grammar("-F --field-separator", first=True, valued="-v", instead="-f --file -e --source -E --exec -i --include", paths=_awk_paths)
GRAMMARS: dict[str, Grammar] = {
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
    "rg": _grammar("-e --regexp -g --glob -r --replace", first=True, valued="-A -B -C -m -t -T", instead="-e --regexp -f --file --files"),
    "sed": _grammar("-e --expression", first=True, valued="-l", instead="-e --expression -f --file", paths=_sed_paths),
    "awk": _AWK,
    "gawk": _AWK,
    "mawk": _AWK,
    "jq": _grammar(first=True, valued="--indent -L", instead="-f --from-file"),
    "tr": _grammar(every=True),
    "expr": _grammar(every=True),
    "cut": _grammar("-d --delimiter --output-delimiter"),
    "sort": _grammar("-t --field-separator"),
    "paste": _grammar("-d --delimiters"),
    "column": _grammar("-s --separator"),
    "git": _grammar("-m --message"),
    "gh": _grammar("-t --title -b --body --notes"),
    "curl": _grammar("-H --header -d --data --data-raw --json -A --user-agent -e --referer"),
}


# Where `git -m` is a message; elsewhere it takes no value.
GIT_MESSAGES = (["commit"], ["tag"], ["merge"], ["notes"], ["stash"])


def text_operands(program: Program) -> dict[int, Script]:
    """The positions of operands that are text, each with the function that finds the paths inside it."""
    grammar = GRAMMARS.get(program.name)
    if grammar is None:
        return {}
    texts = [word.literal if word.literal is not None else word.source for word in program.operands]
    if program.name == "git" and texts[:1] not in GIT_MESSAGES:
        return {}
    found = dict.fromkeys(_positions(grammar, texts), grammar.paths)
    # `curl -d @file` and `-H @file` read the file after all.
    return {index: paths for index, paths in found.items() if program.name != "curl" or "@" not in texts[index]}


def _positions(grammar: Grammar, texts: list[str]) -> Iterator[int]:
    first = grammar.first and not any(_gives(text, grammar.instead) for text in texts)
    follows = ""
    for index, text in enumerate(texts):
        option, follows = follows, ""
        if option in grammar.texts:
            yield index
        elif option in grammar.valued:
            continue
        elif text.startswith("-") and len(text) > 1:
            follows = _option(text, grammar.texts)
            if _attached(text, grammar.texts):
                yield index
        elif grammar.every or first:
            first = False
            yield index


def _option(text: str, texts: frozenset[str]) -> str:
    """The option that takes the next word: the word itself, or the last letter of a cluster such as ``-am``."""
    cluster = text[:2] != "--" and text[1:].isalpha() and not _attached(text, texts)
    return f"-{text[-1]}" if cluster else text


def _attached(text: str, texts: frozenset[str]) -> bool:
    """``-d/`` and ``--delimiter=/``."""
    return (len(text) > 2 and text[:2] in texts) or ("=" in text and text.partition("=")[0] in texts)


def _gives(text: str, options: frozenset[str]) -> bool:
    """Whether a word may give one of the options: also shortened, attached, or in a cluster. When in doubt, yes."""
    if text.startswith("--"):
        name = text.partition("=")[0]
        return any(option.startswith(name) for option in options if len(name) > 2)
    return text.startswith("-") and any(option[1] in text for option in options if len(option) == 2)
