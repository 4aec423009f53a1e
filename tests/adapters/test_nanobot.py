"""Nanobot in its real loop with a scripted model: once with ``govern``, once with
``wrap_registry``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiktoken
from faults import PlantedFaults
from loguru import logger
from nanobot import Nanobot
from nanobot.agent.hook import AgentHook
from nanobot.agent.loop import AgentLoop
from nanobot.agent.tools.base import Tool, ToolResult
from nanobot.agent.tools.context import RequestContext
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.bus.events import InboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.providers.base import LLMProvider, LLMResponse, ToolCallRequest
from pages import ExampleAndPage
from tiktoken.registry import ENCODINGS

from edictum import Edictum, EdictumConfigError, OperationLimits, Principal
from edictum.adapters import NanobotAdapter
from edictum.core.type_schemas import describe_parameters
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

pytestmark = pytest.mark.s4  # needs nanobot
logger.remove()
# Nanobot counts tokens, with a vocabulary that is downloaded; without a network it tries that at
# every count. Bytes do as tokens.
BYTES = tiktoken.Encoding(
    "bytes",
    pat_str=r"\S+|\s+",
    mergeable_ranks={bytes([byte]): byte for byte in range(256)},
    special_tokens={},
)
ENCODINGS["cl100k_base"] = BYTES


@pytest.fixture(autouse=True)
def no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    asked_for: list[Any] = []

    def refuse(host: Any, *_: Any, **__: Any) -> Any:
        asked_for.append(host)
        raise OSError("these tests need no network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert asked_for == []


class ScriptedModel(LLMProvider):
    """Plays a list of turns, and keeps what it was shown."""

    def __init__(self, script: Any) -> None:
        super().__init__(provider_name="scripted")
        self.player, self.seen = ScriptPlayer(script), list[Any]()

    def get_default_model(self) -> str:
        return "scripted"

    async def chat(
        self, messages: Any, tools: Any = None, model: Any = None, **options: Any
    ) -> LLMResponse:
        self.seen.append([message for message in messages if message.get("role") == "tool"])
        said = [message["content"] for message in messages if message.get("role") == "user"]
        asked = self.player.next_turn(str(said[-1:]))
        calls = [
            ToolCallRequest(id=call.id, name=call.tool, arguments=dict(call.args)) for call in asked
        ]
        return LLMResponse(
            content=None if calls else "done",
            tool_calls=calls,
            finish_reason="tool_calls" if calls else "stop",
        )


class FunctionTool(Tool):
    """A tool made of one of the suite's functions."""

    description = "A tool."
    parameters: Any = None
    name = ""
    read_only = True

    def __init__(self, function: Any) -> None:
        self.function = function
        self.parameters = describe_parameters(function)

    async def execute(self, **args: Any) -> Any:
        value = self.function(**args)
        return await value if inspect.isawaitable(value) else value


def as_tool(function: Any) -> Tool:
    if isinstance(function, Tool):
        return function
    about = {"name": function.__name__, "parameters": describe_parameters(function)}
    return type(function.__name__, (FunctionTool,), about)(function)


def registry_of(tools: Any) -> ToolRegistry:
    registry = ToolRegistry()
    for item in tools:
        registry.register(as_tool(item))
    return registry


class Run:
    """A loop with its tools, and its model."""

    def __init__(self, registry: Any, script: Any, hooks: Any = None) -> None:
        self.model = ScriptedModel(script)
        self.loop = AgentLoop(
            bus=MessageBus(),
            provider=self.model,
            workspace=Path(tempfile.mkdtemp()),
            tool_registry=registry,
            hooks=hooks,
        )


class TestNanobot(AdapterConformance):
    framework, distribution = "Nanobot", "nanobot-ai"
    ways = (("async", "async"),)
    shortens_itself = True  # it stores long results, and shows their beginning
    nested = ("async",)
    cannot = {
        "pauses": "Nanobot cannot leave a run and go on with it later",
        "control flow": (
            "Nanobot has no exception by which a tool could steer: every one becomes a text that"
            " the model reads"
        ),
    }

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return NanobotAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Run:
        made = Run(registry_of(tools), script)
        if adapter is not None:
            adapter.govern(made.loop, on_warn)
        return made

    def build_changing(self, adapter: Any, tools: Any, script: Any) -> Run:
        class Changing(AgentHook):
            async def before_execute_tool(
                self, context: Any, tool_call: Any, tool: Any, params: Any
            ) -> None:
                params["key"] = "forbidden"

        made = Run(registry_of(tools), script, [Changing()])
        if adapter is not None:
            adapter.govern(made.loop)
        return made

    async def arun(self, agent: Run) -> None:
        await agent.loop.process_direct("go")

    def get_user_options(self) -> dict[str, Any]:
        return {"principal": lambda context: Principal(user_id=context.sender_id)}

    async def arun_as(self, agent: Run, user: str) -> None:
        about = {"session_key": get_conversation(user), "sender_id": user}
        await agent.loop.process_direct(user, **about)

    def stream(self, agent: Run) -> str:
        async def collect() -> str:
            stream = await Nanobot(agent.loop).run_streamed("go")
            return str([event async for event in stream.stream_events()]) + str(await stream.wait())

        return asyncio.run(collect())

    def replies(self, agent: Run) -> list[ToolAnswer]:
        return [
            ToolAnswer(message["tool_call_id"], read(message["content"]))
            for message in agent.model.seen[-1]
        ]

    def failing_tool(self) -> Any:
        def report(key: str) -> Any:
            return ToolResult.error("there is no such key")

        return report

    def target(self, agent: Run) -> Any:
        return agent.loop


