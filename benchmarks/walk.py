"""Count how far one call walks: function activations, files and changes of package.

    python benchmarks/walk.py        (make walk)

An *activation* is one ``call`` event of :func:`sys.setprofile` whose code belongs to the package
``edictum``: a function, method, lambda or comprehension that is entered, a generated ``__init__``,
and a generator or coroutine each time it is resumed. What the standard library, a framework or the
tool itself does is not counted. A *file* is a module that was entered at least once. A *crossing*
is a pair of consecutive activations in two packages; ``edictum.core.lifecycle`` is in the package
``core``, and each module directly below ``edictum`` (guard, outcomes, success) is one of its own.

The figures are those of the thread that makes the call, which is how house.md counted; beside them
stand the activations of the threads that serve it meanwhile (the writer of a session store). Every
way makes some calls first, so that what is prepared once is not part of it. Python 3.12 and newer
inline comprehensions and count fewer activations: compare figures of one version.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from tables import print_table
from venvs import NotMeasured, answer, ask

WARM_UP = 20
PATH = "/srv/data/report.txt"
SECRET = "/etc/secret-0"
BUNDLE = """apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: walk}
defaults: {mode: enforce}
contracts:
  - id: no-secrets
    type: pre
    tool: read_file
    when: {args.path: {contains: /etc/secret}}
    then: {effect: deny, message: "This file is secret."}
"""

Call = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Walk:
    """What one call entered: the module of each activation, in order."""

    modules: list[str]
    elsewhere: int

    @property
    def files(self) -> int:
        return len(set(self.modules))

    @property
    def crossings(self) -> int:
        packages = [package_of(module) for module in self.modules]
        return sum(one != other for one, other in itertools.pairwise(packages))

    def figures(self) -> list[int]:
        return [len(self.modules), self.files, self.crossings, self.elsewhere]


def package_of(module: str) -> str:
    """Return the first name below ``edictum``; the modules directly below it count as packages."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


class Recorder:
    """Notes activations of the library while it is switched on.

    It must be installed before the threads start that it is to see.
    """

    def __init__(self) -> None:
        self.on = False
        self.entered: list[tuple[int, str, str]] = []

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if self.on and event == "call":
            module = frame.f_globals.get("__name__", "")
            if module == "edictum" or module.startswith("edictum."):
                self.entered.append((threading.get_ident(), module, frame.f_code.co_name))

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]  # typeshed misses None

    async def record(self, call: Call) -> Walk:
        """Count one call, after a few that warm everything up."""
        for _ in range(WARM_UP):
            await call()
        await asyncio.sleep(0.2)  # what the last one left to be done
        self.entered.clear()
        self.on = True
        try:
            await call()
        finally:
            self.on = False
        here = [module for thread, module, _ in self.entered if thread == threading.get_ident()]
        return Walk(here, len(self.entered) - len(here))


def read_file(path: str) -> str:
    return f"contents of {path}"


async def read_file_async(path: str) -> str:
    return f"contents of {path}"


# --- The ways that are walked ---------------------------------------------------------------------


@contextlib.asynccontextmanager
async def run_allowed() -> AsyncIterator[Call]:
    from edictum import Edictum

    guard = Edictum.from_yaml_string(BUNDLE)
    yield lambda: guard.run("read_file", {"path": PATH}, read_file)


@contextlib.asynccontextmanager
async def run_denied() -> AsyncIterator[Call]:
    from edictum import Edictum, EdictumDenied

    guard = Edictum.from_yaml_string(BUNDLE)

    async def call() -> None:
        with contextlib.suppress(EdictumDenied):
            await guard.run("read_file", {"path": SECRET}, read_file)
            raise AssertionError("the call was not denied")

    yield call


