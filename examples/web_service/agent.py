"""The agent of the service: its tools, and a model that plays a script. It needs no network."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.tools import ToolRuntime, tool
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from tokens import Caller

from edictum import Edictum, Principal
from edictum.adapters import LangChainAdapter

ASKED = re.compile(
    r"(?P<verb>refund|look up) (?P<order>\S+)(?: (?P<amount>\d+))?(?: as (?P<user>\S+))?"
)


class ScriptedModel(BaseChatModel):
    """Stands in for a real model, and does what one might: it leaves out an amount that was not
    mentioned, and names another user when it is talked into it.

    "refund A1 40", "look up A1", "refund A1", "refund A1 40 as bob"; several with "and".
    """

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        last = messages[-1]
        if last.type == "human":
            calls = [make_call(found) for found in ASKED.finditer(last.text)]
            answer = AIMessage("" if calls else "Ask for: refund A1 40", tool_calls=calls)
        else:
            answer = AIMessage("Done. " + read_replies(messages)[-1]["text"])
        return ChatResult(generations=[ChatGeneration(message=answer)])


def make_call(found: re.Match[str]) -> dict[str, Any]:
    args: dict[str, Any] = {"order_id": found["order"]}
    if found["amount"]:
        args["amount"] = float(found["amount"])
    if found["user"]:
        args["user_id"] = found["user"]
    name = "issue_refund" if found["verb"] == "refund" else "look_up_order"
    return {"name": name, "args": args, "id": f"call_{os.urandom(8).hex()}", "type": "tool_call"}


def read_replies(messages: Any) -> list[dict[str, str]]:
    """Return what the model read of its calls, in their order."""
    return [
        {"id": it.tool_call_id, "status": it.status, "text": it.text}
        for it in messages
        if it.type == "tool"
    ]


def make_tools(refunds: Path) -> list[Any]:
    """Return the tools. Refunds are lines of a file, which stands for the bank."""

    @tool
    async def look_up_order(order_id: str, runtime: ToolRuntime[Caller]) -> str:
        """Tell what is known about an order of the user."""
        return f"{order_id} of {runtime.context.user_id}: delivered"

    @tool
    async def issue_refund(
        order_id: str, runtime: ToolRuntime[Caller], amount: float = 250.0
    ) -> str:
        """Refund an order of the user, in full unless an amount is given."""
        about = {"user": runtime.context.user_id, "order": order_id, "amount": amount}
        config = runtime.config["configurable"]
        line = {**about, "session": config["thread_id"], "call": runtime.tool_call_id}
        with refunds.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        await asyncio.sleep(0.02)  # the bank takes its time
        return f"{amount:g} refunded for {order_id}"

    return [look_up_order, issue_refund]


def find_principal(request: Any) -> Principal:
    """Return on whose behalf a call is made: the context of the run, which no model writes to."""
    caller: Caller = request.runtime.context
    return Principal(user_id=caller.user_id, role=caller.role)


def make_agent(guard: Edictum, refunds: Path) -> Any:
    """Return the one agent that serves all users."""
    adapter = LangChainAdapter(guard, principal=find_principal)
    agent = create_agent(
        ScriptedModel(),
        tools=make_tools(refunds),
        middleware=[adapter.as_middleware()],
        context_schema=Caller,
    )
    adapter.self_test(agent)
    return agent
