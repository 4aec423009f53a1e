"""docs/reference/api.md: what people type, printed from signatures and docstrings, grouped by
subject.

The page holds one generated block for each of ``SECTIONS`` (see ``api_names.py``); its headings and
the sentences around the blocks are written by hand. What a signature cannot say, the meaning of a
keyword, stands in ``meanings.py``; a keyword without one is an error.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum, EnumMeta
from functools import cache, partial
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from api_names import SECTIONS, Brief, Name, Options
from fences import ROOT
from meanings import MEANINGS

import edictum

SOURCE = ROOT / "src" / "edictum"
PLAIN = (type(None), bool, int, float, str, bytes, tuple, list, frozenset)
MOST_NAMED = 6  # parameters that a line of a table may show
_UNPACKED = re.compile(r"Unpack\[(\w+)\]")
_TITLES = {
    entry.of: entry.title
    for entries in SECTIONS.values()
    for entry in entries
    if isinstance(entry, Options)
}


def section(name: str) -> str:
    """One generated block: an entry for each name, and one table for names of the brief kind that
    follow each other.
    """
    parts: list[str] = []
    for brief, entries in groupby(SECTIONS[name], key=lambda entry: isinstance(entry, Brief)):
        together = list(entries)
        parts += [_brief_table(together)] if brief else map(_long, together)
    return "\n".join(parts)


def _long(entry: Name | Options) -> str:
    return _options_entry(entry) if isinstance(entry, Options) else _entry(entry)


def _entry(entry: Name) -> str:
    found = look_up(entry.where)
    path = entry.where.partition(":")[2]
    parts = [
        f"### {path.removeprefix('Edictum.')}\n",
        f"`{_use(entry, found)}`\n",
        _said(found, entry.whole),
    ]
    if isinstance(found, EnumMeta):
        parts.append(", ".join(f"`{member.value}`" for member in found) + "\n")
    elif entry.given:
        parts.append(_given(path, found))
    return "\n".join(part for part in [*parts, _members(found, entry.members.split())] if part)


def _options_entry(entry: Options) -> str:
    meanings = MEANINGS[entry.of]
    keys = keys_of(entry.of)
    shown = {
        key: text
        for key, text in keys.items()
        if key not in (keys_of(entry.besides) if entry.besides else {})
    }
    rows = [[f"`{key}`", _code(text), meanings[key]] for key, text in shown.items()]
    return f"### {entry.title}\n\n{entry.text}\n\n" + _table(["option", "type", "means"], rows)


def _brief_table(entries: Sequence[Brief]) -> str:
    return _table(
        ["name", "what it is"], [_brief(entry.where, look_up(entry.where)) for entry in entries]
    )


def _brief(where: str, found: Any) -> list[str]:
    shown = _signature(found) if len(_parameters(found)) <= MOST_NAMED else "(...)"
    return [f"`{_reached(where, found)}{shown}`", _first_paragraph(found).replace("|", "\\|")]


def look_up(where: str) -> Any:
    """``module:name`` or ``module:Class.method``."""
    module, _, path = where.partition(":")
    found: Any = import_module(module)
    for step in path.split("."):
        found = (
            inspect.getattr_static(found, step) if isinstance(found, type) else getattr(found, step)
        )
    return _function(found)


# --- What is said about a name --------------------------------------------------------------------


def _use(entry: Name, found: Any) -> str:
    """How a name is reached: ``await guard.run(...)``, or with the module that it is imported
    from.
    """
    return _reached(entry.where, found) + (
        "(...)" if entry.given and not isinstance(found, EnumMeta) else ""
    )


def _reached(where: str, found: Any) -> str:
    """How people get at it: as a method of their guard, or by the shortest module that has it."""
    module, _, path = where.partition(":")
    wait = "await " if inspect.iscoroutinefunction(found) else ""
    if path.startswith("Edictum.") and not path.startswith(("Edictum.from_", "Edictum.list_")):
        return wait + path.replace("Edictum", "guard")
    in_front = path.partition(".")[0] in edictum.__all__ and not module.startswith(
        "edictum.harness"
    )
    return f"{wait}{'edictum' if in_front else module}.{path}"


def _said(found: Any, whole: bool) -> str:
    """Its docstring, without drawings, and without options that are listed below it."""
    left_out = (" ", "Options:") if whole else " "
    paragraphs = [
        _prose(paragraph)
        for paragraph in _doc(found).split("\n\n")
        if not paragraph.startswith(left_out)
    ]
    return "\n\n".join(paragraphs if whole else paragraphs[:1]) + "\n" if paragraphs[0] else ""


def _doc(found: Any) -> str:
    """The docstring of a name itself: not that of its parents, and not what ``dataclass`` says
    where nobody has said anything.
    """
    text = vars(found).get("__doc__") if isinstance(found, type) else found.__doc__
    return (
        ""
        if not text or (isinstance(found, type) and text.startswith(f"{found.__name__}("))
        else inspect.cleandoc(text)
    )


def _prose(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").removesuffix("::")


def _first_paragraph(found: Any) -> str:
    return _prose(_doc(found).split("\n\n")[0])


# --- What is given to it --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    type: str
    default: str = ""
    by_keyword: bool = False


def rows_of(found: Any) -> list[Row]:
    """What is given to a function or a class, the keys of its options included."""
    rows: list[Row] = []
    for parameter in _parameters(found):
        if parameter.kind is parameter.VAR_KEYWORD:
            rows += _unpacked(parameter)
        else:
            mark = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
            rows.append(
                Row(
                    mark + parameter.name,
                    _type(found, parameter),
                    _default(found, parameter),
                    parameter.kind is parameter.KEYWORD_ONLY,
                )
            )
    return rows


def _parameters(found: Any) -> list[inspect.Parameter]:
    return [
        parameter
        for parameter in inspect.signature(found).parameters.values()
        if parameter.name not in ("self", "cls")
    ]


def _unpacked(parameter: inspect.Parameter) -> list[Row]:
    """The rows that ``**options`` stands for: the keys of its TypedDict, unless these have an entry
    of their own.
    """
    match = _UNPACKED.fullmatch(str(parameter.annotation))
    if match is None or match[1] in _TITLES:
        title = _TITLES.get(match[1], "") if match else ""
        return [Row(f"**{parameter.name}", title)]
    return [Row(key, text, by_keyword=True) for key, text in keys_of(match[1]).items()]


def _given(path: str, found: Any) -> str:
    rows = rows_of(found)
    if not rows:
        return ""
    meanings = MEANINGS.get(path)
    columns = {
        "field" if dataclasses.is_dataclass(found) else "parameter": [
            f"`{row.name}`" for row in rows
        ],
        "type": [_linked(row) for row in rows],
        "default": [_code(row.default) for row in rows],
        "means": [meanings[row.name] if meanings else "" for row in rows],
    }
    said = {head: cells for head, cells in columns.items() if any(cells)}
    return _by_keyword(rows) + _table(
        list(said), [list(cells) for cells in zip(*said.values(), strict=True)]
    )


def _linked(row: Row) -> str:
    return (
        f"[{row.type}](#{row.type.lower().replace(' ', '-')})"
        if row.type in _TITLES.values()
        else _code(row.type)
    )


def _by_keyword(rows: list[Row]) -> str:
    named = [row for row in rows if row.by_keyword]
    if not named:
        return ""
    return (
        "All by keyword:\n\n"
        if len(named) == len(rows)
        else f"By keyword, from `{named[0].name}` on:\n\n"
    )


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def _type(found: Any, parameter: inspect.Parameter) -> str:
    """The type as it is written, with the names of closed sets of texts replaced by the texts."""
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return ""
    return _readable(
        annotation if isinstance(annotation, str) else inspect.formatannotation(annotation),
        found.__module__,
    )


def _readable(text: str, module: str) -> str:
    known = vars(import_module(module))
    text = re.sub(r"\w+", lambda word: _texts(known.get(word[0])) or word[0], text)
    return re.sub(
        r"Literal\[([^\]]*)\]", lambda texts: texts[1].replace(", ", " | ").replace('"', "'"), text
    )


def _texts(alias: Any) -> str:
    return (
        " | ".join(repr(text) for text in get_args(alias)) if get_origin(alias) is Literal else ""
    )


def _default(found: Any, parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return ""
    made = (
        {item.name: item.default_factory for item in dataclasses.fields(found)}
        if dataclasses.is_dataclass(found)
        else {}
    )
    factory = made.get(parameter.name, dataclasses.MISSING)
    return _shown(parameter.default if factory is dataclasses.MISSING else factory())


def _shown(value: Any) -> str:
    """A default as people would type it; never what is another one each time, such as an address or
    the time.
    """
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, datetime):
        return "now"
    if isinstance(value, Mapping):
        return repr(dict(value))
    if isinstance(value, PLAIN):
        return repr(value)
    named = getattr(value, "__name__", None)
    return named or (repr(value) if repr(value).isupper() else f"{type(value).__name__}()")


# --- The keys of a TypedDict ----------------------------------------------------------------------


@cache
def keys_of(name: str) -> dict[str, str]:
    """The keys of a TypedDict and their types, read from the source: some are there for type
    checkers alone.
    """
    module, found = _typed_dicts()[name]
    parents = [
        base.id for base in found.bases if isinstance(base, ast.Name) and base.id in _typed_dicts()
    ]
    own = {
        item.target.id: _readable(ast.unparse(item.annotation), module)
        for item in found.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    return {key: text for parent in parents for key, text in keys_of(parent).items()} | own


@cache
def _typed_dicts() -> dict[str, tuple[str, ast.ClassDef]]:
    """The classes of the library that are a TypedDict, or made from one: they alone say
    ``total=False``.
    """
    modules = {
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path
        for path in sorted(SOURCE.rglob("*.py"))
    }
    return {
        cls.name: (module, cls)
        for module, path in modules.items()
        for cls in _partial_classes(path)
    }


def _partial_classes(path: Path) -> Iterator[ast.ClassDef]:
    text = path.read_text(encoding="utf-8")
    if "TypedDict" in text:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and any(
                keyword.arg == "total" for keyword in node.keywords
            ):
                yield node


# --- What it has ----------------------------------------------------------------------------------


def _members(found: type, names: Sequence[str]) -> str:
    rows = [_member(found, name) for name in names]
    return _table(["has", "which"], rows) if rows else ""


def _member(found: type, name: str) -> list[str]:
    member = inspect.getattr_static(found, name)
    said = re.split(r"(?<=\.) ", _first_paragraph(_function(member)))[0]
    meaning = MEANINGS.get(found.__name__ + " has", {}).get(name, said)
    wait = "await " if inspect.iscoroutinefunction(_function(member)) else ""
    return [
        f"`{wait}{name}{'' if isinstance(member, property) else _signature(_function(member))}`",
        meaning.replace("|", "\\|"),
    ]


def _function(member: Any) -> Any:
    return member.fget if isinstance(member, property) else getattr(member, "__func__", member)


def _signature(found: Any) -> str:
    return f"({', '.join(_argument(found, parameter) for parameter in _parameters(found))})"


def _argument(found: Any, parameter: inspect.Parameter) -> str:
    mark = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = _default(found, parameter)
    return f"{mark}{parameter.name}{default and '='}{default}"


TABLES: dict[str, Callable[[], str]] = {f"api-{name}": partial(section, name) for name in SECTIONS}
