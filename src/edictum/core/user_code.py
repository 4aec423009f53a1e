"""Call user-supplied functions: hooks, resolvers, checkers.

Outside a turn they are called directly. In a turn nothing may take longer than the turn has, so an
ordinary function is called through the ``CallUserCode`` effect, which runs it where it can be
abandoned. A coroutine function returns an awaitable, which can be abandoned anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from edictum.core._records import replace
from edictum.core.call import ToolCall
from edictum.core.contract import Mode, Verdict
from edictum.core.decide import as_hook_answer, describe, hook_error
from edictum.core.decision import USER_ERRORS, Failed, HookAnswer
from edictum.core.effects import Await, CallUserCode, Effect
from edictum.core.hooks import HookRegistration, HookResult

SETTLED = frozenset({Verdict, Failed})  # answers that certainly need no awaiting


def call_user_code(
    function: Callable[..., Any], args: tuple[Any, ...], in_turn: bool = False
) -> Generator[Effect, Any, Any]:
    """Call a user-supplied function and return its value, awaited; or its exception as Failed."""
    if in_turn and not iscoroutinefunction(function):
        return (yield CallUserCode(function, args))
    try:
        answer = function(*args)
    except USER_ERRORS as exc:
        return Failed(exc)
    return (yield Await(answer)) if isawaitable(answer) else answer


def await_answers(
    raw: Sequence[tuple[Any, Any]],
) -> Generator[Effect, Any, list[tuple[Any, Any]]]:
    """Return the pairs of contract and answer with every awaitable answer awaited."""
    settled = []
    for asked, answer in raw:
        waits = type(answer) not in SETTLED and isawaitable(answer)
        settled.append((asked, (yield Await(answer)) if waits else answer))
    return settled


def is_applicable(
    hook: HookRegistration, args: tuple[Any, ...], in_turn: bool = False
) -> Generator[Effect, Any, Any]:
    """Return whether a hook's ``when`` holds: True, False, or Failed."""
    if hook.when is None:
        return True
    return (yield from call_user_code(partial(_call_when, hook.when), args, in_turn))


def _call_when(when: Callable[..., Any], *args: Any) -> bool:
    return bool(when(*args))


def ask_hooks(
    hooks: Iterable[HookRegistration], call: ToolCall, mode: Mode, in_turn: bool = False
) -> Generator[Effect, Any, tuple[ToolCall, list[HookAnswer]]]:
    """Ask every before-hook, each about the arguments that the hooks before it have produced.

    Returns the call with the final arguments, and all answers: after a denial the other hooks are
    asked too.
    """
    answers: list[HookAnswer] = []
    for hook in hooks:
        raw = yield from is_applicable(hook, (call,), in_turn)
        if raw is False:
            continue
        if raw is True:
            raw = yield from call_user_code(hook.callback, (call,), in_turn)
        call, answer = _apply_hook(call, hook, raw, mode)
        answers.append(answer)
    return call, answers


def _apply_hook(
    call: ToolCall, hook: HookRegistration, raw: Any, mode: Mode
) -> tuple[ToolCall, HookAnswer]:
    """Return the call after a hook, and the hook's answer.

    Rewritten arguments that cannot be snapshotted are an error of the hook.
    """
    answer = as_hook_answer(hook, raw)
    if answer.decision.result is not HookResult.REWRITE:
        return call, answer
    try:
        rewritten = replace(call, args=answer.decision.args)
    except USER_ERRORS as exc:
        return call, hook_error(hook, describe(exc))
    if mode == "observe":
        return call, replace(answer, observed=True)
    return rewritten, replace(answer, replaced=call.args)
