"""Run tool bodies on other machines, by Celery.

The governing side sends a call by the name of its function and waits for ``ok``, ``error``,
``timeout`` (the worker's hard limit killed it) or ``lost`` (its process died); no answer by the
deadline is ``unknown``. Servers are asked in threads, which are left behind when no answer comes.

A side effect is never run twice, whatever the broker delivers again: a call is claimed in Redis
before its body begins, by one atomic step. The governing side makes the same claim when it stops
waiting: if its claim comes first, the body never begins.

Workers run only the functions that they were given, and everything travels as JSON: code that can
write to the broker can call tools, but not bring code of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from functools import lru_cache
from time import perf_counter
from types import ModuleType
from typing import Any

import redis
from celery import Celery, Task, signals
from celery.exceptions import TimeLimitExceeded
from celery.worker.request import Request
from kombu.exceptions import OperationalError
from kombu.utils import json

from edictum._logs import EXECUTION_UNREADABLE, log
from edictum.core.decide import describe, type_and_text
from edictum.core.effects import Ran, RunTool
from edictum.core.freeze import thaw_args
from edictum.errors import BackendError, EdictumConfigError
from edictum.execution.engines import MAX_RESULT_BYTES
from edictum.execution.failures import Lost, NotReturned, NotStarted, RemoteError
from edictum.execution.forks import call_in_child
from edictum.execution.portal import run_engine_sync
from edictum.execution.threads import DaemonPool
from edictum.execution.trace_context import enter_context, write_context
from edictum.execution.waiting import wait_done

TASK = "edictum.run"
TRACE_CONTEXT = "edictum_trace_context"  # a header of the message
DEFAULT_TIMEOUT_S = 300.0
# How long after the deadline a worker's answer is waited for, and whether a call can be withdrawn.
ANSWER_GRACE_S = 0.25
# How long after its deadline a worker still accepts a call: more than clocks differ.
EXPIRES_LATE_S = 3_600  # less than CLAIM_TTL_S
CLAIM_TTL_S = 86_400  # for how long claims are kept; no call may take longer
POLL_S = 1.0
ANSWER_S = 5.0  # after which a server that does not answer is taken to be away; more than POLL_S
BROKER_LOST = (redis.RedisError, OperationalError, OSError)
SEND_S = 30.0  # the same where large values are sent: a socket counts the time for all of one
# Calls that the broker has not taken and that are no longer waited for. Each holds a thread.
MAX_HUNG = 64
MAINTAIN_EVERY_S = 0.2  # how often a worker checks whether one of its processes has died

# Celery's own, which know dates, decimals, UUIDs and bytes.
_dumps: Callable[[Any], str] = json.dumps
_loads: Callable[[str | bytes], Any] = json.loads
_HELPERS = DaemonPool("edictum-celery")  # Celery's client blocks

# --- The worker's side ----------------------------------------------------------------------------


def worker_app(url: str, *tools: Callable[..., Any] | ModuleType) -> Celery:
    """Return a Celery app for workers that run these tools: ``celery -A your_module worker``."""
    return serve_tools(Celery("edictum", broker=_redis_url(url)), *tools)


def serve_tools(app: Celery, *tools: Callable[..., Any] | ModuleType) -> Celery:
    """Have the workers of an app run these functions, or all public functions of these modules."""
    known = {reference(tool): tool for given in tools for tool in _functions(given)}
    app.conf.worker_prefetch_multiplier = 1
    options = app.conf.broker_transport_options or {}
    app.conf.broker_transport_options = {"visibility_timeout": CLAIM_TTL_S, **options}
    signals.worker_process_init.connect(_lead_process_group)
    signals.worker_ready.connect(_maintain_often)
    url = results_url(app)

    @app.task(
        name=TASK,
        base=_ToolTask,
        bind=True,
        acks_late=True,
        reject_on_worker_lost=False,
        ignore_result=True,
        max_retries=0,
    )  # type: ignore[untyped-decorator]  # Celery has no types
    def run(task: Task, name: str, args: dict[str, Any]) -> None:
        results = _connect(url)
        if _claim(results, task.request.id, "begun"):
            with _enter_context(task.request):
                outcome = _outcome(known, name, args)
            _report(results, task.request.reply_to, task.request.id, **outcome)

    return app


def _enter_context(request: Any) -> contextlib.AbstractContextManager[None]:
    """Return the trace context of the call, to be entered; nothing where it came with none."""
    carrier = (request.headers or {}).get(TRACE_CONTEXT)
    return enter_context(carrier) if isinstance(carrier, dict) else contextlib.nullcontext()


def _lead_process_group(**_: Any) -> None:
    """Make this process lead a group: Celery then kills a tool's children with it."""
    os.setpgrp()