def read(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content)


class TestWrapRegistry(TestNanobot):
    """The same with a governed registry and the hook that brings the call ids."""

    framework = "Nanobot wrap_registry()"

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Run:
        if adapter is None:
            return Run(registry_of(tools), script)
        return Run(adapter.wrap_registry(registry_of(tools), on_warn), script, [adapter.as_hook()])


class TestFaults(PlantedFaults):
    suite = TestNanobot
    adapter = NanobotAdapter


# --- What is Nanobot's own ------------------------------------------------------------------------


class Lookup(Tool):
    name = "lookup"
    description = "Look something up."
    parameters = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def execute(self, key: str) -> str:
        self.ran.append(key)
        return f"value of {key}, {SECRET}"


def wired(how: str, adapter: NanobotAdapter, registry: ToolRegistry, script: Any) -> Run:
    if how == "govern":
        run = Run(registry, script)
        adapter.govern(run.loop)
        return run
    return Run(adapter.wrap_registry(registry), script, [adapter.as_hook()])


async def test_a_governed_registry_has_the_tools_of_the_other_one_now_and_later() -> None:
    """MCP servers register their tools when they are connected, in the registry that they know."""
    guard = Edictum(contracts=[no_forbidden, no_secret("redact", redact=without_secret)])
    registry, lookup = ToolRegistry(), Lookup()
    governed = NanobotAdapter(guard).wrap_registry(registry)
    registry.register(lookup)
    assert (
        [definition["function"]["name"] for definition in governed.get_definitions()]
        == governed.tool_names
        == ["lookup"]
    )
    assert isinstance(governed, ToolRegistry)
    assert isinstance(governed.get("lookup"), Lookup)
    assert governed.get("lookup") is governed.get("lookup")
    assert governed.get("nosuch") is None
    denied = await governed.execute("lookup", {"key": "forbidden"})
    assert (denied.is_error, "DENIED: The key is forbidden." in denied) == (True, True)
    assert await governed.execute("lookup", {"key": "a"}) == "value of a, [GONE]"
    assert (
        await registry.execute("lookup", {"key": "forbidden"}) == f"value of forbidden, {SECRET}"
    ), "the other one stays as it is"
    assert lookup.ran == ["a", "forbidden"]
    governed.unregister("lookup")
    assert "lookup" not in registry


@pytest.mark.parametrize("how", ["govern", "wrap_registry"])
async def test_sub_agents_are_governed_and_count_in_the_same_session(how: str) -> None:
    """A sub-agent has a registry of its own, which nanobot makes when it starts."""
    guard = Edictum(limits=OperationLimits(max_tool_calls=2))
    adapter = NanobotAdapter(guard)
    listed = ScriptedCall("list_dir", {"path": "."}, "c2")
    script = [
        [ScriptedCall("spawn", {"task": "look", "wait": True}, "c1")],
        [listed],
        [ScriptedCall("list_dir", {"path": "."}, "c3")],
    ]
    run = wired(how, adapter, ToolRegistry(), script)
    await run.loop.process_direct("go")
    events = [
        (str(event.action), event.tool_name, event.call_id) for event in guard.local_sink.events
    ]
    assert events[:3] == [
        ("call_allowed", "spawn", "c1"),
        ("call_allowed", "list_dir", "c2"),
        ("call_executed", "list_dir", "c2"),
    ]
    assert ("call_denied", "list_dir", "c3") in events
    assert guard.session("cli:direct").executions == 2


@pytest.mark.parametrize("how", ["govern", "wrap_registry"])
async def test_a_session_with_fewer_tools_is_governed_once(how: str) -> None:
    """Nanobot copies the tools that are left into a plain registry."""
    guard = Edictum()
    run = wired(
        how,
        NanobotAdapter(guard),
        registry_of([Lookup()]),
        [[ScriptedCall("lookup", {"key": "a"}, "c1")]],
    )
    session = run.loop.sessions.get_or_create("cli:direct")
    session.policy = type(session.policy)(
        **{**vars_of(session.policy), "disabled_tools": frozenset({"exec"})}
    )
    await run.loop.process_direct("go", session_key="cli:direct")
    assert list_actions(guard) == ["call_allowed", "call_executed"]
    assert get_last_event(guard).call_id == "c1"


def vars_of(policy: Any) -> dict[str, Any]:
    return {name: getattr(policy, name) for name in policy.__dataclass_fields__}


