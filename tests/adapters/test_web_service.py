"""The example service: many users, one agent in each of two workers, limits in one store."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from web_service import (
    CONNECTIONS,
    Service,
    find_open_calls,
    find_strangers,
    group_by_session,
    serve,
)

from support.effort import effort
from support.waiting import wait_in_loop, wait_until

pytestmark = pytest.mark.s1  # needs langchain

LIMIT = 3  # refunds-per-conversation in examples/web_service/contracts.yaml
PER_PERSON = 10
TRIES = 5


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serve(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.mark.soak
async def test_each_of_many_users_has_exactly_their_own_limit(service: Service) -> None:
    users = [f"many{number}" for number in range(effort(100, soak=1_000))]
    asked = [(user, try_) for try_ in range(TRIES) for user in users]
    random.Random(7).shuffle(asked)

    at_once = asyncio.Semaphore(CONNECTIONS)  # httpx is slow with a long queue of its own

    async def ask(user: str, try_: int) -> tuple[str, dict[str, Any]]:
        other = f" as {random.Random(try_).choice(users)}" if try_ % 2 else ""
        async with at_once:
            return user, await service.say(client, user, f"refund A{try_} 10{other}")

    async with service.make_client() as client:
        answers = await asyncio.gather(*(ask(user, try_) for user, try_ in asked))

    assert len({answer["worker"] for _, answer in answers}) == 2
    said = Counter((user, answer["calls"][0]["status"]) for user, answer in answers)
    made = service.read_refunds("many")
    events = service.read_audit("many")
    for user in users:
        assert (said[user, "success"], said[user, "error"]) == (LIMIT, TRIES - LIMIT)
        counted = service.count_session(f"{user}/c")
        assert (counted.attempts, counted.executions, counted.in_flight) == (TRIES, LIMIT, 0)
        assert service.count_person(user).executions == LIMIT
    assert Counter(line["session"] for line in made) == {f"{user}/c": LIMIT for user in users}
    assert all(line["session"] == f"{line['user']}/c" for line in made)
    assert find_strangers(events) == []
    assert find_open_calls(events) == {}
    denied = Counter(event["session_id"] for event in events if event["action"] == "call_denied")
    assert denied == {f"{user}/c": TRIES - LIMIT for user in users}


async def test_a_new_conversation_does_not_reset_the_limit_of_a_person(service: Service) -> None:
    async with service.make_client() as client:
        answers = await asyncio.gather(
            *(
                service.say(client, "anew", "refund A1 1", f"c{number % 5}")
                for number in range(5 * TRIES)
            )
        )
    texts = Counter(answer["calls"][0]["text"] for answer in answers)
    assert texts["1 refunded for A1"] == PER_PERSON
    assert len(service.read_refunds("anew/")) == PER_PERSON
    assert texts["DENIED: Ten refunds were made for this person today."] > 0


async def find_question(service: Service, client: httpx.AsyncClient) -> dict[str, Any]:
    """Return what a person is asked, as soon as there is something."""
    staff = service.authorize("carol", "staff")
    while True:
        found = (await client.get("/approvals/api/requests", headers=staff)).json()
        if found["requests"]:
            return dict(found["requests"][0])
        await asyncio.sleep(0.05)


async def ask_and_answer(service: Service, user: str, conversation: str, approved: bool) -> str:
    """Ask for a refund without an amount; answer as staff; return what the model read."""
    staff, path = service.authorize("carol", "staff"), "/approvals/api/answers"
    async with service.make_client() as client:
        asking = asyncio.create_task(service.say(client, user, "refund A1", conversation))
        question = await find_question(service, client)
        assert question["message"] == "Refund 250.0 for A1?"
        answers = [{"approval_id": question["approval_id"], "approved": approved}]
        refused = await client.post(
            path, json={"answers": answers}, headers=service.authorize(user)
        )
        assert refused.status_code == 401
        for counts in (True, False):  # the second answer comes too late
            answer = await client.post(path, json={"answers": answers}, headers=staff)
            assert ("error" in answer.json()["results"][0]) is not counts
        return str((await asking)["calls"][0]["text"])


async def test_an_amount_that_is_left_out_meets_the_rule_and_the_budget(service: Service) -> None:
    """The tool refunds 250 then: too much without a person, and a quarter of the budget."""
    refused = await ask_and_answer(service, "omits", "first", approved=False)
    assert refused.startswith("DENIED: ")
    assert service.read_refunds("omits/") == []
    for conversation in ("first", "first", "first", "second"):
        said = await ask_and_answer(service, "omits", conversation, approved=True)
        assert said == "250 refunded for A1"
    async with service.make_client() as client:
        answer = await service.say(client, "omits", "refund A1 1", "second")
    assert "The budget for refunds to this person is spent" in answer["calls"][0]["text"]
    assert [line["amount"] for line in service.read_refunds("omits/")] == [250.0] * 4


async def test_only_tokens_of_the_service_are_believed(service: Service) -> None:
    token = service.authorize("eve")["Authorization"]
    async with service.make_client() as client:
        for forged in (token[:-1] + ("0" if token[-1] != "0" else "1"), "Bearer e30.", "Bearer x"):
            answer = await client.post(
                "/conversations/c/messages",
                json={"text": "refund A1 1"},
                headers={"Authorization": forged},
            )
            assert answer.status_code == 401
    assert service.read_refunds("eve/") == []


# --- A worker dies --------------------------------------------------------------------------------


class Load:
    """Clients that come in pairs, each pair for one user after the other: both ask for as many
    refunds as they can get.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self.sent: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()  # what became of these requests is not known
        self.refunded: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        async with self.service.make_client() as client:
            clients = (self._ask(client, number // 2, ends) for number in range(CONNECTIONS))
            await asyncio.gather(*clients)

    async def _ask(self, client: httpx.AsyncClient, pair: int, ends: float) -> None:
        number = 0
        while time.monotonic() < ends:
            user = f"load{pair}-{number}"
            for _ in range(TRIES):
                await self._ask_once(client, user)
            number += 1

    async def _ask_once(self, client: httpx.AsyncClient, user: str) -> None:
        session = f"{user}/c"
        self.sent[session] += 1
        try:
            answer = await self.service.say(client, user, "refund A1 1")
        except httpx.TransportError:
            self.broken[session] += 1
            await asyncio.sleep(0.1)
            return
        self.refunded[session] += answer["calls"][0]["status"] == "success"


def find_busy(service: Service, written: dict[int, int]) -> int | None:
    """Return a worker that has recorded calls since so much was written; None without one."""
    grown = (it for it, size in written.items() if service.count_audit_bytes(it) > size)
    return next(grown, None)


@pytest.mark.soak
async def test_a_killed_worker_costs_no_count_and_no_outcome(service: Service) -> None:
    before = wait_until(lambda: len(found := service.find_workers()) == 2 and found)
    assert before
    seconds = effort(6, soak=60)
    load = Load(service)
    running = asyncio.create_task(load.run(seconds))
    await asyncio.sleep(seconds / 2)
    # one that is at work: the kernel may have given all connections to the same worker
    written = {worker: service.count_audit_bytes(worker) for worker in before}
    killed = await wait_in_loop(lambda: find_busy(service, written))
    os.kill(killed, signal.SIGSTOP)  # until its clients have asked again, and wait
    await asyncio.sleep(0.3)
    os.kill(killed, signal.SIGKILL)
    await running
    restarted = await wait_in_loop(lambda: service.find_workers() - before)
    assert restarted, "the supervisor did not start another worker"
    wait_until(lambda: not any(service.count_session(it).in_flight for it in load.broken))

    made = group_by_session(service.read_refunds("load"), "session")
    events = service.read_audit("load")
    lost = find_open_calls(events)
    allowed = Counter(it["session_id"] for it in events if it["action"] == "call_allowed")
    for session, sent in load.sent.items():
        counted, bodies, broken = (
            service.count_session(session),
            made[session],
            load.broken[session],
        )
        assert bodies <= counted.executions <= LIMIT
        assert load.refunded[session] <= bodies
        assert allowed[session] <= counted.executions
        assert service.count_person(session.partition("/")[0]).executions == counted.executions
        assert counted.in_flight == 0
        assert sent - broken <= counted.attempts <= sent
        if not broken:
            assert bodies == counted.executions == LIMIT == load.refunded[session]
        assert counted.executions - bodies <= broken
    assert load.broken, "the worker was killed while it had nothing to do"
    assert lost == find_open_calls(service.read_audit("load", killed))
    assert set(lost.values()) <= set(load.broken)
    assert find_strangers(events) == []


# --- The end --------------------------------------------------------------------------------------


@pytest.fixture
def one_worker(tmp_path: Path) -> Iterator[Service]:
    with serve(tmp_path, 1, "--grace", "1") as running:
        yield running


async def test_a_service_that_is_stopped_closes_what_it_has_begun(one_worker: Service) -> None:
    """A request that waits for a person when its time is over is withdrawn, and the audit says
    so.
    """
    async with one_worker.make_client() as client:
        asking = asyncio.create_task(one_worker.say(client, "late", "refund A1"))
        await find_question(one_worker, client)
        await asyncio.to_thread(one_worker.stop)
        with pytest.raises((httpx.TransportError, AssertionError)):
            await asking
    assert "Application shutdown complete" in one_worker.log.read_text()
    assert [event["action"] for event in one_worker.read_audit("late")] == [
        "call_approval_requested",
        "call_approval_withdrawn",
    ]
    assert one_worker.read_refunds("late/") == []
    assert one_worker.count_session("late/c").executions == 0
