"""A cluster of three real nodes: the whole conformance suite, for threads and for event loops, and
slots that move.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from loops import OnLoop
from redis.crc import key_slot
from timed import OLDER_LEASE_S, older_in_redis

from edictum import Edictum, EdictumConfigError, OperationLimits
from edictum.errors import BackendError
from edictum.execution.portal import PORTAL
from edictum.sessions import open as open_ledger
from edictum.sessions._redis import RedisStore
from edictum.sessions._remote_ledger import RemoteLedger
from edictum.testing import LedgerConformance
from edictum.testing.ledger import Book
from support.servers import NoServer, Valkey, ValkeyCluster
from support.waiting import wait_until

numbers = itertools.count(1)


@pytest.fixture(scope="module")
def running_cluster() -> Iterator[ValkeyCluster | str]:
    try:
        cluster = ValkeyCluster()
    except (NoServer, OSError) as exc:
        yield f"valkey cluster: NOT TESTED, {exc}"
        return
    yield cluster
    cluster.stop()


@pytest.fixture
def cluster(running_cluster: ValkeyCluster | str, record_property: Any) -> ValkeyCluster:
    if isinstance(running_cluster, str):
        record_property("session_store", running_cluster)
        pytest.skip(running_cluster)
    record_property("session_store", f"valkey cluster: {running_cluster.origin}")
    return running_cluster


class OnCluster(LedgerConformance):
    lease_s = OLDER_LEASE_S
    exceptions = {"one_step": "scopes lie in other slots than the session"}

    @pytest.fixture(autouse=True)
    def _cluster(self, cluster: ValkeyCluster) -> None:
        self.cluster = cluster

    def make_ledger(self) -> Any:
        for node in self.cluster.nodes:
            self.cluster.command(node, "FLUSHALL")
        return RemoteLedger(RedisStore(self.cluster.url))

    def advance(self, seconds: float) -> None:
        for node in self.cluster.nodes:
            with older_in_redis(node.url) as advance:
                advance("", seconds)


class TestClusterForThreads(OnCluster):
    pass


class TestClusterForLoops(OnCluster):
    def make_ledger(self) -> Any:
        return OnLoop(super().make_ledger())


def session_in(first: int, last: int) -> str:
    """A new session whose keys are in one of these slots."""
    return next(
        name
        for name in (f"s{next(numbers)}" for _ in itertools.count())
        if first <= key_slot(f"{{{name}}}".encode()) <= last
    )


async def test_one_batch_reaches_sessions_on_every_node(cluster: ValkeyCluster) -> None:
    guard = Edictum(limits=OperationLimits(max_tool_calls=2), backend=cluster.url)
    sessions = [session_in(*share) for share in cluster.SHARES for _ in range(5)]
    ran: list[str] = []
    calls = [
        guard.dispatch("work", {"session": it}, lambda session: ran.append(session), session_id=it)
        for it in sessions * 4
    ]
    await asyncio.gather(*calls)
    assert sorted(ran) == sorted(sessions * 2)
    listed = {
        it.session_id: it.totals.executions for it in await guard.backend.sessions(limit=10_000)
    }  # type: ignore[attr-defined]
    assert {session: listed[session] for session in sessions} == dict.fromkeys(sessions, 2)
    await guard.close()


def owner_of(cluster: ValkeyCluster, slot: int, by: int = 0) -> Valkey:
    """Return the node that has a slot, as one of the nodes tells it."""
    ranges: Any = cluster.command(cluster.nodes[by], "CLUSTER", "SLOTS")
    port = next(primary[1] for first, last, primary, *_ in ranges if first <= slot <= last)
    return next(node for node in cluster.nodes if node.port == port)


def move(cluster: ValkeyCluster, slot: int) -> None:
    """Give a slot without keys to another node, and wait until every node knows that.

    A slot that is not imported first may be claimed back by its old owner.
    """
    source = owner_of(cluster, slot)
    target = next(node for node in cluster.nodes if node is not source)
    names = {it: cluster.command(it, "CLUSTER", "MYID") for it in (source, target)}
    cluster.command(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
    cluster.command(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
    for node in sorted(cluster.nodes, key=lambda node: node is not target):
        cluster.command(node, "CLUSTER", "SETSLOT", slot, "NODE", names[target])
    numbers = range(len(cluster.nodes))
    wait_until(lambda: all(owner_of(cluster, slot, by) is target for by in numbers))


@pytest.mark.parametrize("wrap", [lambda ledger: ledger, OnLoop], ids=["thread", "loop"])
def test_a_slot_that_moves_is_followed(cluster: ValkeyCluster, wrap: Any) -> None:
    ledger: Any = wrap(open_ledger(cluster.url))
    book, session = Book(ledger), session_in(0, 16383)
    slot = key_slot(f"{{{session}}}".encode())
    assert book.run("a", sid=session)
    book.reset(session)
    before = owner_of(cluster, slot)
    move(cluster, slot)
    assert owner_of(cluster, slot) is not before
    assert book.run("b", sid=session)
    assert book.totals(session) == (1, 1, 1, 0, 0, 0)
    closed = ledger.close()
    if wrap is not OnLoop:
        PORTAL.run(closed)


@pytest.mark.parametrize("wrap", [lambda ledger: ledger, OnLoop], ids=["thread", "loop"])
def test_sessions_in_use_move_with_their_slot(cluster: ValkeyCluster, wrap: Any) -> None:
    """In one step, as Valkey 9 does it: calls go on all the time, and none is lost or counted
    twice.
    """
    ledger: Any = wrap(open_ledger(f"{cluster.url}?wait=10"))
    book, session = Book(ledger), session_in(0, 16383)
    slot, ran = key_slot(f"{{{session}}}".encode()), 0
    source = owner_of(cluster, slot)
    target = next(node for node in cluster.nodes if node is not source)
    book.reserve("held", sid=session)
    try:
        cluster.command(
            source,
            "CLUSTER",
            "MIGRATESLOTS",
            "SLOTSRANGE",
            slot,
            slot,
            "NODE",
            cluster.command(target, "CLUSTER", "MYID"),
        )
    except redis.ResponseError as exc:
        pytest.skip(f"this server moves slots key by key: {exc}")
    while owner_of(cluster, slot) is source:
        assert book.run(f"{ran}", sid=session)
        ran += 1
    assert book.run("after", sid=session)
    book.settle("held", "success", sid=session)
    assert book.totals(session) == (ran + 2, ran + 2, ran + 2, 0, 0, 0)
    closed = ledger.close()
    if wrap is not OnLoop:
        PORTAL.run(closed)


def test_replicas_of_a_cluster_cannot_be_waited_for(cluster: ValkeyCluster) -> None:
    with pytest.raises(EdictumConfigError, match="A Redis cluster does not support"):
        open_ledger(f"{cluster.url}?replicas=1")


def test_every_node_is_looked_at(cluster: ValkeyCluster) -> None:
    cluster.command(cluster.nodes[2], "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(EdictumConfigError, match="noeviction"):
            open_ledger(cluster.url)
    finally:
        cluster.command(cluster.nodes[2], "CONFIG", "SET", "maxmemory-policy", "noeviction")


def test_a_user_with_the_rights_that_the_guide_names(cluster: ValkeyCluster) -> None:
    rights = "~edictum:* +@read +@write +@scripting +info +time +select +cluster|slots +command"
    for node in cluster.nodes:
        cluster.command(node, "ACL", "SETUSER", "ledger", "on", ">key", *rights.split())
    ledger: Any = open_ledger(cluster.url.replace("redis://", "redis://ledger:key@"))
    book, session = Book(ledger), session_in(0, 16383)
    assert book.run("a", sid=session)
    assert session in [it.session_id for it in book.sessions(10_000)]
    PORTAL.run(ledger.close())


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [lambda ledger: ledger, OnLoop], ids=["thread", "loop"])
def test_a_replica_that_takes_over_is_found_though_the_node_in_the_url_is_gone(wrap: Any) -> None:
    try:
        cluster = ValkeyCluster(spare=True)
    except (NoServer, OSError) as exc:
        pytest.skip(str(exc))
    ledger: Any = wrap(open_ledger(f"{cluster.url}?wait=1"))
    book, sessions = Book(ledger), [session_in(*share) for share in cluster.SHARES]
    try:
        assert all(book.run("a", sid=session) for session in sessions)
        wait_until(lambda: replicated(cluster) == [True, True])
        cluster.nodes[0].kill()
        wait_until(lambda: runs_on_all(book, sessions))
        assert [book.totals(session)[1] >= 2 for session in sessions] == [True] * 3
    finally:
        closed = ledger.close()
        if wrap is not OnLoop:
            PORTAL.run(closed)
        cluster.stop()


def replicated(cluster: ValkeyCluster) -> list[bool]:
    """Whether the spare node follows, and has everything."""
    one, other = (
        str(cluster.command(node, "INFO", "replication"))
        for node in (cluster.nodes[0], cluster.nodes[3])
    )
    offsets = [
        next(line for line in text.splitlines() if line.startswith("master_repl_offset"))
        for text in (one, other)
    ]
    return ["master_link_status:up" in other, offsets[0] == offsets[1]]


def runs_on_all(book: Book, sessions: list[str]) -> bool:
    try:
        return all(book.run(f"b{next(numbers)}", sid=session) for session in sessions)
    except BackendError:
        return False
