"""Find the paths that a text names, and judge whether they lie inside the bounds.

A text is cut at the characters that may stand around a path (blanks, quotes, brackets, ``= : , @ <
> | ; &``). Every piece that begins with ``/`` or ``~`` or climbs with ``..`` names a path; the text
as a whole is a path too, so that a symbolic link with a plain name is followed. An address
(``https://host/x``) names no path, unless it climbs or its scheme is the name of a file. Each text
is judged as it is, percent-decoded, with escapes decoded, and with lookalike characters folded,
because some tool may read it that way. All readings must be inside.

A path is inside when both its physical form (links followed, then ``..``) and its written form
(``..`` removed, then links followed) are.

In a working directory that lies outside, every relative name would be out of bounds, so there it
matters what a word is: see ``Naming``. In one that lies inside, every word is judged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from fnmatch import fnmatchcase, translate
from urllib.parse import unquote

from edictum.contracts.sandbox._shell import decode_escapes

MAX_PATH = 4096
MAX_FILE_NAME = 255
MAX_CHECKS = 20_000
MAX_ENTRIES = 100_000  # of directories, while matching wildcards
DIRECTORY_COST = 100  # opening a directory, in entries
MAX_PATTERN = 1024
MAX_WILDCARDS = 24
# Devices that reveal nothing and store nothing.
HARMLESS = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty"})

_FULL_PATH = "; the working directory lies outside as well, so write the full path"
_DESCRIPTOR = re.compile(r"/dev/fd/\d+")
_AROUND = re.compile(r"[\s\0\"'`;|&<>(){}\[\],:=@!#]")
_PIECE = re.compile(r"[^\s\0\"'`;|&<>(){}\[\],:=@!#]+")
_WHOLE = re.compile(r"[^\n\0]*\Z")
_PATH_SIGN = re.compile(r"[/~%\\$=:,@\x80-\U0010ffff]|\.\.|^-.")
_ATTACHED = re.compile(r"-[A-Za-z]{1,3}(?=[/~])|-[A-Za-z](?=.)")
_CLUSTER = re.compile(r"-[A-Za-z0-9#]+")
MAX_SPLITS = 16
_HOME_OF = re.compile(r"~[A-Za-z_+-]?[\w.-]*")
_PERCENT = re.compile(r"%[0-9A-Fa-f]{2}")
_ESCAPE = re.compile(r"\\[xuU0-7]")
_VERSION = re.compile(r"~\d+(?:\.[\w-]+)+\Z")  # no user has such a name
# What looks like a path behind a cut but never is one: `app/[id]/x`, `(auth)/x`, `{{name}}/x`,
# `C#/x`, `</p>`, `#!/bin/sh`.
_BRACKETED_NAME = re.compile(r"(?:\[[\w. -]+\]|\([\w. -]+\)|\{\{[\w. -]+\}\}|(?<=\w)#)(?=/)")
_NO_PATH = re.compile(r"</[A-Za-z][A-Za-z0-9:-]*>|\A#!/(?:usr/)?(?:local/)?bin/[\w-]+")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_URL_END = re.compile(r"[\s\"'`<>|;,)\]}]")
_DOT_WILDCARD = re.compile(r"\.[*?\[]")
_WILDCARD = re.compile(r"[*?\[]")
_BRACKET = re.compile(r"\[([!^]?)([^]\[\\!^]+)\]")
_ANY_BRACKETS = re.compile(r"\[.*\]", re.DOTALL)
_CUTTING = " \t\"'`;|&<>(){}[],:=@!#"
_HIDE = {ord(character): 0xE000 + ord(character) for character in _CUTTING}
_SHOW = {hidden: character for character, hidden in _HIDE.items()}
_LOOKALIKES = str.maketrans("\uff0f\u2215\u2044\uff0e\u2024\uff5e", "///..~") | {0x2025: ".."}


class Naming(Enum):
    """What a relative name without ``..`` is, when the working directory lies outside."""

    PATH = auto()  # certainly a path: judged
    WORD = auto()  # possibly a path: judged if something of that name exists
    TEXT = auto()  # certainly not a path


class TooMany(ValueError):
    """A call names more paths than can be looked at in a reasonable time."""


def readings(text: str) -> list[str]:
    """Return the text and every other way a tool may read it."""
    found = [text]
    decoded = text
    for _ in range(3):
        if not _PERCENT.search(decoded):
            break
        decoded = unquote(decoded, errors="replace")
        found.append(decoded)
    if _ESCAPE.search(text):
        found.append(decode_escapes(text))
    if "..\\" in text or "\\.." in text:
        found.append(text.replace("\\", "/"))
    if not text.isascii():
        found.append(text.translate(_LOOKALIKES))
    return list(dict.fromkeys(found))


def expand_variables(text: str) -> str:
    """Fill in ``$NAME`` and ``${NAME}`` from the environment, as some tools do with arguments."""

    def value_of(found: re.Match[str]) -> str:
        name = found.group(1) or found.group(2)
        return os.path.expanduser("~") if name == "HOME" else os.environ.get(name, "")

    return _VARIABLE.sub(value_of, text)


def blank_urls(text: str) -> str:
    """Return the text without network addresses; ``file:`` and ``scheme:///path`` name paths."""
    kept, at = [], 0
    for start, mark, end in _urls(text):
        host, slash, rest = text[mark + 3 : end].partition("/")
        path = slash + rest if not host else ""
        if text[start:mark].lower() == "file":  # file://host/path
            path = slash + rest if slash else f"/{host}"
        kept.append(f"{text[at:start]} {path}")
        at = end
    return "".join(kept) + text[at:]


