"""The relay of ``edictum mcp-proxy`` and those who do not keep to the protocol: nothing passes
unjudged, nothing ends it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from edictum import Edictum
from edictum.adapters.mcp import MCPAdapter
from edictum.cli._mcp_relay import Relay
from edictum.cli._mcp_wire import (
    find_unread_id,
    is_answer,
    iter_lines,
    normalize_id,
    parse_json,
)
from edictum.testing.adapter import SECRET, no_secret, without_secret
from support.waiting import wait_until

CALL = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "tools/call",
    "params": {"name": "look", "arguments": {}},
}
RESULT = {"content": [{"type": "text", "text": f"it is {SECRET}"}]}
ANSWER = {"jsonrpc": "2.0", "id": 7, "result": RESULT}


def redacting() -> Edictum:
    return Edictum(contracts=[no_secret("redact", redact=without_secret)])


class Wire:
    """A relay whose two ends are lists."""

    def __init__(self) -> None:
        self.client: list[Any] = []
        self.server: list[Any] = []
        self.asked, self.told = asyncio.Event(), asyncio.Event()
        self.adapter = MCPAdapter(redacting())
        self.relay = Relay(self.adapter, self.to_client, self.to_server)

    async def to_client(self, message: Any) -> None:
        self.client.append(json.loads(json.dumps(message)))
        self.told.set()

    async def to_server(self, message: Any) -> None:
        self.server.append(json.loads(json.dumps(message)))
        self.asked.set()

    async def call(self) -> None:
        await self.relay.from_client(CALL)
        await asyncio.wait_for(self.asked.wait(), 30)

    async def counted(self) -> int:
        await asyncio.wait_for(self.told.wait(), 30)
        return int(self.adapter.guard.session(self.adapter.session_id).executions)


def deep(levels: int = 100_000) -> str:
    return "[" * levels + "]" * levels


# --- Answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said", [{"id": "7"}, {"id": 7.0}, {"id": " 7"}, {"method": "x"}], ids=repr
)
async def test_an_answer_under_another_form_of_its_id_is_judged_and_counted(said: Any) -> None:
    wire = Wire()
    await wire.call()
    await wire.relay.from_server({**ANSWER, **said})
    assert await wire.counted() == 1
    assert [(message["id"], SECRET in json.dumps(message)) for message in wire.client] == [
        (7, False)
    ]


@pytest.mark.parametrize("together", [True, False])
async def test_a_second_answer_is_dropped(together: bool) -> None:
    wire = Wire()
    await wire.call()
    if together:  # the second comes while the first is judged
        await wire.relay.from_server([ANSWER, ANSWER])
    else:
        await wire.relay.from_server(ANSWER)
        await wire.counted()
        await wire.relay.from_server(ANSWER)
    assert await wire.counted() == 1
    assert len(wire.client) == 1 and SECRET not in json.dumps(wire.client)


async def test_an_answer_passes_only_to_an_open_request_and_under_its_id() -> None:
    wire = Wire()
    await wire.relay.from_client({"jsonrpc": "2.0", "id": 3, "method": "ping"})
    for message_id in (4, None, "x", "3", 3):
        await wire.relay.from_server({"jsonrpc": "2.0", "id": message_id, "result": {}})
    await wire.relay.from_server({"jsonrpc": "2.0", "result": RESULT})
    assert wire.client == [{"jsonrpc": "2.0", "id": 3, "result": {}}]


async def test_what_the_server_says_of_its_own_accord_passes() -> None:
    wire = Wire()
    said = [
        {"jsonrpc": "2.0", "method": "notifications/message", "params": {}},
        {"jsonrpc": "2.0", "id": 7, "method": "roots/list"},
    ]
    await wire.call()
    await wire.relay.from_server(said)
    assert wire.client == said
    await wire.relay.close()


async def test_when_the_server_is_lost_everything_that_waits_for_it_has_failed() -> None:
    wire = Wire()
    await wire.relay.from_client({"jsonrpc": "2.0", "id": 3, "method": "ping"})
    wire.asked.clear()
    await wire.call()
    await wire.relay.fail_all("It is gone.")
    assert {message["id"]: message["error"]["message"] for message in wire.client} == {
        3: "It is gone.",
        7: "It is gone.",
    }
    assert wire.adapter.guard.local_sink.last().action == "call_failed"


# --- Odd messages of the client -------------------------------------------------------------------


@pytest.mark.parametrize("params", [["x"], "x", 5, None, {"requestId": [1]}])
async def test_a_cancellation_in_an_odd_form_passes_and_ends_nothing(params: Any) -> None:
    wire = Wire()
    message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
    await wire.relay.from_client(message)
    assert wire.server == [message]


async def test_what_is_no_message_or_cannot_be_written_is_answered() -> None:
    wire = Wire()
    nested: Any = []
    for _ in range(100_000):
        nested = [nested]
    await wire.relay.from_client(
        [
            5,
            {"jsonrpc": "2.0", "id": 1, "method": "x", "params": nested},
            {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        ]
    )
    assert [(message["id"], message["error"]["code"]) for message in wire.client] == [
        (None, -32600),
        (1, -32600),
    ]
    assert [message["method"] for message in wire.server] == ["ping"]


async def test_a_call_that_cannot_be_written_is_answered_and_its_id_is_free_again() -> None:
    wire = Wire()

    async def fails(message: Any) -> None:
        raise RecursionError

    wire.relay._to_server = fails
    await wire.relay.from_client(CALL)
    await asyncio.wait_for(wire.told.wait(), 30)
    assert "error" in wire.client[0]
    assert not wire.relay._asked


# --- What is in an answer -------------------------------------------------------------------------


def judged(answer: Any) -> tuple[Any, Edictum]:
    guard = redacting()

    async def forward(message: Any) -> Any:
        return answer

    return asyncio.run(MCPAdapter(guard).answer(CALL, forward)), guard


FINE = {"content": [{"type": "text", "text": "fine"}]}


@pytest.mark.parametrize(
    ("said", "redacted"),
    [
        ({"result": {**FINE, "toolResult": SECRET}}, True),
        ({"result": {**FINE, "_meta": {"fastmcp_note": SECRET}}}, True),
        ({"result": {**FINE, "_meta": {"fastmcp": {"note": SECRET}}}}, True),
        ({"result": {**FINE, "_meta": {"io.modelcontextprotocol/note": SECRET}}}, True),
        ({"result": FINE, "error": None, "note": SECRET}, False),
        ({"result": FINE, "error": {"code": 1, "message": SECRET}}, False),
        ({"result": {**FINE, "_meta": SECRET}}, False),
        ({"result": {**FINE, "isError": SECRET}}, False),
        ({"result": {"resultType": "input_required", "requestState": "s", **RESULT}}, False),
        ({"error": {"code": SECRET, "message": "no", "note": SECRET}}, False),
    ],
    ids=repr,
)
def test_no_part_of_an_answer_passes_unjudged(said: Any, redacted: bool) -> None:
    answer, _ = judged({"jsonrpc": "2.0", "id": 7, **said})
    assert SECRET not in json.dumps(answer)
    assert answer.keys() <= {"jsonrpc", "id", "result", "error"} and len(answer) == 3
    if redacted:  # the rest stays where it was
        assert answer["result"].keys() == {*said["result"], "isError"}
        assert answer["result"]["content"] == FINE["content"]


@pytest.mark.parametrize(
    "result",
    [{**FINE, "more": 1}, {"content": [None, 5, "x", {"no": "type"}, {"type": "text"}]}, {}, FINE],
    ids=repr,
)
def test_an_odd_result_that_nobody_objects_to_passes_as_it_is(result: Any) -> None:
    assert judged({"jsonrpc": "2.0", "id": 7, "result": result})[0]["result"] == result


# --- Reading --------------------------------------------------------------------------------------


def test_ids_are_compared_loosely_and_other_things_are_not_ids() -> None:
    assert normalize_id(7) == normalize_id("7") == normalize_id(7.0) == normalize_id("07")
    assert (
        len(
            {
                normalize_id(each)
                for each in (1, True, None, "None", "x", [1], {"a": 1}, float("nan"), float("inf"))
            }
        )
        == 9
    )
    assert (
        not is_answer({"id": 1, "method": "x"})
        and not is_answer([ANSWER])
        and is_answer({"result": {}, "method": "x"})
    )


@pytest.mark.parametrize(
    "text", ["{", deep(), "9" * 5000, b"\xff"], ids=["broken", "deep", "large", "bytes"]
)
def test_what_cannot_be_read_is_one_kind_of_error(text: Any) -> None:
    with pytest.raises(ValueError, match="not JSON, or too deep"):
        parse_json(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"id": 1, "method": "ping", "Method": "tools/call", "params": {"name": "denied"}}',
        '[{"id": 1, "method": "tools/call", "params": {"name": "a", "NAME": "denied"}}]',
        '{"id": 1, "method": "tools/call", "params": {"name": "a", "Arguments": {"a": 99}}}',
        '{"id": 1, "method": "tools/call", "params": {"name": "a", "argument\u017f": {"a": 99}}}',
    ],
    ids=["method", "name", "arguments", "long s"],
)
def test_keys_that_differ_from_those_of_a_call_in_case_are_refused(text: str) -> None:
    """A server that ignores case would read another call than the one that was judged."""
    with pytest.raises(ValueError, match="only in case"):
        parse_json(text)
    assert parse_json('{"method": "x", "params": {"arguments": {"Name": 1}}}')["method"] == "x"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"jsonrpc": "2.0", "id": 7, "result": [[', 7),
        (b'{"id":"a","result":[[', "a"),
        (b'{"result":[[,"jsonrpc":"2.0","id":7}\n', 7),
        (b'{"result":{"id":7}}\n', None),
        (b'{"result":{"id":7},"id":8,"x":1}\n', 8),
        (b'{"result":' + b"[" * 5000 + b"]" * 5000 + b',"id":8,"x":1}', 8),
        (b'{"x":"\\"id\\":7, \xff","id":"b","result":[', "b"),
        (b'{"id":7,"x":1,"id":8,"result":[', None),
        (b'{"x":"\\"id\\":7,', None),
        (b'{"id":[7],"x":', None),
        (b'[{"id":7},', None),
        (b"hello", None),
    ],
)
def test_the_id_of_what_could_not_be_read_is_found(line: bytes, found: Any) -> None:
    assert find_unread_id(line) == found


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
async def test_event_streams_have_three_kinds_of_line_ends_and_no_others(size: int) -> None:
    text = "a\u2028b\u0085c\x0cd\r\n\r\ne\rf\n\ng\n"

    async def parts() -> AsyncIterator[bytes]:
        data = text.encode()
        for start in range(0, len(data), size):
            yield data[start : start + size]
            yield b""

    assert [line async for line in iter_lines(parts())] == [
        "a\u2028b\u0085c\x0cd",
        "",
        "e",
        "f",
        "",
        "g",
    ]


# --- The process ----------------------------------------------------------------------------------

RULES = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: proxied}
defaults: {mode: enforce}
contracts:
  - id: no-ssn
    type: post
    tool: "*"
    when: {output.text: {matches: '\\d{3}-\\d{2}-\\d{4}'}}
    then: {effect: redact, message: "A social security number."}
"""
SERVER = """\
import json, sys
for line in sys.stdin:
    sys.stdout.buffer.write(eval(sys.argv[1]))
    sys.stdout.flush()
    if sys.argv[2:]:
        sys.exit(3)
"""