def _maintain_often(sender: Any, **_: Any) -> None:
    """Check often for dead worker processes; Celery itself looks at once, and then only after five
    seconds.
    """
    hub = getattr(sender, "hub", None)
    # a worker that connects again is ready again
    if hub is not None and not getattr(hub, "edictum_maintains", False):
        hub.edictum_maintains = True
        hub.call_repeatedly(MAINTAIN_EVERY_S, sender.pool.maintain_pool)


def reference(function: Callable[..., Any]) -> str:
    """Return the name by which both sides know a function."""
    return f"{function.__module__}:{function.__qualname__}"


def _functions(given: Callable[..., Any] | ModuleType) -> list[Callable[..., Any]]:
    if not isinstance(given, ModuleType):
        return [_unwrap_spec(given)]
    held = [_unwrap_spec(value) for name, value in vars(given).items() if not name.startswith("_")]
    defined = [value for value in held if inspect.isfunction(value)]
    return [function for function in defined if function.__module__ == given.__name__]


def _unwrap_spec(tool: Any) -> Any:
    """Return the function of a ToolSpec, which a module may hold in its place."""
    return getattr(tool, "body", None) or tool


class _ToolRequest(Request):  # type: ignore[misc]  # Celery has no types
    """Reports the end of the process that runs the body, from the worker's main process."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        super().on_timeout(soft, timeout)
        if not soft:
            self._report("timeout")

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        """Report the end of the process: what a tool raises is reported by the task itself."""
        why = getattr(exc_info.exception, "exc", exc_info.exception)
        if not isinstance(why, TimeLimitExceeded):
            self._report("lost", text=describe(why))
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def _report(self, status: str, **more: Any) -> None:
        _report(_connect(results_url(self.task.app)), self.reply_to, self.id, status=status, **more)


class _ToolTask(Task):  # type: ignore[misc]  # Celery has no types
    Request = _ToolRequest


def _outcome(
    tools: dict[str, Callable[..., Any]], name: str, args: dict[str, Any]
) -> dict[str, Any]:
    tool = tools.get(name)
    if tool is None:
        return {"status": "refused", "text": f"{name} is not a tool of this worker"}
    try:
        value = tool(**args)
        if inspect.isawaitable(value):
            value = asyncio.run(_await(value))
    except BaseException as exc:  # a tool's SystemExit is its failure, not the worker's end
        return {"status": "error", "type": type(exc).__name__, "text": describe(exc)}
    try:
        packed = _dumps(value)
    except Exception as exc:
        return {"status": "unsent", "text": type_and_text(exc)}
    if len(packed) > MAX_RESULT_BYTES:
        size = f"it has {len(packed)} characters"
        return {"status": "unsent", "text": f"{size}, more than the {MAX_RESULT_BYTES} allowed"}
    return {"status": "ok", "value": packed}


async def _await(value: Any) -> Any:
    return await value


def _report(results: redis.Redis, reply_to: str, call: str, **reply: Any) -> None:
    with results.pipeline() as pipe:
        pipe.lpush(reply_to, _dumps({"call": call, **reply}))
        pipe.expire(reply_to, CLAIM_TTL_S)
        pipe.execute()


# --- Both sides -----------------------------------------------------------------------------------


def _redis_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{({'celery': 'redis', 'celerys': 'rediss'}).get(scheme, scheme)}://{rest}"


def results_url(app: Celery) -> str:
    """Return where the answers go: the app's result backend, or its broker, whichever is Redis."""
    for url in (app.conf.result_backend, app.conf.broker_url):
        if isinstance(url, str) and url.startswith(("redis://", "rediss://", "unix://")):
            return url
    hint = "Set its broker or result_backend to redis://..."
    raise EdictumConfigError("The Celery app has no Redis to answer by.", hint=hint)


