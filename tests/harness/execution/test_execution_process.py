"""Tools in worker processes: whatever they do, the call ends in time and as one outcome, and
nothing is left behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import process_bodies as bodies
import pytest
from execution_helpers import gone, pids_in

from edictum import Edictum, ToolExecutionResult, ToolFailure, ToolTimeout, outcome_to_model_content
from edictum.execution.failures import Lost, NotReturned, NotStarted, RemoteError, RemoteTraceback
from edictum.execution.processes import ProcessPool
from edictum.execution.worker_process import descendants
from support.guards import count_calls
from support.waiting import wait_until

HERE = Path(__file__).parent
SHORT = 1.0  # enough for a warm worker to have begun, on a busy machine too
PATIENCE = 60.0  # for calls that should end by themselves


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPool]:
    pool = ProcessPool(max_workers=3)
    yield pool
    pool.close()


@pytest.fixture
def guard(pool: ProcessPool) -> Edictum:
    return Edictum(
        execution=pool,
        tools={
            "read": {"side_effect": "read"},
            "pay": {"side_effect": "write", "verify": "read_balance"},
        },
    )


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- Well-behaved tools ---------------------------------------------------------------------------


async def test_tools_run_in_another_process_and_workers_are_used_again(guard: Edictum) -> None:
    first = await guard.run("read", {}, bodies.pid)
    assert first != os.getpid()
    assert await guard.run("read", {}, bodies.pid) == first
    assert await asyncio.to_thread(guard.run_sync, "read", {}, bodies.pid) == first
    assert guard.run_sync("read", {}, bodies.pid) == first
    assert count_calls(guard) == (4, 4, 0, 0)


@pytest.mark.parametrize("options", [{"run_in": "process"}, {}])
async def test_the_word_works_for_a_call_and_for_a_tool(options: dict[str, Any]) -> None:
    guard = Edictum(tools={} if options else {"add": {"run_in": "process"}})
    assert await guard.run("add", {"a": 1, "b": 2}, bodies.add, **options) == 3
    assert (
        await guard.run("add", {"a": 1, "b": 2}, bodies.add_later, timeout_s=PATIENCE, **options)
        == 3
    )
    assert await guard.run("pid", {}, bodies.pid) == os.getpid()


async def test_the_loop_goes_on_while_a_worker_works(guard: Edictum) -> None:
    """Nothing that waits for a worker blocks the event loop."""
    call = asyncio.ensure_future(guard.run("read", {"seconds": 0.2}, bodies.nap))
    ticks = 0
    while not call.done():
        await asyncio.sleep(0.005)
        ticks += 1
    assert ticks >= 5


async def test_more_calls_than_workers_wait_for_their_turn(guard: Edictum) -> None:
    """From tasks and from threads at once."""
    tasks = [guard.run("add", {"a": number, "b": 1}, bodies.add) for number in range(40)]
    threads = [
        asyncio.to_thread(guard.run_sync, "add", {"a": number, "b": 1}, bodies.add)
        for number in range(40)
    ]
    assert await asyncio.gather(*tasks, *threads) == [number + 1 for number in range(40)] * 2
    assert count_calls(guard) == (80, 80, 0, 0)


async def test_context_variables_are_not_carried_over(guard: Edictum) -> None:
    bodies.REQUEST.set("r-1")
    assert await guard.run("read", {}, bodies.request) == "unset"


async def test_large_arguments_and_results_go_through(guard: Edictum) -> None:
    """10 MB each way."""
    text = "x" * 10_000_000
    outcome = await guard.dispatch("read", {"value": text}, bodies.keep)
    assert isinstance(outcome, ToolExecutionResult)
    assert outcome.value == text
    assert guard.run_sync("read", {"value": text}, bodies.keep) == text


# --- Out of time ----------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [bodies.spin, bodies.spin_deaf, bodies.hang_in_finally])
@pytest.mark.parametrize("sync", [False, True])
async def test_a_body_that_does_not_end_is_killed(guard: Edictum, body: Any, sync: bool) -> None:
    """A loop, a loop that ignores signals, a coroutine whose finally hangs."""
    await guard.run("read", {}, bodies.pid)  # there is a warm worker
    if sync:
        outcome = await asyncio.to_thread(guard.dispatch_sync, "pay", {}, body, timeout_s=SHORT)
    else:
        outcome = await guard.dispatch("pay", {}, body, timeout_s=SHORT)
    assert isinstance(outcome, ToolTimeout)
    assert not outcome.body_may_be_running
    assert outcome.effect_unknown
    assert outcome.verify_tool == "read_balance"
    assert (
        "check with 'read_balance' before you call it again"
        in json.loads(outcome_to_model_content(outcome))["error"]
    )
    assert await guard.run("read", {"a": 1, "b": 2}, bodies.add) == 3
    assert count_calls(guard) == (3, 2, 1, 0)


async def test_what_only_reads_has_no_unknown_effect(guard: Edictum) -> None:
    outcome = await guard.dispatch("read", {}, bodies.spin, timeout_s=SHORT)
    assert isinstance(outcome, ToolTimeout)
    assert not outcome.effect_unknown
    assert outcome.verify_tool is None


async def test_children_and_grandchildren_die_too(guard: Edictum, tmp_path: Path) -> None:
    """Also one that left the process group."""
    for seconds in (2.0, 30.0):  # on a busy machine the time may be over before they are all there
        path = tmp_path / f"pids-{seconds}"
        outcome = await guard.dispatch("pay", {"path": str(path)}, bodies.family, timeout_s=seconds)
        assert isinstance(outcome, ToolTimeout)
        if len(pids := pids_in(path)) == 3:
            break
    assert len(pids) == 3
    for pid in pids:
        wait_until(lambda pid=pid: gone(pid))


async def test_what_a_tool_leaves_running_ends_with_its_call(
    guard: Edictum, tmp_path: Path
) -> None:
    """The value counts; the processes do not stay."""
    path = tmp_path / "pids"
    assert await guard.run("pay", {"path": str(path), "hang": False}, bodies.family) == "done"
    for pid in map(int, path.read_text().split()):
        wait_until(lambda pid=pid: gone(pid))
    assert await guard.run("pay", {"path": str(path)}, bodies.fork_and_sleep) == "parent"
    wait_until(lambda: gone(int(path.read_text())))


async def test_the_child_of_a_child_keeps_what_is_its_own(guard: Edictum) -> None:
    assert await guard.run("pay", {}, bodies.fork_twice) == "open"


async def test_a_fork_that_comes_back_has_no_say(guard: Edictum) -> None:
    """The child of a tool returns, too; only its parent's answer counts, and the next call gets its
    own.
    """
    for _ in range(5):
        assert await guard.run("pay", {}, bodies.fork_and_return) == "parent"
        assert await guard.run("read", {"a": 1, "b": 2}, bodies.add) == 3


async def test_a_call_that_never_got_a_worker_has_not_begun(tmp_path: Path) -> None:
    """Its effect is not unknown: there is none."""
    pool = ProcessPool(max_workers=1)
    guard = Edictum(execution=pool)
    first = asyncio.ensure_future(guard.dispatch("pay", {}, bodies.spin, timeout_s=5))
    await asyncio.sleep(0.1)
    for outcome in (
        await guard.dispatch("pay", {"a": 1, "b": 2}, bodies.add, timeout_s=0.05),
        await asyncio.to_thread(
            guard.dispatch_sync, "pay", {"a": 1, "b": 2}, bodies.add, timeout_s=0.05
        ),
    ):
        assert isinstance(outcome, ToolTimeout)
        assert not outcome.effect_unknown
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await guard.run("pay", {"a": 1, "b": 2}, bodies.add) == 3
    pool.close()


async def test_a_deadline_before_the_interpreter_is_up_means_not_begun(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(60)\n")
    pool = ProcessPool(env={"PYTHONPATH": str(tmp_path)})
    outcome = await Edictum(execution=pool).dispatch("pay", {}, bodies.spin, timeout_s=0.05)
    assert isinstance(outcome, ToolTimeout)
    assert not outcome.effect_unknown
    pool.close()


async def test_a_cancelled_caller_takes_the_worker_with_it(guard: Edictum, tmp_path: Path) -> None:
    path = tmp_path / "pids"
    call = asyncio.ensure_future(guard.run("pay", {"path": str(path)}, bodies.family))
    await asyncio.to_thread(
        wait_until, lambda: path.exists() and len(path.read_text().split()) == 3
    )
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    for pid in map(int, path.read_text().split()):
        wait_until(lambda pid=pid: gone(pid))
    assert count_calls(guard) == (1, 0, 1, 0)


# --- Lost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "args", "why"),
    [
        (bodies.crash, {"code": 7}, "exit code 7"),
        (bodies.crash, {"code": 0}, "exit code 0"),
        (bodies.kill_self, {"number": signal.SIGKILL}, "signal 9 (SIGKILL)"),
        (bodies.kill_self, {"number": signal.SIGSEGV}, "signal 11 (SIGSEGV)"),
        (bodies.fork_and_die, {}, "exit code 5"),
        (bodies.close_everything, {}, "closed the connection"),
        (bodies.shout_into_the_socket, {}, "something else wrote to the host"),
    ],
)
@pytest.mark.parametrize("sync", [False, True])
async def test_a_worker_that_dies_is_lost_and_replaced(
    guard: Edictum, body: Any, args: dict[str, Any], why: str, sync: bool
) -> None:
    if sync:
        outcome = await asyncio.to_thread(
            guard.dispatch_sync, "pay", args, body, timeout_s=PATIENCE
        )
    else:
        outcome = await guard.dispatch("pay", args, body, timeout_s=PATIENCE)
    assert isinstance(outcome, ToolFailure), outcome
    assert why in outcome.error
    assert isinstance(outcome.exception, Lost)
    assert outcome.success_source == "lost"
    assert outcome.effect_unknown
    assert "check with 'read_balance'" in outcome_to_model_content(outcome)
    assert await guard.run("read", {"a": 1, "b": 2}, bodies.add) == 3
    assert count_calls(guard) == (2, 1, 1, 0)


async def test_a_worker_that_died_while_it_was_idle_harms_nobody(
    pool: ProcessPool, guard: Edictum
) -> None:
    pid = await guard.run("read", {}, bodies.pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid))
    assert await guard.run("read", {"a": 1, "b": 2}, bodies.add) == 3
    pid = guard.run_sync("read", {}, bodies.pid)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: gone(pid))
    assert guard.run_sync("read", {"a": 1, "b": 2}, bodies.add) == 3


async def test_memory_is_limited() -> None:
    """A tool that asks for too much gets a MemoryError, and its worker goes on."""
    pool = ProcessPool(memory_bytes=1 << 30)
    guard = Edictum(execution=pool)
    outcome = await guard.dispatch("eat", {"count": 2 << 30}, bodies.eat)
    assert isinstance(outcome, ToolFailure)
    assert isinstance(outcome.exception, MemoryError)
    assert await guard.run("eat", {"count": 1000}, bodies.eat) == 1000
    pool.close()


async def test_cpu_time_is_limited() -> None:
    """Per call, not per worker; whether the tool had an effect is unknown."""
    pool = ProcessPool(max_workers=1, cpu_s=0.1)
    guard = Edictum(execution=pool)
    assert await guard.run("add", {"a": 1, "b": 2}, bodies.add) == 3
    outcome = await guard.dispatch("spin", {}, bodies.spin, timeout_s=PATIENCE)
    assert isinstance(outcome, ToolFailure)
    assert "it used up its CPU time" in outcome.error
    assert outcome.effect_unknown
    assert await guard.run("add", {"a": 1, "b": 2}, bodies.add) == 3
    pool.close()


# --- What cannot be carried over ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "args", "why"),
    [
        (lambda: 1, {}, "The function of 'pay' cannot be sent to a worker process"),
        (
            bodies.keep,
            {"value": threading.Lock()},
            "The arguments of 'pay' cannot be sent to a worker process",
        ),
    ],
)
async def test_what_cannot_be_sent_fails_before_anything_runs(
    guard: Edictum, body: Any, args: dict[str, Any], why: str
) -> None:
    for outcome in (
        await guard.dispatch("pay", args, body),
        guard.dispatch_sync("pay", args, body),
    ):
        assert isinstance(outcome, ToolFailure)
        assert why in outcome.error
        assert isinstance(outcome.exception, NotStarted)
        assert not outcome.effect_unknown


async def test_what_a_worker_cannot_import_fails_before_anything_runs(
    guard: Edictum, tmp_path: Path
) -> None:
    """The host has the module, its worker does not."""
    source = "def tool():\n    return 1\n"
    module = type(sys)("only_in_the_host")
    exec(source, module.__dict__)
    sys.modules["only_in_the_host"] = module
    outcome = await guard.dispatch("pay", {}, module.tool)
    assert isinstance(outcome, ToolFailure)
    assert "could not load the tool: ModuleNotFoundError" in outcome.error
    assert not outcome.effect_unknown


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (bodies.unpicklable, "cannot be sent back"),
        (bodies.unreadable, "cannot be read"),
        (bodies.leaves_when_read, "SystemExit"),
    ],
)
async def test_a_result_that_cannot_come_back_says_that_the_tool_ran(
    guard: Edictum, body: Any, why: str
) -> None:
    outcome = await guard.dispatch("pay", {}, body)
    assert isinstance(outcome, ToolFailure)
    assert isinstance(outcome.exception, NotReturned)
    assert outcome.error.startswith("It ended, but its result")
    assert why in outcome.error


async def test_a_huge_result_is_not_sent() -> None:
    pool = ProcessPool(max_result_bytes=1_000)
    guard = Edictum(execution=pool)
    outcome = await guard.dispatch("text", {"size": 2_000}, bodies.text_of)
    assert isinstance(outcome, ToolFailure)
    assert "more than the 1000 that are allowed" in outcome.error
    assert await guard.run("text", {"size": 10}, bodies.text_of) == "x" * 10
    pool.close()


@pytest.mark.parametrize(
    ("body", "args", "error", "text"),
    [
        (bodies.raise_value_error, {"text": "bad"}, ValueError, "bad"),
        (bodies.leave, {"code": 3}, SystemExit, "3"),
        (bodies.raise_interrupt, {}, KeyboardInterrupt, ""),
        (bodies.raise_unspeakable, {}, bodies.Unspeakable, ""),
        (bodies.raise_two_part, {}, RemoteError, "TwoPart: this and that"),
        (bodies.raise_local, {}, RemoteError, "Local: from inside"),
    ],
)
async def test_what_a_tool_raises_is_its_failure(
    guard: Edictum, body: Any, args: Any, error: type[BaseException], text: str
) -> None:
    """Also SystemExit, an exception whose str() raises, and those that cannot be carried over; the
    worker goes on.
    """
    before = await guard.run("read", {}, bodies.pid)
    outcome = await guard.dispatch("pay", args, body)
    assert isinstance(outcome, ToolFailure)
    assert type(outcome.exception) is error
    assert isinstance(outcome.exception.__cause__, RemoteTraceback)
    assert text in outcome.error
    assert not outcome.effect_unknown
    assert await guard.run("read", {}, bodies.pid) == before


# --- Nothing is left behind -----------------------------------------------------------------------


async def test_no_process_thread_or_descriptor_is_left(tmp_path: Path) -> None:
    """After calls that ended in every way, a closed pool has left nothing."""
    warm = ProcessPool()
    await Edictum(execution=warm).dispatch("pay", {}, bodies.spin, timeout_s=0.05)
    warm.close()
    files, children, threads = open_files(), descendants(os.getpid()), threading.active_count()
    pool = ProcessPool(max_workers=2)
    guard = Edictum(execution=pool)
    for number in range(8):
        await guard.dispatch("pay", {"a": 1, "b": 2}, bodies.add)
        await guard.dispatch("pay", {}, bodies.spin, timeout_s=0.05)
        await guard.dispatch("pay", {"code": 1}, bodies.crash)
        await guard.dispatch("pay", {}, bodies.fork_and_return)
        await guard.dispatch(
            "pay", {"path": str(tmp_path / str(number)), "hang": False}, bodies.family
        )
    pool.close()
    # Servers that other tests of this process have started may start and end children of their own
    # meanwhile.
    wait_until(
        lambda: (
            descendants(os.getpid()) - set().union(*(descendants(child) for child in children))
            <= children
        )
    )
    wait_until(lambda: open_files() <= files)
    assert threading.active_count() <= threads + 8  # idle helper threads are kept, a few


async def test_a_closed_pool_starts_anew() -> None:
    pool = ProcessPool()
    guard = Edictum(execution=pool)
    first = await guard.run("pid", {}, bodies.pid)
    pool.close()
    wait_until(lambda: gone(first))
    assert await guard.run("pid", {}, bodies.pid) != first
    await guard.close()


@pytest.mark.parametrize(
    "when", ["before it is begun", "before the process is there", "when it is there"]
)
async def test_a_worker_is_not_replaced_in_a_pool_that_was_closed_meanwhile(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would end it."""
    pool, put_off = ProcessPool(max_workers=1), list[int]()
    replace, start = pool._replace, pool._start
    monkeypatch.setattr(pool, "_replace", put_off.append)
    assert isinstance(
        await Edictum(execution=pool).dispatch("crash", {"code": 1}, bodies.crash), ToolFailure
    )
    await asyncio.to_thread(wait_until, lambda: put_off)
    started: list[Any] = []

    def closing(closings: int) -> Any:
        if when == "before the process is there":
            pool.close()
        started.append(start(closings))
        pool.close()
        return started[0]

    if when == "before it is begun":
        pool.close()
    monkeypatch.setattr(pool, "_start", closing)
    replace(put_off[0])
    assert (pool._workers, pool._count) == (set(), 0)
    assert len(started) == (when == "when it is there")
    await asyncio.to_thread(
        wait_until,
        lambda: all(
            it.process.returncode is not None and it.socket.fileno() == -1 for it in started
        ),
    )


