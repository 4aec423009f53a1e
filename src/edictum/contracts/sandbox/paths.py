"""Paths: which paths a text names, and whether they lie inside the bounds.

A text is cut at the characters that may stand around a path (blanks, quotes, brackets, ``= : , @ <
> | ; &``). Every piece that begins with ``/`` or ``~`` or climbs with ``..`` names a path; the text
as a whole is a path too, so that a symbolic link with a plain name is followed. An address
(``https://host/x``) names no path, unless it climbs or its scheme is the name of a file. Each text
is judged in several readings: as it is, percent-decoded, with escapes decoded, and with lookalike
characters folded, because some tool behind the sandbox will read it that way. All readings must be
inside.

A path is inside when both its physical form (links followed, then ``..``) and its written form
(``..`` removed, then links followed) are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase, translate
from urllib.parse import unquote

from edictum.contracts.sandbox.shell import ansi_text

MAX_PATH = 4096
MAX_CHECKS = 20_000
# of directories, while looking for what wildcards match; opening a directory costs as much as some
# entries
MAX_ENTRIES = 100_000
DIRECTORY_COST = 100
MAX_PATTERN = 1024
MAX_WILDCARDS = 24
# Devices that hold nothing: reading gives nothing of anyone's, writing keeps nothing.
HARMLESS = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/tty"})

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
_VERSION = re.compile(r"~\d+(?:\.[\w-]+)+\Z")  # no user is called like that
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
_LOOKALIKES = str.maketrans(
    {
        "\uff0f": "/",
        "\u2215": "/",
        "\u2044": "/",
        "\uff0e": ".",
        "\u2024": ".",
        "\u2025": "..",
        "\uff5e": "~",
    }
)


class TooMany(ValueError):
    """A call names more paths than can be looked at in a reasonable time."""


def readings(text: str) -> list[str]:
    """The text and every other way a tool may read it."""
    found = [text]
    decoded = text
    for _ in range(3):
        if not _PERCENT.search(decoded):
            break
        decoded = unquote(decoded, errors="replace")
        found.append(decoded)
    if _ESCAPE.search(text):
        found.append(ansi_text(text))
    if "..\\" in text or "\\.." in text:
        found.append(text.replace("\\", "/"))
    if not text.isascii():
        found.append(text.translate(_LOOKALIKES))
    return list(dict.fromkeys(found))


def expanded(text: str) -> str:
    """``$NAME`` and ``${NAME}`` filled in from the environment, for tools that do so with their
    arguments.
    """
    return _VARIABLE.sub(lambda found: _environment(found.group(1) or found.group(2)), text)


def _environment(name: str) -> str:
    return os.path.expanduser("~") if name == "HOME" else os.environ.get(name, "")


def without_urls(text: str) -> str:
    """The text with network addresses blanked out. ``file:`` and ``scheme:///path`` stay: they name
    paths.
    """
    kept, at = [], 0
    for start, mark, end in _urls(text):
        local = text[start:mark].lower() == "file"
        if local:
            kept.append(text[at:start] + " " + _local_part(text[mark + 3 : end]))
        elif text.startswith("/", mark + 3):
            kept.append(text[at:start] + " " + text[mark + 3 : end])
        else:
            kept.append(text[at:start] + " ")
        at = end
    return "".join(kept) + text[at:]


def _urls(text: str) -> Iterator[tuple[int, int, int]]:
    """Where each address begins, where its ``://`` stands and where it ends."""
    at = 0
    while (mark := text.find("://", at)) >= 0:
        start = _scheme_start(text, mark, at)
        at = found.start() if (found := _URL_END.search(text, mark + 3)) else len(text)
        yield start, mark, at


def _local_part(rest: str) -> str:
    """``file://host/path`` is ``/path``."""
    return rest[rest.find("/") :] if "/" in rest else f"/{rest}"


def _scheme_start(text: str, mark: int, floor: int) -> int:
    start = mark
    while start > max(floor, mark - 32) and (text[start - 1].isalnum() or text[start - 1] in "+.-"):
        start -= 1
    return start


