"""Claude Agent SDK: with a scripted CLI, and with the real one that the SDK brings, against a
scripted Messages server.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    SdkMcpTool,
    ToolAnnotations,
    create_sdk_mcp_server,
)
from claude_scripted import SERVER, ScriptedCLI
from faults import PlantedFaults
from pages import ExampleAndPage

from edictum import Edictum, EdictumConfigError, OperationLimits, Principal
from edictum.adapters import ClaudeAgentSDKAdapter
from edictum.core.type_schemas import describe_parameters
from edictum.testing.adapter import (
    SECRET,
    AdapterConformance,
    ScriptedCall,
    ScriptPlayer,
    ToolAnswer,
    get_conversation,
    no_forbidden,
    no_secret,
    without_secret,
)

pytestmark = pytest.mark.s1  # needs claude_agent_sdk

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "claude_agent_sdk"))

KEY = {"key": str}


def as_tool(function: Any) -> SdkMcpTool[Any]:
    """A function as an SDK tool. A structure is given as one, and as the text that the model
    reads.
    """

    async def handler(args: dict[str, Any]) -> dict[str, Any]:
        value = await (
            function(**args)
            if inspect.iscoroutinefunction(function)
            else asyncio.to_thread(function, **args)
        )
        text = value if isinstance(value, str) else json.dumps(value)
        structure = {"structuredContent": value} if isinstance(value, dict) else {}
        return {"content": [] if value is None else [{"type": "text", "text": text}], **structure}

    if isinstance(function, SdkMcpTool):
        return function
    schema, hints = dict(describe_parameters(function)), ToolAnnotations(readOnlyHint=True)
    return SdkMcpTool(function.__name__, "A tool.", schema, handler, annotations=hints)


class Agent:
    """An agent, the CLI that plays its script, and its options."""

    def __init__(self, tools: Any, script: Any, hooks: Any, builtin: Any = None) -> None:
        self.player, self.builtin = ScriptPlayer(script), builtin
        servers: Any = {SERVER: create_sdk_mcp_server(SERVER, tools=tools)}
        self.options = ClaudeAgentOptions(mcp_servers=servers, hooks=hooks)
        self.messages: list[Any] = []

    async def run(self, user: str = "", session_id: str = "s") -> None:
        turns = [
            [(call.tool, call.args, call.id) for call in calls]
            for calls in iter(lambda: [*self.player.next_turn(user)], [])
        ]
        await self.play(turns, session_id)

    async def play(self, turns: Any, session_id: str = "s") -> None:
        self.cli = ScriptedCLI(turns, self.builtin, session_id)
        async with ClaudeSDKClient(options=self.options, transport=self.cli) as client:
            await client.query("go")
            async for message in client.receive_response():
                self.messages.append(message)


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else " ".join(block["text"] for block in content)


class TestClaudeAgentSDK(AdapterConformance):
    framework, distribution = "Claude Agent SDK", "claude-agent-sdk"
    has_structures = False
    ways = (("sync", "sync"), ("sync", "async"), ("async", "sync"), ("async", "async"))
    guard_name = f"mcp__{SERVER}__{{}}"
    cannot = {
        "control flow": "the SDK has no exceptions by which a tool steers a run",
        "timeout": "the CLI runs the tools between two hooks, and offers no way to stop one",
        "turn": "the CLI runs the tools between two hooks, and cannot stop one at a deadline",
    }

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return ClaudeAgentSDKAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Agent:
        made = [as_tool(tool) for tool in tools]
        if adapter is None:
            return Agent(made, script, None)
        return Agent(adapter.wrap_tools(made, on_warn), script, adapter.to_sdk_hooks(on_warn))

    def build_changing(self, adapter: Any, tools: Any, script: Any) -> Agent:
        async def change(asked: Any, call_id: Any, context: Any) -> Any:
            new = {"hookEventName": "PreToolUse", "updatedInput": {"key": "forbidden"}}
            return {"hookSpecificOutput": new}

        made, hooks = [as_tool(tool) for tool in tools], {}
        if adapter is not None:
            made, hooks = adapter.wrap_tools(made), adapter.to_sdk_hooks()
        hooks.setdefault("PreToolUse", []).append(HookMatcher(hooks=[change]))
        return Agent(made, script, hooks)

    def build_pausing(self, adapter: Any, tools: Any, script: Any) -> Agent:
        made = adapter.wrap_tools([as_tool(tool) for tool in tools], server=SERVER)
        return Agent(made, script, adapter.to_sdk_hooks())

    def resume(self, agent: Agent) -> None:
        asyncio.run(agent.play([[agent.cli.deferred]]))

    def run(self, agent: Agent) -> None:
        asyncio.run(agent.run())

    async def arun(self, agent: Agent) -> None:
        await agent.run()

    def get_user_options(self) -> dict[str, Any]:
        def find_principal(asked: Any) -> Principal:
            return Principal(user_id=asked["session_id"].removeprefix(get_conversation("")))

        return {"principal": find_principal}

    async def arun_as(self, agent: Agent, user: str) -> None:
        await agent.run(user, get_conversation(user))

    def stream(self, agent: Agent) -> str:
        asyncio.run(agent.run())
        return str(agent.messages)

    def replies(self, agent: Agent) -> list[ToolAnswer]:
        return [
            ToolAnswer(
                block["tool_use_id"], text_of(block["content"]), block.get("is_error", False)
            )
            for block in agent.cli.read
        ]

    def failing_tool(self) -> Any:
        async def report(args: Any) -> Any:
            return {"content": [{"type": "text", "text": "there is no such key"}], "is_error": True}

        return SdkMcpTool("report", "A tool.", KEY, report)

    def target(self, agent: Agent) -> Any:
        return agent.options


class TestFaults(PlantedFaults):
    suite = TestClaudeAgentSDK
    adapter = ClaudeAgentSDKAdapter


# --- Hooks alone, with the scripted CLI -----------------------------------------------------------


def straight(adapter: ClaudeAgentSDKAdapter) -> Any:
    """The callables put straight into matchers, as the SDK's own documentation shows it for any
    hook.
    """
    calls = adapter.to_hook_callables()
    names = {
        "PreToolUse": "pre_tool_use",
        "PostToolUse": "post_tool_use",
        "PostToolUseFailure": "post_tool_use_failure",
    }
    return {event: [HookMatcher(hooks=[calls[name]])] for event, name in names.items()}


def play(hooks: Any, *calls: ScriptedCall, tools: Any = (), builtin: Any = None) -> ScriptedCLI:
    agent = Agent([as_tool(tool) for tool in tools], [list(calls)], hooks, builtin)
    asyncio.run(agent.run())
    return agent.cli


def leak(key: str) -> str:
    return f"{key} {SECRET}"


def bash(command: str) -> dict[str, Any]:
    return {"stdout": f"{command} {SECRET}", "stderr": "", "interrupted": command == "stop"}


def read(path: str) -> dict[str, Any]:
    return {"type": "text", "file": {"filePath": path, "content": SECRET, "numLines": 1}}


def test_the_callables_work_when_they_are_put_straight_into_matchers() -> None:
    guard = Edictum(contracts=[no_forbidden, no_secret("redact", redact=without_secret)])
    adapter = ClaudeAgentSDKAdapter(guard)
    calls = [
        ScriptedCall("leak", {"key": "forbidden"}, "c1"),
        ScriptedCall("leak", {"key": "a"}, "c2"),
        ScriptedCall("leak", {"wrong": 1}, "c3"),
    ]
    denied, shown, failed = play(straight(adapter), *calls, tools=[leak]).read
    assert (denied["is_error"], denied["content"]) == (
        True,
        "PreToolUse:mcp__t__leak hook error: DENIED: The key is forbidden.",
    )
    assert shown["content"] == [{"type": "text", "text": "a [GONE]"}]
    assert failed["is_error"]
    ends = {
        event.call_id: str(event.action)
        for event in guard.local_sink.events
        if event.action.startswith("call_")
    }
    assert ends == {"c1": "call_denied", "c2": "call_executed", "c3": "call_failed"}
    assert adapter.self_test(straight(adapter)) == "governed"


async def test_the_callables_work_as_users_know_them() -> None:
    guard = Edictum(contracts=[no_forbidden, no_secret("redact", redact=without_secret)])
    hooks = ClaudeAgentSDKAdapter(guard).to_hook_callables()
    pre, post = hooks["pre_tool_use"], hooks["post_tool_use"]
    denied = await pre("Bash", {"key": "forbidden"}, "c1")
    assert denied["hookSpecificOutput"]["permissionDecision"] == "deny"
    assert await pre(tool_name="Bash", tool_input={"key": "a"}, tool_use_id="c2") == {}
    assert await post(tool_use_id="c2", tool_response=leak("a")) == {
        "hookSpecificOutput": {"hookEventName": "PostToolUse", "updatedToolOutput": "a [GONE]"}
    }
    again = await post(tool_use_id="c2", tool_response=leak("a"))
    assert SECRET not in again["hookSpecificOutput"]["updatedToolOutput"], (
        "nobody judges what a call that is closed brings"
    )


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"tool_name": "Bash", "tool_use_id": "c1"},
        {"tool_name": 1, "tool_input": [], "tool_use_id": "c1"},
        {"tool_name": ["Bash"], "tool_input": {}, "tool_use_id": "c1"},
    ],
)
async def test_a_request_that_cannot_be_read_is_denied(asked: Any) -> None:
    said = await ClaudeAgentSDKAdapter(Edictum()).to_hook_callables()["pre_tool_use"](
        asked, "c1", {"signal": None}
    )
    assert said["hookSpecificOutput"]["permissionDecision"] == "deny"


def test_the_output_of_a_built_in_tool_keeps_its_form_or_ends_the_run() -> None:
    """The CLI shows the raw output if the other one does not have the tool's own form."""
    tools = {"Bash": bash, "Read": read}
    calls = [
        ScriptedCall("Bash", {"command": "a"}, "c1"),
        ScriptedCall("Read", {"path": "b"}, "c2"),
    ]
    redacting = ClaudeAgentSDKAdapter(
        Edictum(contracts=[no_secret("redact", redact=without_secret)])
    )
    shown = [
        json.loads(block["content"])
        for block in play(redacting.to_sdk_hooks(), *calls, builtin=tools).read
    ]
    assert shown == [
        {"stdout": "a [GONE]", "stderr": "", "interrupted": False},
        without_secret(read("b")),
    ]
    suppressing = ClaudeAgentSDKAdapter(Edictum(contracts=[no_secret("deny")]))
    (block,) = play(suppressing.to_sdk_hooks(), calls[0], builtin=tools).read
    assert "OUTPUT SUPPRESSED" in json.loads(block["content"])["stdout"]
    stopped = play(suppressing.to_sdk_hooks(), calls[1], builtin=tools)
    assert (stopped.read, "OUTPUT SUPPRESSED" in str(stopped.stopped)) == ([], True)


