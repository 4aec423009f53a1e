"""Ten official clients of one server behind ``edictum mcp-proxy --http``, told apart by tokens."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.exceptions import MCPError
from mcp_processes import free_port, listening, proxy
from mcp_types import ElicitResult

from edictum import Edictum
from edictum.adapters.mcp import MCPAdapter
from edictum.cli._mcp_gateway import Gateway
from edictum.cli._mcp_tokens import TokenError, TokenVerifier, make_jwt_verifier
from edictum.errors import EdictumConfigError

pytestmark = pytest.mark.s1  # needs mcp
UPSTREAM = str(Path(__file__).with_name("mcp_governed_upstream.py"))
ISSUER, AUDIENCE = "https://issuer.example", "https://proxy.example/mcp"
KEY = ec.generate_private_key(ec.SECP256R1())
RULES = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {name: clients}
defaults: {mode: enforce, unlisted_tools: deny}
tools:
  lookup: {side_effect: read}
  refund: {side_effect: irreversible}
  wipe: {side_effect: irreversible}
  update: {side_effect: write}
  mcp.resources.read: {side_effect: read}
contracts:
  - {id: no-wiping, type: pre, tool: wipe, then: {effect: deny, message: "Nobody wipes."}}
  - {id: ask, type: pre, tool: refund, then: {effect: approve, message: "Refund?"}}
  - id: only-admins
    type: pre
    tool: update
    when: {not: {principal.role: {equals: admin}}}
    then: {effect: deny, message: "Only admins."}
  - id: three-lookups
    type: session
    limits: {max_calls_per_tool: {lookup: 3}}
    then: {effect: deny, message: "Three lookups for each."}
  - id: no-ssn
    type: post
    tool: "*"
    when: {output.text: {matches: '\\b\\d{3}-\\d{2}-\\d{4}\\b'}}
    then: {effect: redact, message: "A social security number."}
"""
BACKEND = """\
from edictum.approval import InMemoryApprovalBackend

def decide(request):
    with open("asked.txt", "a") as file:
        file.write(f"{request.principal['user_id']}\\n")
    return request.tool_args["amount"] < 50

backend = InMemoryApprovalBackend(answer=decide)
"""


def write_keys(folder: Path) -> Path:
    key = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key()))
    file = folder / "keys.json"
    file.write_text(json.dumps({"keys": [{**key, "kid": "one", "alg": "ES256", "use": "sig"}]}))
    return file


def make_token(user: str, key: Any = KEY, kid: str = "one", **claims: Any) -> str:
    stated = {"sub": user, "iss": ISSUER, "aud": AUDIENCE, "exp": int(time.time()) + 600, **claims}
    return jwt.encode(stated, key, algorithm="ES256", headers={"kid": kid})


async def accept(context: Any, params: Any) -> ElicitResult:
    assert "Refund?" in params.message
    return ElicitResult(action="accept", content={"approve": True})


@asynccontextmanager
async def connect(
    url: str, user: str, can_ask: bool = False, mode: str = "legacy", **claims: Any
) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {make_token(user, **claims)}"}
    ask = {"elicitation_callback": accept} if can_ask else {}
    async with (
        create_mcp_http_client(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, **ask) as client,
    ):
        yield client


@contextmanager
def serve(folder: Path, monkeypatch: pytest.MonkeyPatch, rules: str = RULES) -> Iterator[str]:
    (folder / "rules.yaml").write_text(rules)
    (folder / "approving.py").write_text(BACKEND)
    write_keys(folder)
    monkeypatch.chdir(folder)
    up, port = free_port(), free_port()
    options = (
        *("--http", str(port), "--jwks", "keys.json", "--token-issuer", ISSUER),
        *("--token-audience", AUDIENCE, "--audit", "audit.jsonl", "--pins", "pins.json"),
        *("--approvals", "client", "--approvals", "approving:backend", "--environment", "test"),
    )
    to = [f"http://127.0.0.1:{up}/mcp"]
    with (
        listening([sys.executable, UPSTREAM, str(up)], up),
        listening(proxy(Path("rules.yaml"), *options, to=to), port) as url,
    ):
        yield url


def has_failed(result: Any) -> bool:
    return bool(result.is_error)


async def use_as(url: str, number: int) -> dict[str, Any]:
    """Use the server as one client: the even ones can ask the person behind them."""
    async with connect(url, f"user-{number}", can_ask=number % 2 == 0) as client:
        listed = sorted(tool.name for tool in (await client.list_tools()).tools)
        lookups = [await client.call_tool("lookup", {"key": "a"}) for _ in range(5)]
        refund = await client.call_tool("refund", {"amount": 40})
        large = await client.call_tool("refund", {"amount": 60})
        update = await client.call_tool("update", {})
        read = await client.read_resource("data://one")
    return {
        "listed": listed,
        "lookups": [has_failed(result) for result in lookups],
        "refunds": [has_failed(refund), has_failed(large)],
        "update": has_failed(update),
        "read": read.contents[0].text,
    }


