"""``edictum sessions`` as operators type it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from edictum import Edictum, OperationLimits, Principal, ScopedLimits
from edictum.cli.main import main

LIMITS = [
    OperationLimits(max_tool_calls=5),
    ScopedLimits(id="spent", scope="principal", max_amounts={"eur": 100}),
]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store in which two sessions have made calls."""
    made = f"sqlite:///{tmp_path / 'sessions.db'}"
    tools = {"pay": {"amounts": {"eur": "args.amount"}}}
    guard = Edictum(backend=made, limits=LIMITS, tools=tools)
    ada = Principal(user_id="ada")
    for amount in (10, 20):
        about = {"session_id": "ada/monday", "principal": ada}
        guard.run_sync("pay", {"amount": amount}, lambda amount: amount, **about)  # type: ignore[arg-type]
    guard.dispatch_sync("look", {}, lambda: 1 / 0, session_id="bob/1", principal=ada)
    asyncio.run(guard.close())
    return made


def run(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["sessions", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_sessions_are_listed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The most recently used first; as JSON, a line each."""
    lines = [line.split() for line in run(capsys, "list", url)]
    assert [(line[0], line[2], line[-1]) for line in lines] == [
        ("1", "1", "bob/1"),
        ("2", "0", "ada/monday"),
    ]
    (only,) = run(capsys, "list", url, "--limit", "1", "--json")
    assert json.loads(only) == {
        "session_id": "bob/1",
        "attempts": 1,
        "executions": 1,
        "successes": 0,
        "failures": 1,
        "consecutive_failures": 1,
        "in_flight": 0,
    }


def test_a_session_and_a_scope_are_shown_and_reset(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = run(capsys, "show", url, "ada/monday")
    assert [line.split()[-1] for line in lines[:2]] == ["tools", "pay"]
    assert "eur of all tools: 30, 0 reserved" in run(
        capsys, "show", url, "ada", "--scope", "principal"
    )
    (told,) = run(capsys, "show", url, "ada", "--scope", "principal", "--json")
    assert json.loads(told)["amounts"][""]["eur"] == {"spent": 30.0, "reserved": 0.0}
    assert run(capsys, "reset", url, "ada", "--scope", "principal") == ["forgotten: ada"]
    assert run(capsys, "reset", url, "ada/monday") == ["forgotten: ada/monday"]
    assert [line.split()[-1] for line in run(capsys, "list", url)] == ["bob/1"]
    (told,) = run(capsys, "show", url, "ada", "--scope", "principal", "--json")
    assert json.loads(told)["totals"]["executions"] == 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["list", "sqlite:///nothing.db"], "does not exist"),
        (["list", "memory:"], "nothing to look at"),
        (["show", "redis://127.0.0.1:1/0?wait=0.2", "s"], "could not be asked"),
        (["migrate", "sqlite:///nothing.db"], "Only a PostgreSQL session store"),
        (["list", "memory:", "--", "x"], "stands after --"),
    ],
)
def test_what_cannot_be_done_is_said(
    words: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And a store that is not there is not made."""
    monkeypatch.chdir(tmp_path)
    assert main(["sessions", *words]) == 2
    assert problem in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_database_is_set_up(
    postgres_server: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, origin = postgres_server
    if not url:
        pytest.skip(origin)
    url = f"{url}?schema=cli_{abs(hash(str(tmp_path)))}"
    planned = run(capsys, "migrate", url, "--dry-run")
    assert planned[0].startswith("-- The store is empty")
    assert planned[1] == "-- To be applied:"
    assert run(capsys, "migrate", url)[1] == "-- Applied:"
    assert run(capsys, "list", url) == []
