"""Tables in the docs that are printed from the code.

A page holds ``<!-- generated: name -->`` ... ``<!-- end -->``; what stands between is the table of
that name. The tests compare; ``python tests/docs/generated.py`` writes.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import pkgutil
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import api_reference
from fences import pages
from meanings import MEANINGS

import edictum
from edictum._logs import LOG_EVENTS
from edictum.core.limits import OperationLimits
from edictum.errors import EdictumError
from edictum.outcomes import OUTCOME_KINDS, UNSET
from edictum.redaction._personal import PERSONAL_KINDS, describe_kind
from edictum.runtime.handlers import PORT_FAILURES

_MARK = re.compile(
    r"(<!-- generated: (?P<name>[a-z-]+) -->\n)(?P<table>.*?)(<!-- end -->)", re.DOTALL
)


def table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def port_failures() -> str:
    return table(
        ("what fails", "what follows"), [(what, follows) for what, follows in PORT_FAILURES.items()]
    )


def log_events() -> str:
    rows = [
        (f"`{event.code}`", logging.getLevelName(event.level), event.meaning, event.remedy)
        for event in LOG_EVENTS.values()
    ]
    return table(("event", "level", "what it means", "what to do"), rows)


def error_classes(base: type[EdictumError] = EdictumError) -> Iterator[type[EdictumError]]:
    """The exception and all its public children in the library, parents first."""
    yield base
    for child in sorted(
        base.__subclasses__(), key=lambda cls: (cls.__module__ != base.__module__, cls.__module__)
    ):
        if child.__module__.startswith("edictum.") and not child.__name__.startswith("_"):
            yield from error_classes(child)


def import_everything() -> None:
    """Subclasses exist once their module is imported, whatever the tests before have imported."""
    names = [
        module.name
        for module in pkgutil.walk_packages(edictum.__path__, "edictum.", onerror=lambda name: None)
    ]
    for name in names:
        with contextlib.suppress(ImportError):  # an optional library that is not installed
            if not name.endswith(".__main__"):  # that would run it
                importlib.import_module(name)


def errors() -> str:
    import_everything()
    rows = [
        (f"`{cls.__name__}`", f"`{cls.code}`", _parents(cls), _first_line(cls))
        for cls in error_classes()
    ]
    return table(("class", "code", "is a", "means"), rows)


def _parents(cls: type) -> str:
    return ", ".join(f"`{parent.__name__}`" for parent in cls.__bases__)


def _first_line(cls: type) -> str:
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split()).replace("``", "`")


def outcome_fields() -> str:
    return table(
        ("outcome", "fields", "keyword-only"),
        [(f"`{cls.__name__}`", _fields(cls, False), _fields(cls, True)) for cls in OUTCOME_KINDS],
    )


def _fields(cls: type[Any], kw_only: bool) -> str:
    return ", ".join(f"`{_field(item)}`" for item in fields(cls) if item.kw_only is kw_only)


def _field(item: Field[Any]) -> str:
    return (
        item.name
        if item.default is MISSING or item.default is UNSET
        else f"{item.name}={item.default!r}"
    )


def operation_limits() -> str:
    default = OperationLimits()
    rows = [
        (
            f"`{item.name}`",
            f"`{getattr(default, item.name)!r}`",
            MEANINGS["OperationLimits"][item.name],
        )
        for item in fields(OperationLimits)
    ]
    return table(("`OperationLimits`", "default", "at most so many"), rows)


def personal_data() -> str:
    return table(("name", "what"), [(f"`{kind}`", describe_kind(kind)) for kind in PERSONAL_KINDS])


TABLES: dict[str, Callable[[], str]] = {
    "errors": errors,
    "operation-limits": operation_limits,
    "outcome-fields": outcome_fields,
    "personal-data": personal_data,
    "log-events": log_events,
    "port-failures": port_failures,
    **api_reference.TABLES,
}


def found() -> dict[str, list[tuple[Path, str]]]:
    """Every generated table of the docs: its name, its page and what stands there now."""
    tables: dict[str, list[tuple[Path, str]]] = {}
    for path in pages():
        for match in _MARK.finditer(path.read_text(encoding="utf-8")):
            tables.setdefault(match["name"], []).append((path, match["table"]))
    return tables


def write() -> None:
    for path in pages():
        text = path.read_text(encoding="utf-8")
        new = _MARK.sub(lambda match: f"{match[1]}{TABLES[match['name']]()}{match[4]}", text)
        if new != text:
            path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    write()
