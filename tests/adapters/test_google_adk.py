"""Google ADK, in its real loop with a scripted model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from faults import PlantedFaults
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, ToolThreadPoolConfig
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools import FunctionTool, ToolContext
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.genai import types
from pages import ExampleAndPage
from pause_google_adk import CASES as PAUSE_CASES
from pause_google_adk import CONFIRM
from pausing import PauseScene, check_pauses, check_removed_contracts

from edictum import Edictum, EdictumConfigError, OperationLimits
from edictum.adapters import GoogleADKAdapter
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

pytestmark = pytest.mark.s1  # needs google.adk

# Without it ADK runs plain functions on its event loop, where nothing can end them.
POOLED = RunConfig(tool_thread_pool_config=ToolThreadPoolConfig(max_workers=8))


class ScriptedModel(BaseLlm):
    """Plays a list of turns, and keeps what it was shown."""

    model: str = "scripted"
    player: Any
    seen: list[Any] = []

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> Any:
        self.seen.append([part for content in llm_request.contents for part in content.parts or ()])
        said = [part.text for part in self.seen[-1] if part.text]
        calls = self.player.next_turn(str([text for text in said if text != "done"][-1:]))
        parts = [
            types.Part(function_call=types.FunctionCall(name=call.tool, args=call.args, id=call.id))
            for call in calls
        ]
        yield LlmResponse(
            content=types.Content(role="model", parts=parts or [types.Part(text="done")])
        )


def agent_of(tools: Any, script: Any, name: str = "agent", **options: Any) -> LlmAgent:
    return LlmAgent(
        name=name,
        model=ScriptedModel(player=ScriptPlayer(script), seen=[]),
        tools=list(tools),
        **options,
    )


def answers(model: Any) -> list[tuple[str, Any]]:
    return [
        (part.function_response.id, part.function_response.response)
        for part in model.seen[-1]
        if part.function_response
    ]


class Run:
    """A runner, its agent, and the events of the last run."""

    def __init__(self, agent: LlmAgent, plugins: Any = (), config: Any = None) -> None:
        self.agent, self.config = agent, config or RunConfig()
        self.runner = InMemoryRunner(app=App(name="app", root_agent=agent, plugins=list(plugins)))
        self.events: list[Any] = []
        self.session: Any = None

    async def play(self, said: types.Part | None = None) -> None:
        if self.session is None:
            self.session = await self.runner.session_service.create_session(
                app_name="app", user_id="user"
            )
        async for event in self.runner.run_async(**self.start(said)):
            self.events.append(event)

    def start(self, said: types.Part | None = None) -> dict[str, Any]:
        message = types.Content(role="user", parts=[said or types.Part(text="go")])
        return {
            "user_id": "user",
            "session_id": self.session.id,
            "new_message": message,
            "run_config": self.config,
        }

    async def play_as(self, user: str) -> None:
        await self.open_session(user)
        async for event in self.runner.run_async(**self.start_as(user)):
            self.events.append(event)

    async def open_session(self, user: str) -> None:
        about = {"app_name": "app", "user_id": user, "session_id": get_conversation(user)}
        if await self.runner.session_service.get_session(**about) is None:
            await self.runner.session_service.create_session(**about)

    def start_as(self, user: str) -> dict[str, Any]:
        message = types.Content(role="user", parts=[types.Part(text=user)])
        about = {"user_id": user, "session_id": get_conversation(user)}
        return {**about, "new_message": message, "run_config": self.config}


def change_call(tool: Any, args: Any, tool_context: Any) -> None:
    """A callback that comes after all others."""
    args["key"] = "forbidden"


class TestGoogleADK(AdapterConformance):
    framework, distribution = "Google ADK", "google-adk"
    cannot = {"waits": "ADK can pause every run: a tool may always ask for a confirmation"}

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return GoogleADKAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Run:
        return Run(
            agent_of(tools, script), [] if adapter is None else [adapter.as_plugin(on_warn)], POOLED
        )

    def build_changing(self, adapter: Any, tools: Any, script: Any) -> Run:
        made = self.build(adapter, tools, script)
        known = made.agent.before_tool_callback
        made.agent.before_tool_callback = [*([known] if known else []), change_call]
        return made

    def resume(self, agent: Run) -> None:
        asked = [call for event in agent.events for call in event.get_function_calls()]
        call_id = next(call.id for call in asked if call.name == CONFIRM)
        answer = types.FunctionResponse(id=call_id, name=CONFIRM, response={"confirmed": True})
        asyncio.run(agent.play(types.Part(function_response=answer)))

    def run(self, agent: Run) -> None:
        agent.session = agent.runner.session_service.create_session_sync(
            app_name="app", user_id="user"
        )
        agent.events += list(agent.runner.run(**agent.start()))

    async def arun(self, agent: Run) -> None:
        await agent.play()

    def run_as(self, agent: Run, user: str) -> None:
        asyncio.run(agent.open_session(user))
        agent.events += list(agent.runner.run(**agent.start_as(user)))

    async def arun_as(self, agent: Run, user: str) -> None:
        await agent.play_as(user)

    def get_session_of(self, user: str) -> str:
        return f"{user}/{get_conversation(user)}"

    def stream(self, agent: Run) -> str:
        agent.config = agent.config.model_copy(update={"streaming_mode": "sse"})
        asyncio.run(agent.play())
        return str(agent.events)

    def replies(self, agent: Run) -> list[ToolAnswer]:
        return [
            ToolAnswer(call_id, json.dumps(response), "error" in response)
            for call_id, response in answers(agent.agent.model)
        ]

    def failing_tool(self) -> Any:
        def report(key: str) -> dict[str, str]:
            """A tool of Google's kind."""
            return {"status": "ERROR", "error_details": "there is no such key"}

        return report

    def control_flow(self) -> list[ControlFlow]:
        def steer(key: str, tool_context: ToolContext) -> dict[str, str]:
            """Ask a person."""
            if tool_context.tool_confirmation is None:
                tool_context.request_confirmation(hint="may I?")
                tool_context.actions.skip_summarization = True
                return {"error": "wait for a person"}
            return {"result": "the person agreed"}

        return [ControlFlow("request_confirmation()", steer)]

    def ending(self, agent: Run) -> Any:
        return [sorted(event.long_running_tool_ids or ()) != [] for event in agent.events], len(
            agent.agent.model.seen
        )

    def target(self, agent: Run) -> Any:
        return agent.runner


