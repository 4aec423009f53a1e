"""What is said to a Redis server, without saying it: commands, in which order, and what their
replies mean.

A talk is a generator. It gives the commands of one round trip, by the node of the cluster they are
for, and is sent the replies, an exception standing for a refused command; what it returns is the
result. ``redis_links.py`` does the sending.
"""

from __future__ import annotations

import json
import uuid
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from hashlib import sha1
from importlib.resources import files
from itertools import cycle
from typing import Any, TypeAlias, TypeVar

from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    ClusterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from edictum.core.decide import describe
from edictum.core.limits import SessionSnapshot
from edictum.errors import BackendError
from edictum.sessions.memory import only_looks
from edictum.sessions.operations import Op, Renewal, Unavailable
from edictum.sessions.wire import (
    counters_from_json,
    dumps,
    grant_from_json,
    microseconds,
    reservation_as_json,
    settlement_as_json,
    snapshot_from_json,
)

T = TypeVar("T")
Node: TypeAlias = "tuple[str, int] | None"  # None is the server that the URL names
Command: TypeAlias = tuple[Any, ...]
Requests: TypeAlias = dict[Node, list[Command]]
Replies: TypeAlias = dict[Node, list[Any]]
Talk: TypeAlias = Generator[Requests, Replies, T]

SCRIPTS = ("reserve", "settle", "renew", "snapshot", "reset")
# Answers that mean "not now", or "not here any more": the whole batch is sent again, which changes
# nothing twice.
NOT_NOW = (AskError, ClusterDownError, OutOfMemoryError, ReadOnlyError, TryAgainError)
# Some have a class of their own and lost their first word, which ones depends on the version of
# redis-py; the others are told by it.
NOT_NOW_WORDS = (
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "TRYAGAIN",
    "UNKILLABLE",
)
LETTERS = ("a", "x", "s", "f", "c", "h")
SCAN_COUNT = 500
MAX_ROOTS = 10_000


def _script(name: str) -> str:
    folder = files("edictum.sessions") / "lua"
    own = (folder / f"{name}.lua").read_text()
    return own if name == "link" else (folder / "common.lua").read_text() + own


def tag_of(root: str) -> str:
    """What the cluster hashes: any text without a closing brace; two roots may share one."""
    return root.replace("}", "") or "_"


class Scripts:
    """The Lua files and their names on a server."""

    def __init__(self) -> None:
        self.sources = {name: _script(name) for name in (*SCRIPTS, "link")}
        self.shas = {
            name: sha1(source.encode(), usedforsecurity=False).hexdigest()
            for name, source in self.sources.items()
        }


class Slots:
    """Which node of a cluster keeps a key. A server that is no cluster is one node."""

    def __init__(self, ranges: Iterable[tuple[int, int, Node]] = ()) -> None:
        self._ranges = sorted(ranges, key=lambda it: it[0])
        self._starts = [start for start, _, _ in self._ranges]
        self.nodes: list[Node] = list(dict.fromkeys(node for _, _, node in self._ranges)) or [None]

    def node_of(self, key: str) -> Node:
        if not self._ranges:
            return None
        slot = key_slot(key.encode())
        place = bisect_right(self._starts, slot) - 1
        if place < 0 or slot > self._ranges[place][1]:
            raise Unavailable(f"no node of the cluster serves slot {slot}")
        return self._ranges[place][2]


