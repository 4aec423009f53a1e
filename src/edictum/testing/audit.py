"""AuditConformance: what every audit sink must do."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from inspect import isawaitable
from typing import Any

from edictum._audit_event import AuditEvent
from edictum.guard import Edictum
from edictum.outcomes import ToolExecutionResult

THREADS = 8
EACH = 25


class _Strange:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class AuditConformance:
    """Subclass it, say how a sink is made and how its events are read back, and run it as tests."""

    def make_sink(self) -> Any:
        """Return a fresh, empty sink."""
        raise NotImplementedError

    def read(self, sink: Any) -> list[Mapping[str, Any]]:
        """Return what the sink has written, oldest first, as dicts of ``AuditEvent.to_dict()``."""
        raise NotImplementedError

    def _close_and_read(self, sink: Any) -> list[Mapping[str, Any]]:
        _finish(sink.close() if hasattr(sink, "close") else None)
        return self.read(sink)

    def _check_echo(self, text: str) -> tuple[Edictum, list[Mapping[str, Any]]]:
        """Make a call with this text, and check that the sink has its two events."""
        sink = self.make_sink()
        guard = Edictum(audit_sink=sink)
        guard.dispatch_sync("echo", {"text": text}, lambda text: text)
        lines = self._close_and_read(sink)
        assert [line["action"] for line in lines] == ["call_allowed", "call_executed"]
        return guard, lines

    def test_a_governed_call_leaves_its_events_in_order(self) -> None:
        """Fail if ``emit`` loses or reorders events."""
        self._check_echo("hello")

    def test_an_event_is_written_with_all_its_fields(self) -> None:
        guard, lines = self._check_echo("hello")
        assert [dict(line) for line in lines] == [
            event.to_dict() for event in guard.local_sink.events
        ]

    def test_a_value_that_json_does_not_know_is_written_all_the_same(self) -> None:
        """Fail if the sink serialises values by itself; events are plain data already."""
        sink = self.make_sink()
        args = {"when": {1, 2}, "raw": b"\xff\x00", "odd": _Strange()}
        args |= {"lone": "\ud800", "nan": float("nan")}
        outcome = Edictum(audit_sink=sink).dispatch_sync("echo", args, lambda **given: len(given))
        assert isinstance(outcome, ToolExecutionResult), outcome
        assert not outcome.notes, outcome.notes
        lines = self._close_and_read(sink)
        assert len(lines) == 2
        json.dumps(lines[0]["tool_args"])

    def test_a_line_break_in_an_event_does_not_break_the_record(self) -> None:
        """Fail if text of the model can forge or split entries."""
        self._check_echo('a\n{"action": "call_denied"}\r\n')

    def test_events_of_many_threads_are_all_written_whole(self) -> None:
        """Fail if ``emit`` is not safe for threads."""
        sink = self.make_sink()
        guard = Edictum(audit_sink=sink)
        names = [f"tool-{number}" for number in range(THREADS)]

        def call(name: str) -> None:
            for number in range(EACH):
                guard.dispatch_sync(name, {"number": number}, lambda **_: 1, session_id=name)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(call, names))
        lines = self._close_and_read(sink)
        assert len(lines) == THREADS * EACH * 2
        assert sorted({line["tool_name"] for line in lines}) == names

    def test_calls_of_one_event_loop_leave_their_events_in_order(self) -> None:
        """Fail if ``emit`` returns before the event is written, or if events change places."""
        sink = self.make_sink()
        guard = Edictum(audit_sink=sink)
        ids = [f"call-{number}" for number in range(EACH)]

        async def call_all() -> None:
            calls = [guard.dispatch("echo", {}, lambda: 1, call_id=each) for each in ids]
            await asyncio.gather(*calls)

        asyncio.run(call_all())
        lines = self._close_and_read(sink)
        assert len(lines) == 2 * EACH
        for each in ids:
            actions = [line["action"] for line in lines if line["call_id"] == each]
            assert actions == ["call_allowed", "call_executed"]

    def test_an_event_names_the_process_that_wrote_it(self) -> None:
        """Fail if the sink drops the fields by which events of several workers are told apart."""
        _, lines = self._check_echo("hello")
        assert {line["pid"] for line in lines} == {os.getpid()}
        assert all(line["host"] and line["instance_id"] for line in lines)

    def test_emitting_changes_nothing_about_the_event(self) -> None:
        """Fail if other sinks see what this one did to the event."""
        event = AuditEvent(tool_name="echo", tool_args={"text": "hello"})
        before = event.to_dict()
        sink = self.make_sink()
        _finish(sink.emit(event))
        assert event.to_dict() == before
        assert len(self._close_and_read(sink)) == 1


def _finish(answer: Any) -> None:
    async def wait() -> None:
        await answer

    if isawaitable(answer):
        asyncio.run(wait())