async def test_closing_a_pool_ends_the_calls_that_are_under_way() -> None:
    pool = ProcessPool(max_workers=1)
    guard = Edictum(execution=pool)
    running = asyncio.ensure_future(guard.dispatch("spin", {}, bodies.spin))
    waiting = asyncio.ensure_future(guard.dispatch("add", {"a": 1, "b": 2}, bodies.add))
    await asyncio.sleep(0.2)
    await asyncio.to_thread(pool.close)
    assert isinstance(await running, ToolFailure)
    outcome = await waiting
    assert isinstance(outcome, ToolFailure)
    assert "was closed" in outcome.error
    pool.close()


def test_a_forked_child_has_workers_of_its_own(guard: Edictum) -> None:
    """And leaves its parent's alone, also when it ends."""
    mine = guard.run_sync("read", {}, bodies.pid)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(write, str(guard.run_sync("read", {}, bodies.pid)).encode())
            guard._state.wiring.run_in.close()  # type: ignore[union-attr]
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    theirs = int(os.read(read, 20))
    os.close(read)
    os.close(write)
    assert theirs != mine
    assert guard.run_sync("read", {}, bodies.pid) == mine


SCRIPT = """
import asyncio, os, sys, time
sys.path.insert(0, {here!r})
import process_bodies as bodies
from edictum import Edictum

def double(n):
    return 2 * n

{body}
"""


