"""LangChain and LangGraph, in their real loops with a scripted model."""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest
from faults import PlantedFaults
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import InjectedToolCallId, StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt
from pages import ExampleAndPage
from pause_langchain import CASES as PAUSE_CASES
from pausing import PauseScene, check_pauses, check_removed_contracts
from pydantic import BaseModel

from edictum import (
    ApprovalDecision,
    Edictum,
    EdictumConfigError,
    InMemoryApprovalBackend,
    OperationLimits,
    Principal,
    Verdict,
    precondition,
)
from edictum.adapters import LangChainAdapter
from edictum.adapters._langchain_parking import has_siblings
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
from support.waiting import wait_until

pytestmark = pytest.mark.s1  # needs langchain


class ScriptedModel(BaseChatModel):
    """Plays a list of turns, and keeps what it was shown."""

    player: Any
    seen: list[Any] = []

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        self.seen.append(list(messages))
        said = next(message.text for message in reversed(messages) if message.type == "human")
        calls = self.player.next_turn(said)
        message = turn(calls) if calls else AIMessage("done")
        return ChatResult(generations=[ChatGeneration(message=message)])


def turn(calls: Any) -> AIMessage:
    return AIMessage(
        "",
        tool_calls=[
            {"name": call.tool, "args": call.args, "id": call.id, "type": "tool_call"}
            for call in calls
        ],
    )


def as_tool(function: Any) -> Any:
    if isinstance(function, StructuredTool):
        return function
    kind = "coroutine" if inspect.iscoroutinefunction(function) else "func"
    return StructuredTool.from_function(
        **{kind: function}, name=function.__name__, description="A tool."
    )


class Agent:
    """A LangChain agent, its model, and what the last run gave."""

    def __init__(self, tools: Any, script: Any, middleware: Any, *, has_saver: bool = True) -> None:
        self.model = ScriptedModel(player=ScriptPlayer(script), seen=[])
        self.graph = create_agent(
            self.model,
            [as_tool(item) for item in tools],
            middleware=middleware,
            checkpointer=InMemorySaver() if has_saver else None,
        )
        self.config = {"configurable": {"thread_id": "1"}}
        self.start = {"messages": [HumanMessage("go")]}
        self.state: Any = None


def start_as(user: str) -> Any:
    config = {"configurable": {"thread_id": get_conversation(user), "user": user}}
    return {"messages": [HumanMessage(user)]}, config


class TestLangChain(AdapterConformance):
    framework, distribution = "LangChain", "langchain"
    adds_reader = True

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return LangChainAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Agent:
        return Agent(tools, script, [] if adapter is None else [adapter.as_middleware(on_warn)])

    def build_changing(self, adapter: Any, tools: Any, script: Any) -> Agent:
        def change(request: Any) -> Any:
            return request.override(tool_call={**request.tool_call, "args": {"key": "forbidden"}})

        class Changing(AgentMiddleware):
            def wrap_tool_call(self, request: Any, handler: Any) -> Any:
                return handler(change(request))

            async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
                return await handler(change(request))

        own = [] if adapter is None else [adapter.as_middleware()]
        return Agent(tools, script, [*own, Changing()])

    def build_waiting(self, adapter: Any, tools: Any, script: Any) -> Agent:
        return Agent(tools, script, [adapter.as_middleware()], has_saver=False)

    def resume(self, agent: Agent) -> None:
        go_on: Any = Command(resume="go on")
        if self.way == "sync":
            agent.state = agent.graph.invoke(go_on, agent.config)
        else:
            agent.state = asyncio.run(agent.graph.ainvoke(go_on, agent.config))

    def run(self, agent: Agent) -> None:
        agent.state = agent.graph.invoke(agent.start, agent.config)

    async def arun(self, agent: Agent) -> None:
        agent.state = await agent.graph.ainvoke(agent.start, agent.config)

    def get_user_options(self) -> dict[str, Any]:
        def find_principal(request: Any) -> Principal:
            return Principal(user_id=request.runtime.config["configurable"]["user"])

        return {"principal": find_principal}

    def run_as(self, agent: Agent, user: str) -> None:
        agent.graph.invoke(*start_as(user))

    async def arun_as(self, agent: Agent, user: str) -> None:
        await agent.graph.ainvoke(*start_as(user))

    def stream(self, agent: Agent) -> str:
        async def collect() -> str:
            modes = ["updates", "values", "messages", "custom"]
            return str(
                [
                    part
                    async for part in agent.graph.astream(
                        agent.start, agent.config, stream_mode=modes
                    )
                ]
            )

        return asyncio.run(collect())

    def replies(self, agent: Agent) -> list[ToolAnswer]:
        read = agent.model.seen[-1]
        assert all(message.type in ("human", "ai", "tool") for message in read)
        found = [message for message in read[1:] if message.type != "ai"]
        assert all(isinstance(message, ToolMessage) for message in found), (
            f"not a ToolMessage: {found}"
        )
        return [
            ToolAnswer(m.tool_call_id, f"{m.text} {m.artifact or ''}", m.status == "error")
            for m in found
        ]

    def failing_tool(self) -> Any:
        def report(key: str) -> str:
            raise ToolException("there is no such key")

        async def areport(key: str) -> str:
            raise ToolException("there is no such key")

        return StructuredTool.from_function(
            report, areport, name="report", description="A tool.", handle_tool_error=True
        )

    def control_flow(self) -> list[ControlFlow]:
        @tool
        def steer(key: str) -> str:
            """Ask a person."""
            return f"the person said {interrupt('may I?')}"

        return [ControlFlow("interrupt()", steer)]

    def ending(self, agent: Agent) -> Any:
        return [item.value for item in agent.state.get("__interrupt__", ())], len(agent.model.seen)

    def target(self, agent: Agent) -> Any:
        return agent.graph


