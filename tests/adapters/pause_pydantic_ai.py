"""The worker of the tests about Pydantic AI's deferred tools; see pausing.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pausing import PAUSED, STORED, TOLD, list_names, run_worker
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel

from edictum import Edictum
from edictum.adapters import PydanticAIAdapter

# it cannot be woken without an answer
CASES = tuple(case for case in dict.fromkeys((*STORED, *TOLD)) if case != "unanswered")


def play(history: list[Any], info: Any) -> ModelResponse:
    """Call the tool, then say what it answered."""
    last = history[-1].parts[-1]
    if isinstance(last, UserPromptPart):
        names = list_names(str(last.content))
        return ModelResponse(
            parts=[ToolCallPart("delete", {"name": it}, tool_call_id=f"call-{it}") for it in names]
        )
    assert isinstance(last, ToolReturnPart)
    return ModelResponse(parts=[TextPart(str(last.content))])


class PydanticAI:
    def __init__(self, guard: Edictum, folder: Path, delete: Any) -> None:
        self.folder = folder
        self.agent: Any = Agent(
            FunctionModel(play),
            tools=[delete],
            output_type=[str, DeferredToolRequests],
            capabilities=[PydanticAIAdapter(guard).as_capability()],
        )

    async def start(self, case: str) -> str:
        return self._keep(case, await self.agent.run(case))

    async def go_on(self, case: str, told: bool | None) -> str:
        history = ModelMessagesTypeAdapter.validate_json(self._name(case).read_bytes())
        results = DeferredToolResults(approvals={f"call-{case}": told is not False})
        options: Any = {"message_history": history, "deferred_tool_results": results}
        return self._keep(case, await self.agent.run(**options))

    def _name(self, case: str) -> Path:
        return self.folder / f"messages-{case}.json"

    def _keep(self, case: str, result: Any) -> str:
        """Write the messages down while the run is paused; return how it ended."""
        if not isinstance(result.output, DeferredToolRequests):
            return str(result.output)
        self._name(case).write_bytes(result.all_messages_json())
        (call,) = result.output.approvals
        assert result.output.metadata[call.tool_call_id]["message"] == "Delete it?"
        return PAUSED


if __name__ == "__main__":
    run_worker(PydanticAI, CASES)