def _urls(text: str) -> Iterator[tuple[int, int, int]]:
    """Return where each address begins, where its ``://`` stands and where it ends."""
    at = 0
    while (mark := text.find("://", at)) >= 0:
        start = _scheme_start(text, mark, at)
        at = found.start() if (found := _URL_END.search(text, mark + 3)) else len(text)
        yield start, mark, at


def _scheme_start(text: str, mark: int, floor: int) -> int:
    start = mark
    while start > max(floor, mark - 32) and (text[start - 1].isalnum() or text[start - 1] in "+.-"):
        start -= 1
    return start


def find_paths(
    text: str, spaced: Sequence[str] = (), *, clusters: bool = True, whole: bool = False
) -> Iterator[str]:
    """Return the pieces of a text that name a path.

    ``spaced`` are allowed directories whose own names contain a cutting character: they are kept in
    one piece. In a text of several words, only what looks like a path is one; in a single word, any
    piece may be the name of a file or of a link. Without ``clusters``, what follows the first
    letter of an option is its value. A ``whole`` text is one path: a bracket in it belongs to a
    name.
    """
    text = _NO_PATH.sub(" ", blank_urls(text))
    several = len(text.split(None, 1)) > 1
    # The cutting characters inside names that are kept in one piece are replaced.
    if whole or not several:
        text = _BRACKETED_NAME.sub(lambda found: found.group().translate(_HIDE), text)
    for root in spaced:
        text = text.replace(root, root.translate(_HIDE))
    for found in _PIECE.finditer(text):
        is_start = found.start() == 0 or text[found.start() - 1] in "=:@"
        for piece, attached in _option_values(found.group(), clusters=clusters, sentence=several):
            shown = piece.translate(_SHOW)
            if _names_path(shown, leads=attached or is_start, several=several):
                yield shown


def _names_path(piece: str, *, leads: bool, several: bool) -> bool:
    """Return whether a piece names a path. In a sentence or in code a lone ``/`` divides; where it
    ``leads``, at the start or after ``=``, it is the root.
    """
    if piece in ("/", "~"):
        return leads
    return not several or "/" in piece or _leads_out(piece)


def _option_values(piece: str, *, clusters: bool, sentence: bool) -> Iterator[tuple[str, bool]]:
    """Return the piece, or what may be attached to an option: ``-cvf../x`` may end in ``../x``."""
    attached = _ATTACHED.match(piece)
    if attached is None:
        yield piece, False
        return
    ends = {attached.end() if clusters else 2}
    if clusters and not sentence:
        cluster = _CLUSTER.match(piece)
        last = cluster.end() if cluster else 2
        ends = {*range(2, min(last, MAX_SPLITS) + 1), last}
    for end in sorted(ends):
        if end < len(piece):
            yield piece[end:], True


