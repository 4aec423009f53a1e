"""Agno's own pause: a call that needs a confirmation ends a run, ``continue_run`` goes on with it.

Agno decides about a pause before it calls any hook, by an attribute of the tool. So the model of a
governed agent, which makes the calls, puts the question in the queue first, and marks those calls
that are not answered yet as in need of a confirmation. The hook looks at the answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from edictum.adapters._agno_call import find_parameters
from edictum.core.parking import Park, tell_once
from edictum.execution.portal import PORTAL

HOOK_WAITS = "Agno asks hooks only once it has begun a call. Use govern(agent)"
CONFIRMED = "edictum_confirmed"  # on a FunctionCall of a governed model, by adapter


def let_model_pause(adapter: Any, model: Any) -> None:
    """Make a model ask the guard before it makes calls. Its class is changed: copies keep it."""
    kind: Any = type(model)
    if adapter in getattr(kind, "governors", ()):
        return

    class PausingModel(kind):  # type: ignore[misc]  # the base is known at run time only
        governors = (adapter, *getattr(kind, "governors", ()))

        def run_function_calls(
            self, function_calls: Any, *args: Any, **named: Any
        ) -> Iterator[Any]:
            for call in function_calls:
                if PORTAL.run(_must_pause(adapter, call)):
                    _require_confirmation(call)
            yield from super().run_function_calls(function_calls, *args, **named)

        async def arun_function_calls(
            self, function_calls: Any, *args: Any, **named: Any
        ) -> AsyncIterator[Any]:
            for call in () if named.get("skip_pause_check") else function_calls:
                if await _must_pause(adapter, call):
                    _require_confirmation(call)
            async for event in super().arun_function_calls(function_calls, *args, **named):
                yield event

        def get_function_call_to_run_from_tool_execution(self, execution: Any, *args: Any) -> Any:
            call = super().get_function_call_to_run_from_tool_execution(execution, *args)
            _mark(adapter, call, is_confirmed=execution.confirmed is True)
            return call

    PausingModel.__name__, PausingModel.__qualname__ = kind.__name__, kind.__qualname__
    model.__class__ = PausingModel


async def _must_pause(adapter: Any, call: Any) -> bool:
    """Ask about a call that Agno has not begun; return whether the answer is awaited."""
    _mark(adapter, call, is_confirmed=False)
    function = call.function
    if not adapter.can_pause(function.name):
        return False
    details = {"call_id": call.call_id, "parameters": find_parameters(function)}
    details["context"] = function._run_context
    return bool(await adapter.ask_ahead(function.name, call.arguments or {}, **details))


def _require_confirmation(call: Any) -> None:
    call.function = call.function.model_copy()  # the tool is that of other calls too
    call.function.requires_confirmation = True


def _mark(adapter: Any, call: Any, *, is_confirmed: bool) -> None:
    vars(call).setdefault(CONFIRMED, {})[adapter.label] = is_confirmed


def make_confirmed_park(adapter: Any, call: Any) -> Park | None:
    """Return what a call does about an open question once Agno has begun it: it tells that it was
    confirmed, and then waits. None for a call of a model that does not pause.
    """
    marks = vars(call).get(CONFIRMED, {}) if call is not None else {}
    if adapter.label not in marks:
        return None
    return tell_once(marks[adapter.label] or None, "Agno")