@contextlib.asynccontextmanager
async def dispatch_in_turn() -> AsyncIterator[Call]:
    from edictum import Edictum, FileAuditSink, ToolExecutionResult
    from edictum.harness import BoundedToolExecutor, TurnBudget, TurnState, tool

    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder:
        guard = Edictum.from_yaml_string(
            BUNDLE,
            backend=f"sqlite:///{folder}/sessions.db",
            audit_sink=FileAuditSink(f"{folder}/audit.jsonl"),
        )
        spec = tool(name="read_file", side_effect="read")(read_file_async)
        executor = BoundedToolExecutor([spec], guard=guard)
        turn = executor.turn(TurnState("walk", TurnBudget.create(600, max_steps=10_000)))

        async def call() -> None:
            number = next(numbers)
            outcome = await guard.dispatch(
                "read_file", {"path": f"{PATH}.{number}"}, turn=turn, call_id=f"call-{number}"
            )
            assert isinstance(outcome, ToolExecutionResult), outcome

        try:
            yield call
        finally:
            await guard.close()


@contextlib.asynccontextmanager
async def langchain_node() -> AsyncIterator[Call]:
    from langchain_core.messages import AIMessage
    from langchain_core.tools import StructuredTool
    from langgraph.graph import START, MessagesState, StateGraph

    from edictum import Edictum
    from edictum.adapters import LangChainAdapter

    adapter = LangChainAdapter(Edictum.from_yaml_string(BUNDLE))
    made = StructuredTool.from_function(
        coroutine=read_file_async, name="read_file", description="Read a file."
    )
    graph = StateGraph(MessagesState)
    graph.add_node("tools", adapter.as_tool_node([made]))
    graph.add_edge(START, "tools")
    compiled = graph.compile()

    async def call() -> None:
        asked = {"name": "read_file", "args": {"path": PATH}, "id": "1", "type": "tool_call"}
        await compiled.ainvoke({"messages": [AIMessage("", tool_calls=[asked])]})

    yield call


WAYS = {
    "run, 1 YAML contract, memory, allowed": run_allowed,
    "the same, denied": run_denied,
    "dispatch in a turn, SQLite sessions, file sink": dispatch_in_turn,
    "LangChain tool node, memory": langchain_node,
}
IN_VENV = {"LangChain tool node, memory": "s1"}  # the venv of its framework
BEFORE = {  # counted by hand for house.md, before the library was tidied up
    "run, 1 YAML contract, memory, allowed": "22 / 14 / 17",
    "the same, denied": "73 / 21 / 34",
    "dispatch in a turn, SQLite sessions, file sink": "412 / 35 / 114",
    "LangChain tool node, memory": "88 / 19 / 29",
}


def walk(title: str) -> list[int]:
    """Return activations, files and crossings of one way, and the activations of other threads."""
    return _walk(title).figures()


def _walk(title: str, shown: Callable[[str], None] | None = None) -> Walk:
    recorder = Recorder()

    async def record() -> Walk:
        async with WAYS[title]() as call:
            return await recorder.record(call)

    with recorder.installed():
        found = asyncio.run(record())
    if shown is not None:
        for (_, module, function), times in Counter(recorder.entered).items():
            shown(f"    {times:>3} {module}.{function}")
    return found


def figures_of(title: str) -> list[int]:
    """Walk in this process, or in the venv of the framework."""
    if title not in IN_VENV:
        return walk(title)
    found: list[int] = ask(IN_VENV[title], Path(__file__).name, "--answer", title)
    return found


def report() -> None:
    print("Function activations / files / changes of package of one call, in its own thread.")
    rows: list[tuple[str, ...]] = [("way", "now", "house.md", "in serving threads")]
    missing: dict[str, str] = {}
    for title in WAYS:
        try:
            *own, elsewhere = figures_of(title)
            rows.append((title, " / ".join(map(str, own)), BEFORE[title], f"+ {elsewhere}"))
        except NotMeasured as exc:
            missing[title] = str(exc)
            rows.append((title, "NOT COUNTED", BEFORE[title], "-"))
    print_table(rows)
    for title, why in missing.items():
        print(f"{title}: NOT COUNTED, {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Count how far one call walks.")
    parser.add_argument("--answer", metavar="WAY", help="one way, as JSON (in a framework's venv)")
    parser.add_argument("--show", metavar="WAY", help="one way, with every function it enters")
    options = parser.parse_args()
    if options.answer:
        answer(lambda: walk(options.answer))
    elif options.show:
        title = next((title for title in WAYS if options.show in title), None)
        if title is None:
            parser.error(f"no such way; there are: {', '.join(WAYS)}")
        print(_walk(title, print).figures())
    else:
        report()


if __name__ == "__main__":
    main()