def _leads_out(piece: str) -> bool:
    """Return whether a piece is absolute, begins with a home directory, or climbs."""
    if piece.startswith("~"):
        home = _HOME_OF.match(piece)
        return home is not None and home.end() in (len(piece), piece.find("/"))
    return piece.startswith("/") or ".." in piece.split("/")


class PathBounds:
    """The directories that may be named and those that may not."""

    def __init__(self, within: Iterable[str], not_within: Iterable[str], cwd: str | None) -> None:
        for path in (*within, *not_within, *([cwd] if cwd else [])):
            _check_bound(path)
        self.cwd = os.path.expanduser(os.path.expandvars(cwd)) if cwd else None
        self.within = tuple(dict.fromkeys(self._root(path) for path in within))
        self.not_within = tuple(dict.fromkeys(self._root(path) for path in not_within))
        self.spaced = [root for root in (*self.within, *within) if _AROUND.search(root)]
        self.listed = ", ".join(self.within)

    @property
    def given(self) -> bool:
        return bool(self.within or self.not_within)

    def _root(self, path: str) -> str:
        return os.path.realpath(
            os.path.join(self.base(), os.path.expanduser(os.path.expandvars(path)))
        )

    def base(self) -> str:
        """Return the directory that relative paths start from."""
        return os.path.realpath(self.cwd) if self.cwd else os.getcwd()


def _check_bound(path: str) -> None:
    """Raise ValueError for a bound that no path can lie in: it would silently do nothing."""
    text = os.path.expanduser(os.path.expandvars(path))
    if "\0" in text or os.path.lexists(text):
        return
    if found := _VARIABLE.search(text):
        raise ValueError(f"'{path}' names the variable {found.group()}, which is not set")
    if text.startswith("~"):
        raise ValueError(f"'{path}' names the home of a user that does not exist here")
    if _WILDCARD.search(text):
        message = f"'{path}' has a wildcard, and bounds are directories with all that is in them"
        raise ValueError(f"{message}; name the directories")


