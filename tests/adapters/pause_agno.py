"""The worker of the tests about Agno's confirmation; see pausing.py."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agno.agent import Agent
from agno.db.json import JsonDb
from agno.models.base import Model
from agno.models.response import ModelResponse
from pausing import PAUSED, STORED, TOLD, list_names, run_worker

from edictum import Edictum
from edictum.adapters import AgnoAdapter

# a confirmation is a yes or a no, and where that does not count the call waits
CASES = tuple(
    case for case in dict.fromkeys((*STORED, *TOLD)) if case not in ("unanswered", "unverified")
)


@dataclass
class CallsOnce(Model):
    """Calls the tool, then says what it answered."""

    id: str = "scripted"

    async def ainvoke(self, messages: Any, *_: Any, **__: Any) -> ModelResponse:
        last = messages[-1]
        if last.role != "user":
            return ModelResponse(role="assistant", content=str(last.content))
        calls = [_make_call(name) for name in list_names(str(last.content))]
        return ModelResponse(role="assistant", tool_calls=calls)

    def invoke(self, *_: Any, **__: Any) -> ModelResponse:
        raise NotImplementedError

    def invoke_stream(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def ainvoke_stream(self, *_: Any, **__: Any) -> AsyncIterator[ModelResponse]:
        raise NotImplementedError
        yield

    def _parse_provider_response(self, response: Any, **_: Any) -> Any:
        return response

    def _parse_provider_response_delta(self, response: Any) -> Any:
        return response


def _make_call(name: str) -> dict[str, Any]:
    function = {"name": "delete", "arguments": json.dumps({"name": name})}
    return {"id": f"call-{name}", "type": "function", "function": function}


class Agno:
    def __init__(self, guard: Edictum, folder: Path, delete: Any) -> None:
        db = JsonDb(db_path=str(folder / "agno"))
        agent = Agent(model=CallsOnce(), tools=[delete], db=db, telemetry=False)
        self.agent: Agent = AgnoAdapter(guard).govern(agent)
        self.folder = folder

    async def start(self, case: str) -> str:
        run = await self.agent.arun(case, session_id=case)
        (self.folder / f"run-{case}").write_text(str(run.run_id))
        return PAUSED if run.is_paused else str(run.content)

    async def go_on(self, case: str, told: bool | None) -> str:
        run_id = (self.folder / f"run-{case}").read_text()
        paused = await self.agent.aget_run_output(run_id, session_id=case)
        assert paused is not None
        for requirement in paused.active_requirements:
            requirement.reject("Not now.") if told is False else requirement.confirm()
        if not paused.is_paused:  # it went on before
            return str(paused.content)
        about: Any = {"run_id": run_id, "session_id": case, "requirements": paused.requirements}
        run = await self.agent.acontinue_run(**about)
        return PAUSED if run.is_paused else str(run.content)


if __name__ == "__main__":
    run_worker(Agno, CASES)
