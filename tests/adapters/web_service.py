"""The example service in processes of its own, its clients, and what it has written down."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from edictum import sessions
from edictum.sessions.session import Session
from support.processes import ROOT, load_module
from support.servers import free_port
from support.waiting import wait_until

EXAMPLE = ROOT / "examples" / "web_service"
tokens = load_module(EXAMPLE / "tokens.py")
CLOSING = {"call_executed", "call_failed", "call_paused"}
CONNECTIONS = 200
# Short leases, for a worker that is killed; a store that is slow because the machine is busy is
# waited for, and not taken for one that is down.
STORE_OPTIONS = "lease=5s&wait=60s"


@dataclass
class Service:
    """A running service: where it listens, and where it keeps its files."""

    url: str
    data: Path
    process: subprocess.Popen[bytes]
    log: Path
    ledger: Any = None
    _tokens: Any = field(init=False)

    def __post_init__(self) -> None:
        self._tokens = tokens.Tokens.open(self.data / "token.key")
        self.ledger = sessions.open(get_store(self.data))

    def authorize(self, user: str, role: str = "customer") -> dict[str, str]:
        token = self._tokens.make(tokens.Caller(user, role))
        return {"Authorization": f"Bearer {token}"}

    def make_client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=CONNECTIONS)
        return httpx.AsyncClient(base_url=self.url, limits=limits, timeout=120)

    async def say(
        self, client: httpx.AsyncClient, user: str, text: str, conversation: str = "c"
    ) -> dict[str, Any]:
        path, headers = f"/conversations/{conversation}/messages", self.authorize(user)
        answer = await client.post(path, json={"text": text}, headers=headers)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def find_workers(self) -> set[int]:
        """Return the workers that answer, asked by connections of their own."""
        return {answer["worker"] for _ in range(12) if (answer := self.check_health()) is not None}

    def check_health(self) -> dict[str, Any] | None:
        with contextlib.suppress(httpx.HTTPError):
            answer = httpx.get(f"{self.url}/health", timeout=5)
            return answer.json() if answer.status_code == 200 else None
        return None

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    # --- What was written down

    def read_refunds(self, prefix: str) -> list[dict[str, Any]]:
        """Return the refunds that were made: each is a line that the tool itself has written."""
        lines = read_lines([self.data / "refunds.jsonl"])
        return [line for line in lines if line["session"].startswith(prefix)]

    def read_audit(self, prefix: str, pid: int | None = None) -> list[dict[str, Any]]:
        """Return the events of all workers, or of one."""
        lines = read_lines(self.data.glob(f"audit-{pid or '*'}.jsonl"))
        return [line for line in lines if line["session_id"].startswith(prefix)]

    def count_audit_bytes(self, pid: int) -> int:
        """Return how much a worker has written; reading it would hold up those who ask."""
        path = self.data / f"audit-{pid}.jsonl"
        return path.stat().st_size if path.exists() else 0

    def count_session(self, session_id: str) -> Any:
        return Session(session_id, self.ledger).snapshot().totals

    def count_person(self, user: str) -> Any:
        return Session.of_scope("principal", user, self.ledger).snapshot().totals


def read_lines(paths: Iterable[Path]) -> list[dict[str, Any]]:
    texts = [path.read_text(encoding="utf-8") for path in paths if path.exists()]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def get_store(data: Path) -> str:
    return f"sqlite:///{data / 'sessions.db'}?{STORE_OPTIONS}"


@contextlib.contextmanager
def serve(directory: Path, workers: int = 2, *options: str) -> Iterator[Service]:
    """Start the service by its command, in a directory that has nothing to do with it."""
    port, data, elsewhere = free_port(), directory / "data", directory / "elsewhere"
    data.mkdir()
    elsewhere.mkdir()
    command = [sys.executable, str(EXAMPLE / "run.py"), "--port", str(port), "--data", str(data)]
    environment = {**os.environ, "EDICTUM_STORE": get_store(data)}
    environment["PYTHONPATH"] = str(ROOT / "src")
    log = directory / "log.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--workers", str(workers), *options],
            cwd=elsewhere,
            env=environment,
            stdout=output,
            stderr=output,
        )  # fmt: skip - one line for what is run, one for where
    service = Service(f"http://127.0.0.1:{port}", data, process, log)
    try:
        wait_until(lambda: len(service.find_workers()) == workers or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield service
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)
        asyncio.run(service.ledger.close())


# --- What the audit says --------------------------------------------------------------------------


def find_open_calls(events: list[dict[str, Any]]) -> dict[str, str]:
    """Return the calls that were allowed and have no end, with their sessions; no call may have
    two.
    """
    ends: Counter[str] = Counter()
    allowed: dict[str, str] = {}
    for event in events:
        if event["action"] in ("call_allowed", "call_approval_granted"):
            allowed[event["call_id"]] = event["session_id"]
        ends[event["call_id"]] += event["action"] in CLOSING
    assert max(ends.values(), default=0) <= 1
    return {call: session for call, session in allowed.items() if not ends[call]}


def find_strangers(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events whose principal is not the user to whom the session belongs."""
    return [
        event
        for event in events
        if event["principal"]["user_id"] != event["session_id"].partition("/")[0]
    ]


def group_by_session(lines: list[dict[str, Any]], name: str) -> dict[str, int]:
    found: defaultdict[str, int] = defaultdict(int)
    for line in lines:
        found[line[name]] += 1
    return found