class PathChecker:
    """Judges the texts of one call; remembers what it has judged, and how much.

    Each ``check_`` method returns a sentence for every path that is out of bounds; callers take the
    first, and nothing is looked up for the others.
    """

    def __init__(self, bounds: PathBounds) -> None:
        self.bounds = bounds
        self.seen: set[tuple[str, str]] = set()
        self.trusted: dict[str, bool] = {}
        self.outside: dict[str, bool] = {}
        self.listed_entries = 0

    def check_text(
        self,
        text: str,
        bases: Sequence[str],
        shown: str | None = None,
        *,
        naming: Naming = Naming.PATH,
        expands: bool = False,
        clusters: bool = True,
        whole: bool = False,
    ) -> Iterator[str]:
        """Judge every path that a text names."""
        if not _PATH_SIGN.search(text):
            yield from self._check_plain(text, bases, shown, naming)
        else:
            for reading in readings(text):
                yield from self._check_addresses(reading, bases, shown)
                for candidate in self._candidates(reading, clusters=clusters, whole=whole):
                    kind = Naming.WORD if candidate.startswith("-") else naming  # an option
                    yield from self.check_path(candidate, bases, shown or candidate, kind)
        if expands and _WILDCARD.search(text):
            yield from self._check_wildcards(text, bases)

    def _check_addresses(self, text: str, bases: Sequence[str], shown: str | None) -> Iterator[str]:
        """Judge addresses that are paths too: ``a://../x`` climbs, and ``a:`` may be a link."""
        if "://" not in text:
            return
        for address in dict.fromkeys((text, *(text[start:end] for start, _, end in _urls(text)))):
            for base in bases:
                scheme = os.path.join(base, address.partition("://")[0] + ":")
                is_file = len(scheme) <= MAX_PATH and "\0" not in scheme and os.path.lexists(scheme)
                if is_file or ".." in address.split("/"):
                    yield from self.check_path(address, [base], shown or address)

    def _check_wildcards(self, pattern: str, bases: Sequence[str]) -> Iterator[str]:
        """Judge the files that a pattern matches now: ``out*`` may be a link that leads out."""
        if len(pattern) > MAX_PATTERN or len(_WILDCARD.findall(pattern)) > MAX_WILDCARDS:
            raise TooMany(f"The pattern '{pattern:.80}' is too long to judge.")
        pattern = os.path.expanduser(pattern)
        segments = pattern.split("/")
        climbing = "/".join(".." if _may_mean_parent(piece) else piece for piece in segments)
        if climbing != pattern and any(self.check_path(climbing, bases, climbing)):
            wildcard = f"Wildcard {pattern!r:.200} also means '..' in some shells"
            yield f"{wildcard}, which leads out; write '.[!.]*' for hidden files."
        for root in ["/"] if pattern.startswith("/") else bases:
            for match in self._expand(root, list(filter(None, segments))):
                yield from self.check_path(match, [root], os.path.relpath(match, root))

    def _expand(self, place: str, segments: Sequence[str]) -> Iterator[str]:
        """Return the files below a directory that a pattern may match in any shell."""
        if not segments:
            yield place
            return
        wanted, rest = _loosen(segments[0]), segments[1:]
        for name in self._list(place, wanted) if _WILDCARD.search(wanted) else (segments[0],):
            path = os.path.join(place, name)
            if not rest or os.path.isdir(path):
                yield from self._expand(path, rest)

    def _list(self, place: str, wanted: str) -> Iterator[str]:
        """Return the names in a directory that a segment matches; hidden ones only for a dot."""
        pattern = re.compile(translate(wanted), re.IGNORECASE)
        try:
            names = os.listdir(place)
        except OSError:
            return
        self.listed_entries += len(names) + DIRECTORY_COST
        if self.listed_entries > MAX_ENTRIES:
            raise TooMany("The wildcards of the call match in too many places to judge.")
        for name in names:
            if (wanted.startswith(".") or not name.startswith(".")) and pattern.match(name):
                yield name

    def _candidates(self, text: str, *, clusters: bool, whole: bool) -> Iterator[str]:
        """Return the text as a whole when it can be one relative path, and its pieces."""
        relative = "://" not in text and not text.startswith(("/", "~", "-"))
        if relative and len(text) <= MAX_PATH and _WHOLE.match(text):
            yield text
        yield from find_paths(text, self.bounds.spaced, clusters=clusters, whole=whole)

    def _check_plain(
        self, text: str, bases: Sequence[str], shown: str | None, naming: Naming
    ) -> Iterator[str]:
        """Judge a text without any sign of a path, which can be the name of a symbolic link."""
        if text and len(text) <= MAX_FILE_NAME and _WHOLE.match(text):
            yield from self.check_path(text, bases, shown or text, naming)

    def check_whole(self, text: str, bases: Sequence[str], naming: Naming) -> Iterator[str]:
        """Judge a text that is one path as a whole, if it is a path."""
        if not _PATH_SIGN.search(text):
            judge = self.check_path if "\0" in text else self._check_plain
            yield from judge(text, bases, text, naming)
            return
        for reading in dict.fromkeys((*readings(text), *readings(expand_variables(text)))):
            local = blank_urls(reading).strip() if "://" in reading else reading
            if local:  # more than an address
                yield from self.check_path(local, bases, text, naming)
            yield from self.check_text(reading, bases, text, naming=naming, whole=True)

    def check_path(
        self, path: str, bases: Sequence[str], shown: str, naming: Naming = Naming.PATH
    ) -> Iterator[str]:
        """Judge one path from each base."""
        path = os.path.expanduser(path)
        if "\0" in path or (path.startswith("~") and not _VERSION.match(path)):
            yield f"Path {shown!r:.200} cannot be resolved, so it cannot be judged."
            return
        for base in bases if not path.startswith("/") else ("/",):
            if self._is_judged(base, path, naming) and not self._is_settled(base, path):
                hint = "" if path.startswith("/") or not self.is_outside(base) else _FULL_PATH
                yield from self._check_resolved_path(os.path.join(base, path), shown, hint)

    def _is_judged(self, base: str, path: str, naming: Naming) -> bool:
        """Return whether a name is judged from a base; only ``Naming`` says so when that lies
        outside and the name neither is absolute nor climbs.
        """
        pieces = path.split("/")
        if naming is Naming.PATH or not pieces[0] or ".." in pieces or not self.is_outside(base):
            return True
        return naming is Naming.WORD and os.path.lexists(os.path.join(base, pieces[0]))

    def is_outside(self, base: str) -> bool:
        """Return whether a directory itself is out of bounds."""
        if base not in self.outside:
            self.outside[base] = any(self._check_resolved_path(base, base))
        return self.outside[base]

    def _is_settled(self, base: str, path: str) -> bool:
        """Return whether a path was judged before or is plainly inside; count it otherwise."""
        if (base, path) in self.seen or (self._trusts(base) and _is_plain_child(base, path)):
            return True
        self.seen.add((base, path))
        if len(self.seen) > MAX_CHECKS:
            raise TooMany(f"The call names more than {MAX_CHECKS} paths, too many to judge.")
        return False

    def _trusts(self, base: str) -> bool:
        """Return whether a base has no links, is inside, and has nothing forbidden below it."""
        if base not in self.trusted:
            covers_forbidden = any(_is_inside(root, base) for root in self.bounds.not_within)
            physical = not covers_forbidden and os.path.realpath(base) == base
            self.trusted[base] = physical and not any(self._check_resolved_path(base, base))
        return self.trusted[base]

    def _check_resolved_path(self, path: str, shown: str, hint: str = "") -> Iterator[str]:
        written, bounds = "/" + os.path.normpath(path).lstrip("/"), self.bounds
        is_harmless = written in HARMLESS or _DESCRIPTOR.fullmatch(written)
        if is_harmless and not _is_inside_any(written, bounds.not_within):
            return
        for form in _forms(path, written):
            for root in bounds.not_within:
                if _is_inside(form, root) or _may_match(form, root):
                    yield f"Path {shown!r:.200} is inside the forbidden directory {root}."
            if bounds.within and not _is_inside_any(form, bounds.within):
                outside = f"Path {shown!r:.200} is outside the allowed directories: {bounds.listed}"
                yield f"{outside}{hint}."


