"""OpenAI Agents SDK, in its real loop with a scripted model."""

from __future__ import annotations

import ast
import asyncio
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agents import (
    Agent,
    AgentHooks,
    FunctionTool,
    RunConfig,
    Runner,
    RunState,
    ToolExecutionConfig,
    UserError,
    WebSearchTool,
    function_tool,
    handoff,
    set_trace_processors,
    trace,
)
from agents.extensions.handoff_filters import remove_all_tools
from agents.mcp import MCPServer
from agents.models.interface import Model
from agents.testing import ScriptedModel, assistant_message, function_call
from faults import PlantedFaults
from mcp.types import CallToolResult, TextContent
from mcp.types import Tool as MCPTool
from pages import ExampleAndPage
from pause_openai_agents import CASES as PAUSE_CASES
from pause_openai_agents import CallsOnce
from pausing import PauseScene, check_pauses, check_removed_contracts
from pydantic import BaseModel

from edictum import (
    Edictum,
    EdictumConfigError,
    OperationLimits,
    Principal,
    Verdict,
    precondition,
)
from edictum.adapters import OpenAIAgentsAdapter
from edictum.approval import Approvers
from edictum.testing.adapter import (
    SECRET,
    AdapterConformance,
    ControlFlow,
    ScriptedCall,
    ToolAnswer,
    get_conversation,
    no_forbidden,
    no_secret,
    without_secret,
)

pytestmark = pytest.mark.s1  # needs agents

QUIET = RunConfig(tracing_disabled=True)


def turn(calls: Any) -> list[Any]:
    made = [function_call(call.tool, call.text, call_id=call.id) for call in calls]
    return made or [assistant_message("done")]


def model(*turns: Any) -> ScriptedModel:
    return ScriptedModel([*(turn(calls) for calls in turns), [assistant_message("done")]])


class ModelOfUsers(Model):
    """Plays the script of the user who speaks."""

    def __init__(self, scripts: Any) -> None:
        self.models = {user: model(*script) for user, script in scripts.items()}

    def find(self, said: Any) -> ScriptedModel:
        return next(model for user, model in self.models.items() if user in str(said[0]))

    async def get_response(self, *args: Any, **options: Any) -> Any:
        return await self.find(options["input"]).get_response(*args, **options)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        return self.find(options["input"]).stream_response(*args, **options)


def model_of(script: Any) -> Any:
    return ModelOfUsers(script) if isinstance(script, dict) else model(*script)


def as_tool(function: Any, **options: Any) -> Any:
    return function if isinstance(function, FunctionTool) else function_tool(function, **options)


def outputs(agent_model: ScriptedModel) -> list[tuple[str, Any]]:
    """The answers to tool calls in the model's last input."""
    read = agent_model.calls[-1].input
    return [
        (item["call_id"], item["output"])
        for item in read
        if item.get("type") == "function_call_output"
    ]


def text_of(output: Any) -> str:
    """The SDK writes a dict as Python does; the suite reads JSON."""
    try:
        value = ast.literal_eval(output)
    except (ValueError, SyntaxError):
        return str(output)
    return json.dumps(value) if isinstance(value, dict) else str(output)


class Run:
    """An agent, its model, and how the last run ended."""

    def __init__(self, agent: Any) -> None:
        self.agent: Any = agent
        self.result: Any = None


class Params(BaseModel):
    key: str


def config_of(user: str) -> RunConfig:
    return RunConfig(group_id=get_conversation(user), tracing_disabled=True)


