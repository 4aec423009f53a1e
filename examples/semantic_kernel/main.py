"""A Semantic Kernel agent whose functions are governed. It runs offline: the model plays a script.

python examples/semantic_kernel/main.py
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, ClassVar

from pydantic import Field
from semantic_kernel import Kernel
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.chat_completion_client_base import ChatCompletionClientBase
from semantic_kernel.connectors.ai.function_choice_behavior import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.prompt_execution_settings import PromptExecutionSettings
from semantic_kernel.contents import ChatMessageContent, FunctionCallContent, FunctionResultContent
from semantic_kernel.functions import kernel_function

from edictum import Edictum
from edictum.adapters import SemanticKernelAdapter

RULES = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: file-reader}
defaults: {mode: enforce}
contracts:
  - id: no-dotenv
    type: pre
    tool: read_file
    when: {args.path: {ends_with: .env}}
    then: {effect: deny, message: "{args.path} holds secrets. Ask for another file."}
  - id: no-ssn
    type: post
    tool: read_file
    when: {output.text: {matches: '\\b\\d{3}-\\d{2}-\\d{4}\\b'}}
    then: {effect: redact, message: "The file holds a social security number."}
  - id: few-calls
    type: session
    limits: {max_tool_calls: 3}
    then: {effect: deny, message: "Three files are enough. Sum up what you have."}
"""


class ScriptedModel(ChatCompletionClientBase):
    """Stands in for a real model: plays a list of messages, and keeps what it was shown."""

    SUPPORTS_FUNCTION_CALLING: ClassVar[bool] = True
    script: list[Any]
    seen: list[Any] = Field(default_factory=list)

    def get_prompt_execution_settings_class(self) -> Any:
        return PromptExecutionSettings

    def _update_function_choice_settings_callback(self) -> Any:
        return lambda *_: None

    def _reset_function_choice_settings(self, settings: Any) -> None:
        """There is nothing to reset."""

    async def _inner_get_chat_message_contents(self, chat_history: Any, settings: Any) -> Any:
        self.seen.append(chat_history.messages[:])
        return [self.script[len(self.seen) - 1]]


class Files:
    @kernel_function(description="Read a file.")
    def read_file(self, path: str) -> str:
        return f"{path}: Ada Lovelace, 123-45-6789"


def ask(*paths: str) -> ChatMessageContent:
    """A turn in which the model asks for files, all at once."""
    calls = [
        FunctionCallContent(
            id=f"call_{path}", name="files-read_file", arguments=json.dumps({"path": path})
        )
        for path in paths
    ]
    return ChatMessageContent(role="assistant", items=calls)


async def main() -> None:
    script = [
        ask("/people.txt"),
        ask("/srv/.env"),
        ask("/a", "/b", "/c"),
        ChatMessageContent(role="assistant", content="done"),
    ]
    model = ScriptedModel(ai_model_id="scripted", script=script)

    guard = Edictum.from_yaml_string(RULES)
    adapter = SemanticKernelAdapter(guard)

    kernel = Kernel()
    adapter.register(kernel)
    kernel.add_plugin(Files(), "files")
    agent = ChatCompletionAgent(
        kernel=kernel,
        service=model,
        name="reader",
        function_choice_behavior=FunctionChoiceBehavior.Auto(),
    )

    print("self test:", adapter.self_test(agent))
    await agent.get_response(messages="Read the files.")

    print("the model read:")
    for item in (
        item
        for message in model.seen[-1]
        for item in message.items
        if isinstance(item, FunctionResultContent)
    ):
        print(f"  {'error' if 'error' in item.metadata else 'success':7}  {item.result}")
    session = guard.session(adapter.session_id)
    print(
        f"counted: {session.attempts} attempts, {session.executions} executions, {session.failures}"
        " failures"
    )
    print(
        "audit:",
        *(
            f"{event.action}({event.call_id})"
            for event in guard.local_sink.events
            if event.action == "call_denied"
        ),
    )


if __name__ == "__main__":
    asyncio.run(main())
