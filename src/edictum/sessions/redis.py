"""The Redis and Valkey ledger: exact for all machines that share a server.

The counting is done by the server, in the Lua files beside this one; each operation is one script, and a batch is one pipeline.
Time is the server's. All keys of a session, and of a child's session those of its root, share a hash tag and so a cluster slot.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from edictum.core.decide import describe
from edictum.core.limits import SessionSnapshot
from edictum.errors import BackendError
from edictum.sessions.store import DEFAULT_WAIT_S, Batch, Op, Refused, Renewal, Unavailable
from edictum.sessions.wire import (
    counters_from_json,
    dumps,
    grant_from_json,
    microseconds,
    reservation_as_json,
    settlement_as_json,
    snapshot_from_json,
)

logger = logging.getLogger("edictum")

SCRIPTS = ("reserve", "settle", "renew", "snapshot", "reset")
# Answers that mean "not now": the whole batch is sent again, which changes nothing twice.
NOT_NOW = ("LOADING", "READONLY", "OOM", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "MISCONF", "NOREPLICAS", "UNKILLABLE")
LETTERS = ("a", "x", "s", "f", "c", "h")


def _script(name: str) -> str:
    folder = files("edictum.sessions") / "lua"
    own = (folder / f"{name}.lua").read_text()
    return own if name == "link" else (folder / "common.lua").read_text() + own


def tag_of(root: str) -> str:
    """What the cluster hashes: any text without a closing brace; two roots may share one."""
    return root.replace("}", "") or "_"


class RedisStore:
    """A server. ``allow_eviction`` accepts one that may throw counters away when its memory is full, which forgets executions."""

    def __init__(self, url: str, *, ttl_s: float | None = None, wait_s: float | None = None, allow_eviction: bool = False) -> None:
        parts = urlsplit(url)
        self._url = url.replace("valkey", "redis", 1) if parts.scheme.startswith("valkey") else url
        where = parts.path if parts.scheme == "unix" else f"{parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path}"
        self.name = f"{parts.scheme}://{where}"  # without credentials: it goes into reasons and logs
        self._ttl_ms = 0 if ttl_s is None else max(1, round(ttl_s * 1_000))
        self._wait_s = wait_s or DEFAULT_WAIT_S
        self._allow_eviction = allow_eviction
        self._sources = {name: _script(name) for name in (*SCRIPTS, "link")}
        self._shas = {name: sha1(source.encode(), usedforsecurity=False).hexdigest() for name, source in self._sources.items()}
        self._warned = False
        self.forget()

    def forget(self) -> None:
        self._client: redis.Redis | None = None
        self._id = uuid.uuid4().hex[:16]
        self._roots: dict[str, str] = {}

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connect(self) -> redis.Redis:
        client = redis.Redis.from_url(
            self._url,
            decode_responses=True,
            socket_timeout=self._wait_s,
            socket_connect_timeout=self._wait_s,
            retry=Retry(NoBackoff(), 0),  # repeating is the courier's business
            protocol=2,
        )
        try:
            self._set_up(client)
        except BaseException:
            client.close()
            raise
        self._client = client
        return client

    def _set_up(self, client: redis.Redis) -> None:
        """Look whether the server may be used, and load the scripts: one round trip."""
        pipeline = client.pipeline(transaction=False)
        pipeline.info("memory")
        pipeline.info("persistence")
        for source in self._sources.values():
            pipeline.script_load(source)
        memory, persistence, *_ = pipeline.execute()
        policy = memory.get("maxmemory_policy", "noeviction")
        if policy != "noeviction" and not self._allow_eviction:
            raise Refused(
                f"{self.name} evicts keys when its memory is full (maxmemory-policy {policy}): limits would be forgotten. "
                "Set it to noeviction, or add ?allow_eviction=1 to the URL."
            )
        if not self._warned and not persistence.get("aof_enabled"):
            self._warned = True
            logger.warning("%s has no append-only file: when it restarts, sessions start again from what it saved last.", self.name)

    def execute(self, batch: Batch) -> list[Any]:
        try:
            client = self._client or self._connect()
            return self._answers(client, batch.ops)
        except (RedisError, OSError, ValueError, KeyError, TypeError) as exc:
            self.close()
            raise Unavailable(describe(exc)) from exc

    def _answers(self, client: redis.Redis, ops: Sequence[Op]) -> list[Any]:
        answers: list[Any] = [None] * len(ops)
        todo = list(range(len(ops)))
        while todo:
            todo = self._round(client, ops, todo, answers)
        return answers

    def _round(self, client: redis.Redis, ops: Sequence[Op], todo: list[int], answers: list[Any]) -> list[int]:
        """Send these operations; those that must go again come back, because their session turned out to be kept elsewhere."""
        linked = self._link(client, [ops[index] for index in todo])
        pipeline = client.pipeline(transaction=False)
        sent: list[int] = []
        for index in todo:
            op = ops[index]
            if op.kind in SCRIPTS:
                try:
                    pipeline.evalsha(self._shas[op.kind], *self._arguments(op, linked))
                    sent.append(index)
                except (BackendError, UnicodeError) as exc:
                    answers[index] = exc
            elif op.kind == "sessions":
                answers[index] = self._list(client, op.step)
        again: list[int] = []
        for index, raw in zip(sent, pipeline.execute(raise_on_error=False) if sent else (), strict=True):
            if self._is_not_done(client, ops[index], raw):
                again.append(index)
            else:
                answers[index] = self._read(ops[index], raw)
        return again

    def _read(self, op: Op, raw: Any) -> Any:
        if isinstance(raw, Exception):
            return BackendError(f"The session store {self.name} refused: {describe(raw)}")
        return READERS[op.kind](op.step, raw)

    def _is_not_done(self, client: redis.Redis, op: Op, raw: Any) -> bool:
        if isinstance(raw, NoScriptError):  # somebody flushed the scripts
            client.script_load(self._sources[op.kind])
            return True
        if isinstance(raw, ResponseError):
            if str(raw).startswith(NOT_NOW):
                raise raw
            return False
        root = _moved(raw)
        if root is not None:
            self._roots[_session_of(op)] = root
        return root is not None

    def _link(self, client: redis.Redis, ops: Sequence[Op]) -> dict[str, str]:
        """Leave a note under each new child session that says where it is kept. Returns the ones that cannot be children."""
        wrong: dict[str, str] = {}
        for op in ops:
            parents: tuple[str, ...] = getattr(op.step, "parents", ())
            for child in (op.step.session_id, *parents[:-1]) if parents else ():
                if self._roots.get(child) == parents[-1]:
                    continue
                arguments = (1, f"edictum:{{{tag_of(child)}}}:h:{child}", parents[-1], self._ttl_ms)
                said = client.eval(self._sources["link"], *arguments)
                if said == "ok":
                    self._roots[child] = parents[-1]
                else:
                    what = "was used without a parent" if said == "used" else "has another root session"
                    wrong[child] = f"The session {child!r} {what} before, and cannot count in {parents[-1]!r}."
        return wrong

    def _arguments(self, op: Op, wrong: dict[str, str]) -> list[Any]:
        """KEYS and ARGV of a script, see ``common.lua``."""
        session_id = _session_of(op)
        if session_id in wrong:
            raise BackendError(wrong[session_id])
        parents: tuple[str, ...] = getattr(op.step, "parents", ())
        prefix = f"edictum:{{{tag_of(parents[-1] if parents else self._roots.get(session_id, session_id))}}}:"
        step = {**WRITERS[op.kind](op.step), "client": self._id, "number": op.number, "ttl": self._ttl_ms}
        keys = [f"{prefix}h:{sid}" for sid in (session_id, *parents)]
        return [len(keys), *keys, dumps(step), prefix]

    def _list(self, client: redis.Redis, limit: int) -> list[SessionSnapshot]:
        found: list[tuple[int, SessionSnapshot]] = []
        for name in client.scan_iter(match="edictum:{*}:h:*", count=500):
            fields: dict[Any, Any] = client.hgetall(name)
            if "root" not in fields:
                flat = [part for pair in fields.items() for part in pair]
                found.append((int(fields.get("t", 0)), _read_snapshot(name.split("}:h:", 1)[1], flat)))
        found.sort(key=lambda it: -it[0])
        return [snapshot for _, snapshot in found[:limit]]


def _session_of(op: Op) -> str:
    found: str = op.step if isinstance(op.step, str) else op.step.session_id
    return found


def _moved(raw: Any) -> str | None:
    """Where the session is kept, if not where it was looked for."""
    if isinstance(raw, str) and raw.startswith('{"moved"'):
        root: str = json.loads(raw)["moved"]
        return root
    return None


def _renewal(step: Renewal) -> dict[str, Any]:
    return {"sid": step.session_id, "call": step.call_id, "lease": microseconds(step.lease_s)}


WRITERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "reserve": reservation_as_json,
    "settle": settlement_as_json,
    "renew": _renewal,
    "snapshot": lambda sid: {"sid": sid},
    "reset": lambda sid: {"sid": sid},
}


def _read_snapshot(session_id: str, raw: Sequence[str]) -> SessionSnapshot:
    """From the flat list of a hash's fields and values, see ``common.lua``."""
    tallies: dict[str, list[int]] = {}
    amounts: dict[tuple[str, str], list[int]] = {}
    for field, value in zip(raw[::2], raw[1::2], strict=True):
        letter, _, rest = field.partition(":")
        if letter in LETTERS:
            tallies.setdefault(rest, [0] * 6)[LETTERS.index(letter)] = int(value)
        elif letter in ("S", "R"):
            length, _, both = rest.partition(":")
            cut = both.encode()[: int(length)].decode()
            amounts.setdefault((cut, both[len(cut) :]), [0, 0])["SR".index(letter)] = int(value)
    answer = {
        "tallies": [[scope, *counters] for scope, counters in tallies.items()],
        "amounts": [[scope, name, *entry] for (scope, name), entry in amounts.items()],
    }
    return snapshot_from_json(session_id, answer)


READERS: dict[str, Callable[[Any, Any], Any]] = {
    "reserve": lambda step, raw: grant_from_json(json.loads(raw), step.limits),
    "settle": lambda _, raw: counters_from_json(json.loads(raw)["counters"]),
    "renew": lambda _, raw: json.loads(raw)["renewed"] is True,
    "snapshot": _read_snapshot,
    "reset": lambda _step, _raw: None,
}
