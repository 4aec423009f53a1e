"""CrewAI in its real loop with a scripted model: once with ``wrap_tools``, once with
``register``.
"""

# ruff: noqa: E402  # CrewAI reads its environment when it is imported
from __future__ import annotations

import ast
import json
import os
import tempfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from faults import PlantedFaults
from pages import ExampleAndPage

for name, value in {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "OTEL_SDK_DISABLED": "true",
    "CREWAI_TRACING_ENABLED": "false",
}.items():
    os.environ[name] = value
os.environ.setdefault("CREWAI_STORAGE_DIR", tempfile.mkdtemp())

from crewai import Agent, Crew, Process, Task
from crewai.hooks import clear_before_tool_call_hooks, register_before_tool_call_hook
from crewai.llms.base_llm import BaseLLM
from crewai.tools import BaseTool, tool
from crewai.tools.tool_failure import ToolFailure
from pydantic import PrivateAttr

from edictum import Edictum, EdictumConfigError, OperationLimits, Principal
from edictum.adapters import CrewAIAdapter
from edictum.adapters._call_ids import get_call_id
from edictum.adapters._crewai_hooks import note_crewai_id
from edictum.testing.adapter import (
    SECRET,
    AdapterConformance,
    ScriptedCall,
    ScriptPlayer,
    ToolAnswer,
    get_conversation,
    get_last_event,
    list_actions,
    no_forbidden,
    no_secret,
    without_secret,
)

pytestmark = pytest.mark.s3  # needs crewai


class ScriptedModel(BaseLLM):
    """Plays a list of turns, and keeps what it was shown."""

    _player: Any = PrivateAttr()
    _seen: list[Any] = PrivateAttr(default_factory=list)
    _native: bool = PrivateAttr(default=True)

    def __init__(self, script: Any, native: bool = True) -> None:
        super().__init__(model="scripted")
        self._player, self._native = ScriptPlayer(script), native

    def supports_function_calling(self) -> bool:
        return self._native

    def supports_stop_words(self) -> bool:
        return False

    def get_context_window_size(self) -> int:
        return 100_000

    def call(self, messages: Any, *args: Any, **options: Any) -> Any:
        self._seen.append(json.loads(json.dumps(messages, default=str)))
        said = [message["content"] for message in self._seen[-1] if message["role"] == "user"]
        asked = self._player.next_turn(str(said[:1])) or "done"
        return (
            asked
            if isinstance(asked, str) and self._native
            else [as_call(one) for one in asked]
            if self._native
            else as_text(asked)
        )

    async def acall(self, messages: Any, *args: Any, **options: Any) -> Any:
        return self.call(messages)


def as_call(call: ScriptedCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.tool, "arguments": call.text},
    }


def as_text(asked: Any) -> str:
    """A turn for a model that writes its calls as text, one at a time."""
    if isinstance(asked, str):
        return f"Thought: done\nFinal ToolAnswer: {asked}"
    return f"Thought: go\nAction: {asked[0].tool}\nAction Input: {asked[0].text}\n"


def as_tool(function: Any) -> Any:
    return function if isinstance(function, BaseTool) else tool(function.__name__)(function)


def agent_with(tools: Any, model: Any, role: str = "reader") -> Agent:
    return Agent(
        role=role,
        goal="g",
        backstory="b",
        llm=model,
        tools=[as_tool(item) for item in tools],
        verbose=False,
    )


class Run:
    """A crew of one agent, and its model."""

    def __init__(self, tools: Any, script: Any, native: bool = True) -> None:
        self.model = ScriptedModel(script, native)
        self.agent = agent_with(tools, self.model)
        self.task = Task(description="d", expected_output="e", agent=self.agent)
        self.crew = Crew(agents=[self.agent], tasks=[self.task], verbose=False)
        self.tools, self.wire = tools, list[Any]()  # what governs a crew

    def make_crew(self, user: str) -> Crew:
        """A crew for one kickoff, with the model and the tools that all crews share."""
        agent = agent_with(self.tools, self.model)
        task = Task(description=user, expected_output="e", agent=agent)
        crew = Crew(name=get_conversation(user), agents=[agent], tasks=[task], verbose=False)
        for wire in self.wire:
            wire(crew)
        return crew


def read_as_json(content: str) -> str:
    """CrewAI shows a model str(dict); the suite reads JSON."""
    try:
        return json.dumps(ast.literal_eval(content))
    except (ValueError, SyntaxError):
        return content