class TestOpenAIAgents(AdapterConformance):
    framework, distribution = "OpenAI Agents", "openai-agents"
    adds_reader = takes_text_args = True
    nested = ("async",)  # the SDK has no synchronous run inside of a running loop

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return OpenAIAgentsAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Run:
        made = [as_tool(tool) for tool in tools]
        agent = Agent(name="agent", model=model_of(script), tools=made)
        return Run(agent if adapter is None else adapter.govern(agent, on_warn))

    def build_changing(self, adapter: Any, tools: Any, script: Any) -> Run:
        class Changing(AgentHooks[Any]):
            async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
                context.tool_call.arguments = '{"key": "forbidden"}'

        made = self.build(adapter, tools, script)
        made.agent.hooks = Changing()
        return made

    def resume(self, agent: Run) -> None:
        state = agent.result.to_state()
        for item in state.get_interruptions():
            state.approve(item)
        agent.result = asyncio.run(Runner.run(agent.agent, state, run_config=QUIET))

    def run(self, agent: Run) -> None:
        agent.result = Runner.run_sync(agent.agent, "go", run_config=QUIET)

    async def arun(self, agent: Run) -> None:
        agent.result = await Runner.run(agent.agent, "go", run_config=QUIET)

    def get_user_options(self) -> dict[str, Any]:
        return {"principal": lambda ctx: Principal(user_id=ctx.context)}

    def run_as(self, agent: Run, user: str) -> None:
        Runner.run_sync(agent.agent, user, context=user, run_config=config_of(user))

    async def arun_as(self, agent: Run, user: str) -> None:
        await Runner.run(agent.agent, user, context=user, run_config=config_of(user))

    def stream(self, agent: Run) -> str:
        async def collect() -> str:
            agent.result = Runner.run_streamed(agent.agent, "go", run_config=QUIET)
            return str([event async for event in agent.result.stream_events()])

        return asyncio.run(collect())

    def replies(self, agent: Run) -> list[ToolAnswer]:
        return [
            ToolAnswer(call_id, text_of(output)) for call_id, output in outputs(agent.agent.model)
        ]

    def failing_tool(self) -> Any:
        def report(key: str) -> str:
            """A tool whose failures the SDK turns into a text of the user's."""
            raise ValueError("there is no such key")

        return function_tool(report, failure_error_function=lambda ctx, error: f"sorry: {error}")

    def control_flow(self) -> list[ControlFlow]:
        @function_tool(needs_approval=True)
        def ask() -> str:
            """Ask a person first."""
            return "asked"

        inner = Agent(
            name="inner",
            model=model(*([ScriptedCall("ask", {}, f"inner_{n}")] for n in range(9))),
            tools=[ask],
        )
        steer = inner.as_tool("steer", "Ask another agent.", parameters=Params)
        return [ControlFlow("an agent as a tool that waits for approval", steer)]

    def ending(self, agent: Run) -> Any:
        return [item.name for item in agent.result.interruptions], len(agent.agent.model.calls)

    def target(self, agent: Run) -> Any:
        return agent.agent


class TestGuardrails(TestOpenAIAgents):
    """The same agent, wired with guardrails on each of its function tools."""

    framework = "OpenAI Agents (guardrails)"
    adds_reader = False
    cannot = {
        "pauses": "the SDK asks guardrails once it has begun a call, and cannot pause it then"
    }

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Run:
        if adapter is None:
            return super().build(None, tools, script)
        before, after = adapter.as_guardrails(on_warn)
        made = [as_tool(tool) for tool in tools]
        for tool in made:
            tool.tool_input_guardrails, tool.tool_output_guardrails = [before], [after]
        return Run(Agent(name="agent", model=model_of(script), tools=made))


class TestFaults(PlantedFaults):
    suite = TestOpenAIAgents
    adapter = OpenAIAgentsAdapter


class TestGuardrailFaults(PlantedFaults):
    suite = TestGuardrails
    adapter = OpenAIAgentsAdapter


# --- What is the SDK's own ------------------------------------------------------------------------


def play(agent: Any, **options: Any) -> Any:
    return asyncio.run(
        Runner.run(agent, "go", run_config=RunConfig(tracing_disabled=True, **options))
    )


def list_actions(guard: Edictum) -> list[str]:
    return [f"{event.action} {event.tool_name}" for event in guard.local_sink.events]


class Server(MCPServer):
    """An MCP server without a wire: one tool that reports the key "bad" as a failure, in the
    protocol's own way.
    """

    name = "server"

    async def connect(self) -> None:
        pass

    async def cleanup(self) -> None:
        pass

    async def list_tools(self, run_context: Any = None, agent: Any = None) -> Any:
        return [
            MCPTool.model_validate(
                {
                    "name": "remote",
                    "inputSchema": {"type": "object", "properties": {"key": {"type": "string"}}},
                }
            )
        ]

    async def call_tool(self, tool_name: str, arguments: Any, meta: Any = None) -> Any:
        content = [TextContent(type="text", text=f"{arguments['key']}, {SECRET}")]
        return CallToolResult.model_validate(
            {"content": content, "isError": arguments["key"] == "bad"}
        )

    async def list_prompts(self) -> Any:
        return []

    async def get_prompt(self, name: str, arguments: Any = None) -> Any:
        raise NotImplementedError


