"""The queue on Redis or Valkey: a server, one that Sentinel names, or a cluster.

The rows that a batch concerns are fetched by one script, and saved by another if no other process
has changed them meanwhile; else the batch is repeated. Changes are published. Time is the server's.
All keys share a hash tag, and so a cluster slot.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from edictum.approval._fetched_rows import FetchedRows, collect_ids, collect_keys, list_steps
from edictum.approval._rows import RequestRow, StoredRow, read_row
from edictum.approval._steps import Listing, Polling, QueueStep
from edictum.approval.port import ApprovalStatus
from edictum.core.decide import describe
from edictum.errors import BackendError
from edictum.sessions._batching import Operation
from edictum.sessions._redis_servers import (
    REDIS_LOST,
    RedisConnection,
    RedisServer,
    close_client,
    is_lost,
    unavailable,
)
from edictum.sessions._wire import compact_json
from edictum.sessions.memory import SESSION_TTL_S

_PREFIX = "edictum:{approvals}:"
_COUNTER = f"{_PREFIX}counter"
_CHANNEL = f"{_PREFIX}changed"
_PAGE = 500
_SAMPLE, _SAMPLES = 100, 20
_WAITING = f"{RequestRow.kind}:{ApprovalStatus.PENDING}"  # whose leases are renewed


def _read_script(name: str) -> tuple[str, str]:
    """Return the source of a script, and the digest by which a server knows it."""
    source = (files("edictum.approval") / "lua" / f"{name}.lua").read_text()
    return source, sha1(source.encode(), usedforsecurity=False).hexdigest()


class RedisApprovalStore(RedisServer):
    """A server or a cluster with requests for approval."""

    kept, at_risk = "approvals", "approvals"
    version, readable_since = 1, 1
    version_key = f"{_PREFIX}store"
    can_push = True

    def __init__(self, url: str, *, ttl_s: float | None = SESSION_TTL_S, **options: Any) -> None:
        super().__init__(url, **options)
        self.ttl_ms = 0 if ttl_s is None else max(1, round(ttl_s * 1_000))
        self.scripts = {name: _read_script(name) for name in ("fetch", "save", "poll", "sweep")}

    def connect(self) -> RedisApprovals:
        return RedisApprovals(self)

    async def listen(self) -> AsyncGenerator[list[str], None]:
        """Yield the ids of rows that change; first an empty list, as soon as no change can be
        missed.
        """
        client = self.clients.make()  # any node of a cluster delivers what is published on another
        channel = client.pubsub()
        try:
            await channel.subscribe(_CHANNEL)
            async for told in channel.listen():
                yield [told["data"]] if told["type"] == "message" else []
        except REDIS_LOST as exc:
            raise unavailable(exc) from exc
        finally:
            await close_client(channel)
            await close_client(client)


class RedisApprovals(RedisConnection):
    """A client for the requests on a server."""

    def __init__(self, store: RedisApprovalStore) -> None:
        super().__init__(store)
        self._store = store

    async def _sweep(self) -> None:
        """Remove expired rows from the lists, until few of them are left."""
        for _ in range(_SAMPLES):
            if await self._call("sweep", _SAMPLE) <= _SAMPLE // 4:
                return

    async def _call(self, name: str, *arguments: Any) -> Any:
        """Run a script. Raises BackendError if the server refuses it as it is."""
        source, known = self._store.scripts[name]
        given = (1, _COUNTER, _PREFIX, *(_encode(it) for it in arguments))
        try:
            try:
                return await self._client.execute_command("EVALSHA", known, *given)
            except NoScriptError:  # the scripts were flushed, or the server is new
                return await self._client.execute_command("EVAL", source, *given)
        except ResponseError as exc:
            if is_lost(exc):
                raise
            raise BackendError(describe(exc)) from exc

    async def _answer_all(self, ops: Sequence[Operation]) -> list[Any]:
        taken = iter(await self._take(list_steps(ops)))
        answers: list[Any] = []
        for op in ops:
            match op.step:
                case None:
                    await self._fetch([], [])
                    answers.append(None)
                case Listing():
                    answers.append(await self._list(op.step))
                case Polling():
                    answers.append(await self._poll(op.step))
                case _:
                    answers.append(next(taken))
        return answers

    async def _take(self, steps: Sequence[QueueStep]) -> list[Any]:
        """Take steps on the newest rows; repeat until no other process has changed them
        meanwhile.
        """
        ids, keys = collect_ids(steps), collect_keys(steps)
        while steps:
            now, found = await self._fetch(ids, keys)
            fetched = FetchedRows(map(_read_fields, found), now)
            answers = [fetched.take(step) for step in steps]
            if not fetched.changed or await self._save(fetched, found, now):
                return answers
        return []

    async def _save(self, fetched: FetchedRows, found: list[list[str]], now: float) -> bool:
        """Save what has changed, unless another process has changed what that depends on."""
        seen = {row[0]: (row[1], row[2]) for row in found if row[0] in fetched.read_ids}
        rows = [_write_row(row, now, self._store.ttl_ms) for row in fetched.changed.values()]
        step = {"seen": seen, "keys": list(fetched.read_keys), "rows": rows}
        return bool(await self._call("save", _CHANNEL, compact_json(step)))

    async def _fetch(self, ids: list[str], keys: list[str]) -> tuple[float, list[list[str]]]:
        """Return the time, and each row as its id, its lease, its number and its text."""
        seconds, micros, *rows = await self._call("fetch", len(ids), *ids, *keys)
        return int(seconds) + int(micros) / 1e6, rows

    async def _poll(self, step: Polling) -> tuple[int, list[str]]:
        newest, changed = await self._call(
            "poll", step.since, _WAITING, step.lease_s, *step.renewed
        )
        return newest, changed

    async def _list(self, wanted: Listing) -> list[StoredRow]:
        place = ("-inf", "")
        if wanted.after is not None:
            _, known = await self._fetch([wanted.after], [])
            if not known:
                return []
            place = (repr(_read_fields(known[0]).asked_at), wanted.after)
        listed: list[StoredRow] = []
        offset = 0
        while len(listed) < wanted.limit:
            page = await self._read_page(wanted, place[0], offset)
            if page is None:
                break
            listed += [row for row in page if (repr(row.asked_at), row.row_id) != place]
            offset += _PAGE
        return listed[: wanted.limit]

    async def _read_page(self, wanted: Listing, start: str, offset: int) -> list[StoredRow] | None:
        """Return the next rows of a list that match; None at the end of the list."""
        key = f"{_PREFIX}list:{wanted.kind}:{wanted.status}"
        page = ("ZRANGEBYSCORE", key, start, "+inf", "LIMIT", offset, _PAGE)
        ids = await self._client.execute_command(*page)
        if not ids:
            return None
        now, found = await self._fetch(ids, [])
        rows = [_read_fields(row) for row in found]
        return [row for row in rows if _is_wanted(row, wanted, now)]


def _read_fields(found: Sequence[str]) -> StoredRow:
    """Read a row as ``fetch.lua`` returns it."""
    _, leased, _, text = found
    return read_row(text, float(leased))


def _is_wanted(row: StoredRow, wanted: Listing, now: float) -> bool:
    return (
        row.expires_at > now
        and row.status == wanted.status
        and wanted.session_id in (None, row.session_id)
        and wanted.tool_name in (None, row.tool_name)
    )


def _write_row(row: StoredRow, now: float, ttl_ms: int) -> dict[str, str]:
    """Write a row as ``save.lua`` takes it."""
    lives_ms = max(ttl_ms, (row.expires_at - now) * 1_000) if ttl_ms else math.inf
    return {
        "id": row.row_id,
        "kind": row.kind,
        "key": row.key,
        "status": row.status,
        "asked": repr(row.asked_at),
        "leased": repr(row.leased_until),
        "lives": "for good" if lives_ms == math.inf else f"{lives_ms:.0f}",
        "body": row.to_text(),
    }


def _encode(argument: Any) -> Any:
    """Return text as bytes: an id that a person has typed may be any text."""
    return argument.encode("utf-8", "surrogatepass") if isinstance(argument, str) else argument
