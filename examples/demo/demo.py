"""The demo: a scripted agent whose tools misbehave as real ones do, judged twice.

Eleven calls, no model, no key. The first run uses the default heuristic, the second one a
``success_check``. Both runs have the same two session limits. When a limit stops the agent, an
operator looks at it and lets it go on in a new session. An answer of 2 MB is kept as an artifact:
the model reads a reference to it, and can read parts of it with a tool.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from edictum import (
    Edictum,
    FileAuditSink,
    OperationLimits,
    ToolArtifactReference,
    ToolDenied,
    ToolExecutionResult,
    ToolOutcome,
    ToolTimeout,
    Verdict,
    outcome_to_model_content,
    postcondition,
)
from edictum.harness import ArtifactStore, Turn, TurnState
from edictum.harness.artifact_reader import make_reader
from edictum.success import (
    SuccessCheck,
    all_of,
    http_status,
    no_traceback,
    non_empty,
    not_none,
    ok_flag,
    per_tool,
)

ROOT = Path(__file__).resolve().parents[2]
LIMITS = OperationLimits(max_successes=3, max_consecutive_failures=3)
MISBEHAVES = all_of(not_none, http_status, ok_flag, no_traceback)
SUCCEEDED = (ToolExecutionResult, ToolArtifactReference)
SUCCESS_CHECK = per_tool({"query_users": all_of(MISBEHAVES, non_empty)}, default=MISBEHAVES)


# --- The agent's tools ----------------------------------------------------------------------------


def get_weather(city: str) -> dict[str, Any]:
    return {"status": 200, "city": city, "sky": "clear"}


def fetch_report(month: str) -> dict[str, Any]:
    return {"status": 500, "message": "Internal Server Error"}


def post_message(channel: str, text: str) -> dict[str, Any]:
    return {"ok": False, "message": "channel_not_found"}


def run_script(name: str) -> str:
    return (
        f"Traceback (most recent call last):\n  File {name!r}, line 7\nZeroDivisionError: division"
        " by zero"
    )


def lookup_user(email: str) -> None:
    return None


def query_users(role: str) -> dict[str, Any]:
    return {"rows": []}


async def rebuild_index(shard: int) -> str:
    await asyncio.sleep(3_600)
    return "rebuilt"


def read_config(service: str) -> dict[str, Any]:
    return {"region": "eu-west-1", "api_key": "sk-live-4f9d2c7b1a8e3f6058d1"}


def export_orders(year: int) -> str:
    return "\n".join(
        f"order {number:06},{year}-01-01,customer {number % 977:04},EUR {number % 500:03}.00"
        for number in range(43_000)
    )


@dataclass(frozen=True)
class Step:
    """One call of the script, and what a person would say about its result."""

    tool: Callable[..., Any]
    args: dict[str, Any]
    story: str
    succeeds: bool


SCRIPT = (
    Step(get_weather, {"city": "Porto"}, "answers", True),
    Step(fetch_report, {"month": "May"}, "HTTP 500 in a dict", False),
    Step(post_message, {"channel": "#ops", "text": "hi"}, '{"ok": false}', False),
    Step(run_script, {"name": "etl.py"}, "a traceback as text", False),
    Step(lookup_user, {"email": "ada@example.com"}, "None", False),
    Step(query_users, {"role": "admin"}, "no rows", False),
    Step(rebuild_index, {"shard": 4}, "hangs", False),
    Step(read_config, {"service": "billing"}, "leaks a secret", True),
    Step(export_orders, {"year": 2026}, "answers with 2 MB", True),
    Step(get_weather, {"city": "Rome"}, "answers", True),
    Step(get_weather, {"city": "Lima"}, "answers", True),
)


@postcondition("read_config", effect="redact")
def no_secrets_in_config(call: Any, result: Any) -> Verdict:
    return (
        Verdict.fail("The config contains a credential.")
        if "sk-live" in json.dumps(result)
        else Verdict.pass_()
    )


# --- Playing the script ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Stop:
    """A limit refused a call: before which step, by which limit, and what had really succeeded in
    that session.
    """

    before: int
    limit: str
    denied: ToolDenied
    counted: int
    really: int


@dataclass
class Run:
    """One pass through the script."""

    outcomes: list[ToolOutcome] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)

    def misjudged(self) -> list[int]:
        """The steps, counted from 1, whose outcome says the opposite of what happened."""
        judged = [isinstance(outcome, SUCCEEDED) for outcome in self.outcomes]
        return [
            number
            for number, (said, step) in enumerate(zip(judged, SCRIPT, strict=True), 1)
            if said != step.succeeds
        ]


def new_guard(success_check: SuccessCheck | None, audit: FileAuditSink) -> Edictum:
    return Edictum(
        contracts=[no_secrets_in_config],
        limits=LIMITS,
        tools={"rebuild_index": {"timeout_s": 0.25}, "read_config": {"side_effect": "read"}},
        success_check=success_check,
        audit_sink=audit,
    )


async def play(
    name: str, success_check: SuccessCheck | None, audit: FileAuditSink, store: ArtifactStore
) -> Run:
    guard, run = new_guard(success_check, audit), Run()
    first = 0  # the step with which the current session began
    for position, step in enumerate(SCRIPT):
        outcome = await _call(guard, step, f"{name}-{len(run.stops) + 1}", store)
        if isinstance(outcome, ToolDenied):
            run.stops.append(_stop(guard, outcome, position, first, f"{name}-{len(run.stops) + 1}"))
            first = position
            outcome = await _call(guard, step, f"{name}-{len(run.stops) + 1}", store)
        run.outcomes.append(outcome)
    return run


async def _call(guard: Edictum, step: Step, session_id: str, store: ArtifactStore) -> ToolOutcome:
    """One call, in a turn that can keep large answers and has a tool to read them."""
    turn = Turn(TurnState(session_id), [make_reader(store, session_id)], artifact_store=store)
    return await guard.dispatch(step.tool.__name__, step.args, step.tool, turn=turn)


def _stop(guard: Edictum, denied: ToolDenied, position: int, first: int, session_id: str) -> Stop:
    really = sum(step.succeeds for step in SCRIPT[first:position])
    return Stop(
        position + 1,
        denied.decision_name or "",
        denied,
        guard.session(session_id).successes,
        really,
    )


# --- Showing it -----------------------------------------------------------------------------------


def show(console: Console, default: Run, checked: Run, audit: Path) -> None:
    console.print(_judgements(default, checked))
    console.print(_messages(default, checked))
    console.print(_summary("default heuristic", default), highlight=False)
    console.print(_summary("success_check", checked), highlight=False)
    console.print(
        f"Audit, {_lines(audit)} events, one JSON object per line: [bold]{audit}[/bold]",
        soft_wrap=True,
        highlight=False,
    )


def _judgements(default: Run, checked: Run) -> Table:
    title = "Eleven calls, judged twice; after a STOP the agent goes on in a new session"
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    table.add_column("", justify="right", no_wrap=True)
    for heading in ("tool", "what happens", "default heuristic", "with success_check"):
        table.add_column(heading)
    for number, step in enumerate(SCRIPT, 1):
        stops = [_stop_text(run, number) for run in (default, checked)]
        if any(stops):
            table.add_row("", "", "", *stops)
        judged = [_judgement(run.outcomes[number - 1], step) for run in (default, checked)]
        table.add_row(str(number), step.tool.__name__, escape(step.story), *judged)
    return table


WORDS: dict[type[Any], str] = {
    ToolExecutionResult: "success",
    ToolArtifactReference: "success, stored",
    ToolTimeout: "timeout",
}


def _judgement(outcome: ToolOutcome, step: Step) -> str:
    word = WORDS.get(type(outcome), "failure")
    return (
        f"[green]{word}[/green]"
        if isinstance(outcome, SUCCEEDED) == step.succeeds
        else f"[bold red]{word}: misjudged[/bold red]"
    )


def _stop_text(run: Run, number: int) -> str:
    stop = next((stop for stop in run.stops if stop.before == number), None)
    if stop is None:
        return ""
    return f"[yellow]STOP {stop.limit}[/yellow]"


def _messages(default: Run, checked: Run) -> Table:
    table = Table(
        title="What the model reads",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for heading in ("call", "outcome", "content of the tool message"):
        table.add_column(heading, no_wrap=heading != "content of the tool message")
    for name, outcome in _examples(default, checked):
        table.add_row(name, type(outcome).__name__, escape(outcome_to_model_content(outcome)))
    return table


def _examples(default: Run, checked: Run) -> list[tuple[str, ToolOutcome]]:
    """One call for each kind of outcome, and one that the default heuristic takes for a success."""
    return [
        ("2, default", default.outcomes[1]),
        ("2", checked.outcomes[1]),
        ("7", checked.outcomes[6]),
        ("8", checked.outcomes[7]),
        ("9", checked.outcomes[8]),
        ("11, stopped", checked.stops[-1].denied),
    ]


def _summary(name: str, run: Run) -> str:
    wrong = len(run.misjudged())
    colour = "bold red" if wrong else "green"
    stops = [
        f"  before call {stop.before} by {stop.limit} ({_successes(stop.counted)} counted,"
        f" {stop.really} real)"
        for stop in run.stops
    ]
    return "\n".join(
        [
            (
                f"[bold]{name}[/bold]: [{colour}]{wrong} of {len(SCRIPT)} calls"
                f" misjudged[/{colour}]; stopped"
            ),
            *stops,
        ]
    )


def _successes(number: int) -> str:
    return f"{number} success" if number == 1 else f"{number} successes"


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


async def play_twice(audit: FileAuditSink, store: ArtifactStore) -> tuple[Run, Run]:
    try:
        return await play("default", None, audit, store), await play(
            "checked", SUCCESS_CHECK, audit, store
        )
    finally:
        audit.close()


def main(audit: Path, width: int | None) -> None:
    audit.unlink(missing_ok=True)
    artifacts = audit.parent / "artifacts"
    shutil.rmtree(artifacts, ignore_errors=True)
    default, checked = asyncio.run(play_twice(FileAuditSink(audit), ArtifactStore(artifacts)))
    console = Console(width=width)
    show(console if console.is_terminal or width else Console(width=110), default, checked, audit)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--audit",
        type=Path,
        default=ROOT / ".build" / "demo" / "audit.jsonl",
        help="where the audit is written",
    )
    parser.add_argument(
        "--width", type=int, default=None, help="columns to print in (default: the terminal's)"
    )
    options = parser.parse_args()
    main(options.audit, options.width)
