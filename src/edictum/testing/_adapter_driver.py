"""Drivers: how the adapters' suite makes and runs an agent in one framework."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, ClassVar
from unittest import SkipTest

from edictum.guard import Edictum
from edictum.testing._adapter_tools import SuiteTools

# (framework, version) -> point -> test -> "pass", "fail: why" or "dash: why".
RESULTS: dict[tuple[str, str], dict[str, dict[str, str]]] = {}


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """One tool call that the scripted model makes. ``raw`` is what it sends as the text of its
    arguments, whatever these are.
    """

    tool: str
    args: dict[str, Any]
    id: str
    raw: str | None = None

    @property
    def text(self) -> str:
        """What the model sends as arguments, where the framework takes a text."""
        return json.dumps(self.args) if self.raw is None else self.raw


# The model's turns. After the last one, and for an empty one, it answers with a text.
ModelScript = Sequence[Sequence[ScriptedCall]]


class ScriptPlayer:
    """Gives a scripted model its turns, from one script or from that of the user who speaks.

    A ``script`` for several users is a mapping of their names to scripts. Who speaks is read from
    what was said last; each user's script continues from run to run.
    """

    def __init__(self, script: ModelScript | Mapping[str, ModelScript]) -> None:
        self._scripts = script if isinstance(script, Mapping) else {"": script}
        self._asked: Counter[str] = Counter()

    def next_turn(self, said: str = "") -> Sequence[ScriptedCall]:
        """Return the calls of the next turn; none when the script is over."""
        user = next(name for name in self._scripts if name in said)
        turns, number = self._scripts[user], self._asked[user]
        self._asked[user] += 1
        return turns[number] if number < len(turns) else ()


Tool = Callable[..., Any]
Tools = Sequence[Tool]


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What the model read as the answer to a call, structured copies included, as text."""

    call_id: str
    text: str
    failed: bool | None = None  # the framework's own error mark; None where it has none


@dataclass(frozen=True, slots=True)
class ControlFlow:
    """A tool that steers its framework by raising. ``paused``: the call will be run again."""

    name: str
    tool: Callable[..., Any]
    paused: bool = True


def point(name: str) -> Callable[[Callable[..., None]], Callable[[Any], None]]:
    """Mark a test with the point that it proves, and record its result.

    A test that takes tools is run in each way in which an agent can be run, with tools for it.
    """

    def mark(test: Callable[..., None]) -> Callable[[Any], None]:
        takes_tools = "tools" in inspect.signature(test).parameters

        @functools.wraps(test)
        def run(self: AdapterDriver) -> None:
            results = self.get_results(name)
            if why := self.cannot.get(name):
                results[test.__name__] = f"dash: {why}"
                raise SkipTest(why)
            try:
                if takes_tools:
                    for tools in self.each_way():
                        test(self, tools)
                else:
                    test(self)
            except BaseException as exc:
                exc.add_note(f"in a run that is {self.way}")
                results[test.__name__] = f"fail: {type(exc).__name__}: {str(exc)[:200]}"
                raise
            results[test.__name__] = "pass"

        del vars(run)["__wrapped__"]  # test runners would read its signature
        vars(run)["point"] = name
        return run

    return mark