class TestAgentCallbacks(TestGoogleADK):
    """The same agent with callbacks of its own, and with ADK's defaults: plain functions run on the
    event loop.
    """

    framework = "Google ADK (agent callbacks)"
    cannot = {
        **TestGoogleADK.cannot,
        **dict.fromkeys(
            ("timeout", "turn"),
            "without a tool_thread_pool_config ADK runs plain functions on its event loop, where"
            " nothing can end them",
        ),
    }

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Run:
        if adapter is None:
            return Run(agent_of(tools, script))
        before, after, error = adapter.as_agent_callbacks(on_warn)
        options = {
            "before_tool_callback": before,
            "after_tool_callback": after,
            "on_tool_error_callback": error,
        }
        return Run(agent_of(tools, script, **options))

    def target(self, agent: Run) -> Any:
        return agent.agent


class TestFaults(PlantedFaults):
    suite = TestGoogleADK
    adapter = GoogleADKAdapter


# --- What is ADK's own ----------------------------------------------------------------------------


def look(key: str) -> dict[str, Any]:
    """Look something up."""
    return {"found": f"value of {key}", "number": SECRET}


def list_actions(guard: Edictum) -> list[str]:
    return [f"{event.action} {event.tool_name}" for event in guard.local_sink.events]


def played(agent: LlmAgent, *plugins: Any) -> Run:
    run = Run(agent, plugins)
    asyncio.run(run.play())
    return run


def test_a_result_keeps_its_keys_and_a_denial_is_an_error() -> None:
    guard = Edictum(contracts=[no_forbidden, no_secret("redact", redact=without_secret)])
    agent = agent_of(
        [look],
        [
            [
                ScriptedCall("look", {"key": "a"}, "c1"),
                ScriptedCall("look", {"key": "forbidden"}, "c2"),
            ]
        ],
    )
    played(agent, GoogleADKAdapter(guard).as_plugin())
    assert dict(answers(agent.model)) == {
        "c1": {"found": "value of a", "number": "[GONE]"},
        "c2": {"error": "DENIED: The key is forbidden."},
    }