@lru_cache(maxsize=8)
def _connect(url: str) -> redis.Redis:
    return _client(url, SEND_S)


def _client(url: str, wait_s: float) -> redis.Redis:
    """Return a client that waits this long for an answer, unless the URL says otherwise."""
    return redis.Redis.from_url(
        url, health_check_interval=30, socket_timeout=wait_s, socket_connect_timeout=wait_s
    )


def _claim(results: redis.Redis, call: str, how: str) -> bool:
    """Claim a call, to begin it or to withdraw it. Return False if it was claimed before."""
    return bool(results.set(f"edictum:call:{call}", how, nx=True, ex=CLAIM_TTL_S))


# --- The governing side ---------------------------------------------------------------------------


def _client_app(url: str) -> Celery:
    """Return an app that does not retry: the harness retries, and knows the deadline."""
    options = {"max_retries": 0, "socket_timeout": SEND_S, "socket_connect_timeout": ANSWER_S}
    return Celery(
        "edictum", broker=_redis_url(url), set_as_current=False, broker_transport_options=options
    )


class CeleryEngine:
    """Sends bodies to Celery workers; ``Edictum(execution="celery://host:6379/0")`` makes one.

    ``default_timeout_s`` holds for calls without a ``timeout_s``: each must have an end.
    """

    def __init__(
        self,
        app: Celery | str,
        *,
        default_timeout_s: float = DEFAULT_TIMEOUT_S,
        queue: str | None = None,
    ) -> None:
        self.app = _client_app(app) if isinstance(app, str) else app
        self.results = _client(results_url(self.app), ANSWER_S)
        self.default_timeout_s = default_timeout_s
        self.queue = queue
        self._id = uuid.uuid4().hex
        self._has_warned = False
        self._reset()
        call_in_child(self._reset)

    def _reset(self) -> None:
        """Start anew: a forked child has none of the threads, and the lock may be held by one."""
        self._lock = threading.Lock()
        self._waiting: dict[str, Future[dict[str, Any]]] = {}
        self._listener: threading.Thread | None = None
        self._closed = threading.Event()
        self._hung: set[Future[None]] = set()

    async def run(self, effect: RunTool) -> Ran:
        call = _Call(self, effect)
        try:
            call.start()
            if not await wait_done(call.reply, call.left_s):
                _start_helper(call.withdraw)
                await wait_done(call.reply, ANSWER_GRACE_S)
            # in a thread: a large result takes a while to be read
            ran: Ran = await asyncio.wrap_future(_HELPERS.submit(call.end))
            return ran
        except asyncio.CancelledError as exc:
            with contextlib.suppress(asyncio.CancelledError):
                await wait_done(call.abort(), ANSWER_GRACE_S)  # the program may be about to end
            return Ran(None, exc, call.elapsed_s, cancelled=True, body_may_be_running=True)

    def run_sync(self, effect: RunTool) -> Ran:
        return run_engine_sync(self.run, effect)

    def check(self, wait_s: float = 1.0) -> None:
        """Raise if the broker does not answer, or no worker that takes remote control.

        A connection that was kept from before the broker was restarted says nothing about it: the
        second attempt makes a new one.
        """
        try:
            with contextlib.suppress(*BROKER_LOST):
                return self._check(wait_s)
            self._check(wait_s)
        except BROKER_LOST as exc:
            message = f"The broker of Celery does not answer: {describe(exc)}"
            raise BackendError(message) from exc

    def _check(self, wait_s: float) -> None:
        self.results.ping()
        if not self.app.control.ping(timeout=wait_s, limit=1):
            raise BackendError(f"No Celery worker answers within {wait_s:g} s.")

    def close(self) -> None:
        """Stop listening. Calls that are under way end at their deadlines."""
        self._closed.set()
        if self._listener is not None:
            self._listener.join(2 * POLL_S)
        self.results.close()

    def expect(self, call: str, reply: Future[dict[str, Any]]) -> str:
        """Have the answer to this call set in ``reply``. Return where it must be sent to."""
        with self._lock:
            self._waiting[call] = reply
            inbox = f"edictum:replies:{self._id}:{os.getpid()}"  # a forked child has its own
            if self._listener is None or not self._listener.is_alive() or self._closed.is_set():
                self._closed = threading.Event()  # a listener that was told to stop does stop
                work, given = self._listen, (inbox, self._closed)
                self._listener = threading.Thread(
                    target=work, args=given, name="edictum-replies", daemon=True
                )
                self._listener.start()
        return inbox

    def forget(self, call: str) -> None:
        with self._lock:
            self._waiting.pop(call, None)

    def _listen(self, inbox: str, closed: threading.Event) -> None:
        """Receive the answers to all calls, on one connection."""
        while not closed.is_set():
            try:
                got: Any = self.results.blpop([inbox], timeout=POLL_S)
            except Exception:  # the server is away, or sends what is not text
                closed.wait(POLL_S)
                continue
            if got is not None:
                self._deliver(got[1])

    def _deliver(self, packed: bytes) -> None:
        try:
            reply = _loads(packed)
            if not isinstance(reply, dict) or not isinstance(reply.get("call"), str):
                raise ValueError("it does not say which call it answers")
        except Exception as exc:  # other calls still wait for their answers
            if not self._has_warned:
                self._has_warned = True
                what = "A message among the answers of Celery workers"
                log(
                    EXECUTION_UNREADABLE,
                    "%s cannot be read and is skipped: %s",
                    what,
                    type_and_text(exc),
                )
            return
        with self._lock:
            waiting = self._waiting.pop(reply["call"], None)
        if waiting is not None:  # else it comes too late, or twice
            _set_answer(waiting, reply)

    def count_hung(self, sending: Future[None]) -> None:
        """Count a call as hung until the broker has taken it or refused it."""
        with self._lock:
            self._hung.add(sending)
        sending.add_done_callback(self._hung.discard)

    @property
    def hung(self) -> int:
        return len(self._hung)


