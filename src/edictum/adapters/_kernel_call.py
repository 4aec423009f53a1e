"""A call that Semantic Kernel makes for a model, and the filter that sees what its function
raises.
"""

from __future__ import annotations

import asyncio
import inspect
from contextvars import ContextVar
from typing import Any

from edictum.adapters._base import Reply

FAILED = (  # what Semantic Kernel makes of an exception
    "An error occurred while invoking the function {}: {}"
)


class Invocation:
    """One automatic call in Semantic Kernel's terms."""

    def __init__(self, context: Any, result: Any) -> None:
        self._context, self._new_result = context, result
        self._shown: Any = None  # what the guard judged
        self._swallowed = False
        self._task = asyncio.current_task()
        self.error: Exception | None = None  # what the function raised
        self.arguments = context.arguments  # by this object the inner filter knows the call
        self.id = getattr(context.function_call_content, "id", None)
        names = [parameter.name for parameter in context.function.parameters]
        # What else a run carries along (the history, settings) is none of the function's business,
        # unless it asks for everything.
        self.args = {
            name: context.arguments[name]
            for name in context.arguments
            if name in names or "arguments" in names
        }

    async def run(self, args: dict[str, Any], next: Any) -> Any:
        context, function, none_yet = (
            self._context,
            self._context.function,
            self._context.function_result,
        )
        for gone in self.args.keys() - args.keys():  # a hook has left them out
            del context.arguments[gone]
        context.arguments.update(args)
        # Semantic Kernel calls plain functions in the event loop, where nothing can end the wait
        # for them. A call with a deadline is a task of its own; its function runs in a thread, as
        # those of the guard's other calls do.
        if asyncio.current_task() is not self._task:
            context.function = in_thread(function)
        token = CURRENT.set(self)
        try:
            await next(context)
        except BaseException:
            self.error = None  # it is another filter's, which ends the run
            raise
        finally:
            CURRENT.reset(token)
            if context.function is not function:
                context.function = function
        if self.error is not None:
            raise self.error
        self._swallowed = context.function_result is none_yet and isinstance(none_yet.value, str)
        self._shown = context.function_result.value
        return self._shown

    def flag(self, value: Any) -> str | None:
        """The error in a result's metadata; and what another filter raised, which Semantic Kernel
        has made text of.
        """
        error = self._context.function_result.metadata.get("error")
        return str(error) if error else "it could not be invoked" if self._swallowed else None

    def answer(self, reply: Reply) -> None:
        context, error = self._context, reply.error
        if error is not None and self.error is None:
            raise error
        value = (
            FAILED.format(context.function.fully_qualified_name, error)
            if error is not None
            else reply.get()
        )
        if error is None and value is self._shown and not reply.failed:
            return
        known = context.function_result.metadata if value is self._shown else {}
        metadata = (
            {"error": str(value), **known} if reply.failed and error is None else known
        )  # Semantic Kernel marks no exception
        context.function_result = self._new_result(
            function=context.function.metadata, value=value, metadata=metadata
        )


def in_thread(function: Any) -> Any:
    """A copy of a function of the kernel whose plain method is run in a thread."""
    method = getattr(function, "method", None)
    if method is None or any(
        kind(method)
        for kind in (
            inspect.iscoroutinefunction,
            inspect.isgeneratorfunction,
            inspect.isasyncgenfunction,
        )
    ):
        return function

    async def run(**args: Any) -> Any:
        value = await asyncio.to_thread(method, **args)
        return await value if inspect.isawaitable(value) else value

    return function.model_copy(update={"method": run})


# The automatic call that is being made in this context; parallel calls are tasks with contexts of
# their own.
CURRENT: ContextVar[Invocation | None] = ContextVar("edictum_invocation", default=None)


async def note_exceptions(context: Any, next: Any) -> None:
    """Hand an exception over to the call that it belongs to; a function may itself invoke others,
    whose failures are its own business.
    """
    call = CURRENT.get()
    try:
        await next(context)
    except Exception as exc:
        if call is not None and context.arguments is call.arguments:
            call.error = exc
        raise
