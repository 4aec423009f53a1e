"""The worker of the tests about ADK's confirmation; see pausing.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models import BaseLlm, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from pausing import PAUSED, STORED, TOLD, list_names, run_worker

from edictum import Edictum
from edictum.adapters import GoogleADKAdapter

# a confirmation is a yes or a no, and where that does not count the call waits
CASES = tuple(
    case for case in dict.fromkeys((*STORED, *TOLD)) if case not in ("unanswered", "unverified")
)
CONFIRM = "adk_request_confirmation"


class CallsOnce(BaseLlm):
    """Calls the tool, then says what it answered."""

    async def generate_content_async(self, request: Any, stream: bool = False) -> Any:
        last = request.contents[-1].parts[-1]
        parts = [types.Part(text=str(getattr(last.function_response, "response", None)))]
        if last.text is not None:
            parts = [_make_call(name) for name in list_names(last.text)]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


def _make_call(name: str) -> Any:
    call = types.FunctionCall(name="delete", args={"name": name}, id=f"call-{name}")
    return types.Part(function_call=call)


class GoogleADK:
    def __init__(self, guard: Edictum, folder: Path, delete: Any) -> None:
        self.sessions = SqliteSessionService(str(folder / "sessions.db"))
        agent = LlmAgent(name="worker", model=CallsOnce(model="scripted"), tools=[delete])
        app = App(name="app", root_agent=agent, plugins=[GoogleADKAdapter(guard).as_plugin()])
        self.runner = Runner(app=app, session_service=self.sessions)

    async def start(self, case: str) -> str:
        about = {"app_name": "app", "user_id": "u", "session_id": case}
        await self.sessions.create_session(**about)
        return await self._run(case, types.Part(text=case))

    async def go_on(self, case: str, told: bool | None) -> str:
        found = await self.sessions.get_session(app_name="app", user_id="u", session_id=case)
        assert found is not None
        asked = [call for event in found.events for call in event.get_function_calls()]
        call = next(call for call in reversed(asked) if call.name == CONFIRM)
        answer = {"confirmed": told is not False}
        response = types.FunctionResponse(id=call.id, name=CONFIRM, response=answer)
        return await self._run(case, types.Part(function_response=response))

    async def _run(self, case: str, part: Any) -> str:
        said, is_paused = "", False
        message = types.Content(role="user", parts=[part])
        async for event in self.runner.run_async(user_id="u", session_id=case, new_message=message):
            is_paused = is_paused or any(it.name == CONFIRM for it in event.get_function_calls())
            for each in event.content.parts if event.content else ():
                said = each.text or said
        return PAUSED if is_paused else said


if __name__ == "__main__":
    run_worker(GoogleADK, CASES)
