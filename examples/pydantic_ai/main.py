"""A Pydantic AI agent whose tools are governed. It runs offline: the model plays a script.

python examples/pydantic_ai/main.py
"""

from __future__ import annotations

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from edictum import Edictum
from edictum.adapters import PydanticAIAdapter

RULES = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: people}
defaults: {mode: enforce}
contracts:
  - id: no-boss
    type: pre
    tool: find_person
    when: {args.name: {equals: boss}}
    then: {effect: deny, message: "Nobody looks up the boss."}
  - id: no-ssn
    type: post
    tool: find_person
    when: {output.text: {matches: '\\b\\d{3}-\\d{2}-\\d{4}\\b'}}
    then: {effect: redact, message: "The record holds a social security number."}
  - id: few-calls
    type: session
    limits: {max_tool_calls: 3}
    then: {effect: deny, message: "Three people are enough. Sum up what you have."}
"""

SCRIPT = [["ada"], ["boss"], ["bob", "eve", "tim"], []]
read: list[ToolReturnPart] = []


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Stands in for a real model: asks for people, all of a turn at once, and keeps what it
    reads.
    """
    read[:] = [
        part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)
    ]
    names = SCRIPT[sum(message.kind == "response" for message in messages)]
    calls = [
        ToolCallPart("find_person", {"name": name}, tool_call_id=f"call_{name}") for name in names
    ]
    return ModelResponse(parts=calls or [TextPart("done")])


def find_person(name: str) -> dict[str, str]:
    """Find a person."""
    return {"name": name, "ssn": "123-45-6789"}


def main() -> None:
    guard = Edictum.from_yaml_string(RULES)
    adapter = PydanticAIAdapter(guard)

    agent = Agent(
        FunctionModel(scripted), tools=[find_person], capabilities=[adapter.as_capability()]
    )

    print("self test:", adapter.self_test(agent))
    agent.run_sync("Look up the people.", conversation_id="conversation-1")

    print("the model read:")
    for part in read:
        print(f"  {part.outcome:7}  {part.model_response_str()}")
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