@function_tool
def look(key: str) -> str:
    """Look something up."""
    return f"value of {key}, {SECRET}"


def test_mcp_tools_are_governed_and_their_error_flag_is_seen() -> None:
    guard = Edictum(contracts=[no_forbidden, no_secret("redact", redact=without_secret)])
    calls = [
        ScriptedCall("remote", {"key": key}, f"c_{key}") for key in ("fine", "bad", "forbidden")
    ]
    agent = OpenAIAgentsAdapter(guard).govern(
        Agent(name="a", model=model(calls), mcp_servers=[Server()])
    )
    play(agent)
    read = dict(outputs(agent.model))
    assert read["c_fine"] == [{"type": "input_text", "text": "fine, [GONE]"}]
    assert read["c_forbidden"] == "DENIED: The key is forbidden."
    assert {
        e.call_id: (str(e.action), e.success_source)
        for e in guard.local_sink.events
        if e.action != "call_allowed"
    } == {
        "c_fine": ("call_executed", "default"),
        "c_bad": ("call_failed", "framework"),
        "c_forbidden": ("call_denied", None),
    }


def test_a_handoff_leads_to_a_governed_agent() -> None:
    for wire in (lambda agent: agent, handoff):
        guard = Edictum(contracts=[no_forbidden])
        second = Agent(
            name="second",
            model=model([ScriptedCall("look", {"key": "forbidden"}, "c2")]),
            tools=[look],
        )
        first = Agent(
            name="first",
            model=model([ScriptedCall("transfer_to_second", {}, "c1")]),
            handoffs=[wire(second)],
        )
        result = play(OpenAIAgentsAdapter(guard).govern(first))
        assert result.last_agent is second
        assert dict(outputs(second.model)) == {
            "c1": '{"assistant": "second"}',
            "c2": "DENIED: The key is forbidden.",
        }
        assert list_actions(guard) == [
            "call_allowed transfer_to_second",
            "call_executed transfer_to_second",
            "call_denied look",
        ]


def test_a_denied_handoff_stays_with_its_agent_and_says_why() -> None:
    guard = Edictum(limits=OperationLimits(max_calls_per_tool={"transfer_to_second": 0}))
    second = Agent(name="second", model=model(), tools=[look])
    first = Agent(
        name="first", model=model([ScriptedCall("transfer_to_second", {}, "c1")]), handoffs=[second]
    )
    result = play(OpenAIAgentsAdapter(guard).govern(first))
    assert (result.last_agent.name, len(second.model.calls)) == ("first", 0)
    assert dict(outputs(first.model))["c1"].startswith("DENIED: ")


def test_the_filter_of_a_handoff_is_for_those_that_happen() -> None:
    for allowed in (0, 1):
        guard = Edictum(limits=OperationLimits(max_calls_per_tool={"transfer_to_second": allowed}))
        second = Agent(name="second", model=model())
        hand = handoff(second, input_filter=remove_all_tools)
        first = Agent(
            name="first",
            model=model([ScriptedCall("transfer_to_second", {}, "c1")]),
            handoffs=[hand],
        )
        play(OpenAIAgentsAdapter(guard).govern(first))
        read = dict(outputs(second.model if allowed else first.model))
        assert read == {} if allowed else read["c1"].startswith("DENIED: ")


def test_the_filter_of_a_run_is_for_handoffs_that_happen() -> None:
    for allowed in (0, 1):
        guard = Edictum(limits=OperationLimits(max_calls_per_tool={"transfer_to_second": allowed}))
        second = Agent(name="second", model=model())
        first = Agent(
            name="first",
            model=model([ScriptedCall("transfer_to_second", {}, "c1")]),
            handoffs=[second],
        )
        play(OpenAIAgentsAdapter(guard).govern(first), handoff_input_filter=remove_all_tools)
        read = dict(outputs(second.model if allowed else first.model))
        assert read == {} if allowed else read["c1"].startswith("DENIED: ")


def test_a_clone_that_is_denied_a_handoff_goes_on_itself() -> None:
    guard = Edictum(limits=OperationLimits(max_calls_per_tool={"transfer_to_second": 0}))
    first = OpenAIAgentsAdapter(guard).govern(
        Agent(name="first", model=model(), handoffs=[Agent(name="second", model=model())])
    )
    clone = first.clone(model=model([ScriptedCall("transfer_to_second", {}, "c1")]))
    play(clone)
    assert (len(clone.model.calls), len(first.model.calls)) == (2, 0)


