"""The measured pair: how many commands that leave the bounds are refused, and how many ordinary
ones pass, from four places.

The two files are not part of the project. They are read from ``../shared/data`` beside it, or from
the directory in EDICTUM_SHELL_DATA.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edictum.contracts.sandbox import Sandbox
from edictum.core.call import ToolCall

DATA = Path(os.environ.get("EDICTUM_SHELL_DATA", Path(__file__).parents[3] / "shared" / "data"))
WORK, SERVICE = "/edictum-corpus", "/usr"
INSIDE, IN_CONTRACT, IN_CALL = "inside", "outside, cwd in the contract", "outside, cwd in the call"
UNKNOWN = "outside, no cwd"
# Measured: all, 0.17 % (`eval` and `| sh` of unknown text, `$VARIABLE` as a program, odd wrappers),
# and 7.1 % from outside without a cwd: relative names that a program opens or makes there.
REFUSED_AT_LEAST = 0.99
NEEDLESSLY_REFUSED_AT_MOST = 0.01
REFUSED_WITHOUT_CWD_AT_MOST = 0.09


@pytest.fixture(params=[INSIDE, IN_CONTRACT, IN_CALL, UNKNOWN])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The bounds are a working directory and /tmp. Neither that nor the home directory exists or
    lies below /tmp, so that the same commands leave the bounds wherever the tests run.
    """
    monkeypatch.setenv("HOME", "/home/edictum-corpus")
    monkeypatch.delenv("OLDPWD", raising=False)
    monkeypatch.chdir(tmp_path if request.param == INSIDE else SERVICE)
    name: str = request.param
    return name


def judge(place: str, name: str) -> dict[str, str | None]:
    """The lines of a file, each with its violation."""
    file = DATA / name
    if not file.exists():
        pytest.skip(
            f"NOT MEASURED: {file} is not there; set EDICTUM_SHELL_DATA to the directory that"
            " holds it."
        )
    lines = [line for line in file.read_text().splitlines() if line.strip()]
    assert len(lines) >= 200
    within = [os.getcwd() if place == INSIDE else WORK, "/tmp"]
    box = Sandbox(within=within, cwd=WORK if place == IN_CONTRACT else None)
    beside = {"cwd": WORK} if place == IN_CALL else {}
    return {line: box.violation(ToolCall("bash", {"command": line, **beside})) for line in lines}


def report(capsys: pytest.CaptureFixture[str], text: str, examples: list[str]) -> None:
    with capsys.disabled():
        print(f"\n{text}; for example: {examples[:10]}")


def test_commands_that_leave_are_refused(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    judged = judge(place, "shell-out-of-bounds.txt")
    missed = [line for line, reason in judged.items() if not reason]
    share = 1 - len(missed) / len(judged)
    report(capsys, f"{place}: out of bounds, refused {share:.2%}", missed)
    assert share >= REFUSED_AT_LEAST


def test_ordinary_commands_pass(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    judged = judge(place, "shell-in-bounds.txt")
    refused = [line for line, reason in judged.items() if reason]
    share = len(refused) / len(judged)
    report(capsys, f"{place}: in bounds, refused {share:.2%}", refused)
    most = REFUSED_WITHOUT_CWD_AT_MOST if place == UNKNOWN else NEEDLESSLY_REFUSED_AT_MOST
    assert share <= most