class TestFaults(PlantedFaults):
    suite = TestLangChain
    adapter = LangChainAdapter


# --- What is LangChain's own ----------------------------------------------------------------------


def ask_node(node: Any, *calls: ScriptedCall, how: str = "sync") -> list[Any]:
    """What a tool node answers, in a graph of its own."""
    graph = StateGraph(MessagesState).add_node("tools", node).add_edge(START, "tools").compile()
    start: Any = {"messages": [turn(calls)]}
    state = graph.invoke(start) if how == "sync" else asyncio.run(graph.ainvoke(start))
    return state["messages"][1:]


@tool
def look(key: str) -> str:
    """Look something up."""
    return f"value of {key}, {SECRET}"


@tool(response_format="content_and_artifact")
def look_twice(key: str) -> tuple[str, dict[str, str]]:
    """Look something up, and keep the raw data."""
    return f"value of {key}, {SECRET}", {"raw": SECRET}


@tool
def move(key: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Change the state."""
    return Command(
        update={
            "messages": [ToolMessage(f"moved to {SECRET}", tool_call_id=tool_call_id)],
            "place": key,
        }
    )


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_tool_node_is_governed(how: str) -> None:
    node = LangChainAdapter(Edictum(contracts=[no_forbidden])).as_tool_node([look])
    denied, allowed = ask_node(
        node,
        ScriptedCall("look", {"key": "forbidden"}, "c1"),
        ScriptedCall("look", {"key": "a"}, "c2"),
        how=how,
    )
    assert (denied.status, denied.content, denied.tool_call_id) == (
        "error",
        "DENIED: The key is forbidden.",
        "c1",
    )
    assert (allowed.status, allowed.name) == ("success", "look")


@pytest.mark.parametrize("how", ["sync", "async"])
def test_content_and_artifact_are_both_redacted(how: str) -> None:
    guard = Edictum(contracts=[no_secret("redact", redact=without_secret)])
    (message,) = ask_node(
        LangChainAdapter(guard).as_tool_node([look_twice]),
        ScriptedCall("look_twice", {"key": "a"}, "c1"),
        how=how,
    )
    assert (message.content, message.artifact) == ("value of a, [GONE]", {"raw": "[GONE]"})


def test_the_message_in_a_command_is_redacted_and_the_command_stays_one() -> None:
    guard = Edictum(contracts=[no_secret("redact", redact=without_secret)])

    class State(MessagesState):
        place: str

    node = LangChainAdapter(guard).as_tool_node([move])
    graph = StateGraph(State).add_node("tools", node).add_edge(START, "tools").compile()
    state = graph.invoke(
        {"messages": [turn([ScriptedCall("move", {"key": "home"}, "c1")])], "place": ""}
    )
    assert (state["messages"][-1].content, state["place"]) == ("moved to [GONE]", "home")


class Notes(MessagesState):
    notes: Any


@tool
def write_all(key: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Write to every place that a tool can write to."""
    mine = ToolMessage(
        f"done {SECRET}",
        tool_call_id=tool_call_id,
        artifact={"raw": SECRET},
        additional_kwargs={"raw": SECRET},
    )
    said = [
        mine,
        HumanMessage(f"note {SECRET}", name=f"by {SECRET}"),
        {"role": "user", "content": f"also {SECRET}"},
    ]
    return Command(
        update={"messages": said, "notes": {"raw": [SECRET]}},
        goto=[Send("reader", {"notes": SECRET}), "reader"],
    )


@tool
def write_aside(key: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Write only beside the message that answers the call."""
    return Command(
        update={
            "messages": [ToolMessage("done", tool_call_id=tool_call_id), HumanMessage(SECRET)],
            "notes": SECRET,
        }
    )


@tool
def answer_with_artifact(key: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
    """Make the message, and keep the raw data."""
    return ToolMessage("done", tool_call_id=tool_call_id, artifact={"raw": SECRET})


@tool
def forget(key: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
    """Remove a message."""
    return Command(
        update={
            "messages": [
                RemoveMessage(id="first"),
                ToolMessage("forgotten", tool_call_id=tool_call_id),
            ],
            "notes": key,
        }
    )


def state_after(made: Any, contract: Any, how: str) -> tuple[dict[str, Any], list[Any], Edictum]:
    """The state of a graph after one call of the tool, and what the node after it was given."""
    guard, given = Edictum(contracts=[contract]), list[Any]()
    node = LangChainAdapter(guard).as_tool_node([made])
    graph = (
        StateGraph(Notes)
        .add_node("tools", node)
        .add_node("reader", lambda state: given.append(state) or {})
        .add_edge(START, "tools")
    )
    start = {
        "messages": [
            HumanMessage("go", id="first"),
            turn([ScriptedCall(made.name, {"key": "a"}, "c1")]),
        ],
        "notes": "",
    }
    compiled = graph.compile()
    return (
        compiled.invoke(start) if how == "sync" else asyncio.run(compiled.ainvoke(start)),
        given,
        guard,
    )


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize(
    "made", [write_all, write_aside, answer_with_artifact], ids=lambda made: made.name
)
def test_all_that_a_tool_writes_is_redacted(made: Any, how: str) -> None:
    state, given, guard = state_after(made, no_secret("redact", redact=without_secret), how)
    assert SECRET not in f"{state} {given} {[vars(message) for message in state['messages']]}"
    assert [str(event.action) for event in guard.local_sink.events] == [
        "call_allowed",
        "postcondition_warning",
        "call_executed",
    ]
    if made is write_all:
        mine, note, also = state["messages"][2:]
        assert (mine.content, mine.artifact, mine.tool_call_id) == (
            "done [GONE]",
            {"raw": "[GONE]"},
            "c1",
        )
        assert (note.content, note.name, also.content, state["notes"]) == (
            "note [GONE]",
            "by [GONE]",
            "also [GONE]",
            {"raw": ["[GONE]"]},
        )
        assert {"notes": "[GONE]"} in given
        assert len(given) == 2


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize(
    "made", [write_all, write_aside, answer_with_artifact], ids=lambda made: made.name
)
def test_what_a_denied_result_wrote_is_left_out(made: Any, how: str) -> None:
    state, given, _ = state_after(made, no_secret("deny"), how)
    (message,) = state["messages"][2:]
    assert SECRET not in f"{state} {given} {vars(message)}"
    assert (message.tool_call_id, message.artifact, message.additional_kwargs, state["notes"]) == (
        "c1",
        None,
        {},
        "",
    )
    assert len(given) == (
        1 if made is write_all else 0
    )  # it goes where it was sent, without what it was to bring along


def test_what_nobody_objects_to_is_written_as_the_tool_wrote_it() -> None:
    state, _, _ = state_after(forget, no_secret("redact", redact=without_secret), "sync")
    assert (
        [message.type for message in state["messages"]],
        state["messages"][-1].content,
        state["notes"],
    ) == (
        ["ai", "tool"],
        "forgotten",
        "a",
    )


def test_two_middlewares_with_two_guards_both_decide() -> None:
    guards = Edictum(), Edictum(contracts=[no_forbidden])
    agent = Agent(
        [look],
        [[ScriptedCall("look", {"key": "forbidden"}, "c1")]],
        [LangChainAdapter(guard).as_middleware() for guard in guards],
    )
    TestLangChain().run(agent)
    assert "DENIED: The key is forbidden." in str(TestLangChain().replies(agent))
    assert [str(event.action) for event in guards[1].local_sink.events] == ["call_denied"]


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_name_that_no_tool_can_have_is_recorded_and_counted(how: str) -> None:
    guard = Edictum(limits=OperationLimits(max_attempts=1))
    adapter = LangChainAdapter(guard)
    (message,) = ask_node(
        adapter.as_tool_node([look]), ScriptedCall("functions/look", {"key": "a"}, "c1"), how=how
    )
    assert (
        message.status,
        message.content.startswith("DENIED: Invalid tool_name: 'functions/look'"),
    ) == ("error", True)
    assert [
        (str(event.action), event.tool_name, event.call_id) for event in guard.local_sink.events
    ] == [("call_denied", "invalid_tool_name", "c1")]
    (message,) = ask_node(
        adapter.as_tool_node([look]), ScriptedCall("look", {"key": "a"}, "c2"), how=how
    )
    assert "DENIED: Attempt limit" in message.content


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize(
    "call",
    [ScriptedCall("nosuch", {}, "c1"), ScriptedCall("look", {"wrong": 1}, "c1")],
    ids=["unknown tool", "bad arguments"],
)
def test_what_langchain_itself_refuses_is_a_failure(call: ScriptedCall, how: str) -> None:
    guard = Edictum()
    (message,) = ask_node(LangChainAdapter(guard).as_tool_node([look]), call, how=how)
    assert message.status == "error"
    assert [str(event.action) for event in guard.local_sink.events] == [
        "call_allowed",
        "call_failed",
    ]
    assert guard.local_sink.last().success_source == "framework"


def test_a_call_that_waited_for_a_person_is_counted_once() -> None:
    guard = Edictum(limits=OperationLimits(max_tool_calls=1))
    adapter = LangChainAdapter(guard)
    driver = TestLangChain()
    agent = driver.build(
        adapter, [driver.control_flow()[0].tool], [[ScriptedCall("steer", {"key": "a"}, "c1")]]
    )
    driver.run(agent)
    agent.state = agent.graph.invoke(Command(resume="yes"), agent.config)
    assert "the person said yes" in driver.replies(agent)[0].text
    assert [str(event.action) for event in guard.local_sink.events] == [
        "call_allowed",
        "call_paused",
        "call_allowed",
        "call_executed",
    ]
    session = guard.session("1")  # the thread of the driver
    assert (session.attempts, session.executions, session.failures) == (2, 1, 0)


def test_a_governed_tool_is_inspected_once_as_a_bare_one_is() -> None:
    """LangChain keeps in a tool which arguments it injects. We give it copies, none of which is
    called twice.
    """
    looked: list[bool] = []

    class Noted(StructuredTool):
        @cached_property
        def _injected_args_keys(self) -> frozenset[str]:
            looked.append(True)
            return StructuredTool._injected_args_keys.func(self)  # type: ignore[no-any-return]

    noted = Noted.from_function(look.func, name="look", description="A tool.")
    node = LangChainAdapter(Edictum()).as_tool_node([noted])
    messages = [
        ask_node(node, ScriptedCall("look", {"key": str(number)}, "c1"))[0].content
        for number in range(3)
    ]
    assert messages == [f"value of {number}, {SECRET}" for number in range(3)]
    assert looked == [True]


def test_a_node_that_is_governed_in_asynchronous_runs_only_is_noticed() -> None:
    adapter = LangChainAdapter(Edictum())
    half = ToolNode([look], awrap_tool_call=adapter.as_async_tool_wrapper())
    with pytest.raises(EdictumConfigError, match="does not govern"):
        adapter.self_test(half)


def test_an_unsupported_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LangChainAdapter, "requires", {"langchain": ("7.0", "8")})
    with pytest.raises(
        EdictumConfigError,
        match=r"supports langchain>=7\.0,<8; installed is 1\..*pip install 'langchain>=7\.0,<8'",
    ):
        LangChainAdapter(Edictum()).as_middleware()


class TestExample(ExampleAndPage):
    name = "langchain"


# --- Approvals by LangGraph's own interrupt -------------------------------------------------------


class AskedByTheGraph(InMemoryApprovalBackend):
    """Asks whoever runs the graph, and is answered when the run is resumed."""

    async def wait_for_decision(self, approval_id: str, timeout: float | None = None) -> Any:
        approved = interrupt(f"May {self.requests[-1].tool_name} run?")
        return ApprovalDecision(approved, "ada", status="approved" if approved else "denied")


@precondition("delete", effect="approve")
def ask(call: Any) -> Verdict:
    return Verdict.fail("Delete it?")


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("approved", [False, True])
def test_an_approval_backend_may_interrupt_the_graph(approved: bool, asynchronous: bool) -> None:
    """The run stops until a person has answered; the call is paused, made again, and decided."""
    ran: list[str] = []

    def delete(name: str) -> str:
        """Delete something."""
        ran.append(name)
        return "gone"

    guard = Edictum(contracts=[ask], approval_backend=AskedByTheGraph())
    agent = create_agent(
        ScriptedModel(
            player=ScriptPlayer([[ScriptedCall("delete", {"name": "x"}, "c1")]]), seen=[]
        ),
        [as_tool(delete)],
        middleware=[LangChainAdapter(guard).as_middleware()],
        checkpointer=InMemorySaver(),
    )
    config: Any = {"configurable": {"thread_id": "t1"}}

    def invoke(state: Any) -> Any:
        if asynchronous:
            return asyncio.run(agent.ainvoke(state, config))
        return agent.invoke(state, config)

    stopped = invoke({"messages": [HumanMessage("go")]})
    assert [item.value for item in stopped["__interrupt__"]] == ["May delete run?"]
    assert ran == []
    last = guard.local_sink.last()
    assert (last.action, last.session_id) == ("call_paused", "t1")
    ended = invoke(Command(resume=approved))
    assert ran == (["x"] if approved else [])
    (reply,) = [message for message in ended["messages"] if isinstance(message, ToolMessage)]
    assert reply.content == ("gone" if approved else "DENIED: A person refused: Delete it?")
    assert guard.session("t1").executions == len(ran)


# --- The pause of a graph whose guard has a queue -------------------------------------------------


def test_a_paused_graph_goes_on_in_another_process(tmp_path: Path) -> None:
    check_pauses(PauseScene("langchain", tmp_path), PAUSE_CASES)


def test_a_no_counts_in_a_process_whose_policy_cannot_ask(tmp_path: Path) -> None:
    check_removed_contracts(PauseScene("langchain", tmp_path))


CALLS_ONCE = [[ScriptedCall("delete", {"name": "x"}, "c1")]]


def make_asking_agent(
    tool: Any, folder: Path, contracts: Any = (ask,), script: Any = CALLS_ONCE, **options: Any
) -> tuple[Any, Edictum]:
    """Return an agent that calls a tool once, and a guard that asks about it."""
    guard = Edictum(contracts=contracts, approval_backend=f"sqlite:///{folder}/approvals.db")
    player = ScriptPlayer(script)
    middleware = [LangChainAdapter(guard).as_middleware()]
    model = ScriptedModel(player=player, seen=[])
    return create_agent(model, [tool], middleware=middleware, **options), guard


def test_a_no_counts_where_nothing_can_ask_any_more(tmp_path: Path) -> None:
    """The run goes on under a policy without the contract that asked."""
    ran: list[str] = []

    def delete(name: str) -> str:
        """Delete something."""
        ran.append(name)
        return "gone"

    saver, config = InMemorySaver(), {"configurable": {"thread_id": "t1"}}
    agent, guard = make_asking_agent(as_tool(delete), tmp_path, checkpointer=saver)
    agent.invoke({"messages": [HumanMessage("go")]}, config)
    (request,) = asyncio.run(guard.approvals.pending())
    asyncio.run(guard.approvals.answer(request.approval_id, False, approver="ann", reason="No."))
    asyncio.run(guard.close())
    again, other = make_asking_agent(as_tool(delete), tmp_path, (), [], checkpointer=saver)
    ended = again.invoke(Command(resume="go on"), config)
    (reply,) = [message for message in ended["messages"] if isinstance(message, ToolMessage)]
    assert reply.content == "DENIED: No."
    assert ran == []
    asyncio.run(other.close())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_tool_that_interrupts_gets_its_own_answer(tmp_path: Path, asynchronous: bool) -> None:
    """And not the value by which the run went on when the call was approved."""
    said: list[str] = []

    def delete(name: str) -> str:
        """Delete something."""
        said.append(interrupt("How?"))
        return "gone"

    agent, guard = make_asking_agent(as_tool(delete), tmp_path, checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t1"}}

    def invoke(state: Any) -> Any:
        if asynchronous:
            return asyncio.run(agent.ainvoke(state, config))
        return agent.invoke(state, config)

    invoke({"messages": [HumanMessage("go")]})
    again = invoke(Command(resume="are you done?"))
    assert again["__interrupt__"][0].value["tool_args"] == {"name": "x"}
    queue = guard.approvals
    (request,) = asyncio.run(queue.pending())
    asyncio.run(queue.answer(request.approval_id, True, approver="ann"))
    asked = invoke(Command(resume="go on"))
    assert [item.value for item in asked["__interrupt__"]] == ["How?"]
    ended = invoke(Command(resume="gently"))
    assert said == ["gently"]
    assert "__interrupt__" not in ended
    assert guard.session("t1").executions == 1
    asyncio.run(guard.close())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_tool_node_with_several_calls_waits_so_that_none_runs_twice(
    tmp_path: Path, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """LangGraph would run the whole node again, and the result of the first call would be lost."""
    ran: list[str] = []

    def look(key: str) -> str:
        """Look."""
        ran.append(f"look {key}")
        return "seen"

    def delete(name: str) -> str:
        """Delete something."""
        ran.append(f"delete {name}")
        return "gone"

    guard = Edictum(contracts=[ask], approval_backend=f"sqlite:///{tmp_path}/approvals.db")
    node = LangChainAdapter(guard).as_tool_node([as_tool(look), as_tool(delete)])
    graph: Any = (
        StateGraph(MessagesState)
        .add_node("tools", node)
        .add_edge(START, "tools")
        .compile(checkpointer=InMemorySaver())
    )

    def invoke(thread: str, state: Any) -> Any:
        config: Any = {"configurable": {"thread_id": thread}}
        if asynchronous:
            return asyncio.run(graph.ainvoke(state, config))
        return graph.invoke(state, config)

    def approve() -> None:
        (request,) = asyncio.run(guard.approvals.pending())
        asyncio.run(guard.approvals.answer(request.approval_id, True, approver="ann"))

    calls = [ScriptedCall("look", {"key": "a"}, "c1"), ScriptedCall("delete", {"name": "x"}, "c2")]
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(invoke, "t1", {"messages": [turn(calls)]})
        wait_until(lambda: guard.local_sink.filter("call_approval_requested"))
        approve()
        ended = run.result()
    assert [message.content for message in ended["messages"][1:]] == ["seen", "gone"]
    assert sorted(ran) == ["delete x", "look a"]
    assert guard.session("t1").executions == 2
    assert "a ToolNode that goes on runs all calls of its message again" in caplog.text
    paused = invoke("t2", {"messages": [turn(calls[1:])]})
    assert paused["__interrupt__"][0].value["tool_name"] == "delete", "alone, it can pause"
    approve()
    assert invoke("t2", Command(resume="go on"))["messages"][-1].content == "gone"
    assert sorted(ran) == ["delete x", "delete x", "look a"]
    asyncio.run(guard.close())


class StateModel(BaseModel):
    messages: list[Any]


def test_the_calls_of_a_tool_node_are_found_in_all_forms_of_its_input() -> None:
    """Where they are not found, a call may have siblings: it waits."""
    own, other = (ScriptedCall("look", {"key": "a"}, name) for name in ("c1", "c2"))
    alone, both = turn([own]), turn([own, other])
    earlier = [turn([other, ScriptedCall("look", {}, "c3")]), ToolMessage("x", tool_call_id="c2")]

    def has_more(state: Any) -> bool:
        return has_siblings(SimpleNamespace(state=state, tool_call=alone.tool_calls[0]))

    for wrap in (list, lambda it: {"messages": it}, lambda it: StateModel(messages=it)):
        assert has_more(wrap([*earlier, both]))
        assert not has_more(wrap([*earlier, alone]))
        assert has_more(wrap(earlier))
    assert has_more(both.tool_calls)
    assert not has_more(alone.tool_calls)
    assert has_more(None)


async def test_a_graph_without_a_checkpointer_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def delete(name: str) -> str:
        """Delete something."""
        return "gone"

    agent, guard = make_asking_agent(as_tool(delete), tmp_path)
    run = asyncio.ensure_future(agent.ainvoke({"messages": [HumanMessage("go")]}))
    while not (pending := await guard.approvals.pending()):  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)
    await guard.approvals.answer(pending[0].approval_id, True, approver="ann")
    ended = await run
    assert "gone" in [message.content for message in ended["messages"]]
    assert "wait for the answer in this process: its graph has no checkpointer" in caplog.text
    await guard.close()
