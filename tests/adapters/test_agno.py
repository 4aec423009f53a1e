"""Agno, in its real loop with a scripted model."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from agno.agent import Agent
from agno.db.json import JsonDb
from agno.exceptions import RetryAgentRun, StopAgentRun
from agno.models.base import Model
from agno.models.response import ModelResponse
from agno.team import Team
from agno.tools import tool
from agno.tools.function import Function, ToolResult
from faults import PlantedFaults
from pages import ExampleAndPage
from pause_agno import CASES as PAUSE_CASES
from pausing import PauseScene, check_pauses, check_removed_contracts

from edictum import Edictum, EdictumConfigError, Verdict, precondition
from edictum.adapters import AgnoAdapter
from edictum.testing.adapter import (
    SECRET,
    AdapterConformance,
    ControlFlow,
    ScriptedCall,
    ScriptPlayer,
    ToolAnswer,
    get_conversation,
    no_forbidden,
    no_secret,
    without_secret,
)

pytestmark = pytest.mark.s1  # needs agno


@dataclass
class ScriptedModel(Model):
    """Plays a list of turns, and keeps what it was shown."""

    id: str = "scripted"
    player: Any = None
    seen: list[Any] = field(default_factory=list)

    def _next(self, messages: Any) -> ModelResponse:
        self.seen.append([message.model_copy() for message in messages])
        said = [message.content for message in messages if message.role == "user"]
        calls = self.player.next_turn(str(said[-1:]))
        made = [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": c.tool, "arguments": c.text},
            }
            for c in calls
        ]
        return (
            ModelResponse(role="assistant", tool_calls=made)
            if made
            else ModelResponse(role="assistant", content="done")
        )

    def invoke(self, messages: Any, *_: Any, **__: Any) -> ModelResponse:
        return self._next(messages)

    async def ainvoke(self, messages: Any, *_: Any, **__: Any) -> ModelResponse:
        return self._next(messages)

    def invoke_stream(self, messages: Any, *_: Any, **__: Any) -> Iterator[ModelResponse]:
        yield self._next(messages)

    async def ainvoke_stream(
        self, messages: Any, *_: Any, **__: Any
    ) -> AsyncIterator[ModelResponse]:
        yield self._next(messages)

    def _parse_provider_response(self, response: Any, **_: Any) -> Any:
        return response

    def _parse_provider_response_delta(self, response: Any) -> Any:
        return response


def agent_of(tools: Any, script: Any, **options: Any) -> Agent:
    return Agent(
        model=ScriptedModel(player=ScriptPlayer(script)),
        tools=list(tools),
        telemetry=False,
        **options,
    )


def continue_run(agent: Agent, paused: Any, how: str) -> Any:
    if how == "sync":
        return agent.continue_run(run_response=paused)
    return asyncio.run(agent.acontinue_run(run_response=paused))


def read(model: Any) -> list[Any]:
    """The tool messages in the model's last input."""
    return [message for message in model.seen[-1] if message.role == "tool"]


def text_of(content: Any) -> str:
    """Agno writes a dict as Python does; the suite reads JSON."""
    try:
        value = ast.literal_eval(content)
    except (ValueError, SyntaxError):
        return str(content)
    return json.dumps(value) if isinstance(value, dict) else str(content)