@pytest.mark.parametrize("how", ["sub-agent", "agent tool"])
def test_a_plugin_governs_the_other_agents_of_a_runner(how: str) -> None:
    guard = Edictum(contracts=[no_forbidden])
    other = agent_of(
        [look],
        [[ScriptedCall("look", {"key": "forbidden"}, "c2")]],
        name="other",
        description="Knows more.",
    )
    if how == "sub-agent":
        agent = agent_of(
            [],
            [[ScriptedCall("transfer_to_agent", {"agent_name": "other"}, "c1")]],
            sub_agents=[other],
        )
    else:
        agent = agent_of([AgentTool(other)], [[ScriptedCall("other", {"request": "go"}, "c1")]])
    played(agent, GoogleADKAdapter(guard).as_plugin())
    assert ("c2", {"error": "DENIED: The key is forbidden."}) in answers(other.model)
    assert "call_denied look" in list_actions(guard)
    sessions = {event.session_id for event in guard.local_sink.events}
    assert len(sessions) == 1, "ADK makes a session for each use of an agent as a tool"


@pytest.mark.parametrize(
    ("value", "action"),
    [
        ({"error": "no such key"}, "call_failed"),
        ({"status": "error"}, "call_failed"),
        ({"content": [], "isError": True}, "call_failed"),
        ({"status": "ok", "error": ""}, "call_executed"),
    ],
)
def test_what_tools_of_google_and_of_mcp_call_a_failure_is_one(value: Any, action: str) -> None:
    def report(key: str) -> Any:
        """Report."""
        return value

    guard = Edictum()
    played(
        agent_of([report], [[ScriptedCall("report", {"key": "a"}, "c1")]]),
        GoogleADKAdapter(guard).as_plugin(),
    )
    assert list_actions(guard)[-1] == f"{action} report"
    assert guard.local_sink.last().success_source == (
        "framework" if action == "call_failed" else "default"
    )


def test_missing_arguments_are_adk_s_to_answer_and_a_failure() -> None:
    guard = Edictum()
    agent = agent_of([look], [[ScriptedCall("look", {}, "c1")]])
    played(agent, GoogleADKAdapter(guard).as_plugin())
    assert "mandatory input parameters" in answers(agent.model)[0][1]["error"]
    assert list_actions(guard) == ["call_allowed look", "call_failed look"]


def test_the_first_of_the_three_callbacks_does_all_of_the_work() -> None:
    def fall(key: str) -> Any:
        """Fall."""
        raise ValueError("no luck")

    guard = Edictum(contracts=[no_forbidden])
    before, _, _ = GoogleADKAdapter(guard).as_agent_callbacks()
    with pytest.raises(ValueError, match="no luck"):
        played(
            agent_of(
                [fall], [[ScriptedCall("fall", {"key": "a"}, "c1")]], before_tool_callback=before
            )
        )
    assert list_actions(guard) == ["call_allowed fall", "call_failed fall"]


def test_what_a_later_callback_puts_into_the_arguments_is_checked() -> None:
    def change(tool: Any, args: Any, tool_context: Any) -> None:
        args["key"] = "forbidden"

    guard = Edictum(contracts=[no_forbidden])
    before, _, _ = GoogleADKAdapter(guard).as_agent_callbacks()
    agent = agent_of(
        [look], [[ScriptedCall("look", {"key": "a"}, "c1")]], before_tool_callback=[before, change]
    )
    played(agent)
    assert dict(answers(agent.model)) == {"c1": {"error": "DENIED: The key is forbidden."}}


def test_a_tool_that_another_agent_uses_without_a_guard_is_not_governed_there() -> None:
    shared, guard = FunctionTool(look), Edictum(contracts=[no_forbidden])
    agents = [
        agent_of([shared], [[ScriptedCall("look", {"key": "forbidden"}, "c1")]]) for _ in range(2)
    ]
    played(agents[0], GoogleADKAdapter(guard).as_plugin())
    played(agents[1])
    assert [next(iter(answers(agent.model)[0][1])) for agent in agents] == ["error", "found"]
    assert len(guard.local_sink.events) == 1


