"""What programs take: which of their options and operands are text, and which are paths.

Only what a program never opens is text. A path is what it certainly opens or makes; a program that
is not listed here may take any of its words for one. ``_operands`` finds both among the words of a
command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from edictum.contracts.sandbox._options import Others
from edictum.contracts.sandbox._shell import names

PathFinder = Callable[[str], Iterator[str]]
_SED_FILE = re.compile(
    r"(?:^|[\d$;{}\s!])[rRwW]\s*([/~.][^\s;}]*)|[^\w\s][rRwW]\s+([^\s;}]+)"
    r"|(?:^|[\d$;{}\n])e\s([^\n]*)"
)
_SED_ADDRESS_FILE = re.compile(r"^[/\\].*?/[rRwW](/[^\s;}]*)")
_QUOTED = re.compile(r'"([^"]*)"')


def _find_sed_paths(script: str) -> Iterator[str]:
    """Return what ``r``, ``w``, ``s///w`` and ``e`` name."""
    for groups in _SED_FILE.findall(script):
        yield from (text for text in groups if text)
    yield from _SED_ADDRESS_FILE.findall(script)


def _find_awk_paths(script: str) -> Iterator[str]:
    """Return every string, which may name a file or a command; a lone slash splits lines."""
    return (text for text in _QUOTED.findall(script) if text != "/")


def _find_dd_paths(operand: str) -> Iterator[str]:
    """Return the file of ``if=file`` and ``of=file``."""
    key, _, value = operand.partition("=")
    if key in ("if", "of"):
        yield value


def find_no_paths(script: str) -> Iterator[str]:
    return iter(())


