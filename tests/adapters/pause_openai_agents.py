"""The worker of the tests about the SDK's interruptions; see pausing.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, RunState, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage
from pausing import PAUSED, STORED, TOLD, list_names, run_worker

from edictum import Edictum
from edictum.adapters import OpenAIAgentsAdapter

# it cannot be woken without an answer, and waits where that does not count
CASES = tuple(
    case for case in dict.fromkeys((*STORED, *TOLD)) if case not in ("unanswered", "unverified")
)


class CallsOnce(Model):
    """Calls the tool, then says what it answered."""

    async def get_response(
        self, system_instructions: Any, input: Any, *args: Any, **options: Any
    ) -> Any:
        last = input if isinstance(input, str) else input[-1]
        if isinstance(last, str) or last.get("role") == "user":
            said = last if isinstance(last, str) else last["content"]
            output = [_make_call(name) for name in list_names(said)]
        else:
            text = {"type": "output_text", "text": str(last["output"]), "annotations": []}
            about: Any = {"id": "m", "role": "assistant", "status": "completed", "type": "message"}
            output = [ResponseOutputMessage(content=[text], **about)]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


def _make_call(name: str) -> Any:
    about: Any = {"name": "delete", "type": "function_call"}
    args = json.dumps({"name": name})
    return ResponseFunctionToolCall(call_id=f"call-{name}", arguments=args, **about)


class OpenAIAgents:
    def __init__(self, guard: Edictum, folder: Path, delete: Any) -> None:
        self.folder = folder
        agent = Agent(name="worker", model=CallsOnce(), tools=[function_tool(delete)])
        self.agent: Any = OpenAIAgentsAdapter(guard).govern(agent)

    async def start(self, case: str) -> str:
        return await self._run(case, case)

    async def go_on(self, case: str, told: bool | None) -> str:
        state = await RunState.from_json(self.agent, json.loads(self._name(case).read_text()))
        for item in state.get_interruptions():
            if told is False:
                state.reject(item)
            else:
                state.approve(item)
        return await self._run(case, state)

    def _name(self, case: str) -> Path:
        return self.folder / f"state-{case}.json"

    async def _run(self, case: str, given: Any) -> str:
        result = await Runner.run(self.agent, given, run_config=RunConfig(group_id=case))
        if not result.interruptions:
            return str(result.final_output)
        self._name(case).write_text(json.dumps(result.to_state().to_json()))
        return PAUSED


if __name__ == "__main__":
    run_worker(OpenAIAgents, CASES)
