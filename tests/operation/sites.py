"""A service as an operator has it: four workers of gunicorn, clients that do not stop, and the
servers behind it.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import asyncpg
import redis

from edictum import Edictum
from edictum.execution.portal import PORTAL
from support.old_program import OldProgram, unpack_old_source
from support.processes import ROOT
from support.proxy import Proxy
from support.servers import PgBouncer, Postgres, Valkey, ValkeySentinels, free_port
from support.waiting import wait_until

HERE = Path(__file__).parent
WORKERS = 4
LIMIT = 20
TRIES = 30  # of each session: more than its limit
TIMES = "wait=1s&lease=3s"  # shorter than some outages: grants that no caller was told of expire
EXPIRED = "expired:counted"  # how stores remember a call that did not end within its lease
POLICY = """\
apiVersion: edictum/v1
kind: ContractBundle
metadata: {{name: operated}}
defaults: {{mode: enforce}}
tools:
  work: {{side_effect: irreversible}}
contracts:
  - id: per-session
    type: session
    limits: {{max_tool_calls: {limit}}}
    then: {{effect: deny, message: enough}}
  - id: edition
    type: pre
    tool: work
    when: {{args.edition: {{equals: {edition}}}}}
    then: {{effect: deny, message: "edition {edition} is out"}}
"""


class Service:
    """Four workers that gunicorn has forked after the guard was made."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.port = folder, free_port()
        self.policy = folder / "contracts.yaml"
        self.audit = folder / "audit"
        self.audit.mkdir(exist_ok=True)
        self.write_policy(edition=1)
        environment = {
            **os.environ,
            "OPERATED_FOLDER": str(folder),
            "OPERATED_STORE": store,
            "PYTHONPATH": str(ROOT / "src"),
        }
        command = [sys.executable, "-m", "gunicorn", "-c", str(HERE / "gunicorn_settings.py")]
        with (folder / "log.txt").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "-b", f"127.0.0.1:{self.port}", "operated_service:app"],
                cwd=HERE,
                env=environment,
                stdout=log,
                stderr=log,
            )
        try:
            wait_until(self._has_started)
        except BaseException:
            self.stop()
            raise

    def _has_started(self) -> bool:
        assert self.process.poll() is None, self.read_log()
        with contextlib.suppress(OSError, http.client.HTTPException):
            return bool(self.ask("/health"))
        return False

    def read_log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def ask(self, path: str, **query: str) -> dict[str, Any]:
        """Return the answer of a worker, by a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", f"{path}?{urlencode(query)}")
            answer = connection.getresponse()
            read = answer.read()
            assert answer.status == 200, f"{read.decode()}\n{self.read_log()}"
            found: dict[str, Any] = json.loads(read)
            return found
        finally:
            connection.close()

    def ask_all(self) -> list[dict[str, Any]]:
        """Return how each of the four workers is, asked until each has answered."""
        found: dict[int, dict[str, Any]] = {}
        with ThreadPoolExecutor(2 * WORKERS) as threads:
            while len(found) < WORKERS:
                asked = [threads.submit(self.ask, "/health") for _ in range(2 * WORKERS)]
                for each in asked:
                    with contextlib.suppress(OSError, http.client.HTTPException):
                        answer = each.result()
                        found[answer["worker"]] = answer
        return list(found.values())

    def all_say(self, *ill: str, version: str | None = None) -> bool:
        """Return whether in every worker just these parts are not well, and the policy is this."""
        answers = self.ask_all()
        return all(
            [part["name"] for part in answer["parts"] if not part["ok"]] == [*ill]
            and (version is None or answer["policy_version"] == version)
            for answer in answers
        )

    def find_workers(self) -> set[int]:
        return {answer["worker"] for answer in self.ask_all()}

    def write_policy(self, edition: int) -> str:
        """Put a policy in place, as a deployment does; return the version that it has."""
        text = POLICY.format(limit=LIMIT, edition=edition)
        written = self.policy.with_suffix(".new")
        written.write_text(text)
        written.replace(self.policy)
        return str(Edictum.from_yaml_string(text).policy_version)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    # --- What was written down

    def count_bodies(self) -> Counter[str]:
        """Return how many bodies have run, by session; none may have run twice."""
        lines = [line.split() for line in (self.folder / "bodies.txt").read_text().splitlines()]
        assert len({call for _, call in lines}) == len(lines)
        return Counter(session for session, _ in lines)

    def read_events(self) -> tuple[list[dict[str, Any]], int]:
        """Return the events of calls in all files, and how many lines a full disk has cut."""
        events, torn = [], 0
        for path in self.audit.glob("audit.jsonl*"):
            for line in path.read_text().splitlines():
                try:
                    events.append(json.loads(line))
                except ValueError:
                    torn += 1
        return [event for event in events if event["action"].startswith("call_")], torn


class Load:
    """Clients that make one call after the other until they are told to stop."""

    CLIENTS = 4

    def __init__(self, service: Service) -> None:
        self._service = service
        self._numbers = itertools.count()
        self._stopped = threading.Event()
        self.answers: dict[str, dict[str, Any]] = {}
        self.sessions: dict[str, str] = {}  # of all calls
        self.lost: dict[str, str] = {}  # calls without an answer, and their sessions
        self._threads = [threading.Thread(target=self._run) for _ in range(self.CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            number = next(self._numbers)
            call, session = f"c{number}", f"s{number // TRIES}"
            self.sessions[call] = session
            try:
                self.answers[call] = self._service.ask("/call", session=session, call=call)
            except (OSError, http.client.HTTPException):
                self.lost[call] = session
            time.sleep(0.01)

    def wait_for_success(self, calls: int = 10) -> None:
        """Wait until as many more calls have run."""
        before = self._count_successes()
        wait_until(lambda: self._count_successes() >= before + calls)

    def _count_successes(self) -> int:
        said = [answer["outcome"] for answer in list(self.answers.values())]
        return said.count("ToolExecutionResult")

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


class Site:
    """A service, its clients and a folder; ``killed`` are the calls that died with a worker."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.store = folder, store
        self.killed: dict[str, str] = {}
        self.edition = 1
        self.origins: list[str] = []

    def serve(self) -> None:
        self.service = Service(self.folder, self.store)
        self.load = Load(self.service)

    def count_expired(self, sessions: Collection[str]) -> Counter[str]:
        """Return how many calls of each session count because their lease ran out, and were never
        heard of again.
        """
        raise NotImplementedError

    def end(self) -> None:
        self.load.stop()
        if self.service.process.poll() is None:
            self.service.stop()


