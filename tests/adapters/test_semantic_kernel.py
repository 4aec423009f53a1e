"""Semantic Kernel in its real loop with a scripted model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from typing import Any, ClassVar

import pytest
from faults import PlantedFaults
from pages import ExampleAndPage
from semantic_kernel import Kernel
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.chat_completion_client_base import ChatCompletionClientBase
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.prompt_execution_settings import PromptExecutionSettings
from semantic_kernel.contents import (
    ChatHistory,
    ChatMessageContent,
    FunctionCallContent,
    FunctionResultContent,
    StreamingChatMessageContent,
    StreamingTextContent,
)
from semantic_kernel.filters import FilterTypes
from semantic_kernel.functions import FunctionResult, KernelArguments, KernelPlugin, kernel_function
from semantic_kernel.functions.kernel_function_metadata import KernelFunctionMetadata

from edictum import Edictum, EdictumConfigError, Principal
from edictum.adapters import SemanticKernelAdapter
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

pytestmark = pytest.mark.s3  # needs semantic_kernel


def _full_name(tool: str) -> str:
    """Return the name as the model knows it; the reader is in the adapter's plugin."""
    return f"edictum-{tool}" if tool == "read_artifact" else f"p-{tool}"


class ScriptedModel(ChatCompletionClientBase):
    """Plays a list of turns, and keeps what it was shown."""

    SUPPORTS_FUNCTION_CALLING: ClassVar[bool] = True
    player: Any
    seen: list[Any] = []

    def get_prompt_execution_settings_class(self) -> Any:
        return PromptExecutionSettings

    def _update_function_choice_settings_callback(self) -> Any:
        return lambda *_: None

    def _reset_function_choice_settings(self, settings: Any) -> None:
        """There is nothing to reset."""

    def _next(self, history: Any) -> list[FunctionCallContent]:
        self.seen.append(
            [
                item
                for message in history.messages
                for item in message.items
                if isinstance(item, FunctionResultContent)
            ]
        )
        said = [str(message) for message in history.messages if message.role == "user"]
        asked = self.player.next_turn(str(said[-1:]))
        return [
            FunctionCallContent(
                id=call.id,
                index=number,
                name=_full_name(call.tool),
                arguments=call.text,
            )
            for number, call in enumerate(asked)
        ]

    async def _inner_get_chat_message_contents(self, chat_history: Any, settings: Any) -> Any:
        calls = self._next(chat_history)
        return [
            (
                ChatMessageContent(role="assistant", items=calls)
                if calls
                else ChatMessageContent(role="assistant", content="done")
            )
        ]

    async def _inner_get_streaming_chat_message_contents(
        self, chat_history: Any, settings: Any, function_invoke_attempt: int = 0
    ) -> AsyncGenerator[Any, Any]:
        items: Any = self._next(chat_history) or [StreamingTextContent(choice_index=0, text="done")]
        yield [
            StreamingChatMessageContent(
                role="assistant", choice_index=0, items=items, ai_model_id="scripted"
            )
        ]


class Run:
    """A kernel with its functions, its model, and how to ask it."""

    def __init__(self, tools: Any, script: Any) -> None:
        self.model = ScriptedModel(
            ai_model_id="scripted", service_id="s", player=ScriptPlayer(script), seen=[]
        )
        self.kernel = Kernel()
        self.kernel.add_service(self.model)
        for item in tools:
            self.kernel.add_function("p", kernel_function(name=item.__name__)(item))
        self.settings = PromptExecutionSettings(
            service_id="s", function_choice_behavior=FunctionChoiceBehavior.Auto()
        )
        self.history = ChatHistory()
        self.history.add_user_message("go")


# Who speaks in this context: arguments of the kernel would not do, a model can replace them.
SPEAKER: ContextVar[str] = ContextVar("speaker")