class AdapterDriver:
    """Describes a framework to the suite, and makes its agents."""

    framework: ClassVar[str] = ""  # its name in the comparison table
    distribution: ClassVar[str] = ""  # the package whose version the table shows
    cannot: ClassVar[Mapping[str, str]] = {}
    has_call_ids: ClassVar[bool] = True
    # (how the agent runs, which kind of tool): leave out what the framework itself cannot do
    ways: ClassVar[tuple[tuple[str, str], ...]] = (
        ("sync", "sync"),
        ("async", "sync"),
        ("async", "async"),
    )
    # the ways in which a tool may run another agent
    nested: ClassVar[tuple[str, ...]] = ("sync", "async")
    # False: a tool always gets the model's arguments, so a call that a hook rewrites is denied
    hands_on_args: ClassVar[bool] = True
    guard_name: ClassVar[str] = "{}"  # the name under which the framework shows a tool to the guard
    # how a raising tool is recorded; "framework" where a wire carries only a failure flag
    raised_as: ClassVar[str] = "exception"

    # whether the adapter itself gives the agent ``read_artifact`` where there is a store
    adds_reader: ClassVar[bool] = False
    # True: the framework itself shortens what a tool returns, whatever the adapter does
    shortens_itself: ClassVar[bool] = False
    # False: the adapter is shown texts only, so that a long structure is a long text
    has_structures: ClassVar[bool] = True
    # True: the model sends its arguments as text, which may be anything; ``build`` takes
    # ``ScriptedCall.text``
    takes_text_args: ClassVar[bool] = False

    way: str = ""  # in which the agent of the current test runs: "sync" or "async"

    def make_adapter(self, guard: Edictum, **options: Any) -> Any:
        """Return the adapter; options are session_id, principal, principal_resolver."""
        raise NotImplementedError

    def build(self, adapter: Any, tools: Tools, script: Any, on_warn: Any = None) -> Any:
        """Return a fresh agent that plays the script; without ``adapter`` it is not governed.

        ``script`` is a ModelScript, or a mapping of users to scripts: see ``ScriptPlayer``.
        """
        raise NotImplementedError

    def build_changing(self, adapter: Any, tools: Tools, script: Any) -> Any:
        """Return an agent as ``build`` does, in which something else changes the call.

        It is what users of the framework may add (a middleware, a hook, a filter), as close to the
        tool as it can stand, and sets the argument ``key`` to "forbidden".
        """
        raise NotImplementedError

    def build_waiting(self, adapter: Any, tools: Tools, script: Any) -> Any:
        """Return an agent as ``build`` does, whose runs cannot pause for a person.

        Where the framework can pause, the agent lacks what it needs for that.
        """
        return self.build(adapter, tools, script)

    def build_pausing(self, adapter: Any, tools: Tools, script: Any) -> Any:
        """Return an agent as ``build`` does, whose runs can pause."""
        return self.build(adapter, tools, script)

    def resume(self, agent: Any) -> None:
        """Resume a paused run in the framework's own way.

        The answer is in the queue. A framework that must be given one gets a yes.
        """
        raise NotImplementedError

    def run(self, agent: Any) -> None:
        """Run the agent to its end from synchronous code."""
        raise NotImplementedError

    async def arun(self, agent: Any) -> None:
        raise NotImplementedError

    def get_user_options(self) -> dict[str, Any]:
        """Return what the adapter needs to tell users apart where its framework does not."""
        return {}

    async def arun_as(self, agent: Any, user: str) -> None:
        """Run the agent for a user, in the user's conversation and beside runs of other users.

        What the model reads as said by the user contains the user's name.
        """
        raise NotImplementedError

    def run_as(self, agent: Any, user: str) -> None:
        """Do as ``arun_as`` does, from synchronous code."""
        asyncio.run(self.arun_as(agent, user))

    def get_session_of(self, user: str) -> str:
        """Return the session in which the calls of a user must be counted."""
        return get_conversation(user)

    def replies(self, agent: Any) -> list[ToolAnswer]:
        """Return every answer to a tool call in the model's last input."""
        raise NotImplementedError

    def stream(self, agent: Any) -> str:
        """Run the agent in its streaming way, and return everything that was streamed, as text."""
        raise NotImplementedError

    def failing_tool(self) -> Callable[..., Any]:
        """Return a tool ``report(key: str)`` that fails in the framework's way, not by raising."""
        raise NotImplementedError

    def control_flow(self) -> Sequence[ControlFlow]:
        """Return plain tools ``steer(key: str)`` that raise the control-flow exceptions."""
        raise NotImplementedError

    def ending(self, agent: Any) -> Any:
        """Return how a run ended, as something to compare with the same run without an adapter."""
        return [(answer.call_id, answer.text) for answer in self.replies(agent)]

    def target(self, agent: Any) -> Any:
        """Return what ``self_test`` is given for this agent."""
        return agent

    def get_results(self, point: str) -> dict[str, str]:
        """Return the results of a point, which a test adds to."""
        version = metadata.version(self.distribution)
        return RESULTS.setdefault((self.framework, version), {}).setdefault(point, {})

    # --- Playing a script -------------------------------------------------------------------------

    def each_way(self) -> Iterator[SuiteTools]:
        """Set ``self.way`` to each way in which an agent can be run, and yield tools for it."""
        for way, kind in self.ways:
            self.way = way
            yield SuiteTools(kind == "async")

    def play(self, agent: Any) -> BaseException | None:
        """Run the agent; return what it raised, since some frameworks end a run by raising."""
        try:
            if self.way == "sync":
                self.run(agent)
            else:
                asyncio.run(self.arun(agent))
        except Exception as exc:
            return exc
        return None

    def ask(
        self, adapter: Any, tools: Tools, script: ModelScript, on_warn: Any = None
    ) -> list[ToolAnswer]:
        """Return the answers that the model read; a run that raises is a failed test."""
        agent = self.build(adapter, tools, script, on_warn)
        if (error := self.play(agent)) is not None:
            raise AssertionError(f"the run raised {error!r}") from error
        answers = self.replies(agent)
        asked = sorted(call.id for turn in script for call in turn)
        found = sorted(answer.call_id for answer in answers) if self.has_call_ids else asked
        one_each = found == asked and len(answers) == len(asked)
        assert one_each, f"every call has exactly one answer: {answers}"
        return answers

    def call_once(
        self, guard: Edictum, tool: Tool, key: str = "a", on_warn: Any = None, **options: Any
    ) -> ToolAnswer:
        """Play a script of one call and return its answer."""
        script = make_script(tool.__name__, key)
        return self.ask(self.make_adapter(guard, **options), [tool], script, on_warn)[0]


def get_conversation(user: str) -> str:
    """Return the id under which a driver runs the conversation of a user."""
    return f"conversation-{user}"


def make_script(tool: str, *keys: str) -> list[list[ScriptedCall]]:
    """Return a script with one call per turn; their ids are call_1, call_2, ..."""
    return [
        [ScriptedCall(tool, {"key": key}, f"call_{number}")] for number, key in enumerate(keys, 1)
    ]


def make_parallel_script(tool: str, *keys: str) -> list[list[ScriptedCall]]:
    """Return a script with all calls in one turn; their ids are call_0, call_1, ..."""
    return [[ScriptedCall(tool, {"key": key}, f"call_{at}") for at, key in enumerate(keys)]]