def test_an_interrupted_tool_is_a_failure() -> None:
    guard = Edictum()
    play(
        ClaudeAgentSDKAdapter(guard).to_sdk_hooks(),
        ScriptedCall("Bash", {"command": "stop"}, "c1"),
        builtin={"Bash": bash},
    )
    assert (guard.local_sink.last().action, guard.local_sink.last().success_source) == (
        "call_failed",
        "framework",
    )


async def test_a_call_that_the_user_interrupts_is_recorded_as_cancelled() -> None:
    guard = Edictum()
    hooks = ClaudeAgentSDKAdapter(guard).to_hook_callables()
    await hooks["pre_tool_use"]("Bash", {}, "c1")
    await hooks["post_tool_use_failure"](
        tool_use_id="c1", error="interrupted by the user", is_interrupt=True
    )
    assert guard.local_sink.last().success_source == "cancelled"


async def test_calls_that_somebody_else_refused_are_closed_with_their_own_agent() -> None:
    guard = Edictum(limits=OperationLimits(max_tool_calls=2))
    hooks = ClaudeAgentSDKAdapter(guard).to_hook_callables()
    for agent in ("one", "two"):
        asked = {
            "tool_name": "Bash",
            "tool_input": {},
            "tool_use_id": agent,
            "session_id": "s",
            "agent_id": agent,
        }
        assert await hooks["pre_tool_use"](asked, agent, {}) == {}
    await hooks["stop"]({"session_id": "s", "agent_id": "one"}, None, {})
    closed = [
        event.call_id for event in guard.local_sink.events if event.success_source == "cancelled"
    ]
    assert closed == ["one"]


