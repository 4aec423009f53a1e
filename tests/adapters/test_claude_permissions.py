"""Claude Agent SDK: what hooks and permissions make of a call after the guard was asked about it.

The real CLI runs, against a scripted Messages server.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    HookMatcher,
    PermissionResultAllow,
    PermissionResultDeny,
    SdkMcpTool,
    create_sdk_mcp_server,
)

from edictum import (
    Edictum,
    EdictumConfigError,
    HookDecision,
    HookRegistration,
    OperationLimits,
    Verdict,
    precondition,
)
from edictum.adapters import ClaudeAgentSDKAdapter

pytestmark = pytest.mark.s1  # needs claude_agent_sdk

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "claude_agent_sdk"))
from scripted_model import ScriptedModel  # noqa: E402  # found by the line above

SUB_TASK = "the task of the sub-agent"


class TwoAgents(ScriptedModel):
    """Plays one script for the main agent, and another one for its sub-agent."""

    def __init__(self, main: Any, sub: Any) -> None:
        super().__init__([])
        self.main, self.sub = main, sub

    def answer(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        said = str(body["messages"][0]["content"])
        self.script = self.sub if SUB_TASK in said and "go ahead" not in said else self.main
        return super().answer(body)


def shell(command: str, call_id: str = "c1") -> Any:
    return ("Bash", {"command": command, "description": "run"}, call_id)


def delegate(call_id: str = "agent") -> Any:
    """A sub-agent for which the main agent waits."""
    prompt = {"description": "work", "prompt": SUB_TASK, "subagent_type": "general-purpose"}
    return ("Agent", {**prompt, "run_in_background": False}, call_id)


@precondition("Bash", id="no-rm")
def no_rm(call: Any) -> Verdict:
    return Verdict.fail("Nothing is deleted.") if "rm " in call.args["command"] else Verdict.pass_()


class Run:
    """A run of the real CLI in a folder with the file ``keep``."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.folder, self.keep = folder, folder / "keep"
        self.keep.write_text("x")
        self.guard = Edictum(contracts=[no_rm], limits=OperationLimits(**limits))
        self.adapter = ClaudeAgentSDKAdapter(self.guard)
        self.rm = {"command": f"rm {self.keep}", "description": "run"}

    def go(self, main: Any, sub: Any = (), **options: Any) -> ScriptedModel:
        model = TwoAgents(main, sub)
        env = model.env()
        made = ClaudeAgentOptions(env=env, cwd=self.folder, setting_sources=[], **options)

        async def go() -> None:
            async with ClaudeSDKClient(made) as client:
                await client.query("go ahead")
                async for _ in client.receive_response():
                    pass

        asyncio.run(go())
        model.close()
        return model

    def told(self, *call_ids: str) -> list[tuple[str, Any]]:
        """What the audit says of some calls: the action and the command."""
        return [
            (str(event.action), event.tool_args.get("command"))
            for event in self.guard.local_sink.events
            if event.call_id in (call_ids or ("c1",))
        ]

    def count(self) -> tuple[int, int]:
        session = self.guard.session(self.guard.local_sink.last().session_id)
        return session.executions, session.failures

    # --- What changes calls ---

    async def rewrite(self, name: str, given: Any, context: Any) -> Any:
        """A can_use_tool in which a person edits the command and then allows it."""
        is_touch = given.get("command", "").startswith("touch")
        return PermissionResultAllow(updated_input=self.rm if is_touch else None)

    async def rewrite_before(self, asked: Any, call_id: Any, context: Any) -> Any:
        """A PreToolUse hook."""
        if not asked["tool_input"].get("command", "").startswith("touch"):
            return {}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": self.rm}}

    async def rewrite_permission(self, asked: Any, call_id: Any, context: Any) -> Any:
        """A PermissionRequest hook."""
        decision = {"behavior": "allow", "updatedInput": self.rm}
        return {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": decision}}

    def add_hook(self, event: str, hook: Any, *, last: bool = True) -> Any:
        """The hooks of the adapter, and one that is not wrapped beside them."""
        hooks = self.adapter.to_sdk_hooks()
        matchers = hooks.setdefault(event, [])
        matchers.insert(len(matchers) if last else 0, HookMatcher(hooks=[hook]))
        return hooks


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def make_scripts(run: Run, agent: str) -> tuple[Any, Any]:
    """A ``touch`` by the agent, and something harmless of the main agent afterwards."""
    touch = [shell(f"touch {run.folder / 'new'}")]
    later = [shell("echo later", "later")]
    return ([touch, later], []) if agent == "main" else ([[delegate()], later], [touch])


AGENTS = pytest.mark.parametrize("agent", ["main", "sub"])


def wrap_can_use_tool(run: Run) -> Any:
    wrapped = run.adapter.wrap_can_use_tool(run.rewrite)
    return {"hooks": run.adapter.to_sdk_hooks(), "can_use_tool": wrapped}


def wrap_before(run: Run) -> Any:
    matcher = HookMatcher(matcher="Read|Bash", hooks=[run.rewrite_before])
    hooks = run.adapter.wrap_hooks({"PreToolUse": [matcher]})
    return {"hooks": hooks, "allowed_tools": ["Bash"]}


def wrap_permission(run: Run) -> Any:
    matcher = HookMatcher(hooks=[run.rewrite_permission])
    return {"hooks": run.adapter.wrap_hooks({"PermissionRequest": [matcher]})}


@AGENTS
@pytest.mark.parametrize("wrap", [wrap_can_use_tool, wrap_before, wrap_permission])
def test_what_is_wrapped_cannot_make_a_touch_into_an_rm(run: Run, wrap: Any, agent: str) -> None:
    options = wrap(run)
    assert run.adapter.self_test(ClaudeAgentOptions(**options)) == "governed"
    model = run.go(*make_scripts(run, agent), **options)
    assert run.keep.exists()
    assert "Nothing is deleted." in str(model.read["c1"]["content"])
    assert run.told()[-1] == ("call_denied", run.rm["command"])
    assert run.told("later")[-1] == ("call_executed", "echo later"), "the run goes on"


def permit(run: Run) -> Any:
    return {"hooks": run.adapter.to_sdk_hooks(), "can_use_tool": run.rewrite}


def hook_last(run: Run) -> Any:
    return {"hooks": run.add_hook("PreToolUse", run.rewrite_before), "allowed_tools": ["Bash"]}


def hook_first(run: Run) -> Any:
    hooks = run.add_hook("PreToolUse", run.rewrite_before, last=False)
    return {"hooks": hooks, "allowed_tools": ["Bash"]}


def permit_by_hook(run: Run) -> Any:
    return {"hooks": run.add_hook("PermissionRequest", run.rewrite_permission)}


@AGENTS
@pytest.mark.parametrize("wire", [permit, hook_last, hook_first, permit_by_hook])
def test_what_is_not_wrapped_is_found_out_and_ends_the_run(run: Run, wire: Any, agent: str) -> None:
    """The audit has the arguments that really ran, and which contract objects to them."""
    options = wire(run)
    with pytest.raises(EdictumConfigError, match="is not wrapped"):
        run.adapter.self_test(ClaudeAgentOptions(**options))
    run.go(*make_scripts(run, agent), **options)
    assert not run.keep.exists()
    assert [(action, command) for action, command in run.told() if "rm " in command] == [
        ("call_changed", run.rm["command"]),
        ("call_failed", run.rm["command"]),
    ]
    (changed,) = [it for it in run.guard.local_sink.events if it.action == "call_changed"]
    assert (changed.decision_name, "Nothing is deleted." in changed.reason) == ("no-rm", True)
    assert "call_executed" not in [action for action, _ in run.told("c1", "later")]


def test_a_changed_call_that_fails_ends_the_run(run: Run) -> None:
    """The CLI does not let a hook for failures stop it: the end of the batch does."""
    run.keep.unlink()
    run.rm["command"] += "; exit 3"
    model = run.go(*make_scripts(run, "main"), **permit(run))
    assert (model.requests, run.told("later")) == (1, [])
    assert run.told()[-1] == ("call_failed", run.rm["command"])


def test_a_change_that_contracts_allow_ends_the_run_too_unless_it_is_wrapped(run: Run) -> None:
    run.rm["command"] = "echo edited"
    script = make_scripts(run, "main")
    model = run.go(*script, **permit(run))
    assert model.requests == 1
    assert run.told()[-2:] == [("call_changed", "echo edited"), ("call_failed", "echo edited")]
    wrapped = Run(run.folder)
    wrapped.rm["command"] = "echo edited"
    model = wrapped.go(*script, **wrap_can_use_tool(wrapped))
    assert model.read["c1"]["content"] == "edited"
    assert [action for action, _ in wrapped.told()] == [
        "call_allowed",
        "call_paused",
        "call_allowed",
        "call_executed",
    ]
    assert wrapped.count() == (2, 0)


def test_the_next_prompt_of_a_stopped_session_goes_on() -> None:
    """A run is what follows one prompt."""
    adapter = ClaudeAgentSDKAdapter(Edictum())
    hooks = adapter.to_hook_callables()

    async def go() -> list[Any]:
        said = []
        for prompt in ("one", "one", "two"):
            asked = {"tool_name": "Bash", "tool_input": {"command": "a"}, "session_id": "s"}
            asked |= {"prompt_id": prompt, "tool_use_id": f"{prompt}{len(said)}"}
            said.append(await hooks["pre_tool_use"](asked, asked["tool_use_id"], {}))
            await hooks["post_tool_use"]({**asked, "tool_input": {}, "tool_response": "x"})
        return said

    first, second, third = asyncio.run(go())
    assert (first, third) == ({}, {})
    assert second["continue_"] is False
    assert second["hookSpecificOutput"]["permissionDecision"] == "deny"


def test_arguments_that_the_cli_completes_do_not_end_the_run(run: Run) -> None:
    """It makes a path absolute and adds defaults to the input that a hook has handed on."""
    (run.folder / "a.txt").write_text("one")

    async def shorten(asked: Any, call_id: Any, context: Any) -> Any:
        new = {"file_path": "a.txt", "limit": "1"}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": new}}

    hooks = run.adapter.wrap_hooks({"PreToolUse": [HookMatcher(hooks=[shorten])]})
    script = [[("Read", {"file_path": str(run.folder / "b.txt")}, "c1")]]
    model = run.go(script, hooks=hooks, allowed_tools=["Read"])
    assert "one" in str(model.read["c1"]["content"])
    events = [it for it in run.guard.local_sink.events if it.call_id == "c1"]
    assert [str(it.action) for it in events] == ["call_allowed", "call_changed", "call_executed"]
    assert events[-1].tool_args == {"file_path": str(run.folder / "a.txt"), "limit": 1}


def test_what_a_hook_of_the_guard_rewrites_is_what_runs(tmp_path: Path) -> None:
    rewrite = HookRegistration(
        "before", "Bash", lambda call: HookDecision.rewrite({"command": "echo b"})
    )
    run = Run(tmp_path)
    run.guard = Edictum(hooks=[rewrite])
    run.adapter = ClaudeAgentSDKAdapter(run.guard)
    model = run.go([[shell("echo a")]], hooks=run.adapter.to_sdk_hooks(), allowed_tools=["Bash"])
    assert model.read["c1"]["content"] == "b"
    assert run.told() == [("call_allowed", "echo b"), ("call_executed", "echo b")]


# --- Refusals -------------------------------------------------------------------------------------


async def say_no(name: str, given: Any, context: Any) -> Any:
    if given.get("command", "").startswith("touch"):
        return PermissionResultDeny(message="Ada says no.")
    return PermissionResultAllow()


async def break_down(name: str, given: Any, context: Any) -> Any:
    if given.get("command", "").startswith("touch"):
        raise ValueError("nobody to ask")
    return PermissionResultAllow()


def refuse_wrapped(run: Run) -> Any:
    return {"can_use_tool": run.adapter.wrap_can_use_tool(say_no)}


def refuse(run: Run) -> Any:
    return {"can_use_tool": say_no}


def fail_wrapped(run: Run) -> Any:
    return {"can_use_tool": run.adapter.wrap_can_use_tool(break_down)}


def refuse_by_rule(run: Run) -> Any:
    return {"disallowed_tools": ["Bash(touch *)"], "allowed_tools": ["Bash"]}


def have_no_permission(run: Run) -> Any:
    return {}


@AGENTS
@pytest.mark.parametrize(
    ("wire", "why"),
    [
        (refuse_wrapped, "Ada says no."),
        (refuse, "Ada says no."),
        (fail_wrapped, "nobody to ask"),
        (refuse_by_rule, "denied"),
        (have_no_permission, "approval"),
    ],
)
def test_a_call_that_is_refused_after_the_guard_gives_its_slot_back(
    tmp_path: Path, wire: Any, why: str, agent: str
) -> None:
    """It is recorded as denied; a limit of one call (and one for the sub-agent) lets another."""
    run = Run(tmp_path, max_calls_per_tool={"Bash": 1})
    model = run.go(*make_scripts(run, agent), hooks=run.adapter.to_sdk_hooks(), **wire(run))
    assert why in str(model.read["c1"]["content"])
    assert [action for action, _ in run.told()] == ["call_allowed", "call_denied"]
    (denied,) = [it for it in run.guard.local_sink.events if it.action == "call_denied"]
    assert (denied.decision_source, denied.policy_error) == ("host", False)
    assert why in str(denied.reason)
    assert run.told("later")[-1] == ("call_executed", "echo later")
    assert run.count() == ((1, 0) if agent == "main" else (2, 0))


def test_a_refusal_that_interrupts_the_run_gives_its_slot_back(run: Run) -> None:
    async def interrupt(name: str, given: Any, context: Any) -> Any:
        return PermissionResultDeny(message="Stop it.", interrupt=True)

    run.go(
        *make_scripts(run, "main"),
        hooks=run.adapter.to_sdk_hooks(),
        can_use_tool=run.adapter.wrap_can_use_tool(interrupt),
    )
    assert [action for action, _ in run.told()] == ["call_allowed", "call_denied"]
    assert run.count() == (0, 0)


def test_a_call_that_a_wrapped_tool_did_not_run_gives_its_slot_back(run: Run) -> None:
    """A permission changed its arguments, so the handler refused it."""
    ran: list[Any] = []

    async def look(args: dict[str, Any]) -> dict[str, Any]:
        ran.append(args)
        return {"content": [{"type": "text", "text": "found"}]}

    async def edit(name: str, given: Any, context: Any) -> Any:
        return PermissionResultAllow(updated_input={"key": "b"})

    tools = run.adapter.wrap_tools([SdkMcpTool("look", "Look.", {"key": str}, look)])
    options: Any = {"mcp_servers": {"t": create_sdk_mcp_server("t", tools=tools)}}
    script = [[("mcp__t__look", {"key": "a"}, "c1")]]
    hooks = run.adapter.to_sdk_hooks()
    run.go(script, hooks=hooks, can_use_tool=edit, **options)
    assert ran == []
    assert [action for action, _ in run.told()] == ["call_allowed", "call_denied"]
    assert run.count() == (0, 0)
    wrapped = run.adapter.wrap_can_use_tool(edit)
    model = run.go(script, hooks=hooks, can_use_tool=wrapped, **options)
    assert ran == [{"key": "b"}]
    assert "found" in str(model.read["c1"]["content"])


# --- The user's own hooks -------------------------------------------------------------------------

MATCHERS = [
    *("Bash", "bash", "Ba", "Ba.*", "B.sh", "Read|Bash", "Read, Bash", "^Bash$", "Bash(echo *)"),
    *("Task", "Agent", "mcp__.*", "sh$", "*", "", "(", "Bash|", "mcp__t"),
]


def test_hooks_inside_the_guard_are_asked_as_the_cli_asks_them(run: Run) -> None:
    """Each matcher is wired twice: to the CLI itself, and inside the adapter."""
    asked: dict[str, list[Any]] = {"outside": [], "inside": []}

    def note(where: str) -> list[Any]:
        def make(matcher: str) -> Any:
            async def hook(given: Any, call_id: Any, context: Any) -> Any:
                asked[where].append((matcher, given["tool_name"], call_id))
                return {}

            return HookMatcher(matcher=matcher, hooks=[hook])

        return [make(matcher) for matcher in MATCHERS]

    hooks = run.adapter.wrap_hooks({"PreToolUse": note("inside")})
    hooks["PreToolUse"] += note("outside")
    run.go([[shell("echo a")], [delegate()]], hooks=hooks, allowed_tools=["Bash", "Agent"])
    inside = [it for it in asked["inside"] if it[0] != "("]  # which only Python calls broken
    assert sorted(inside) == sorted(it for it in asked["outside"] if it[0] != "(")
    assert len(inside) > 10


def test_what_hooks_inside_say_is_obeyed(run: Run) -> None:
    """The guard is not asked about a call that they refuse; it is recorded as denied."""

    def make(**said: Any) -> Any:
        async def hook(asked: Any, call_id: Any, context: Any) -> Any:
            return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **said}}

        return hook

    deny = make(permissionDecision="deny", permissionDecisionReason="Not today.")
    allow = make(permissionDecision="allow", additionalContext="Mind the gap.")
    hooks = run.adapter.wrap_hooks(
        {"PreToolUse": [HookMatcher("Read", [deny, allow]), HookMatcher("Bash", [allow])]}
    )
    touch = shell(f"touch {run.folder / 'new'}")
    model = run.go([[touch, ("Read", {"file_path": str(run.keep)}, "c2")]], hooks=hooks)
    assert (run.folder / "new").exists(), "a hook allowed it, so the CLI asked no person"
    assert "Not today." in str(model.read["c2"]["content"])
    assert [action for action, _ in run.told("c2")] == ["call_denied"]
    assert [action for action, _ in run.told()] == ["call_allowed", "call_executed"]