class TestSemanticKernel(AdapterConformance):
    framework, distribution = "Semantic Kernel", "semantic-kernel"
    adds_reader = takes_text_args = True
    ways = (("async", "sync"), ("async", "async"))
    nested = ("async",)
    cannot = {
        "pauses": "Semantic Kernel cannot leave a run and go on with it later",
        "control flow": (
            "Semantic Kernel has no exception by which a function could steer: every one becomes a"
            " text"
        ),
    }

    def make_adapter(self, guard: Any, **options: Any) -> Any:
        return SemanticKernelAdapter(guard, **options)

    def build(self, adapter: Any, tools: Any, script: Any, on_warn: Any = None) -> Run:
        made = Run(tools, script)
        if adapter is not None:
            adapter.register(made.kernel, on_warn)
        return made

    def build_changing(self, adapter: Any, tools: Any, script: Any) -> Run:
        async def change(context: Any, next: Any) -> None:
            context.arguments["key"] = "forbidden"
            await next(context)

        made = self.build(adapter, tools, script)
        made.kernel.add_filter(FilterTypes.FUNCTION_INVOCATION, change)
        return made

    async def arun(self, agent: Run) -> None:
        await agent.model.get_chat_message_content(
            agent.history, agent.settings, kernel=agent.kernel
        )

    def get_user_options(self) -> dict[str, Any]:
        return {
            "session_id": lambda _: get_conversation(SPEAKER.get()),
            "principal": lambda _: Principal(user_id=SPEAKER.get()),
        }

    async def arun_as(self, agent: Run, user: str) -> None:
        SPEAKER.set(user)
        history = ChatHistory()
        history.add_user_message(user)
        arguments = KernelArguments(user_id=user, session_id=get_conversation(user))
        await agent.model.get_chat_message_content(
            history, agent.settings, kernel=agent.kernel, arguments=arguments
        )

    def stream(self, agent: Run) -> str:
        async def collect() -> str:
            parts = agent.model.get_streaming_chat_message_content(
                agent.history, agent.settings, kernel=agent.kernel
            )
            return "".join(
                [
                    f"{part.model_dump()} {[item.inner_content for item in part.items]}"
                    async for part in parts
                ]
            )

        return asyncio.run(collect())

    def replies(self, agent: Run) -> list[ToolAnswer]:
        return [
            ToolAnswer(item.id, read(item), "error" in item.metadata or None)
            for item in agent.model.seen[-1]
        ]

    def failing_tool(self) -> Any:
        def report(key: str) -> Any:
            about = KernelFunctionMetadata(name="report", plugin_name="p", is_prompt=False)
            return FunctionResult(
                function=about, value="there is no such key", metadata={"error": "no_key"}
            )

        return report

    def target(self, agent: Run) -> Any:
        return agent.kernel


def read(item: FunctionResultContent) -> str:
    """Everything in a result: the value that the services make text of, and the copy inside."""
    inner = (
        item.inner_content.value
        if isinstance(item.inner_content, FunctionResult)
        else item.inner_content
    )
    return " ".join(
        value if isinstance(value, str) else json.dumps(value, default=str)
        for value in (item.result, inner)
    )


class TestFaults(PlantedFaults):
    suite = TestSemanticKernel
    adapter = SemanticKernelAdapter


# --- What is Semantic Kernel's own ----------------------------------------------------------------


def look_up(key: str) -> str:
    """Look something up."""
    return f"value of {key}, {SECRET}"


def fall(key: str) -> str:
    """Raise."""
    raise ValueError("no luck")


def governed(guard: Edictum, tools: Any, *calls: ScriptedCall, **options: Any) -> Run:
    run = Run(tools, [calls])
    SemanticKernelAdapter(guard, **options).register(run.kernel)
    return run


async def ask(run: Run, **options: Any) -> Any:
    return await run.model.get_chat_message_content(
        run.history, run.settings, kernel=run.kernel, **options
    )


async def test_an_agent_with_plugins_of_its_own_is_governed() -> None:
    """The agent makes a copy of the kernel, which keeps the filters."""
    guard = Edictum(contracts=[no_forbidden, no_secret("redact", redact=without_secret)])
    run = Run(
        [],
        [
            [
                ScriptedCall("look_up", {"key": "forbidden"}, "c1"),
                ScriptedCall("look_up", {"key": "a"}, "c2"),
            ]
        ],
    )
    adapter = SemanticKernelAdapter(guard)
    adapter.register(run.kernel)
    plugin = KernelPlugin("p", functions=kernel_function(look_up))
    agent = ChatCompletionAgent(
        kernel=run.kernel,
        service=run.model,
        name="a",
        plugins=[plugin],
        function_choice_behavior=FunctionChoiceBehavior.Auto(),
    )
    await agent.get_response(messages="go")
    assert sorted(item.result for item in run.model.seen[-1]) == [
        "DENIED: The key is forbidden.",
        "value of a, [GONE]",
    ]
    assert adapter.self_test(agent) == "governed"


async def test_a_denial_can_end_the_run() -> None:
    guard = Edictum(contracts=[no_forbidden])
    run = governed(
        guard,
        [look_up],
        ScriptedCall("look_up", {"key": "forbidden"}, "c1"),
        terminate_on_deny=True,
    )
    answer = await ask(run)
    assert len(run.model.seen) == 1, "the model was asked again"
    assert "DENIED" in str(answer.items[0].result)
    go_on = governed(
        Edictum(), [look_up], ScriptedCall("look_up", {"key": "a"}, "c1"), terminate_on_deny=True
    )
    await ask(go_on)
    assert len(go_on.model.seen) == 2


