"""The worker of the tests about the Claude CLI's deferred calls; see pausing.py.

The real CLI runs, against a scripted Messages server.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from claude_agent_sdk import (
    ClaudeAgentOptions,
    ClaudeSDKClient,
    ResultMessage,
    SdkMcpTool,
    create_sdk_mcp_server,
)
from pausing import PAUSED, ROOT, list_names, run_worker

from edictum import Edictum
from edictum.adapters import ClaudeAgentSDKAdapter
from support.effort import SOAK

sys.path.append(str(ROOT / "examples" / "claude_agent_sdk"))
from scripted_model import ScriptedModel  # found by the line above

# the CLI is told no answers: those of the store count; each case takes three starts of the CLI
USUAL = ("edited", "flipped", "batch")
CASES = (*USUAL, "approved", "denied", "unanswered", "four eyes") if SOAK else USUAL
SERVER = "files"


class CallsOnce(ScriptedModel):
    """Calls the tool with the first word of the user, then says what it answered."""

    def answer(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        parts = [part for message in body["messages"] for part in _list_parts(message)]
        results = [part["content"] for part in parts if part["type"] == "tool_result"]
        case = next((part["text"][6:].strip() for part in parts if _is_case(part)), None)
        if results or case is None or not body.get("tools"):
            return [{"type": "text", "text": str(results)}]
        about = {"type": "tool_use", "name": f"mcp__{SERVER}__delete"}
        names = list_names(case)
        return [{**about, "id": f"call-{name}", "input": {"name": name}} for name in names]


def _list_parts(message: Any) -> list[Any]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _is_case(part: Any) -> bool:
    return part["type"] == "text" and part["text"].startswith("case: ")


class Claude:
    def __init__(self, guard: Edictum, folder: Path, delete: Any) -> None:
        async def handler(args: dict[str, Any]) -> Any:
            return {"content": [{"type": "text", "text": delete(args["name"])}]}

        adapter = ClaudeAgentSDKAdapter(guard)
        tool = SdkMcpTool("delete", "Delete something.", {"name": str}, handler)
        made = create_sdk_mcp_server(SERVER, tools=adapter.wrap_tools([tool], server=SERVER))
        self.folder = folder
        env = {**CallsOnce([]).env(), "HOME": str(folder), "CLAUDE_CONFIG_DIR": str(folder / "c")}
        self.options: dict[str, Any] = {
            "hooks": adapter.to_sdk_hooks(),
            "mcp_servers": {SERVER: made},
            "allowed_tools": [f"mcp__{SERVER}__delete"],
            "setting_sources": [],
            "env": env,
            "cwd": folder,
        }

    async def start(self, case: str) -> str:
        return await self._run(case, f"case: {case}")

    async def go_on(self, case: str, told: bool | None) -> str:
        return await self._run(case, "go on", resume=self._name(case).read_text())

    def _name(self, case: str) -> Path:
        return self.folder / f"session-{case}"

    async def _run(self, case: str, text: str, **options: Any) -> str:
        ended: Any = None
        async with ClaudeSDKClient(ClaudeAgentOptions(**self.options, **options)) as client:
            await client.query(text)
            async for message in client.receive_response():
                ended = message if isinstance(message, ResultMessage) else ended
        self._name(case).write_text(ended.session_id)
        return str(ended.result) if ended.deferred_tool_use is None else PAUSED


if __name__ == "__main__":
    run_worker(Claude, CASES)