class TestCrewAI(AdapterConformance):
    framework, distribution = "CrewAI", "crewai"
    takes_text_args = True
    ways = (("sync", "sync"), ("sync", "async"), ("async", "sync"), ("async", "async"))
    cannot = {
        "pauses": "a tool call that CrewAI has begun cannot be left and made again",
        "control flow": (
            "CrewAI has no exception by which a tool could steer: every one becomes a text that the"
            " model reads"
        ),
        "cancellation": (
            "CrewAI runs tools in threads; a cancelled run leaves them to their end, which is what"
            " is recorded"
        ),
    }

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return CrewAIAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Run:
        made = Run(tools, script)
        if adapter is not None:
            adapter.wrap_tools(made.crew, on_warn)
            made.wire.append(adapter.wrap_tools)
        return made

    def build_changing(self, adapter: Any, tools: Any, script: Any) -> Run:
        made = self.build(adapter, tools, script)

        def change(context: Any) -> None:
            if context.crew is made.crew:  # hooks are global, and there is a crew for each test
                context.tool_input["key"] = "forbidden"

        register_before_tool_call_hook(change)
        return made

    def run(self, agent: Run) -> None:
        agent.crew.kickoff()

    async def arun(self, agent: Run) -> None:
        await agent.crew.akickoff()

    def get_user_options(self) -> dict[str, Any]:
        def find_principal(context: Any) -> Principal:
            return Principal(user_id=context.crew.name.removeprefix(get_conversation("")))

        return {"session_id": lambda context: context.crew.name, "principal": find_principal}

    def run_as(self, agent: Run, user: str) -> None:
        agent.make_crew(user).kickoff()

    async def arun_as(self, agent: Run, user: str) -> None:
        await agent.make_crew(user).akickoff()

    def stream(self, agent: Run) -> str:
        agent.crew.stream = True
        streamed = agent.crew.kickoff()
        return str([chunk.model_dump() for chunk in streamed]) + str(streamed.result)

    def replies(self, agent: Run) -> list[ToolAnswer]:
        found = [message for message in agent.model._seen[-1] if message["role"] == "tool"]
        return [
            ToolAnswer(message["tool_call_id"], read_as_json(message["content"]))
            for message in found
        ]

    def failing_tool(self) -> Any:
        @tool("report")
        def report(key: str) -> Any:
            """Report."""
            return ToolFailure(message="there is no such key", code="no_key")

        return report

    def target(self, agent: Run) -> Any:
        return agent.crew


class TestRegister(TestCrewAI):
    """The same with CrewAI's own hooks, as its documentation shows them."""

    framework = "CrewAI register()"
    cannot = {
        **TestCrewAI.cannot,
        "two guards": (
            "CrewAI's hooks are global: every guard that is registered governs every call;"
            " wrap_tools keeps them apart"
        ),
    }

    @pytest.fixture(autouse=True)
    def no_hooks_are_left(self) -> Iterator[None]:
        yield
        clear_before_tool_call_hooks()

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Run:
        # they are global, and the suite builds many agents in one process
        clear_before_tool_call_hooks()
        if adapter is not None:
            adapter.register(on_warn)
        return Run(tools, script)


class TestFaults(PlantedFaults):
    suite = TestCrewAI
    adapter = CrewAIAdapter


# --- What is CrewAI's own -------------------------------------------------------------------------


class Lookup(BaseTool):
    """A tool as a class, as CrewAI's own tools are."""

    name: str = "Look Up-Things"
    description: str = "Look something up."
    ran: list[str] = []

    def _run(self, key: str) -> str:
        self.ran.append(key)
        return f"value of {key}, {SECRET}"


@pytest.fixture(autouse=True)
def no_hooks_are_left() -> Iterator[None]:
    yield
    clear_before_tool_call_hooks()


def texts(run: Run) -> str:
    return json.dumps(run.model._seen[-1])


@pytest.mark.parametrize("how", ["wrap_tools", "register"])
@pytest.mark.parametrize("native", [True, False], ids=["native calls", "calls as text"])
def test_a_tool_that_is_a_class_is_governed(how: str, native: bool) -> None:
    """Two ways lead from CrewAI's loops to such a tool; both pass the guard exactly once."""
    guard = Edictum(contracts=[no_forbidden, no_secret("redact", redact=without_secret)])
    lookup, name = Lookup(ran=[]), "look_up_things"
    run = Run(
        [lookup],
        [
            [ScriptedCall(name, {"key": "forbidden"}, "c1")],
            [ScriptedCall(name, {"key": "a"}, "c2")],
        ],
        native,
    )
    adapter = CrewAIAdapter(guard)
    adapter.register() if how == "register" else adapter.wrap_tools(run.crew)
    run.crew.kickoff()
    assert lookup.ran == ["a"]
    assert "DENIED: The key is forbidden." in texts(run)
    assert "value of a, [GONE]" in texts(run)
    assert list_actions(guard) == [
        "call_denied",
        "call_allowed",
        "postcondition_warning",
        "call_executed",
    ]
    assert {event.tool_name for event in guard.local_sink.events} == {name}


