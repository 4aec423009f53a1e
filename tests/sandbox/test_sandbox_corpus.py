"""The measured pair: how many commands that leave the bounds are refused, and how many ordinary
ones pass.

The two files are not part of the project. They are read from ``../shared/data`` beside it, or from
the directory in EDICTUM_SHELL_DATA.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from edictum.contracts.sandbox import Sandbox
from edictum.core.call import ToolCall

DATA = Path(os.environ.get("EDICTUM_SHELL_DATA", Path(__file__).parents[3] / "shared" / "data"))
# Measured: 100 % and 99.8 %. What is refused wrongly is `eval` and `| sh` of unknown text,
# `$VARIABLE` as a program, and odd wrappers.
REFUSED_AT_LEAST = 0.99
PASSED_AT_LEAST = 0.995


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    """The bounds are a working directory and /tmp. Neither it nor the home directory exists or lies
    below /tmp, so that the same commands leave the bounds wherever the tests run.
    """
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOME", "/home/edictum-corpus")
        yield Sandbox(within=["/edictum-corpus", "/tmp"], cwd="/edictum-corpus")


def refused(box: Sandbox, name: str) -> tuple[list[str], list[str]]:
    """The lines of a file that are refused, and those that pass."""
    file = DATA / name
    if not file.exists():
        pytest.skip(
            f"NOT MEASURED: {file} is not there; set EDICTUM_SHELL_DATA to the directory that"
            " holds it."
        )
    lines = [line for line in file.read_text().splitlines() if line.strip()]
    assert len(lines) >= 200
    judged = [(line, box.violation(ToolCall("bash", {"command": line}))) for line in lines]
    return [line for line, answer in judged if answer], [
        line for line, answer in judged if not answer
    ]


def report(capsys: pytest.CaptureFixture[str], name: str, share: float, others: list[str]) -> None:
    with capsys.disabled():
        print(f"\n{name}: {share:.2%}; the others: {others[:10]}")


def test_commands_that_leave_are_refused(box: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    hits, misses = refused(box, "shell-out-of-bounds.txt")
    share = len(hits) / (len(hits) + len(misses))
    report(capsys, "out of bounds, refused", share, misses)
    assert share >= REFUSED_AT_LEAST


def test_ordinary_commands_pass(box: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    wrong, passed = refused(box, "shell-in-bounds.txt")
    share = len(passed) / (len(passed) + len(wrong))
    report(capsys, "in bounds, passed", share, wrong)
    assert share >= PASSED_AT_LEAST
