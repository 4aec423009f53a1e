"""The runner itself: it notices what it is there to notice."""

from __future__ import annotations

from pathlib import Path

import pytest
from fences import ROOT, Fence, Page


def run(tmp_path: Path, *fences: tuple[str, str]) -> None:
    page = Page(tmp_path)
    for info, body in fences:
        page.run(Fence(ROOT / "README.md", 1, info, body))


def test_python_fences_share_a_namespace(tmp_path):
    run(tmp_path, ("python", "x = 2\n"), ("python", "assert x == 2\n"))


def test_failing_python_fails(tmp_path):
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, ("python", "1 / 0\n"))


def test_output_must_be_what_was_printed(tmp_path):
    run(tmp_path, ("python", "print('a')\n"), ("output", "a\n"))
    with pytest.raises(AssertionError, match="not what the fence"):
        run(tmp_path, ("python", "print('a')\n"), ("output", "b\n"))


def test_output_without_python_fails(tmp_path):
    with pytest.raises(AssertionError, match="right behind"):
        run(tmp_path, ("output", "a\n"))


def test_failing_shell_fails(tmp_path):
    run(tmp_path, ("shell", "# a comment\ntest -d .\nmake demo  # dry\n"))
    with pytest.raises(AssertionError, match="ended with"):
        run(tmp_path, ("shell", "false\n"))


@pytest.mark.parametrize("language", ["", "pythn", "py"])
def test_unknown_language_fails(tmp_path, language):
    with pytest.raises(AssertionError, match="has no test"):
        run(tmp_path, (language, "x\n"))


@pytest.mark.parametrize(("info", "body"), [("json", "{"), ("toml", "="), ("yaml", "a: [")])
def test_data_that_does_not_parse_fails(tmp_path, info, body):
    with pytest.raises(Exception, match=r"."):
        run(tmp_path, (info, body))