async def test_calls_as_text_are_governed_in_asynchronous_runs() -> None:
    guard = Edictum(contracts=[no_forbidden])

    @tool("alook")
    async def alook(key: str) -> str:
        """Look."""
        return f"value of {key}"

    run = Run(
        [alook],
        [
            [ScriptedCall("alook", {"key": "forbidden"}, "c1")],
            [ScriptedCall("alook", {"key": "a"}, "c2")],
        ],
        native=False,
    )
    CrewAIAdapter(guard).wrap_tools(run.crew)
    await run.crew.akickoff()
    assert "DENIED: The key is forbidden." in texts(run)
    assert list_actions(guard) == ["call_denied", "call_allowed", "call_executed"]


@pytest.mark.parametrize("how", ["wrap_tools", "register"])
def test_tools_that_crewai_makes_itself_are_governed(how: str) -> None:
    """Delegation: the manager's tools are made when the crew starts, and the worker has tools of
    its own.
    """
    guard = Edictum(contracts=[no_forbidden])
    lookup = Lookup(ran=[])
    worker = agent_with(
        [lookup],
        ScriptedModel([[ScriptedCall("look_up_things", {"key": "forbidden"}, "c2")]]),
        role="worker",
    )
    ask = {"task": "look", "context": "none", "coworker": "worker"}
    manager = ScriptedModel([[ScriptedCall("delegate_work_to_coworker", ask, "c1")]])
    task = Task(description="d", expected_output="e")
    crew = Crew(
        agents=[worker],
        tasks=[task],
        process=Process.hierarchical,
        manager_llm=manager,
        verbose=False,
    )
    adapter = CrewAIAdapter(guard)
    adapter.register() if how == "register" else adapter.wrap_tools(crew)
    crew.kickoff()
    assert lookup.ran == []
    found = [(event.action, event.tool_name, event.call_id) for event in guard.local_sink.events]
    assert found[0] == ("call_allowed", "delegate_work_to_coworker", "c1")
    assert found[1:] == [
        ("call_denied", "look_up_things", "c2"),
        ("call_executed", "delegate_work_to_coworker", "c1"),
    ]


@pytest.mark.parametrize("how", ["crew", "tools", "register"])
def test_two_calls_that_are_the_same_keep_their_own_ids(how: str) -> None:
    guard = Edictum()
    adapter, lookup = CrewAIAdapter(guard), Lookup(ran=[])
    same = {"key": "a"}
    run = Run(
        adapter.wrap_tools([lookup]) if how == "tools" else [lookup],
        [
            [
                ScriptedCall("look_up_things", same, "c1"),
                ScriptedCall("look_up_things", same, "c2"),
            ],
            [ScriptedCall("look_up_things", same, "c3")],
        ],
    )
    if how != "tools":
        adapter.register() if how == "register" else adapter.wrap_tools(run.crew)
    run.crew.kickoff()
    assert sorted(
        event.call_id for event in guard.local_sink.events if event.action == "call_executed"
    ) == ["c1", "c2", "c3"]


def test_a_call_that_crewai_does_not_make_has_no_id_of_crewai_s() -> None:
    """Neither one that goes around CrewAI, later, nor one that a model wrote as text, inside of one
    that has an id.
    """
    guard = Edictum()
    adapter = CrewAIAdapter(guard)
    inner = Run(
        adapter.wrap_tools([Lookup(ran=[])]),
        [[ScriptedCall("look_up_things", {"key": "a"}, "c2")]],
        native=False,
    )

    @tool("ask")
    def ask(key: str) -> str:
        """Ask another crew."""
        return str(inner.crew.kickoff())

    run = Run(adapter.wrap_tools([ask]), [[ScriptedCall("ask", {"key": "a"}, "c1")]])
    run.crew.kickoff()
    run.agent.tools[0].run(key="a")
    found = [
        (event.tool_name, event.call_id in ("c1", "c2"))
        for event in guard.local_sink.events
        if event.action == "call_executed"
    ]
    assert found == [("look_up_things", False), ("ask", True), ("ask", False)]


