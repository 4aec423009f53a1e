"""Every example in README and docs runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from fences import ROOT, Page, fences_of, pages

EXPECTED = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/quickstart.md",
    "docs/concepts/lifecycle.md",
    "docs/guides/testing-contracts.md",
)


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_fence_of_the_page_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = Page(tmp_path)
    for fence in fences_of(path):
        page.run(fence)


def test_fences_are_found_at_all() -> None:
    """A floor, so that the test above cannot pass by finding nothing."""
    found = {str(path.relative_to(ROOT)): fences_of(path) for path in pages()}
    assert set(EXPECTED) <= set(found)
    python = [fence for fences in found.values() for fence in fences if fence.language == "python"]
    assert len(python) >= 40
    assert all(any(fence.language == "python" for fence in found[name]) for name in EXPECTED)


def test_the_two_commands_are_at_the_top_of_the_readme() -> None:
    first = fences_of(ROOT / "README.md")[0]
    assert first.language == "shell"
    assert [line.split("#")[0].strip() for line in first.body.splitlines()] == [
        "make demo",
        "make test",
    ]


def test_every_fence_mark_belongs_to_a_fence() -> None:
    """An unbalanced fence would hide what stands behind it."""
    for path in pages():
        marks = [
            line
            for line in path.read_text(encoding="utf-8").splitlines()
            if line.lstrip().startswith("```")
        ]
        assert len(marks) == 2 * len(fences_of(path)), path
