"""Types catch what users mistype: a program with none of it is clean, and each of many mistakes is
reported, by name.
"""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import get_args, get_type_hints

import program
import pytest

from edictum._options import CALL_OPTIONS
from edictum.call_options import CallOptions
from edictum.core.contract import EFFECTS, Contract, Kind
from edictum.core.contract_types import PostOptions, PreOptions, SessionOptions

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXPECTED = re.compile(r"  # type: ignore\[(?P<code>[a-z-]+)\](  # (?P<words>.+))?$", re.MULTILINE)
SAID = re.compile(
    r"^(?P<file>.*?):(?P<line>\d+): error: (?P<words>.+)  \[(?P<code>[a-z-]+)\]$", re.MULTILINE
)


def expected(text: str) -> dict[int, tuple[str, str]]:
    """By line: the code of the error, and words of it."""
    found = {number: EXPECTED.search(line) for number, line in enumerate(text.splitlines(), 1)}
    return {number: (match["code"], match["words"]) for number, match in found.items() if match}


def said_by_mypy(*paths: Path) -> dict[str, dict[int, list[tuple[str, str]]]]:
    """By file and line: the codes and words of errors. One run for all files, because the first one
    reads the whole library.
    """
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        "pyproject.toml",
        "--no-pretty",
        *map(str, paths),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    said: dict[str, dict[int, list[tuple[str, str]]]] = {}
    for match in SAID.finditer(done.stdout):
        said.setdefault(Path(match["file"]).name, {}).setdefault(int(match["line"]), []).append(
            (match["code"], match["words"])
        )
    return said


def test_every_mistake_is_reported_and_nothing_else(tmp_path: Path) -> None:
    """Of the file of mistakes, without the ignores that keep ``make lint`` quiet about it, and of a
    program that has none.
    """
    text = (HERE / "mistakes.py").read_text()
    wanted = expected(text)
    assert len(wanted) >= 35
    bare = tmp_path / "bare_mistakes.py"
    bare.write_text(EXPECTED.sub("", text))
    by_file = said_by_mypy(bare, HERE / "program.py")
    assert set(by_file) == {bare.name}, by_file
    said = by_file[bare.name]
    assert sorted(said) == sorted(wanted)
    for line, (code, words) in wanted.items():
        assert {given for given, _ in said[line]} == {code}, said[line]
        assert any(words in message for _, message in said[line]), (words, said[line])


def test_what_the_annotations_allow_is_accepted() -> None:
    """The program without mistakes, run."""
    asyncio.run(program.main())


def test_the_options_of_a_call_are_those_that_are_read() -> None:
    """The table that reads them, the types, and the program that states all of them."""
    assert set(CallOptions.__annotations__) == set(CALL_OPTIONS) == set(program.EVERY_OPTION)
    assert CallOptions.__required_keys__ == frozenset()


@pytest.mark.parametrize(
    ("kind", "options"),
    [(Kind.PRE, PreOptions), (Kind.POST, PostOptions), (Kind.SESSION, SessionOptions)],
)
def test_the_options_of_a_decorator_are_those_of_its_contract(kind: Kind, options: type) -> None:
    """Of their names, all are fields of a Contract; of its effects, all are those that its kind may
    have.
    """
    hints = get_type_hints(options)
    assert set(hints) <= {field.name for field in fields(Contract)} - {
        "kind",
        "check",
        "tools",
        "shadow",
        "fuse",
        "source",
    }
    assert {"id", "mode", "tags", "metadata", "effect"} <= set(hints)
    assert set(get_args(hints["effect"])) == set(EFFECTS[kind])


@pytest.mark.parametrize("package", ["edictum", "edictum.testing", "edictum.adapters"])
def test_names_that_are_imported_late_are_known_to_type_checkers(package: str) -> None:
    """The imports at run time and under TYPE_CHECKING give the names of ``__all__``, and nobody is
    told that all names exist.
    """
    module = import_module(package)
    tree = ast.parse(Path(module.__file__ or "").read_text())
    seen = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "not TYPE_CHECKING")
    ]
    imported = {
        alias.asname or alias.name
        for node in seen
        for part in ast.walk(node)
        if isinstance(part, ast.ImportFrom)
        for alias in part.names
    }
    assert set(module.__all__) <= imported
    assert not any(
        isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in seen
    )
    for name in module.__all__:
        assert getattr(module, name) is not None
