"""A LangChain agent whose tools are governed. It runs offline: the model plays a script.

python examples/langchain/main.py
"""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from pydantic import Field

from edictum import Edictum
from edictum.adapters import LangChainAdapter

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


class ScriptedModel(BaseChatModel):
    """Stands in for a real model: plays a list of messages, and keeps what it was shown."""

    script: list[AIMessage]
    seen: list[Any] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        self.seen.append(messages)
        return ChatResult(generations=[ChatGeneration(message=self.script[len(self.seen) - 1])])


@tool
def read_file(path: str) -> str:
    """Read a file."""
    return f"{path}: Ada Lovelace, 123-45-6789"


def ask(*paths: str) -> AIMessage:
    """A turn in which the model asks for files, all at once."""
    calls = [
        {"name": "read_file", "args": {"path": path}, "id": f"call_{path}", "type": "tool_call"}
        for path in paths
    ]
    return AIMessage("", tool_calls=calls)


def main() -> None:
    guard = Edictum.from_yaml_string(RULES)
    adapter = LangChainAdapter(guard)

    model = ScriptedModel(
        script=[ask("/people.txt"), ask("/srv/.env"), ask("/a", "/b", "/c"), AIMessage("done")]
    )
    agent = create_agent(model, tools=[read_file], middleware=[adapter.as_middleware()])

    print("self test:", adapter.self_test(agent))
    thread = {"configurable": {"thread_id": "conversation-1"}}
    agent.invoke({"messages": [HumanMessage("Read the files.")]}, thread)

    print("the model read:")
    for message in model.seen[-1]:
        if message.type == "tool":
            print(f"  {message.status:7}  {message.content}")
    session = guard.session("conversation-1")
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
    main()
