"""Makes a call that needs approval, or runs a turn with one, in a process of its own, and is killed
on the way if asked.

The tool adds a line to ``effects-SESSION`` in a folder; a parked turn is written to
``parked-SESSION``, and gone on with by the next process. The processes are forks of one that has
imported the library and done nothing else: what is tried is what they do, not how they start.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import signal
from dataclasses import dataclass
from functools import partial
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from edictum import Edictum
from edictum.approval import ApprovalQueue
from edictum.harness import ModelReply, ParkedTurn, ToolCallRequest, run_turn, tool
from support.guards import approval_contract
from support.processes import ROOT
from support.queues import open_queue_as

FORKS = multiprocessing.get_context("forkserver")
ARGS = {"to": "bob"}
NOTES = ("first", "second", "last")
TIMEOUT_S = 600.0
STARTED = "started"  # what a process says first
_kill_at = ""  # the point at which this process dies


@dataclass(frozen=True)
class Task:
    """What a process does, the point of its kill, and where. "call" makes a call, "turn" runs a
    turn that is stored when it is parked, and "kept" one that is stored as it goes.
    """

    url: str
    folder: Path
    session: str
    what: str
    point: str

    @property
    def effects(self) -> Path:
        return self.folder / f"effects-{self.session}"

    @property
    def parked(self) -> Path:
        return self.folder / f"parked-{self.session}"


class Killable:
    """A process that does a task."""

    def __init__(self, task: Task) -> None:
        self._pipe, end = FORKS.Pipe(duplex=False)
        self._process = FORKS.Process(target=do_task, args=(task, end))
        self._process.start()
        end.close()

    @property
    def code(self) -> int | None:
        """Return its exit code, negative if it was killed; None while it runs."""
        return self._process.exitcode

    def wait_for_start(self) -> None:
        self._pipe.recv()

    def wait_for_end(self, timeout_s: float) -> str:
        """Return how its task has ended; nothing if it was killed before."""
        self._process.join(timeout_s)
        assert self.code in (0, -signal.SIGKILL)
        said = STARTED
        while said == STARTED:
            try:
                said = self._pipe.recv()
            except EOFError:
                return ""
        return said

    def kill(self) -> None:
        self._process.kill()


def start_forks() -> None:
    """Start the process whose forks do tasks, unless it runs."""
    FORKS.set_forkserver_preload([__name__])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT}/src:{ROOT}/tests"
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


def reach(point: str) -> None:
    """Die here, as by ``kill -9``, if this is the point."""
    if point == _kill_at:
        os.kill(os.getpid(), signal.SIGKILL)


class Mortal(ApprovalQueue):
    """A queue whose process may die before or after each of its steps."""

    async def request_approval(self, *args: Any, **options: Any) -> Any:
        reach("before asking")
        request = await super().request_approval(*args, **options)
        reach("asked")
        return request

    async def park(self, approval_id: str) -> None:
        await super().park(approval_id)
        reach("parked")

    async def wait_for_decision(self, *args: Any, **options: Any) -> Any:
        decision = await super().wait_for_decision(*args, **options)
        reach("claimed")
        return decision

    async def take(self, approval_id: str) -> Any:
        decision = await super().take(approval_id)
        if decision is not None:
            reach("claimed")
        return decision

    async def use(self, approval_id: str) -> bool:
        reach("before use")
        used = await super().use(approval_id)
        reach("used")
        return used

    async def end(self, approval_id: str, started: bool) -> None:
        reach("before end")
        await super().end(approval_id, started)
        reach("ended")


def send(effects: Path, to: str) -> str:
    """Send something."""
    reach("in the tool")
    with effects.open("a") as file:
        file.write("sent\n")
        file.flush()
        os.fsync(file.fileno())
    reach("after the effect")
    return "sent"


async def make_call(guard: Edictum, task: Task) -> str:
    send_it = partial(send, task.effects)
    outcome = await guard.dispatch("send", ARGS, send_it, session_id=task.session, call_id="call-1")
    return type(outcome).__name__


def write_note(effects: Path, text: str) -> str:
    """Do what nobody is asked about."""
    reach(f"in {text}")
    with effects.open("a") as file:
        file.write(f"{text}\n")
    reach(f"after {text}")
    return text


async def answer_kept(messages: Any, tools: Any) -> ModelReply:
    """Make three calls, of which the second needs approval; then another; then say so."""
    said = sum(message["role"] == "assistant" for message in messages)
    requests = [
        *(ToolCallRequest(f"note-{text}", "note", {"text": text}) for text in NOTES[:2]),
        ToolCallRequest("call-1", "send", ARGS),
        ToolCallRequest("note-last", "note", {"text": NOTES[2]}),
    ]
    replies = ((requests[0], requests[2], requests[1]), (requests[3],), ())
    return ModelReply("" if replies[said] else "Done.", replies[said])


async def answer_as_model(messages: Any, tools: Any) -> ModelReply:
    """Call the tool once; then say what it answered."""
    if messages[-1]["role"] == "tool":
        reach("told the model")
        return ModelReply(messages[-1]["content"])
    return ModelReply("", (ToolCallRequest("call-1", "send", ARGS),))


async def make_turn(guard: Edictum, task: Task) -> str:
    @tool(name="send", side_effect="write")
    def send_it(to: str) -> str:
        return send(task.effects, to)

    start: Any = [{"role": "user", "content": "Send it."}]
    if task.parked.exists():
        start = ParkedTurn.from_json(task.parked.read_text())

    @tool(side_effect="write")
    def note(text: str) -> str:
        return write_note(task.effects, text)

    numbers = itertools.count(1)

    def keep(turn: ParkedTurn) -> None:
        number = next(numbers)
        reach(f"keep {number}")
        store_turn(task, turn)
        reach(f"kept {number}")

    options: Any = {"session_id": task.session, "park": True}
    if task.what == "kept":
        options["keep"] = keep
    model = answer_kept if task.what == "kept" else answer_as_model
    result = await run_turn(model, start, [send_it, note], guard, **options)
    if result.parked is not None:
        reach("before it is written")
        store_turn(task, result.parked)
        reach("written")
    return result.stopped_by


def store_turn(task: Task, turn: ParkedTurn) -> None:
    written = task.parked.with_suffix(".new")
    written.write_text(turn.to_json())
    written.rename(task.parked)


async def make(task: Task) -> str:
    guard = Edictum(
        contracts=[approval_contract("send", timeout=TIMEOUT_S)],
        approval_backend=open_queue_as(Mortal, task.url, lease_s=0.5),
    )
    said = await (make_call if task.what == "call" else make_turn)(guard, task)
    await guard.close()
    return said


def do_task(task: Task, pipe: Connection) -> None:
    """Do a task; say that it has started, and how it has ended."""
    global _kill_at  # one process does one task
    _kill_at = task.point
    pipe.send(STARTED)
    pipe.send(asyncio.run(make(task)))
