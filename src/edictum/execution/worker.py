"""The worker: a fresh interpreter that runs tool bodies for ``edictum.execution.processes``.

It is started as a file and imports the standard library only, so that it is ready in some tens of
milliseconds; what a tool needs is imported when the tool is first called. It leads a process group,
so that one signal ends it together with everything that its tools have started.

On its socket it first writes one byte, READY. Then it reads requests and writes a reply to each;
both are a length in eight bytes and a pickle. When the socket is closed it ends; when its host
dies, the kernel kills the whole group.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from typing import Any

READY = b"\x01"
LENGTH = 8
MAIN = "EDICTUM_IMPORTING_MAIN"  # set while the host's script is imported, see ``_import_main``
PR_SET_CHILD_SUBREAPER = 36

# A request: (sys.path, the host's script or None, CPU seconds or None, most bytes of a result,
# pickled function, pickled arguments, trace context).
Request = tuple[list[str], tuple[str, str] | None, float | None, int, bytes, bytes, dict[str, str]]
# A reply: (kind, text, name of the exception's type, traceback, pickled value or exception, whether
# children were left behind).
WorkerReply = tuple[str, str, str, str, bytes, bool]


def frame(message: bytes) -> bytes:
    return len(message).to_bytes(LENGTH, "big") + message


def serve(fd: int, lifeline: int, memory: int) -> None:
    home = os.getpid()
    _close_in_children([fd])
    _die_with_host(lifeline)
    _adopt_orphans()
    if memory:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the host has ended
        os.write(fd, READY)
        _serve_requests(fd, home)


def _close_in_children(inherited: list[int]) -> None:
    """Have a tool's child processes close the socket, once: later its number may belong to another
    file.
    """

    def close() -> None:
        while inherited:
            with contextlib.suppress(OSError):  # the tool has closed it itself
                os.close(inherited.pop())

    os.register_at_fork(after_in_child=close)


def _serve_requests(fd: int, home: int) -> None:
    stream = open(fd, "rb", closefd=False)  # noqa: SIM115  # read for as long as the worker lives
    while len(head := stream.read(LENGTH)) == LENGTH:
        size = int.from_bytes(head, "big")
        request = stream.read(size)
        if len(request) < size:
            return
        reply = _run_request(pickle.loads(request))  # noqa: S301 - from the host, on its own socket
        _flush()
        if os.getpid() != home:
            os._exit(0)  # a tool forked, and its child came back here
        _write(fd, frame(reply))
        del request, reply  # hold nothing of the last call while idle


def _flush() -> None:
    """Write out what a tool has printed: it would be lost if the worker is killed later."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[: 1 << 20]) :]


# --- One call -------------------------------------------------------------------------------------


def _run_request(request: Request) -> bytes:
    path, script, cpu_s, max_bytes, target, packed, carrier = request
    if sys.path != path:
        sys.path[:] = path
    try:
        if script is not None:
            _import_main(*script)
        body, args = pickle.loads(target), pickle.loads(packed)  # noqa: S301
    except BaseException as exc:
        return _reply("refused", exc)
    _limit_cpu(cpu_s)
    try:
        with _enter_context(carrier):
            value = body(**args)
            if hasattr(value, "__await__"):
                value = _await(value)
    except BaseException as exc:  # a tool's SystemExit is its failure, not the worker's end
        return _reply("error", exc)
    return _result(value, max_bytes)


def _enter_context(carrier: dict[str, str]) -> contextlib.AbstractContextManager[None]:
    if carrier:
        with contextlib.suppress(ImportError):  # of a host whose packages are not in sys.path
            from edictum.execution.trace_context import enter_context

            return enter_context(carrier)
    return contextlib.nullcontext()


def _await(value: Any) -> Any:
    import asyncio

    async def body() -> Any:
        return await value

    return asyncio.run(body())


def _result(value: Any, max_bytes: int) -> bytes:
    try:
        packed = pickle.dumps(value, 5)
    except BaseException as exc:
        return _reply("unsent", exc)
    if len(packed) > max_bytes:
        return _pack(("too large", str(len(packed)), "", "", b"", _has_left_children()))
    return _pack(("value", "", "", "", packed, _has_left_children()))


def _reply(kind: str, exc: BaseException) -> bytes:
    import traceback

    try:
        where = "".join(traceback.format_exception(exc))
    except BaseException:
        where = ""
    try:
        packed = pickle.dumps(exc, 5)
    except BaseException:
        packed = b""
    return _pack((kind, _text(exc), type(exc).__name__, where, packed, _has_left_children()))


def _text(exc: BaseException) -> str:
    try:
        return str(exc)
    except BaseException:
        return f"<{type(exc).__name__} whose str() raises>"


def _pack(reply: WorkerReply) -> bytes:
    return pickle.dumps(reply, 5)


def _has_left_children() -> bool:
    """Return whether the call has left a process behind. Reap those that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def _import_main(how: str, name: str) -> None:
    """Run the host's script as ``__mp_main__``, so that pickle finds here what it defines.

    While it runs, no worker can be started from here: a script without the line ``if __name__ ==
    "__main__":`` would go on starting itself.
    """
    if "__mp_main__" in sys.modules:
        return
    import runpy
    import types

    module = types.ModuleType("__mp_main__")
    os.environ[MAIN] = "1"
    try:
        run = runpy.run_path if how == "path" else runpy.run_module
        module.__dict__.update(run(name, run_name="__mp_main__"))
    finally:
        del os.environ[MAIN]
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module


# --- Limits, and the end --------------------------------------------------------------------------


def _limit_cpu(cpu_s: float | None) -> None:
    """Limit the CPU time of one call by the soft limit, which the next call may raise again."""
    if cpu_s is None:
        return
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + cpu_s) + 1, hard))


def _die_with_host(lifeline: int) -> None:
    """Have the kernel kill the group when the host's end of this pipe is closed.

    A thread that watches would need the interpreter lock, which a tool can hold; PR_SET_PDEATHSIG
    fires already when the *thread* that started the worker ends.
    """
    import fcntl

    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that the host still finds processes that were
    detached.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