async def test_a_hook_inside_that_fails_blocks_only_if_it_is_wired_to() -> None:
    async def fail(asked: Any, call_id: Any, context: Any) -> Any:
        asked["tool_input"]["command"] = "changed in place"
        raise ValueError("boom")

    for on_failure in ("block", "continue", None):
        guard = Edictum()
        matcher = HookMatcher(hooks=[fail], on_failure=on_failure)  # type: ignore[arg-type]
        hooks = ClaudeAgentSDKAdapter(guard).wrap_hooks({"PreToolUse": [matcher]})
        asked = {"tool_name": "Bash", "tool_input": {"command": "a"}, "tool_use_id": "c1"}
        said = await hooks["PreToolUse"][0].hooks[0](asked, "c1", {})
        assert (said == {}) is (on_failure != "block")
        event = guard.local_sink.last()
        denied = on_failure == "block"
        assert event.action == ("call_denied" if denied else "call_allowed")
        assert event.tool_args == {"command": "a"}


async def test_a_sub_agent_is_told_to_report_what_a_person_must_approve(tmp_path: Path) -> None:
    """It cannot wait, and no question is left behind."""

    @precondition("Bash", effect="approve")
    def ask(call: Any) -> Verdict:
        return Verdict.fail("Sure?") if call.args["command"] == "rm" else Verdict.pass_()

    url = f"sqlite:///{tmp_path}/approvals.db"
    async with Edictum(contracts=[ask], approval_backend=url) as guard:
        hook = ClaudeAgentSDKAdapter(guard, session_id="s").to_hook_callables()["pre_tool_use"]
        asked = {"tool_name": "Bash", "tool_use_id": "c1", "agent_id": "sub"}
        said = await hook({**asked, "tool_input": {"command": "rm"}}, "c1", {})
        assert said["hookSpecificOutput"]["permissionDecision"] == "deny"
        reason = said["hookSpecificOutput"]["permissionDecisionReason"]
        assert "Report to the main agent" in reason
        assert await guard.approvals.pending() == []
        assert guard.local_sink.last().action == "call_denied"
        free = {**asked, "tool_use_id": "c2", "tool_input": {"command": "ls"}}
        assert await hook(free, "c2", {}) == {}


