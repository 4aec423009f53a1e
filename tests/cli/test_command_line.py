"""The ``edictum`` command as people type it: what is wrong is said at the start, and stdout belongs
to the protocol.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edictum import EdictumConfigError
from edictum.cli._mcp_port import list_addresses, listen, parse_address
from edictum.cli.main import main

BUNDLE = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: proxied}
tools: {look: {side_effect: read}}
"""
SERVER = """\
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    result = {"content": [{"type": "text", "text": "here"}]}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""
CALL = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "tools/call",
    "params": {"name": "look", "arguments": {}},
}
ANY_URL = "http://127.0.0.1:9/mcp"  # nobody is asked


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(BUNDLE)
    return path


@pytest.fixture
def proxy(
    rules: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs ``edictum mcp-proxy`` in this process; returns the one line that it fails with."""

    def run(*arguments: str) -> str:
        monkeypatch.chdir(rules.parent)
        code = main(["mcp-proxy", "--contracts", "rules.yaml", *arguments])
        stdout, stderr = capfd.readouterr()
        assert (code, stdout, len(stderr.splitlines())) == (2, "", 1), stderr
        return stderr

    return run


def edictum(
    *arguments: str, module: str = "edictum", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("arguments", [["--version"], ["mcp-proxy", "--help"], ["no-such-command"]])
def test_the_module_is_the_command(arguments: list[str]) -> None:
    module, package = edictum(*arguments), edictum(*arguments, module="edictum.cli")
    assert (module.returncode, module.stdout, module.stderr) == (
        package.returncode,
        package.stdout,
        package.stderr,
    )
    assert "edictum" in module.stdout + module.stderr


# --- What is wrong is said at the start -----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "server", "says"),
    [
        (["--http", "foo"], ANY_URL, "--http 'foo' has no valid port. Write HOST:PORT or PORT"),
        (["--http", ""], ANY_URL, "--http '' has no valid port."),
        (["--http", "127.0.0.1:99999"], ANY_URL, "--http '127.0.0.1:99999' has no valid port."),
        (["--audit", "."], "true", "The audit file . cannot be written: "),
        (
            ["--audit", "rules.yaml/audit.jsonl"],
            "true",
            "The audit file rules.yaml/audit.jsonl cannot be written: ",
        ),
        (
            [],
            "http://host:port/mcp",
            (
                "The url 'http://host:port/mcp' has no valid host and port. Write it as"
                " https://example.com/mcp."
            ),
        ),
        ([], "ws://127.0.0.1/mcp", "'ws://127.0.0.1/mcp' is not an http:// or https:// URL."),
        ([], "https://", "The url 'https://' has no valid host and port."),
        ([], "http://[::1", "The url 'http://[::1' has no valid host and port."),
        ([], "HTTP://", "The url 'HTTP://' has no valid host and port."),
        (
            ["--header", "Bad Name: v"],
            ANY_URL,
            "--header 'Bad Name' is not a valid header name. Write it as 'Name: value'",
        ),
        (["--header", ": v"], ANY_URL, "--header '' is not a valid header name."),
        (["--header", "X-Näme: v"], ANY_URL, "--header 'X-Näme' is not a valid header name."),
        (["--header", "Name: välue"], ANY_URL, "The value of --header 'Name' cannot be sent."),
        (["--header", "Name: a\nb"], ANY_URL, "The value of --header 'Name' cannot be sent."),
        (["--header", "Name: v"], "true", "--header needs a server with a url."),
        (["--session", ""], "true", "--session '' is empty."),
        (["--session", " "], ANY_URL, "--session ' ' is empty."),
    ],
)
def test_a_wrong_option_is_one_line_and_exit_code_2(
    proxy: Callable[..., str], options: list[str], server: str, says: str
) -> None:
    assert proxy(*options, "--", server).startswith(f"edictum mcp-proxy: {says}")


def test_nothing_stands_after_a_url(proxy: Callable[..., str]) -> None:
    assert proxy("--", ANY_URL, "--http", "8080").startswith(
        "edictum mcp-proxy: Unexpected argument '--http' after the server's URL."
    )


def test_an_audit_file_of_the_bundle_is_opened_at_the_start_as_well(rules: Path) -> None:
    rules.write_text(BUNDLE + "observability: {file: rules.yaml/audit.jsonl}\n")
    done = edictum("mcp-proxy", "--contracts", "rules.yaml", "--", "true", cwd=rules.parent)
    assert (done.returncode, done.stdout) == (2, "")
    assert "The audit file rules.yaml/audit.jsonl cannot be written: " in done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- The port -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8099", ("127.0.0.1", 8099)),
        (":8099", ("127.0.0.1", 8099)),
        ("0.0.0.0:65535", ("0.0.0.0", 65_535)),
        ("[::1]:80", ("::1", 80)),
        ("example.com:0", ("example.com", 0)),
    ],
)
def test_a_port_may_stand_alone(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "host",
        "host:",
        "host:-1",
        "host:65536",
        "host:1e3",
        "host:" + "9" * 5_000,
        "host:\N{SUPERSCRIPT TWO}",
    ],
)
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(EdictumConfigError, match="has no valid port"):
        parse_address(text)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            EdictumConfigError,
            match=f"--http cannot listen on 127.0.0.1:{port}: Address already in use",
        ):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["203.0.113.9", "no-such-host.invalid", "a" * 64])
def test_a_host_that_is_not_ours_is_named(host: str) -> None:
    with pytest.raises(EdictumConfigError, match=f"--http cannot listen on {host}:0: "):
        listen(host, 0)


def test_clients_reach_the_addresses_that_are_announced() -> None:
    sockets = listen("localhost", 0)
    for announced, listening in zip(
        list_addresses(sockets, "/mcp").split(", "), sockets, strict=True
    ):
        host, port = listening.getsockname()[:2]
        assert announced == (
            f"http://[{host}]:{port}/mcp"
            if listening.family == socket.AF_INET6
            else f"http://{host}:{port}/mcp"
        )
        socket.create_connection((host, port)).close()
        listening.close()


# --- Standard output ------------------------------------------------------------------------------


def test_events_for_stdout_go_to_stderr_and_leave_the_protocol_alone(rules: Path) -> None:
    rules.write_text(BUNDLE + "observability: {stdout: true}\n")
    command = [
        sys.executable,
        "-m",
        "edictum",
        "mcp-proxy",
        "--contracts",
        str(rules),
        "--",
        sys.executable,
        "-c",
        SERVER,
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(CALL) + "\n")
        process.stdin.flush()
        first = process.stdout.readline()
        rest, errors = process.communicate(timeout=60)  # closes stdin, which ends the proxy
    said: list[Any] = [json.loads(line) for line in [first, *rest.splitlines()]]
    assert [(message.get("jsonrpc"), message.get("id")) for message in said] == [("2.0", 7)]
    assert "the contracts state no limit of calls" in errors
    events = [json.loads(line) for line in errors.splitlines() if line.startswith("{")]
    assert "call_executed" in [event["action"] for event in events]
    assert {event["tool_name"] for event in events} == {"look"}