def _forms(path: str, written: str) -> Iterator[str]:
    """Return the path with ``..`` removed first, and as the kernel resolves it."""
    if len(written) > MAX_PATH:  # too long to open
        yield written
        return
    yield os.path.realpath(written)
    if ".." in path and len(path) <= MAX_PATH:
        yield os.path.realpath(path)


def _is_plain_child(base: str, path: str) -> bool:
    """Return whether a path stays below its base: relative, without ``..``, across no link."""
    if path.startswith("/"):
        return False
    pieces = path.split("/")
    if ".." in pieces or len(pieces) > 32 or len(base) + len(path) > MAX_PATH:
        return False
    place = base
    for piece in pieces:
        place = f"{place}/{piece}"
        if os.path.islink(place):
            return False
    return True


def _is_inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root if root.endswith("/") else root + "/")


def _is_inside_any(path: str, roots: Iterable[str]) -> bool:
    return any(_is_inside(path, root) for root in roots)


def _loosen(segment: str) -> str:
    """Return a segment of a pattern that matches in Python at least what any shell matches. Shells
    differ on ``[^a]``, which becomes any character, and on ``[[:alpha:]]``, which becomes any text.
    """
    if "[" in _BRACKET.sub("", segment):
        return _ANY_BRACKETS.sub("*", segment)
    return _BRACKET.sub(lambda found: "?" if found.group(1) else found.group(), segment)


def _may_mean_parent(piece: str) -> bool:
    """Return whether some shell reads it as ``..``: ``.?`` and ``.*``, but not ``.[!.]*``."""
    if not _DOT_WILDCARD.match(piece):
        return False
    without_dot = _BRACKET.sub(
        lambda found: "x" if found.group(1) and "." in found.group(2) else found.group(), piece
    )
    return fnmatchcase("..", _loosen(without_dot))


def _may_match(path: str, root: str) -> bool:
    """Return whether a path with wildcards can mean the forbidden directory."""
    if not _WILDCARD.search(path):
        return False
    pieces, wanted = [_loosen(piece) for piece in path.split("/")], root.split("/")
    pairs = zip(wanted, pieces, strict=False)
    return len(pieces) >= len(wanted) and all(fnmatchcase(want, piece) for want, piece in pairs)
