"""What tests of a framework's own pause share: an agent that asks, in one process, and goes on in
another.

Each framework has a worker, ``pause_<framework>.py``, which is run as a program of its own. In the
first process it starts a conversation for each case, in which the model calls ``delete`` with the
case as its name; the run must end, because a person is asked. In the second it goes on with them
from what the framework has stored. What a conversation is answered by is the case's: the store, or
what the framework itself is told.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

from edictum import Edictum, Principal, Verdict, precondition
from edictum.approval import Approvers, open_approvals
from support.effort import SOAK

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
DEADLINE_S = 300.0
ADMIN = Principal(user_id="ann", role="admin")
STORED = ("approved", "denied", "edited", "flipped", "unanswered", "four eyes", "unverified")
STORED += ("batch",)
BESIDE = ("beside 1", "beside 2")  # other calls of the message of "batch", about which nobody asks
TOLD = {"told yes": True, "told no": False, "unverified": True}
PAUSED = "PAUSED"


class Framework(Protocol):
    """How a framework starts a conversation, and goes on with it after a restart."""

    def __init__(self, guard: Edictum, folder: Path, delete: Any) -> None: ...

    async def start(self, case: str) -> str:
        """Return PAUSED, or what the model said at the end."""
        ...

    async def go_on(self, case: str, told: bool | None) -> str:
        """Go on; ``told`` is the person's answer to the framework, None if it is only woken."""
        ...


def list_names(case: str) -> tuple[str, ...]:
    """Return what the model wants to delete, in one message."""
    return (BESIDE[0], case, BESIDE[1]) if case == "batch" else (case,)


# --- In the worker --------------------------------------------------------------------------------


def make_guard(folder: Path) -> Edictum:
    """Return a guard whose contract asks, but for one case only in the first process."""
    flipped = folder / "flipped"

    @precondition("*delete", id="ask", effect="approve", timeout=3_600)
    def ask(call: Any) -> Verdict:
        is_fine = call.args["name"] == "flipped" and flipped.exists()
        is_fine = is_fine or call.args["name"] in BESIDE
        is_another = call.args["name"] in ("four eyes", "unverified")
        return Verdict.pass_() if is_fine or is_another else Verdict.fail("Delete it?")

    @precondition("*delete", id="four", effect="approve", approvers=Approvers(roles=("admin",)))
    def four(call: Any) -> Verdict:
        is_mine = call.args["name"] in ("four eyes", "unverified")
        return Verdict.fail("Delete it?") if is_mine else Verdict.pass_()

    contracts = [] if (folder / "removed").exists() else [ask, four]
    return Edictum(contracts=contracts, approval_backend=f"sqlite:///{folder}/approvals.db")


def run_worker(framework: type[Framework], cases: tuple[str, ...]) -> None:
    """Be a process: print as JSON how each conversation ended, by case."""
    folder, step = Path(sys.argv[1]), sys.argv[2]

    def delete(name: str, recursive: bool = False) -> str:
        """Delete something."""
        with (folder / "effects").open("a") as file:
            file.write(f"{name}\n")
        return f"deleted {name}"

    async def main() -> None:
        async with make_guard(folder) as guard:
            made = framework(guard, folder, delete)
            ended = {}
            for case in cases:
                step_of_case = made.start(case) if step == "start" else _go_on(made, case)
                ended[case] = await step_of_case
            actions = [[event.tool_args, str(event.action)] for event in guard.local_sink.events]
        print(json.dumps([ended, actions], default=dict))

    asyncio.run(main())


async def _go_on(framework: Framework, case: str) -> str:
    return await framework.go_on(case, TOLD.get(case))


# --- In the test ----------------------------------------------------------------------------------


class PauseScene:
    """A folder that outlives processes."""

    def __init__(self, worker: str, folder: Path) -> None:
        self.name, self.folder = worker, folder

    def run(self, step: str) -> tuple[dict[str, str], list[tuple[Any, str]]]:
        """Run a process; return how each conversation ended, and the events of the audit."""
        paths = {"PYTHONPATH": f"{ROOT}/src:{ROOT}/tests:{HERE}", "PATH": "/usr/bin:/bin"}
        ended = subprocess.run(
            [sys.executable, str(HERE / f"pause_{self.name}.py"), str(self.folder), step],
            env={**paths, "HOME": str(self.folder), "EDICTUM_SOAK": "1" if SOAK else ""},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        cases, actions = json.loads(ended.stdout.splitlines()[-1])
        return cases, actions

    async def answer(self) -> None:
        """Answer what the cases want to be answered in the store, in this process."""
        queue = open_approvals(f"sqlite:///{self.folder}/approvals.db")
        for request in await queue.pending():
            case = request.tool_args["name"]
            if case in ("approved", "batch", "four eyes"):
                await queue.answer(request.approval_id, True, approver=ADMIN)
            elif case == "edited":
                changed = {"name": "changed"}
                await queue.answer(request.approval_id, True, approver=ADMIN, args=changed)
            elif case in ("denied", "flipped"):
                await queue.answer(request.approval_id, False, approver=ADMIN, reason="Not now.")
        await queue.close()
        (self.folder / "flipped").touch()

    def list_effects(self) -> list[str]:
        effects = self.folder / "effects"
        return sorted(effects.read_text().splitlines()) if effects.exists() else []


def check_pauses(scene: PauseScene, cases: tuple[str, ...]) -> None:
    """Pause, restart, answer, restart, go on, and go on once more."""
    started, _ = scene.run("start")
    assert started == dict.fromkeys(cases, PAUSED)
    begun = scene.list_effects()
    assert set(begun) <= set(BESIDE)
    assert len(begun) == len(set(begun))
    asyncio.run(scene.answer())
    ended, actions = scene.run("go on")
    ran = {"approved": "approved", "four eyes": "four eyes", "told yes": "told yes"}
    ran["edited"] = "changed"
    expected = sorted(ran[case] for case in cases if case in ran)
    if "batch" in cases:
        expected = sorted([*expected, *list_names("batch")])
    assert scene.list_effects() == expected
    for case in cases:
        if case in ran:
            assert f"deleted {ran[case]}" in ended[case], case
    for case in {"denied", "flipped"}.intersection(cases):
        assert "Not now." in ended[case], case
    for case in ("unanswered", "unverified"):
        assert ended.get(case, PAUSED) == PAUSED, case
    assert "call_approval_requested" not in [action for _, action in actions]
    scene.run("go on")
    assert scene.list_effects() == expected  # never twice


def check_removed_contracts(scene: PauseScene) -> None:
    """Pause, answer, restart with a policy in which nothing can ask: a no stays a no."""
    scene.run("start")
    asyncio.run(scene.answer())
    (scene.folder / "removed").touch()
    ended, _ = scene.run("go on")
    for case in ("denied", "flipped"):
        assert "Not now." in ended[case], case
    assert not {"denied", "flipped"}.intersection(scene.list_effects())