class Talks:
    """All talks with one server or cluster, for one way to it: a store tells repetitions by who
    numbered them, hence ``_id``.
    """

    def __init__(self, name: str, scripts: Scripts, ttl_ms: int, roots: dict[str, str]) -> None:
        self._name = name
        self._scripts = scripts
        self._ttl_ms = ttl_ms
        self._roots = roots
        self._id = uuid.uuid4().hex[:16]
        self._slots = Slots()
        self._seeds: Iterator[Node] = cycle([None])

    # --- Getting to know the server ---------------------------------------------------------------

    def next_seed(self) -> Node:
        """Whom to ask for the others when connecting: each time another node, as the one that the
        URL names may have gone.
        """
        return next(self._seeds)

    def set_up(self, host: str, check: Callable[[Mapping[str, str]], None]) -> Talk[None]:
        """Look whether the server, or every node of the cluster, may be used, and load the
        scripts.
        """
        self._slots = Slots()
        info = yield from self._introduce([None])
        if info[None].get("cluster_enabled") == "1":
            replies = yield {None: [("CLUSTER", "SLOTS")]}
            self._slots = Slots(_ranges(_good(replies[None][0]), host))
            info = yield from self._introduce(self._slots.nodes)
            self._seeds = cycle([None, *self._slots.nodes])
        for said in info.values():
            check(said)

    def _introduce(self, nodes: Sequence[Node]) -> Talk[dict[Node, dict[str, str]]]:
        asked = [("INFO", section) for section in ("memory", "persistence", "cluster")]
        loads = [("SCRIPT", "LOAD", source) for source in self._scripts.sources.values()]
        replies = yield {node: [*asked, *loads] for node in nodes}
        good = {node: [_good(reply) for reply in replies[node]] for node in nodes}
        return {node: _fields("\n".join(said[: len(asked)])) for node, said in good.items()}

    # --- Operations -------------------------------------------------------------------------------

    def answers(self, ops: Sequence[Op]) -> Talk[list[Any]]:
        answers: list[Any] = [None] * len(ops)
        todo = list(range(len(ops)))
        unknown: set[int] = set()  # operations whose script the server did not know
        while todo:
            todo = yield from self._round(ops, todo, unknown, answers)
        return answers

    def _round(
        self, ops: Sequence[Op], todo: list[int], unknown: set[int], answers: list[Any]
    ) -> Talk[list[int]]:
        """Send these operations; those that must go again come back, because their session turned
        out to be kept elsewhere.
        """
        wrong = yield from self._link([ops[index] for index in todo])
        sent: list[int] = []
        commands: list[Command] = []
        for index in todo:
            if ops[index].kind in SCRIPTS:
                try:
                    commands.append(self._command(ops[index], wrong, by_source=index in unknown))
                    sent.append(index)
                except (BackendError, UnicodeError) as exc:
                    answers[index] = exc
            elif ops[index].kind == "sessions":
                answers[index] = yield from self._list(ops[index].step)
            else:
                yield from self._ping()
        again: list[int] = []
        replies = yield from self._ask(commands)
        for index, reply in zip(sent, replies, strict=True):
            if self._is_not_done(ops[index], reply):
                again.append(index)
                if isinstance(
                    reply, NoScriptError
                ):  # somebody flushed the scripts, or the node is new
                    unknown.add(index)
            else:
                answers[index] = self._read(ops[index], reply)
        return again

    def _ask(self, commands: Sequence[Command]) -> Talk[list[Any]]:
        """One round trip; each command's first key stands after the number of its keys and says
        which node it is for.
        """
        places: dict[Node, list[int]] = {}
        for place, command in enumerate(commands):
            places.setdefault(self._slots.node_of(command[3]), []).append(place)
        if not places:
            return []
        said = yield {node: [commands[place] for place in mine] for node, mine in places.items()}
        replies: list[Any] = [None] * len(commands)
        for node, mine in places.items():
            for place, reply in zip(mine, said[node], strict=True):
                replies[place] = reply
        return replies

    def _is_not_done(self, op: Op, reply: Any) -> bool:
        if isinstance(reply, ResponseError):
            if isinstance(reply, NOT_NOW) or str(reply).startswith(NOT_NOW_WORDS):
                raise reply
            return isinstance(reply, NoScriptError)
        root = _moved(reply)
        if root is not None:
            self._remember(_session_of(op), root)
        return root is not None

    def _remember(self, child: str, root: str) -> None:
        if len(self._roots) >= MAX_ROOTS:  # what is forgotten is asked for again
            self._roots.clear()
        self._roots[child] = root

    def _read(self, op: Op, reply: Any) -> Any:
        if isinstance(reply, Exception):
            return BackendError(f"The session store {self._name} refused: {describe(reply)}")
        return READERS[op.kind](op.step, reply)

    def _link(self, ops: Sequence[Op]) -> Talk[dict[str, str]]:
        """Leave a note under each new child session that says where it is kept; who only looks asks
        what would become of it.

        Returns the ones that cannot be children.
        """
        children: dict[tuple[str, str, bool], Command] = {}
        for op in ops:
            parents: tuple[str, ...] = getattr(op.step, "parents", ())
            looks = bool(parents) and only_looks(op.step)
            for child in (op.step.session_id, *parents[:-1]) if parents else ():
                if self._roots.get(child) != parents[-1]:
                    key = f"edictum:{{{tag_of(child)}}}:h:{child}"
                    note = (parents[-1], self._ttl_ms, int(looks))
                    children[child, parents[-1], looks] = (
                        "EVAL",
                        self._scripts.sources["link"],
                        1,
                        key,
                        *note,
                    )
        said = yield from self._ask(list(children.values()))
        wrong: dict[str, str] = {}
        for (child, root, looks), reply in zip(children, said, strict=True):
            if _good(reply) == "ok":
                if not looks:
                    self._remember(child, root)
            else:
                what = (
                    "was used without a parent" if reply == "used" else "has another root session"
                )
                wrong[child] = f"The session {child!r} {what} before, and cannot count in {root!r}."
        return wrong

    def _command(self, op: Op, wrong: dict[str, str], *, by_source: bool) -> Command:
        """A script with its KEYS and ARGV, see ``common.lua``."""
        session_id = _session_of(op)
        if session_id in wrong:
            raise BackendError(wrong[session_id])
        parents: tuple[str, ...] = getattr(op.step, "parents", ())
        root = parents[-1] if parents else self._roots.get(session_id, session_id)
        prefix = f"edictum:{{{tag_of(root)}}}:"
        step = {
            **WRITERS[op.kind](op.step),
            "client": self._id,
            "number": op.number,
            "ttl": self._ttl_ms,
        }
        keys = [f"{prefix}h:{sid}" for sid in (session_id, *parents)]
        script = (
            ("EVAL", self._scripts.sources[op.kind])
            if by_source
            else ("EVALSHA", self._scripts.shas[op.kind])
        )
        return (*script, len(keys), *keys, dumps(step), prefix)

    def _ping(self) -> Talk[None]:
        replies = yield {node: [("TIME",)] for node in self._slots.nodes}
        for node in self._slots.nodes:
            _good(replies[node][0])

    # --- Listing ----------------------------------------------------------------------------------

    def _list(self, limit: int) -> Talk[list[SessionSnapshot]]:
        found: list[tuple[int, SessionSnapshot]] = []
        for node in self._slots.nodes:
            cursor = "0"
            while True:
                replies = yield {
                    node: [("SCAN", cursor, "MATCH", "edictum:{*}:h:*", "COUNT", SCAN_COUNT)]
                }
                cursor, names = _good(replies[node][0])
                if names:
                    replies = yield {node: [("HGETALL", name) for name in names]}
                    found += [
                        _listed(name, _good(reply))
                        for name, reply in zip(names, replies[node], strict=True)
                        if "root" not in reply[::2]
                    ]
                if cursor == "0":
                    break
        latest = {
            snapshot.session_id: (used, snapshot) for used, snapshot in found
        }  # a scan may give a key twice
        ordered = sorted(latest.values(), key=lambda it: -it[0])
        return [snapshot for _, snapshot in ordered[:limit]]


def _good(reply: Any) -> Any:
    if isinstance(reply, Exception):
        raise reply
    return reply


def _fields(text: str) -> dict[str, str]:
    """The answer to INFO."""
    return dict(line.strip().split(":", 1) for line in text.splitlines() if ":" in line)


def _ranges(slots: Sequence[Any], host: str) -> list[tuple[int, int, Node]]:
    """The answer to CLUSTER SLOTS: the first node of a range is the one that may be written to.
    Without a name it is the one asked.
    """
    return [
        (int(start), int(end), (primary[0] or host, int(primary[1])))
        for start, end, primary, *_ in slots
    ]


def _listed(name: str, raw: Sequence[str]) -> tuple[int, SessionSnapshot]:
    fields = dict(zip(raw[::2], raw[1::2], strict=True))
    return int(fields.get("t", 0)), _read_snapshot(name.split("}:h:", 1)[1], raw)


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
