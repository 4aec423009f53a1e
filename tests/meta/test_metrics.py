"""How the source reads, held by numbers: sizes, branches, names and words.

``benchmarks/metrics.py`` says how they are counted, and where what it finds stands.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.processes import ROOT, load_module

metrics = load_module(ROOT / "benchmarks" / "metrics.py")

# At most this much of each.
BOUNDS = {
    "median lines of a function": 8,
    "lines of 95 in 100 functions": 30,
    "functions over 60 lines": 0,
    "functions with more than ten branches, in 1,000": 10,
    "adapters of 180 lines or more": 0,
    "public names defined in two modules": 0,
    "lines over 100 columns": 0,
    "fmt: skip without a reason": 0,
    "type: ignore without a reason": 0,
}
# What does not hold yet, with the number of today; an entry goes when its bound holds.
NOT_YET: dict[str, int] = {}
# Words that a reader stumbles over. These ceilings only go down.
CEILINGS = {
    "functions named by a participle": 3,
    "somebody, nobody, anybody, whoever": 0,
    "also when, of the user, is no": 3,
    "docstrings of functions that begin with no verb, in 100": 1,
}


def measure(source: Any) -> dict[str, int]:
    functions = len(source.functions)
    return {
        "median lines of a function": source.size_at(0.5),
        "lines of 95 in 100 functions": source.size_at(0.95),
        "functions over 60 lines": len(source.long_functions),
        "functions with more than ten branches, in 1,000": round(
            1_000 * len(source.branchy_functions) / functions
        ),
        "adapters of 180 lines or more": sum(lines >= 180 for lines in source.adapters.values()),
        "public names defined in two modules": len(source.names_defined_twice),
        "lines over 100 columns": len(source.wide_lines),
        "fmt: skip without a reason": len(source.unexplained_format_skips),
        "type: ignore without a reason": len(source.unexplained_ignores),
        "functions named by a participle": len(source.participles),
        "somebody, nobody, anybody, whoever": len(source.vague_words),
        "also when, of the user, is no": len(source.awkward_phrases),
        "docstrings of functions that begin with no verb, in 100": round(
            100 * (1 - source.share_of_verbs)
        ),
    }


@pytest.fixture(scope="module")
def source() -> Any:
    return metrics.Source()


@pytest.fixture(scope="module")
def measured(source: Any) -> dict[str, int]:
    return measure(source)


def test_the_source_is_found(source: Any) -> None:
    """Nothing below passes by finding nothing."""
    assert len(source.texts) >= 100
    assert len(source.functions) >= 1_500
    assert len(source.adapters) >= 11


@pytest.mark.parametrize("what", BOUNDS)
def test_bound(what: str, measured: dict[str, int]) -> None:
    """Every bound holds, except where the list of exceptions says how far off it is."""
    assert measured[what] <= NOT_YET.get(what, BOUNDS[what])


@pytest.mark.parametrize("what", CEILINGS)
def test_words(what: str, measured: dict[str, int]) -> None:
    """The count of hard words does not grow."""
    assert measured[what] <= CEILINGS[what]


# --- The counting itself --------------------------------------------------------------------------


def source_of(tmp_path: Path, **files: str) -> Any:
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    return metrics.Source(tmp_path)


def test_lines_of_a_function_are_those_of_its_body(tmp_path: Path) -> None:
    """Neither the signature nor the docstring counts."""
    source = source_of(
        tmp_path,
        a='def f(\n    a: int,\n) -> int:\n    """Doc\n    more.\n    """\n\n    return a\n',
    )
    assert [function.lines for function in source.functions] == [1]


BRANCHES = """
def f(a, b):
    if a and b or a:
        return [x for x in a for y in b]
    for x in a:
        try:
            g(x if x else b)
        except ValueError:
            pass
    match a:
        case 1 | 2:
            return 1
        case _:
            return 2

    def inner():
        while True:
            pass
"""


def test_branches_are_counted_as_described(tmp_path: Path) -> None:
    """One, and: if, and, or, two loops of a comprehension, for, conditional, except, one case."""
    source = source_of(tmp_path, a=BRANCHES)
    assert {function.name: function.branches for function in source.functions} == {
        "f": 10,
        "inner": 2,
    }


def test_names_and_words(tmp_path: Path) -> None:
    """Public names in two modules, participles, vague words, verbs, reasons."""
    source = source_of(
        tmp_path,
        a='X = 1\nY = 1\n\n\ndef is_told():\n    """Return it."""\n',
        b='from a import Y\n\nX: int = 2\n_Z = 1  # nobody\n\n\ndef told():\n    """What is."""\n',
        c="x = 1  # type: ignore[misc]\ny = 1  # type: ignore[misc]  # the stub is wrong\n",
    )
    assert source.names_defined_twice == {"X": ["a.py", "b.py"]}
    assert source.participles == ["b.py:7 told"]
    assert source.vague_words == ["b.py:4 nobody"]
    assert source.share_of_verbs == 0.5
    assert source.unexplained_ignores == ["c.py:1"]
