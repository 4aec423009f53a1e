"""Load YAML into a tree. This is the only module that imports a YAML library.

PyYAML's C parser gives events; the tree is made here, without recursion, so that depth, size and
aliases can be bounded and duplicate keys refused. Plain words follow YAML 1.2: only ``true`` and
``false`` are booleans, so ``no``, ``on`` and ``12:30`` stay text.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from edictum.contracts._language import MAX_BUNDLE_BYTES
from edictum.contracts._problems import BundleError, Place, Problems, Source, missing_packages
from edictum.contracts._regex import require_engine
from edictum.contracts._tree import (
    Map,
    Scalar,
    Seq,
    Tree,
    describe_value,
    read_plain_word,
    yaml_key_text,
)
from edictum.errors import EdictumConfigError

require_engine()
try:
    import yaml
    from yaml import events as ev

    try:
        from yaml.cyaml import CParser as _Parser  # type: ignore[attr-defined]  # made by Cython
    except ImportError:  # a PyYAML that was built without libyaml
        from yaml.loader import SafeLoader as _Parser  # type: ignore[assignment]  # the same events
except ImportError as exc:
    raise missing_packages() from exc

MAX_YAML_DEPTH = 64
MAX_NODES = 200_000  # even after aliases are followed
MAX_ALIASED = 8 << 20  # characters that aliases may stand for
MAX_NEAR = 200  # characters beside a place in which a cause is looked for
MAX_PATH_LIKE = 200  # characters of a text that is taken for a path
_PATH = re.compile(r"\S*[/\\]\S*|[^\n]*\.(ya?ml|json)", re.IGNORECASE)
# What both parsers say about a backslash in double quotes; the typo is theirs.
_ESCAPE = re.compile(r"escape|hexdecimal")
_BRACKETED = re.compile(r"[A-Za-z_][\w.-]*\[(?:\*|[0-9]+)\][\w.*\[\]-]*")
_NOT_YAML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")


def load_bundle(
    content: bytes | str, name: str, *, max_bytes: int = MAX_BUNDLE_BYTES
) -> tuple[Map, Problems]:
    """Return a bundle as a tree; raise BundleError at once for what is wrong with it as YAML."""
    tree, problems = load_yaml(content, name, max_bytes=max_bytes)
    if not isinstance(tree, Map):
        hint = _path_hint(tree) or "Start with 'apiVersion: edictum/v1'."
        problems.stop(tree, f"the document is {describe_value(tree)}, not a mapping", hint)
    return tree, problems


def _path_hint(tree: Tree) -> str:
    """Return which function to call instead, if a path was given in place of the text."""
    text = tree.value if isinstance(tree, Scalar) else None
    if not isinstance(text, str) or len(text) > MAX_PATH_LIKE or "://" in text:
        return ""
    call = f"from_yaml({text!r}) or reload(Path({text!r}))"
    return (
        f"This looks like a path. To read the file, call {call}." if _PATH.fullmatch(text) else ""
    )


def load_yaml(
    content: bytes | str, name: str, *, max_bytes: int = MAX_BUNDLE_BYTES
) -> tuple[Tree, Problems]:
    """Return any YAML document as a tree."""
    text = _decode(content, name, max_bytes)
    problems = Problems(Source(name, text))
    try:
        with pause_collection():
            tree = _Builder(problems).build(text)
    except yaml.YAMLError as exc:
        _report_yaml_error(exc, problems)
        raise BundleError(problems.errors) from exc
    except RecursionError:
        hint = f"Use at most {MAX_YAML_DEPTH} levels."
        problems.stop(Place(1, 1), "the document is nested too deeply", hint)
    problems.raise_if_any()
    return tree or Scalar(1, 1), problems


@contextmanager
def pause_collection() -> Iterator[None]:
    """Pause the garbage collector, which would take a third of the time and find no garbage."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def to_bytes(content: bytes | str) -> bytes:
    return content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")


def _decode(content: bytes | str, name: str, max_bytes: int) -> str:
    size = len(to_bytes(content))
    if size > max_bytes:
        raise EdictumConfigError(
            f"{name}: the bundle is too large ({size} bytes, at most {max_bytes}).",
            hint="Split it into layers, or raise max_bytes.",
        )
    if isinstance(content, str):
        return content.removeprefix("\ufeff")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        column = exc.start - content.rfind(b"\n", 0, exc.start)
        problems = Problems(Source(name, content.decode("utf-8", "replace")))
        message = f"byte 0x{content[exc.start]:02x} is not UTF-8"
        problems.stop(Place(line, column), message, "Save the file as UTF-8.")


