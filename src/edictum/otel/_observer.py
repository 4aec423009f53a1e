"""The observer: one ``execute_tool`` span for every governed call, refused ones included.

The parent is the span that is current where the call is made, such as that of a framework's step.
While the tool's body runs the span is the current one, in threads, processes and Celery workers as
well; a host that runs the tool itself, between two hooks, keeps its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from opentelemetry import context as contexts
from opentelemetry.metrics import Meter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from edictum._audit_event import AuditAction
from edictum._logs import TELEMETRY_FAILED, log
from edictum.core.config import Flow
from edictum.core.effects import Effect, RunTool
from edictum.core.events import CALL_ALLOWED, CALL_DENIED, Context, Entry
from edictum.core.redaction import shorten
from edictum.otel._attributes import (
    MAX_SAID,
    Attributes,
    describe_call,
    describe_caller,
    describe_decision,
    describe_outcome,
    exception_type,
    show_arguments,
    show_result,
)
from edictum.otel._instruments import Instruments
from edictum.outcomes import ToolDenied, ToolOutcome

# Events that the span itself represents: its beginning and its end.
TOLD: Final = frozenset(
    {CALL_ALLOWED, CALL_DENIED, AuditAction.CALL_EXECUTED, AuditAction.CALL_FAILED}
)


class CallObserver:
    """Makes spans and counts calls. With ``record_content`` spans have arguments and results."""

    def __init__(self, tracer: Tracer, meter: Meter, *, record_content: bool = False) -> None:
        self.tracer = tracer
        self.instruments = Instruments(meter)
        self.record_content = record_content
        self._has_failed = False

    def observe(self, flow: Flow, run: RunTool, context: Context, description: str) -> Flow:
        """Drive a lifecycle, and report it."""
        seen = ObservedCall(self, run, context)
        self.attempt(seen.start, description)
        try:
            effect = next(flow)
            while True:
                try:
                    self.attempt(seen.take_effect, effect)
                    answer = yield effect
                except BaseException as exc:  # the lifecycle closes the call
                    seen.leave_tool()
                    effect = flow.throw(exc)
                else:
                    seen.leave_tool()
                    effect = flow.send(answer)
        except StopIteration as end:
            outcome: ToolOutcome = end.value
            self.attempt(seen.end, outcome)
            return outcome
        except BaseException as exc:
            self.attempt(seen.end_by, exc)
            raise

    def attempt(self, report: Callable[..., None], *args: Any) -> None:
        """Report something; a failure changes nothing for the call, and is logged once."""
        try:
            report(*args)
        except Exception as exc:
            if not self._has_failed:
                self._has_failed = True
                log(TELEMETRY_FAILED, "OpenTelemetry raised; calls go on", exc_info=exc)


class ObservedCall:
    """One call under way, and its span."""

    __slots__ = (
        "_began",
        "_context",
        "_entry",
        "_inside",
        "_observer",
        "_outside",
        "_run",
        "_shows_content",
        "_span",
    )

    def __init__(self, observer: CallObserver, run: RunTool, context: Context) -> None:
        self._observer, self._run, self._context = observer, run, context
        self._span: Span | None = None
        self._shows_content = False
        self._entry: Entry | None = None
        self._inside: contexts.Context | None = None
        self._outside: contexts.Context | None = None
        self._began = (time.time_ns(), time.perf_counter_ns())

    def start(self, description: str) -> None:
        span = self._span = self._observer.tracer.start_span(
            f"execute_tool {self._run.call.tool_name}",
            kind=SpanKind.INTERNAL,
            attributes=describe_call(self._run, self._context, description),
            start_time=self._began[0],
        )
        self._shows_content = self._observer.record_content and span.is_recording()

    def take_effect(self, effect: Effect) -> None:
        """Note what the lifecycle asks for."""
        if isinstance(effect, Entry):
            self._entry = effect
            self._observer.instruments.count_entry(effect)
            if effect.action not in TOLD:
                self._add_event(effect)
        elif isinstance(effect, RunTool):
            self._run = effect
            if effect.body is not None:
                self._enter_tool()

    def _add_event(self, entry: Entry) -> None:
        said = entry.about or entry.decision
        attributes: Attributes = {}
        if said.name is not None:
            attributes["edictum.decision.name"] = said.name
        if entry.approval is not None:
            attributes["edictum.approval.id"] = entry.approval.approval_id
            if entry.approval.approver is not None:
                attributes["edictum.approval.approver"] = entry.approval.approver
        if self._span is not None:
            self._span.add_event(f"edictum.{entry.action.value}", attributes)

    def _enter_tool(self) -> None:
        """Make the span the current one: the body runs in this context, or in a copy of it."""
        if self._span is not None:
            self._outside = contexts.get_current()
            self._inside = set_span_in_context(self._span, self._outside)
            contexts.attach(self._inside)

    def leave_tool(self) -> None:
        """Make the span before the current one again, unless this is another context by now."""
        inside, self._inside = self._inside, None
        if inside is not None and self._outside is not None:
            with suppress(Exception):
                if contexts.get_current() is inside:
                    contexts.attach(self._outside)

    def end(self, outcome: ToolOutcome) -> None:
        """End the span with how the call ended."""
        said = {**self._describe_end(), **describe_outcome(outcome)}
        if self._shows_content:
            said |= show_result(outcome, self._context)
        status = None
        if "error.type" in said:
            shown = said.get("gen_ai.tool.call.result", said["error.type"])
            text = outcome.details if isinstance(outcome, ToolDenied) else str(shown)
            status = Status(StatusCode.ERROR, shorten(text, MAX_SAID))
        self._close(said, status)

    def end_by(self, error: BaseException) -> None:
        """End the span of a call that was interrupted, or that its host has dropped."""
        kind = "abandoned" if isinstance(error, GeneratorExit) else exception_type(error)
        self._close({**self._describe_end(), "error.type": kind}, Status(StatusCode.ERROR, kind))

    def _describe_end(self) -> Attributes:
        entry, context = self._entry, self._context
        call = self._run.call if entry is None else entry.call
        said = describe_caller(call, context)
        if entry is not None:
            said |= describe_decision(entry.decision, context)
        if self._shows_content:
            said |= show_arguments(call, context)
        return said

    def _close(self, said: Attributes, status: Status | None) -> None:
        began_at, started = self._began
        took = time.perf_counter_ns() - started
        if self._span is not None:
            self._span.set_attributes(said)
            if status is not None:
                self._span.set_status(status)
            self._span.end(began_at + took)
        self._observer.instruments.count_call(self._run.call.tool_name, took / 1e9, said)
