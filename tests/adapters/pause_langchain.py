"""The worker of the tests about LangGraph's pause; see pausing.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver, PersistentDict
from langgraph.types import Command
from pausing import PAUSED, STORED, TOLD, list_names, run_worker

from edictum import Edictum
from edictum.adapters import LangChainAdapter

CASES = tuple(dict.fromkeys((*STORED, *TOLD)))


class CallsOnce(BaseChatModel):
    """Calls the tool, then says what it answered."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: Any, *args: Any, **options: Any) -> ChatResult:
        last = messages[-1]
        said = AIMessage(last.content)
        if last.type == "human":
            names = list_names(str(last.content))
            calls: Any = [
                {"name": "delete", "args": {"name": name}, "id": f"call-{name}"} for name in names
            ]
            said = AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=said)])


class LangGraph:
    def __init__(self, guard: Edictum, folder: Path, delete: Any) -> None:
        self.files: list[PersistentDict] = []

        def open_file(*args: Any) -> PersistentDict:
            made = PersistentDict(*args, filename=str(folder / f"checkpoints-{len(self.files)}"))
            self.files.append(made)
            if Path(made.filename).exists():
                made.load()
            return made

        saver = InMemorySaver(factory=open_file)  # type: ignore[arg-type]  # it calls it
        self.agent: Any = create_agent(
            CallsOnce(),
            [StructuredTool.from_function(delete)],
            middleware=[LangChainAdapter(guard).as_middleware()],
            checkpointer=saver,
        )

    async def start(self, case: str) -> str:
        return await self._run(case, {"messages": [HumanMessage(case)]})

    async def go_on(self, case: str, told: bool | None) -> str:
        state = await self.agent.aget_state(self._name(case))
        if not state.interrupts:
            return str(state.values["messages"][-1].content)
        value: Any = "go on"
        if told is not None:
            approval_id = state.interrupts[0].value["approval_id"]
            value = {"approval_id": approval_id, "approved": told, "approver": "bob"}
        return await self._run(case, Command(resume=value))

    def _name(self, case: str) -> Any:
        return {"configurable": {"thread_id": case}}

    async def _run(self, case: str, given: Any) -> str:
        ended = await self.agent.ainvoke(given, self._name(case))
        for file in self.files:
            file.sync()
        if "__interrupt__" in ended:
            return PAUSED
        return str(ended["messages"][-1].content)


if __name__ == "__main__":
    run_worker(LangGraph, CASES)