def test_a_handoff_is_one_call_whatever_is_added_and_whoever_was_governed_before() -> None:
    guard = Edictum()
    adapter = OpenAIAgentsAdapter(guard)
    second = adapter.govern(Agent(name="second", model=model()))
    first = adapter.govern(
        Agent(
            name="first",
            model=model([ScriptedCall("transfer_to_second", {}, "c1")]),
            handoffs=[second],
        )
    )
    first.handoffs.append(Agent(name="third"))
    play(first)
    assert list_actions(guard) == [
        "call_allowed transfer_to_second",
        "call_executed transfer_to_second",
    ]


def test_an_agent_as_a_tool_is_governed_inside_too() -> None:
    guard = Edictum(contracts=[no_forbidden])
    inner = Agent(
        name="inner", model=model([ScriptedCall("look", {"key": "forbidden"}, "c2")]), tools=[look]
    )
    agent = Agent(
        name="outer",
        model=model([ScriptedCall("inner", {"input": "go"}, "c1")]),
        tools=[inner.as_tool("inner", "Ask it.")],
    )
    play(OpenAIAgentsAdapter(guard).govern(agent))
    assert dict(outputs(inner.model)) == {"c2": "DENIED: The key is forbidden."}
    assert list_actions(guard) == ["call_allowed inner", "call_denied look", "call_executed inner"]


def test_clones_and_tools_that_come_later_are_governed_and_the_original_tool_is_left_alone() -> (
    None
):
    guard = Edictum(contracts=[no_forbidden])
    agent = OpenAIAgentsAdapter(guard).govern(Agent(name="a", tools=[]))
    clone = agent.clone(
        model=model([ScriptedCall("look", {"key": "forbidden"}, "c1")]), tools=[look]
    )
    play(clone)
    assert dict(outputs(clone.model)) == {"c1": "DENIED: The key is forbidden."}
    assert not hasattr(look, "governors")


def test_arguments_that_are_not_an_object_run_nothing_and_are_denied() -> None:
    ran: list[str] = []

    async def lenient(ctx: Any, text: str) -> str:
        ran.append(text)
        return text

    made = FunctionTool(
        "lenient",
        "Reads anything.",
        {"type": "object", "properties": {}},
        lenient,
        strict_json_schema=False,
    )
    for broken in ('{"key": "forbidden"', '["forbidden"]'):
        guard = Edictum(contracts=[no_forbidden])
        script = ScriptedModel(
            [[function_call("look", broken, call_id="c1")], [assistant_message("done")]]
        )
        play(OpenAIAgentsAdapter(guard).govern(Agent(name="a", model=script, tools=[look])))
        assert list_actions(guard) == ["call_denied look"]
        assert "Send one JSON object" in dict(outputs(script))["c1"]
        script = ScriptedModel(
            [[function_call("lenient", broken, call_id="c1")], [assistant_message("done")]]
        )
        play(OpenAIAgentsAdapter(guard).govern(Agent(name="a", model=script, tools=[made])))
        assert "Send one JSON object" in dict(outputs(script))["c1"]
        assert ran == []


DEFAULT_IS_SECRET = """
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: x}
contracts:
  - id: no-secret
    type: pre
    tool: lookup
    when: {args.order: {starts_with: SECRET}}
    then: {effect: deny, message: "Order {args.order} is off limits."}
"""


@pytest.mark.parametrize("sent", ['["A"]', '"x"', '{"order":', "null"])
@pytest.mark.parametrize("default", ["SECRET-1", "A"])
def test_unreadable_arguments_are_not_judged_by_a_default(sent: str, default: str) -> None:
    """The model would read the default, and a harmless one would count as an execution."""
    ran: list[str] = []

    @function_tool(strict_mode=False)
    def lookup(order: str = default) -> str:
        ran.append(order)
        return order

    guard = Edictum.from_yaml_string(DEFAULT_IS_SECRET)
    adapter = OpenAIAgentsAdapter(guard, session_id="s")
    script = ScriptedModel(
        [[function_call("lookup", sent, call_id="c1")], [assistant_message("done")]]
    )
    agent = adapter.govern(Agent(name="a", model=script, tools=[lookup]))
    play(agent)
    assert "Send one JSON object" in dict(outputs(script))["c1"]
    (event,) = guard.local_sink.events
    assert (event.action, event.decision_name) == ("call_denied", "validation")
    assert "SECRET-1" not in str(event)
    session = guard.session("s")
    assert (ran, session.attempts, session.executions) == ([], 1, 0)


