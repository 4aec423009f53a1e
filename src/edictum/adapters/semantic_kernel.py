"""Semantic Kernel: ``SemanticKernelAdapter(guard).register(kernel)`` governs every function that a model of this kernel calls.

Two filters are needed. The one around automatic calls knows the call id and gives the result, but never sees an exception: Semantic
Kernel has made text of it before. The one around every invocation sees it, and hands it over.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ClassVar, Unpack

from edictum.adapters._base import CANARY, Adapter, AdapterOptions, OnWarn, Reply
from edictum.execution.portal import PORTAL

FAILED = "An error occurred while invoking the function {}: {}"  # what Semantic Kernel makes of an exception


class SemanticKernelAdapter(Adapter):
    """Governs the functions of a kernel: ``SemanticKernelAdapter(guard).register(kernel)``."""

    requires: ClassVar = {"semantic-kernel": ("1.45", "2")}

    def __init__(self, *args: Any, terminate_on_deny: bool = False, **options: Unpack[AdapterOptions]) -> None:
        """``terminate_on_deny`` ends the run at a denial: the model is not asked again, and never reads the reason."""
        super().__init__(*args, **options)
        self._terminate_on_deny = terminate_on_deny

    def register(self, kernel: Any, on_postcondition_warn: OnWarn | None = None) -> None:
        """Register before other filters: the first one is the outermost, and copies of the kernel keep them all."""
        types, result = self.load("semantic_kernel.filters").FilterTypes, self.load("semantic_kernel.functions").FunctionResult

        # Both are functions: a kernel that is cloned makes deep copies of its filters, so of everything that a method is bound to.
        async def govern(context: Any, next: Any) -> None:
            call = Invocation(context, result)

            async def body(args: dict[str, Any]) -> Any:
                return await call.run(args, next)

            reply = await self.acall(context.function.name, call.args, body, call_id=call.id, flag=call.flag, on_warn=on_postcondition_warn)
            call.answer(reply)
            if reply.denied and self._terminate_on_deny:
                context.terminate = True

        kernel.add_filter(types.AUTO_FUNCTION_INVOCATION, govern)
        if not any(known is note_exceptions for _, known in kernel.function_invocation_filters):
            kernel.add_filter(types.FUNCTION_INVOCATION, note_exceptions)

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        """A copy of the kernel, to which the canary is added, is asked to call it; an agent is asked through its kernel."""
        contents, functions = self.load("semantic_kernel.contents"), self.load("semantic_kernel.functions")
        kernel = getattr(target, "kernel", target)
        if kernel is None:
            kernel = self.load("semantic_kernel").Kernel()
            self.register(kernel)
        asked, history = kernel.clone(), contents.ChatHistory()
        asked.add_function("edictum", functions.kernel_function(name=CANARY, description="Must not run.")(tool))
        call = contents.FunctionCallContent(id=CANARY, plugin_name="edictum", function_name=CANARY, arguments="{}")
        PORTAL.run(asked.invoke_function_call(call, history))
        return str(history.messages[-1].items[0].result)


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
        # What else a run carries along (the history, settings) is none of the function's business, unless it asks for everything.
        self.args = {name: context.arguments[name] for name in context.arguments if name in names or "arguments" in names}

    async def run(self, args: dict[str, Any], next: Any) -> Any:
        context, function, none_yet = self._context, self._context.function, self._context.function_result
        for gone in self.args.keys() - args.keys():  # a hook has left them out
            del context.arguments[gone]
        context.arguments.update(args)
        # Semantic Kernel calls plain functions in the event loop, where nothing can end the wait for them. A call with a deadline is
        # a task of its own; its function runs in a thread, as those of the guard's other calls do.
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
        """The error in a result's metadata; and what another filter raised, which Semantic Kernel has made text of."""
        error = self._context.function_result.metadata.get("error")
        return str(error) if error else "it could not be invoked" if self._swallowed else None

    def answer(self, reply: Reply) -> None:
        context, error = self._context, reply.error
        if error is not None and self.error is None:
            raise error
        value = FAILED.format(context.function.fully_qualified_name, error) if error is not None else reply.get()
        if error is None and value is self._shown and not reply.failed:
            return
        known = context.function_result.metadata if value is self._shown else {}
        metadata = {"error": str(value), **known} if reply.failed and error is None else known  # Semantic Kernel marks no exception
        context.function_result = self._new_result(function=context.function.metadata, value=value, metadata=metadata)


def in_thread(function: Any) -> Any:
    """A copy of a function of the kernel whose plain method is run in a thread."""
    method = getattr(function, "method", None)
    if method is None or any(
        kind(method) for kind in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    ):
        return function

    async def run(**args: Any) -> Any:
        value = await asyncio.to_thread(method, **args)
        return await value if inspect.isawaitable(value) else value

    return function.model_copy(update={"method": run})


# The automatic call that is being made in this context; parallel calls are tasks with contexts of their own.
CURRENT: ContextVar[Invocation | None] = ContextVar("edictum_invocation", default=None)


async def note_exceptions(context: Any, next: Any) -> None:
    """Hand an exception over to the call that it belongs to; a function may itself invoke others, whose failures are its own business."""
    call = CURRENT.get()
    try:
        await next(context)
    except Exception as exc:
        if call is not None and context.arguments is call.arguments:
            call.error = exc
        raise