async def test_a_turn_with_tools_of_its_own_is_governed() -> None:
    """That is how nanobot lets its memory dream: with other tools than the loop's."""
    guard, lookup = Edictum(contracts=[no_forbidden]), Lookup()
    run = wired(
        "govern",
        NanobotAdapter(guard),
        ToolRegistry(),
        [[ScriptedCall("lookup", {"key": "forbidden"}, "c1")]],
    )
    await run.loop.process_direct("go", tools=registry_of([lookup]), ephemeral=True)
    assert lookup.ran == []
    assert [(str(event.action), event.call_id) for event in guard.local_sink.events] == [
        ("call_denied", "c1")
    ]


async def test_what_a_tool_calls_itself_is_another_call() -> None:
    guard = Edictum()
    adapter = NanobotAdapter(guard)
    registry = adapter.wrap_registry(registry_of([Lookup()]))

    async def outer(key: str) -> Any:
        return await registry.execute("lookup", {"key": key})

    registry.register(as_tool(outer))
    run = Run(registry, [[ScriptedCall("outer", {"key": "a"}, "c1")]], [adapter.as_hook()])
    await run.loop.process_direct("go")
    ids = [event.call_id for event in guard.local_sink.events]
    assert (ids[0], ids[-1]) == ("c1", "c1")
    assert ids[1] == ids[2] != "c1"


async def test_two_guards_can_govern_the_same_tool() -> None:
    lookup, strict, lax = Lookup(), Edictum(contracts=[no_forbidden]), Edictum()
    registry = registry_of([lookup])
    for guard in (strict, lax):
        await NanobotAdapter(guard).wrap_registry(registry).execute("lookup", {"key": "forbidden"})
    assert (list_actions(strict), list_actions(lax)) == (
        ["call_denied"],
        ["call_allowed", "call_executed"],
    )
    both = NanobotAdapter(strict).wrap_registry(NanobotAdapter(lax).wrap_registry(registry))
    assert "DENIED" in await both.execute("lookup", {"key": "forbidden"})


async def test_a_tool_whose_execute_was_replaced_is_governed() -> None:
    """An attribute of the tool itself must not go before the governed one."""
    lookup = Lookup()

    async def replaced(**params: Any) -> str:
        return "replaced"

    lookup.execute = replaced  # type: ignore[method-assign]
    governed = NanobotAdapter(Edictum(contracts=[no_forbidden])).wrap_registry(
        registry_of([lookup])
    )
    assert "DENIED" in await governed.execute("lookup", {"key": "forbidden"})
    assert await governed.execute("lookup", {"key": "a"}) == "replaced"


async def test_the_sender_of_a_message_is_the_principal() -> None:
    message = InboundMessage(channel="telegram", sender_id="7", chat_id="42", content="hi")
    principal = NanobotAdapter.principal_from_message(message)
    assert (principal.user_id, principal.role, dict(principal.claims)) == (
        "telegram:7",
        "user",
        {"channel": "telegram", "channel_id": "42"},
    )
    of_subagent = NanobotAdapter.principal_from_message(RequestContext("telegram", "42"))
    assert (of_subagent.user_id, of_subagent.claims["channel"]) == (None, "telegram")
    guard = Edictum()
    adapter = NanobotAdapter(guard, principal=NanobotAdapter.principal_from_message)
    run = wired(
        "govern", adapter, registry_of([Lookup()]), [[ScriptedCall("lookup", {"key": "a"}, "c1")]]
    )
    await run.loop.process_direct("go", channel="slack", chat_id="9", sender_id="ada")
    assert (get_last_event(guard).principal or {})["user_id"] == "slack:ada"


def test_a_registry_can_be_asked_whether_it_is_governed() -> None:
    adapter, registry = NanobotAdapter(Edictum()), registry_of([Lookup()])
    assert adapter.self_test(adapter.wrap_registry(registry)) == "governed"
    assert registry.tool_names == ["lookup"]
    with pytest.raises(EdictumConfigError, match="does not govern"):
        adapter.self_test(registry)


def test_a_loop_whose_sub_agents_are_not_governed_is_noticed() -> None:
    """As if nanobot gave its sub-agents another runner after the loop was governed."""
    adapter = NanobotAdapter(Edictum())
    run = wired("govern", adapter, ToolRegistry(), [])
    assert adapter.self_test(Nanobot(run.loop)) == "governed"
    run.loop.subagents.runner = type(run.loop.runner)()
    with pytest.raises(EdictumConfigError, match="does not govern"):
        adapter.self_test(run.loop)


def test_an_unsupported_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NanobotAdapter, "requires", {"nanobot-ai": ("7.0", "8")})
    with pytest.raises(
        EdictumConfigError, match=r"supports nanobot-ai>=7\.0,<8; installed is 0\.3"
    ):
        NanobotAdapter(Edictum()).as_hook()


class TestExample(ExampleAndPage):
    name = "nanobot"
