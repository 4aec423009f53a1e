"""Pydantic AI, in its real loop with a scripted model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from faults import PlantedFaults
from pages import ExampleAndPage
from pause_pydantic_ai import CASES as PAUSE_CASES
from pause_pydantic_ai import play
from pausing import PauseScene, check_pauses, check_removed_contracts
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    RunContext,
    Tool,
    ToolApproved,
    ToolReturn,
)
from pydantic_ai.capabilities import AbstractCapability, Hooks
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    SkipToolExecution,
    ToolFailed,
)
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import DeltaToolCall, FunctionModel

from edictum import Edictum, OperationLimits, Principal, Verdict, precondition
from edictum.adapters import PydanticAIAdapter
from edictum.testing.adapter import (
    SECRET,
    AdapterConformance,
    ControlFlow,
    ScriptedCall,
    ScriptPlayer,
    ToolAnswer,
    get_conversation,
    no_secret,
    without_secret,
)

pytestmark = pytest.mark.s1  # needs pydantic_ai


class Scripted:
    """An agent, the model that plays its script, and what the model was shown."""

    def __init__(
        self,
        tools: Any,
        script: Any,
        capabilities: Any,
        output_type: Any = (str, DeferredToolRequests),
    ) -> None:
        self.seen: list[Any] = []
        self.player = ScriptPlayer(script)
        self.result: Any = None
        model = FunctionModel(self.answer, stream_function=self.stream)
        self.agent: Agent[None, Any] = Agent(
            model,
            tools=[Tool(tool) for tool in tools],
            capabilities=capabilities,
            output_type=output_type,
        )

    def turn(self, messages: Any) -> Any:
        self.seen.append(list(messages))
        parts = [part for message in messages for part in message.parts]
        said = [part.content for part in parts if part.part_kind == "user-prompt"]
        return self.player.next_turn(str(said[-1:]))

    def answer(self, messages: Any, info: Any) -> ModelResponse:
        calls = self.turn(messages)
        parts = [ToolCallPart(call.tool, call.text, tool_call_id=call.id) for call in calls]
        return ModelResponse(parts=parts or [TextPart("done")])

    async def stream(self, messages: Any, info: Any) -> Any:
        calls = self.turn(messages)
        for number, call in enumerate(calls):
            yield {number: DeltaToolCall(call.tool, call.text, tool_call_id=call.id)}
        if not calls:
            yield "done"


class TestPydanticAI(AdapterConformance):
    framework, distribution = "Pydantic AI", "pydantic-ai-slim"
    adds_reader = takes_text_args = True
    ways = (("sync", "sync"), ("sync", "async"), ("async", "sync"), ("async", "async"))
    nested = ("async",)  # the framework refuses run_sync() inside a tool

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return PydanticAIAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Scripted:
        return Scripted(tools, script, [] if adapter is None else [adapter.as_capability(on_warn)])

    def build_changing(self, adapter: Any, tools: Any, script: Any) -> Scripted:
        class Changing(AbstractCapability[Any]):
            async def wrap_tool_execute(
                self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any
            ) -> Any:
                return await handler({**args, "key": "forbidden"})

        own = [] if adapter is None else [adapter.as_capability()]
        return Scripted(tools, script, [*own, Changing()])

    def build_waiting(self, adapter: Any, tools: Any, script: Any) -> Scripted:
        return Scripted(tools, script, [adapter.as_capability()], output_type=str)

    def resume(self, agent: Scripted) -> None:
        calls = {call.tool_call_id: True for call in agent.result.output.approvals}
        options: Any = {"deferred_tool_results": DeferredToolResults(approvals=calls)}
        options["message_history"] = agent.result.all_messages()
        self.run(agent, **options)

    def run(self, agent: Scripted, said: str | None = "go", **options: Any) -> None:
        said = None if "message_history" in options else said
        loop = asyncio.new_event_loop()  # run_sync uses the thread's loop
        asyncio.set_event_loop(loop)
        try:
            agent.result = agent.agent.run_sync(said, **options)
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    async def arun(self, agent: Scripted) -> None:
        agent.result = await agent.agent.run("go")

    def get_user_options(self) -> dict[str, Any]:
        return {"principal": lambda ctx: Principal(user_id=ctx.deps)}

    def run_as(self, agent: Scripted, user: str) -> None:
        self.run(agent, user, conversation_id=get_conversation(user), deps=user)

    async def arun_as(self, agent: Scripted, user: str) -> None:
        conversation: Any = {"conversation_id": get_conversation(user), "deps": user}
        await agent.agent.run(user, **conversation)

    def stream(self, agent: Scripted) -> str:
        async def collect() -> str:
            async with agent.agent.run_stream_events("go") as events:
                return str([event async for event in events])

        return asyncio.run(collect())

    def replies(self, agent: Scripted) -> list[ToolAnswer]:
        parts = [
            part
            for message in agent.seen[-1]
            for part in message.parts
            if part.part_kind in ("tool-return", "retry-prompt")
        ]
        assert all(isinstance(part, ToolReturnPart) for part in parts), parts
        return [
            ToolAnswer(
                part.tool_call_id,
                part.model_response_str(),
                None if part.outcome == "success" else True,
            )
            for part in parts
        ]

    def failing_tool(self) -> Any:
        def report(key: str) -> str:
            raise ToolFailed("there is no such key")

        return report

    def control_flow(self) -> list[ControlFlow]:
        def raising(error: type[Exception], *args: Any) -> Any:
            def steer(key: str) -> str:
                raise error(*args)

            return steer

        return [
            ControlFlow("CallDeferred", raising(CallDeferred)),
            ControlFlow("ApprovalRequired", raising(ApprovalRequired)),
            ControlFlow("ModelRetry", raising(ModelRetry, "use another key"), paused=False),
        ]

    def ending(self, agent: Scripted) -> Any:
        output = getattr(agent.result, "output", None)
        deferred = output if isinstance(output, DeferredToolRequests) else None
        return [
            call.tool_call_id for call in (deferred.calls + deferred.approvals if deferred else ())
        ], self.replies(agent)

    def target(self, agent: Scripted) -> Any:
        return agent.agent


class TestFaults(PlantedFaults):
    suite = TestPydanticAI
    adapter = PydanticAIAdapter


# --- What is Pydantic AI's own --------------------------------------------------------------------


def played(tool: Any, guard: Edictum, *others: Any) -> Scripted:
    """One call of a tool, by an agent with the adapter's capability and perhaps others inside of
    it.
    """
    agent = Scripted(
        [tool],
        [[ScriptedCall(tool.__name__, {"key": "a"}, "c1")]],
        [PydanticAIAdapter(guard).as_capability(), *others],
    )
    TestPydanticAI().run(agent)
    return agent


def redacting() -> Edictum:
    return Edictum(contracts=[no_secret("redact", redact=without_secret)])


def rows(key: str) -> Any:
    yield key


async def rows_later(key: str) -> Any:
    yield key


@pytest.mark.parametrize("tool", [rows, rows_later])
@pytest.mark.parametrize("check", [None, lambda tool, result: True])
def test_a_generator_is_not_shown_to_the_model(tool: Any, check: Any) -> None:
    """The framework would give it the object's address, or end the run."""
    guard = Edictum(success_check=check)
    agent = played(tool, guard)
    (answer,) = TestPydanticAI().replies(agent)
    assert "It must return a list" in answer.text
    assert guard.local_sink.events[-1].action == "call_failed"