def _report_yaml_error(exc: yaml.YAMLError, problems: Problems) -> None:
    mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
    if mark is None:
        _report_character(exc, problems)
        return
    message = getattr(exc, "problem", None) or "this is not YAML"
    context, start = getattr(exc, "context", None), getattr(exc, "context_mark", None)
    if context:
        began = f", which began in line {start.line + 1}" if start is not None else ""
        message = f"{message} ({context}{began})"
    place = _place_of(mark)
    if _ESCAPE.search(message):
        hint = "In double quotes a backslash begins an escape. Use single quotes."
    elif _is_tab(place, problems):
        message, hint = "there is a tab where only spaces are allowed", "Indent with spaces."
    elif selector := _find_bare_selector(place, problems):
        hint = f"Inside braces a selector with brackets is quoted: {{'{selector}': ...}}."
    else:
        hint = "Check indentation, quotes and colons around this place."
    problems.shape(place, f"not valid YAML: {message}", hint)


def _line_at(place: Place, problems: Problems) -> str:
    lines = problems.source.lines
    return lines[place.line - 1] if place.line <= len(lines) else ""


def _is_tab(place: Place, problems: Problems) -> bool:
    return _line_at(place, problems)[place.column - 1 : place.column] == "\t"


def _find_bare_selector(place: Place, problems: Problems) -> str:
    """Return the selector with brackets that YAML has read as the start of a list, or ""."""
    at = place.column - 1
    start = max(0, at - MAX_NEAR)
    near = _line_at(place, problems)[start : at + MAX_NEAR]
    found = _BRACKETED.finditer(near)
    return next((it.group() for it in found if it.start() < at - start <= it.end()), "")


def _report_character(exc: yaml.YAMLError, problems: Problems) -> None:
    """Report an error without a place: usually a character that YAML does not allow."""
    found = _NOT_YAML.search(problems.source.text)
    before = problems.source.text[: found.start()] if found else ""
    message = f"not valid YAML: {' '.join(str(exc).split())}"
    if found:
        message = f"the character {found.group()!r} is not allowed in YAML"
    place = Place(before.count("\n") + 1, len(before) - before.rfind("\n"))
    problems.shape(place, message, "Remove it, or write it as an escape in double quotes.")


def _place_of(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1)


class _Measure(NamedTuple):
    """How many values a document has, how many characters they have, and how deep they are
    nested.
    """

    values: int
    length: int
    depth: int