class Grammar:
    """Where a program takes text, and where paths.

    ``texts`` are options whose value is text, ``files`` those whose value is a path, ``valued``
    those with another value. With ``first``, the first operand is text, unless one of the options
    in ``instead`` is given. ``every`` operand can be text. ``paths`` finds the paths in such a
    text. ``opens`` is how many of the other operands are paths, behind ``skip`` of them: none when
    an option in ``unless`` is given. ``flags`` are the letters that take no value. ``mixed``
    programs know options behind operands whatever the environment says.
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
        files: str = "",
        opens: int = 0,
        skip: int = 0,
        unless: str = "",
        flags: str = "",
        mixed: bool = False,
    ) -> None:
        self.texts, self.valued, self.instead = map(names, (texts, valued, instead))
        self.files, self.unless = names(files), names(unless)
        self.first, self.every, self.paths = first, every, paths
        self.opens, self.skip = opens, skip
        self.others = Others(frozenset(f"-{letter}" for letter in flags), mixed=mixed)

    @property
    def takes_value(self) -> frozenset[str]:
        """Return every option that is known to take a value."""
        return self.texts | self.valued | self.files


ALL = 1_000_000


def _opening(valued: str = "", files: str = "", opens: int = ALL, **more: Any) -> Grammar:
    """Return the grammar of a program whose operands are paths."""
    return Grammar(valued=valued, files=files, opens=opens, **more)


_GREP = Grammar(
    "-e --regexp",
    first=True,
    valued=(
        "-A -B -C -m -d -D -f --file --include --exclude --exclude-dir --exclude-from --max-count"
        " --after-context --before-context --context --label --binary-files --directories --devices"
    ),
    instead="-e --regexp -f --file",
    files="-f --file --exclude-from",
    opens=ALL,
    flags="EFGPHILTUVZabchilnoqRrsuvwxyz",
)
AWK = Grammar(
    "-F --field-separator",
    first=True,
    valued="-v",
    instead="-f --file -e --source -E --exec -i --include",
    paths=_find_awk_paths,
    files="-f --file -i --include -E --exec",
    opens=ALL,
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
        files="-f --file --ignore-file --pre",
        opens=ALL,
        flags="FHILNPSUVaclhinopqsuvwxz0",
        mixed=True,
    ),
    "sed": Grammar(
        "-e --expression",
        first=True,
        valued="-l",
        instead="-e --expression -f --file",
        paths=_find_sed_paths,
        files="-f --file",
        opens=ALL,
        flags="nErsuz",
    ),
    "awk": AWK,
    "gawk": AWK,
    "mawk": AWK,
    "jq": Grammar(first=True, valued="--indent -L", instead="-f --from-file", opens=ALL),
    "tr": Grammar(every=True),
    "expr": Grammar(every=True),
    "cut": Grammar(
        "-d --delimiter --output-delimiter",
        valued="-b -c -f --bytes --characters --fields",
        opens=ALL,
        flags="nsz",
    ),
    "sort": Grammar(
        "-t --field-separator",
        valued="-k --key -S --buffer-size --parallel",
        files="-o --output -T --temporary-directory --files0-from",
        opens=ALL,
        flags="bcCdfghimMnrRsuVz",
    ),
    "paste": Grammar("-d --delimiters", opens=ALL, flags="sz"),
    "column": Grammar("-s --separator", valued="-o -c -N -R -H", opens=ALL, flags="tx"),
    "git": Grammar("-m --message", flags="anpqsv", mixed=True),
    "gh": Grammar("-t --title -b --body --notes", mixed=True),
    "curl": Grammar(
        "-H --header -d --data --data-raw --json -A --user-agent -e --referer",
        files=(
            "-o --output --output-dir -T --upload-file -K --config -c --cookie-jar -D --dump-header"
            " -E --cert --key --cacert --capath --trace --trace-ascii --stderr"
        ),
        flags="012346#BafgGIijJkLlMnNOpqRsSvVZ",
        mixed=True,
    ),
}
GRAMMARS |= {
    # Programs that print, compare or describe files.
    **dict.fromkeys(
        names("cat tac rev comm tsort dos2unix unix2dos zcat bzcat xzcat zless zmore more lsattr"),
        _opening(),
    ),
    **dict.fromkeys(
        names("md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum"), _opening()
    ),
    **dict.fromkeys(names("ls dir vdir"), _opening("-I -w -T --hide --ignore --width --tabsize")),
    **dict.fromkeys(names("head tail"), _opening("-n -c -s --lines --bytes --pid")),
    **dict.fromkeys(names("base64 base32 fold fmt"), _opening("-w --wrap --width -p -g")),
    **dict.fromkeys(names("expand unexpand"), _opening("-t --tabs")),
    **dict.fromkeys(
        names("diff colordiff sdiff diff3 cmp"),
        _opening("-U -C -W -x -I -F -n -i --label --width --exclude --unified --bytes"),
    ),
    "nl": _opening("-b -d -f -h -i -l -n -s -v -w"),
    "wc": _opening(files="--files0-from"),
    "tree": _opening("-L -P -I --filelimit --charset --timefmt", "-o"),
    "stat": _opening("-c --format --printf"),
    "file": _opening("-F -e -P --separator --exclude", "-f -m --files-from --magic-file"),
    "du": _opening(
        "-d --max-depth -t --threshold -B --block-size --exclude --time-style",
        "-X --exclude-from --files0-from",
    ),
    "shasum": _opening("-a --algorithm"),
    "less": _opening("-p -P -x -y -z -b -h -j", "-o -O -k -T"),
    "bat": _opening("-l --language --theme --style -r --line-range -H --highlight-line --pager"),
    "hexdump": _opening("-e -n -s", "-f"),
    "xxd": _opening("-c -g -l -s -o -n"),
    "od": _opening("-A -j -N -S -t"),
    "strings": _opening("-n -t -e"),
    "join": _opening("-1 -2 -a -e -j -o -t -v"),
    "uniq": _opening("-f -s -w --skip-fields --skip-chars --check-chars"),
    "iconv": _opening("-f -t --from-code --to-code", "-o --output"),
    "readlink": _opening(),
    "realpath": _opening(files="--relative-to --relative-base"),
    # Programs that make, change or remove files.
    **dict.fromkeys(names("rm rmdir unlink link mkfifo tee"), _opening()),
    **dict.fromkeys(names("cp mv ln"), _opening("-S --suffix", "-t --target-directory")),
    **dict.fromkeys(
        names("chmod chown chgrp chattr"), Grammar(opens=ALL, skip=1, files="--reference")
    ),
    "install": _opening("-m -o -g -S --mode --owner --group --suffix", "-t --target-directory"),
    "mkdir": _opening("-m --mode"),
    "mktemp": _opening("--suffix", "-p --tmpdir"),
    "touch": _opening("-d -t --date --time", "-r --reference"),
    "truncate": _opening("-s --size", "-r --reference"),
    "shred": _opening("-n -s --iterations --size"),
    "split": _opening("-b -l -n -a -C --bytes --lines --number --suffix-length"),
    "csplit": _opening("-b -n --suffix-format --digits", "-f --prefix", opens=1),
    "setfacl": _opening("-m -x --modify --remove"),
    "patch": _opening("-p -F --strip --fuzz", "-i -o -d -r --input --output --directory"),
    "dd": Grammar(every=True, paths=_find_dd_paths, opens=ALL),
    # Archives.
    "tar": _opening(
        "-b -H -I -N --format --exclude --transform --strip-components --owner --group --mode",
        "-f -C -g -T -X --file --directory --files-from --exclude-from --listed-incremental",
        skip=1,  # `tar xzf x.tgz`
    ),
    **dict.fromkeys(names("7z 7za 7zz ar jar"), _opening(skip=1)),
    **dict.fromkeys(
        names("gzip gunzip bzip2 bunzip2 xz unxz zstd unzstd lz4 unlz4 compress uncompress"),
        _opening("-S --suffix -T --threads -b", "-o --output"),
    ),
    "zip": _opening("-x -i -n -t -P --exclude --include --password", "-b --temp-path"),
    "unzip": _opening("-x -P", "-d", opens=1),
    # Editors, shells, interpreters and compilers.
    **dict.fromkeys(
        names("vi vim nvim view ex ed nano pico emacs"), _opening("-c --cmd -T --eval")
    ),
    **dict.fromkeys(
        names("sh bash dash zsh ksh mksh ash rbash fish"),
        _opening("-c -o -O", "--rcfile --init-file", opens=1, unless="-c -s"),
    ),
    **dict.fromkeys(names("source . cd pushd chdir"), _opening(opens=1)),
    **dict.fromkeys(
        names("python python2 python3 pypy pypy3"), _opening("-m -W -X", opens=1, unless="-c -m")
    ),
    **dict.fromkeys(
        names("node nodejs"),
        _opening(
            "-r --require --import",
            opens=1,
            unless="-e --eval -p --print",
        ),
    ),
    **dict.fromkeys(names("perl ruby"), _opening("-M -m -r", "-I", opens=1, unless="-e -E")),
    **dict.fromkeys(names("lua Rscript"), _opening("-l", opens=1, unless="-e")),
    "php": _opening("-d", "-c -f -t", opens=1, unless="-r -S"),
    **dict.fromkeys(names("cc gcc g++ c++ clang clang++"), _opening("-x -D -U", "-o")),
    # Programs with a few files among other words.
    **dict.fromkeys(
        names("scp rsync"),
        _opening(
            "-e -P -p -l -o -c -J --rsh --exclude --include --bwlimit --port",
            "-F -i --exclude-from --include-from --files-from --log-file",
        ),
    ),
    "wget": Grammar(
        files=(
            "-O -o -a -P -i --output-document --output-file --append-output --directory-prefix"
            " --input-file --post-file"
        )
    ),
    "sqlite3": _opening(opens=1),
    **dict.fromkeys(
        names("docker podman nerdctl"),
        Grammar(
            valued=(
                "-e --env --tag --tail --publish --label --user --hostname --name --network"
                " --platform --target --build-arg --entrypoint --restart"
            ),
            files="--env-file --iidfile --cidfile",
        ),
    ),
    "date": Grammar(valued="-d -s --date --set", files="-f -r --file --reference"),
    "shuf": Grammar(valued="-n -i --head-count --input-range", files="-o --output --random-source"),
    **dict.fromkeys(
        names("kubectl oc"), Grammar(valued="-n --namespace -o -l --context", files="--kubeconfig")
    ),
    **dict.fromkeys(
        names("make gmake"), Grammar(valued="-j -l", files="-f -C -I -o -W --file --directory")
    ),
}
# Programs that open nothing: their words are numbers, names and texts.
WITHOUT_PATHS = names(
    "echo printf sleep usleep true false : seq expr cal yes pwd basename dirname factor numfmt"
    " whoami id groups logname uname uptime free nproc arch tty printenv kill ps jobs wait fg bg"
    " disown read getopts let unset set shopt shift exit return break continue type which whereis"
    " whatis apropos ulimit umask clear reset"
)
# How many of a program's first operands are its own names, not paths when they look plain.
SUBCOMMANDS: dict[str, int] = {
    **dict.fromkeys(names("git hg svn go cargo rustup pip pip3 uv poetry pipenv conda"), 1),
    **dict.fromkeys(names("brew apt apt-get dnf yum apk snap terraform helm bundle gem mix"), 1),
    **dict.fromkeys(names("dotnet mvn gradle flutter dart deno composer vagrant pulumi just"), 1),
    **dict.fromkeys(names("npm pnpm yarn bun docker podman gh glab aws gcloud az kubectl"), 2),
    **dict.fromkeys(names("make gmake ninja rake invoke tox nox"), ALL),
}
# Which parts of a find expression are paths; all others are text.
FIND_FILES = names(
    "-newer -anewer -cnewer -samefile -fprint -fprint0 -fprintf -fls -files0-from -f"
)

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