def named_paths(
    text: str, spaced: Sequence[str] = (), *, clusters: bool = True, whole: bool = False
) -> Iterator[str]:
    """The pieces of a text that name a path.

    ``spaced`` are allowed directories whose own names contain a cutting character: they are kept in
    one piece. In a text of several words, only what looks like a path is one; in a single word, any
    piece may be the name of a file or of a link. Without ``clusters``, what follows the first
    letter of an option is its value. A ``whole`` text is one path, so that a bracket in it belongs
    to a name.
    """
    text = _NO_PATH.sub(" ", without_urls(text))
    several = len(text.split(None, 1)) > 1
    if whole or not several:
        text = _BRACKETED_NAME.sub(lambda found: found.group().translate(_HIDE), text)
    for root in spaced:
        text = text.replace(root, root.translate(_HIDE))
    for found in _PIECE.finditer(text):
        for piece, attached in _values(found.group(), clusters=clusters, sentence=several):
            shown = piece.translate(_SHOW)
            if shown in ("/", "~"):
                # In a sentence or in code it divides or splits; at the start or after `=` it is the
                # root.
                if attached or found.start() == 0 or text[found.start() - 1] in "=:@":
                    yield shown
            elif _leads_out(shown) or "/" in shown or not several:
                yield shown


def _values(piece: str, *, clusters: bool, sentence: bool) -> Iterator[tuple[str, bool]]:
    """The piece, or when it is an option what may be attached to it: ``-cvf../x`` ends in a path
    behind any of its letters.
    """
    attached = _ATTACHED.match(piece)
    if attached is None:
        yield piece, False
        return
    cluster = _CLUSTER.match(piece)
    last = cluster.end() if cluster and clusters and not sentence else 2
    ends = (
        {*range(2, min(last, MAX_SPLITS) + 1), last}
        if clusters and not sentence
        else {attached.end() if clusters else 2}
    )
    for end in sorted(ends):
        if end < len(piece):
            yield piece[end:], True


def _leads_out(piece: str) -> bool:
    if piece.startswith("/"):
        return True
    if piece.startswith("~"):
        return _HOME_OF.match(piece).end() in (len(piece), piece.find("/"))  # type: ignore[union-attr]
    return ".." in piece and ".." in piece.split("/")


class PathBounds:
    """The directories that may be named and those that may not."""

    def __init__(self, within: Iterable[str], not_within: Iterable[str], cwd: str | None) -> None:
        self.cwd = cwd
        for path in (*within, *not_within):
            _check_bound(path)
        self.within = tuple(dict.fromkeys(self._root(path) for path in within))
        self.not_within = tuple(dict.fromkeys(self._root(path) for path in not_within))
        self.spaced = [root for root in (*self.within, *within) if _AROUND.search(root)]
        self.listed = ", ".join(self.within)

    @property
    def set(self) -> bool:
        return bool(self.within or self.not_within)

    def _root(self, path: str) -> str:
        return os.path.realpath(
            os.path.join(self.base(), os.path.expanduser(os.path.expandvars(path)))
        )

    def base(self) -> str:
        """The directory that relative paths start from."""
        return os.path.realpath(self.cwd) if self.cwd else os.getcwd()


def _check_bound(path: str) -> None:
    """A bound that no path can lie in would allow or forbid nothing, without a word."""
    text = os.path.expanduser(os.path.expandvars(path))
    if "\0" in text or os.path.lexists(text):
        return
    if found := _VARIABLE.search(text):
        raise ValueError(f"'{path}' names the variable {found.group()}, which is not set")
    if text.startswith("~"):
        raise ValueError(f"'{path}' names the home of a user that does not exist here")
    if _WILDCARD.search(text):
        raise ValueError(
            f"'{path}' has a wildcard, and bounds are directories with all that is in them; name"
            " the directories"
        )