async def test_a_failure_that_a_function_deals_with_is_its_own_business() -> None:
    """The inner function is invoked from code, not by the model: it is no call of its own, and its
    exception is not the outer one's.
    """
    guard = Edictum()
    run = Run([], [[ScriptedCall("outer", {"key": "a"}, "c1")]])

    async def outer(key: str) -> str:
        try:
            await run.kernel.invoke(
                plugin_name="p", function_name="fall", arguments=KernelArguments(key=key)
            )
        except Exception:
            return "dealt with"
        return "it did not raise"

    for function in (outer, fall):
        run.kernel.add_function("p", kernel_function(name=function.__name__)(function))
    SemanticKernelAdapter(guard).register(run.kernel)
    await ask(run)
    assert run.model.seen[-1][0].result == "dealt with"
    assert list_actions(guard) == ["call_allowed", "call_executed"]
    assert get_last_event(guard).tool_args == {"key": "a"}


@pytest.mark.parametrize(
    "kind", [FilterTypes.AUTO_FUNCTION_INVOCATION, FilterTypes.FUNCTION_INVOCATION]
)
@pytest.mark.parametrize("first", [True, False], ids=["around ours", "inside ours"])
async def test_what_another_filter_raises_goes_where_it_went_and_is_a_failure(
    kind: Any, first: bool
) -> None:
    async def broken(context: Any, next: Any) -> None:
        await next(context)
        raise RuntimeError("the filter is broken")

    ends, guard = [], Edictum()
    for adapter in (None, SemanticKernelAdapter(guard)):
        run = Run([look_up], [[ScriptedCall("look_up", {"key": "a"}, "c1")]])
        if first:
            run.kernel.add_filter(kind, broken)
        if adapter is not None:
            adapter.register(run.kernel)
        if not first:
            run.kernel.add_filter(kind, broken)
        try:
            await ask(run)
            ends.append(run.model.seen[-1][0].result)
        except RuntimeError as exc:
            ends.append(str(exc))
    assert ends[0] == ends[1]
    expected = (
        "call_executed" if first and kind is FilterTypes.AUTO_FUNCTION_INVOCATION else "call_failed"
    )
    assert get_last_event(guard).action == expected


@pytest.mark.parametrize("deadline", [None, 5])
async def test_a_plain_function_runs_in_a_thread_only_under_a_deadline(
    deadline: float | None,
) -> None:
    """Without one it runs where Semantic Kernel runs it, for the sake of what belongs to a
    thread.
    """
    places: list[bool] = []

    def where(key: str) -> str:
        try:
            asyncio.get_running_loop()
            places.append(True)
        except RuntimeError:
            places.append(False)
        return key

    guard = Edictum(tools={"where": {"timeout_s": deadline}} if deadline else {})
    await ask(governed(guard, [where], ScriptedCall("where", {"key": "a"}, "c1")))
    assert places == [deadline is None]


async def test_contracts_see_the_arguments_of_the_function_only() -> None:
    guard = Edictum()
    run = governed(guard, [look_up], ScriptedCall("look_up", {"key": "a"}, "c1"))
    await ask(run, arguments=KernelArguments(request="what else the run carries"))
    assert get_last_event(guard).tool_args == {"key": "a"}


@pytest.mark.parametrize(
    "call",
    [ScriptedCall("nosuch", {}, "c1"), ScriptedCall("look_up", {"wrong": 1}, "c1")],
    ids=["unknown tool", "bad arguments"],
)
async def test_what_semantic_kernel_itself_refuses_is_nobody_s_call(call: ScriptedCall) -> None:
    guard = Edictum()
    run = governed(guard, [look_up], call)
    await ask(run)
    assert list_actions(guard) == []
    assert run.model.seen[-1][0].id == "c1"


def test_an_unsupported_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SemanticKernelAdapter, "requires", {"semantic-kernel": ("7.0", "8")})
    with pytest.raises(
        EdictumConfigError, match=r"supports semantic-kernel>=7\.0,<8; installed is 1\."
    ):
        SemanticKernelAdapter(Edictum()).register(Kernel())


async def test_a_call_counts_once_however_often_the_filter_is_registered() -> None:
    guard = Edictum(contracts=[no_forbidden, no_secret("redact", redact=without_secret)])
    adapter = SemanticKernelAdapter(guard)
    run = Run(
        [look_up, fall],
        [
            [
                ScriptedCall("look_up", {"key": "a"}, "c1"),
                ScriptedCall("look_up", {"key": "forbidden"}, "c2"),
                ScriptedCall("fall", {"key": "a"}, "c3"),
            ]
        ],
    )
    for _ in range(2):
        adapter.register(run.kernel)
    await ask(run)
    assert guard.session(adapter.session_id).attempts == 3
    assert {event.call_id: str(event.action) for event in guard.local_sink.events} == {
        "c1": "call_executed",
        "c2": "call_denied",
        "c3": "call_failed",
    }


class TestExample(ExampleAndPage):
    name = "semantic_kernel"