class OnPostgres(Site):
    """A site whose counters are in the database of ``primary``."""

    primary: Postgres

    def count_expired(self, sessions: Collection[str]) -> Counter[str]:
        query = f"SELECT array_agg(sid) FROM edictum.ended WHERE how = '{EXPIRED}'"
        return Counter(run_sql(self.primary, query) or [])


class PostgresSite(OnPostgres):
    """PostgreSQL behind PgBouncer, behind a line that can fall silent; its tables are made by an
    older version where the history has one.
    """

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.primary = Postgres()
        stack.callback(self.primary.stop)
        self.pooler = PgBouncer(self.primary.port)
        stack.callback(self.pooler.stop)
        self.line = Proxy(self.pooler.port)
        stack.callback(self.line.close)
        options = f"pooler=transaction&{TIMES}"
        url = f"postgresql://pg@127.0.0.1:{self.line.port}/postgres?{options}"
        super().__init__(folder, url)
        self.origins = [f"postgres: {self.primary.origin}", f"pgbouncer: {self.pooler.origin}"]
        sources = folder / "old"
        sources.mkdir()
        self.old_source = unpack_old_source(sources)
        if isinstance(self.old_source, Path):
            self.start_old().end()
        else:
            self.origins.append(self.old_source)

    def start_old(self) -> OldProgram:
        """Start a program of the older version, which speaks to the database itself."""
        assert isinstance(self.old_source, Path)
        return OldProgram(self.old_source, f"{self.primary.url}?wait=10", LIMIT)


class ReplicatedSite(OnPostgres):
    """Two PostgreSQL servers: what the first one answers, the second one has on its disk."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.primary = Postgres()
        stack.callback(self.primary.stop)
        self.replica = Postgres(replica_of=self.primary)
        stack.callback(self.replica.stop)
        self.wait_for_replica()
        hosts = ",".join(f"127.0.0.1:{it.port}" for it in (self.primary, self.replica))
        super().__init__(folder, f"postgresql://pg@{hosts}/postgres?{TIMES}")
        self.origins = [f"postgres with a replica: {self.primary.origin}"]

    def wait_for_replica(self) -> None:
        """Have the primary wait for its replica with every commit."""
        run_sql(self.primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        run_sql(self.primary, "SELECT pg_reload_conf()")
        query = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        wait_until(lambda: run_sql(self.primary, query))


def run_sql(server: Postgres, query: str) -> Any:
    """Return the first value that a query gives."""

    async def run() -> Any:
        db = await asyncpg.connect(server.url)
        try:
            return await db.fetchval(query)
        finally:
            await db.close()

    return PORTAL.run(run())


class OnValkey(Site):
    """A site whose counters are in the server ``primary``."""

    primary: Valkey

    def count_expired(self, sessions: Collection[str]) -> Counter[str]:
        found = Counter[str]()
        with redis.Redis(port=self.primary.port, decode_responses=True) as client:
            for session in sessions:
                ended: Any = client.hvals(f"edictum:{{{session}}}:e:{session}")
                found[session] = sum(how.startswith(EXPIRED) for how in ended)
        return found

    def command(self, *words: str) -> None:
        """Say something to the server, as its administrator."""
        with redis.Redis(port=self.primary.port) as client:
            client.execute_command(*words)


class ValkeySite(OnValkey):
    """A Valkey, and a user whose password stands in a file."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.primary = Valkey()
        stack.callback(self.primary.stop)
        self.password_file = folder / "password"
        self.password_file.write_text("first")
        self.set_password("first")
        url = self.primary.url.replace("//", "//app@")
        options = f"password_file={self.password_file}&{TIMES}"
        super().__init__(folder, f"{url}?{options}")
        self.origins = [f"valkey: {self.primary.origin}"]

    def set_password(self, password: str) -> None:
        rule = ("on", "resetpass", f">{password}", "~edictum:*", "+@all")
        self.command("ACL", "SETUSER", "app", *rule)
        self.command("CLIENT", "KILL", "USER", "app")


class SentinelSite(OnValkey):
    """Two servers, of which sentinels name the primary: what it answers, the other one has."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.servers = ValkeySentinels()
        stack.callback(self.servers.stop)
        self.primary, self.replica = self.servers.primary, self.servers.replica
        wait_until(self.servers.have_met)
        super().__init__(folder, f"{self.servers.url}?replicas=1&{TIMES}")
        self.origins = [f"valkey: {self.servers.origin}"]

    def wait_for_promotion(self) -> None:
        """Wait until all sentinels name the other server."""
        wait_until(lambda: self.servers.find_primaries() == {self.replica.port})
        self.primary, self.replica = self.replica, self.primary
