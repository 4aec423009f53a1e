"""Running tool bodies on other machines, by Celery.

Celery does the work: queues, routing, worker processes, hard time limits. Here is what it leaves open. The governing side sends
a call by the name of its function and waits for one of five answers: ``ok``, ``error``, ``timeout`` (the worker's hard limit
killed it), ``lost`` (its process died), or none at all by the deadline, which is ``unknown``.

A side effect is never run twice, whatever the broker delivers again: a call is claimed in Redis before its body begins, by one
atomic step, and a call that is claimed is not begun. The governing side uses the same step when it stops waiting: if its claim
comes first, the body has not begun and never will.

Workers run only the functions that they were given, and everything travels as JSON: whoever can write to the broker can call
tools, but not bring code of his own.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
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
from edictum.execution.tasks import wait_for
from edictum.execution.threads import DaemonPool

TASK = "edictum.run"
DEFAULT_TIMEOUT_S = 300.0
GRACE_S = 0.25  # how long after the deadline the worker's own word is waited for
KEPT_S = 86_400  # for how long claims are kept; no call may take longer
MAX_RESULT_BYTES = 64 << 20
LISTEN_S = 1.0
LOOK_S = 0.2  # how often a worker looks whether one of its processes has died

dumps: Callable[[Any], str] = json.dumps  # Celery's own, which knows dates, decimals, UUIDs and bytes
loads: Callable[[str], Any] = json.loads
HELPERS = DaemonPool("edictum-celery")  # Celery's client blocks
clock = time.perf_counter


# --- The worker's side ----------------------------------------------------------------------------------------------------


def worker_app(url: str, *tools: Callable[..., Any] | ModuleType) -> Celery:
    """A Celery app for workers that run these tools: ``celery -A your_module worker``."""
    return serve_tools(Celery("edictum", broker=_redis_url(url)), *tools)


def serve_tools(app: Celery, *tools: Callable[..., Any] | ModuleType) -> Celery:
    """Have the workers of an app run these functions, or all public functions that these modules define."""
    known = {reference(tool): tool for given in tools for tool in _functions(given)}
    app.conf.worker_prefetch_multiplier = 1
    app.conf.broker_transport_options = {"visibility_timeout": KEPT_S, **(app.conf.broker_transport_options or {})}
    signals.worker_process_init.connect(_lead_a_group)
    signals.worker_ready.connect(_look_often)
    url = results_url(app)

    @app.task(name=TASK, base=_ToolTask, bind=True, acks_late=True, reject_on_worker_lost=False, ignore_result=True, max_retries=0)  # type: ignore[untyped-decorator]
    def run(task: Task, name: str, args: dict[str, Any]) -> None:
        results = _connect(url)
        if results.set(_claim(task.request.id), "begun", nx=True, ex=KEPT_S):
            _report(results, task.request.reply_to, task.request.id, **_outcome(known, name, args))

    return app


def _lead_a_group(**_: Any) -> None:
    """Celery kills the process group of a worker process that leads one: then the children of a tool die with it."""
    os.setpgrp()


def _look_often(sender: Any, **_: Any) -> None:
    """Notice a dead process at once. Celery looks when one closes its pipe, and may be there before the kernel has ended it: then it
    looks again only after five seconds.
    """
    hub = getattr(sender, "hub", None)
    if hub is not None and not getattr(hub, "edictum_looks", False):  # a worker that connects again is ready again
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
    """The function itself, where a module holds a ToolSpec in its place."""
    return getattr(tool, "function", None) or tool


class _ToolRequest(Request):  # type: ignore[misc]
    """Lives in the worker's main process, so it survives the end of the process that runs the body, and can tell of it."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        super().on_timeout(soft, timeout)
        if not soft:
            self._tell("timeout")

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        """What a tool raises is reported by the task itself, so this is the end of the process that ran it."""
        why = getattr(exc_info.exception, "exc", exc_info.exception)
        if not isinstance(why, TimeLimitExceeded):
            self._tell("lost", text=_text(why))
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def _tell(self, status: str, **more: Any) -> None:
        _report(_connect(results_url(self.task.app)), self.reply_to, self.id, status=status, **more)


