"""What the docs list is what the code has."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from fences import ROOT, fences_of, pages
from generated import TABLES, found

from edictum import AuditAction, AuditEvent, OperationLimits, adapters
from edictum import success as success_module
from edictum.contracts import _compile as compile_module
from edictum.core.contract import RECORD_TYPES
from edictum.core.lifecycle import approval, conclusion
from edictum.success import Checker

SOURCE = ROOT / "src" / "edictum"

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
        assert shown == TABLES[name](), (
            f"{path.relative_to(ROOT)}: run `.venv/bin/python tests/docs/generated.py`"
        )


def test_no_page_asks_for_an_unknown_table():
    assert set(found()) <= set(TABLES)


def test_every_audit_field_is_documented_in_order():
    assert first_column(ROOT / "docs/reference/audit-events.md", "Fields") == [
        item.name for item in fields(AuditEvent)
    ]


def test_every_audit_action_is_documented():
    assert set(first_column(ROOT / "docs/reference/audit-events.md", "Actions")) == {
        action.value for action in AuditAction
    }


def test_every_ready_made_checker_is_documented():
    checkers = {name for name, value in vars(success_module).items() if isinstance(value, Checker)}
    assert len(checkers) >= 7
    assert (
        set(first_column(ROOT / "docs/concepts/success-detection.md", "Ready-made checkers"))
        == checkers
    )


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for match in _LINK.finditer(prose(path)):
        target, _, anchor = match["target"].partition("#")
        if target.startswith(("https://", "mailto:")):
            continue
        page = (path.parent / target).resolve() if target else path
        assert page.exists(), f"{match['target']} does not exist"
        assert not anchor or anchor in anchors(page), f"{match['target']}: no such heading"


@pytest.mark.parametrize(("page", "least"), [("web-service.md", 4), ("operations.md", 1)])
def test_the_service_on_the_page_is_the_example(page, least):
    """Every line of code is a line of the example, so that nothing on the page goes stale."""
    files = [path for path in (ROOT / "examples" / "web_service").iterdir() if path.is_file()]
    known = {line.strip() for path in files for line in path.read_text("utf-8").splitlines()}
    fences = fences_of(ROOT / "docs" / "guides" / page)
    shown = [fence.body.splitlines() for fence in fences if fence.language == "text"]
    assert len(shown) >= least
    assert [line for lines in shown for line in lines if line.strip() not in known | {""}] == []


def linked_from(path: Path) -> set[Path]:
    targets = {
        (path.parent / match["target"].partition("#")[0]).resolve()
        for match in _LINK.finditer(prose(path))
    }
    return {target for target in targets if target.suffix == ".md" and target.exists()}


def test_every_page_is_reachable_from_the_index():
    reached, new = set(), {ROOT / "docs" / "index.md"}
    while new:
        reached |= new
        new = {target for path in new for target in linked_from(path)} - reached
    assert {path for path in pages() if path.is_relative_to(ROOT / "docs")} - reached == set()


def test_the_drawn_tree_has_every_module():
    """docs/architecture.md names each module of the core and the runtime, and each package and
    module beside them.
    """
    source = ROOT / "src" / "edictum"
    drawn = (
        (ROOT / "docs" / "architecture.md")
        .read_text(encoding="utf-8")
        .split("```text")[1]
        .split("```")[0]
    )
    modules = [
        path for folder in ("", "core", "runtime") for path in (source / folder).glob("*.py")
    ]
    names = {path.name for path in modules} - {"_version.py"} | {
        f"{path.parent.name}/" for path in source.glob("*/__init__.py")
    }
    assert len(names) > 30
    assert sorted(name for name in names if name not in drawn) == []


# --- Words that the code writes down, and the pages that explain them -----------------------------


def calls_of(*names: str, below: str = "") -> Iterator[ast.Call]:
    """Every call of these functions in the library, or in one of its packages."""
    for path, calls in calls_by_file().items():
        if path.is_relative_to(SOURCE / below):
            for node in calls:
                if (getattr(node.func, "id", None) or getattr(node.func, "attr", "")) in names:
                    yield node


@cache
def calls_by_file() -> dict[Path, list[ast.Call]]:
    return {
        path: [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
        ]
        for path in sorted(SOURCE.rglob("*.py"))
    }


def words(node: ast.expr | None) -> set[str]:
    """The text that an expression stands for; of a text with something filled in, the part before
    it.
    """
    if isinstance(node, ast.JoinedStr):
        node = node.values[0]
    if isinstance(node, ast.IfExp):
        return words(node.body) | words(node.orelse)
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def keyword_words(name: str, *functions: str) -> set[str]:
    return {
        word
        for call in calls_of(*functions)
        for keyword in call.keywords
        if keyword.arg == name
        for word in words(keyword.value)
    }


def place_words(place: int, *functions: str, below: str = "") -> set[str]:
    return {
        word
        for call in calls_of(*functions, below=below)
        if len(call.args) > place
        for word in words(call.args[place])
    }


def named_in(path: str, heading: str) -> set[str]:
    """The words in code in the first column of the tables under a heading."""
    level = "###" if path.endswith("outcomes.md") else "##"
    section = (
        (ROOT / path)
        .read_text(encoding="utf-8")
        .split(f"\n{level} {heading}\n")[1]
        .split("\n## ")[0]
    )
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {word for cell in cells for word in re.findall(r"`([^`<]+)(?:<\w+>)?`", cell)}


def test_every_reason_of_a_denial_is_documented():
    denials = [call for call in calls_of("deny", below="core") if len(call.args) == 2]
    reasons = (
        place_words(0, "Refusal")
        | place_words(2, "ToolDenied", "make_denied")
        | {word for call in denials for word in words(call.args[1])}
        | set(conclusion.DENIAL_REASONS.values())
        | {approval.DENIED_BY_PERSON}
    )
    assert len(reasons) > 10
    assert named_in("docs/concepts/outcomes.md", "Why a call was refused") == reasons | {"contract"}


def test_every_decision_source_is_documented():
    limits = {limit.source for limit in OperationLimits(max_successes=1).compile()}
    contracts = (
        set(RECORD_TYPES.values())
        | set(compile_module.SOURCES.values())
        | keyword_words("source", "Contract")
    )
    parts = (
        place_words(0, "deny", "fail", below="core/lifecycle")
        | place_words(0, "Objection", below="core")
        | keyword_words("source", "replace")
        | keyword_words("decision_source", "ToolDenied", "make_denied")
    )
    assert len(parts) > 8
    after = {
        "postcondition",
        "yaml_postcondition",
    }  # they decide about results, and not whether a call may run
    assert (
        named_in("docs/reference/audit-events.md", "Who decided")
        == (limits | contracts | parts | {"yaml_session"}) - after
    )


def test_every_success_source_is_documented():
    sources = place_words(1, "SuccessVerdict")
    assert len(sources) > 8
    assert named_in("docs/reference/audit-events.md", "Who judged success") == sources


# --- Installing -----------------------------------------------------------------------------------


def test_every_extra_is_in_the_readme():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert set(first_column(ROOT / "README.md", "Install")) == set(extras)


def test_no_page_installs_the_other_library():
    """The package of this name in the registry is not this one."""
    pattern = re.compile(r"pip install [^`\n]*\bedictum\b")
    found = {
        str(path.relative_to(ROOT)): pattern.findall(path.read_text(encoding="utf-8"))
        for path in pages()
    }
    assert {path: lines for path, lines in found.items() if lines} == {
        "README.md": ["pip install edictum"]
    }  # the warning


@pytest.mark.parametrize("name", adapters.ADAPTERS)
def test_every_adapter_page_says_how_to_install_its_framework(name):
    wanted = [
        f"'{package}>={first},<{beyond}'"
        for package, (first, beyond) in getattr(adapters, name).requires.items()
    ]
    page = (ROOT / "docs" / "adapters" / f"{adapters.ADAPTERS[name]}.md").read_text(
        encoding="utf-8"
    )
    assert f"pip install '.[yaml]' {' '.join(wanted)}" in page


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "adapters").glob("*.md")), ids=lambda path: path.stem
)
def test_the_code_on_adapter_pages_is_python(path):
    """It cannot run here, where the framework is missing; that its lines are the example's is shown
    beside the adapter.
    """
    for fence in fences_of(path):
        if fence.language == "text" and "adapter" in fence.body:
            ast.parse(fence.body)
