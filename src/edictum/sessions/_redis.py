"""The Redis and Valkey ledger: exact for all machines that share a server or a cluster.

The counting is done by the server, in the Lua files beside this one: each operation is one script,
and a batch is one pipeline of redis-py's client, which knows about clusters. Time is the server's.
All keys of a session, and of a child's session those of its root, share a hash tag and so a cluster
slot. A scope has a slot of its own: one server counts in all accounts of a call by one script; in a
cluster each scope takes a step of its own, the widest first.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis.asyncio import RedisCluster
from redis.exceptions import NoScriptError

from edictum.core._records import record, replace
from edictum.core.decide import describe
from edictum.core.limits import Account, Grant, Reservation, SessionSnapshot, has_mark
from edictum.errors import BackendError
from edictum.sessions._accounts import (
    in_account,
    name_in_account,
    only_looks,
    reserve_one_by_one,
)
from edictum.sessions._addresses import Credentials
from edictum.sessions._batching import (
    Operation,
    OperationKind,
    Renewal,
    StoredVersion,
    check_stored_version,
)
from edictum.sessions._redis_servers import (
    CHECK_EVERY_S,
    REMEDY,
    RedisConnection,
    RedisServer,
    get_reply,
)
from edictum.sessions._wire import compact_json, operation_as_json, read_answer, snapshot_from_json
from edictum.sessions.memory import SESSION_TTL_S

SCRIPTS = ("reserve", "settle", "renew", "snapshot", "reset")
PLAIN_SCRIPTS = ("link", "note", "unlist")  # without what the others share
LETTERS = ("a", "x", "s", "f", "c", "h")
_INDEX = "edictum:sessions"  # a sorted set: the keys of all sessions, by when they were last used
_LIST_COUNT = 500
_OLD_KEYS, _OLD_KEYS_COUNT, _OLD_KEYS_STEPS = "edictum:{*}:h:*", 10_000, 20
_SAMPLE, _SAMPLES = 100, 20
MAX_NOTES = 10_000


@record
class ChildNote:
    """What is known of a child session: where it is kept, and for how long at least."""

    root: str
    above: tuple[str, ...] = ()  # the sessions between it and its root
    keeps_ms: float = 0.0  # after a use; 0 for who only looks
    due_s: float = 0.0  # when the note is to be renewed, on the monotonic clock


class RedisStore(RedisServer):
    """A server or a cluster with the counters of sessions."""

    kept, at_risk = "sessions", "limits"
    version, readable_since = 1, 1
    version_key = "edictum:store"

    def __init__(
        self,
        url: str,
        *,
        ttl_s: float | None = SESSION_TTL_S,
        allow_eviction: bool = False,
        credentials: Credentials | None = None,
        replicas: int = 0,
        check_every_s: float = CHECK_EVERY_S,
    ) -> None:
        super().__init__(
            url,
            allow_eviction=allow_eviction,
            credentials=credentials,
            replicas=replicas,
            check_every_s=check_every_s,
        )
        self.ttl_ms = 0 if ttl_s is None else max(1, round(ttl_s * 1_000))
        self.scripts = {name: _script(name) for name in (*SCRIPTS, *PLAIN_SCRIPTS)}
        self.digests = {
            name: sha1(source.encode(), usedforsecurity=False).hexdigest()
            for name, source in self.scripts.items()
        }
        self.notes: dict[str, ChildNote] = {}  # of sessions with parents

    def connect(self) -> RedisSessions:
        return RedisSessions(self)

    def remember(self, child: str, note: ChildNote) -> None:
        if len(self.notes) >= MAX_NOTES:  # what is forgotten is asked for again
            self.notes.clear()
        self.notes[child] = note

    def note_due(self, op: Operation) -> ChildNote | None:
        """Return the note that an operation must leave under its session and under those between it
        and its root; None if the session has no parent, or its note lives long enough.

        A note lives for ``ttl`` longer than what the operation keeps alive, and is renewed when
        half of that is over. One without an end, left for a call without a lease, stays.
        """
        if op.kind not in ("reserve", "settle", "renew"):
            return None
        found, parents = self.notes.get(_session_of(op)), _parents_of(op.step)
        if parents:
            root, above = parents[-1], parents[:-1]
        elif found is not None:
            root, above = found.root, found.above
        else:
            return None
        known = found if found is not None and found.root == root else None
        if op.kind == "reserve" and only_looks(op.step):
            return None if known else ChildNote(root, above)
        keeps_ms = _lifetime_of(op.step, self.ttl_ms)
        if known:
            if keeps_ms <= known.keeps_ms and time.monotonic() < known.due_s:
                return None
            keeps_ms = max(keeps_ms, known.keeps_ms)
        due_s = time.monotonic() + self.ttl_ms / 2_000 if self.ttl_ms else math.inf
        return ChildNote(root, above, keeps_ms, due_s)


class RedisSessions(RedisConnection):
    """A client that counts. The scripts recognise repetitions by its ``_id``."""

    def __init__(self, store: RedisStore) -> None:
        super().__init__(store)
        self._store = store
        self._id = uuid.uuid4().hex[:16]

    async def _check_old_data(self) -> None:
        if not await self._client.execute_command("EXISTS", _INDEX) and await self._has_old_keys():
            version, none = self._store.version, StoredVersion(0, 0)
            check_stored_version(self._store.name, none, version, (), REMEDY)

    async def _has_old_keys(self) -> bool:
        """Return whether a version of edictum that wrote no version mark has used this database. A
        large database is sampled.
        """
        for node in self._nodes():
            cursor = 0
            for _ in range(_OLD_KEYS_STEPS):
                cursor, keys = await node.execute_command(
                    "SCAN", cursor, "MATCH", _OLD_KEYS, "COUNT", _OLD_KEYS_COUNT
                )
                if keys:
                    return True
                if int(cursor) == 0:
                    break
        return False

    # --- Operations -------------------------------------------------------------------------------

    async def _answer_all(self, ops: Sequence[Operation]) -> list[Any]:
        if any(op.kind == "reserve" and self._scopes_elsewhere(op.step) for op in ops):
            # in their order, by which scripts recognise repetitions
            return [await self._answer_one(op) for op in ops]
        return await self._send(ops)

    async def _answer_one(self, op: Operation) -> Any:
        apart = self._scopes_elsewhere(op.step) if op.kind == "reserve" else ()
        if not apart:
            return (await self._send([op]))[0]

        async def take(kind: OperationKind, step: Any) -> Any:
            (answer,) = await self._send([op.make_part(kind, step)])
            if isinstance(answer, Exception):
                raise answer
            return answer

        async def reserve(step: Reservation) -> Grant:
            return await take("reserve", step)  # type: ignore[no-any-return]  # or it raises

        taken: list[Any] = []
        try:
            return await reserve_one_by_one(
                op.step, apart, reserve, lambda step: take("settle", step), taken
            )
        except BackendError as exc:
            for step in taken:
                await take("settle", step)
            return exc

    def _scopes_elsewhere(self, step: Any) -> tuple[Account, ...]:
        """Return the accounts of a call that are in other cluster slots than its session."""
        if not isinstance(self._client, RedisCluster):
            return ()
        return tuple(it for it in getattr(step, "accounts", ()) if has_mark(it.key))

    async def _send(self, ops: Sequence[Operation]) -> list[Any]:
        """Answer operations that are one script each, with the steps that follow from them in other
        slots.
        """
        answers: list[Any] = [None] * len(ops)
        todo = list(range(len(ops)))
        unknown: set[int] = set()  # operations whose script the server did not know
        more: list[tuple[int, Operation]] = []
        while todo:
            todo = await self._run_round(ops, todo, unknown, answers, more)
        if more:
            followed = await self._send([part for _, part in more])
            for (index, _), answer in zip(more, followed, strict=True):
                if isinstance(answer, Exception):
                    answers[index] = answer
        return answers

    def _follow(self, op: Operation, reply: str) -> list[Operation]:
        """Return the operations that end or renew a call in its accounts in other cluster slots."""
        step, known = op.step, {it.key: it for it in self._scopes_elsewhere(op.step)}
        if op.kind not in ("settle", "renew") or not isinstance(self._client, RedisCluster):
            return []
        keys = dict.fromkeys([*known, *(json.loads(reply).get("elsewhere") or ())])
        if op.kind == "renew":
            name = name_in_account(step.session_id, step.call_id)
            return [op.make_part("renew", Renewal(key, name, step.lease_s)) for key in keys]
        accounts = [known.get(key) or Account(key, (), ()) for key in keys]
        return [op.make_part("settle", in_account(step, it)) for it in accounts]

    async def _run_round(
        self,
        ops: Sequence[Operation],
        todo: list[int],
        unknown: set[int],
        answers: list[Any],
        more: list[tuple[int, Operation]],
    ) -> list[int]:
        """Send these operations; return those that must be sent once more.

        ``more`` is filled with the steps that must follow in other slots, by the number of the
        operation.
        """
        wrong = await self._link_children([ops[index] for index in todo])
        sent: list[int] = []
        commands: list[tuple[Any, ...]] = []
        for index in todo:
            op = ops[index]
            if op.kind in SCRIPTS:
                try:
                    commands.append(self._command(op, wrong, by_source=index in unknown))
                    sent.append(index)
                except (BackendError, UnicodeError) as exc:
                    answers[index] = exc
            elif op.kind == "sessions":
                answers[index] = await self._list(op.step)
            else:
                for node in self._nodes():
                    await node.execute_command("TIME")
        if used := [key for index in sent for key in self._list_used_keys(ops[index])]:
            commands.append(("EVAL", self._store.scripts["note"], 1, _INDEX, *dict.fromkeys(used)))
        replies = await self._pipeline(commands)
        if used:
            get_reply(replies.pop())
        again: list[int] = []
        for index, reply in zip(sent, replies, strict=True):
            op = ops[index]
            if isinstance(reply, NoScriptError):  # the scripts were flushed, or the node is new
                unknown.add(index)
                again.append(index)
            elif (root := _find_new_root(reply)) is not None:
                self._store.remember(_session_of(op), ChildNote(root))
                again.append(index)
            else:
                answers[index] = self._read(op, reply)
                if isinstance(reply, str):
                    more += [(index, part) for part in self._follow(op, reply)]
        return again

    def _read(self, op: Operation, reply: Any) -> Any:
        if isinstance(reply, Exception):
            return BackendError(f"The session store {self._store.name} refused: {describe(reply)}")
        if op.kind == "snapshot":
            fields = dict(zip(reply[::2], reply[1::2], strict=True))
            return read_answer(op, _counters_of(fields))
        return read_answer(op, json.loads(reply))

    async def _link_children(self, ops: Sequence[Operation]) -> dict[str, str]:
        """Leave a note under each child session that says where it is kept, or renew that note.

        Returns the sessions that cannot be children, with the reason.
        """
        store = self._store
        notes: dict[tuple[str, ChildNote], tuple[Any, ...]] = {}
        for op in ops:
            if (note := store.note_due(op)) is not None:
                for number, child in enumerate((_session_of(op), *note.above)):
                    own = replace(note, above=note.above[number:])
                    notes[child, own] = self._link_command(child, own)
        wrong: dict[str, str] = {}
        replies = await self._pipeline(list(notes.values()))
        for (child, note), reply in zip(notes, replies, strict=True):
            if get_reply(reply) == "ok":
                if note.keeps_ms:
                    store.remember(child, note)
            else:
                what = (
                    "was used without a parent" if reply == "used" else "has another root session"
                )
                root = note.root
                wrong[child] = f"The session {child!r} {what} before, and cannot count in {root!r}."
        return wrong

    def _link_command(self, child: str, note: ChildNote) -> tuple[Any, ...]:
        """Return the script that leaves a note, with its KEYS and ARGV, see ``link.lua``."""
        lives_ms = note.keeps_ms + self._store.ttl_ms
        lives = "for good" if lives_ms == math.inf else round(lives_ms)
        key, looks = f"{_prefix_of(child)}h:{child}", int(not note.keeps_ms)
        return ("EVAL", self._store.scripts["link"], 1, key, note.root, lives, looks)

    def _command(self, op: Operation, wrong: dict[str, str], *, by_source: bool) -> tuple[Any, ...]:
        """Return a script with its KEYS and ARGV, see ``common.lua``."""
        store, session_id = self._store, _session_of(op)
        if session_id in wrong:
            raise BackendError(wrong[session_id])
        prefix, keys = self._session_keys(op)
        step = operation_as_json(op)
        step |= {"client": self._id, "number": op.number, "ttl": store.ttl_ms}
        if apart := [it.key for it in self._scopes_elsewhere(op.step)]:
            step["elsewhere"] = apart
            step["accounts"] = [it for it in step["accounts"] if it["sid"] not in apart]
        for account in step["accounts"]:
            if has_mark(account["sid"]):
                account["prefix"] = _prefix_of(account["sid"])
                keys.append(f"{account['prefix']}h:{account['sid']}")
        script = (
            ("EVAL", store.scripts[op.kind]) if by_source else ("EVALSHA", store.digests[op.kind])
        )
        return (*script, len(keys), *keys, compact_json(step), prefix)

    def _session_keys(self, op: Operation) -> tuple[str, list[str]]:
        """Return the prefix of a session, and the keys of it and of the sessions above it."""
        session_id, parents = _session_of(op), _parents_of(op.step)
        known = self._store.notes.get(session_id)
        prefix = _prefix_of(parents[-1] if parents else known.root if known else session_id)
        return prefix, [f"{prefix}h:{sid}" for sid in (session_id, *parents)]

    def _list_used_keys(self, op: Operation) -> list[str]:
        """Return the keys of an operation's sessions that belong in the index."""
        is_use = op.kind in ("settle", "renew") or (
            op.kind == "reserve" and not only_looks(op.step)
        )
        return self._session_keys(op)[1] if is_use and not has_mark(_session_of(op)) else []

    async def _list(self, limit: int) -> list[SessionSnapshot]:
        found: list[tuple[int, SessionSnapshot]] = []
        start = 0
        while len(found) < limit:
            listed = await self._read_index("ZREVRANGE", _INDEX, start, start + _LIST_COUNT - 1)
            if not listed:
                break
            replies = await self._pipeline([("HGETALL", key) for key in listed])
            gone: dict[str, float] = {}
            for (key, place), fields in zip(listed.items(), replies, strict=True):
                if not get_reply(fields) or "root" in fields:
                    gone[key] = place
                    continue
                session_id = key.split("}:h:", 1)[1]
                snapshot = snapshot_from_json(session_id, _counters_of(fields))
                found.append((int(fields.get("t", 0)), snapshot))
            await self._unlist(gone)
            start += len(listed) - len(gone)
        newest = sorted(found, key=lambda it: -it[0])
        return [snapshot for _, snapshot in newest[:limit]]

    async def _read_index(self, *command: Any) -> dict[str, float]:
        """Return keys of sessions with their places in the index."""
        pairs = await self._client.execute_command(*command, "WITHSCORES")
        flat = [
            part
            for pair in pairs
            for part in (pair if isinstance(pair, (list, tuple)) else (pair,))
        ]
        return {key: float(place) for key, place in zip(flat[::2], flat[1::2], strict=True)}

    async def _unlist(self, gone: Mapping[str, float]) -> None:
        if gone:
            pairs = [part for key, place in gone.items() for part in (key, f"{place:.0f}")]
            script = self._store.scripts["unlist"]
            await self._client.execute_command("EVAL", script, 1, _INDEX, *pairs)

    async def _sweep(self) -> None:
        """Remove expired sessions from the index, until few of them are left.

        A sample is looked at, as Redis itself does with keys that expire.
        """
        for _ in range(_SAMPLES):
            listed = await self._read_index("ZRANDMEMBER", _INDEX, _SAMPLE)
            replies = await self._pipeline([("EXISTS", key) for key in listed])
            found = zip(listed.items(), replies, strict=True)
            gone = dict(pair for pair, reply in found if not get_reply(reply))
            await self._unlist(gone)
            if len(gone) <= _SAMPLE // 4:
                return


