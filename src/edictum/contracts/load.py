"""From bytes to a tree in which every value knows its line and column. The only module that imports
a YAML library.

PyYAML's C parser gives events; the tree is made here, without recursion, so that depth, size and
aliases can be bounded and duplicate keys refused. Plain words follow YAML 1.2: only ``true`` and
``false`` are booleans, so ``no``, ``on`` and ``12:30`` stay text.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from edictum.contracts.problems import BundleError, Place, Problems, Source
from edictum.errors import EdictumConfigError

try:
    import yaml
    from yaml import events as ev

    try:
        from yaml.cyaml import CParser as _Parser  # type: ignore[attr-defined]
    except ImportError:  # a PyYAML that was built without libyaml
        from yaml.loader import SafeLoader as _Parser  # type: ignore[assignment]
except ImportError as exc:
    raise EdictumConfigError(
        "YAML contracts need the packages PyYAML and google-re2.",
        hint="Install them with: pip install 'edictum[yaml]'.",
    ) from exc

MAX_BYTES = 1_048_576
MAX_DEPTH = 64
MAX_NODES = 200_000  # also after aliases are followed
MAX_ALIASED = 8 << 20  # characters that aliases may stand for
MAX_PATH = 200  # characters of a text that is taken for a path
_PATH = re.compile(r"\S*[/\\]\S*|[^\n]*\.(ya?ml|json)", re.IGNORECASE)
_ESCAPE = re.compile(
    r"escape|hexdecimal"
)  # what both parsers say about a backslash in double quotes; the typo is theirs


class Scalar(Place):
    """A single value. ``style`` is '' for plain text, else the quote or block sign it was written
    with.
    """

    __slots__ = ("style", "value")

    def __init__(self, value: Any, style: str, line: int, column: int) -> None:
        self.value = value
        self.style = style
        self.line = line
        self.column = column


class Seq(Place):
    __slots__ = ("items",)

    def __init__(self, line: int, column: int) -> None:
        self.items: list[Tree] = []
        self.line = line
        self.column = column


class Map(Place):
    """A mapping. ``keys`` has the places of the keys."""

    __slots__ = ("keys", "values")

    def __init__(self, line: int, column: int) -> None:
        self.keys: dict[str, Scalar] = {}
        self.values: dict[str, Tree] = {}
        self.line = line
        self.column = column


Tree: TypeAlias = Scalar | Seq | Map


def load(content: bytes | str, name: str, *, max_bytes: int = MAX_BYTES) -> tuple[Map, Problems]:
    """A bundle as a tree. Whatever is wrong with it as YAML is raised at once: there is nothing
    more to be said about it.
    """
    tree, problems = load_any(content, name, max_bytes=max_bytes)
    if not isinstance(tree, Map):
        problems.shape(
            tree,
            f"the document is {describe(tree)}, not a mapping",
            _path_hint(tree) or "Start with 'apiVersion: edictum/v1'.",
        )
        raise BundleError(problems.errors)
    return tree, problems


def _path_hint(tree: Tree) -> str:
    """What to call instead, for somebody who gave a path in the place of the text."""
    text = tree.value if isinstance(tree, Scalar) else None
    if (
        not isinstance(text, str)
        or len(text) > MAX_PATH
        or "://" in text
        or not _PATH.fullmatch(text)
    ):
        return ""
    return (
        f"This looks like a path. To read the file, call from_yaml({text!r}) or"
        f" reload(Path({text!r}))."
    )


def load_any(
    content: bytes | str, name: str, *, max_bytes: int = MAX_BYTES
) -> tuple[Tree, Problems]:
    """Any YAML document as a tree."""
    text = _text(content, name, max_bytes)
    problems = Problems(Source(name, text))
    try:
        with no_collection():
            tree = _Builder(problems).build(text)
    except yaml.YAMLError as exc:
        _report_yaml_error(exc, problems)
        raise BundleError(problems.errors) from exc
    except RecursionError as exc:
        problems.shape(
            Place(1, 1), "the document is nested too deeply", f"Use at most {MAX_DEPTH} levels."
        )
        raise BundleError(problems.errors) from exc
    problems.raise_if_any()
    return tree or Scalar(None, "", 1, 1), problems


@contextmanager
def no_collection() -> Iterator[None]:
    """Loading makes thousands of new values and no garbage; looking for some would take a third of
    the time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _text(content: bytes | str, name: str, max_bytes: int) -> str:
    size = (
        len(content)
        if isinstance(content, bytes)
        else len(content.encode("utf-8", "surrogatepass"))
    )
    if size > max_bytes:
        hint = "Split it into layers, or raise max_bytes."
        raise EdictumConfigError(
            f"{name}: the bundle is too large ({size} bytes, at most {max_bytes}).", hint=hint
        )
    if isinstance(content, str):
        return content.removeprefix("\ufeff")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        column = exc.start - content.rfind(b"\n", 0, exc.start)
        message = f"byte 0x{content[exc.start]:02x} is not UTF-8"
        problems = Problems(Source(name, content.decode("utf-8", "replace")))
        problems.shape(Place(line, column), message, "Save the file as UTF-8.")
        raise BundleError(problems.errors) from exc


