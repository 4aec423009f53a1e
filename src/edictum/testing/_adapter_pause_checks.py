"""Checks of the adapters' suite about calls that a person must approve, and has not yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

from edictum.approval import open_approvals
from edictum.core.contract import Verdict, precondition
from edictum.guard import Edictum
from edictum.testing._adapter_driver import AdapterDriver, make_script, point
from edictum.testing._adapter_tools import (
    SuiteTools,
    count_executions,
    list_actions,
    look,
    wait_until,
)

SAID_OF_WAITING = "wait for the answer in this process"
SESSION = "asking"  # some frameworks can only pause a run that names its session


class AskingGuard:
    """A guard with a queue, whose contract asks only until a person has answered."""

    def __init__(self, folder: str) -> None:
        self._url, self._is_answered = f"sqlite:///{folder}/approvals.db", False

        @precondition("*", id="ask", effect="approve", timeout=600)
        def ask(call: Any) -> Verdict:
            return Verdict.pass_() if self._is_answered else Verdict.fail("Look it up?")

        self.guard = Edictum(contracts=[ask], approval_backend=self._url)

    def has_asked(self) -> bool:
        return "call_approval_requested" in list_actions(self.guard)

    async def answer(self, approved: bool) -> None:
        queue = open_approvals(self._url)
        (request,) = await queue.pending()
        await queue.answer(request.approval_id, approved, approver="ann", reason="As you like.")
        await queue.close()
        self._is_answered = True


class PauseChecks(AdapterDriver):
    @point("waits")
    def test_a_run_that_cannot_pause_waits_for_a_person_and_says_so(
        self, tools: SuiteTools
    ) -> None:
        for approved in (True, False):
            self._check_waiting(tools, approved)

    def _check_waiting(self, tools: SuiteTools, approved: bool) -> None:
        with _open_guard() as asking, _listen() as said, ThreadPoolExecutor(1) as pool:
            agent = self.build_waiting(*self._prepare(asking, tools))
            run = pool.submit(self.play, agent)
            asyncio.run(wait_until(lambda: run.done() or asking.has_asked()))
            assert not run.done(), f"the run did not wait: {run.result()!r}"
            told = len(said)
            self._check_end(asking, tools, agent, approved, run)
            assert told == 1, f"said {told} times that calls wait, before the first of them did"

    @point("pauses")
    def test_a_run_pauses_and_goes_on_after_the_answer(self, tools: SuiteTools) -> None:
        """Fail if a person's no is ignored because the contract no longer asks."""
        for approved in (True, False):
            with _open_guard() as asking:
                agent = self.build_pausing(*self._prepare(asking, tools, session_id=SESSION))
                error = self.play(agent)
                assert error is None, f"the run raised {error!r}"
                assert asking.has_asked(), list_actions(asking.guard)
                assert "call_paused" in list_actions(asking.guard), list_actions(asking.guard)
                self._check_end(asking, tools, agent, approved)

    def _prepare(
        self, asking: AskingGuard, tools: SuiteTools, **options: Any
    ) -> tuple[Any, list[Any], Any]:
        tools.ran.clear()
        adapter = self.make_adapter(asking.guard, **options)
        return adapter, [tools.make("look", look)], make_script("look", "a")

    def _check_end(
        self,
        asking: AskingGuard,
        tools: SuiteTools,
        agent: Any,
        approved: bool,
        run: Future[BaseException | None] | None = None,
    ) -> None:
        assert tools.ran == [], "the tool ran before a person had answered"
        asyncio.run(asking.answer(approved))
        if run is None:
            self.resume(agent)
        else:
            assert run.result() is None, f"the run raised {run.result()!r}"
        (answer,) = self.replies(agent)
        assert tools.ran == (["a"] if approved else []), tools.ran
        assert ("DENIED" in answer.text) is not approved, answer
        assert count_executions(asking.guard) == len(tools.ran)
        asked = list_actions(asking.guard).count("call_approval_requested")
        assert asked == 1, f"asked {asked} times"


@contextmanager
def _open_guard() -> Iterator[AskingGuard]:
    with TemporaryDirectory() as folder:
        asking = AskingGuard(folder)
        try:
            yield asking
        finally:
            asyncio.run(asking.guard.close())


@contextmanager
def _listen() -> Iterator[list[str]]:
    """Yield the list of log messages about waiting, which grows as they are written."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if SAID_OF_WAITING in record.getMessage():
                said.append(record.getMessage())

    logger, listener = logging.root.getChild("edictum.adapter"), Listener()
    logger.addHandler(listener)
    try:
        yield said
    finally:
        logger.removeHandler(listener)