async def test_handlers_of_equal_calls_that_run_at_once_close_one_call_each() -> None:
    guard = Edictum()
    adapter = ClaudeAgentSDKAdapter(guard)
    hooks, (tool,) = adapter.to_hook_callables(), adapter.wrap_tools([as_tool(leak)])
    for number in range(3):
        await hooks["pre_tool_use"]("mcp__t__leak", {"key": "a"}, f"c{number}")
    await asyncio.gather(*(tool.handler({"key": "a"}) for _ in range(3)))
    ended = [event.call_id for event in guard.local_sink.events if event.action == "call_executed"]
    assert sorted(ended) == ["c0", "c1", "c2"]


async def test_a_wrapped_tool_does_not_run_unless_the_hooks_have_let_it() -> None:
    guard, ran = Edictum(), []

    async def look(key: str) -> str:
        ran.append(key)
        return key

    adapter = ClaudeAgentSDKAdapter(guard)
    (tool,) = adapter.wrap_tools([as_tool(look)])
    answer = await tool.handler({"key": "a"})
    assert answer["is_error"] is True
    assert "to_sdk_hooks()" in text_of(answer["content"])
    assert (
        await adapter.to_hook_callables()["pre_tool_use"]("mcp__t__look", {"key": "a"}, "c1") == {}
    )
    await tool.handler({"key": "something else"})
    assert ran == []
    await tool.handler({"key": "a"})
    assert ran == ["a"]
    assert [(str(event.action), event.tool_name) for event in guard.local_sink.events] == [
        ("call_denied", "look"),
        ("call_allowed", "mcp__t__look"),
        ("call_denied", "look"),
        ("call_executed", "mcp__t__look"),
    ]
    assert guard.session(adapter.session_id).attempts == 3