def test_all_parts_of_a_tool_return_are_redacted() -> None:
    def look(key: str) -> ToolReturn[Any]:
        return ToolReturn({"number": SECRET}, content=f"It is {SECRET}.", metadata={"kept": SECRET})

    agent = played(look, redacting())
    assert SECRET not in str(
        [
            part
            for message in agent.seen[-1]
            for part in message.parts
            if part.part_kind == "user-prompt"
        ]
    )
    (part,) = [
        part
        for message in agent.seen[-1]
        for part in message.parts
        if part.part_kind == "tool-return"
    ]
    assert (part.content, part.metadata) == ({"number": "[GONE]"}, {"kept": "[GONE]"})


@pytest.mark.parametrize("effect", ["redact", "deny"])
def test_the_metadata_of_a_tool_return_is_judged_without_anything_else_in_it(effect: str) -> None:
    def look(key: str) -> ToolReturn[Any]:
        return ToolReturn("fine", metadata={"kept": SECRET})

    guard = redacting() if effect == "redact" else Edictum(contracts=[no_secret("deny")])
    agent = played(look, guard)
    assert SECRET not in str(agent.seen[-1][1:])
    (part,) = [
        part
        for message in agent.seen[-1]
        for part in message.parts
        if part.part_kind == "tool-return"
    ]
    assert (part.metadata == {"kept": "[GONE]"}, part.content == "fine") == (
        effect == "redact",
        effect == "redact",
    )


def test_a_tool_return_that_is_suppressed_shows_neither_part() -> None:
    def look(key: str) -> ToolReturn[Any]:
        return ToolReturn({"number": SECRET}, content=f"It is {SECRET}.")

    agent = played(look, Edictum(contracts=[no_secret("deny")]))
    assert SECRET not in str(agent.seen[-1][1:])