class _Builder:
    """Makes the tree from events, with a stack instead of recursion."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.anchors: dict[str, tuple[Tree, _Measure]] = {}
        self.stack: list[tuple[Map | Seq, str | None]] = []  # open containers and their anchors
        self.anchor_starts: list[_Measure] = []  # of each open container with an anchor
        self.key: Scalar | None = None
        self.pending_keys: list[Scalar | None] = []  # where each open container will be stored
        self.count = 0
        self.aliased = 0
        self.length = 0  # characters of all values, aliases included
        self.depth = 0  # the deepest level since the last open anchor
        self.root: Tree | None = None

    def build(self, text: str) -> Tree | None:
        get_event = _Parser(text.encode("utf-8", "surrogatepass")).get_event
        handlers: dict[type[Any], Callable[[Any], None]] = {
            ev.ScalarEvent: self._add_scalar,
            ev.MappingStartEvent: lambda event: self._open(event, Map),
            ev.SequenceStartEvent: lambda event: self._open(event, Seq),
            ev.MappingEndEvent: self._close,
            ev.SequenceEndEvent: self._close,
            ev.AliasEvent: self._follow_alias,
            ev.DocumentStartEvent: self._start_document,
        }
        while (event := get_event()) is not None:
            handler = handlers.get(type(event))
            if handler is not None:
                handler(event)
            elif type(event) is ev.StreamEndEvent:
                break
        return self.root

    def _start_document(self, event: Any) -> None:
        if self.root is not None:
            hint = "Use one document per file; load several files as layers."
            self._refuse(event, "there is a second document", hint)

    def _refuse(self, event: Any, message: str, hint: str) -> NoReturn:
        self.problems.stop(_place_of(event.start_mark), message, hint)

    def _expects_key(self) -> bool:
        return self.key is None and bool(self.stack) and type(self.stack[-1][0]) is Map

    def _add_scalar(self, event: Any) -> None:
        value, style, tag, mark = event.value, event.style, event.tag, event.start_mark
        if tag is None:
            if not style:
                value = read_plain_word(value)
        elif tag not in _TEXT_TAGS:
            hint = "Remove the tag; quote the value to make it text."
            self._refuse(event, f"the tag {tag!r} is not supported", hint)
        tree = Scalar(mark.line + 1, mark.column + 1, value, style or "")
        self.length += len(event.value)
        if event.anchor is None and self._expects_key():
            self.count += 1
            self.key = tree
        else:
            self._add(tree, event.anchor)

    def _open(self, event: Any, kind: type[Map | Seq]) -> None:
        if event.tag is not None:
            self._refuse(event, f"the tag {event.tag!r} is not supported", "Remove the tag.")
        if len(self.stack) >= MAX_YAML_DEPTH:
            message = f"the document is nested more than {MAX_YAML_DEPTH} levels deep"
            self._refuse(event, message, "Flatten it.")
        if self._expects_key():
            self._refuse(event, "a key is a mapping or a list", "Keys are plain words.")
        self.pending_keys.append(self.key)
        self.key = None
        mark = event.start_mark
        self.stack.append((kind(mark.line + 1, mark.column + 1), event.anchor))
        if event.anchor is not None:
            self.anchor_starts.append(_Measure(self.count, self.length, self.depth))
            self.depth = 0
        self.depth = max(self.depth, len(self.stack))

    def _close(self, event: Any) -> None:
        container, anchor = self.stack.pop()
        self.key = self.pending_keys.pop()
        if anchor is not None:
            start = self.anchor_starts.pop()
            size = _Measure(
                self.count - start.values, self.length - start.length, self.depth - len(self.stack)
            )
            self.anchors[anchor] = container, size
            self.depth = max(self.depth, start.depth)
        self._add(container, None)

    def _follow_alias(self, event: Any) -> None:
        if event.anchor not in self.anchors:
            message = f"the alias *{event.anchor} refers to nothing above it, or to itself"
            self._refuse(event, message, f"Define &{event.anchor} first.")
        tree, size = self.anchors[event.anchor]
        self.count += size.values
        self.length += size.length
        self.aliased += size.length
        self.depth = max(self.depth, len(self.stack) + size.depth)
        self._check_size(event)
        if isinstance(tree, Scalar):
            mark = event.start_mark
            place = mark.line + 1, mark.column + 1
            tree = Scalar(*place, tree.value, tree.style, written=tree)
        self._add(tree, None)

    def _check_size(self, event: Any) -> None:
        """Refuse aliases that make the document too large: one value can stand in many places."""
        if self.count > MAX_NODES:
            message = f"aliases make the document larger than {MAX_NODES} values"
            self._refuse(event, message, "Use fewer aliases.")
        if self.aliased > MAX_ALIASED:
            message = f"aliases stand for more than {MAX_ALIASED} characters"
            self._refuse(event, message, "Use fewer aliases, or shorter values.")
        if self.depth > MAX_YAML_DEPTH:
            message = f"aliases nest the document more than {MAX_YAML_DEPTH} levels deep"
            self._refuse(event, message, "Flatten it.")

    def _add(self, tree: Tree, anchor: str | None) -> None:
        self.count += 1
        if anchor is not None and isinstance(tree, Scalar):
            self.anchors[anchor] = tree, _Measure(1, len(str(tree.value)), 0)
        if not self.stack:
            self.root = tree
            return
        top = self.stack[-1][0]
        if type(top) is Seq:
            top.items.append(tree)
        elif self.key is None:
            self.key = tree  # type: ignore[assignment]  # _open refuses a container as a key
        else:
            self._put(top, self.key, tree)  # type: ignore[arg-type]  # not a Seq, so a Map
            self.key = None

    def _put(self, top: Map, key: Scalar, tree: Tree) -> None:
        name = key.value if type(key.value) is str else yaml_key_text(key.value)
        if name == "<<" and not key.style:
            self.problems.stop(key, "merge keys ('<<') are not supported", "Write the keys out.")
        if name in top.keys:
            message = f"the key '{name}' appears twice (first in line {top.keys[name].line})"
            self.problems.shape(key, message, "Keep one of them.")
            return
        top.keys[name] = key
        top.values[name] = tree
