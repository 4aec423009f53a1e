"""What programs take: which of their options and operands are text.

Only what a program never opens is text. ``_operands`` finds it among the words of a command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from edictum.contracts.sandbox._options import Others
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
AWK = Grammar(
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
    "awk": AWK,
    "gawk": AWK,
    "mawk": AWK,
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