def proxied(
    tmp_path: Path, writes: str, *more: str, requests: bytes | None = None, answers: int = 1
) -> tuple[list[Any], int, str]:
    """What a client reads that sends its requests and waits for so many answers; the exit code;
    what was written to stderr.
    """
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    server = [sys.executable, "-c", SERVER, writes, *more]
    command = [
        sys.executable,
        "-m",
        "edictum",
        "mcp-proxy",
        "--contracts",
        str(rules),
        "--",
        *server,
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert (
            process.stdin is not None and process.stdout is not None and process.stderr is not None
        )
        process.stdin.write(requests or json.dumps(CALL).encode() + b"\n")
        process.stdin.flush()
        read_back = [json.loads(process.stdout.readline()) for _ in range(answers)]
        if not more:
            process.stdin.close()
        code = process.wait(30)
        return read_back, code, process.stderr.read().decode()


HEAD = '{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"'


def test_a_line_that_cannot_be_read_fails_its_call_and_is_not_repeated(tmp_path: Path) -> None:
    too_deep = f"""b'{HEAD}123-45-6789"}}],"structuredContent":' + b'[' * 100000 + b']' * 100000 + b'}}}}\\n'"""
    (answer,), code, said = proxied(tmp_path, "b'debug 123-45-6789\\n' + " + too_deep)
    assert (answer["id"], answer["error"]["message"], code) == (
        7,
        "The server's answer cannot be read.",
        0,
    )
    assert "123-45-6789" not in said and said.count("is not valid JSON") == 2


def test_letters_that_are_no_utf8_are_replaced(tmp_path: Path) -> None:
    (answer,), code, _ = proxied(tmp_path, f"""b'{HEAD}\\xff 123-45-6789"}}]}}}}\\n'""")
    assert (answer["result"]["content"][0]["text"], code) == ("\ufffd [REDACTED]", 0)


def test_a_server_that_dies_fails_its_calls_and_it_is_said(tmp_path: Path) -> None:
    (answer,), code, said = proxied(tmp_path, "b''", "dies")
    assert (answer["id"], answer["error"]["message"], code) == (
        7,
        "The server has ended, or cannot be reached any more.",
        1,
    )
    assert said.endswith(
        "edictum mcp-proxy: stopped, because the server has ended or cannot be reached (its exit"
        " code is 3)\n"
    )


def test_an_odd_message_of_the_client_does_not_end_it(tmp_path: Path) -> None:
    odd = [
        f'{{"jsonrpc":"2.0","id":1,"method":"x","params":{deep()}}}',
        '{"method":"notifications/cancelled","params":["x"]}',
        json.dumps(CALL),
    ]
    requests = "".join(f"{each}\n" for each in odd).encode()
    writes = f"""b'{HEAD}fine"}}]}}}}\\n' if 'tools/call' in line else b''"""
    answers, code, _ = proxied(tmp_path, writes, requests=requests, answers=2)
    assert ([answer["id"] for answer in answers], answers[0]["error"]["code"], code) == (
        [1, 7],
        -32700,
        0,
    )


def test_what_was_judged_is_what_a_server_reads_that_takes_the_first_of_doubled_names(
    tmp_path: Path,
) -> None:
    request = '{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"look",'
    request += '"arguments":{"key":"forbidden","key":"a"}}}\n'
    first = "json.loads(line, object_pairs_hook=lambda pairs: dict(reversed(pairs)))"
    writes = f"""('{HEAD}' + {first}['params']['arguments']['key'] + '"}}]}}}}\\n').encode()"""
    (answer,), _, _ = proxied(tmp_path, writes, requests=request.encode())
    assert answer["result"]["content"][0]["text"] == "a"
    bare = subprocess.run(
        [sys.executable, "-c", SERVER, writes], input=request.encode(), capture_output=True
    )
    assert b"forbidden" in bare.stdout


def test_a_signal_records_open_calls_and_stops_the_server(tmp_path: Path) -> None:
    """So clients, supervisors and containers end a server that does not go by itself."""
    names = ("rules.yaml", "audit", "called", "stopped")
    rules, audit, called, stopped = (tmp_path / name for name in names)
    rules.write_text(RULES)
    hangs = (
        "import signal, sys, time;"
        "signal.signal(signal.SIGTERM, lambda *_: (open(sys.argv[2], 'x').close(), sys.exit()));"
        "sys.stdin.readline(); open(sys.argv[1], 'x').close(); time.sleep(60)"
    )
    server = [sys.executable, "-c", hangs, str(called), str(stopped)]
    command = [sys.executable, "-m", "edictum", "mcp-proxy", "--contracts", str(rules)]
    command += ["--audit", str(audit), "--", *server]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(json.dumps(CALL).encode() + b"\n")
        process.stdin.flush()
        wait_until(called.exists)
        process.terminate()
        assert process.wait(30) == 143
        assert b"Traceback" not in process.stderr.read()
    actions = [json.loads(line)["action"] for line in audit.read_text().splitlines()]
    assert actions == ["call_allowed", "call_failed"]
    assert stopped.exists()