class TestAgno(AdapterConformance):
    framework, distribution = "Agno", "agno"
    takes_text_args = True

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return AgnoAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Agent:
        return agent_of(
            tools, script, tool_hooks=None if adapter is None else [adapter.as_tool_hook(on_warn)]
        )

    def build_pausing(self, adapter: Any, tools: Any, script: Any) -> Agent:
        agent: Agent = adapter.govern(agent_of(tools, script))
        return agent

    def resume(self, agent: Agent) -> None:
        for requirement in agent.paused.active_requirements:
            requirement.confirm()
        _ = continue_run(agent, agent.paused, self.way)

    def build_changing(self, adapter: Any, tools: Any, script: Any) -> Agent:
        def change(function_name: str, function_call: Any, arguments: Any) -> Any:
            arguments["key"] = "forbidden"
            return function_call(**arguments)

        own = [] if adapter is None else [adapter.as_tool_hook()]
        return agent_of(tools, script, tool_hooks=[*own, change])

    def run(self, agent: Agent) -> None:
        agent.paused = agent.run("go")

    async def arun(self, agent: Agent) -> None:
        agent.paused = await agent.arun("go")

    def run_as(self, agent: Agent, user: str) -> None:
        agent.run(user, session_id=get_conversation(user), user_id=user)

    async def arun_as(self, agent: Agent, user: str) -> None:
        await agent.arun(user, session_id=get_conversation(user), user_id=user)

    def stream(self, agent: Agent) -> str:
        async def collect() -> str:
            return str([event async for event in agent.arun("go", stream=True, stream_events=True)])

        return asyncio.run(collect())

    def replies(self, agent: Agent) -> list[ToolAnswer]:
        return [
            ToolAnswer(m.tool_call_id, text_of(m.content), bool(m.tool_call_error))
            for m in read(agent.model)
        ]

    def failing_tool(self) -> Any:
        def report(key: str) -> ToolResult:
            """A tool of an MCP server, as Agno presents its failures."""
            return ToolResult(
                content="Error from MCP tool 'report': there is no such key",
                metadata={"meta": None},
            )

        return report

    def control_flow(self) -> list[ControlFlow]:
        def retrying(key: str) -> str:
            """Ask for another try."""
            raise RetryAgentRun("try another key", user_message="another key, please")

        def stopping(key: str) -> str:
            """End the run."""
            raise StopAgentRun("that is enough")

        made = [Function(name="steer", entrypoint=function) for function in (retrying, stopping)]
        return [
            ControlFlow(function.entrypoint.__name__, function, paused=False) for function in made
        ]

    def ending(self, agent: Agent) -> Any:
        return [(message.role, message.content) for message in agent.model.seen[-1]], len(
            agent.model.seen
        )


class TestFaults(PlantedFaults):
    suite = TestAgno
    adapter = AgnoAdapter


# --- What is Agno's own ---------------------------------------------------------------------------


def look(key: str) -> str:
    """Look something up."""
    return f"value of {key}, {SECRET}"


def play(agent: Any, how: str) -> list[Any]:
    """The tool messages that the model read."""
    _ = agent.run("go") if how == "sync" else asyncio.run(agent.arun("go"))
    return read(agent.model)


def strict() -> Edictum:
    return Edictum(contracts=[no_forbidden, no_secret("redact", redact=without_secret)])


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_tool_result_keeps_its_kind_and_both_of_its_parts_are_redacted(how: str) -> None:
    kept: list[Any] = []

    def made(key: str) -> ToolResult:
        """Make a result."""
        return ToolResult(
            content=f"text {SECRET}", metadata={"structured_content": {"number": SECRET}}
        )

    def watch(function_name: str, function_call: Any, arguments: Any) -> Any:
        async def keep_later(result: Any) -> Any:
            kept.append(await result)
            return kept[-1]

        result = function_call(**arguments)
        if asyncio.iscoroutine(result):
            return keep_later(result)
        kept.append(result)
        return result

    agent = agent_of(
        [made],
        [[ScriptedCall("made", {"key": "a"}, "c1")]],
        tool_hooks=[watch, AgnoAdapter(strict()).as_tool_hook()],
    )
    (message,) = play(agent, how)
    assert message.content == "text [GONE]"
    assert kept == [
        ToolResult(content="text [GONE]", metadata={"structured_content": {"number": "[GONE]"}})
    ]


@pytest.mark.parametrize("how", ["sync", "async", "async tool"])
def test_all_pieces_of_a_generator_are_judged_before_one_is_read(how: str) -> None:
    def pieces(key: str) -> Iterator[str]:
        """Yield."""
        yield from ("123-45", "-6789 ", key)

    async def apieces(key: str) -> AsyncIterator[str]:
        """Yield."""
        for piece in ("123-45", "-6789 ", key):
            yield piece

    made = Function(name="pieces", entrypoint=apieces if how == "async tool" else pieces)
    guard = strict()
    calls = [ScriptedCall("pieces", {"key": key}, f"c_{key}") for key in ("a", "forbidden")]
    messages = play(agent_of([made], [calls], tool_hooks=[AgnoAdapter(guard).as_tool_hook()]), how)
    assert [message.content for message in messages] == [
        "[GONE] a",
        "DENIED: The key is forbidden.",
    ]
    fine = agent_of([made], [calls[:1]], tool_hooks=[AgnoAdapter(Edictum()).as_tool_hook()])
    assert [message.content for message in play(fine, how)] == [f"{SECRET} a"]