def _set_answer(waiting: Future[dict[str, Any]], reply: dict[str, Any]) -> None:
    """Set the answer unless there is one already: a broker may break off while a worker answers."""
    with contextlib.suppress(InvalidStateError):
        waiting.set_result(reply)


def _start_helper(function: Callable[[], None]) -> Future[None]:
    """Have a thread ask a server, if a thread can be started; the worker's hard limit holds in any
    case.
    """
    with contextlib.suppress(NotStarted):
        return _HELPERS.submit(function)
    nothing: Future[None] = Future()
    nothing.set_result(None)
    return nothing


class _Call:
    """One call under way. ``start`` and ``abort`` return at once, the others may block."""

    def __init__(self, engine: CeleryEngine, effect: RunTool) -> None:
        self._engine, self._effect = engine, effect
        self._started = perf_counter()
        self._timeout_s = effect.timeout_s or engine.default_timeout_s
        self._id = uuid.uuid4().hex
        self._trace_context = write_context()  # here, because another thread sends
        self._sending: Future[None] = Future()
        self._claiming = threading.Lock()
        self._withdrawn: bool | None = None
        self.reply: Future[dict[str, Any]] = Future()
        self.reply.set_running_or_notify_cancel()

    @property
    def elapsed_s(self) -> float:
        return perf_counter() - self._started

    @property
    def left_s(self) -> float:
        return max(0.0, self._timeout_s - self.elapsed_s)

    def start(self) -> None:
        if self._engine.hung >= MAX_HUNG:
            text = f"{MAX_HUNG} earlier calls are still waiting for the broker to take them"
            self._answer("refused", text)
            return
        try:
            self._sending = _HELPERS.submit(self._send)
        except NotStarted as exc:
            self._answer("refused", str(exc))

    def _answer(self, status: str, text: str = "") -> None:
        _set_answer(self.reply, {"status": status, "text": text})

    def _send(self) -> None:
        """Send the call. What keeps it from being sent becomes its answer."""
        try:
            self._publish(self._message(), self._engine.expect(self._id, self.reply))
        except NotStarted as exc:
            self._answer("refused", str(exc))
        except Exception as exc:  # of the broker, which may have the call nevertheless
            self._engine.forget(self._id)
            status = "refused" if self._try_withdraw() else "lost"
            self._answer(status, f"the broker did not take the call: {type_and_text(exc)}")

    def _publish(self, message: tuple[str, dict[str, Any]], inbox: str) -> None:
        app = self._engine.app
        # Celery itself would wait without an end
        with app.producer_pool.acquire(block=True, timeout=self.left_s) as producer:
            app.send_task(
                TASK,
                message,
                task_id=self._id,
                reply_to=inbox,
                queue=self._engine.queue,
                serializer="json",
                producer=producer,
                time_limit=self._timeout_s,
                expires=self._timeout_s + EXPIRES_LATE_S,
                ignore_result=True,
                retry=False,
                headers=self._list_headers(),
            )

    def _list_headers(self) -> dict[str, Any]:
        return {TRACE_CONTEXT: self._trace_context} if self._trace_context else {}

    def _message(self) -> tuple[str, dict[str, Any]]:
        body, args = self._effect.body, thaw_args(self._effect.call.args)
        name = getattr(body, "__qualname__", "<")
        if body is None or "<" in name or body.__module__ == "__main__":
            problem = f"{body!r} has no name by which a worker could know it"
            raise NotStarted(f"{problem}. Define it at the top of a module")
        try:
            _dumps(args)
        except Exception as exc:
            raise NotStarted(f"the arguments cannot be sent as JSON: {type_and_text(exc)}") from exc
        return reference(body), args

    def _try_withdraw(self) -> bool:
        """Claim the call, once, so that it is not begun. Return False if it may have begun."""
        with self._claiming:
            if self._withdrawn is None:
                self._withdrawn = False
                with contextlib.suppress(redis.RedisError):
                    self._withdrawn = _claim(self._engine.results, self._id, "withdrawn")
            return self._withdrawn

    def withdraw(self) -> None:
        """Answer a call whose time is over, unless it has begun: then a worker may still answer."""
        if self._try_withdraw():
            self._answer("withdrawn")

    def abort(self) -> Future[None]:
        """Keep the call from being begun, or have its process killed."""
        self._engine.forget(self._id)
        return _start_helper(self._kill)

    def _kill(self) -> None:
        if not self._try_withdraw():
            app = self._engine.app
            # not from the pool: a thread that holds one and needs a second may wait without an end
            with app.connection_for_write() as connection:
                app.control.revoke(
                    self._id, terminate=True, signal="SIGKILL", connection=connection
                )

    def end(self) -> Ran:
        self._engine.forget(self._id)
        reply = self.reply.result() if self.reply.done() else {"status": "unknown"}
        # with another status a worker has answered before the broker did
        if self._sending.running() and reply.get("status") in ("unknown", "withdrawn"):
            self._engine.count_hung(self._sending)
        try:
            return self._read_reply(reply, reply.get("text", ""))
        except Exception as exc:  # it lacks something, or has a value that is not JSON
            return self._report_loss(f"its answer cannot be read: {type_and_text(exc)}")

    def _report_loss(self, text: str) -> Ran:
        lost = f"Tool {self._effect.call.tool_name!r} was lost: {text}"
        return Ran(None, Lost(lost), self.elapsed_s, lost=lost)

    def _read_reply(self, reply: dict[str, Any], text: str) -> Ran:
        elapsed_s, deadline_s = self.elapsed_s, self._started + self._timeout_s
        match reply["status"]:
            case "ok":
                return Ran(_loads(reply["value"]), None, elapsed_s)
            case "error":
                return Ran(None, RemoteError(f"{reply['type']}: {text}", reply["type"]), elapsed_s)
            case "unsent":
                error = NotReturned(f"It ended, but its result cannot be sent back: {text}")
                return Ran(None, error, elapsed_s)
            case "refused":
                refused = f"Tool {self._effect.call.tool_name!r} was not started: {text}."
                return Ran(None, NotStarted(refused), elapsed_s, not_started=True)
            case "timeout":
                return Ran(None, None, elapsed_s, deadline_s)
            case "lost":
                return self._report_loss(text)
            case "withdrawn":
                return Ran(None, None, elapsed_s, deadline_s, not_started=True)
            case "unknown":
                return Ran(None, None, elapsed_s, deadline_s, body_may_be_running=True)
            case status:
                raise ValueError(f"{status!r} is not a status")