def test_other_hooks_stay_as_they_are_beside_those_of_the_adapter() -> None:
    async def note(asked: Any, call_id: Any, context: Any) -> Any:
        return {}

    yours = HookMatcher(matcher="Bash", hooks=[note], timeout=5)
    adapter = ClaudeAgentSDKAdapter(Edictum())
    hooks = adapter.wrap_hooks({"PostToolUseFailure": [yours], "Notification": [yours]})
    assert (hooks["PostToolUseFailure"][-1], hooks["Notification"]) == (yours, [yours])
    assert hooks.keys() > adapter.to_sdk_hooks().keys()
    with pytest.raises(EdictumConfigError, match="own hooks are among those to be wrapped"):
        adapter.wrap_hooks(hooks)
    for event in ("PreToolUse", "PostToolUse"):
        assert [it.timeout for it in adapter.wrap_hooks({event: [yours]}, timeout=90)[event]] == [
            95
        ]


async def test_a_permission_for_a_call_that_the_guard_does_not_know_is_refused() -> None:
    """The hooks are not wired, or the call was closed."""
    from claude_agent_sdk import ToolPermissionContext

    guard = Edictum()
    asked = []

    async def permit(name: str, given: Any, context: Any) -> Any:
        asked.append(name)
        return PermissionResultAllow()

    wrapped = ClaudeAgentSDKAdapter(guard).wrap_can_use_tool(permit)
    answer = await wrapped("Bash", {"command": "a"}, ToolPermissionContext(tool_use_id="c1"))
    assert answer.behavior == "deny"
    assert "to_sdk_hooks()" in answer.message
    assert guard.local_sink.last().action == "call_denied"


