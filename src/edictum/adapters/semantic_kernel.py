"""Semantic Kernel: ``register(kernel)`` governs every function that a model of the kernel calls.

The filter around automatic calls knows the call id and gives the result, but Semantic Kernel has
made text of an exception before. The filter around every invocation sees it, and hands it over.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Unpack

from edictum.adapters._base import Adapter, AdapterOptions
from edictum.adapters._canary import CANARY
from edictum.adapters._reply import OnWarn
from edictum.adapters._semantic_kernel_call import (
    KernelCall,
    note_exceptions,
    read_kernel_parameters,
)
from edictum.core.parameters import ReadLater
from edictum.execution.portal import PORTAL


class SemanticKernelAdapter(Adapter):
    """Governs the functions of a kernel: ``SemanticKernelAdapter(guard).register(kernel)``."""

    requires: ClassVar = {"semantic-kernel": ("1.45", "2")}
    context_name: ClassVar = "the filter's AutoFunctionInvocationContext"

    def __init__(
        self, *args: Any, terminate_on_deny: bool = False, **options: Unpack[AdapterOptions]
    ) -> None:
        """Accept ``terminate_on_deny``: end the run at a denial, which the model never reads."""
        super().__init__(*args, **options)
        self._terminate_on_deny = terminate_on_deny

    def register(self, kernel: Any, on_postcondition_warn: OnWarn = None) -> None:
        """Register before other filters: the first is the outermost. Copies of a kernel keep it."""
        types = self.load("semantic_kernel.filters").FilterTypes
        result_class = self.load("semantic_kernel.functions").FunctionResult

        # not methods: a cloned kernel makes deep copies of all that its filters are bound to
        async def govern(context: Any, next: Any) -> None:
            call = KernelCall(context, result_class)
            if self.is_around(context, call.args):
                await next(context)
                return

            async def body(args: dict[str, Any]) -> Any:
                with self.around(context, args):
                    return await call.run(args, next)

            reply = await self.acall(
                context.function.name,
                call.args,
                body,
                call_id=call.id,
                flag=call.flag,
                on_warn=on_postcondition_warn,
                context=context,
                parameters=ReadLater(partial(read_kernel_parameters, context.function)),
            )
            call.answer(reply)
            if reply.denied and self._terminate_on_deny:
                context.terminate = True

        make = self.load("semantic_kernel.functions").kernel_function
        for reader in self._make_readers(make):
            kernel.add_function("edictum", reader)
        kernel.add_filter(types.AUTO_FUNCTION_INVOCATION, govern)
        if not any(known is note_exceptions for _, known in kernel.function_invocation_filters):
            kernel.add_filter(types.FUNCTION_INVOCATION, note_exceptions)

    def _probe(self, target: Any, tool: Callable[[], str]) -> str:
        """Ask a copy of the kernel, to which the canary is added, to call it."""
        contents = self.load("semantic_kernel.contents")
        kernel = getattr(target, "kernel", target)
        if kernel is None:
            kernel = self.load("semantic_kernel").Kernel()
            self.register(kernel)
        copy, history = kernel.clone(), contents.ChatHistory()
        decorate = self.load("semantic_kernel.functions").kernel_function
        canary = decorate(name=CANARY, description="Must not run.")(tool)
        copy.add_function("edictum", canary)
        asked = {"plugin_name": "edictum", "function_name": CANARY, "arguments": "{}"}
        call = contents.FunctionCallContent(id=CANARY, **asked)
        PORTAL.run(copy.invoke_function_call(call, history))
        return str(history.messages[-1].items[0].result)