def test_a_redacted_retry_drops_the_messages_that_it_carries() -> None:
    def again(key: str) -> str:
        """Ask for another try."""
        raise RetryAgentRun(f"not {SECRET}", user_message=f"do not send {SECRET}")

    agent = agent_of(
        [again],
        [[ScriptedCall("again", {"key": "a"}, "c1")]],
        tool_hooks=[AgnoAdapter(strict()).as_tool_hook()],
    )
    agent.run("go")
    assert SECRET not in str(agent.model.seen)
    assert "not [GONE]" in str(agent.model.seen[-1])


def test_a_team_and_its_members_are_governed() -> None:
    guard = strict()
    adapter = AgnoAdapter(guard)
    member = agent_of(
        [look],
        [[ScriptedCall("look", {"key": "forbidden"}, "c2")]],
        name="reader",
        id="reader",
        tool_hooks=[adapter.as_tool_hook()],
    )
    script = [
        [ScriptedCall("delegate_task_to_member", {"member_id": "reader", "task": "go"}, "c1")]
    ]
    team = Team(
        members=[member],
        model=ScriptedModel(player=ScriptPlayer(script)),
        tool_hooks=[adapter.as_tool_hook()],
        telemetry=False,
    )
    assert adapter.self_test(team) == "governed"
    team.run("go")
    assert "DENIED: The key is forbidden." in str(read(member.model))
    actions = [f"{event.action} {event.tool_name}" for event in guard.local_sink.events]
    assert actions == [
        "call_allowed delegate_task_to_member",
        "call_denied look",
        "call_executed delegate_task_to_member",
    ]
    member.tool_hooks = None
    with pytest.raises(EdictumConfigError, match="does not govern"):
        adapter.self_test(team)


def test_a_hook_on_single_tools_is_enough_if_every_tool_has_it() -> None:
    adapter = AgnoAdapter(strict())
    governed = tool(name="look", tool_hooks=[adapter.as_tool_hook()])(look)
    agent = agent_of([governed], [[ScriptedCall("look", {"key": "forbidden"}, "c1")]])
    assert adapter.self_test(agent) == "governed"
    assert [message.content for message in play(agent, "sync")] == ["DENIED: The key is forbidden."]
    with pytest.raises(EdictumConfigError, match="does not govern"):
        adapter.self_test(agent_of([governed, look], []))


def test_an_asynchronous_hook_that_agno_leaves_out_of_synchronous_runs_is_noticed() -> None:
    adapter = AgnoAdapter(Edictum())
    hook = adapter.as_tool_hook()

    async def by_hand(function_name: str, function_call: Any, arguments: Any) -> Any:
        return await hook(function_name, function_call, arguments)

    with pytest.raises(EdictumConfigError, match="its tool ran"):
        adapter.self_test(agent_of([look], [], tool_hooks=[by_hand]))


def test_asynchronous_tools_run_in_their_own_loop_and_side_by_side() -> None:
    loops: list[Any] = []
    all_here = asyncio.Event()

    async def wait(key: str) -> str:
        """Wait for the others."""
        loops.append(asyncio.get_running_loop())
        if len(loops) == 3:
            all_here.set()
        await all_here.wait()
        return key

    calls = [ScriptedCall("wait", {"key": str(number)}, f"c{number}") for number in range(3)]
    agent = agent_of([wait], [calls], tool_hooks=[AgnoAdapter(Edictum()).as_tool_hook()])

    async def run() -> Any:
        await asyncio.wait_for(agent.arun("go"), 60)
        return asyncio.get_running_loop()

    assert set(loops) | {asyncio.run(run())} == set(loops)
    assert len(set(loops)) == 1


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_call_counts_once_however_often_the_hook_is_wired(how: str) -> None:
    ran: list[str] = []

    def again(key: str) -> str:
        """Let another agent do the same."""
        ran.append(key)
        if len(ran) == 1:
            play(
                agent_of([again], [[ScriptedCall("again", {"key": "a"}, "c1")]], tool_hooks=hooks),
                "sync",
            )
        return key

    guard = Edictum()
    adapter = AgnoAdapter(guard, session_id="both agents")
    hooks = [adapter.as_tool_hook(), adapter.as_tool_hook()]
    play(agent_of([again], [[ScriptedCall("again", {"key": "a"}, "c1")]], tool_hooks=hooks), how)
    assert ran == ["a", "a"]
    assert guard.session(adapter.session_id).attempts == 2, (
        "the same call once; another call, by the same name and id, too"
    )


