"""Asking the user's own functions: hooks, resolvers, checkers.

Outside of a turn they are called where they stand. In a turn nothing may take longer than the turn
has, so a plain function is called where it can be left behind (see ``Consult``). A coroutine
function gives an awaitable, which can be left behind anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from edictum.core._records import replace
from edictum.core.call import ToolCall
from edictum.core.contract import Mode
from edictum.core.decide import as_hook_answer, describe, hook_error
from edictum.core.decision import USER_ERRORS, Failed, HookAnswer
from edictum.core.effects import Consult, Effect, Settle
from edictum.core.hooks import HookRegistration, HookResult


def consult(
    function: Callable[..., Any], args: tuple[Any, ...], in_turn: bool = False
) -> Generator[Effect, Any, Any]:
    """Call a function of the user and settle what it returned; an exception is returned as
    ``Failed``.
    """
    if in_turn and not iscoroutinefunction(function):
        return (yield Consult(function, args))
    try:
        answer = function(*args)
    except USER_ERRORS as exc:
        return Failed(exc)
    return (yield Settle(answer)) if isawaitable(answer) else answer


def holds(
    hook: HookRegistration, args: tuple[Any, ...], in_turn: bool = False
) -> Generator[Effect, Any, Any]:
    """Whether a hook's ``when`` holds: True, False, or ``Failed``."""
    return (
        True
        if hook.when is None
        else (yield from consult(partial(_truth, hook.when), args, in_turn))
    )


def _truth(when: Callable[..., Any], *args: Any) -> bool:
    return bool(when(*args))


def ask_hooks(
    hooks: Iterable[HookRegistration], call: ToolCall, mode: Mode, in_turn: bool = False
) -> Generator[Effect, Any, tuple[ToolCall, list[HookAnswer]]]:
    """Ask the before-hooks one after the other, each about the arguments as those before it have
    left them.

    All are asked, also after a denial. Returns the call with the arguments that came of it, and
    every answer.
    """
    answers: list[HookAnswer] = []
    for hook in hooks:
        raw = yield from holds(hook, (call,), in_turn)
        if raw is False:
            continue
        if raw is True:
            raw = yield from consult(hook.callback, (call,), in_turn)
        call, answer = _taken(call, hook, raw, mode)
        answers.append(answer)
    return call, answers


def _taken(
    call: ToolCall, hook: HookRegistration, raw: Any, mode: Mode
) -> tuple[ToolCall, HookAnswer]:
    """What one hook said, and the call as it is after that. Arguments that cannot be snapshotted
    are an error of the hook.
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