RESPONSES = [
    {"stdout": SECRET, "stderr": SECRET, "interrupted": False},
    [{"type": "text", "text": SECRET}, {"type": "image", "source": {}}],
    SECRET,
    {"filenames": [SECRET]},
]


@pytest.mark.parametrize("response", RESPONSES, ids=["bash", "blocks", "text", "structure"])
@pytest.mark.parametrize("gone", ["too old", "stopped"])
async def test_the_output_of_a_call_whose_ticket_is_gone_is_withheld(
    gone: str, response: Any
) -> None:
    adapter = ClaudeAgentSDKAdapter(Edictum())
    hooks = adapter.to_hook_callables()
    await hooks["pre_tool_use"](
        {"tool_name": "Bash", "tool_input": {}, "tool_use_id": "c1", "session_id": "s"}, "c1", {}
    )
    if gone == "too old":
        await adapter.aafter("c1", error=asyncio.CancelledError())  # what the table of tickets does
    else:
        await hooks["stop"]({"session_id": "s"}, None, {})
    said = await hooks["post_tool_use"](tool_use_id="c1", tool_response=response)
    assert SECRET not in str(said)
    assert said.get("continue_") is False or type(
        said["hookSpecificOutput"]["updatedToolOutput"]
    ) is type(response)


async def test_an_equal_call_may_start_after_the_cli_has_said_that_the_first_one_ended() -> None:
    """The first handler took the id of the second call; the CLI then says that the first id has
    ended.
    """
    guard = Edictum(contracts=[no_secret("redact")])
    adapter = ClaudeAgentSDKAdapter(guard)
    hooks, (tool,) = adapter.to_hook_callables(), adapter.wrap_tools([as_tool(leak)])
    for number in (1, 2):
        await hooks["pre_tool_use"]("mcp__t__leak", {"key": "a"}, f"c{number}")
    for number in (1, 2):
        answer = await tool.handler({"key": "a"})
        assert (answer.get("is_error"), SECRET in text_of(answer["content"])) == (False, False)
        assert (
            await hooks["post_tool_use"](tool_use_id=f"c{number}", tool_response=answer["content"])
            == {}
        )
    assert sorted(
        event.call_id for event in guard.local_sink.events if event.action == "call_executed"
    ) == ["c1", "c2"]