def test_ten_clients_of_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use_all(url: str) -> list[dict[str, Any]]:
        return await asyncio.gather(*(use_as(url, number) for number in range(10)))

    async def change(url: str) -> tuple[list[str], Any, Any]:
        async with connect(url, "boss", role="admin") as client:
            await client.list_tools()
            assert not has_failed(await client.call_tool("update", {}))
            listed = sorted(tool.name for tool in (await client.list_tools()).tools)
            refused = await client.call_tool("lookup", {"key": "a"})
            other = await client.call_tool("update", {})
            return listed, refused, other

    async def refuse(url: str) -> list[int]:
        bad = [
            {},
            {"Authorization": "Bearer nonsense"},
            {"Authorization": f"Bearer {make_token('eve', aud='https://other.example')}"},
            {
                "Authorization": f"Bearer {make_token('eve', ec.generate_private_key(ec.SECP256R1()))}"
            },
        ]
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        async with httpx.AsyncClient() as client:
            return [(await client.post(url, json=ping, headers=it)).status_code for it in bad]

    with serve(tmp_path, monkeypatch) as url:
        for number, seen in enumerate(asyncio.run(use_all(url))):
            assert seen == {
                "listed": ["lookup", "refund", "update"],
                "lookups": [False] * 3 + [True] * 2,
                # the person behind a client says yes; the backend of the others up to 50
                "refunds": [False, number % 2 == 1],
                "update": True,
                "read": "the number is [REDACTED]",
            }
        listed, refused, other = asyncio.run(change(url))
        assert asyncio.run(refuse(url)) == [401] * 4
    assert listed == ["refund", "update"]
    assert has_failed(refused) and "is not the one accepted" in refused.content[0].text
    assert not has_failed(other)
    asked = sorted(Path("asked.txt").read_text().split())
    assert asked == sorted(f"user-{number}" for number in (1, 3, 5, 7, 9) for _ in range(2))
    _check_audit(Path("audit.jsonl"))


def _check_audit(file: Path) -> None:
    """Every event of a client is in its session, with its principal."""
    events = [json.loads(line) for line in file.read_text().splitlines()]
    assert {event["environment"] for event in events} == {"test"}
    assert all(event["session_id"] == event["principal"]["user_id"] for event in events)
    executed = [event for event in events if event["action"] == "call_executed"]
    for number in range(10):
        mine = [it["tool_name"] for it in executed if it["session_id"] == f"user-{number}"]
        assert mine.count("lookup") == 3
        assert mine.count("refund") == (1 if number % 2 else 2)


async def test_every_message_needs_a_token_and_a_login_does_not() -> None:
    """What passes gets the status for a server that is away."""
    verifier = TokenVerifier({"good": {"sub": "ada"}}.get)
    gateway = Gateway(MCPAdapter(Edictum()), "http://127.0.0.1:9/mcp", {}, verifier=verifier)
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    requests: dict[str, tuple[str, str, Any, int]] = {
        "message": ("POST", "/mcp", ping, 401),
        "batch": ("POST", "/elsewhere", [ping], 401),
        "call elsewhere": ("POST", "/elsewhere", {**ping, "method": "tools/list"}, 401),
        "answer": ("POST", "/elsewhere", {"jsonrpc": "2.0", "id": 1, "result": {}}, 401),
        "stream": ("GET", "/mcp", None, 401),
        "stream below": ("GET", "/mcp/", None, 401),
        **{
            f"stream at {path}": ("GET", path, None, 401)
            for path in ("/x/%2e%2e/mcp", "/.well-known/%2E./mcp", "/%2Fmcp", "/MCP", "/mcp;a=b")
        },
        "metadata": ("GET", "/.well-known/oauth-protected-resource/mcp", None, 502),
        "registration": ("POST", "/register", {"redirect_uris": []}, 502),
    }
    transport = httpx.ASGITransport(gateway)
    async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as client:
        for what, (method, path, body, status) in requests.items():
            for token in ("", "Bearer bad"):
                headers = {"authorization": token} if token else {}
                got = await client.request(method, path, json=body, headers=headers)
                assert got.status_code == status, what
        got = await client.post("/mcp", json=ping, headers={"authorization": "Bearer good"})
        assert got.status_code == 502
    await gateway.close()


async def test_tokens_are_verified_with_the_keys_of_a_file(tmp_path: Path) -> None:
    verifier = make_jwt_verifier(str(write_keys(tmp_path)), ISSUER, AUDIENCE)

    async def find(token: str) -> Any:
        return await verifier.find_principal([(b"authorization", f"Bearer {token}".encode())])

    assert (await find(make_token("ada", role="admin"))).role == "admin"
    for wrong in (
        {"aud": "https://other.example"},
        {"iss": "https://other.example"},
        {"exp": int(time.time()) - 600},
        {"kid": "two"},
        {"sub": ""},
    ):
        with pytest.raises(TokenError):
            await find(make_token(**{"user": "ada", **wrong}))
    with pytest.raises(TokenError):
        await find(jwt.encode({"sub": "ada"}, "x" * 64, algorithm="HS256", headers={"kid": "one"}))
    with pytest.raises(EdictumConfigError, match="cannot be read"):
        make_jwt_verifier(str(tmp_path / "none.json"), ISSUER, AUDIENCE)


def test_clients_of_the_newer_protocol_are_asked_and_pinned_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They call before they list: the proxy lists the tools itself, under headers of its own."""

    async def use(url: str) -> list[Any]:
        async with connect(url, "ada", can_ask=True, mode="auto") as client:
            results = [await client.call_tool("refund", {"amount": 60}) for _ in range(2)]
            results += [await client.call_tool("lookup", {"key": "a"}) for _ in range(4)]
            return results

    with serve(tmp_path, monkeypatch) as url:
        results = asyncio.run(use(url))
    assert [has_failed(result) for result in results] == [False] * 5 + [True]
    pinned = json.loads(Path("pins.json").read_text())["tools"]
    assert {"refund", "lookup", "wipe"} <= pinned.keys()
    assert not Path("asked.txt").exists(), "the person behind the client was asked"


def test_a_resource_that_may_not_be_read_is_an_error_to_the_official_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = RULES.replace("  mcp.resources.read: {side_effect: read}\n", "")

    async def read(url: str) -> str:
        async with connect(url, "ada") as client:
            with pytest.raises(MCPError) as caught:
                await client.read_resource("data://one")
            return str(caught.value)

    with serve(tmp_path, monkeypatch, rules) as url:
        assert "is not listed in the policy" in asyncio.run(read(url))
