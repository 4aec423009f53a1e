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
import inspect
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from functools import lru_cache
from types import ModuleType
from typing import Any

import redis
from celery import Celery, Task
from celery.exceptions import WorkerLostError
from celery.worker.request import Request
from kombu.utils import json

from edictum.core.effects import Ran, RunTool
from edictum.core.freeze import thaw_args
from edictum.errors import EdictumConfigError
from edictum.execution.failures import Lost, NotReturned, NotStarted, RemoteError
from edictum.execution.threads import DaemonPool

TASK = "edictum.run"
DEFAULT_TIMEOUT_S = 300.0
GRACE_S = 0.25  # how long after the deadline the worker's own word is waited for
KEPT_S = 86_400  # for how long claims are kept; no call may take longer
MAX_RESULT_BYTES = 64 << 20

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
    url = results_url(app)

    @app.task(name=TASK, base=_ToolTask, bind=True, acks_late=True, reject_on_worker_lost=False, ignore_result=True, max_retries=0)
    def run(task: Task, name: str, args: dict[str, Any]) -> None:
        results = _connect(url)
        if results.set(_claim(task.request.id), "begun", nx=True, ex=KEPT_S):
            _report(results, task.request.reply_to, task.request.id, **_outcome(known, name, args))

    return app


def reference(function: Callable[..., Any]) -> str:
    """The name by which both sides know a function."""
    return f"{function.__module__}:{function.__qualname__}"  # type: ignore[attr-defined]


def _functions(given: Callable[..., Any] | ModuleType) -> list[Callable[..., Any]]:
    if not isinstance(given, ModuleType):
        return [given]
    defined = [value for name, value in vars(given).items() if inspect.isfunction(value) and not name.startswith("_")]
    return [function for function in defined if function.__module__ == given.__name__]


class _ToolRequest(Request):
    """Lives in the worker's main process, so it survives the end of the process that runs the body, and can tell of it."""

    def on_timeout(self, soft: bool, timeout: float) -> None:
        super().on_timeout(soft, timeout)
        if not soft:
            self._tell("timeout")

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        if isinstance(exc_info.exception, WorkerLostError):
            self._tell("lost", text=str(exc_info.exception))
        return super().on_failure(exc_info, send_failed_event, return_ok)

    def _tell(self, status: str, **more: Any) -> None:
        _report(_connect(results_url(self.task.app)), self.reply_to, self.id, status=status, **more)


class _ToolTask(Task):
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
        packed = json.dumps(value)
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
        pipe.lpush(reply_to, json.dumps({"call": call, **reply}))
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


class CeleryEngine:
    """Sends bodies to Celery workers. ``Edictum(execution="celery://host:6379/0")`` makes one, as does a Celery app.

    A call without a ``timeout_s`` gets ``default_timeout_s``: on another machine nothing may run without an end.
    """

    def __init__(self, app: Celery | str, *, default_timeout_s: float = DEFAULT_TIMEOUT_S, queue: str | None = None) -> None:
        self.app = Celery("edictum", broker=_redis_url(app), set_as_current=False) if isinstance(app, str) else app
        self._results = redis.Redis.from_url(results_url(self.app), health_check_interval=30)
        self._default_timeout_s = default_timeout_s
        self._queue = queue
        self._inbox = f"edictum:replies:{uuid.uuid4().hex}"
        self._waiting: dict[str, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._listener: threading.Thread | None = None
        self._closed = threading.Event()

    async def run(self, effect: RunTool) -> Ran:
        call = _Call(self, effect)
        try:
            await asyncio.wait((asyncio.wrap_future(HELPERS.submit(call.send)),))
            if call.unsent is None:
                waiting = asyncio.wrap_future(call.reply)
                await asyncio.wait((waiting,), timeout=call.patience_s())
                waiting.remove_done_callback(lambda _: None)
        except asyncio.CancelledError as exc:
            HELPERS.submit(call.give_up)
            return Ran(None, exc, call.elapsed_s(), cancelled=True, body_may_be_running=True)
        ending = HELPERS.submit(call.end)
        await asyncio.wait((asyncio.wrap_future(ending),))
        return ending.result()  # type: ignore[no-any-return]

    def run_sync(self, effect: RunTool) -> Ran:
        call = _Call(self, effect)
        try:
            call.send()
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
        self._results.close()