async def test_equal_calls_whose_ids_are_crossed_are_all_redacted() -> None:
    """Handlers are not told ids: the CLI may say that one of two equal calls has ended while the
    other runs under its id.
    """
    guard = Edictum(contracts=[no_secret("redact")])
    adapter = ClaudeAgentSDKAdapter(guard)
    go_on = asyncio.Event()

    async def late_leak(key: str) -> str:
        await asyncio.wait_for(go_on.wait(), 60)
        return leak(key)

    hooks, (quick,) = adapter.to_hook_callables(), adapter.wrap_tools([as_tool(leak)])
    (slow,) = adapter.wrap_tools([replace(as_tool(late_leak), name="leak")])
    for number in (1, 2):
        await hooks["pre_tool_use"]("mcp__t__leak", {"key": "a"}, f"c{number}")
    first = await quick.handler({"key": "a"})  # takes the id of the newest
    second = asyncio.create_task(slow.handler({"key": "a"}))
    await asyncio.sleep(0)
    said = await hooks["post_tool_use"](
        tool_name="mcp__t__leak", tool_use_id="c1", tool_response=first["content"]
    )
    go_on.set()
    texts = [text_of(first["content"]), text_of((await second)["content"])]
    assert said == {}
    assert all(SECRET not in text and "cannot" not in text for text in texts), texts
    await hooks["post_tool_use"](
        tool_name="mcp__t__leak", tool_use_id="c2", tool_response=first["content"]
    )
    ended = [event.call_id for event in guard.local_sink.events if event.action == "call_executed"]
    assert sorted(ended) == ["c1", "c2"]


async def test_the_output_of_a_call_that_was_closed_meanwhile_is_not_shown() -> None:
    guard = Edictum(contracts=[no_secret("redact")])
    adapter = ClaudeAgentSDKAdapter(guard)
    hooks, tool = adapter.to_hook_callables(), as_tool(leak)

    async def closing(args: dict[str, Any]) -> dict[str, Any]:
        await adapter.aafter("c1", error=asyncio.CancelledError())  # as when its ticket expires
        return await tool.handler(args)  # type: ignore[no-any-return]

    (wrapped,) = adapter.wrap_tools([replace(tool, handler=closing)])
    await hooks["pre_tool_use"]("mcp__t__leak", {"key": "a"}, "c1")
    answer = await wrapped.handler({"key": "a"})
    assert answer["is_error"] is True
    assert SECRET not in text_of(answer["content"])


def test_hooks_that_are_half_wired_are_noticed() -> None:
    adapter = ClaudeAgentSDKAdapter(Edictum())
    no_failures = {
        event: matchers
        for event, matchers in adapter.to_sdk_hooks().items()
        if event != "PostToolUseFailure"
    }
    only_bash = straight(adapter)
    only_bash["PreToolUse"][0].matcher = "Bash"
    for hooks in (no_failures, only_bash, {}):
        with pytest.raises(EdictumConfigError, match="does not govern"):
            adapter.self_test(ClaudeAgentOptions(hooks=hooks))


# --- The real CLI ---------------------------------------------------------------------------------


def real(hooks: Any, script: Any, tools: Any = ()) -> Any:
    """What the model read, by call id, and how often it was asked. The CLI runs in a home of its
    own and reaches loopback only.
    """
    from scripted_model import ScriptedModel

    model = ScriptedModel(script)
    servers: Any = {SERVER: create_sdk_mcp_server(SERVER, tools=list(tools))}
    env = model.env()
    allowed = ["Bash", "Read", *(f"mcp__{SERVER}__{tool.name}" for tool in tools)]
    options = ClaudeAgentOptions(
        mcp_servers=servers,
        hooks=hooks,
        env=env,
        cwd=env["HOME"],
        allowed_tools=allowed,
        setting_sources=[],
    )

    async def go() -> None:
        async with ClaudeSDKClient(options) as client:
            await client.query("go")
            async for _ in client.receive_response():
                pass

    asyncio.run(go())
    model.close()
    return model


def shell(command: str, call_id: str) -> Any:
    return ("Bash", {"command": command, "description": "run"}, call_id)