def run_before_tool_call_hooks(call_id: Any) -> str | None:
    """As if CrewAI kept something else under that name, or nothing at all."""
    note_crewai_id(SimpleNamespace(tool_name="look"))
    return get_call_id("look")


def test_where_there_is_no_id_none_is_noted() -> None:
    call_id: Any = "c1"
    assert run_before_tool_call_hooks("mine") == "c1"  # the caller's, not its own
    call_id = 7
    assert run_before_tool_call_hooks("mine") is None
    del call_id
    assert run_before_tool_call_hooks("mine") is None
    note_crewai_id(SimpleNamespace(tool_name="look"))
    assert get_call_id("look") is None


@pytest.mark.parametrize("how", ["wrap_tools", "register"])
def test_an_answer_from_crewai_s_cache_is_not_given_around_the_guard(how: str) -> None:
    guard = Edictum(limits=OperationLimits(max_tool_calls=1))
    lookup = Lookup(ran=[])
    run = Run(
        [lookup],
        [
            [ScriptedCall("look_up_things", {"key": "a"}, "c1")],
            [ScriptedCall("look_up_things", {"key": "a"}, "c2")],
        ],
    )
    run.crew.cache = run.agent.cache = True
    adapter = CrewAIAdapter(guard)
    adapter.register() if how == "register" else adapter.wrap_tools(run.crew)
    run.crew.kickoff()
    assert list_actions(guard) == ["call_allowed", "call_executed", "call_denied"]


@pytest.mark.parametrize("native", [True, False], ids=["native", "as text"])
@pytest.mark.parametrize("how", ["copies", "agent", "register"])
def test_what_a_plain_agent_left_in_the_cache_does_not_answer_a_governed_one(
    how: str, native: bool
) -> None:
    ran: list[str] = []

    @tool("look")
    def look(key: str) -> str:
        """Look something up."""
        ran.append(key)
        return f"value of {key}, {SECRET}"

    asked = [ScriptedCall("look", {"key": key}, key) for key in ("forbidden", "a")]
    models = [ScriptedModel([[call] for call in asked], native) for _ in range(2)]
    guard = Edictum(contracts=[no_forbidden, no_secret("redact", redact=without_secret)])
    adapter = CrewAIAdapter(guard)
    plain = agent_with([look], models[0], "plain")
    governed = agent_with(
        adapter.wrap_tools([look]) if how == "copies" else [look], models[1], "governed"
    )
    if how == "agent":
        adapter.wrap_tools(governed)
    first, second = (
        Task(description="d", expected_output="e", agent=agent) for agent in (plain, governed)
    )
    crew = Crew(agents=[plain, governed], tasks=[first, second], verbose=False, cache=True)
    if how == "register":
        first.callback = lambda _: adapter.register()  # from then on
    crew.kickoff()
    assert ran == [
        "forbidden",
        "a",
        "a",
    ], "the governed agent may not run the first, and must run the second"
    assert list_actions(guard) == [
        "call_denied",
        "call_allowed",
        "postcondition_warning",
        "call_executed",
    ]
    assert SECRET not in str(models[1]._seen)


@pytest.mark.parametrize("native", [True, False], ids=["native", "as text"])
def test_the_cache_does_not_answer_governed_tools_once_the_hooks_are_cleared(native: bool) -> None:
    ran: list[str] = []

    @tool("look")
    def look(key: str) -> str:
        """Look something up."""
        ran.append(key)
        return f"value of {key}"

    models = [
        ScriptedModel([[ScriptedCall("look", {"key": "forbidden"}, "c")]], native) for _ in range(2)
    ]
    guard = Edictum(contracts=[no_forbidden])
    plain, governed = agent_with([look], models[0], "plain"), agent_with([look], models[1], "other")
    CrewAIAdapter(guard).wrap_tools(governed)
    clear_before_tool_call_hooks()
    tasks = [Task(description="d", expected_output="e", agent=it) for it in (plain, governed)]
    Crew(agents=[plain, governed], tasks=tasks, verbose=False, cache=True).kickoff()
    assert (ran, list_actions(guard)) == (["forbidden"], ["call_denied"])


def test_an_agent_that_is_not_governed_keeps_its_cache() -> None:
    lookup = Lookup(ran=[])
    run = Run(
        [lookup],
        [
            [ScriptedCall("look_up_things", {"key": "a"}, "c1")],
            [ScriptedCall("look_up_things", {"key": "a"}, "c2")],
        ],
    )
    run.crew.cache = run.agent.cache = True
    CrewAIAdapter(Edictum()).wrap_tools(Run([Lookup(ran=[])], []).crew)
    run.crew.kickoff()
    assert lookup.ran == ["a"]