@pytest.mark.parametrize("how", ["the tool asks", "ADK asks"])
def test_a_call_that_waited_for_a_person_is_counted_once(how: str) -> None:
    guard = Edictum(limits=OperationLimits(max_tool_calls=1))
    adapter = GoogleADKAdapter(guard)
    steer = TestGoogleADK().control_flow()[0].tool

    def confirmed(key: str) -> str:
        """Do it."""
        return "the person agreed"

    made = (
        FunctionTool(steer)
        if how == "the tool asks"
        else FunctionTool(confirmed, require_confirmation=True)
    )
    run = Run(
        agent_of([made], [[ScriptedCall(made.name, {"key": "a"}, "c1")]]), [adapter.as_plugin()]
    )

    async def both() -> None:
        await run.play()
        asked = [
            call
            for event in run.events
            for call in event.get_function_calls()
            if call.name == "adk_request_confirmation"
        ]
        response = types.FunctionResponse(
            name="adk_request_confirmation", id=asked[0].id, response={"confirmed": True}
        )
        await run.play(types.Part(function_response=response))

    asyncio.run(both())
    assert "the person agreed" in str(answers(run.agent.model))
    paused = (
        [f"call_allowed {made.name}", f"call_paused {made.name}"] if how == "the tool asks" else []
    )
    assert list_actions(guard) == [
        *paused,
        f"call_allowed {made.name}",
        f"call_executed {made.name}",
    ]
    assert guard.session(f"user/{run.session.id}").executions == 1


def test_two_guards_around_one_tool_both_decide() -> None:
    strict, lax = Edictum(contracts=[no_forbidden]), Edictum()
    before, _, _ = GoogleADKAdapter(strict).as_agent_callbacks()
    agent = agent_of(
        [look], [[ScriptedCall("look", {"key": "forbidden"}, "c1")]], before_tool_callback=before
    )
    played(agent, GoogleADKAdapter(lax).as_plugin())
    assert list_actions(strict) == ["call_denied look"]
    assert dict(answers(agent.model)) == {"c1": {"error": "DENIED: The key is forbidden."}}


def test_a_tool_stays_of_its_kind() -> None:
    class Mine(BaseTool):
        def _get_declaration(self) -> Any:
            return types.FunctionDeclaration(name=self.name)

        async def run_async(self, *, args: Any, tool_context: Any) -> Any:
            return type(self).__name__

    made = Mine(name="mine", description="Mine.")
    agent = agent_of([made], [[ScriptedCall("mine", {}, "c1")]])
    played(agent, GoogleADKAdapter(Edictum()).as_plugin())
    assert isinstance(made, Mine)
    assert dict(answers(agent.model)) == {"c1": {"result": "Mine"}}


def test_a_sub_agent_without_callbacks_is_noticed() -> None:
    adapter = GoogleADKAdapter(Edictum())
    before, _, _ = adapter.as_agent_callbacks()
    other = agent_of([look], [], name="other")
    agent = agent_of([look], [], before_tool_callback=before, sub_agents=[other])
    with pytest.raises(EdictumConfigError, match="does not govern"):
        adapter.self_test(agent)
    assert adapter.self_test(Run(agent, [adapter.as_plugin()]).runner) == "governed"


def test_two_plugins_with_two_guards_both_decide() -> None:
    guards = Edictum(), Edictum(contracts=[no_forbidden])
    agent = agent_of([look], [[ScriptedCall("look", {"key": "forbidden"}, "c1")]])
    played(agent, *(GoogleADKAdapter(guard).as_plugin() for guard in guards))
    assert "DENIED: The key is forbidden." in str(answers(agent.model))
    assert list_actions(guards[1]) == ["call_denied look"]


class TestExample(ExampleAndPage):
    name = "google_adk"


# --- The pause of an agent whose guard has a queue ------------------------------------------------


def test_a_call_to_be_confirmed_goes_on_in_another_process(tmp_path: Path) -> None:
    check_pauses(PauseScene("google_adk", tmp_path), PAUSE_CASES)


def test_a_no_counts_in_a_process_whose_policy_cannot_ask(tmp_path: Path) -> None:
    check_removed_contracts(PauseScene("google_adk", tmp_path))
