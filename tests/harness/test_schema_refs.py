"""Schemas come from servers as well: what they refer to elsewhere is not fetched, and said to be so
before a turn begins.
"""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from turns import Bench

from edictum import EdictumConfigError
from edictum.harness import BoundedToolExecutor, ToolSpec, spec_from_mcp
from edictum.outcomes import ToolDenied, ToolExecutionResult


class Server(http.server.HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/secrets"


class Answering(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"type": "object"}')

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


async def answer(**arguments: Any) -> dict[str, Any]:
    return arguments


@pytest.mark.parametrize("place", ["inputSchema", "outputSchema"])
@pytest.mark.parametrize("keyword", ["$ref", "$schema"])
def test_a_server_cannot_make_us_open_an_address(server: Server, place: str, keyword: str) -> None:
    spec = spec_from_mcp({"name": "t", place: {"type": "object", keyword: server.url}}, answer)
    with pytest.raises(EdictumConfigError, match=server.url) as raised:
        BoundedToolExecutor([spec])
    assert str(raised.value).startswith("tool 't': ")
    assert server.asked == []


async def test_nor_in_a_turn_that_has_begun(server: Server) -> None:
    bench = Bench()
    bench.executor.tools.register(
        ToolSpec(name="t", parameters={"$ref": server.url}, function=answer, side_effect="read")
    )
    outcome = await bench.call("t")
    assert isinstance(outcome, ToolDenied)
    assert "is not fetched" in outcome.details
    assert server.asked == []


def test_a_server_cannot_make_us_read_a_file(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"type": "object"}))
    with pytest.raises(
        EdictumConfigError,
        match=r"refers to file:.* is not fetched\. Put it into the schema's '\$defs'",
    ):
        BoundedToolExecutor(
            [ToolSpec(name="t", parameters={"$ref": file.as_uri()}, function=answer)]
        )


async def test_references_within_a_schema_are_followed() -> None:
    amount = {"$id": "amount", "type": "integer"}
    schema = {
        "$id": "http://example.com/tools/",
        "properties": {"a": {"$ref": "#/$defs/amount"}, "b": {"$ref": "amount"}},
        "$defs": {"amount": amount},
    }
    bench = Bench(ToolSpec(name="t", parameters=schema, function=answer, coerce=False))
    assert isinstance(await bench.call("t", {"a": 1, "b": 2}), ToolExecutionResult)
    for wrong in ({"a": "x"}, {"b": "x"}):
        assert isinstance(await bench.call("t", wrong), ToolDenied)