def test_a_handoff_with_unreadable_arguments_stays_with_its_agent() -> None:
    guard = Edictum()
    second = Agent(name="second", model=model())
    first = Agent(name="first", handoffs=[second])
    first.model = ScriptedModel(
        [
            [function_call("transfer_to_second", '["x"]', call_id="c1")],
            [assistant_message("done")],
        ]
    )
    result = play(OpenAIAgentsAdapter(guard).govern(first))
    assert result.last_agent.name == "first"
    assert list_actions(guard) == ["call_denied transfer_to_second"]


def rows(key: str) -> Any:
    yield key


async def rows_later(key: str) -> Any:
    yield key


@pytest.mark.parametrize("tool", [rows, rows_later])
@pytest.mark.parametrize("check", [None, lambda tool, result: True])
def test_a_generator_is_not_shown_to_the_model(tool: Any, check: Any) -> None:
    """The SDK would give it the object's address."""
    guard = Edictum(success_check=check)
    adapter = OpenAIAgentsAdapter(guard)
    script = model([ScriptedCall(tool.__name__, {"key": "a"}, "c1")])
    play(adapter.govern(Agent(name="a", model=script, tools=[function_tool(tool)])))
    assert "It must return a list" in dict(outputs(script))["c1"]
    name = tool.__name__
    assert list_actions(guard) == [f"call_allowed {name}", f"call_failed {name}"]


def test_a_function_tool_made_by_hand_is_governed() -> None:
    async def invoke(ctx: Any, text: str) -> Any:
        return {"read": json.loads(text)["key"], "number": SECRET}

    made = FunctionTool(
        "hand",
        "By hand.",
        {"type": "object", "properties": {}},
        invoke,
        strict_json_schema=False,
        timeout_seconds=5,
    )
    guard = Edictum(contracts=[no_forbidden, no_secret("redact", redact=without_secret)])
    calls = [
        ScriptedCall("hand", {"key": "a"}, "c1"),
        ScriptedCall("hand", {"key": "forbidden"}, "c2"),
    ]
    agent = OpenAIAgentsAdapter(guard).govern(Agent(name="a", model=model(calls), tools=[made]))
    play(agent)
    assert dict(outputs(agent.model)) == {
        "c1": "{'read': 'a', 'number': '[GONE]'}",
        "c2": "DENIED: The key is forbidden.",
    }


@pytest.mark.parametrize("wire", ["govern", "guardrails"])
def test_a_call_that_waited_for_a_person_is_counted_once(wire: str) -> None:
    """The SDK's own approval, with guardrails that run before it as well."""
    guard = Edictum(limits=OperationLimits(max_tool_calls=1))
    adapter = OpenAIAgentsAdapter(guard)
    before, after = adapter.as_guardrails()
    rails = (
        {"tool_input_guardrails": [before], "tool_output_guardrails": [after]}
        if wire == "guardrails"
        else {}
    )
    made = function_tool(
        lambda key: f"value of {key}",
        name_override="ask",
        needs_approval=True,
        strict_mode=False,
        **rails,
    )
    agent = Agent(name="a", model=model([ScriptedCall("ask", {"key": "a"}, "c1")]), tools=[made])
    config = RunConfig(
        tracing_disabled=True,
        tool_execution=ToolExecutionConfig(pre_approval_tool_input_guardrails=True),
    )

    async def run() -> None:
        first = await Runner.run(
            adapter.govern(agent) if wire == "govern" else agent, "go", run_config=config
        )
        state = first.to_state()
        state.approve(first.interruptions[0])
        await Runner.run(agent, state, run_config=config)

    asyncio.run(run())
    assert dict(outputs(agent.model)) == {"c1": "value of a"}
    assert list_actions(guard) == ["call_allowed ask", "call_executed ask"]