class Looker:
    """Judges the texts of one call; it remembers what it has looked at and how much."""

    def __init__(self, bounds: PathBounds) -> None:
        self.bounds = bounds
        self.seen: set[tuple[str, str]] = set()
        self.sound: dict[str, bool] = {}
        self.looked = 0

    def text(
        self,
        text: str,
        bases: Sequence[str],
        shown: str | None = None,
        *,
        expands: bool = False,
        clusters: bool = True,
        whole: bool = False,
    ) -> str | None:
        """The violation of any path that a text names, else None."""
        if not _PATH_SIGN.search(text):
            return self.plain(text, bases, shown) or (
                self.matches(text, bases) if expands and _WILDCARD.search(text) else None
            )
        for reading in readings(text):
            if problem := self.addresses(reading, bases, shown):
                return problem
            for candidate in self.candidates(reading, clusters=clusters, whole=whole):
                if problem := self.path(candidate, bases, shown or candidate):
                    return problem
        return self.matches(text, bases) if expands and _WILDCARD.search(text) else None

    def addresses(self, text: str, bases: Sequence[str], shown: str | None) -> str | None:
        """The violation of an address that is a path as well: ``a://../../x`` climbs, and ``a:``
        may be a directory or a link.
        """
        if "://" not in text:
            return None
        for address in dict.fromkeys((text, *(text[start:end] for start, _, end in _urls(text)))):
            for base in bases:
                scheme = os.path.join(base, address.partition("://")[0] + ":")
                is_path = ".." in address.split("/") or (
                    len(scheme) <= MAX_PATH and "\0" not in scheme and os.path.lexists(scheme)
                )
                if is_path and (problem := self.path(address, [base], shown or address)):
                    return problem
        return None

    def matches(self, pattern: str, bases: Sequence[str]) -> str | None:
        """The violation of a file that a pattern with wildcards matches now: ``out*`` may be a link
        that leads out.
        """
        if len(pattern) > MAX_PATTERN or len(_WILDCARD.findall(pattern)) > MAX_WILDCARDS:
            raise TooMany(f"The pattern '{pattern:.80}' is too long to judge.")
        pattern = os.path.expanduser(pattern)
        climbing = "/".join(
            ".." if _is_parent_wildcard(piece) else piece for piece in pattern.split("/")
        )
        if climbing != pattern and self.path(climbing, bases, climbing):
            return (
                f"Wildcard {pattern!r:.200} also means '..' in some shells, which leads out; write"
                " '.[!.]*' for hidden files."
            )
        for base in bases:
            root = "/" if pattern.startswith("/") else base
            for match in self.matching(
                root, [segment for segment in pattern.split("/") if segment]
            ):
                if problem := self.path(match, [root], os.path.relpath(match, root)):
                    return problem
        return None

    def matching(self, place: str, segments: Sequence[str]) -> Iterator[str]:
        """The files below a directory that the segments of a pattern match. What a shell might
        match is matched.
        """
        if not segments:
            yield place
            return
        wanted, rest = loose(segments[0]), segments[1:]
        for name in self.entries(place, wanted) if _WILDCARD.search(wanted) else (segments[0],):
            path = os.path.join(place, name)
            if not rest or os.path.isdir(path):
                yield from self.matching(path, rest)

    def entries(self, place: str, wanted: str) -> Iterator[str]:
        """The names in a directory that one segment matches; those with a leading dot only when the
        segment has one.
        """
        pattern = re.compile(translate(wanted), re.IGNORECASE)
        try:
            names = os.listdir(place)
        except OSError:
            return
        self.looked += len(names) + DIRECTORY_COST
        if self.looked > MAX_ENTRIES:
            raise TooMany("The wildcards of the call match in too many places to judge.")
        yield from (
            name
            for name in names
            if (wanted.startswith(".") or not name.startswith(".")) and pattern.match(name)
        )

    def candidates(self, text: str, *, clusters: bool = True, whole: bool = False) -> Iterator[str]:
        """The text as a whole when it can be one relative path, and its pieces."""
        if (
            len(text) <= MAX_PATH
            and _WHOLE.match(text)
            and "://" not in text
            and not text.startswith(("/", "~", "-"))
        ):
            yield text
        yield from named_paths(text, self.bounds.spaced, clusters=clusters, whole=whole)

    def plain(self, text: str, bases: Sequence[str], shown: str | None = None) -> str | None:
        """A text without any sign of a path can still be the name of a symbolic link."""
        if not text or len(text) > 255 or not _WHOLE.match(text):
            return None
        return self.path(text, bases, shown or text)

    def whole(self, text: str, bases: Sequence[str]) -> str | None:
        """The violation of a text that is one path, because its argument says so."""
        if not _PATH_SIGN.search(text):
            return self.path(text, bases, text) if "\0" in text else self.plain(text, bases)
        for reading in dict.fromkeys((*readings(text), *readings(expanded(text)))):
            local = without_urls(reading).strip() if "://" in reading else reading
            if problem := self.path(local, bases, text) or self.text(
                reading, bases, text, whole=True
            ):
                return problem
        return None

    def path(self, path: str, bases: Sequence[str], shown: str) -> str | None:
        path = os.path.expanduser(path)
        if "\0" in path or (path.startswith("~") and not _VERSION.match(path)):
            return f"Path {shown!r:.200} cannot be resolved, so it cannot be judged."
        for base in bases if not path.startswith("/") else ("/",):
            if (base, path) in self.seen or (self.is_sound(base) and _is_plain_child(base, path)):
                continue
            self.seen.add((base, path))
            if len(self.seen) > MAX_CHECKS:
                raise TooMany(f"The call names more than {MAX_CHECKS} paths, too many to judge.")
            if problem := self.resolved(os.path.join(base, path), shown):
                return problem
        return None

    def is_sound(self, base: str) -> bool:
        """Whether a base is its own physical form and inside, and nothing below it is forbidden."""
        if base not in self.sound:
            covers_forbidden = any(_inside(root, base) for root in self.bounds.not_within)
            self.sound[base] = (
                not covers_forbidden
                and os.path.realpath(base) == base
                and self.resolved(base, base) is None
            )
        return self.sound[base]

    def resolved(self, path: str, shown: str) -> str | None:
        bounds = self.bounds
        written = "/" + os.path.normpath(path).lstrip("/")
        if _is_harmless(written) and not any(_inside(written, root) for root in bounds.not_within):
            return None
        for form in _forms(path, written):
            for root in bounds.not_within:
                if _inside(form, root) or _may_match(form, root):
                    return f"Path {shown!r:.200} is inside the forbidden directory {root}."
            if bounds.within and not any(_inside(form, root) for root in bounds.within):
                return f"Path {shown!r:.200} is outside the allowed directories: {bounds.listed}."
        return None


