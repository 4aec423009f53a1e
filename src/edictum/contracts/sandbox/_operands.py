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

import re
from collections.abc import Callable, Iterator

from edictum.contracts.sandbox._commands import Program
from edictum.contracts.sandbox._options import GIT_VALUE_OPTIONS, Others, find_option, values_in
from edictum.contracts.sandbox._shell import names

PathFinder = Callable[[str], Iterator[str]]
_SED_FILE = re.compile(
    r"(?:^|[\d$;{}\s!])[rRwW]\s*([/~.][^\s;}]*)|[^\w\s][rRwW]\s+([^\s;}]+)"
    r"|(?:^|[\d$;{}\n])e\s([^\n]*)"
)
_SED_ADDRESS_FILE = re.compile(r"^[/\\].*?/[rRwW](/[^\s;}]*)")
_QUOTED = re.compile(r'"([^"]*)"')


def _sed_paths(script: str) -> Iterator[str]:
    """Return what ``r``, ``w``, ``s///w`` and ``e`` name."""
    for groups in _SED_FILE.findall(script):
        yield from (text for text in groups if text)
    yield from _SED_ADDRESS_FILE.findall(script)


def _awk_paths(script: str) -> Iterator[str]:
    """Return every string, which may name a file or a command; a lone slash splits lines."""
    return (text for text in _QUOTED.findall(script) if text != "/")


def find_no_paths(script: str) -> Iterator[str]:
    return iter(())


class Grammar:
    """Where a program takes text.

    ``texts`` are options whose value is text. With ``first``, so is the first operand, unless one
    of the options in ``instead`` is given; ``valued`` options take a value that is not that
    operand. ``every`` operand can be text. ``paths`` finds the paths in such a text. ``flags`` are
    the letters that take no value. ``mixed`` programs know options behind operands whatever the
    environment says.
    """

    def __init__(
        self,
        texts: str = "",
        *,
        first: bool = False,
        valued: str = "",
        instead: str = "",
        every: bool = False,
        paths: PathFinder = find_no_paths,
        flags: str = "",
        mixed: bool = False,
    ) -> None:
        self.texts, self.valued, self.instead = map(names, (texts, valued, instead))
        self.first, self.every, self.paths = first, every, paths
        self.others = Others(frozenset(f"-{letter}" for letter in flags), mixed=mixed)


_GREP = Grammar(
    "-e --regexp",
    first=True,
    valued=(
        "-A -B -C -m -d -D -f --file --include --exclude --exclude-dir --exclude-from --max-count"
        " --after-context --before-context --context --label --binary-files --directories --devices"
    ),
    instead="-e --regexp -f --file",
    flags="EFGPHILTUVZabchilnoqRrsuvwxyz",
)
_AWK = Grammar(
    "-F --field-separator",
    first=True,
    valued="-v",
    instead="-f --file -e --source -E --exec -i --include",
    paths=_awk_paths,
)
GRAMMARS: dict[str, Grammar] = {
    "grep": _GREP,
    "egrep": _GREP,
    "fgrep": _GREP,
    "rg": Grammar(
        "-e --regexp -g --glob -r --replace",
        first=True,
        valued="-A -B -C -m -t -T --type --ignore-file --pre",
        instead="-e --regexp -f --file --files",
        flags="FHILNPSUVaclhinopqsuvwxz0",
        mixed=True,
    ),
    "sed": Grammar(
        "-e --expression",
        first=True,
        valued="-l",
        instead="-e --expression -f --file",
        paths=_sed_paths,
        flags="nErsuz",
    ),
    "awk": _AWK,
    "gawk": _AWK,
    "mawk": _AWK,
    "jq": Grammar(first=True, valued="--indent -L", instead="-f --from-file"),
    "tr": Grammar(every=True),
    "expr": Grammar(every=True),
    "cut": Grammar("-d --delimiter --output-delimiter", flags="nsz"),
    "sort": Grammar("-t --field-separator", flags="bcCdfghimMnrRsuVz"),
    "paste": Grammar("-d --delimiters", flags="sz"),
    "column": Grammar("-s --separator", flags="tx"),
    "git": Grammar("-m --message", flags="anpqsv", mixed=True),
    "gh": Grammar("-t --title -b --body --notes", mixed=True),
    "curl": Grammar(
        "-H --header -d --data --data-raw --json -A --user-agent -e --referer",
        flags="012346#BafgGIijJkLlMnNOpqRsSvVZ",
        mixed=True,
    ),
}
# Where an option's first letter takes all the rest of its word, so that `-Isrc/x` is `src/x` and
# never `/x`.
_COMPILER = frozenset("ILDBFUWfilmo")
ONE_LETTER: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        names("cc gcc g++ c++ clang clang++ cpp ld gfortran rustc nasm protoc swiftc"), _COMPILER
    ),
    **dict.fromkeys(names("make gmake ninja"), frozenset("CIfoW")),
    "cmake": frozenset("ABCDGS"),
    "perl": frozenset("I"),
    "ruby": frozenset("I"),
    "git": frozenset("GS"),
    "mvn": frozenset("D"),
    "java": frozenset("DX"),
    "gradle": frozenset("DP"),
}


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
    return GRAMMARS[name] is _AWK and is_separator and len(texts[index].removeprefix("-F")) > 2


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