def run_script(tmp_path: Path, body: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(here=str(HERE), body=body))
    return subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("options", ["run_in='process'", "run_in='thread'", "timeout_s=600"])
@pytest.mark.parametrize("end", ["sys.exit(4)", "os._exit(4)", "os.kill(os.getpid(), 9)"])
def test_a_process_whose_tool_hangs_ends_at_once(tmp_path: Path, options: str, end: str) -> None:
    """However it ends, and no worker outlives it."""
    done = run_script(
        tmp_path,
        f"""
import threading
guard = Edictum()
if {options!r} == "run_in='process'":
    print(guard.run_sync("pid", {{}}, bodies.pid, {options}), flush=True)
threading.Thread(target=guard.dispatch_sync, args=("nap", {{"seconds": 600}}, bodies.nap), kwargs=dict({options}), daemon=True).start()
time.sleep(0.3)
{end}
""",
    )
    assert done.returncode in (4, -9), done
    assert done.stderr == ""
    for pid in done.stdout.split():
        wait_until(lambda pid=pid: gone(int(pid)))


def test_an_event_loop_ends_although_an_async_tool_does_not(tmp_path: Path) -> None:
    """asyncio.run waits for all tasks; one that swallows every cancellation would hold it for
    ever.
    """
    done = run_script(
        tmp_path,
        """
async def deaf():
    while True:
        try:
            await asyncio.sleep(600)
        except BaseException:
            pass

async def main():
    print((await Edictum().dispatch("deaf", {}, deaf, timeout_s=0.1)).body_may_be_running)

asyncio.run(main())
""",
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done


def test_functions_of_the_script_itself_can_be_sent(tmp_path: Path) -> None:
    """As with multiprocessing, its work stands below ``if __name__ == "__main__":``."""
    done = run_script(
        tmp_path,
        """
if __name__ == "__main__":
    print(Edictum().run_sync("double", {"n": 21}, double, run_in="process"))
""",
    )
    assert (done.returncode, done.stdout) == (0, "42\n"), done


def test_a_script_without_that_line_does_not_start_itself_for_ever(tmp_path: Path) -> None:
    done = run_script(
        tmp_path, 'print(Edictum().dispatch_sync("double", {"n": 21}, double, run_in="process"))'
    )
    assert "if __name__ == '__main__'" in done.stdout, done


def test_too_few_processes_is_a_failure_of_the_call(guard: Edictum) -> None:
    """The operating system refuses a new process, here for want of descriptors; what was taken is
    given back.
    """
    warm = ProcessPool(max_workers=1)  # loads what a failing call needs, which takes descriptors
    assert isinstance(
        Edictum(execution=warm).dispatch_sync("crash", {"code": 7}, bodies.crash), ToolFailure
    )
    warm.close()
    pool = ProcessPool(max_workers=1)
    small = Edictum(execution=pool)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (3, hard)
    )  # a bound on the number itself: not even a gap below can be used
    try:
        outcome = small.dispatch_sync("add", {"a": 1, "b": 2}, bodies.add)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(outcome, ToolFailure)
    assert "could not be started" in outcome.error
    assert small.run_sync("add", {"a": 1, "b": 2}, bodies.add) == 3
    pool.close()
