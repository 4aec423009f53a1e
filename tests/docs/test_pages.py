"""What the docs list is what the code has."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from fences import ROOT, pages
from generated import TABLES, found

from edictum import AuditAction, AuditEvent
from edictum import success as success_module
from edictum.success import Checker

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_CODE = re.compile(r"```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)


def prose(path: Path) -> str:
    return _CODE.sub("", path.read_text(encoding="utf-8"))


def first_column(path: Path, heading: str) -> list[str]:
    """The names in the first column of the table under a heading."""
    section = path.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", TABLES)
def test_generated_tables_are_up_to_date(name):
    places = found().get(name, [])
    assert places, f"no page shows the table {name!r}"
    for path, shown in places:
        assert shown == TABLES[name](), f"{path.relative_to(ROOT)}: run `.venv/bin/python tests/docs/generated.py`"


def test_no_page_asks_for_an_unknown_table():
    assert set(found()) <= set(TABLES)


def test_every_audit_field_is_documented_in_order():
    assert first_column(ROOT / "docs/reference/audit-events.md", "Fields") == [item.name for item in fields(AuditEvent)]


def test_every_audit_action_is_documented():
    assert set(first_column(ROOT / "docs/reference/audit-events.md", "Actions")) == {action.value for action in AuditAction}


def test_every_ready_made_checker_is_documented():
    checkers = {name for name, value in vars(success_module).items() if isinstance(value, Checker)}
    assert len(checkers) >= 7
    assert set(first_column(ROOT / "docs/concepts/success-detection.md", "Ready-made checkers")) == checkers


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for match in _LINK.finditer(prose(path)):
        target, _, anchor = match["target"].partition("#")
        if target.startswith(("https://", "mailto:")):
            continue
        page = (path.parent / target).resolve() if target else path
        assert page.exists(), f"{match['target']} does not exist"
        assert not anchor or anchor in anchors(page), f"{match['target']}: no such heading"


def linked_from(path: Path) -> set[Path]:
    targets = {(path.parent / match["target"].partition("#")[0]).resolve() for match in _LINK.finditer(prose(path))}
    return {target for target in targets if target.suffix == ".md" and target.exists()}


def test_every_page_is_reachable_from_the_index():
    reached, new = set(), {ROOT / "docs" / "index.md"}
    while new:
        reached |= new
        new = {target for path in new for target in linked_from(path)} - reached
    assert {path for path in pages() if path.is_relative_to(ROOT / "docs")} - reached == set()


def test_the_drawn_tree_has_every_module():
    """docs/architecture.md names each module of the core and the runtime, and each package and module beside them."""
    source = ROOT / "src" / "edictum"
    drawn = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("```text")[1].split("```")[0]
    modules = [path for folder in ("", "core", "runtime") for path in (source / folder).glob("*.py")]
    names = {path.name for path in modules} - {"_version.py"} | {f"{path.parent.name}/" for path in source.glob("*/__init__.py")}
    assert len(names) > 30
    assert sorted(name for name in names if name not in drawn) == []