def _forms(path: str, written: str) -> Iterator[str]:
    """The path as the kernel resolves it and as a program that tidies it first does. What is too
    long to open is only tidied.
    """
    if len(written) > MAX_PATH:
        yield written
        return
    yield os.path.realpath(written)
    if ".." in path and len(path) <= MAX_PATH:
        yield os.path.realpath(path)


def _is_plain_child(base: str, path: str) -> bool:
    """Whether a path stays below its base without a closer look: it is relative, does not climb and
    crosses no link.
    """
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


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root if root.endswith("/") else root + "/")


def _is_harmless(path: str) -> bool:
    return path in HARMLESS or (path.startswith("/dev/fd/") and path[8:].isdigit())


def loose(segment: str) -> str:
    """One segment of a pattern so that Python matches at least what any shell does.

    Shells differ on ``[^a]`` and on ``[[:alpha:]]``: a negated bracket becomes any character, an
    odd one any text.
    """
    if "[" in _BRACKET.sub("", segment):
        return _ANY_BRACKETS.sub("*", segment)
    return _BRACKET.sub(lambda found: "?" if found.group(1) else found.group(), segment)


def _is_parent_wildcard(piece: str) -> bool:
    """Whether a shell may read it as ``..``: some do for ``.?`` and ``.*``, none for ``.[!.]*``."""
    if not _DOT_WILDCARD.match(piece):
        return False
    without_dot = _BRACKET.sub(
        lambda found: "x" if found.group(1) and "." in found.group(2) else found.group(), piece
    )
    return fnmatchcase("..", loose(without_dot))


def _may_match(path: str, root: str) -> bool:
    """Whether a path with wildcards can mean the forbidden directory."""
    if not _WILDCARD.search(path):
        return False
    pieces, wanted = [loose(piece) for piece in path.split("/")], root.split("/")
    return len(pieces) >= len(wanted) and all(
        fnmatchcase(want, piece) for want, piece in zip(wanted, pieces, strict=False)
    )