def _report_yaml_error(exc: yaml.YAMLError, problems: Problems) -> None:
    mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
    if mark is not None:
        message = getattr(exc, "problem", None) or "this is not YAML"
        context, began = getattr(exc, "context", None), getattr(exc, "context_mark", None)
        since = (
            f" ({context}{f', which began in line {began.line + 1}' if began is not None else ''})"
            if context
            else ""
        )
        hint = "Check indentation, quotes and colons around this place."
        if _ESCAPE.search(message):
            hint = (
                "In double quotes a backslash begins an escape. Use single quotes: there it stands"
                " for itself, as patterns need it."
            )
        problems.shape(
            Place(mark.line + 1, mark.column + 1), f"not valid YAML: {message}{since}", hint
        )
        return
    found = re.search(
        r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]", problems.source.text
    )
    before = problems.source.text[: found.start()] if found else ""
    place = Place(before.count("\n") + 1, len(before) - before.rfind("\n"))
    what = (
        f"the character {found.group()!r} is not allowed in YAML"
        if found
        else f"not valid YAML: {' '.join(str(exc).split())}"
    )
    problems.shape(place, what, "Remove it, or write it as an escape in double quotes.")


def describe(tree: Tree | None) -> str:
    """What a value is, in words, for error messages."""
    if isinstance(tree, Map):
        return "a mapping"
    if isinstance(tree, Seq):
        return "a list"
    if tree is None or tree.value is None:
        return "empty"
    kind = {bool: "true or false", int: "a number", float: "a number"}.get(type(tree.value), "text")
    shown = (
        repr(tree.value)
        if isinstance(tree.value, str)
        else str(tree.value).lower()
        if isinstance(tree.value, bool)
        else str(tree.value)
    )
    return f"{kind} ({shown if len(shown) <= 60 else shown[:57] + '...'})"


# --- Plain words ----------------------------------------------------------------------------------

_NUMBER_START = frozenset("-+.0123456789")
_INT = re.compile(r"[-+]?[0-9]{1,400}")
_BASED = re.compile(r"0x[0-9a-fA-F]{1,64}|0o[0-7]{1,64}")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,4})?")
_WORDS: dict[str, Any] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
    ".inf": float("inf"),
    "+.inf": float("inf"),
    "-.inf": float("-inf"),
    ".nan": float("nan"),
}