class _ToolTask(Task):  # type: ignore[misc]
    Request = _ToolRequest


def _outcome(tools: dict[str, Callable[..., Any]], name: str, args: dict[str, Any]) -> dict[str, Any]:
    tool = tools.get(name)
    if tool is None:
        return {"status": "refused", "text": f"{name} is not a tool of this worker"}
    try:
        value = tool(**args)
        if inspect.isawaitable(value):
            value = asyncio.run(_settled(value))
    except BaseException as exc:  # SystemExit of a tool is the tool's failure, not the end of the worker
        return {"status": "error", "type": type(exc).__name__, "text": _text(exc)}
    try:
        packed = dumps(value)
    except Exception as exc:
        return {"status": "unsent", "text": f"{type(exc).__name__}: {_text(exc)}"}
    if len(packed) > MAX_RESULT_BYTES:
        return {"status": "unsent", "text": f"it has {len(packed)} characters, more than the {MAX_RESULT_BYTES} that are allowed"}
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


# --- Both sides -----------------------------------------------------------------------------------------------------------


def _redis_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{({'celery': 'redis', 'celerys': 'rediss'}).get(scheme, scheme)}://{rest}"


def results_url(app: Celery) -> str:
    """Where the answers go: the app's result backend, or its broker, whichever is Redis."""
    for url in (app.conf.result_backend, app.conf.broker_url):
        if isinstance(url, str) and url.startswith(("redis://", "rediss://", "unix://")):
            return url
    raise EdictumConfigError("The Celery app has no Redis to answer by.", hint="Set its broker or result_backend to redis://...")


@lru_cache(maxsize=8)
def _connect(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, health_check_interval=30)


def _claim(call: str) -> str:
    return f"edictum:call:{call}"


# --- The governing side ---------------------------------------------------------------------------------------------------


def _client_app(url: str) -> Celery:
    """Trying again is for the retry policy of the harness, which knows the deadline."""
    return Celery("edictum", broker=_redis_url(url), set_as_current=False, broker_transport_options={"max_retries": 0})