# --- Hooks that put another output in the place of a tool's ---------------------------------------

TOKEN = "ghp_" + "a1B2" * 9
NO_TOKENS = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: no-tokens}
tools: {Read: {side_effect: read}}
contracts:
  - id: no-tokens
    type: post
    tool: "*"
    when: {output.text: {contains_secret: true}}
    then: {effect: redact, message: "A token."}
"""


async def finish(adapter: ClaudeAgentSDKAdapter, hooks: Any, response: Any) -> Any:
    """What the hooks of PostToolUse say together, as the CLI would read it."""
    asked = {"tool_name": "Read", "tool_use_id": "c1", "tool_input": {"path": "a"}}
    for event, more in (("PreToolUse", {}), ("PostToolUse", {"tool_response": response})):
        asked = {**asked, "hook_event_name": event, **more}
        said = [await hook(asked, "c1", {}) for it in hooks[event] for hook in it.hooks]
    assert len(said) == 1, "no hook of the user's stands beside ours"
    return said[0]


@pytest.mark.parametrize("key", ["updatedToolOutput", "updatedMCPToolOutput"])
async def test_what_a_hook_puts_in_the_place_of_an_output_is_judged(key: str) -> None:
    seen = []

    async def replace(asked: Any, call_id: Any, context: Any) -> Any:
        seen.append(asked["tool_response"])
        more = {"additionalContext": f"before: {asked['tool_response']}"}
        return {"hookSpecificOutput": {"hookEventName": "PostToolUse", key: f"now {TOKEN}", **more}}

    adapter = ClaudeAgentSDKAdapter(Edictum.from_yaml_string(NO_TOKENS))
    hooks = adapter.wrap_hooks({"PostToolUse": [HookMatcher(matcher="Read", hooks=[replace])]})
    said = await finish(adapter, hooks, f"old {TOKEN}")
    assert seen == [f"old {TOKEN}"]
    assert said["hookSpecificOutput"] == {
        "hookEventName": "PostToolUse",
        "updatedToolOutput": "now [REDACTED]",
        "additionalContext": "before: old [REDACTED]",
    }
    last = adapter.guard.local_sink.last()
    assert (last.action, "now" in str(last.result_summary)) == ("call_executed", True)


async def test_an_output_of_a_hook_without_objections_passes_and_so_does_silence() -> None:
    async def replace(asked: Any, call_id: Any, context: Any) -> Any:
        return {"hookSpecificOutput": {"updatedToolOutput": "shorter"}, "systemMessage": "cut"}

    async def fail(asked: Any, call_id: Any, context: Any) -> Any:
        raise ValueError("no luck")

    adapter = ClaudeAgentSDKAdapter(Edictum.from_yaml_string(NO_TOKENS))
    hooks = adapter.wrap_hooks({"PostToolUse": [HookMatcher(hooks=[replace])]})
    specific = {"hookEventName": "PostToolUse", "updatedToolOutput": "shorter"}
    said = await finish(adapter, hooks, "long")
    assert said == {"hookSpecificOutput": specific, "systemMessage": "cut"}
    others = {"PostToolUse": [HookMatcher(matcher="Bash", hooks=[replace])]}
    assert await finish(adapter, adapter.wrap_hooks(others), "long") == {}
    blocks = HookMatcher(hooks=[fail], on_failure="block")
    said = await finish(adapter, adapter.wrap_hooks({"PostToolUse": [blocks]}), f"old {TOKEN}")
    assert said["decision"] == "block"
    assert said["reason"] == "A hook of the application failed. This is not a denial by policy."
    assert said["hookSpecificOutput"]["updatedToolOutput"] == "old [REDACTED]"


def test_a_hook_beside_ours_that_could_replace_an_output_is_found() -> None:
    async def replace(asked: Any, call_id: Any, context: Any) -> Any:
        return {}

    adapter = ClaudeAgentSDKAdapter(Edictum())
    hooks = adapter.to_sdk_hooks()
    hooks["PostToolUse"].append(HookMatcher(hooks=[replace]))
    with pytest.raises(EdictumConfigError, match="so output that it changes is not checked"):
        adapter.self_test(ClaudeAgentOptions(hooks=hooks))


def test_the_model_of_the_real_cli_reads_no_secret_that_a_hook_put_there(tmp_path: Path) -> None:
    async def replace(asked: Any, call_id: Any, context: Any) -> Any:
        output = {**asked["tool_response"], "stdout": f"now {TOKEN}"}
        specific = {"hookEventName": "PostToolUse", "updatedToolOutput": output}
        return {"hookSpecificOutput": specific}

    run = Run(tmp_path)
    run.adapter = ClaudeAgentSDKAdapter(Edictum.from_yaml_string(NO_TOKENS))
    hooks = run.adapter.wrap_hooks({"PostToolUse": [HookMatcher(hooks=[replace])]})
    model = run.go([[shell("echo old")]], hooks=hooks, allowed_tools=["Bash"])
    read = str(model.read)
    assert ("now [REDACTED]" in read, TOKEN in read) == (True, False)
