"""A call that Semantic Kernel makes for a model, and the filter that sees its exceptions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from functools import cache
from typing import Any, cast

from edictum.adapters._base import Adapter
from edictum.adapters._reply import ToolReply
from edictum.core.freeze import copy_object

# what Semantic Kernel makes of an exception
FAILURE_TEXT = "An error occurred while invoking the function {}: {}"
NOT_PLAIN = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


class KernelCall:
    """One automatic call in Semantic Kernel's terms."""

    def __init__(self, context: Any, result_class: Any) -> None:
        self._context, self._result_class = context, result_class
        self._judged: Any = None
        self._was_swallowed = False
        self._task = asyncio.current_task()
        self.error: Exception | None = None  # what the function raised
        self.arguments = context.arguments  # by this object the inner filter knows the call
        self.id = getattr(context.function_call_content, "id", None)
        names = [parameter.name for parameter in context.function.parameters]
        # the history and settings of a run are passed only to a function that asks for all
        self._names = None if "arguments" in names else names
        self.args = self._read_args(context.arguments)

    def _read_args(self, arguments: Any) -> dict[str, Any]:
        """Return the arguments that the function gets; None stands for all names."""
        names = self._names
        return {name: it for name, it in arguments.items() if names is None or name in names}

    async def run(self, args: dict[str, Any], next: Any) -> Any:
        context = self._context
        function, unset = context.function, context.function_result
        for gone in self.args.keys() - args.keys():  # a hook has left them out
            del context.arguments[gone]
        context.arguments.update(args)
        # A call with a deadline is a task of its own. Its function runs in a thread: Semantic
        # Kernel would call it in the event loop, where nothing can end the wait.
        if asyncio.current_task() is not self._task:
            context.function = _move_to_thread(function)
        checked = copy_object(args)
        context.function = _hold_to(
            lambda given: Adapter.hold_to_checked_args(self._read_args(given), checked),
            context.function,
        )
        token = CURRENT_CALL.set(self)
        try:
            await next(context)
        except BaseException:
            self.error = None  # it is another filter's, which ends the run
            raise
        finally:
            CURRENT_CALL.reset(token)
            if context.function is not function:
                context.function = function
        if self.error is not None:
            raise self.error
        self._was_swallowed = context.function_result is unset and isinstance(unset.value, str)
        self._judged = context.function_result.value
        return self._judged

    def flag(self, value: Any) -> str | None:
        """Return the error in the metadata, or that another filter's exception became text."""
        error = self._context.function_result.metadata.get("error")
        return str(error) if error else "it could not be invoked" if self._was_swallowed else None

    def answer(self, reply: ToolReply) -> None:
        """Put the reply into the context as the function's result."""
        context, error = self._context, reply.error
        if error is not None and self.error is None:
            raise error
        if error is not None:  # Semantic Kernel marks no exception
            self._set_result(FAILURE_TEXT.format(context.function.fully_qualified_name, error), {})
            return
        value = reply.get()
        is_same = value is self._judged
        known = context.function_result.metadata if is_same else {}
        if reply.failed:
            self._set_result(value, {"error": str(value), **known})
        elif not is_same:
            self._set_result(value, known)

    def _set_result(self, value: Any, metadata: dict[str, Any]) -> None:
        function = self._context.function.metadata
        result = self._result_class(function=function, value=value, metadata=metadata)
        self._context.function_result = result


def read_kernel_parameters(function: Any) -> Any:
    """Return the source of a function's defaults: its method, or what the kernel knows of it."""
    known = {it.name: {**(it.schema_data or {}), **_default_of(it)} for it in function.parameters}
    required = [it.name for it in function.parameters if it.is_required]
    return getattr(function, "method", None), {"properties": known, "required": required}


def _default_of(parameter: Any) -> dict[str, Any]:
    found = parameter.default_value
    return {} if found is None else {"default": found}


def _move_to_thread(function: Any) -> Any:
    """Return a copy of a function of the kernel whose plain method is run in a thread."""
    method = getattr(function, "method", None)
    if method is None or any(kind(method) for kind in NOT_PLAIN):
        return function

    async def run(**args: Any) -> Any:
        value = await asyncio.to_thread(method, **args)
        return await value if inspect.isawaitable(value) else value

    return function.model_copy(update={"method": run})


def _hold_to(check: Callable[[Any], None], function: Any) -> Any:
    """Return a copy of a function that checks its arguments again, after all filters."""
    made, kind = function.model_copy(), cast("Any", type(function))
    made.__class__ = _make_held_class(kind)
    vars(made)["check_args"] = check
    return made


@cache
def _make_held_class(kind: Any) -> Any:
    class Held(kind):  # type: ignore[misc]  # the base is known at run time only
        async def _invoke_internal(self, context: Any) -> None:
            vars(self)["check_args"](context.arguments)
            await super()._invoke_internal(context)

        async def _invoke_internal_stream(self, context: Any) -> None:
            vars(self)["check_args"](context.arguments)
            await super()._invoke_internal_stream(context)

    Held.__name__, Held.__qualname__ = kind.__name__, kind.__qualname__
    return Held


# The automatic call that is being made in this context; parallel calls have their own.
CURRENT_CALL: ContextVar[KernelCall | None] = ContextVar("edictum_kernel_call", default=None)


async def note_exceptions(context: Any, next: Any) -> None:
    """Pass an exception to the call that it belongs to; a function may invoke others and handle
    their failures.
    """
    call = CURRENT_CALL.get()
    try:
        await next(context)
    except Exception as exc:
        if call is not None and context.arguments is call.arguments:
            call.error = exc
        raise