def test_guardrails_on_what_they_cannot_govern_stop_the_run() -> None:
    before, after = OpenAIAgentsAdapter(Edictum()).as_guardrails()
    server = Server(tool_input_guardrails=[before], tool_output_guardrails=[after])
    agent = Agent(
        name="a", model=model([ScriptedCall("remote", {"key": "a"}, "c1")]), mcp_servers=[server]
    )
    with pytest.raises(UserError, match=r"'remote' is not in the tools of 'a'.*govern\(agent\)"):
        play(agent)


def test_an_output_guardrail_alone_withholds_the_result() -> None:
    _, after = OpenAIAgentsAdapter(Edictum()).as_guardrails()
    made = function_tool(lambda: "raw", name_override="raw", tool_output_guardrails=[after])
    agent = Agent(name="a", model=model([ScriptedCall("raw", {}, "c1")]), tools=[made])
    play(agent)
    assert dict(outputs(agent.model)) == {
        "c1": "DENIED: The tool lacks the guard's input guardrail."
    }


def test_one_tool_without_guardrails_among_others_is_noticed() -> None:
    adapter = OpenAIAgentsAdapter(Edictum())
    before, after = adapter.as_guardrails()
    good = function_tool(
        lambda: "",
        name_override="good",
        tool_input_guardrails=[before],
        tool_output_guardrails=[after],
    )
    assert adapter.self_test(Agent(name="a", tools=[good])) == "governed"
    for extra in ({"tools": [good, look]}, {"tools": [good], "mcp_servers": [Server()]}):
        with pytest.raises(EdictumConfigError, match="does not govern"):
            adapter.self_test(Agent(name="a", **extra))


def test_a_denial_need_not_fit_the_schema_of_the_output() -> None:
    def find(key: str) -> Params:
        """Find something."""
        return Params(key=key)

    guard = Edictum(contracts=[no_forbidden])
    calls = [
        ScriptedCall("find", {"key": "a"}, "c1"),
        ScriptedCall("find", {"key": "forbidden"}, "c2"),
    ]
    agent = Agent(name="a", model=model(calls), tools=[function_tool(find, output_type=Params)])
    play(OpenAIAgentsAdapter(guard).govern(agent))
    assert dict(outputs(agent.model)) == {
        "c1": '{"key":"a"}',
        "c2": "DENIED: The key is forbidden.",
    }


def test_a_failure_function_still_words_failures_and_none_still_raises() -> None:
    def fall() -> str:
        raise ValueError("no luck")

    def governed(**options: Any) -> Any:
        made = function_tool(fall, **options)
        return OpenAIAgentsAdapter(Edictum()).govern(
            Agent(name="a", model=model([ScriptedCall("fall", {}, "c1")]), tools=[made])
        )

    agent = governed(failure_error_function=lambda ctx, error: f"sorry: {error}")
    play(agent)
    assert dict(outputs(agent.model)) == {"c1": "sorry: no luck"}
    with pytest.raises(UserError, match="Error running tool fall: no luck"):
        play(governed(failure_error_function=None))


def test_a_tool_that_the_provider_runs_is_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    OpenAIAgentsAdapter(Edictum()).govern(Agent(name="a", tools=[WebSearchTool()]))
    assert "'web_search' is not a function tool" in caplog.text


def test_a_tool_that_two_threads_use_first_is_governed_once() -> None:
    wrapped, second_asks = list[str](), threading.Event()

    class Slow(OpenAIAgentsAdapter):
        def _wrap_invoke(self, *args: Any) -> Any:
            wrapped.append(threading.current_thread().name)
            second_asks.wait(10)
            time.sleep(0.05)  # time enough for the second thread, if nothing keeps it away
            return super()._wrap_invoke(*args)

    first, second = Slow(Edictum()).as_guardrails()
    made = function_tool(tool_input_guardrails=[first], tool_output_guardrails=[second])(
        lookup_once
    )
    data = SimpleNamespace(
        agent=Agent(name="a", tools=[made]), context=SimpleNamespace(tool_name=made.name)
    )

    def use(last: bool) -> None:
        if last:
            second_asks.set()
        first.guardrail_function(data)

    threads = [threading.Thread(target=use, args=(last,)) for last in (False, True)]
    for thread in threads:
        thread.start()
        deadline = time.monotonic() + 60
        while not wrapped and time.monotonic() < deadline:
            time.sleep(0.001)
    for thread in threads:
        thread.join(30)
    assert len(wrapped) == 1


