"""Running tool bodies on other machines, by Celery.

Celery does the work: queues, routing, worker processes, hard time limits. Here is what it leaves
open. The governing side sends a call by the name of its function and waits for one of five answers:
``ok``, ``error``, ``timeout`` (the worker's hard limit killed it), ``lost`` (its process died), or
none at all by the deadline, which is ``unknown``. It waits for nothing else: whatever asks a server
does so in a thread that is left behind when no answer comes, so a broker that is silent makes no
call end late.

A side effect is never run twice, whatever the broker delivers again: a call is claimed in Redis
before its body begins, by one atomic step, and a call that is claimed is not begun. The governing
side uses the same step when it stops waiting: if its claim comes first, the body has not begun and
never will.

Workers run only the functions that they were given, and everything travels as JSON: whoever can
write to the broker can call tools, but not bring code of his own.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import wait as wait_for_any
from functools import lru_cache
from types import ModuleType
from typing import Any

import redis
from celery import Celery, Task, signals
from celery.exceptions import TimeLimitExceeded
from celery.worker.request import Request
from kombu.utils import json

from edictum.core.effects import Ran, RunTool
from edictum.core.freeze import thaw_args
from edictum.errors import EdictumConfigError
from edictum.execution.failures import Lost, NotReturned, NotStarted, RemoteError
from edictum.execution.threads import DaemonPool
from edictum.execution.waiting import wait_done

TASK = "edictum.run"
DEFAULT_TIMEOUT_S = 300.0
# how long after the deadline the worker's own word is waited for, and whether the call could be
# withdrawn
GRACE_S = 0.25
# how long after its deadline a worker still looks at a call: less than claims are kept, more than
# clocks differ
LATE_S = 3_600
KEPT_S = 86_400  # for how long claims are kept; no call may take longer
MAX_RESULT_BYTES = 64 << 20
LISTEN_S = 1.0
ANSWER_S = 5.0  # after which a server that does not answer is taken to be away; more than LISTEN_S
SEND_S = 30.0  # the same where large values are sent: a socket counts the time for all of one
MAX_HUNG = (
    64  # sent calls of which the broker says nothing and that nobody waits for; each holds a thread
)
LOOK_S = 0.2  # how often a worker looks whether one of its processes has died

dumps: Callable[[Any], str] = (
    json.dumps
)  # Celery's own, which knows dates, decimals, UUIDs and bytes
loads: Callable[[str | bytes], Any] = json.loads
HELPERS = DaemonPool("edictum-celery")  # Celery's client blocks
clock = time.perf_counter
logger = logging.getLogger("edictum")


# --- The worker's side ----------------------------------------------------------------------------


def worker_app(url: str, *tools: Callable[..., Any] | ModuleType) -> Celery:
    """A Celery app for workers that run these tools: ``celery -A your_module worker``."""
    return serve_tools(Celery("edictum", broker=_redis_url(url)), *tools)


def serve_tools(app: Celery, *tools: Callable[..., Any] | ModuleType) -> Celery:
    """Have the workers of an app run these functions, or all public functions that these modules
    define.
    """
    known = {reference(tool): tool for given in tools for tool in _functions(given)}
    app.conf.worker_prefetch_multiplier = 1
    app.conf.broker_transport_options = {
        "visibility_timeout": KEPT_S,
        **(app.conf.broker_transport_options or {}),
    }
    signals.worker_process_init.connect(_lead_a_group)
    signals.worker_ready.connect(_look_often)
    url = results_url(app)

    @app.task(
        name=TASK,
        base=_ToolTask,
        bind=True,
        acks_late=True,
        reject_on_worker_lost=False,
        ignore_result=True,
        max_retries=0,
    )  # type: ignore[untyped-decorator]
    def run(task: Task, name: str, args: dict[str, Any]) -> None:
        results = _connect(url)
        if results.set(_claim(task.request.id), "begun", nx=True, ex=KEPT_S):
            _report(results, task.request.reply_to, task.request.id, **_outcome(known, name, args))

    return app


def _lead_a_group(**_: Any) -> None:
    """Celery kills the process group of a worker process that leads one: then the children of a
    tool die with it.
    """
    os.setpgrp()


def _look_often(sender: Any, **_: Any) -> None:
    """Notice a dead process at once. Celery looks when one closes its pipe, and may be there before
    the kernel has ended it: then it looks again only after five seconds.
    """
    hub = getattr(sender, "hub", None)
    if hub is not None and not getattr(
        hub, "edictum_looks", False
    ):  # a worker that connects again is ready again
        hub.edictum_looks = True
        hub.call_repeatedly(LOOK_S, sender.pool.maintain_pool)


def reference(function: Callable[..., Any]) -> str:
    """The name by which both sides know a function."""
    return f"{function.__module__}:{function.__qualname__}"


def _functions(given: Callable[..., Any] | ModuleType) -> list[Callable[..., Any]]:
    if not isinstance(given, ModuleType):
        return [_undecorated(given)]
    held = [_undecorated(value) for name, value in vars(given).items() if not name.startswith("_")]
    defined = [value for value in held if inspect.isfunction(value)]
    return [function for function in defined if function.__module__ == given.__name__]


def _undecorated(tool: Any) -> Any:
    """The function, as a turn calls it, where a module holds a ToolSpec in its place."""
    return getattr(tool, "body", None) or tool


class _ToolRequest(Request):  # type: ignore[misc]
    """Lives in the worker's main process, so it survives the end of the process that runs the body,
    and can tell of it.
    """

    def on_timeout(self, soft: bool, timeout: float) -> None:
        super().on_timeout(soft, timeout)
        if not soft:
            self._tell("timeout")

    def on_failure(
        self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False
    ) -> Any:
        """What a tool raises is reported by the task itself, so this is the end of the process that
        ran it.
        """
        why = getattr(exc_info.exception, "exc", exc_info.exception)
        if not isinstance(why, TimeLimitExceeded):
            self._tell("lost", text=_text(why))
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def _tell(self, status: str, **more: Any) -> None:
        _report(_connect(results_url(self.task.app)), self.reply_to, self.id, status=status, **more)


class _ToolTask(Task):  # type: ignore[misc]
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
            value = asyncio.run(_settled(value))
    except (
        BaseException
    ) as exc:  # SystemExit of a tool is the tool's failure, not the end of the worker
        return {"status": "error", "type": type(exc).__name__, "text": _text(exc)}
    try:
        packed = dumps(value)
    except Exception as exc:
        return {"status": "unsent", "text": f"{type(exc).__name__}: {_text(exc)}"}
    if len(packed) > MAX_RESULT_BYTES:
        return {
            "status": "unsent",
            "text": (
                f"it has {len(packed)} characters, more than the {MAX_RESULT_BYTES} that are"
                " allowed"
            ),
        }
    return {"status": "ok", "value": packed}


async def _settled(value: Any) -> Any:
    return await value


def _text(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:
        return f"<{type(exc).__name__} whose str() raises>"


def _report(results: redis.Redis, reply_to: str, call: str, **reply: Any) -> None:
    with results.pipeline() as pipe:
        pipe.lpush(reply_to, dumps({"call": call, **reply}))
        pipe.expire(reply_to, KEPT_S)
        pipe.execute()


# --- Both sides -----------------------------------------------------------------------------------


def _redis_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{({'celery': 'redis', 'celerys': 'rediss'}).get(scheme, scheme)}://{rest}"


def results_url(app: Celery) -> str:
    """Where the answers go: the app's result backend, or its broker, whichever is Redis."""
    for url in (app.conf.result_backend, app.conf.broker_url):
        if isinstance(url, str) and url.startswith(("redis://", "rediss://", "unix://")):
            return url
    raise EdictumConfigError(
        "The Celery app has no Redis to answer by.",
        hint="Set its broker or result_backend to redis://...",
    )