@pytest.mark.parametrize("error", [ModelRetry, ToolFailed])
def test_what_a_tool_says_about_its_failure_is_redacted(error: Any) -> None:
    def look(key: str) -> str:
        raise error(f"not with {SECRET}")

    agent = played(look, redacting())
    (answer,) = TestPydanticAI().replies(agent)
    assert SECRET not in answer.text
    assert "not with [GONE]" in answer.text


def test_a_result_that_another_capability_puts_in_the_tool_s_place_is_judged() -> None:
    ran: list[str] = []

    def look(key: str) -> str:
        ran.append(key)
        return key

    hooks = Hooks()

    @hooks.on.before_tool_execute
    async def instead(ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
        raise SkipToolExecution(f"from the cache: {SECRET}")

    (answer,) = TestPydanticAI().replies(played(look, redacting(), hooks))
    assert ran == []
    assert answer.text == "from the cache: [GONE]"


def test_a_call_that_waited_for_an_approval_is_counted_once() -> None:
    guard = Edictum(limits=OperationLimits(max_tool_calls=1))
    adapter = PydanticAIAdapter(guard)

    def pay(ctx: RunContext[None], key: str) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return f"paid {key}"

    agent = Scripted([pay], [[ScriptedCall("pay", {"key": "a"}, "c1")]], [adapter.as_capability()])
    first = agent.agent.run_sync("go")
    agent.agent.run_sync(
        message_history=first.all_messages(),
        deferred_tool_results=DeferredToolResults(approvals={"c1": True}),
    )
    assert TestPydanticAI().replies(agent)[0].text == "paid a"
    assert [str(event.action) for event in guard.local_sink.events] == [
        "call_allowed",
        "call_paused",
        "call_allowed",
        "call_executed",
    ]
    assert guard.session(first.conversation_id).executions == 1


def test_a_call_counts_once_however_often_the_capability_is_wired() -> None:
    ran: list[str] = []

    async def again(key: str) -> str:
        ran.append(key)
        if len(ran) == 1:
            await Scripted([again], script, wired).agent.run("go")
        return key

    guard, script = Edictum(), [[ScriptedCall("again", {"key": "a"}, "c1")]]
    adapter = PydanticAIAdapter(guard, session_id="both agents")
    wired = [adapter.as_capability(), adapter.as_capability()]
    asyncio.run(Scripted([again], script, wired).agent.run("go"))
    assert ran == ["a", "a"]
    assert guard.session(adapter.session_id).attempts == 2, (
        "the same call once; another call, by the same name and id, too"
    )


class TestExample(ExampleAndPage):
    name = "pydantic_ai"


# --- The pause of an agent whose guard has a queue ------------------------------------------------


def test_a_deferred_call_goes_on_in_another_process(tmp_path: Path) -> None:
    check_pauses(PauseScene("pydantic_ai", tmp_path), PAUSE_CASES)


def test_a_no_counts_in_a_process_whose_policy_cannot_ask(tmp_path: Path) -> None:
    check_removed_contracts(PauseScene("pydantic_ai", tmp_path))


@precondition("delete", effect="approve")
def ask_first(call: Any) -> Verdict:
    return Verdict.fail("Delete it?")


def delete(name: str) -> str:
    """Delete something."""
    return f"deleted {name}"


async def test_changed_arguments_of_the_results_are_asked_about_again(tmp_path: Path) -> None:
    """An approval is for the arguments that the person was asked about."""
    async with Edictum(
        contracts=[ask_first], approval_backend=f"sqlite:///{tmp_path}/approvals.db"
    ) as guard:
        agent: Any = Agent(
            FunctionModel(play),
            tools=[delete],
            output_type=[str, DeferredToolRequests],
            capabilities=[PydanticAIAdapter(guard).as_capability()],
        )
        first = await agent.run("x")
        changed = ToolApproved(override_args={"name": "y"})
        results = DeferredToolResults(approvals={"call-x": changed})
        second = await agent.run(
            message_history=first.all_messages(), deferred_tool_results=results
        )
        assert isinstance(second.output, DeferredToolRequests)
        asked = [request.tool_args for request in await guard.approvals.pending()]
        assert asked == [{"name": "x"}, {"name": "y"}]


async def test_an_agent_that_cannot_defer_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Edictum(
        contracts=[ask_first], approval_backend=f"sqlite:///{tmp_path}/approvals.db"
    ) as guard:
        capabilities = [PydanticAIAdapter(guard).as_capability()]
        agent: Any = Agent(FunctionModel(play), tools=[delete], capabilities=capabilities)
        run = asyncio.ensure_future(agent.run("x"))
        while not (pending := await guard.approvals.pending()):  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        await guard.approvals.answer(pending[0].approval_id, True, approver="ann")
        assert (await run).output == "deleted x"
    assert "DeferredToolRequests is not among the output types" in caplog.text