def seen(model: Any, call_id: str) -> tuple[str, bool]:
    block = model.read[call_id]
    return text_of(block["content"]), bool(block.get("is_error"))


def fall(key: str) -> str:
    raise ValueError(f"no {SECRET}")


@pytest.mark.parametrize(
    "wire",
    [ClaudeAgentSDKAdapter.to_sdk_hooks, straight],
    ids=["to_sdk_hooks", "to_hook_callables"],
)
def test_the_real_cli_obeys(wire: Any) -> None:
    guard = Edictum(contracts=[no_forbidden, no_secret("redact", redact=without_secret)])
    adapter = ClaudeAgentSDKAdapter(guard)
    ran: list[str] = []

    def look(key: str) -> str:
        ran.append(key)
        return leak(key)

    tools = [*adapter.wrap_tools([as_tool(fall)]), as_tool(look)]
    script = [
        [("mcp__t__look", {"key": "forbidden"}, "c1"), ("mcp__t__look", {"key": "a"}, "c2")],
        [
            shell(f"echo {SECRET}", "c3"),
            shell("exit 3", "c4"),
            ("mcp__t__fall", {"key": "a"}, "c5"),
        ],
    ]
    model = real(wire(adapter), script, tools)
    assert ran == ["a"]
    text, failed = seen(model, "c1")
    assert failed and "DENIED: The key is forbidden." in text
    assert seen(model, "c2")[0].startswith("a [GONE]")
    assert seen(model, "c3")[0].startswith("[GONE]")
    assert seen(model, "c4")[1] and seen(model, "c5")[1]
    assert SECRET not in json.dumps(model.read)
    ends = {event.call_id: str(event.action) for event in guard.local_sink.events}
    assert ends == {
        "c1": "call_denied",
        "c2": "call_executed",
        "c3": "call_executed",
        "c4": "call_failed",
        "c5": "call_failed",
    }


def test_the_real_cli_runs_two_of_six_parallel_calls() -> None:
    adapter = ClaudeAgentSDKAdapter(Edictum(limits=OperationLimits(max_tool_calls=2)))
    ran: list[str] = []

    async def look(key: str) -> str:
        ran.append(key)
        await asyncio.sleep(0.2)
        return key

    script = [[("mcp__t__look", {"key": str(number)}, f"c{number}") for number in range(6)]]
    model = real(adapter.to_sdk_hooks(), script, [as_tool(look)])
    assert len(ran) == 2
    assert (
        sorted(failed for _, failed in (seen(model, f"c{number}") for number in range(6)))
        == [False] * 2 + [True] * 4
    )


def test_the_real_cli_shows_no_output_that_was_suppressed(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text(SECRET)
    adapter = ClaudeAgentSDKAdapter(Edictum(contracts=[no_secret("deny")]))
    model = real(
        adapter.to_sdk_hooks(),
        [
            [shell(f"echo {SECRET}", "c1")],
            [("Read", {"file_path": str(tmp_path / "secret.txt")}, "c2")],
        ],
    )
    assert "OUTPUT SUPPRESSED" in seen(model, "c1")[0]
    assert (model.requests, "c2" in model.read) == (2, False)


def test_the_real_cli_redacts_the_file_that_read_shows(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text(f"ada {SECRET}")
    adapter = ClaudeAgentSDKAdapter(Edictum(contracts=[no_secret("redact", redact=without_secret)]))
    model = real(
        adapter.to_sdk_hooks(), [[("Read", {"file_path": str(tmp_path / "secret.txt")}, "c1")]]
    )
    assert "ada [GONE]" in seen(model, "c1")[0]


def test_the_real_cli_runs_nothing_when_the_guard_is_broken() -> None:
    from edictum.testing.adapter import BrokenGuard

    for wire in (ClaudeAgentSDKAdapter.to_sdk_hooks, straight):
        model = real(wire(ClaudeAgentSDKAdapter(BrokenGuard())), [[shell("echo it ran", "c1")]])
        text, failed = seen(model, "c1")
        assert failed and "it ran" not in text.replace("echo it ran", "")


class TestExample(ExampleAndPage):
    name = "claude_agent_sdk"