@pytest.mark.parametrize(
    ("key", "confirmed", "answer", "actions"),
    [
        ("a", True, "found a", ["call_allowed", "call_executed"]),
        ("a", False, "Not now.", []),
        ("forbidden", True, "DENIED", ["call_denied"]),
    ],
)
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_call_that_agno_itself_has_paused_is_judged_when_it_goes_on(
    tmp_path: Path, how: str, key: str, confirmed: bool, answer: str, actions: list[str]
) -> None:
    """With another agent, as in another process: the run is in the database."""
    ran: list[str] = []

    def look(key: str) -> str:
        """Look."""
        ran.append(key)
        return f"found {key}"

    def make_agent(script: Any) -> tuple[Agent, Edictum]:
        guard = Edictum(contracts=[no_forbidden])
        hooks = [AgnoAdapter(guard).as_tool_hook()]
        pausing = tool(requires_confirmation=True)(look)
        db = JsonDb(db_path=str(tmp_path))
        return agent_of([pausing], script, tool_hooks=hooks, db=db, session_id="s"), guard

    def run(method: str, agent: Agent, *args: Any, **options: Any) -> Any:
        if how == "sync":
            return getattr(agent, method)(*args, **options)
        return asyncio.run(getattr(agent, f"a{method}")(*args, **options))

    agent, guard = make_agent([[ScriptedCall("look", {"key": key}, "c1")]])
    paused = run("run", agent, "go")
    assert (paused.is_paused, ran, guard.local_sink.events) == (True, [], [])
    (requirement,) = paused.active_requirements
    requirement.confirm() if confirmed else requirement.reject("Not now.")
    other, guard = make_agent([])
    about = {"run_id": paused.run_id, "session_id": "s", "requirements": [requirement]}
    run("continue_run", other, **about)
    (message,) = read(other.model)
    assert answer in str(message.content)
    assert ran == ([key] if actions == ["call_allowed", "call_executed"] else [])
    assert [str(event.action) for event in guard.local_sink.events] == actions


class TestExample(ExampleAndPage):
    name = "agno"


def test_a_run_pauses_and_goes_on_in_another_process(tmp_path: Path) -> None:
    check_pauses(PauseScene("agno", tmp_path), PAUSE_CASES)


def test_a_no_counts_in_a_process_whose_policy_cannot_ask(tmp_path: Path) -> None:
    check_removed_contracts(PauseScene("agno", tmp_path))


@pytest.mark.parametrize("how", ["sync", "async"])
def test_other_calls_of_the_same_message_run_and_are_not_run_again(
    tmp_path: Path, how: str
) -> None:
    """Only the call that asks pauses; Agno's yes is an answer, given as Agno."""
    ran: list[str] = []

    def look(key: str) -> str:
        """Look."""
        ran.append(key)
        return f"found {key}"

    @precondition("look", effect="approve", timeout=600)
    def ask(call: Any) -> Verdict:
        return Verdict.fail("Look?") if call.args["key"] == "b" else Verdict.pass_()

    guard = Edictum(contracts=[ask], approval_backend=f"sqlite:///{tmp_path}/approvals.db")
    calls = [ScriptedCall("look", {"key": key}, f"call-{key}") for key in "abc"]
    agent = AgnoAdapter(guard).govern(agent_of([look], [calls]))
    paused = agent.run("go") if how == "sync" else asyncio.run(agent.arun("go"))
    assert paused.is_paused
    assert sorted(ran) == ["a", "c"]
    (requirement,) = paused.active_requirements
    assert requirement.tool_execution.tool_args == {"key": "b"}
    requirement.confirm()
    assert continue_run(agent, paused, how).content == "done"
    assert sorted(ran) == ["a", "b", "c"]
    (granted,) = guard.local_sink.filter("call_approval_granted")
    assert granted.approver == "Agno"
    asyncio.run(guard.close())


def test_a_governed_team_and_its_members(tmp_path: Path) -> None:
    """Its models pause, copies of them too, and it is governed once however often it is asked."""
    adapter = AgnoAdapter(strict())
    member = agent_of([look], [[ScriptedCall("look", {"key": "forbidden"}, "c2")]], name="reader")
    model = ScriptedModel(player=ScriptPlayer([]))
    team = adapter.govern(Team(members=[member], model=model, telemetry=False))
    assert adapter.self_test(team) == "governed"
    hooks = member.tool_hooks
    assert adapter.govern(team).members[0].tool_hooks == hooks
    assert type(deepcopy(model)).governors == (adapter,)
    assert isinstance(model, ScriptedModel)
    assert type(model).__name__ == "ScriptedModel"
    assert "DENIED" in str(play(member, "sync"))