@lru_cache(maxsize=8)
def _connect(url: str) -> redis.Redis:
    return _client(url, SEND_S)


def _client(url: str, wait_s: float) -> redis.Redis:
    """A client that waits no longer than this for an answer, unless the URL says otherwise."""
    return redis.Redis.from_url(
        url, health_check_interval=30, socket_timeout=wait_s, socket_connect_timeout=wait_s
    )


def _claim(call: str) -> str:
    return f"edictum:call:{call}"


# --- The governing side ---------------------------------------------------------------------------


def _client_app(url: str) -> Celery:
    """Trying again is for the retry policy of the harness, which knows the deadline."""
    options = {"max_retries": 0, "socket_timeout": SEND_S, "socket_connect_timeout": ANSWER_S}
    return Celery(
        "edictum", broker=_redis_url(url), set_as_current=False, broker_transport_options=options
    )


class CeleryEngine:
    """Sends bodies to Celery workers. ``Edictum(execution="celery://host:6379/0")`` makes one, as
    does a Celery app.

    A call without a ``timeout_s`` gets ``default_timeout_s``: on another machine nothing may run
    without an end.
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
        self._complained = False
        self._forget()
        _ENGINES.add(self)

    def _forget(self) -> None:
        """Start anew: in the child of a fork the threads are gone, and the lock may be held by one
        of them.
        """
        self._lock = threading.Lock()
        self._waiting: dict[str, Future[dict[str, Any]]] = {}
        self._listener: threading.Thread | None = None
        self._closed = threading.Event()
        self._hung: set[Future[None]] = set()

    async def run(self, effect: RunTool) -> Ran:
        call = _Call(self, effect)
        try:
            call.start()
            if not await wait_done(call.reply, call.left_s()):
                _meanwhile(call.withdraw)
                await wait_done(call.reply, GRACE_S)
            ending = HELPERS.submit(call.end)  # a large result takes a while to be read
            await wait_done(ending)
        except asyncio.CancelledError as exc:
            call.abort()
            return Ran(None, exc, call.elapsed_s(), cancelled=True, body_may_be_running=True)
        return ending.result()  # type: ignore[no-any-return]

    def run_sync(self, effect: RunTool) -> Ran:
        call = _Call(self, effect)
        try:
            call.start()
            if not _done(call.reply, call.left_s()):
                _meanwhile(call.withdraw)
                _done(call.reply, GRACE_S)
            return call.end()
        except KeyboardInterrupt as exc:
            _done(call.abort(), GRACE_S)  # the program may be about to end
            return Ran(None, exc, call.elapsed_s(), cancelled=True, body_may_be_running=True)

    def close(self) -> None:
        """Stop listening. Calls that are under way end at their deadlines."""
        self._closed.set()
        if self._listener is not None:
            self._listener.join(2 * LISTEN_S)
        self.results.close()

    def expect(self, call: str, reply: Future[dict[str, Any]]) -> str:
        """Hand the answer to this call to ``reply``; returns where it must be sent to."""
        with self._lock:
            self._waiting[call] = reply
            inbox = f"edictum:replies:{self._id}:{os.getpid()}"  # a forked child is somebody else
            if self._listener is None or not self._listener.is_alive() or self._closed.is_set():
                self._closed = threading.Event()  # one that was told to stop does not go on
                self._listener = threading.Thread(
                    target=self._listen,
                    args=(inbox, self._closed),
                    name="edictum-replies",
                    daemon=True,
                )
                self._listener.start()
        return inbox

    def forget(self, call: str) -> None:
        with self._lock:
            self._waiting.pop(call, None)

    def _listen(self, inbox: str, closed: threading.Event) -> None:
        """One connection for the answers to all calls."""
        while not closed.is_set():
            try:
                got: Any = self.results.blpop([inbox], timeout=LISTEN_S)
            # the server is away, or sends what is not even text; calls that wait end at their
            # deadlines
            except Exception:
                closed.wait(LISTEN_S)
                continue
            if got is not None:
                self._deliver(got[1])

    def _deliver(self, packed: bytes) -> None:
        try:
            reply = _read(packed)
        except Exception as exc:  # whoever wrote it, other calls wait for their answers
            self._complain(exc)
            return
        with self._lock:
            waiting = self._waiting.pop(reply["call"], None)
        if waiting is not None:  # else it comes too late, or twice
            _answer(waiting, reply)

    def _complain(self, exc: Exception) -> None:
        if not self._complained:
            self._complained = True
            why = f"{type(exc).__name__}: {_text(exc)}"
            logger.warning(
                "A message among the answers of Celery workers cannot be read and is skipped: %s",
                why,
            )

    def hangs(self, sending: Future[None]) -> None:
        """Nobody waits any more for the broker to take this call. Counted until it does, or the
        connection ends.
        """
        with self._lock:
            self._hung.add(sending)
        sending.add_done_callback(self._hung.discard)

    @property
    def hung(self) -> int:
        return len(self._hung)


_ENGINES: weakref.WeakSet[CeleryEngine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in list(_ENGINES):
        engine._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _read(packed: bytes) -> dict[str, Any]:
    reply = loads(packed)
    if not isinstance(reply, dict) or not isinstance(reply.get("call"), str):
        raise ValueError("it does not say which call it answers")
    return reply


def _answer(waiting: Future[dict[str, Any]], reply: dict[str, Any]) -> None:
    """The first answer counts: a broker may break off while a worker answers."""
    with contextlib.suppress(InvalidStateError):
        waiting.set_result(reply)


def _meanwhile(function: Callable[[], None]) -> Future[None]:
    """Have a thread ask a server. If the machine has no thread left, it is not asked, and the
    worker's hard limit remains.
    """
    with contextlib.suppress(NotStarted):
        return HELPERS.submit(function)
    nothing: Future[None] = Future()
    nothing.set_result(None)
    return nothing


def _done(future: Future[Any], timeout_s: float) -> bool:
    wait_for_any((future,), timeout_s)
    return future.done()


class _Call:
    """One call under way. ``start`` and ``abort`` return at once, the others may block."""

    def __init__(self, engine: CeleryEngine, effect: RunTool) -> None:
        self._engine, self._effect = engine, effect
        self._started = clock()
        self._timeout_s = effect.timeout_s or engine.default_timeout_s
        self._id = uuid.uuid4().hex
        self._sending: Future[None] = Future()
        self._claiming = threading.Lock()
        self._withdrawn: bool | None = None
        self.reply: Future[dict[str, Any]] = Future()
        self.reply.set_running_or_notify_cancel()

    def elapsed_s(self) -> float:
        return clock() - self._started

    def left_s(self) -> float:
        return max(0.0, self._timeout_s - self.elapsed_s())

    def start(self) -> None:
        if self._engine.hung >= MAX_HUNG:
            self._answer(
                "refused", f"{MAX_HUNG} earlier calls are still waiting for the broker to take them"
            )
            return
        try:
            self._sending = HELPERS.submit(self._send)
        except NotStarted as exc:
            self._answer("refused", str(exc))

    def _answer(self, status: str, text: str = "") -> None:
        _answer(self.reply, {"status": status, "text": text})

    def _send(self) -> None:
        """Send the call. What keeps it from being sent is its answer."""
        try:
            self._publish(self._message(), self._engine.expect(self._id, self.reply))
        except NotStarted as exc:
            self._answer("refused", str(exc))
        except Exception as exc:  # of the broker; it may have the call nevertheless
            self._engine.forget(self._id)
            status = "refused" if self._claimed() else "lost"
            self._answer(status, f"the broker did not take the call: {type(exc).__name__}: {exc}")

    def _publish(self, message: tuple[str, dict[str, Any]], inbox: str) -> None:
        app = self._engine.app
        with app.producer_pool.acquire(
            block=True, timeout=self.left_s()
        ) as producer:  # Celery itself would wait for ever
            app.send_task(
                TASK,
                message,
                task_id=self._id,
                reply_to=inbox,
                queue=self._engine.queue,
                serializer="json",
                producer=producer,
                time_limit=self._timeout_s,
                expires=self._timeout_s + LATE_S,
                ignore_result=True,
                retry=False,
            )

    def _message(self) -> tuple[str, dict[str, Any]]:
        body, args = self._effect.body, thaw_args(self._effect.call.args)
        if (
            body is None
            or not hasattr(body, "__qualname__")
            or "<" in body.__qualname__
            or body.__module__ == "__main__"
        ):
            raise NotStarted(
                f"{body!r} has no name by which a worker could know it. Define it at the top of a"
                " module"
            )
        try:
            dumps(args)
        except Exception as exc:
            raise NotStarted(
                f"the arguments cannot be sent as JSON: {type(exc).__name__}: {_text(exc)}"
            ) from exc
        return reference(body), args

    def _claimed(self) -> bool:
        """Keep the call from being begun. False: it has begun, or the claim cannot be made. Asked
        of the server only once.
        """
        with self._claiming:
            if self._withdrawn is None:
                self._withdrawn = self._claim()
            return self._withdrawn

    def _claim(self) -> bool:
        try:
            return bool(self._engine.results.set(_claim(self._id), "withdrawn", nx=True, ex=KEPT_S))
        except redis.RedisError:
            return False

    def withdraw(self) -> None:
        """The time is over. If the call has not begun it never will, and that is its answer; else a
        worker may still give one.
        """
        if self._claimed():
            self._answer("withdrawn")

    def abort(self) -> Future[None]:
        """Nobody waits any more: keep the call from being begun, or have its process killed."""
        self._engine.forget(self._id)
        return _meanwhile(self._kill)

    def _kill(self) -> None:
        if not self._claimed():
            app = self._engine.app
            with (
                app.connection_for_write() as connection
            ):  # not of the pool, where who holds one and needs a second may wait for ever
                app.control.revoke(
                    self._id, terminate=True, signal="SIGKILL", connection=connection
                )

    def end(self) -> Ran:
        self._engine.forget(self._id)
        reply = self.reply.result() if self.reply.done() else {"status": "unknown"}
        if self._sending.running() and reply.get("status") in (
            "unknown",
            "withdrawn",
        ):  # else a worker was faster than the broker's word
            self._engine.hangs(self._sending)
        try:
            return self._ran(reply, reply.get("text", ""))
        except Exception as exc:  # it lacks something, or has a value that is not JSON
            return self._lost(f"its answer cannot be read: {type(exc).__name__}: {_text(exc)}")

    def _lost(self, text: str) -> Ran:
        lost = f"Tool {self._effect.call.tool_name!r} was lost: {text}"
        return Ran(None, Lost(lost), self.elapsed_s(), lost=lost)

    def _ran(self, reply: dict[str, Any], text: str) -> Ran:
        elapsed_s, deadline_s, tool = (
            self.elapsed_s(),
            self._started + self._timeout_s,
            self._effect.call.tool_name,
        )
        match reply["status"]:
            case "ok":
                return Ran(loads(reply["value"]), None, elapsed_s)
            case "error":
                return Ran(None, RemoteError(f"{reply['type']}: {text}", reply["type"]), elapsed_s)
            case "unsent":
                return Ran(
                    None,
                    NotReturned(f"It ended, but its result cannot be sent back: {text}"),
                    elapsed_s,
                )
            case "refused":
                return Ran(
                    None,
                    NotStarted(f"Tool {tool!r} was not started: {text}."),
                    elapsed_s,
                    not_started=True,
                )
            case "timeout":
                return Ran(None, None, elapsed_s, deadline_s)
            case "lost":
                return self._lost(text)
            case "withdrawn":
                return Ran(None, None, elapsed_s, deadline_s, not_started=True)
            case "unknown":
                return Ran(None, None, elapsed_s, deadline_s, body_may_be_running=True)
            case status:
                raise ValueError(f"{status!r} is no status")