def lookup_once(key: str) -> str:
    """Look something up."""
    return key


def test_the_group_of_a_trace_is_the_session_if_the_run_has_none() -> None:
    set_trace_processors([])  # nothing is sent
    guard = Edictum()
    adapter = OpenAIAgentsAdapter(guard)
    for number, group in enumerate(("conversation-1", None)):
        agent = Agent(
            name="agent",
            model=model([ScriptedCall("look", {"key": "a"}, f"c{number}")]),
            tools=[look],
        )
        with trace("test", group_id=group):
            asyncio.run(Runner.run(adapter.govern(agent), "go"))
    sessions = [event.session_id for event in guard.local_sink.events]
    assert sessions == ["conversation-1"] * 2 + [adapter.session_id] * 2


class TestExample(ExampleAndPage):
    name = "openai_agents"


# --- The pause of an agent whose guard has a queue ------------------------------------------------


def test_an_interrupted_run_goes_on_in_another_process(tmp_path: Path) -> None:
    check_pauses(PauseScene("openai_agents", tmp_path), PAUSE_CASES)


def test_a_no_counts_in_a_process_whose_policy_cannot_ask(tmp_path: Path) -> None:
    check_removed_contracts(PauseScene("openai_agents", tmp_path))


def ask_about(name: str, **options: Any) -> Any:
    """Return a contract that asks about all calls of ``delete`` but those of one name."""

    @precondition("delete", effect="approve", **options)
    def ask_first(call: Any) -> Verdict:
        return Verdict.pass_() if call.args["name"] == "free" else Verdict.fail("Delete it?")

    return ask_first


def delete(name: str) -> str:
    """Delete something."""
    return f"deleted {name}"


async def run_deleting(guard: Edictum, said: Any, **options: Any) -> Any:
    """Run an agent that calls ``delete`` with what is said to it."""
    tools = [function_tool(delete, **options)]
    agent: Any = Agent(name="worker", model=CallsOnce(), tools=tools)
    agent = OpenAIAgentsAdapter(guard, session_id="s").govern(agent)
    if not isinstance(said, str):
        said = await said(agent)
    return await Runner.run(agent, said)


async def test_a_call_that_needs_no_answer_is_not_interrupted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/approvals.db"
    async with Edictum(contracts=[ask_about("free")], approval_backend=url) as guard:
        result = await run_deleting(guard, "free")
        assert (result.final_output, result.interruptions) == ("deleted free", [])
        assert guard.session("s").attempts == 1


async def test_a_tool_s_own_approval_is_kept(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/approvals.db"
    async with Edictum(contracts=[ask_about("free")], approval_backend=url) as guard:
        result = await run_deleting(guard, "free", needs_approval=True)
        assert len(result.interruptions) == 1
        assert await guard.approvals.pending() == []


async def test_an_approval_in_the_state_only_wakes_where_approvers_are_named(
    tmp_path: Path,
) -> None:
    """Once the SDK has begun a call it cannot pause, so the call waits for the store."""
    url, named = f"sqlite:///{tmp_path}/approvals.db", Approvers(roles=("admin",))
    async with Edictum(
        contracts=[ask_about("free", approvers=named)], approval_backend=url
    ) as guard:
        first = await run_deleting(guard, "x")
        state = first.to_state().to_json()

        async def approve(agent: Any) -> Any:
            read = await RunState.from_json(agent, state)
            read.approve(read.get_interruptions()[0])
            return read

        run = asyncio.ensure_future(run_deleting(guard, approve))
        (request,) = await guard.approvals.pending()
        admin = Principal(user_id="ann", role="admin")
        await guard.approvals.answer(request.approval_id, True, approver=admin)
        assert (await run).final_output == "deleted x"
        assert guard.local_sink.last().action == "call_executed"


async def test_a_run_that_names_no_session_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path}/approvals.db"
    async with Edictum(contracts=[ask_about("free")], approval_backend=url) as guard:
        agent: Any = Agent(name="worker", model=CallsOnce(), tools=[function_tool(delete)])
        run = asyncio.ensure_future(Runner.run(OpenAIAgentsAdapter(guard).govern(agent), "x"))
        while not (pending := await guard.approvals.pending()):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        await guard.approvals.answer(pending[0].approval_id, True, approver="ann")
        assert (await run).final_output == "deleted x"
    assert "a run does not name its session" in caplog.text