class CeleryEngine:
    """Sends bodies to Celery workers. ``Edictum(execution="celery://host:6379/0")`` makes one, as does a Celery app.

    A call without a ``timeout_s`` gets ``default_timeout_s``: on another machine nothing may run without an end.
    """

    def __init__(self, app: Celery | str, *, default_timeout_s: float = DEFAULT_TIMEOUT_S, queue: str | None = None) -> None:
        self.app = _client_app(app) if isinstance(app, str) else app
        self.results = redis.Redis.from_url(results_url(self.app), health_check_interval=30)
        self.default_timeout_s = default_timeout_s
        self.queue = queue
        self._id = uuid.uuid4().hex
        self._waiting: dict[str, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._listener: threading.Thread | None = None
        self._closed = threading.Event()

    async def run(self, effect: RunTool) -> Ran:
        call = _Call(self, effect)
        try:
            await wait_for(HELPERS.submit(call.send), call.left_s())
            await wait_for(call.reply, call.left_s())
            ending = HELPERS.submit(call.end)
            await wait_for(ending)
        except asyncio.CancelledError as exc:
            HELPERS.submit(call.give_up)
            return Ran(None, exc, call.elapsed_s(), cancelled=True, body_may_be_running=True)
        return ending.result()  # type: ignore[no-any-return]

    def run_sync(self, effect: RunTool) -> Ran:
        call = _Call(self, effect)
        try:
            HELPERS.submit(call.send)
            call.wait()
            return call.end()
        except KeyboardInterrupt as exc:
            call.give_up()
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
            if self._listener is None or not self._listener.is_alive():
                self._closed.clear()
                self._listener = threading.Thread(target=self._listen, args=(inbox,), name="edictum-replies", daemon=True)
                self._listener.start()
        return inbox

    def forget(self, call: str) -> None:
        with self._lock:
            self._waiting.pop(call, None)

    def _listen(self, inbox: str) -> None:
        """One connection for the answers to all calls."""
        while not self._closed.is_set():
            try:
                got: Any = self.results.blpop([inbox], timeout=LISTEN_S)
            except redis.RedisError:
                self._closed.wait(LISTEN_S)  # the server is away; calls that wait end at their deadlines
                continue
            if got is not None:
                self._deliver(loads(got[1]))

    def _deliver(self, reply: dict[str, Any]) -> None:
        with self._lock:
            waiting = self._waiting.pop(reply["call"], None)
        if waiting is not None:  # else it comes too late, or twice
            waiting.set_result(reply)


class _Call:
    """One call under way. Its methods block."""

    def __init__(self, engine: CeleryEngine, effect: RunTool) -> None:
        self._engine, self._effect = engine, effect
        self._started = clock()
        self._timeout_s = effect.timeout_s or engine.default_timeout_s
        self._id = uuid.uuid4().hex
        self.reply: Future[dict[str, Any]] = Future()
        self.reply.set_running_or_notify_cancel()

    def elapsed_s(self) -> float:
        return clock() - self._started

    def left_s(self) -> float:
        return max(0.0, self._timeout_s + GRACE_S - self.elapsed_s())

    def send(self) -> None:
        """Send the call. What keeps it from being sent is its answer."""
        engine = self._engine
        try:
            message = self._message()
            inbox = engine.expect(self._id, self.reply)
            engine.app.send_task(TASK, message, task_id=self._id, reply_to=inbox, queue=engine.queue, serializer="json",
                                 time_limit=self._timeout_s, ignore_result=True, retry=False)  # fmt: skip
        except NotStarted as exc:
            self.reply.set_result({"status": "refused", "text": str(exc)})
        except Exception as exc:  # of the broker; it may have the call nevertheless
            engine.forget(self._id)
            status = "refused" if self._withdrawn() else "lost"
            self.reply.set_result({"status": status, "text": f"the broker did not take the call: {type(exc).__name__}: {exc}"})

    def _message(self) -> tuple[str, dict[str, Any]]:
        body, args = self._effect.body, thaw_args(self._effect.call.args)
        if body is None or not hasattr(body, "__qualname__") or "<" in body.__qualname__ or body.__module__ == "__main__":
            raise NotStarted(f"{body!r} has no name by which a worker could know it. Define it at the top of a module")
        try:
            dumps(args)
        except Exception as exc:
            raise NotStarted(f"the arguments cannot be sent as JSON: {type(exc).__name__}: {_text(exc)}") from exc
        return reference(body), args

    def wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            self.reply.result(self.left_s())

    def _withdrawn(self) -> bool:
        """Keep the call from being begun. False: it has begun, or the claim cannot be made."""
        try:
            return bool(self._engine.results.set(_claim(self._id), "withdrawn", nx=True, ex=KEPT_S))
        except redis.RedisError:
            return False

    def give_up(self) -> None:
        """Nobody waits any more: keep the call from being begun, or have its process killed."""
        self._engine.forget(self._id)
        if not self._withdrawn():
            self._engine.app.control.revoke(self._id, terminate=True, signal="SIGKILL")

    def end(self) -> Ran:
        self._engine.forget(self._id)
        reply = self.reply.result() if self.reply.done() else {"status": "unknown"}
        return self._ran(reply, reply.get("text", ""))

    def _ran(self, reply: dict[str, Any], text: str) -> Ran:
        elapsed_s, deadline_s, tool = self.elapsed_s(), self._started + self._timeout_s, self._effect.call.tool_name
        match reply["status"]:
            case "ok":
                return Ran(loads(reply["value"]), None, elapsed_s)
            case "error":
                return Ran(None, RemoteError(f"{reply['type']}: {text}", reply["type"]), elapsed_s)
            case "unsent":
                return Ran(None, NotReturned(f"It ended, but its result cannot be sent back: {text}"), elapsed_s)
            case "refused":
                return Ran(None, NotStarted(f"Tool {tool!r} was not started: {text}."), elapsed_s, not_started=True)
            case "timeout":
                return Ran(None, None, elapsed_s, deadline_s)
            case "lost":
                lost = f"Tool {tool!r} was lost: {text}"
                return Ran(None, Lost(lost), elapsed_s, lost=lost)
            case _:
                begun = not self._withdrawn()
                return Ran(None, None, elapsed_s, deadline_s, body_may_be_running=begun, not_started=not begun)
