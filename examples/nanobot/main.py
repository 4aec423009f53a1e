"""A nanobot whose tools are governed. It runs offline: the model plays a script.

python examples/nanobot/main.py
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import tiktoken
from loguru import logger
from nanobot.agent.loop import AgentLoop
from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.bus.queue import MessageBus
from nanobot.providers.base import LLMProvider, LLMResponse, ToolCallRequest
from tiktoken.registry import ENCODINGS

from edictum import Edictum
from edictum.adapters import NanobotAdapter

RULES = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: file-reader}
defaults: {mode: enforce}
contracts:
  - id: no-dotenv
    type: pre
    tool: open_file
    when: {args.path: {ends_with: .env}}
    then: {effect: deny, message: "{args.path} holds secrets. Ask for another file."}
  - id: no-ssn
    type: post
    tool: open_file
    when: {output.text: {matches: '\\b\\d{3}-\\d{2}-\\d{4}\\b'}}
    then: {effect: redact, message: "The file holds a social security number."}
  - id: few-calls
    type: session
    limits: {max_tool_calls: 3}
    then: {effect: deny, message: "Three files are enough. Sum up what you have."}
"""


class ScriptedModel(LLMProvider):
    """Stands in for a real model: plays a list of turns, and keeps what it was shown."""

    def __init__(self, script: list[LLMResponse]) -> None:
        super().__init__(provider_name="scripted")
        self.script = script
        self.seen: list[Any] = []

    def get_default_model(self) -> str:
        return "scripted"

    async def chat(self, messages: Any, *args: Any, **options: Any) -> LLMResponse:
        self.seen.append(list(messages))
        return self.script[len(self.seen) - 1]


class OpenFile(Tool):
    name = "open_file"
    description = "Read a file."
    parameters: ClassVar = {
        "type": "object",
        "properties": {"path": {"type": "string"}},
        "required": ["path"],
    }
    read_only = True

    async def execute(self, path: str) -> str:
        return f"{path}: Ada Lovelace, 123-45-6789"


def ask(*paths: str) -> LLMResponse:
    """A turn in which the model asks for files, all at once."""
    calls = [
        ToolCallRequest(id=f"call_{path}", name="open_file", arguments={"path": path})
        for path in paths
    ]
    return LLMResponse(content=None, tool_calls=calls, finish_reason="tool_calls")


def count_bytes_as_tokens() -> None:
    """Nanobot counts tokens with a vocabulary that it downloads. Offline it would try to at every
    count; bytes do for an example.
    """
    ranks = {bytes([byte]): byte for byte in range(256)}
    ENCODINGS["cl100k_base"] = tiktoken.Encoding(
        "bytes", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={}
    )


async def main() -> None:
    logger.remove()
    count_bytes_as_tokens()
    model = ScriptedModel(
        [ask("/people.txt"), ask("/srv/.env"), ask("/a", "/b", "/c"), LLMResponse(content="done")]
    )
    tools = ToolRegistry()
    tools.register(OpenFile())

    guard = Edictum.from_yaml_string(RULES)
    adapter = NanobotAdapter(guard)

    loop = AgentLoop(
        bus=MessageBus(), provider=model, workspace=Path(tempfile.mkdtemp()), tool_registry=tools
    )
    adapter.govern(loop)

    print("self test:", adapter.self_test(loop))
    await loop.process_direct("Read the files.", session_key="conversation-1")

    print("the model read:")
    for message in model.seen[-1]:
        if message["role"] == "tool":
            print(f"  {message['content'].splitlines()[0]}")
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
    asyncio.run(main())