def plain(text: str) -> Any:
    """The value of an unquoted word."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_START:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text


# --- The tree -------------------------------------------------------------------------------------

_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")


class _Loader(_Parser):
    """The parser alone; the resolver and constructor of PyYAML are not used."""


class Measure(NamedTuple):
    """How many values there are, how many characters they have, how deep they are nested."""

    values: int
    length: int
    depth: int


class Anchor(NamedTuple):
    tree: Tree
    size: Measure


class _Builder:
    """Makes the tree from events, with a stack instead of recursion."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.anchors: dict[str, Anchor] = {}
        self.stack: list[tuple[Map | Seq, str | None]] = []  # open containers and their anchors
        self.open_anchors: list[
            Measure
        ] = []  # of the open containers that have one: what was measured when they began
        self.key: Scalar | None = None
        self.pending: list[
            Scalar | None
        ] = []  # the key that each open container will be stored under
        self.count = 0
        self.aliased = 0
        self.length = 0  # characters of all values, aliases included
        self.reached = 0  # how deep it goes since the last open anchor
        self.root: Tree | None = None

    def build(self, text: str) -> Tree | None:
        get_event = _Loader(text.encode("utf-8", "surrogatepass")).get_event
        handlers: dict[type[Any], Callable[[Any], None]] = {
            ev.ScalarEvent: self._scalar,
            ev.MappingStartEvent: self._open_map,
            ev.SequenceStartEvent: self._open_seq,
            ev.MappingEndEvent: self._close,
            ev.SequenceEndEvent: self._close,
            ev.AliasEvent: self._alias,
            ev.DocumentStartEvent: self._document,
        }
        while (event := get_event()) is not None:
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event)
            elif type(event) is ev.StreamEndEvent:
                break
        return self.root

    def _document(self, event: Any) -> None:
        if self.root is not None:
            self._refuse(
                event,
                "there is a second document",
                "Use one document per file; load several files as layers.",
            )

    def _refuse(self, event: Any, message: str, hint: str) -> None:
        place = Place(event.start_mark.line + 1, event.start_mark.column + 1)
        self.problems.shape(place, message, hint)
        raise BundleError(self.problems.errors)

    def _scalar(self, event: Any) -> None:
        value, style, tag, mark = event.value, event.style, event.tag, event.start_mark
        if tag is None:
            if not style:
                value = plain(value)
        elif tag not in _TEXT_TAGS:
            self._refuse(
                event,
                f"the tag {tag!r} is not supported",
                "Remove the tag; quote the value to make it text.",
            )
        tree = Scalar(value, style or "", mark.line + 1, mark.column + 1)
        self.length += len(event.value)
        if (
            self.key is None
            and event.anchor is None
            and self.stack
            and type(self.stack[-1][0]) is Map
        ):
            self.count += 1
            self.key = tree
        else:
            self._add(tree, event.anchor)

    def _open_map(self, event: Any) -> None:
        self._open(event, Map(event.start_mark.line + 1, event.start_mark.column + 1))

    def _open_seq(self, event: Any) -> None:
        self._open(event, Seq(event.start_mark.line + 1, event.start_mark.column + 1))

    def _open(self, event: Any, container: Map | Seq) -> None:
        if event.tag is not None:
            self._refuse(event, f"the tag {event.tag!r} is not supported", "Remove the tag.")
        if len(self.stack) >= MAX_DEPTH:
            self._refuse(
                event, f"the document is nested more than {MAX_DEPTH} levels deep", "Flatten it."
            )
        if self.key is None and self.stack and type(self.stack[-1][0]) is Map:
            self._refuse(event, "a key is a mapping or a list", "Keys are plain words.")
        self.pending.append(self.key)
        self.key = None
        self.stack.append((container, event.anchor))
        depth = len(self.stack)
        if event.anchor is not None:
            self.open_anchors.append(Measure(self.count, self.length, self.reached))
            self.reached = depth
        elif depth > self.reached:
            self.reached = depth

    def _close(self, event: Any) -> None:
        container, anchor = self.stack.pop()
        self.key = self.pending.pop()
        if anchor is not None:
            began = self.open_anchors.pop()
            depth = self.reached - len(self.stack)
            self.anchors[anchor] = Anchor(
                container, Measure(self.count - began.values, self.length - began.length, depth)
            )
            self.reached = max(self.reached, began.depth)
        self._add(container, None)

    def _alias(self, event: Any) -> None:
        if event.anchor not in self.anchors:
            self._refuse(
                event,
                f"the alias *{event.anchor} refers to nothing above it, or to itself",
                f"Define &{event.anchor} first.",
            )
        tree, size = self.anchors[event.anchor]
        self.count += size.values
        self.length += size.length
        self.aliased += size.length
        self.reached = max(self.reached, len(self.stack) + size.depth)
        self._check_size(event)
        if isinstance(tree, Scalar):
            self._add(
                Scalar(
                    tree.value, tree.style, event.start_mark.line + 1, event.start_mark.column + 1
                ),
                None,
            )
        else:
            self._add(tree, None)

    def _check_size(self, event: Any) -> None:
        """What stands once in the text can stand many times in the document, and inside itself."""
        if self.count > MAX_NODES:
            self._refuse(
                event,
                f"aliases make the document larger than {MAX_NODES} values",
                "Use fewer aliases.",
            )
        if self.aliased > MAX_ALIASED:
            self._refuse(
                event,
                f"aliases stand for more than {MAX_ALIASED} characters",
                "Use fewer aliases, or shorter values.",
            )
        if self.reached > MAX_DEPTH:
            self._refuse(
                event, f"aliases nest the document more than {MAX_DEPTH} levels deep", "Flatten it."
            )

    def _add(self, tree: Tree, anchor: str | None) -> None:
        self.count += 1
        if anchor is not None and isinstance(tree, Scalar):
            self.anchors[anchor] = Anchor(tree, Measure(1, len(str(tree.value)), 0))
        if not self.stack:
            self.root = tree
            return
        top = self.stack[-1][0]
        if type(top) is Seq:
            top.items.append(tree)
        elif self.key is None:
            self.key = tree  # type: ignore[assignment]
        else:
            self._put(top, self.key, tree)  # type: ignore[arg-type]
            self.key = None

    def _put(self, top: Map, key: Scalar, tree: Tree) -> None:
        name = key.value if type(key.value) is str else _key_text(key.value)
        if name == "<<" and not key.style:
            self.problems.shape(key, "merge keys ('<<') are not supported", "Write the keys out.")
            raise BundleError(self.problems.errors)
        if name in top.keys:
            first = top.keys[name]
            self.problems.shape(
                key,
                f"the key '{name}' appears twice (first in line {first.line})",
                "Keep one of them.",
            )
            return
        top.keys[name] = key
        top.values[name] = tree


def _key_text(value: Any) -> str:
    """A key that YAML reads as a number or a flag is still the word that was written."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def to_plain(tree: Tree) -> Any:
    """The tree as ordinary Python data."""
    if isinstance(tree, Map):
        return {key: to_plain(value) for key, value in tree.values.items()}
    if isinstance(tree, Seq):
        return [to_plain(item) for item in tree.items]
    return tree.value