def test_a_denial_is_among_the_failures_of_the_task() -> None:
    run = Run([Lookup(ran=[])], [[ScriptedCall("look_up_things", {"key": "forbidden"}, "c1")]])
    CrewAIAdapter(Edictum(contracts=[no_forbidden])).wrap_tools(run.crew)
    (output,) = run.crew.kickoff().tasks_output
    assert [record.message for record in output.tool_failures] == ["DENIED: The key is forbidden."]


@pytest.mark.parametrize("effect", ["redact", "deny"])
def test_a_tool_failure_stays_one_when_its_text_must_not_be_read(effect: str) -> None:
    @tool("report")
    def report(key: str) -> Any:
        """Report."""
        return ToolFailure(message=f"no {SECRET}", code="no_key")

    options = (
        {"redact": lambda failure: failure.model_copy(update={"message": "no [GONE]"})}
        if effect == "redact"
        else {}
    )
    guard = Edictum(contracts=[no_secret(effect, **options)])
    run = Run([report], [[ScriptedCall("report", {"key": "a"}, "c1")]])
    CrewAIAdapter(guard).wrap_tools(run.crew)
    (output,) = run.crew.kickoff().tasks_output
    (record,) = output.tool_failures
    assert ("[GONE]" if effect == "redact" else "SUPPRESSED") in record.failure.message
    assert SECRET not in texts(run) + str(output)
    assert (get_last_event(guard).action, get_last_event(guard).success_source) == (
        "call_failed",
        "framework",
    )


def test_the_copies_that_crewai_makes_of_a_crew_are_governed() -> None:
    guard = Edictum(contracts=[no_forbidden])
    lookup = Lookup(ran=[])
    run = Run([lookup], [[ScriptedCall("look_up_things", {"key": "forbidden"}, "c1")]])
    CrewAIAdapter(guard).wrap_tools(run.crew)
    run.crew.kickoff_for_each(inputs=[{}, {}])
    assert lookup.ran == []
    assert set(list_actions(guard)) == {"call_denied"}


def test_tools_alone_can_be_wrapped_and_the_originals_stay_as_they_are() -> None:
    """A list of tools has no hook: each of its tools must be governed itself."""
    guard = Edictum(contracts=[no_forbidden])
    adapter, lookup = CrewAIAdapter(guard), Lookup(ran=[])
    (governed,) = adapter.wrap_tools([lookup])
    assert "DENIED" in str(governed.run(key="forbidden"))
    assert "DENIED" in str(governed._run("forbidden"))
    assert lookup.run(key="forbidden").startswith("value")
    assert lookup.ran == ["forbidden"]
    assert adapter.self_test([governed]) == "governed"
    with pytest.raises(EdictumConfigError, match="not governed: Look Up-Things"):
        adapter.self_test([governed, lookup])


def test_a_tool_is_governed_once_however_often_it_is_wrapped() -> None:
    guard = Edictum()
    run = Run(
        [Lookup(ran=[])],
        [
            [ScriptedCall("look_up_things", {"key": "a"}, "c1")],
            [ScriptedCall("look_up_things", {"key": "b"}, "c2")],
        ],
    )
    adapter = CrewAIAdapter(guard)
    adapter.register()
    adapter.wrap_tools(adapter.wrap_tools(run.crew))
    run.crew.kickoff()
    assert list_actions(guard) == ["call_allowed", "call_executed"] * 2


def test_a_tool_that_cannot_be_governed_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """CrewAI swallows an exception of a hook and runs the tool; only False blocks."""
    lookup = Lookup(ran=[])
    run = Run([lookup], [[ScriptedCall("look_up_things", {"key": "a"}, "c1")]])
    adapter = CrewAIAdapter(Edictum())
    adapter.register()
    monkeypatch.setattr(CrewAIAdapter, "_wrap", lambda *_: 1 / 0)
    run.crew.kickoff()
    assert lookup.ran == []
    assert "Tool execution blocked by hook" in texts(run)


def test_an_unsupported_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CrewAIAdapter, "requires", {"crewai": ("7.0", "8")})
    with pytest.raises(EdictumConfigError, match=r"supports crewai>=7\.0,<8; installed is 1\."):
        CrewAIAdapter(Edictum()).register()


class TestExample(ExampleAndPage):
    name = "crewai"
