"""A Messages server on loopback that plays a script, in the place of Anthropic's: the real CLI of
the SDK runs against it, offline.
"""

from __future__ import annotations

import json
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Script = list[
    list[tuple[str, dict[str, Any], str]]
]  # turns of (tool, input, id); after the last one the model says "done"


class ScriptedModel:
    """``read`` is what the model was given as results, by the id of the call."""

    def __init__(self, script: Script) -> None:
        self.script, self.requests = script, 0
        self.read: dict[str, dict[str, Any]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def env(self) -> dict[str, str]:
        """The environment in which the CLI asks this server and nobody else, in a home of its
        own.
        """
        home = tempfile.mkdtemp(prefix="claude-home-")
        quiet = (
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
            "DISABLE_TELEMETRY",
            "DISABLE_AUTOUPDATER",
            "DISABLE_ERROR_REPORTING",
        )
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        own = {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "scripted",
            "HOME": home,
            "CLAUDE_CONFIG_DIR": f"{home}/.claude",
        }
        return {**own, **dict.fromkeys(quiet, "1")}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The next turn of the script. Requests without tools are the CLI's own, for titles and the
        like.
        """
        if not body.get("tools"):
            return [{"type": "text", "text": "done"}]
        self.requests += 1
        parts = [
            part
            for message in body["messages"]
            for part in message["content"]
            if isinstance(part, dict)
        ]
        self.read |= {
            part["tool_use_id"]: part for part in parts if part.get("type") == "tool_result"
        }
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        calls = self.script[turn] if turn < len(self.script) else []
        return [
            {"type": "tool_use", "id": i, "name": name, "input": args} for name, args, i in calls
        ] or [{"type": "text", "text": "done"}]


def events(number: int, model: Any, blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An answer as the stream of events in which the Messages API tells it."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "usage": usage,
    }
    told: list[dict[str, Any]] = [
        {
            "type": "message_start",
            "message": {**message, "stop_reason": None, "stop_sequence": None},
        }
    ]
    for index, block in enumerate(blocks):
        text = block["type"] == "text"
        empty = {**block, "text": ""} if text else {**block, "input": {}}
        filled = (
            {"type": "text_delta", "text": block["text"]}
            if text
            else {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        )
        told += [
            {"type": "content_block_start", "index": index, "content_block": empty},
            {"type": "content_block_delta", "index": index, "delta": filled},
            {"type": "content_block_stop", "index": index},
        ]
    why = "end_turn" if blocks[0]["type"] == "text" else "tool_use"
    ended = {
        "type": "message_delta",
        "delta": {"stop_reason": why, "stop_sequence": None},
        "usage": {"output_tokens": 1},
    }
    return [*told, ended, {"type": "message_stop"}]


def handler(model: ScriptedModel) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.reply(b"", "text/plain")

        def do_GET(self) -> None:
            self.reply(b"{}", "application/json")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            if not self.path.startswith("/v1/messages?"):
                return self.reply(json.dumps({"input_tokens": 1}).encode(), "application/json")
            blocks = model.answer(body)
            told = events(model.requests, body.get("model"), blocks)
            lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in told]
            return self.reply("".join(lines).encode(), "text/event-stream")

        def reply(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
