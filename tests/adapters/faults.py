"""Planted faults: each breaks an adapter in a way in which real ones were broken, and must be
caught by the suite.
"""

from __future__ import annotations

from typing import Any

import pytest

from edictum.adapters._base import Adapter
from edictum.adapters._reply import ToolReply
from edictum.testing.adapter import AdapterConformance, find_failures


def wrong_denial(adapter: type[Adapter]) -> type[Adapter]:
    """The denial is replaced by a value that looks like a result."""

    class Faulty(adapter):  # type: ignore[misc, valid-type]
        def reply(self, outcome: Any, on_warn: Any = None) -> ToolReply:
            return _approved(super().reply(outcome, on_warn))

        async def areply(self, outcome: Any, on_warn: Any = None) -> ToolReply:
            return _approved(await super().areply(outcome, on_warn))

    return Faulty


def _approved(reply: ToolReply) -> ToolReply:
    return ToolReply(reply.outcome, value="ok") if reply.denied else reply


def swallowed_exception(adapter: type[Adapter]) -> type[Adapter]:
    """A tool's exception becomes a text before the guard hears of it."""

    class Faulty(adapter):  # type: ignore[misc, valid-type]
        def call(self, name: str, args: Any, body: Any, **options: Any) -> ToolReply:
            def swallow(given: Any) -> Any:
                try:
                    return body(given)
                except Exception as exc:
                    return str(exc)

            return super().call(name, args, swallow, **options)

        async def acall(self, name: str, args: Any, body: Any, **options: Any) -> ToolReply:
            async def swallow(given: Any) -> Any:
                try:
                    return await body(given)
                except Exception as exc:
                    return str(exc)

            return await super().acall(name, args, swallow, **options)

        def after(
            self, key: str, value: Any = None, error: Any = None, **options: Any
        ) -> ToolReply | None:
            return super().after(key, value if error is None else str(error), **options)

        async def aafter(
            self, key: str, value: Any = None, error: Any = None, **options: Any
        ) -> ToolReply | None:
            return await super().aafter(key, value if error is None else str(error), **options)

    return Faulty


def shared_slot(adapter: type[Adapter]) -> type[Adapter]:
    """The current call is kept in one place, which the next call overwrites."""

    class Faulty(adapter):  # type: ignore[misc, valid-type]
        def call(self, name: str, args: Any, body: Any, **options: Any) -> ToolReply:
            def run(given: Any) -> Any:
                self.slot = body(given)
                return self.slot

            reply = super().call(name, args, run, **self._mine(options))
            return _from_slot(self, reply)

        async def acall(self, name: str, args: Any, body: Any, **options: Any) -> ToolReply:
            return await super().acall(name, args, body, **self._mine(options))

        def before(self, key: str, name: str, args: Any, **options: Any) -> Any:
            self._tickets.take("slot")
            return super().before("slot", name, args, **options)

        async def abefore(self, key: str, name: str, args: Any, **options: Any) -> Any:
            self._tickets.take("slot")
            return await super().abefore("slot", name, args, **options)

        def after(self, key: str, *result: Any, **options: Any) -> ToolReply | None:
            return super().after("slot", *result, **options)

        async def aafter(self, key: str, *result: Any, **options: Any) -> ToolReply | None:
            return await super().aafter("slot", *result, **options)

        def _mine(self, options: dict[str, Any]) -> dict[str, Any]:
            self.current = getattr(self, "current", None) or options.get("call_id")
            return options | {"call_id": self.current}

    return Faulty


def _from_slot(adapter: Any, reply: ToolReply) -> ToolReply:
    return (
        ToolReply(reply.outcome, value=adapter.slot)
        if reply.text is None and reply.error is None
        else reply
    )


def shared_caller(adapter: type[Adapter]) -> type[Adapter]:
    """The caller of the first call is taken for that of all."""

    class Faulty(adapter):  # type: ignore[misc, valid-type]
        def _fill_in(self, name: str, args: Any, details: Any, caller: Any) -> Any:
            self.first = getattr(self, "first", None) or (details.get("context"), caller)
            context, known = self.first
            caller.options.update(known.options)
            return super()._fill_in(name, args, {**details, "context": context}, caller)

    return Faulty


def silent_wait(adapter: type[Adapter]) -> type[Adapter]:
    """A call waits for a person, and it is not said that it does."""

    class Faulty(adapter):  # type: ignore[misc, valid-type]
        def say_waits(self, why: str) -> None:
            pass

    return Faulty


USER_ERRORS = [
    (wrong_denial, {"deny", "limit"}),
    (swallowed_exception, {"failure"}),
    (shared_slot, {"parallel", "call id"}),
    (shared_caller, {"users"}),
    (silent_wait, {"waits"}),
]


class PlantedFaults:
    """Subclass it with ``suite`` and ``adapter`` set: the suite must catch each fault at one of its
    points.
    """

    suite: type[AdapterConformance]
    adapter: type[Adapter]

    @pytest.mark.parametrize(
        ("plant", "points"), USER_ERRORS, ids=lambda item: getattr(item, "__name__", "")
    )
    def test_the_suite_catches_a_planted_fault(self, plant: Any, points: set[str]) -> None:
        if points <= self.suite.cannot.keys():
            pytest.skip(f"the framework cannot do what is broken here: {points}")
        faulty = plant(self.adapter)

        class Driver(self.suite):  # type: ignore[misc, name-defined]
            def get_results(self, point: str) -> dict[str, str]:
                return {}  # what a broken adapter does is not a result

            def make_adapter(self, guard: Any, **options: Any) -> Any:
                return faulty(guard, **options)

        assert set(find_failures(Driver(), sorted(points))) & points, (
            f"{plant.__name__} was not caught"
        )