def _script(name: str) -> str:
    folder = files("edictum.sessions") / "lua"
    own = (folder / f"{name}.lua").read_text()
    return own if name in PLAIN_SCRIPTS else (folder / "common.lua").read_text() + own


def tag_of(root: str) -> str:
    """Return the text that the cluster hashes. It has no closing brace; two roots may share one."""
    return root.replace("}", "") or "_"


def _prefix_of(root: str) -> str:
    return f"edictum:{{{tag_of(root)}}}:"


def _parents_of(step: Any) -> tuple[str, ...]:
    """Return the sessions above that of a step, nearest first."""
    return tuple(it.key for it in getattr(step, "accounts", ()) if not has_mark(it.key))


def _lifetime_of(step: Any, ttl_ms: int) -> float:
    """Return for how many milliseconds a step keeps the sessions it counts in, see ``keep`` in
    ``common.lua``; infinity: for good.
    """
    lease_s = getattr(step, "lease_s", 0)  # settlements have none
    if not ttl_ms or (lease_s is None and step.hold):
        return math.inf
    accounts = (step, *getattr(step, "accounts", ()))
    limits = [limit for it in accounts for limit in getattr(it, "limits", ())]
    windows_s = [limit.window_s or 0 for limit in limits]
    return max(ttl_ms, math.ceil(1_000 * max((lease_s or 0, *windows_s))))


def _session_of(op: Operation) -> str:
    found: str = op.step if isinstance(op.step, str) else op.step.session_id
    return found


def _find_new_root(reply: Any) -> str | None:
    """Return the root under which a session is really kept, if not where it was looked for."""
    if isinstance(reply, str) and reply.startswith('{"moved"'):
        root: str = json.loads(reply)["moved"]
        return root
    return None


def _counters_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return a session's hash, see ``common.lua``, as other stores answer a snapshot."""
    tallies: dict[str, list[int]] = {}
    amounts: dict[tuple[str, str], list[int]] = {}
    for field, value in fields.items():
        letter, _, rest = field.partition(":")
        if letter in LETTERS:
            tallies.setdefault(rest, [0] * 6)[LETTERS.index(letter)] = int(value)
        elif letter in ("S", "R"):
            length, _, both = rest.partition(":")
            cut = both.encode()[: int(length)].decode()
            amounts.setdefault((cut, both[len(cut) :]), [0, 0])["SR".index(letter)] = int(value)
    return {
        "tallies": [[tool, *counters] for tool, counters in tallies.items()],
        "amounts": [[tool, name, *entry] for (tool, name), entry in amounts.items()],
    }
